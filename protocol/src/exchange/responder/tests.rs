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
    Propose { exchange: EXCHANGE, part: Part::MODEL, nonce: 1, bits: 16, reference: 0, standing, deadline_ms: 60_000 }
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

/// The codes of a model that is no longer there would correct another one.
#[test]
fn codes_of_a_model_that_was_replaced_are_not_merged() {
    let gossip = RunManifest::default().gossip;
    for is_late in [false, true] {
        let (mut responder, mut out) = (Responder::new(4), Outbox::default());
        let mut averaging = Averaging::new(
            (gossip.clone(), Turns::new(&Fragments::equal(4, 1), Holding::ALL)),
            4,
            TrainingReport::default(),
            None,
        );
        let (peer, now) = (PeerId::from_public_key(STARTER), Time::ZERO);
        let holding = Holding::ALL;
        let admission = Admission { refuse: None, joining_retry: Duration::ZERO, weights: (1.0, 1.0), holding };
        responder.on_propose(now, peer, &propose(), admission, (&mut averaging, &Reputation::default()), &mut out);
        responder.on_scales(peer, EXCHANGE, Payload::default(), &mut out);
        assert!(matches!(request(&mut out), Some(Effect::Trainer(TrainerOrder::TakeSnapshot { .. }))));
        if !is_late {
            responder.on_model_replaced(&mut averaging, &mut out);
        }
        let snapshot = Snapshot::from(vec![1.0; 4]);
        responder.on_snapshot(peer, EXCHANGE, snapshot, &TrainingReport::default(), &mut out);
        assert!(
            matches!(request(&mut out), Some(Effect::Worker(WorkerOrder::Encode { .. }))),
            "a snapshot is of the model of its time"
        );
        let encoded = Encoded { scales: Payload::default(), codes: Payload::default(), reference: None, norm: 2.0 };
        responder.on_encoded(peer, EXCHANGE, Ok(encoded), &mut averaging, &mut out).expect("sound");
        if is_late {
            responder.on_model_replaced(&mut averaging, &mut out);
        }
        responder.on_codes(peer, EXCHANGE, Payload::default(), &averaging, &mut out);
        assert_eq!(request(&mut out).is_some(), !is_late);
        assert_eq!(averaging.counters.failed(), u64::from(is_late));
    }
}
