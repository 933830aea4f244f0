//! An exchange asks the system for no memory of the model's size once its buffers exist.

mod counting;

use murmur_protocol::numerics::{
    Buffers, CodeWidth, EncodeJob, EncodeRole, Encoded, MergeJob, MergeRole, Scales, encode, merge,
};
use murmur_protocol::{Payload, Snapshot};

use counting::allocated;

const PARAMETERS: usize = 1_000_000;

/// Two nodes, each with its pool and its scales, in one exchange that moves both.
struct Pair {
    models: [Vec<f32>; 2],
    scales: [Option<Scales>; 2],
    buffers: [Buffers; 2],
}

impl Pair {
    fn exchange(&mut self, width: CodeWidth, snapshots: &[Snapshot; 2]) {
        let encode = |side: usize, role| {
            let job = EncodeJob { role, nonce: 5, width };
            encode(&snapshots[side], &job, &self.buffers[side]).expect("honest")
        };
        let starter = encode(0, EncodeRole::Starter { scales: self.scales[0].clone() });
        let responder = encode(1, EncodeRole::Responder { scales: starter.scales.clone() });
        let job = |role, own: &Encoded, received: &Payload, scales: &Option<Scales>| MergeJob {
            role,
            parameters: PARAMETERS,
            own: own.clone(),
            received: received.clone(),
            width,
            nonce: 5,
            gamma: 0.5,
            starter_share: 0.5,
            clip: f64::MAX,
            step_fraction: 0.2,
            scales: scales.clone(),
            reference: None,
        };
        let responding = job(MergeRole::Responder, &responder, &starter.codes, &self.scales[1]);
        let at_responder = merge(&responding, &self.buffers[1]).expect("honest");
        let role = MergeRole::Starter { digest: at_responder.digest };
        let starting = job(role, &starter, &responder.codes, &self.scales[0]);
        let at_starter = merge(&starting, &self.buffers[0]).expect("honest");
        at_starter.correction.add_to(&mut self.models[0]);
        at_responder.correction.add_to(&mut self.models[1]);
        self.scales = [at_starter.scales, at_responder.scales];
    }
}

#[test]
fn after_the_first_ones_an_exchange_allocates_nothing_large() {
    let one: Vec<f32> = (0..PARAMETERS).map(|index| (index as f32 * 0.01).sin()).collect();
    let other: Vec<f32> = one.iter().map(|value| value + 1e-3).collect();
    let snapshots = [Snapshot::from(one.clone()), Snapshot::from(other.clone())];
    let mut pair = Pair { models: [one, other], scales: [None, None], buffers: [Buffers::new(), Buffers::new()] };
    let (_, first) = allocated(|| pair.exchange(CodeWidth::Sixteen, &snapshots));
    assert!(first >= 6, "the counter works: {first}");
    for width in [CodeWidth::Eight, CodeWidth::Six, CodeWidth::Eight] {
        pair.exchange(width, &snapshots);
    }
    for width in [CodeWidth::Eight, CodeWidth::Eight, CodeWidth::Six] {
        assert_eq!(allocated(|| pair.exchange(width, &snapshots)).1, 0, "{width:?}");
    }
}
