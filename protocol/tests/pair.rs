//! Two nodes whose every message is delivered, held back or lost by hand: what an exchange does when its words come late,
//! twice, changed, or not at all.

mod ending;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use murmur_protocol::handshake::Refusal;
use murmur_protocol::manifest::GossipKind;
use murmur_protocol::message::{Accept, Reject, RejectReason};
use murmur_protocol::numerics::{Buffers, encode, merge};
use murmur_protocol::*;

use crate::driven::{PARAMETERS, layout, peer};

/// The first number of each node's exchanges.
const FIRST_NUMBER: u64 = 1000;

/// Something on its way between the two.
#[derive(Clone, Debug)]
enum Flying {
    Words(Message),
    Bulk(TransferId, TransferHeader, Payload),
}

/// One node, with a trainer and a worker that do what it orders at once.
struct Side {
    me: PeerId,
    node: Node,
    model: Vec<f32>,
    report: TrainingReport,
    /// Progress at which its run is over.
    end: Option<f64>,
    /// What it has sent and nobody has delivered yet.
    flying: VecDeque<Flying>,
    /// Shifts of the progress of all corrections so far.
    shifts: Vec<f64>,
    failures: Vec<ExchangeFailure>,
    /// Whether its trainer was told to make the last checkpoint.
    is_told_to_complete: bool,
}

/// Side 0 has the smaller peer id.
struct Pair {
    sides: [Side; 2],
    now: Time,
}

impl Side {
    fn new(key: u8, value: f32, tokens_per_second: f64) -> Side {
        Side::holding(key, value, tokens_per_second, (1, Holding::ALL, 0))
    }

    /// It holds this of a model in so many fragments, a block each, in a run of so many steps; 0: without an end.
    fn holding(key: u8, value: f32, tokens_per_second: f64, of_run: (u16, Holding, u64)) -> Side {
        let (fragments, holding, total_steps) = of_run;
        let report = TrainingReport { steps: 0, progress: 0.0, tokens_per_second, travel: 10.0, local_progress: 1.0 };
        let mut manifest = RunManifest::default();
        (manifest.gossip.kind, manifest.gossip.fragments) = (GossipKind::Pairs, fragments);
        manifest.schedule.total_steps = total_steps;
        let config = Config { training: report, first_number: FIRST_NUMBER, holding, ..Config::founder(&manifest) };
        let me = peer(key);
        let node = Node::new(config, me, Arc::new(layout(PARAMETERS)), key.into(), Time::ZERO);
        let model = (0..PARAMETERS).map(|place| value + place as f32 / 1000.0).collect();
        let end = (total_steps > 0).then_some(total_steps as f64);
        Side {
            me,
            node,
            model,
            report,
            end,
            flying: VecDeque::new(),
            shifts: Vec::new(),
            failures: Vec::new(),
            is_told_to_complete: false,
        }
    }

    fn tell(&mut self, now: Time, event: Event) {
        let mut events = VecDeque::from([event]);
        self.drain(&mut events);
        while let Some(event) = events.pop_front() {
            self.node.handle(now, event);
            self.drain(&mut events);
        }
    }

    fn drain(&mut self, events: &mut VecDeque<Event>) {
        while let Some(effect) = self.node.poll_effect() {
            match effect {
                Effect::Trainer(TrainerOrder::TakeSnapshot { request, selection }) => {
                    let Selection::Part(part) = selection else { panic!("nobody copies it: {selection:?}") };
                    let (snapshot, report) = (self.model[range(part)].to_vec().into(), self.report);
                    events.push_back(Event::SnapshotTaken { request, snapshot, report });
                }
                Effect::Worker(WorkerOrder::Encode { request, snapshot, job }) => {
                    events.push_back(Event::Encoded { request, result: encode(&snapshot, &job, &Buffers::new()) });
                }
                Effect::Worker(WorkerOrder::Merge { request, job }) => {
                    events.push_back(Event::Merged { request, result: merge(&job, &Buffers::new()) });
                }
                Effect::Trainer(TrainerOrder::ApplyCorrection {
                    request, part, correction, progress_shift, ..
                }) => {
                    correction.add_to(&mut self.model[range(part)]);
                    // A node for which the run is over stays at its end.
                    let least = self.end.filter(|end| self.report.progress >= *end).unwrap_or(0.0);
                    self.report.progress = (self.report.progress + progress_shift).max(least);
                    self.shifts.push(progress_shift);
                    events.push_back(Event::CorrectionApplied { request, report: self.report });
                }
                Effect::Trainer(TrainerOrder::Complete) => self.is_told_to_complete = true,
                Effect::Network(NetworkOrder::Send { message, .. }) => self.flying.push_back(Flying::Words(message)),
                Effect::Network(NetworkOrder::StartTransfer { transfer, header, payload, .. }) => {
                    self.flying.push_back(Flying::Bulk(transfer, header, payload));
                }
                Effect::Notice(Notice::ExchangeFailed { failure, .. }) => self.failures.push(failure),
                _ => {}
            }
        }
    }

    fn exchanges(&self) -> u64 {
        self.node.status().exchanges.completed()
    }
}

impl Pair {
    fn new() -> Pair {
        Pair::of_speeds([1000.0, 1000.0])
    }

    fn of_speeds(speeds: [f64; 2]) -> Pair {
        let sides = [Side::new(1, 0.0, speeds[0]), Side::new(2, 0.1, speeds[1])];
        let mut pair = Pair { sides, now: Time::ZERO };
        pair.connect();
        pair
    }

    fn connect(&mut self) {
        let ids = [self.sides[0].me, self.sides[1].me];
        for side in 0..2 {
            self.tell(side, Event::PeerConnected { peer: ids[1 - side], addresses: vec![] });
        }
    }

    fn tell(&mut self, side: usize, event: Event) {
        self.sides[side].tell(self.now, event);
    }

    /// This side's words that are no exchange, such as shuffles, are lost.
    fn first_of_exchange(&mut self, side: usize) -> Option<Flying> {
        let is_exchange = |flying: &Flying| match flying {
            Flying::Words(message) => {
                matches!(message, Message::Propose(_) | Message::Accept(_) | Message::Reject(_))
            }
            Flying::Bulk(..) => true,
        };
        while let Some(flying) = self.sides[side].flying.pop_front() {
            if is_exchange(&flying) {
                return Some(flying);
            }
        }
        None
    }

    /// Lets this arrive at the other side.
    fn arrive(&mut self, from: usize, flying: Flying) {
        let peer = self.sides[from].me;
        match flying {
            Flying::Words(message) => self.tell(1 - from, Event::MessageReceived { peer, message }),
            Flying::Bulk(transfer, header, payload) => {
                self.tell(1 - from, Event::TransferReceived { peer, header, payload });
                self.tell(from, Event::TransferFinished { transfer });
            }
        }
    }

    /// Delivers everything, until nothing is on its way.
    fn deliver_all(&mut self) {
        while self.deliver_next() {}
    }

    /// Whether something was on its way.
    fn deliver_next(&mut self) -> bool {
        let next = (0..2).find_map(|side| Some((side, self.first_of_exchange(side)?)));
        next.map(|(side, flying)| self.arrive(side, flying)).is_some()
    }

    /// Has a side train until its next exchange is due; its proposal is then on its way.
    fn start(&mut self, side: usize) {
        self.train(side, 1000);
    }

    fn train(&mut self, side: usize, steps: u64) {
        let report = &mut self.sides[side].report;
        (report.steps, report.progress) = (report.steps + steps, report.progress + steps as f64);
        let report = *report;
        self.tell(side, Event::StepsCompleted(report));
    }

    /// The proposal of a side, on its way.
    fn proposal(&mut self, side: usize) -> Flying {
        let proposal = self.first_of_exchange(side).expect("it proposes");
        assert!(matches!(proposal, Flying::Words(Message::Propose(_))), "{proposal:?}");
        proposal
    }

    /// Has side 0 propose and side 1 answer; the answer is held back.
    fn accepted(&mut self) -> Accept {
        self.start(0);
        let proposal = self.proposal(0);
        self.arrive(0, proposal);
        match self.first_of_exchange(1) {
            Some(Flying::Words(Message::Accept(accept))) => accept,
            other => panic!("no acceptance: {other:?}"),
        }
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
        (0..2).for_each(|side| self.tell(side, Event::TimePassed));
    }

    fn distance(&self) -> f32 {
        let [one, other] = [&self.sides[0].model, &self.sides[1].model];
        one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max)
    }
}

/// Where a part of the model is.
fn range(part: Part) -> Range<usize> {
    let Fragment { index, count } = part.fragment;
    let end = if index + 1 == count { PARAMETERS } else { 256 * (usize::from(index) + 1) };
    256 * usize::from(index)..end
}

fn words(message: Message) -> Flying {
    Flying::Words(message)
}

#[test]
fn an_exchange_makes_two_models_one() {
    let mut pair = Pair::new();
    pair.start(0);
    pair.deliver_all();
    assert!(pair.distance() < 1e-3, "{}", pair.distance());
    assert_eq!(pair.sides.each_ref().map(Side::exchanges), [1, 1]);
}

#[test]
fn exchanges_are_numbered_on_from_what_an_earlier_life_may_have_reached() {
    let mut pair = Pair::new();
    pair.start(0);
    let Flying::Words(Message::Propose(propose)) = pair.proposal(0) else { unreachable!("it is one") };
    assert!(propose.exchange >= FIRST_NUMBER, "{}", propose.exchange);
}

#[test]
fn of_two_proposals_that_cross_one_goes_on() {
    let mut pair = Pair::new();
    (0..2).for_each(|side| pair.start(side));
    let crossing = [pair.proposal(0), pair.proposal(1)];
    for (side, proposal) in crossing.into_iter().enumerate() {
        pair.arrive(side, proposal);
    }
    assert!(matches!(pair.first_of_exchange(1), Some(Flying::Words(Message::Accept(_)))), "of the smaller id");
    let refusal = pair.first_of_exchange(0).expect("an answer to the other");
    assert!(
        matches!(refusal, Flying::Words(Message::Reject(Reject { reason: RejectReason::Busy, .. }))),
        "{refusal:?}"
    );
}

#[test]
fn a_refusal_that_comes_late_undoes_nothing() {
    let mut pair = Pair::new();
    let accept = pair.accepted();
    pair.arrive(1, words(Message::Accept(accept.clone())));
    let reject = Reject { exchange: accept.exchange, reason: RejectReason::Busy, retry_after_ms: 300 };
    pair.arrive(1, words(Message::Reject(reject)));
    pair.deliver_all();
    assert_eq!(pair.sides.each_ref().map(Side::exchanges), [1, 1]);
    assert!(pair.distance() < 1e-3, "{}", pair.distance());
}

#[test]
fn who_vanishes_while_it_merges_is_waited_for() {
    let mut pair = Pair::new();
    let accept = pair.accepted();
    pair.arrive(1, words(Message::Accept(accept)));
    // Steps and codes arrive, and its own: side 1 merges. What it tells of that is held back while the connection is lost.
    while let Some(flying) = pair.first_of_exchange(0) {
        pair.arrive(0, flying);
    }
    let codes = pair.first_of_exchange(1).expect("its codes leave");
    pair.arrive(1, codes);
    assert_eq!(pair.sides[1].exchanges(), 1);
    let held: Vec<Flying> = std::iter::from_fn(|| pair.first_of_exchange(1)).collect();
    let peers = [pair.sides[1].me, pair.sides[0].me];
    (0..2).for_each(|side| pair.tell(side, Event::PeerDisconnected { peer: peers[side] }));
    pair.connect();
    held.into_iter().for_each(|flying| pair.arrive(1, flying));
    assert_eq!(pair.sides.each_ref().map(Side::exchanges), [1, 1]);
    assert!(pair.distance() < 1e-3, "{}", pair.distance());
}

#[test]
fn who_answers_anew_with_other_terms_has_lost_its_memory() {
    let mut pair = Pair::new();
    let accept = pair.accepted();
    pair.arrive(1, words(Message::Accept(accept.clone())));
    let mut changed = accept;
    changed.standing.clip *= 2.0;
    pair.arrive(1, words(Message::Accept(changed)));
    assert_eq!(pair.sides[0].failures, [ExchangeFailure::PartnerLost]);
}

#[test]
fn an_exchange_that_never_goes_on_is_over_after_its_deadline() {
    let mut pair = Pair::new();
    pair.accepted();
    assert!(pair.sides[1].failures.is_empty());
    for _ in 0..20 {
        pair.wait(Duration::from_secs(30));
    }
    assert_eq!(pair.sides[1].failures, [ExchangeFailure::DeadlinePassed]);
    assert_eq!(pair.sides[1].exchanges(), 0);
}

/// The one that does three quarters of the work moves by a quarter of the difference, its progress as its model.
#[test]
fn progress_moves_by_the_partner_s_share_of_the_work() {
    let mut pair = Pair::of_speeds([3000.0, 1000.0]);
    pair.start(0);
    let ahead = pair.sides[0].report.progress;
    pair.deliver_all();
    let [fast, slow] = pair.sides.each_ref().map(|side| side.shifts[0]);
    // A shift is limited to some intervals; both are limited alike.
    assert!((slow / -fast - 3.0).abs() < 1e-3, "{fast} and {slow} of {ahead}");
    let moved = (pair.sides[0].model[0], 0.1 - pair.sides[1].model[0]);
    assert!((moved.1 / moved.0 - 3.0).abs() < 0.1, "{moved:?}");
}

#[test]
fn who_leaves_has_a_last_exchange_first() {
    let mut pair = Pair::new();
    pair.tell(0, Event::LeaveRequested);
    pair.deliver_all();
    assert_eq!(pair.sides.each_ref().map(Side::exchanges), [1, 1]);
    assert!(pair.distance() < 1e-3, "what it has learned stays in the swarm: {}", pair.distance());
}

/// The first grid is as wide as the models are apart; a grid of either side's own would not meet.
#[test]
fn a_block_that_saturates_is_told_and_left_out() {
    let mut pair = Pair::new();
    // Within a step of an exchange of 16 bits a million is far beyond the grid of the other's model.
    pair.sides[1].model[..256].fill(1e6);
    pair.start(0);
    pair.deliver_all();
    let far = pair.sides[1].model[0];
    assert!(pair.sides[0].model[0].abs() < 1.0 && far > 9e5, "{} and {far}", pair.sides[0].model[0]);
    let near = pair.sides[0].model[299] - pair.sides[1].model[299];
    assert!(near.abs() < 1e-2, "the others are averaged: {near}");
}

#[test]
fn a_correction_is_no_longer_than_the_smaller_limit_of_both_sides() {
    let mut pair = Pair::new();
    let before = pair.sides.each_ref().map(|side| side.model.clone());
    // Far beyond the limit, which is half of how far training has moved models that began with the run.
    pair.sides[1].model.iter_mut().for_each(|value| *value += 5.0);
    let far = pair.sides[1].model.clone();
    for side in 0..2 {
        pair.sides[side].report.travel = 1.0;
        let report = pair.sides[side].report;
        pair.tell(side, Event::StepsCompleted(report));
    }
    let accept = pair.accepted();
    let limit = f64::from(accept.standing.clip);
    assert_eq!(limit, 0.5);
    pair.arrive(1, words(Message::Accept(accept)));
    pair.deliver_all();
    assert_eq!(pair.sides.each_ref().map(Side::exchanges), [1, 1]);
    for (side, from) in [&before[0], &far].into_iter().enumerate() {
        let moved = pair.sides[side].model.iter().zip(from).map(|(now, then)| f64::from(now - then).powi(2));
        let length = moved.sum::<f64>().sqrt();
        assert!((0.3 * limit..=1.01 * limit).contains(&length), "{length} of {limit}");
    }
}

/// On a slow line an exchange with a member that stood far off took so long that all others were one meanwhile, and it threw its
/// partner out of the swarm.
#[test]
fn a_correction_that_was_agreed_on_long_ago_and_is_too_long_by_now_moves_nobody() {
    for late in 0..2 {
        let mut pair = Pair::new();
        let accept = pair.accepted();
        pair.sides[1].model.iter_mut().for_each(|value| *value += 5.0);
        let before = pair.sides.each_ref().map(|side| side.model.clone());
        // Its limit falls to a hundredth, as it does where others come near.
        pair.sides[late].report.travel /= 100.0;
        let report = pair.sides[late].report;
        pair.tell(late, Event::StepsCompleted(report));
        pair.arrive(1, words(Message::Accept(accept)));
        pair.deliver_all();
        assert_eq!(pair.sides[late].failures, [ExchangeFailure::Outdated]);
        assert!(pair.sides[late].model == before[late], "side {late} stays where it was");
        let other_has_merged = 1 - late as u64;
        assert_eq!(pair.sides.each_ref().map(Side::exchanges), [0, other_has_merged], "the responder merges first");
        assert_eq!(pair.sides[0].node.status().exchanges.unconfirmed, other_has_merged, "one side alone is counted");
    }
}

/// What training has moved a model by grows without end: no share of it may hide how far off a partner is.
#[test]
fn a_partner_that_is_far_off_loses_trust_however_long_training_has_gone_on() {
    for travel in [10.0, 1e7] {
        let mut pair = Pair::new();
        let mut exchange = |offset: f32| {
            pair.sides.iter_mut().for_each(|side| side.report.travel = travel);
            for side in 0..2 {
                pair.sides[1].model = pair.sides[0].model.iter().map(|value| value + offset).collect();
                pair.train(side, 4);
                pair.deliver_all();
            }
            pair.wait(Duration::from_secs(10));
            pair.sides[0].node.status().distrusted.len()
        };
        let near = (0..16).map(|_| exchange(0.1)).sum::<usize>();
        let far = (0..8).map(|_| exchange(1.0)).last();
        assert_eq!((near, far), (0, Some(1)), "{travel}");
    }
}

/// Quiet hours are no fault: who trains through a night by itself has gone its own way.
#[test]
fn who_has_rested_for_long_keeps_its_trust() {
    for rests in [true, false] {
        let mut pair = Pair::new();
        let exchange = |pair: &mut Pair, offset: f32| {
            for side in 0..2 {
                pair.sides[1].model = pair.sides[0].model.iter().map(|value| value + offset).collect();
                pair.train(side, 4);
                pair.deliver_all();
            }
            pair.wait(Duration::from_secs(10));
        };
        (0..16).for_each(|_| exchange(&mut pair, 0.1));
        if rests {
            pair.tell(1, Event::RestBegan);
            pair.train(0, 4);
            let proposal = pair.proposal(0);
            pair.arrive(0, proposal);
            pair.deliver_all();
        }
        pair.wait(Duration::from_secs(3600));
        pair.tell(1, Event::RestEnded);
        // Few rounds went by, of which a partner of the night is excused a third.
        (0..2).for_each(|_| exchange(&mut pair, 1.0));
        assert_eq!(pair.sides[0].node.status().distrusted.is_empty(), rests);
    }
}

#[test]
fn an_answer_that_is_out_of_range_ends_the_exchange_and_is_counted() {
    let spoil: [fn(&mut Accept); 4] = [
        |accept| accept.standing.clip = f32::NAN,
        |accept| accept.standing.weight = -1.0,
        |accept| accept.standing.gamma = 0.75,
        |accept| accept.standing.progress = 1e30,
    ];
    for spoil in spoil {
        let mut pair = Pair::new();
        let mut accept = pair.accepted();
        spoil(&mut accept);
        pair.arrive(1, words(Message::Accept(accept)));
        assert_eq!(pair.sides[0].failures, [ExchangeFailure::Misbehaved]);
        assert_eq!(pair.sides[0].node.status().misbehaviours.values().sum::<u64>(), 1);
    }
}

/// Both sides dial at times, and nothing is said on one of the two connections.
#[test]
fn a_silent_connection_of_a_member_is_no_news() {
    let mut pair = Pair::new();
    let [member, stranger] = [pair.sides[1].me, PeerId::from_public_key([9; 32])];
    let mut told = |peer| {
        pair.sides[0].node.handle(Time::ZERO, Event::HandshakeRefused { peer, refusal: Refusal::Silent });
        let effects: Vec<Effect> = std::iter::from_fn(|| pair.sides[0].node.poll_effect()).collect();
        effects.iter().any(|effect| matches!(effect, Effect::Notice(Notice::PeerRefused { .. })))
    };
    assert_eq!((told(member), told(stranger)), (false, true));
}
