//! Swarms that train: the real engine in the simulator, against itself alone and against exact averaging.

use std::time::Duration;

use murmur_protocol::Time;
use murmur_protocol::manifest::{GossipKind, GossipSpec, OptimizerSpec, ScheduleSpec, TransformerModel};
use murmur_sim::checks::*;
use murmur_sim::study::baselines::average_all;
use murmur_sim::{
    NodePlan, Objective, QuadraticSpec, Record, Scenario, Sharing, Swarm, Text, TrainerSpec, TransformerSpec,
};
use murmur_training::{Engine, OuterMomentum};

use crate::after;

/// Nine thousand parameters that read 128 bytes a step.
fn tiny(total_steps: u64) -> TransformerSpec {
    TransformerSpec {
        model: TransformerModel { layers: 1, width: 16, heads: 2, feed_forward: 32, context: 32, ..Default::default() },
        optimizer: OptimizerSpec { learning_rate: 2e-2, batch_sequences: 4, ..OptimizerSpec::default() },
        schedule: ScheduleSpec { total_steps, warmup_steps: total_steps / 10, ..ScheduleSpec::default() },
        ..TransformerSpec::default()
    }
}

fn scenario(nodes: usize, spec: &TransformerSpec, gossip: GossipSpec) -> Scenario {
    let mut scenario = Scenario { gossip, trainer: TrainerSpec::Transformer(spec.clone()), ..Scenario::calm(nodes) };
    scenario.nodes.iter_mut().for_each(|plan| plan.steps_max = Some(spec.schedule.total_steps));
    scenario
}

fn gossip(interval_steps: u32, outer_learning_rate: f64) -> GossipSpec {
    let (interval_steps_min, interval_steps_max) = (interval_steps, interval_steps);
    GossipSpec { interval_steps, interval_steps_min, interval_steps_max, outer_learning_rate, ..GossipSpec::default() }
}

fn mean_loss(record: &Record, spec: &TransformerSpec, seed: u64) -> f64 {
    let objective = Objective::new(&TrainerSpec::Transformer(spec.clone()), seed);
    let models = record.active_models();
    models.iter().map(|model| objective.loss(model)).sum::<f64>() / models.len() as f64
}

fn parameters(engine: &Engine) -> Vec<f32> {
    engine.parameters().expect("memory can be read")
}

/// The model of a node alone at the end of its run, with an outer step after each step of `outer_after`.
fn alone(spec: &TransformerSpec, gossip: &GossipSpec, outer_after: &[u64]) -> Vec<f32> {
    let mut engine = spec.engine(gossip, (0, 1), 1);
    for step in 0..spec.schedule.total_steps {
        engine.step(step as f64).expect("a step");
        if outer_after.contains(&(step + 1)) {
            engine.advance_outer().expect("an outer step");
        }
    }
    parameters(&engine)
}

/// A run begins, and three nodes join within its first steps, in which the learning rate warms up: soon models are many times as
/// far apart as when the joiners' copies were checked. Did the limits of the beginning stand for fifteen exchanges, in each of these
/// seeds somebody, mostly the founder, would be let in by nobody and copy the model anew.
#[test]
fn a_young_swarm_copies_nobody_anew() {
    for seed in [0, 10, 25, 36, 37, 48] {
        let spec = TransformerSpec {
            model: TransformerModel {
                layers: 2,
                width: 32,
                heads: 2,
                feed_forward: 88,
                context: 32,
                ..Default::default()
            },
            optimizer: OptimizerSpec { batch_sequences: 8, ..OptimizerSpec::default() },
            schedule: ScheduleSpec { total_steps: 100_000, warmup_steps: 20, ..ScheduleSpec::default() },
            ..TransformerSpec::default()
        };
        let gossip = GossipSpec { interval_steps: 5, ..GossipSpec::default() };
        let mut scenario = Scenario { gossip, trainer: TrainerSpec::Transformer(spec), ..Scenario::calm(4) };
        let begin = [0, 100 + seed * 97 % 900, 100 + seed * 61 % 1500, 100 + seed * 41 % 700];
        for (host, milliseconds) in begin.into_iter().enumerate().skip(1) {
            scenario.nodes[host] = NodePlan::joiner(Duration::from_millis(milliseconds), vec![0]);
        }
        for (plan, host) in scenario.nodes.iter_mut().zip(0..) {
            plan.step_time = Duration::from_millis(150 + 30 * (13 * seed % 5) * host);
        }
        let mut swarm = Swarm::new(scenario, seed);
        swarm.keep_lines(1_000_000);
        swarm.run_until(Duration::from_secs(15));
        let copied = swarm.last_lines().filter(|line| line.contains("StateReceived")).count();
        assert_eq!(copied, 3, "seed {seed}: the three that joined");
    }
}

#[test]
fn one_node_is_plain_local_training() {
    let spec = tiny(12);
    let mut swarm = after(Duration::from_secs(5), scenario(1, &spec, gossip(2, 0.0)), 1);
    assert_eq!(swarm.record().active_models(), [alone(&spec, &gossip(2, 0.0), &[])]);
}

#[test]
fn one_node_with_outer_momentum_is_a_local_outer_nesterov() {
    let spec = tiny(12);
    let mut swarm = after(Duration::from_secs(5), scenario(1, &spec, gossip(2, 0.7)), 1);
    // Due every second step, ordered once that is reported, done at the boundary after.
    let expected = alone(&spec, &gossip(2, 0.7), &[3, 5, 7, 9, 11]);
    assert_ne!(expected, alone(&spec, &gossip(2, 0.7), &[]));
    assert_eq!(swarm.record().active_models(), [expected]);
}

#[test]
fn everyone_averaged_exactly_is_diloco() {
    let (spec, plain, outer) = (tiny(9), gossip(3, 0.0), gossip(3, 0.7));
    let engines = |gossip| (0..3).map(|host| spec.engine(gossip, (host, 3), 1)).collect::<Vec<Engine>>();
    let (mut synchronous, mut gossiping) = (engines(&plain), engines(&outer));
    let mut global = OuterMomentum::new(&outer, parameters(&synchronous[0]));
    for step in 0..9 {
        for engine in synchronous.iter_mut().chain(&mut gossiping) {
            engine.step(f64::from(step)).expect("a step");
        }
        if step % 3 == 2 {
            average_all(&mut synchronous, &mut global);
            // Each its own outer step, then exact corrections of θ and φ: what gossip would do without a limit.
            gossiping.iter_mut().for_each(|engine| engine.advance_outer().expect("an outer step"));
            let mut states: Vec<_> = gossiping.iter_mut().map(|engine| engine.save().expect("a state")).collect();
            let mean = |index: usize| states.iter().map(|state| f64::from(state.parameters[index])).sum::<f64>() / 3.0;
            let mean: Vec<f32> = (0..states[0].parameters.len()).map(|index| mean(index) as f32).collect();
            for (engine, state) in gossiping.iter_mut().zip(&mut states) {
                state.parameters.clone_from(&mean);
                state.slow_weights = Some(mean.clone());
                engine.restore(state.clone()).expect("the same model");
            }
        }
    }
    let (one, other) = (parameters(&synchronous[0]), parameters(&gossiping[0]));
    let apart = one.iter().zip(&other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
    let moved = one.iter().zip(parameters(&spec.engine(&plain, (0, 3), 1))).map(|(one, first)| (one - first).abs());
    let moved = moved.fold(0.0, f32::max);
    assert!(apart < 1e-4 * moved, "{apart} apart, {moved} moved");
}

#[test]
fn second_moments_follow_the_members_that_a_node_sees() {
    let models = |nodes: usize, match_batch: bool| {
        let mut spec = tiny(30);
        spec.optimizer.match_batch = match_batch;
        let mut swarm = after(Duration::from_secs(10), scenario(nodes, &spec, gossip(3, 0.0)), 1);
        swarm.record().active_models().into_iter().map(<[f32]>::to_vec).collect::<Vec<_>>()
    };
    assert!(models(1, true) == models(1, false), "alone there is nothing to match");
    assert!(models(3, true) != models(3, false));
}

#[test]
fn two_nodes_learn_more_than_each_alone() {
    let spec = tiny(150);
    let losses = |know_each_other: bool| {
        let mut scenario = scenario(2, &spec, gossip(5, 0.0));
        if !know_each_other {
            scenario.nodes.iter_mut().for_each(|plan| plan.bootstrap.clear());
        }
        let record = after(Duration::from_secs(20), scenario, 1).record();
        assert_eq!((record.active_models().len(), record.exchanges.merges == 0), (2, !know_each_other));
        mean_loss(&record, &spec, 1)
    };
    let (together, alone) = (losses(true), losses(false));
    assert!(together < 0.97 * alone, "together {together}, alone {alone}");
}

#[test]
fn a_swarm_of_transformers_keeps_the_laws_and_repeats_itself() {
    let run = |seed| {
        let mut scenario = scenario(3, &tiny(40), gossip(4, 0.7));
        scenario.nodes.push(NodePlan { steps_max: None, ..NodePlan::joiner(Duration::from_secs(2), vec![0]) });
        let parameters = scenario.layout().parameters();
        let mut swarm = after(Duration::from_secs(15), scenario, seed);
        let record = swarm.record();
        let verdicts = [
            exactly_once(&record),
            mean_preserved(&record),
            nothing_one_sided(&record, Time::ZERO, 0.0),
            training_never_waits(&record),
            bounded(&record, parameters),
            nobody_accused(&record),
            converged(&record, 4, 0.5),
        ];
        for verdict in verdicts {
            assert_eq!(verdict, Ok(()), "\n{}", swarm.last_lines().collect::<String>());
        }
        let models: Vec<Vec<f32>> = record.active_models().into_iter().map(<[f32]>::to_vec).collect();
        (swarm.fingerprint(), models)
    };
    let first = run(1);
    assert!(first == run(1));
    assert!(first != run(2));
}

#[test]
fn full_precision_sends_two_bytes_a_parameter_and_learns_alike() {
    let spec = tiny(60);
    let run = |full_precision| {
        let gossip = GossipSpec { kind: GossipKind::Pairs, ..gossip(3, 0.0) };
        let mut scenario = scenario(2, &spec, gossip);
        scenario.worker.full_precision = full_precision;
        let record = after(Duration::from_secs(15), scenario, 1).record();
        assert_eq!(mean_preserved(&record), Ok(()));
        let bytes = record.payload_bytes() as f64 / record.exchanges.merges as f64;
        (bytes / record.lives[0].model.len() as f64, mean_loss(&record, &spec, 1))
    };
    let ((narrow, coarse), (wide, fine)) = (run(false), run(true));
    assert!(narrow < 1.1 && wide > 2.0, "{narrow} and {wide} bytes a parameter");
    assert!(coarse != fine && (coarse / fine - 1.0).abs() < 0.01, "{coarse} and {fine}");
}

#[test]
fn a_text_split_by_node_is_validated_on_the_same_windows() {
    let bytes: Vec<u8> = (0..4000_u32).map(|index| (index / 1000 * 50 + index % 7) as u8).collect();
    let spec = |sharing| TransformerSpec { text: Text::Bytes(bytes.clone().into()), sharing, ..tiny(10) };
    let (whole, split) = (spec(Sharing::Whole), spec(Sharing::ByNode));
    assert!(split.check(&gossip(2, 0.0), 4).is_ok());
    assert!(split.check(&gossip(2, 0.0), 200).is_err(), "shares of 18 bytes");
    let loss =
        |spec: &TransformerSpec, model: &[f32]| Objective::new(&TrainerSpec::Transformer(spec.clone()), 1).loss(model);
    let model = parameters(&whole.engine(&gossip(2, 0.0), (0, 4), 1));
    assert_eq!(loss(&whole, &model), loss(&split, &model));
    let first_loss =
        |spec: &TransformerSpec, host| spec.engine(&gossip(2, 0.0), (host, 4), 1).step(0.0).expect("a step").loss;
    assert_ne!(first_loss(&split, 0), first_loss(&split, 3));
}

#[test]
fn a_quadratic_swarm_nears_the_known_optimum() {
    let mut scenario = Scenario::calm(8);
    scenario.trainer = TrainerSpec::Quadratic(QuadraticSpec::default());
    let objective = Objective::new(&scenario.trainer, 1);
    let mut swarm = after(Duration::from_millis(50), scenario, 1);
    let first = objective.loss_of_mean(&swarm.record().active_models());
    swarm.run_until(Duration::from_secs(60));
    let last = objective.loss_of_mean(&swarm.record().active_models());
    // Eight optima spread by ±½ have their mean within 0.1 of the centre.
    assert!(first > 0.4 && last < 0.02, "{first} to {last}");
}
