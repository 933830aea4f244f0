//! The last exchanges of a run, of a model in two fragments of which the others hold one each.

use murmur_protocol::bounds::SETTLING_TIMEOUT;
use murmur_protocol::message::{Descriptor, KnownPeer};

use super::*;

const RUN_STEPS: u64 = 1000;

impl Pair {
    /// Side 0 has all of the model, and knows that the other has the first half.
    fn with_half() -> Pair {
        let of_two = |key, value, holding| Side::holding(key, value, 1000.0, (2, holding, 0));
        let sides = [of_two(1, 0.0, Holding::ALL), of_two(2, 0.1, Holding::of([0]))];
        let mut pair = Pair { sides, now: Time::ZERO };
        pair.connect();
        let partner = pair.sides[1].me;
        pair.hear_of(0, partner, Holding::of([0]));
        pair
    }

    /// Of a run with an end. Both have exchanged often enough to know what distance is usual; then side 1 is so far off.
    fn with_an_end(offset: f32) -> Pair {
        let of_run = |key, value| Side::holding(key, value, 1000.0, (1, Holding::ALL, RUN_STEPS));
        let mut pair = Pair { sides: [of_run(1, 0.0), of_run(2, 0.1)], now: Time::ZERO };
        pair.connect();
        for _ in 0..16 {
            pair.sides[1].model = pair.sides[0].model.iter().map(|value| value + 0.1).collect();
            for side in 0..2 {
                pair.train(side, 8);
                pair.deliver_all();
            }
            pair.wait(Duration::from_secs(10));
        }
        pair.sides[1].model = pair.sides[0].model.iter().map(|value| value + offset).collect();
        pair
    }

    /// The training of a side is over, with the run.
    fn end(&mut self, side: usize) {
        self.sides[side].report.progress = RUN_STEPS as f64;
        let report = self.sides[side].report;
        self.tell(side, Event::TrainingCompleted(report));
    }

    /// So many seconds, in which all arrives.
    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.deliver_all();
            self.wait(Duration::from_secs(1));
        }
        self.deliver_all();
    }

    fn phase(&self, side: usize) -> Phase {
        self.sides[side].node.status().phase
    }

    /// A side hears what a peer holds.
    fn hear_of(&mut self, side: usize, peer: PeerId, holding: Holding) {
        let known = KnownPeer { peer, addresses: vec![Address::new(format!("sim/{peer}")).expect("short")] };
        let profile = Profile { holding, ..Profile::default() };
        let peers = vec![Descriptor { known, age_seconds: 0, profile }];
        let message = Message::Shuffle { peers, wants_reply: false };
        self.tell(side, Event::MessageReceived { peer, message });
    }
}

/// There were as many more with a partner for what nobody else holds. Of a team, the captain may hold it in a moment.
#[test]
fn at_the_end_what_nobody_else_holds_is_waited_for_and_nothing_else_is_exchanged_for_it() {
    let (mut pair, one) = (Pair::with_half(), 0);
    let partner = pair.sides[1].me;
    let report = pair.sides[one].report;
    pair.tell(one, Event::TrainingCompleted(report));
    let phase = |pair: &Pair| pair.sides[one].node.status().phase;
    assert_eq!(phase(&pair), Phase::Settling);
    pair.deliver_all();
    let exchanges = pair.sides.each_ref().map(Side::exchanges);
    let final_exchanges = u64::from(RunManifest::default().gossip.final_exchanges);
    assert_eq!((phase(&pair), exchanges), (Phase::Settling, [final_exchanges; 2]));
    pair.wait(SETTLING_TIMEOUT);
    let exchanges = pair.sides.each_ref().map(Side::exchanges);
    assert_eq!((phase(&pair), exchanges), (Phase::Completed, [final_exchanges; 2]));
    for (peer, then) in [(partner, Phase::Completed), (PeerId::from_public_key([3; 32]), Phase::Settling)] {
        pair.tell(one, Event::PeerDisconnected { peer });
        pair.tell(one, Event::PeerConnected { peer, addresses: vec![] });
        assert_eq!(phase(&pair), then, "who comes now may hold the rest, who is back does not");
    }
}

/// A helper has left the swarm, and its captain is about to exchange what it held.
#[test]
fn what_a_partner_holds_in_the_end_has_its_final_exchanges() {
    let (mut pair, one) = (Pair::with_half(), 0);
    let report = pair.sides[one].report;
    pair.tell(one, Event::TrainingCompleted(report));
    pair.deliver_all();
    let partner = pair.sides[1].me;
    pair.tell(1, Event::HoldingChanged { holding: Holding::ALL });
    pair.hear_of(one, partner, Holding::ALL);
    pair.deliver_all();
    let final_exchanges = u64::from(RunManifest::default().gossip.final_exchanges);
    let phase = pair.sides[one].node.status().phase;
    assert_eq!((phase, pair.sides[one].exchanges()), (Phase::Completed, 2 * final_exchanges));
}

/// Another one goes on from where it is: in a moment it is elsewhere.
#[test]
fn an_exchange_with_a_member_that_still_trains_is_no_final_one() {
    let (mut pair, one, other) = (Pair::with_an_end(0.1), 0, 1);
    pair.end(one);
    pair.deliver_all();
    let before = pair.sides[one].exchanges();
    pair.pass(5);
    assert_eq!((pair.phase(one), pair.sides[one].exchanges() - before), (Phase::Settling, 5), "one a second");
    pair.end(other);
    pair.pass(3);
    assert_eq!([one, other].map(|side| pair.phase(side)), [Phase::Completed; 2]);
}

/// Layers of a team that go on from an older copy are further from the others' than one correction reaches.
#[test]
fn an_exchange_of_models_far_apart_is_no_final_one() {
    for offset in [0.1, 4.0] {
        let mut pair = Pair::with_an_end(offset);
        [0, 1].into_iter().for_each(|side| pair.end(side));
        while !pair.sides[0].is_told_to_complete {
            if !pair.deliver_next() {
                pair.wait(Duration::from_secs(1));
            }
        }
        assert!(pair.distance() < 0.2, "{} apart when it is done", pair.distance());
    }
}

/// What the others of another one had was taken from it, and it was as training had left it.
#[test]
fn a_fragment_whose_holder_is_busy_keeps_its_final_exchanges() {
    let (mut pair, one, busy) = (Pair::with_half(), 0, PeerId::from_public_key([3; 32]));
    pair.tell(one, Event::PeerConnected { peer: busy, addresses: vec![] });
    pair.hear_of(one, busy, Holding::of([1]));
    let (exchange, reason, retry_after_ms) = (0, RejectReason::Joining, 1000);
    let message = Message::Reject(Reject { exchange, reason, retry_after_ms });
    pair.tell(one, Event::MessageReceived { peer: busy, message });
    let report = pair.sides[one].report;
    pair.tell(one, Event::TrainingCompleted(report));
    pair.deliver_all();
    let final_exchanges = u64::from(RunManifest::default().gossip.final_exchanges);
    let phase = pair.sides[one].node.status().phase;
    assert_eq!((phase, pair.sides[one].exchanges()), (Phase::Settling, final_exchanges));
    pair.wait(Duration::from_secs(1));
    let proposal = pair.proposal(one);
    let Flying::Words(Message::Propose(propose)) = &proposal else { panic!("no proposal: {proposal:?}") };
    assert_eq!(propose.part.fragment.index, 1, "once its holder may be asked");
}
