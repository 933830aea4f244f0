//! Swarm progress belongs to the trainer: whatever a node says of it is what the trainer last said.

use murmur_protocol::message::Standing;
use murmur_protocol::*;

use crate::driven::{Driven, PARAMETERS, first, layout, propose, said, standing};

fn at(progress: f64) -> TrainingReport {
    TrainingReport { steps: progress as u64, progress, tokens_per_second: 1000.0, travel: 1.0, local_progress: 1.0 }
}

/// What the node says of its progress to a partner that stands at 5,000.
fn progress_told(driven: &mut Driven) -> Option<f64> {
    let effects = driven.hear(propose(1, 8, Standing { progress: 5000.0, ..standing() }));
    first!(said(effects.iter()), (_, Message::Accept(accept)) => accept.standing.progress)
}

#[test]
fn a_resumed_node_stands_where_its_checkpoint_does_before_its_first_step() {
    let config = Config { training: at(5000.0), ..Config::founder(&RunManifest::default()) };
    let (mut driven, _) = Driven::with(config, PARAMETERS, 1);
    assert_eq!(progress_told(&mut driven), Some(5000.0));
}

#[test]
fn a_joiner_stands_where_its_donor_did_before_its_first_step() {
    let mut driven = Driven::new(Start::FromPeer);
    assert_eq!(progress_told(&mut driven), None, "no model, no exchange");
    let header = TransferHeader::State { request: 0, chunk: 0, progress: 5000.0, layout: *layout(PARAMETERS).digest() };
    let effects = driven.receive(header, Snapshot::from(vec![0.5; PARAMETERS]).to_payload());
    let request = first!(effects.iter(), Effect::Trainer(TrainerOrder::LoadState { request, .. }) => *request);
    let request = request.expect("the state is loaded");
    driven.tell(Event::StateLoaded { request, accepted: true, report: at(5000.0) });
    assert_eq!(progress_told(&mut driven), Some(5000.0));
}

#[test]
fn corrections_after_the_last_step_count() {
    let mut driven = Driven::new(Start::WithModel);
    driven.tell(Event::TrainingCompleted(at(600.0)));
    driven.tell(Event::CorrectionApplied { request: RequestId(99), report: at(500.0) });
    assert_eq!(driven.node.status().training.progress, 500.0);
}
