//! What needs a look inside; the rest is in `tests/responding.rs`.

use super::*;
use crate::RunManifest;
use crate::effect::{Effect, WorkerOrder};
use crate::exchange::turns::Turns;
use crate::fragments::Fragments;
use crate::message::Standing;
use crate::part::Part;

const STARTER: [u8; 32] = [1; 32];
const EXCHANGE: ExchangeNumber = 1;

fn propose() -> Propose {
    let standing = Standing { weight: 1.0, clip: 1.0, gamma: 0.5, progress: 0.0 };
    Propose {
        exchange: EXCHANGE,
        part: Part::MODEL,
        nonce: 1,
        bits: 16,
        reference: 0,
        standing,
        deadline_ms: 60_000,
        step_left_max_ms: u32::MAX,
    }
}

fn request(out: &mut Outbox) -> Option<Effect> {
    std::iter::from_fn(|| out.pop()).find(|effect| {
        matches!(
            effect,
            Effect::Trainer(TrainerOrder::TakeSnapshot { .. })
                | Effect::Worker(WorkerOrder::Encode { .. })
                | Effect::Worker(WorkerOrder::Merge { .. })
        )
    })
}

/// A responder that has ordered a snapshot for an exchange, and who has started that.
fn asked_for_a_snapshot() -> (Responder, Averaging, Outbox, PeerId) {
    let (mut responder, mut out) = (Responder::new(4), Outbox::default());
    let turns = Turns::new(&Fragments::equal(4, 1), Holding::ALL);
    let mut averaging = Averaging::new((RunManifest::default().gossip, turns), 4, TrainingReport::default(), None);
    let (peer, holding) = (PeerId::from_public_key(STARTER), Holding::ALL);
    let admission = Admission { refuse: None, joining_retry: Duration::ZERO, weights: (1.0, 1.0), holding };
    let by = (&mut averaging, &Reputation::default());
    responder.on_propose(Time::ZERO, peer, &propose(), admission, by, &mut out);
    responder.on_scales(peer, EXCHANGE, Payload::default(), &mut out);
    assert!(matches!(request(&mut out), Some(Effect::Trainer(TrainerOrder::TakeSnapshot { .. }))));
    (responder, averaging, out, peer)
}

fn encoded() -> Encoded {
    Encoded { scales: Payload::default(), codes: Payload::default(), reference: None, norm: 2.0 }
}

/// What is on its way to the starter arrives.
fn all_arrive(now: Time, responder: &mut Responder, averaging: &Averaging, out: &mut Outbox) {
    (0..4).for_each(|transfer| responder.on_transfer_ended(now, (TransferId(transfer), true), averaging, out));
}

/// On a slow way out: the starter has given the exchange up when our codes are there, and this side would move alone.
#[test]
fn who_does_not_hear_in_time_that_its_codes_have_arrived_does_not_merge() {
    let deadline = Duration::from_millis(u64::from(propose().deadline_ms));
    let late = Time::from_start(deadline - deadline / REPLY_SHARE);
    for arrival in [Time::ZERO, late] {
        let (mut responder, mut averaging, mut out, peer) = asked_for_a_snapshot();
        let taken = (Snapshot::from(vec![1.0; 4]), &TrainingReport::default());
        responder.on_snapshot(Time::ZERO, (peer, EXCHANGE), taken, &mut averaging, &mut out);
        let own = Ok(encoded());
        responder.on_encoded(Time::ZERO, (peer, EXCHANGE), own, &mut averaging, &mut out).expect("sound");
        request(&mut out);
        responder.on_codes(Time::ZERO, (peer, EXCHANGE), Payload::default(), &averaging, &mut out);
        assert!(request(&mut out).is_none(), "ours are on their way");
        all_arrive(arrival, &mut responder, &averaging, &mut out);
        assert_eq!(request(&mut out).is_some(), arrival < late);
        responder.on_deadline(Time::from_start(deadline), &mut averaging, &mut out);
        assert_eq!(averaging.counters.failed(), u64::from(arrival == late));
    }
}

/// Its reply would come after its starter has given the exchange up, and the merge move this side alone.
#[test]
fn who_has_its_snapshot_or_codes_too_late_for_the_starters_deadline_does_not_merge() {
    let deadline = Duration::from_millis(u64::from(propose().deadline_ms));
    let late = Time::from_start(deadline - deadline / REPLY_SHARE);
    for (snapshot_at, encoded_at) in [(late, late), (Time::ZERO, late)] {
        let (mut responder, mut averaging, mut out, peer) = asked_for_a_snapshot();
        // Its deadline is over while the trainer is in a long step.
        responder.on_deadline(snapshot_at, &mut averaging, &mut out);
        let taken = (Snapshot::from(vec![1.0; 4]), &TrainingReport::default());
        responder.on_snapshot(snapshot_at, (peer, EXCHANGE), taken, &mut averaging, &mut out);
        assert_eq!(request(&mut out).is_some(), snapshot_at < late, "codes are made");
        responder.on_deadline(encoded_at, &mut averaging, &mut out);
        let own = Ok(encoded());
        responder.on_encoded(encoded_at, (peer, EXCHANGE), own, &mut averaging, &mut out).expect("sound");
        responder.on_codes(encoded_at, (peer, EXCHANGE), Payload::default(), &averaging, &mut out);
        assert!(request(&mut out).is_none(), "nothing is merged");
        assert_eq!((responder.under_way(), averaging.counters.failed()), (0, 1), "it keeps no place");
    }
}

/// The codes of a model that is no longer there would correct another one.
#[test]
fn codes_of_a_model_that_was_replaced_are_not_merged() {
    let now = Time::ZERO;
    for is_late in [false, true] {
        let (mut responder, mut averaging, mut out, peer) = asked_for_a_snapshot();
        if !is_late {
            responder.on_model_replaced(&mut averaging, &mut out);
        }
        let taken = (Snapshot::from(vec![1.0; 4]), &TrainingReport::default());
        responder.on_snapshot(now, (peer, EXCHANGE), taken, &mut averaging, &mut out);
        assert!(
            matches!(request(&mut out), Some(Effect::Worker(WorkerOrder::Encode { .. }))),
            "a snapshot is of the model of its time"
        );
        let own = Ok(encoded());
        responder.on_encoded(now, (peer, EXCHANGE), own, &mut averaging, &mut out).expect("sound");
        if is_late {
            responder.on_model_replaced(&mut averaging, &mut out);
        }
        responder.on_codes(now, (peer, EXCHANGE), Payload::default(), &averaging, &mut out);
        all_arrive(now, &mut responder, &averaging, &mut out);
        assert_eq!(request(&mut out).is_some(), !is_late);
        assert_eq!(averaging.counters.failed(), u64::from(is_late));
    }
}
