//! Teams that are members of synchronous runs, which average models every few steps.

use murmur_protocol::Snapshot;
use murmur_protocol::manifest::{SynchronousSpec, Topology};

use super::*;

/// The sum of this member's contribution and of another one's.
fn sum(contribution: Vec<f32>) -> Snapshot {
    let others = |(place, value): (usize, f32)| 2.0 * value + if place % 2 == 0 { 0.02 } else { -0.01 };
    Snapshot::from(contribution.into_iter().enumerate().map(others).collect::<Vec<f32>>())
}

#[test]
fn a_team_contributes_its_model_and_takes_the_mean_up_with_the_bits_of_one_machine() {
    for (has_adapters, outer_learning_rate) in [(false, 0.0), (true, 0.7)] {
        let mut manifest = manifest(has_adapters, OptimizerKind::AdamW);
        manifest.synchronous =
            SynchronousSpec { topology: Topology::Ring, every_steps: 3, ..SynchronousSpec::default() };
        manifest.optimizer.match_batch = false;
        manifest.gossip.outer_learning_rate = outer_learning_rate;
        let options = TrainingOptions::default();
        let memory = room_for_ends(&manifest, &options);
        let (mut engine, mut team) = Team::begin(&manifest, base(&manifest), Setting { memory, ..setting(1) });
        let mut whole = alone(&manifest, options);
        for round in 0..3 {
            for engine in [&mut engine, &mut whole] {
                engine.keep_average().expect("a model");
            }
            assert_eq!(stepped(&mut engine, 3), stepped(&mut whole, 3), "round {round}");
            let contributions = [&mut engine, &mut whole].map(|engine| engine.contributed_model().expect("a model"));
            assert_eq!(contributions[0], contributions[1], "round {round}");
            if has_adapters && round == 1 {
                // What all have averaged comes while nobody has the layers.
                team.kill(1);
            }
            for (engine, contribution) in [&mut engine, &mut whole].into_iter().zip(contributions) {
                engine.average_with_sum(sum(contribution), 2).expect("finite");
            }
            if has_adapters && round == 1 {
                team.help(2, options, None);
            }
            let digests = [&mut engine, &mut whole].map(|engine| engine.replica_digest().expect("a model"));
            assert_eq!(digests[0], digests[1], "round {round}");
        }
        assert_eq!(stepped(&mut engine, 2), stepped(&mut whole, 2));
        assert_same(engine.save().expect("a state"), whole.save().expect("a state"), "averaged three times");
    }
}

/// Where all weights are trained, what a helper had of the last steps is gone with it: nobody is told a model of several steps, and
/// training goes on once somebody has the layers.
#[test]
fn a_helper_that_is_lost_before_the_contribution_is_waited_for() {
    let mut manifest = manifest(false, OptimizerKind::AdamW);
    manifest.synchronous = SynchronousSpec { topology: Topology::Ring, every_steps: 2, ..SynchronousSpec::default() };
    manifest.optimizer.match_batch = false;
    let options = TrainingOptions::default();
    let memory = room_for_ends(&manifest, &options);
    let (mut engine, mut team) = Team::begin(&manifest, None, Setting { memory, ..setting(1) });
    engine.keep_average().expect("a model");
    stepped(&mut engine, 2);
    team.kill(1);
    while engine.step(2.0).is_ok() {}
    let waits = |error: TrainingError| assert!(matches!(error, TrainingError::TeamWaits(_)), "{error}");
    waits(engine.contributed_model().expect_err("the helper's layers of now are nowhere"));
    let replica = engine.replica().expect("the average needs nobody");
    engine.replica_digest().expect("as before");
    // A member that has stepped takes another replica up without asking anybody for moments, and one whose average is open says so.
    engine.load_replica(&replica.to_payload()).expect("nobody is asked");
    assert_eq!(engine.replica().expect("the same"), replica);
    team.help(2, options, None);
    stepped(&mut engine, 2);
    let contribution = engine.contributed_model().expect("the team is whole");
    engine.average_with_sum(sum(contribution), 2).expect("finite");
}
