//! The laws of the methods, held on real transformers; and sabotage that each law finds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use murmur_protocol::manifest::{OptimizerSpec, ScheduleSpec, TransformerModel};

use super::report::Figures;
use super::*;
use crate::TransformerSpec;

pub(super) fn setting(name: &str, fault: Fault) -> Setting {
    let steps = 24;
    let model =
        TransformerModel { layers: 1, width: 16, heads: 2, feed_forward: 24, context: 16, ..Default::default() };
    Setting {
        method: Method::named(name).expect("a method"),
        trainer: TransformerSpec {
            model,
            optimizer: OptimizerSpec { batch_sequences: 2, learning_rate: 8e-3, ..OptimizerSpec::default() },
            schedule: ScheduleSpec { total_steps: steps, warmup_steps: 2, ..ScheduleSpec::default() },
            validation_sequences: 8,
            ..TransformerSpec::default()
        },
        nodes: 5,
        steps,
        step_time: Duration::from_millis(100),
        speeds: vec![1.0, 0.8],
        links: Links::named("home").expect("built in"),
        fault,
        seed: 1,
        sabotage: None,
    }
}

/// Of each node, and of the schedule.
pub(super) fn set_steps(setting: &mut Setting, steps: u64) {
    (setting.steps, setting.trainer.schedule.total_steps) = (steps, steps);
}

fn run(setting: &Setting) -> Outcome {
    setting.run(&|| false).expect("nobody interrupts")
}

#[test]
fn every_method_learns_ends_and_keeps_its_laws() {
    for method in ALL {
        let outcome = run(&setting(method.name, Fault::None));
        assert_eq!(outcome.violations, [] as [String; 0], "{}", method.name);
        assert!(outcome.is_complete, "{}", method.name);
        let (first, last) = (outcome.points[0], *outcome.end());
        assert!(last.loss < first.loss - 0.3, "{}: {} to {}", method.name, first.loss, last.loss);
        let (computing, waiting, _) = outcome.shares();
        assert!(computing > 0.05 && (computing + waiting - 1.0).abs() < 0.1, "{}: {computing}, {waiting}", method.name);
        assert!((last.busiest_bytes == 0) == (method.name == "alone"), "{}", method.name);
    }
}

#[test]
fn every_method_takes_the_same_number_of_steps() {
    for method in ALL {
        // No multiple of the 15 steps of a round.
        let mut setting = setting(method.name, Fault::None);
        setting.speeds = vec![1.0];
        let outcome = run(&setting);
        let steps = outcome.end().tokens as f64 / (setting.nodes as u64 * setting.tokens_per_step()) as f64;
        // Nodes that wait for nobody are not at the same step when the mean is there.
        let slack = match method.kind {
            Kind::Gossip | Kind::Auto | Kind::Server { .. } => 1.0,
            _ => 0.0,
        };
        assert!((steps - setting.steps as f64).abs() <= slack, "{}: {steps} steps a node", method.name);
        if matches!(method.kind, Kind::Diloco(_) | Kind::Noloco) {
            assert_eq!(outcome.counted.rounds, 2.0, "{}: what the last round came to is exchanged", method.name);
        }
    }
}

/// Who is back from a partition goes on beside the slowest; the ticks between are nobody's steps.
#[test]
fn steps_that_a_worker_missed_are_not_counted_as_taken() {
    let mut setting = setting("ps-stale", Fault::Partition);
    set_steps(&mut setting, 200);
    let outcome = run(&setting);
    assert!(outcome.is_complete && outcome.counted.missed > 0, "somebody was given up: {:?}", outcome.counted);
    let (taken, asked) = (outcome.end().tokens / setting.tokens_per_step(), setting.steps * setting.nodes as u64);
    assert!(taken >= asked, "{taken} of {asked} steps");
}

#[test]
fn nodes_that_are_fast_go_on_until_all_have_enough_steps_together() {
    for name in ["ad-psgd", "noloco"] {
        let mut setting = setting(name, Fault::None);
        (setting.nodes, setting.speeds) = (4, vec![1.0, 0.25]);
        set_steps(&mut setting, 60);
        let outcome = run(&setting);
        assert!(outcome.is_complete && outcome.violations.is_empty(), "{name}: {:?}", outcome.violations);
        let (_, waiting, _) = outcome.shares();
        let seconds = outcome.end().seconds / (setting.step_time.as_secs_f64() * setting.steps as f64);
        let steps = outcome.nodes.iter().map(|node| node.steps).collect::<Vec<_>>();
        assert!(steps[0] > setting.steps && steps[1] < setting.steps, "{name}: {steps:?}");
        if name != "noloco" {
            // One step of the fast ones and a fourth of one in the time of a step: 60 on average after 96.
            assert!(waiting < 0.01 && seconds < 1.7, "{name}: waits {waiting}, {seconds} times a node of speed 1");
        }
    }
}

/// As the daemons of a comparison that train alone do.
#[test]
fn a_node_alone_ends_with_its_own_steps_and_waits_for_nobody() {
    let mut setting = setting("alone", Fault::None);
    (setting.nodes, setting.speeds) = (4, vec![1.0, 0.25]);
    set_steps(&mut setting, 60);
    let outcome = run(&setting);
    assert!(outcome.is_complete && outcome.violations.is_empty(), "{:?}", outcome.violations);
    assert!(outcome.nodes.iter().all(|node| node.steps == 60), "{:?}", outcome.nodes);
    let trained: Vec<f64> = outcome.nodes.iter().map(|node| node.training.round()).collect();
    assert_eq!((trained, outcome.end().seconds.round()), (vec![6.0, 24.0, 6.0, 24.0], 24.0));
    assert!(outcome.shares().1 < 0.01, "{:?}", outcome.shares());
    // One that has ended is no slower to have been killed later.
    let killed = run(&Setting { fault: Fault::KillFirst, speeds: vec![4.0, 1.0], ..setting });
    assert_eq!((killed.nodes[0].steps, (10.0 * killed.nodes[0].training).round()), (60, 15.0));
}

#[test]
fn every_method_comes_to_its_end_on_slow_nodes() {
    for (method, speed) in ALL.into_iter().flat_map(|method| [(method, 0.2), (method, 0.01)]) {
        let mut setting = setting(method.name, Fault::None);
        setting.speeds = vec![speed];
        set_steps(&mut setting, 8);
        let outcome = run(&setting);
        assert!(outcome.is_complete, "{} at a speed of {speed}", method.name);
        assert_eq!(outcome.violations, [] as [String; 0], "{}", method.name);
    }
}

#[test]
fn gossip_ends_although_who_is_done_averages_its_progress_with_others() {
    for seed in 0..3 {
        let mut setting = setting("gossip", Fault::None);
        (setting.nodes, setting.speeds, setting.seed) = (8, vec![1.0], seed);
        setting.step_time = Duration::from_secs(1);
        set_steps(&mut setting, 40);
        let outcome = run(&setting);
        let seconds = outcome.end().seconds;
        assert!(outcome.is_complete && seconds < 45.0, "{seconds} s for 40 steps of a second, seed {seed}");
    }
}

#[test]
fn every_method_keeps_its_laws_through_every_fault_and_on_lossy_links() {
    for method in ALL {
        for fault in Fault::ALL {
            let mut setting = setting(method.name, fault);
            setting.links.loss = 0.05;
            let outcome = run(&setting);
            assert_eq!(outcome.violations, [] as [String; 0], "{} through {}", method.name, fault.name());
            // Without its server a parameter server stands still; everything else goes on.
            let is_server = matches!(method.kind, Kind::Server { .. });
            assert_eq!(
                outcome.is_complete,
                !(is_server && fault == Fault::KillFirst),
                "{}, {}",
                method.name,
                fault.name()
            );
            assert_eq!(outcome.stands_still, !outcome.is_complete, "{}, {}", method.name, fault.name());
        }
    }
}

#[test]
fn runs_are_the_same_from_the_same_seed_and_differ_between_seeds() {
    for name in ["gossip", "ring", "ps-async", "diloco", "noloco", "ad-psgd"] {
        let mut setting = setting(name, Fault::Partition);
        setting.links.loss = 0.1;
        let one = run(&setting);
        assert_eq!(one, run(&setting), "{name}");
        setting.seed = 2;
        assert_ne!(one.points, run(&setting).points, "{name}");
    }
}

#[test]
fn all_shapes_of_an_all_reduce_learn_alike_and_send_what_the_formulas_say() {
    let outcomes = ["ring", "star", "tree", "halving-doubling"].map(|name| run(&setting(name, Fault::None)));
    let parameters = murmur_training::parameter_count(&setting("ring", Fault::None).trainer.model.into()) as f64;
    let steps = 24.0;
    for (outcome, factor) in outcomes.iter().zip([2.0 * 4.0 / 5.0, 4.0, 3.0, 2.0 * 3.0 / 4.0 + 1.0]) {
        // Sums differ in their order alone.
        assert!((outcome.end().loss - outcomes[0].end().loss).abs() < 2e-3, "{}", outcome.method.name);
        let expected = steps * factor * 4.0 * parameters;
        let sent = outcome.end().busiest_bytes as f64;
        assert!((sent / expected - 1.0).abs() < 0.02, "{}: {sent} of {expected}", outcome.method.name);
    }
}

#[test]
fn slices_in_fewer_bits_send_less_and_learn_alike() {
    let [whole, half, quarter] = ["ring", "ring-bf16", "ring-8bit"].map(|name| run(&setting(name, Fault::None)));
    for (outcome, share) in [(&half, 0.5), (&quarter, 0.25)] {
        let sent = outcome.end().busiest_bytes as f64 / whole.end().busiest_bytes as f64;
        assert!((sent / share - 1.0).abs() < 0.1, "{}: {sent} of the ring's bytes", outcome.method.name);
        let (loss, exact) = (outcome.end().loss, whole.end().loss);
        assert!(loss != exact && (loss / exact - 1.0).abs() < 0.01, "{}: {loss} and {exact}", outcome.method.name);
    }
}

/// The same without a network, a clock or a machine: means of all nodes' gradients, summed in double precision.
fn plain_loop(setting: &Setting) -> f64 {
    let mut learners: Vec<learner::Learner> =
        (0..setting.nodes).map(|node| learner::Learner::new(setting, node)).collect();
    for step in 0..setting.steps {
        let gradients: Vec<Vec<f32>> = learners.iter_mut().map(learner::Learner::gradient).collect();
        let views: Vec<&[f32]> = gradients.iter().map(Vec::as_slice).collect();
        let mean = crate::trainer::mean(&views, views[0].len());
        learners.iter_mut().for_each(|learner| learner.step_with(mean.clone(), step as f64));
    }
    let objective = crate::Objective::new(&crate::TrainerSpec::Transformer(setting.trainer.clone()), setting.seed);
    objective.loss(&learners[0].parameters())
}

#[test]
fn data_parallel_training_equals_a_plain_loop() {
    for name in ["ring", "star", "tree", "halving-doubling"] {
        let mut lossy = setting(name, Fault::None);
        lossy.links.loss = 0.1;
        let (plain, simulated) = (plain_loop(&lossy), run(&lossy).end().loss);
        assert!((plain - simulated).abs() < 1e-4, "{name}: {plain} and {simulated}");
    }
}

#[test]
fn a_server_that_waits_for_everybody_learns_like_data_parallel_training() {
    let mut synchronous = setting("ps-async", Fault::None);
    synchronous.method.kind = Kind::Server { bound: Some(0), shards: 1 };
    let (server, star) = (run(&synchronous), run(&setting("star", Fault::None)));
    assert!((server.end().loss - star.end().loss).abs() < 2e-3, "{} and {}", server.end().loss, star.end().loss);
    assert_eq!(server.counted.staleness_max, 0);
    assert!(run(&setting("ps-async", Fault::None)).counted.staleness_max > 0);
}

#[test]
fn an_interrupted_comparison_has_what_all_of_its_methods_have() {
    let mut base = setting("alone", Fault::None);
    set_steps(&mut base, 4);
    let methods: Vec<Method> = ["ring", "alone"].iter().filter_map(|name| Method::named(name)).collect();
    let plan =
        Plan { base, methods, faults: vec![Fault::Kill, Fault::Straggler], seeds: 2, learning_rates: vec![1e-3, 8e-3] };
    // Methods, seeds and faults after so many of the ten runs.
    let expected = [
        (1, None),
        (2, Some((1, 1, 0))),
        (3, Some((1, 1, 0))),
        (4, Some((2, 1, 0))),
        (5, Some((2, 1, 0))),
        (6, Some((2, 2, 0))),
        (9, Some((2, 2, 1))),
        (10, Some((2, 2, 2))),
    ];
    for (ended, expected) in expected {
        let interruption = AtomicBool::new(false);
        let tell = |done: usize, _: &Job| interruption.store(done >= ended, Ordering::Relaxed);
        let results = plan.run(1, &interruption, &tell);
        let found = results.as_ref().map(|Results { plan, .. }| (plan.methods.len(), plan.seeds, plan.faults.len()));
        assert_eq!(found, expected, "after {ended}");
        let Some(results) = results else { continue };
        assert_eq!(results.left_out, plan.count() - results.plan.count());
        let (of_method, figures) = (results.runs.len() / results.plan.methods.len(), Figures::new(&results, None));
        assert_eq!(of_method, results.plan.seeds as usize + results.plan.faults.len(), "after {ended}");
        let verdict = figures.verdict(&results);
        assert_eq!(verdict.starts_with("Partial: interrupted, with "), ended < plan.count());
        let has_won = verdict.contains(" first, in ") && verdict.contains(" learned best ");
        assert_eq!(has_won, results.plan.methods.len() > 1, "{verdict}");
        assert!(figures.costs.iter().all(|cost| cost.hurt.loss.is_finite()), "after {ended}");
    }
}

#[test]
fn a_death_costs_methods_that_wait_and_is_counted() {
    let killed = run(&setting("ring", Fault::Kill));
    assert!(killed.counted.stood_still > 0.2 && killed.counted.dropped > 0, "{:?}", killed.counted);
    let calm = run(&setting("ring", Fault::None));
    assert_eq!((calm.counted.dropped, calm.counted.stood_still), (0, 0.0));
    for (name, steps) in [("ring", 120), ("diloco", 480)] {
        let outcome = run(&Setting { steps, ..setting(name, Fault::Partition) });
        assert!(outcome.counted.copied > 0, "{name}: those cut off copy the state");
        assert_eq!(outcome.violations, [] as [String; 0], "{name}: they have the model of the others");
    }
}

/// Daemons listen for a second; as long as an operation may take would be half a minute here.
#[test]
fn who_is_left_after_a_death_agrees_as_soon_as_daemons_do() {
    let seconds = |fault| {
        let mut setting = Setting { step_time: Duration::from_secs(10), speeds: vec![1.0], ..setting("ring", fault) };
        set_steps(&mut setting, 12);
        run(&setting).end().seconds
    };
    let cost = seconds(Fault::Kill) - seconds(Fault::None);
    // Two steps, and the second of listening; else two steps more.
    assert!(cost < 30.0, "{cost} s");
}

#[test]
fn rounds_with_a_server_are_those_of_one_node() {
    for name in ["ps-async", "ps-sharded"] {
        let setting = setting(name, Fault::None);
        let rounds = run(&setting).counted.rounds;
        assert!((rounds - setting.steps as f64).abs() <= 1.0, "{name}: {rounds} rounds of {} steps", setting.steps);
    }
}

/// Joining, beginning one after the other and the last exchanges are no waiting.
#[test]
fn gossip_waits_for_nobody_and_its_end_is_told_to_a_fraction_of_a_step() {
    let mut setting = Setting { nodes: 8, step_time: Duration::from_secs(1), ..setting("gossip", Fault::None) };
    setting.speeds = vec![1.0];
    set_steps(&mut setting, 40);
    let (period, mut ends) = (40.0 / 16.0, Vec::new());
    for seed in 0..3 {
        setting.seed = seed;
        let outcome = run(&setting);
        let (_, waiting, _) = outcome.shares();
        assert!(outcome.is_complete && waiting < 0.03, "{waiting}, seed {seed}");
        ends.push(outcome.end().seconds / period);
    }
    assert!(ends.iter().any(|end| end.fract() > 0.0), "only at points of the curve: {ends:?}");
}

#[test]
fn sabotage_is_found_by_the_law_that_it_breaks() {
    let cases = [
        ("ring", Fault::None, Sabotage::SkipsAResult, "took result 2 up 0 times"),
        ("ring-8bit", Fault::None, Sabotage::KeepsWhatItRounds, "another model after"),
        ("star", Fault::None, Sabotage::TakesAResultTwice, "another model after"),
        ("ps-stale", Fault::None, Sabotage::ForgetsTheBound, "ticks ahead"),
        ("ps-stale", Fault::Kill, Sabotage::ForgetsTheBound, "ticks ahead"),
        ("ps-stale", Fault::Straggler, Sabotage::ForgetsTheBound, "ticks ahead"),
        ("ring", Fault::Kill, Sabotage::NeverLooks, "waits beyond its deadline"),
        ("noloco", Fault::Kill, Sabotage::NeverLooks, "waits beyond its deadline"),
    ];
    for (name, fault, sabotage, expected) in cases {
        let mut setting = Setting { sabotage: Some(sabotage), ..setting(name, fault) };
        setting.speeds = vec![1.0, 1.0, 0.25];
        set_steps(&mut setting, if name == "noloco" { 240 } else { 24 });
        let found = run(&setting).violations;
        assert!(found.iter().any(|violation| violation.contains(expected)), "{name}, {sabotage:?}: {found:?}");
        let sound = run(&Setting { sabotage: None, ..setting });
        assert_eq!(sound.violations, [] as [String; 0], "{name}: the law holds without the sabotage");
    }
}
