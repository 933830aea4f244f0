//! Helpers that are members of the swarm by themselves: when they begin, and when they are none any more.

use std::time::Duration;

use murmur_protocol::team::{
    Assign, BatchKind, Helper, HelperConfig, HelperEffect, HelperEvent, Lanes, LayerRange, Loading, Membership, Offer,
    Packet, StateHeader, StateKind, TeamMessage, Wire,
};
use murmur_protocol::{Payload, PeerId, Time};

fn captain() -> PeerId {
    PeerId::from_public_key([1; 32])
}

/// A helper, and what it has ordered since somebody looked last.
struct Lent(Helper, Vec<HelperEffect>);

impl Lent {
    /// With a stage that is ready, of epoch 5.
    fn ready() -> Lent {
        let offer = Offer {
            memory_bytes: 1,
            operations_per_second: 1.0,
            up_bytes_per_second: 0,
            down_bytes_per_second: 0,
            held: None,
        };
        let kept_for = Duration::from_secs(600);
        let mut lent = Lent(Helper::new(HelperConfig { offer, kept_for }), Vec::new());
        lent.tell(HelperEvent::CaptainConnected { captain: captain() });
        lent.assign(5, 0);
        lent
    }

    fn assign(&mut self, epoch: u64, first: u32) {
        let layers = LayerRange { first, end: first + 1 };
        let assign = Assign {
            epoch,
            stage: 1,
            layers,
            tensors: 1,
            in_flight: 1,
            waiting: 1,
            rows_max: 2,
            width: 2,
            wire: Wire::F32,
            revision: 0,
            keeps_state: false,
            run: String::new(),
        };
        self.hear(TeamMessage::Assign(Box::new(assign)));
        self.tell(HelperEvent::Loaded { epoch, result: Ok(Loading::Complete) });
        let header = StateHeader { epoch, request: epoch, kind: StateKind::Training, layers, revision: 0, bytes: 4 };
        self.tell(HelperEvent::StateArrived { captain: captain(), header, payload: Payload::from(vec![0; 4]) });
        self.tell(HelperEvent::Written { request: epoch, result: Ok(()) });
    }

    fn tell(&mut self, event: HelperEvent) {
        self.tell_at(Time::ZERO, event);
    }

    fn tell_at(&mut self, now: Time, event: HelperEvent) {
        self.0.handle(now, event);
        self.1.extend(std::iter::from_fn(|| self.0.poll_effect()));
    }

    fn hear(&mut self, message: TeamMessage) {
        self.tell(HelperEvent::MessageArrived { captain: captain(), message });
    }

    fn begin(&mut self, epoch: u64, batch: u64, membership: Option<Membership>) {
        self.hear(TeamMessage::Begin { epoch, batch, kind: BatchKind::Training, lanes: Lanes::one(1), membership });
    }

    /// What the owner was told of memberships, and whether a copy came before or behind it.
    fn told(&mut self) -> Vec<String> {
        let word = |effect| match effect {
            HelperEffect::Average { membership: Some(membership) } => {
                Some(format!("member at {}", membership.progress))
            }
            HelperEffect::Average { membership: None } => Some("no member".to_owned()),
            HelperEffect::Copy { .. } => Some("copy".to_owned()),
            HelperEffect::Load { .. } => Some("load".to_owned()),
            _ => None,
        };
        std::mem::take(&mut self.1).into_iter().filter_map(word).collect()
    }
}

fn at(progress: f64) -> Option<Membership> {
    Some(Membership { ticket: "a ticket".to_owned(), progress, is_outdated: false })
}

#[test]
fn a_helper_is_a_member_from_a_batch_on_until_a_copy_ends_it() {
    let mut lent = Lent::ready();
    lent.told();
    lent.begin(5, 6, None);
    assert!(lent.told().is_empty(), "nobody has said that it is to be one");
    lent.hear(TeamMessage::Drop { epoch: 5, batch: 6 });
    lent.begin(5, 7, at(3.0));
    lent.hear(TeamMessage::Drop { epoch: 5, batch: 7 });
    assert_eq!(lent.told(), ["member at 3"]);
    let (kind, lanes) = (BatchKind::Evaluation, Lanes::one(1));
    lent.hear(TeamMessage::Begin { epoch: 5, batch: 8, kind, lanes, membership: at(3.0) });
    lent.hear(TeamMessage::Drop { epoch: 5, batch: 8 });
    assert!(lent.told().is_empty(), "an evaluation is no step");
    let (kind, layers) = (StateKind::Training, LayerRange { first: 0, end: 1 });
    lent.hear(TeamMessage::Copy { epoch: 5, request: 8, kind, layers, stays_member: true });
    lent.tell(HelperEvent::Copied { request: 8, payload: Payload::from(vec![0; 4]) });
    assert_eq!(lent.told(), ["copy"]);
    lent.hear(TeamMessage::Copy { epoch: 5, request: 9, kind, layers, stays_member: false });
    assert_eq!(lent.told(), ["no member", "copy"], "nothing of the swarm comes into what is copied afterwards");
}

/// Its captain may wait for other helpers for hours, and not be in the swarm meanwhile.
#[test]
fn a_helper_without_batches_is_no_member_after_a_while() {
    let mut lent = Lent::ready();
    lent.begin(5, 6, at(3.0));
    lent.told();
    let after = |seconds| Time::ZERO + Duration::from_secs(seconds);
    lent.tell_at(after(1000), HelperEvent::TimePassed);
    assert!(lent.told().is_empty() && lent.0.next_deadline().is_none(), "a batch takes as long as it takes");
    let message = TeamMessage::Drop { epoch: 5, batch: 6 };
    lent.tell_at(after(1000), HelperEvent::MessageArrived { captain: captain(), message });
    let deadline = lent.0.next_deadline().expect("some time");
    lent.tell_at(after(1001), HelperEvent::TimePassed);
    assert!(lent.told().is_empty() && lent.0.next_deadline() == Some(deadline), "batches may follow");
    lent.tell_at(deadline, HelperEvent::TimePassed);
    assert_eq!(lent.told(), ["no member"]);
    assert_eq!(lent.0.next_deadline(), None);
    lent.begin(5, 7, at(9.0));
    assert_eq!(lent.told(), ["member at 9"], "again with the next batch");
}

#[test]
fn a_new_stage_or_a_lost_captain_ends_a_membership() {
    let mut lent = Lent::ready();
    lent.begin(5, 6, at(3.0));
    lent.hear(TeamMessage::Drop { epoch: 5, batch: 6 });
    lent.told();
    lent.assign(7, 2);
    assert_eq!(lent.told(), ["no member", "load"]);
    lent.begin(7, 8, at(4.0));
    lent.told();
    lent.tell(HelperEvent::CaptainDisconnected { captain: captain() });
    assert_eq!(lent.told(), ["no member"]);
    lent.tell(HelperEvent::CaptainConnected { captain: captain() });
    lent.begin(7, 9, at(5.0));
    assert_eq!(lent.told(), ["member at 5"], "with the same stage");
    lent.tell(HelperEvent::FoundApart);
    let apart = Packet::Message(TeamMessage::Apart { epoch: 7 });
    let says_so = |effect: &HelperEffect| matches!(effect, HelperEffect::Send { packet, .. } if *packet == apart);
    assert!(lent.1.iter().any(says_so), "{:?}", lent.1);
    lent.hear(TeamMessage::Release { epoch: 7 });
    assert_eq!(lent.told(), ["no member"]);
}
