//! A captain with one helper, whose layers fit nowhere else: what is copied of them and when, and what becomes of them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use murmur_protocol::team::{
    Captain, CaptainConfig, CaptainEffect, CaptainEvent, HeldLayers, Lanes, LayerRange, Membership, Offer, Outcome,
    Packet, StateHeader, StateKind, StepFactors, Stream, TeamMessage, TeamNotice, TeamPhase, WorkKind,
};
use murmur_protocol::{Payload, PeerId, Time};

use super::harassed::{config, peer, sound_offer};

/// A captain whose owner and helpers do at once what they are ordered.
struct Team {
    captain: Captain,
    now: Time,
    /// What was ordered and noticed that tests look at, in words.
    told: Vec<String>,
    /// Of each helper.
    layers: BTreeMap<PeerId, LayerRange>,
    /// Of the newest cut.
    epoch: u64,
    /// Of helpers that have older states than they might have.
    revisions: BTreeMap<PeerId, u64>,
    /// Of each layer's state that the owner has kept last.
    kept: BTreeMap<u32, u64>,
    /// Whose process ends in the middle of every batch.
    dies: Option<PeerId>,
    /// Where the owner does not come to reading states: those that wait for it.
    unread: Option<VecDeque<u64>>,
}

impl Team {
    /// Of one helper with all four layers: the captain has room for both ends alone.
    fn new() -> Team {
        let config = config();
        let captain = murmur_protocol::team::Place { memory_bytes: 250, ..config.captain };
        let config = CaptainConfig { captain, copies_after_steps: false, helpers_wanted: 1, ..config };
        let captain = Captain::new(config, Time::ZERO);
        let (told, layers, revisions, kept) = (Vec::new(), BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (dies, unread) = (None, None);
        let mut team = Team { captain, now: Time::ZERO, told, layers, epoch: 0, revisions, kept, dies, unread };
        team.come(1, 4);
        team
    }

    /// A helper comes that has room for so many layers.
    fn come(&mut self, helper: usize, layers: u64) {
        self.hear(CaptainEvent::HelperConnected { helper: peer(helper) });
        self.say(helper, TeamMessage::Offer(Offer { memory_bytes: 100 * layers, ..sound_offer() }));
    }

    fn say(&mut self, helper: usize, message: TeamMessage) {
        self.hear(CaptainEvent::MessageArrived { helper: peer(helper), message });
    }

    fn hear(&mut self, event: CaptainEvent) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            self.captain.handle(self.now, event);
            while let Some(effect) = self.captain.poll_effect() {
                events.extend(self.answer(effect));
            }
        }
    }

    fn answer(&mut self, effect: CaptainEffect) -> Option<CaptainEvent> {
        Some(match effect {
            CaptainEffect::Load { epoch, .. } => CaptainEvent::Loaded { epoch, result: Ok(()) },
            CaptainEffect::ReadOut { request, layers, .. } => {
                self.told.push(format!("give {}-{}", layers.first, layers.end));
                CaptainEvent::ReadOut { request, payload: Some(vec![0; 8].into()) }
            }
            CaptainEffect::Keep { number, layers, revision, .. } => {
                self.kept.extend(layers.numbers().map(|layer| (layer, revision)));
                self.told.push(format!("keep {}-{}", layers.first, layers.end));
                if let Some(unread) = &mut self.unread {
                    unread.push_back(number);
                    return None;
                }
                CaptainEvent::Kept { number, result: Ok(()) }
            }
            CaptainEffect::Compute { work, .. } => {
                let is_inner = (work.kind == WorkKind::Forward) == (work.stage == 0);
                let stream = Stream { rows: 1, payload: vec![0; 8].into() };
                let outcome = Outcome::Output(is_inner.then_some(stream));
                CaptainEvent::Computed { work, outcome, busy: Duration::from_millis(1) }
            }
            CaptainEffect::Sum { epoch, batch } => CaptainEvent::Summed { epoch, batch, squares: vec![vec![1.0]; 2] },
            CaptainEffect::Gathered { batch, .. } => {
                let factors = StepFactors { gradient_norm: 1.0, learning_rate: 0.1, members: 1.0 };
                CaptainEvent::StepDecided { batch, factors }
            }
            CaptainEffect::Step { epoch, batch, .. } => CaptainEvent::Stepped { epoch, batch },
            CaptainEffect::Send { helper, packet } => return self.answer_of_helper(helper, packet),
            CaptainEffect::Notice(TeamNotice::HelperLeaves { .. }) => return self.tell("it wants to leave"),
            CaptainEffect::Notice(TeamNotice::Waiting { .. }) => return self.tell("waits"),
            CaptainEffect::Notice(TeamNotice::StepsLost { layers, revisions, of_moments }) => {
                self.told.push(format!("{layers:?}: {revisions} and {of_moments} lost"));
                return None;
            }
            _ => return None,
        })
    }

    fn tell(&mut self, what: &str) -> Option<CaptainEvent> {
        self.told.push(what.to_owned());
        None
    }

    fn answer_of_helper(&mut self, helper: PeerId, packet: Packet) -> Option<CaptainEvent> {
        let said = |message| Some(CaptainEvent::MessageArrived { helper, message });
        match packet {
            Packet::Frame(frame) => Some(CaptainEvent::FrameArrived { helper, frame, size: Some(1.0) }),
            Packet::State(StateHeader { epoch, request, layers, .. }, _) => {
                said(match layers.end == self.layers[&helper].end {
                    true => TeamMessage::Ready { epoch },
                    false => TeamMessage::Written { epoch, request },
                })
            }
            Packet::Message(TeamMessage::Assign(assign)) => {
                self.layers.insert(helper, assign.layers);
                self.epoch = assign.epoch;
                let ready = TeamMessage::Ready { epoch: assign.epoch };
                if assign.keeps_state { said(ready) } else { None }
            }
            Packet::Message(TeamMessage::Begin { .. }) if self.dies == Some(helper) => {
                Some(CaptainEvent::HelperDisconnected { helper })
            }
            Packet::Message(TeamMessage::Begin { epoch, batch, membership, .. }) => {
                if membership.is_some_and(|membership| membership.is_outdated) {
                    self.tell("outdated");
                }
                let squares = vec![1.0; self.layers[&helper].len() as usize];
                said(TeamMessage::Sums { epoch, batch, squares, busy_nanos: 1000 })
            }
            Packet::Message(TeamMessage::Commit { epoch, batch, .. }) => said(TeamMessage::Done { epoch, batch }),
            Packet::Message(TeamMessage::Copy { epoch, request, kind, layers, .. }) => {
                self.told.push(format!("copy {}-{}", layers.first, layers.end));
                let revision = self.revisions.get(&helper).copied().unwrap_or(u64::MAX >> 3);
                let header = StateHeader { epoch, request, kind, layers, revision, bytes: 8 };
                Some(CaptainEvent::StateArrived { helper, header, payload: Payload::from(vec![0; 8]) })
            }
            Packet::Message(TeamMessage::Release { .. }) => self.tell("released"),
            Packet::Message(_) => None,
        }
    }

    fn step(&mut self, times: u64) {
        let before = self.phase_and_steps().1;
        (0..times).for_each(|_| self.hear(CaptainEvent::BatchWanted { lanes: Lanes::one(3) }));
        assert_eq!(self.phase_and_steps().1, before + times);
    }

    /// A step, for which helpers are members of the swarm, or are not.
    fn step_with(&mut self, are_members: bool) {
        self.decide(are_members);
        self.step(1);
    }

    fn decide(&mut self, are_members: bool) {
        let membership = Membership { ticket: "a ticket".to_owned(), progress: 1.0, is_outdated: false };
        let membership = are_members.then_some(membership);
        self.hear(CaptainEvent::MembershipDecided { epoch: self.epoch, membership });
    }

    /// This helper is lost, and another one comes in its place.
    fn replace(&mut self, lost: usize, new: usize) {
        self.hear(CaptainEvent::HelperDisconnected { helper: peer(lost) });
        self.now = self.now + Duration::from_secs(20);
        self.come(new, 4);
        assert_eq!(self.phase_and_steps().0, TeamPhase::Ready);
    }

    fn phase_and_steps(&self) -> (TeamPhase, u64) {
        let status = self.captain.status(self.now);
        (status.phase, status.counts.stepped)
    }

    fn told(&mut self) -> Vec<String> {
        std::mem::take(&mut self.told)
    }
}

/// Nobody has all of a stage's state twice in memory: neither who gives nor who takes it.
#[test]
fn states_of_all_weights_travel_a_layer_at_a_time() {
    let mut team = Team::new();
    assert_eq!(team.told(), ["give 0-1", "give 1-2", "give 2-3", "give 3-4"]);
    team.step(1);
    team.hear(CaptainEvent::CopyWanted { kind: StateKind::Training });
    let told = team.told();
    assert_eq!(told.len(), 8, "{told:?}");
    let at = |what: String| told.iter().position(|told| *told == what).expect("told");
    for layer in 0..3 {
        let next = format!("copy {}-{}", layer + 1, layer + 2);
        assert!(at(format!("copy {layer}-{}", layer + 1)) < at(next.clone()), "{told:?}");
        let kept = format!("keep {layer}-{}", layer + 1);
        assert!(at(kept) <= at(next) + 1, "no two wait to be read: {told:?}");
    }
    assert_eq!(team.phase_and_steps().0, TeamPhase::Ready);
}

#[test]
fn a_helper_that_leaves_and_whose_layers_fit_nowhere_else_is_let_go_once_they_are_copied() {
    let mut team = Team::new();
    team.step(2);
    team.told();
    team.say(1, TeamMessage::Leaving);
    let told = team.told();
    assert_eq!(told.first().map(String::as_str), Some("it wants to leave"), "{told:?}");
    assert_eq!(told.iter().filter(|told| told.starts_with("keep")).count(), 4, "{told:?}");
    assert_eq!(told[told.len() - 2..], ["released", "waits"], "{told:?}");
    assert_eq!(team.phase_and_steps().0, TeamPhase::Waiting);
    team.hear(CaptainEvent::HelperDisconnected { helper: peer(1) });
    team.come(2, 4);
    assert_eq!(team.phase_and_steps().0, TeamPhase::Ready);
    team.step(1);
    let counts = team.captain.status(team.now).counts;
    assert_eq!((counts.revisions_lost, counts.moments_lost), (0, 0), "its work is not lost");
}

/// The trainer computes something else: states of all layers piled up before it.
#[test]
fn a_helper_that_leaves_is_asked_for_the_next_state_when_the_one_before_is_read() {
    let mut team = Team::new();
    team.step(2);
    team.unread = Some(VecDeque::new());
    team.told();
    team.say(1, TeamMessage::Leaving);
    for layer in 0..4 {
        // However long that takes: nobody waits for the helper.
        team.now = team.now + Duration::from_secs(3600);
        team.hear(CaptainEvent::TimePassed);
        let told = team.told();
        assert_eq!(told[told.len() - 2..], ["copy", "keep"].map(|what| format!("{what} {layer}-{}", layer + 1)));
        assert_eq!(told.len(), if layer == 0 { 3 } else { 2 }, "{told:?}");
        let unread = team.unread.as_mut().expect("it does not come to reading");
        assert_eq!(unread.len(), 1, "one state is in memory at a time");
        let number = unread.pop_front().expect("one");
        team.hear(CaptainEvent::Kept { number, result: Ok(()) });
    }
    assert_eq!(team.told(), ["released", "waits"]);
}

/// While another one is gone.
#[test]
fn a_helper_that_leaves_while_the_team_waits_is_let_go_as_well() {
    let mut team = Team::new();
    team.hear(CaptainEvent::HelperDisconnected { helper: peer(1) });
    team.now = team.now + Duration::from_secs(60);
    team.come(2, 2);
    team.come(3, 2);
    assert_eq!(team.phase_and_steps().0, TeamPhase::Ready);
    team.step(1);
    team.hear(CaptainEvent::HelperDisconnected { helper: peer(2) });
    team.now = team.now + Duration::from_secs(60);
    team.hear(CaptainEvent::TimePassed);
    assert_eq!(team.phase_and_steps().0, TeamPhase::Waiting);
    team.told();
    team.say(3, TeamMessage::Leaving);
    let told = team.told();
    assert_eq!(told.first().map(String::as_str), Some("it wants to leave"), "{told:?}");
    assert_eq!(told.iter().filter(|told| told.starts_with("keep")).count(), 2, "{told:?}");
    assert_eq!(told[told.len() - 2..], ["released", "waits"], "{told:?}");
}

/// Exchanges fetch parameters without moments: what is lost with a helper is not the same of both.
#[test]
fn what_layers_have_lost_is_told_of_parameters_and_of_moments() {
    let mut team = Team::new();
    team.step(3);
    team.hear(CaptainEvent::CopyWanted { kind: StateKind::Training });
    team.step(4);
    team.hear(CaptainEvent::CopyWanted { kind: StateKind::Parameters });
    team.step(2);
    team.told();
    team.hear(CaptainEvent::HelperDisconnected { helper: peer(1) });
    team.now = team.now + Duration::from_secs(60);
    team.come(2, 4);
    assert!(team.told().contains(&"(0, 4): 2 and 6 lost".to_owned()));
    let counts = team.captain.status(team.now).counts;
    assert_eq!((counts.revisions_lost, counts.moments_lost), (2, 6));
}

/// What another one had was copied from it.
#[test]
fn of_layers_that_go_on_together_those_are_told_as_lost_that_were() {
    let mut team = Team::new();
    team.hear(CaptainEvent::HelperDisconnected { helper: peer(1) });
    team.now = team.now + Duration::from_secs(60);
    [2, 3].into_iter().for_each(|helper| team.come(helper, 2));
    team.step(3);
    let lost = team.layers[&peer(2)];
    team.hear(CaptainEvent::HelperDisconnected { helper: peer(2) });
    team.now = team.now + Duration::from_secs(60);
    team.say(3, TeamMessage::Leaving);
    team.hear(CaptainEvent::HelperDisconnected { helper: peer(3) });
    team.told();
    team.come(4, 4);
    assert_eq!(team.layers[&peer(4)], LayerRange { first: 0, end: 4 });
    let told = team.told();
    let told: Vec<&String> = told.iter().filter(|told| told.ends_with("lost")).collect();
    assert_eq!(told, [&format!("({}, {}): 3 and 3 lost", lost.first, lost.end)]);
}

/// Exchanges change what a member has, and no revision tells of it.
#[test]
fn layers_of_a_member_that_move_are_copied_whatever_is_kept_of_them() {
    for are_members in [false, true] {
        let mut team = Team::new();
        team.step_with(are_members);
        team.hear(CaptainEvent::CopyWanted { kind: StateKind::Training });
        team.told();
        team.say(1, TeamMessage::Leaving);
        let told = team.told();
        assert_eq!(
            told.iter().filter(|told| told.starts_with("keep")).count(),
            4 * usize::from(are_members),
            "{told:?}"
        );
    }
}

/// Who was told to copy them may be lost before it has, or the run may end.
#[test]
fn layers_older_than_what_was_exchanged_stay_outdated_until_there_was_time_to_copy_them() {
    let mut team = Team::new();
    team.step_with(true);
    let told = |team: &mut Team| {
        team.told();
        team.step_with(true);
        team.told().contains(&"outdated".to_owned())
    };
    assert!(!told(&mut team), "nothing is lost");
    team.replace(1, 2);
    assert_eq!([(); 2].map(|()| told(&mut team)), [true, false], "once");
    team.hear(CaptainEvent::CopyWanted { kind: StateKind::Parameters });
    team.replace(2, 3);
    assert!(told(&mut team), "nothing is lost of what it had, but that may be old");
    team.decide(false);
    assert_eq!(team.captain.status(team.now).own_outdated, 1, "the captain exchanges them itself");
    team.decide(false);
    assert_eq!(team.captain.status(team.now).own_outdated, 1);
}

/// Another helper has had these layers since.
#[test]
fn a_helper_that_comes_back_with_older_layers_undoes_no_newer_ones() {
    for are_members in [false, true] {
        let mut team = Team::new();
        (0..2).for_each(|_| team.step_with(are_members));
        let (epoch, older) = (team.epoch, team.captain.status(team.now).revision);
        team.replace(1, 0);
        (0..3).for_each(|_| team.step_with(are_members));
        let newer = team.captain.status(team.now).revision;
        assert!(newer > older);
        team.revisions.insert(peer(1), older);
        team.hear(CaptainEvent::HelperConnected { helper: peer(1) });
        let held = Some(HeldLayers { epoch, layers: LayerRange { first: 0, end: 4 }, revision: older });
        team.say(1, TeamMessage::Offer(Offer { memory_bytes: 200, held, ..sound_offer() }));
        team.come(3, 2);
        team.say(0, TeamMessage::Leaving);
        assert_eq!((team.layers[&peer(1)].len(), team.layers[&peer(3)].len()), (2, 2), "they share the layers now");
        assert_eq!(team.kept.values().copied().collect::<Vec<_>>(), [newer; 4], "{:?}", team.told());
    }
}

/// It is killed and started again, each time within the grace.
#[test]
fn a_helper_that_dies_in_every_batch_does_not_keep_the_others_from_training() {
    let mut team = Team::new();
    team.come(2, 4);
    team.dies = Some(peer(1));
    let mut batches = 0;
    while team.phase_and_steps().1 == 0 {
        batches += 1;
        assert!(batches < 10, "no batch ends");
        team.hear(CaptainEvent::BatchWanted { lanes: Lanes::one(3) });
        if team.phase_and_steps().1 == 0 {
            team.now = team.now + Duration::from_secs(1);
            team.come(1, 4);
        }
    }
    assert_eq!(team.layers[&peer(2)], LayerRange { first: 0, end: 4 }, "one of them is enough");
    // Where it is needed it is given layers all the same.
    team.dies = None;
    team.hear(CaptainEvent::HelperDisconnected { helper: peer(2) });
    team.now = team.now + Duration::from_secs(20);
    team.hear(CaptainEvent::TimePassed);
    assert_eq!(team.layers[&peer(1)], LayerRange { first: 0, end: 4 });
    team.step(1);
}
