//! The laws of teams: on every schedule of messages, crashes and links, and each found broken where it is.

use std::collections::BTreeSet;
use std::time::Duration;

use murmur_protocol::team::TeamPhase;
use murmur_sim::team::{Carelessness, Fault, MachinePlan, Mistake, TeamLaw, TeamPlan, TeamRun, run};

/// On each push.
const SEEDS: u64 = 300;

/// A calm team that loses, repeats and mixes up its messages for a while, and a helper.
fn troubled() -> TeamPlan {
    let calm = TeamPlan::calm(2, 9, 6);
    let faults = vec![
        (Duration::from_secs(12), Fault::Break { helper: 0, away: Duration::from_secs(1) }),
        (Duration::from_secs(25), Fault::Swallow { helper: 1, lasts: Duration::from_secs(3) }),
        (Duration::from_secs(45), Fault::Break { helper: 0, away: Duration::from_secs(1) }),
    ];
    let hostile_for = Duration::from_secs(60);
    TeamPlan { faults, hostile_for, lasts: Duration::from_secs(300), batches_max: u64::MAX, ..calm }
}

fn laws(run: &TeamRun) -> BTreeSet<TeamLaw> {
    run.violations.iter().map(|violation| violation.law).collect()
}

/// The plan holds all laws; with the mistake it breaks at least this one.
fn is_found(law: TeamLaw, plan: &TeamPlan, broken: &TeamPlan) {
    assert_eq!(run(plan).violations, [], "without the mistake");
    let found = run(broken);
    assert!(laws(&found).contains(&law), "{law:?} is not among {:?}", found.violations);
}

#[test]
fn the_laws_hold_on_every_seed() {
    let (mut stepped, mut compared, mut missed, mut dropped, mut lost) = (0, 0, 0, 0, 0);
    let seeds = crate::seeds(SEEDS, 10);
    for seed in seeds.clone() {
        let run = run(&TeamPlan::hostile(seed));
        assert_eq!(
            run.violations,
            [],
            "MURMUR_TEST_SEEDS={seed}..{} cargo test -p murmur-sim --test laws teams::",
            seed + 1
        );
        stepped += run.stepped;
        compared += u64::from(run.is_compared);
        missed += run.missed_and_lost.0;
        let counts = run.status.map(|status| status.counts).unwrap_or_default();
        (dropped, lost) = (dropped + counts.dropped, lost + counts.helpers_lost);
    }
    println!(
        "{seeds:?}: {stepped} steps, {dropped} batches dropped, {lost} helpers lost, {missed} steps missed, {compared} compared"
    );
    // The misfortunes reach every corner, and most runs are still those of one learner.
    let count = seeds.end - seeds.start;
    let reaches_all = dropped > count / 2 && lost > count && missed > 0 && compared > count / 2 && stepped > 10 * count;
    assert!(count < SEEDS || reaches_all);
}

#[test]
fn a_calm_team_is_the_one_node_learner_whatever_its_cut() {
    for (helpers, layers, microbatches) in [(0, 4, 3), (1, 4, 1), (1, 5, 6), (2, 9, 7), (3, 8, 16), (4, 20, 24)] {
        let run = run(&TeamPlan::calm(helpers, layers, microbatches));
        assert_eq!(run.violations, []);
        assert!(run.is_compared && run.stepped == 20, "{run:?}");
        let status = run.status.expect("a captain");
        assert_eq!((status.counts.dropped, status.counts.helpers_lost, status.counts.stale), (0, 0, 0));
        assert_eq!(status.cut.expect("a cut").of_helpers().count(), helpers);
    }
}

#[test]
fn a_helper_that_is_lost_loses_nothing_where_states_are_copied_after_steps() {
    let plan = troubled();
    let run = run(&plan);
    assert_eq!(run.violations, []);
    let counts = run.status.as_ref().expect("a captain").counts;
    assert!(counts.helpers_lost >= 3 && counts.dropped >= 3, "{counts:?}");
    assert!(run.is_compared && run.missed_and_lost == (0, 0), "{run:?}");
}

#[test]
fn a_helper_that_leaves_on_purpose_loses_nothing_with_full_parameters() {
    let faults = vec![(Duration::from_secs(20), Fault::Leave { helper: 0, away: Duration::from_secs(60) })];
    let plan = TeamPlan { faults, copies_after_steps: false, ..troubled() };
    let run = run(&plan);
    assert_eq!(run.violations, []);
    let counts = run.status.as_ref().expect("a captain").counts;
    assert!(counts.cuts >= 2 && counts.dropped == 0, "{counts:?}");
    assert!(run.is_compared && run.missed_and_lost == (0, 0), "{run:?}");
}

/// How long a batch may last: by the bubble of (M − 1) / (K + M − 1) that K microbatches have over M machines (the captain's two stages
/// share one), K + M − 1 times as long as the slowest machine computes or its link is busy; and, since here streams take time,
/// once what a microbatch spends on all links.
fn formula(run: &TeamRun, plan: &TeamPlan) -> f64 {
    let cut = run.status.as_ref().and_then(|status| status.cut.clone()).expect("a cut");
    let own: u32 = cut.of_captain().map(|stage| cut.stages[stage].layers.len()).sum();
    // The head computes as a layer does, the embedding hardly at all.
    let captain = 3.0 * f64::from(own + 1) / plan.captain.speed;
    let links = cut.of_helpers().map(|(at, ..)| 2.0 * 1024.0 / plan.helpers[at - 1].rate);
    let helpers =
        cut.of_helpers().map(|(at, _, stage)| 3.0 * f64::from(stage.layers.len()) / plan.helpers[at - 1].speed);
    let slowest = helpers.chain(links).fold(captain, f64::max);
    let machines = cut.of_helpers().count() + 1;
    let hop = |machine: &MachinePlan| 1024.0 / machine.rate + machine.latency.as_secs_f64();
    let hops: f64 = cut.of_helpers().map(|(at, ..)| 4.0 * hop(&plan.helpers[at - 1])).sum();
    slowest * (plan.microbatches as usize + machines - 1) as f64 + hops
}

#[test]
fn calm_links_are_used_as_the_formula_says() {
    // Of layers: helpers have more than the captain, and fewer.
    for (helpers, of_helper, of_captain) in [(1, 6, 4), (2, 6, 4), (3, 6, 4), (1, 5, 5), (1, 4, 6), (2, 4, 6)] {
        // Slow enough that streams take a fifth of a stage's time, and a link with latency.
        for (rate, latency) in [(1e6, 0.0002), (20_000.0, 0.002)] {
            let machine =
                MachinePlan { memory_layers: of_helper, speed: 20.0, rate, latency: Duration::from_secs_f64(latency) };
            let layers = of_helper * helpers as u32 + of_captain;
            let plan = TeamPlan {
                helpers: vec![machine; helpers],
                captain: MachinePlan { memory_layers: of_captain, rate: 1e6, ..machine },
                ..TeamPlan::calm(helpers, layers, 16)
            };
            let run = run(&plan);
            assert_eq!(run.violations, []);
            let used = formula(&run, &plan) / run.batch_seconds;
            let name = format!("{helpers} helpers of {of_helper} layers, {of_captain} at the captain, {rate} B/s");
            println!("{name}: {:.2} s a batch, {:.1} % of the formula", run.batch_seconds, 100.0 * used);
            assert!(used >= 0.95, "{name}: {used}");
        }
    }
}

#[test]
fn what_is_predicted_of_a_cut_is_what_it_does() {
    for (speeds, rate) in [([20.0, 40.0, 10.0], 1e6), ([60.0, 20.0, 30.0], 50_000.0), ([20.0, 20.0, 20.0], 8_000.0)] {
        let machine = |speed| MachinePlan { memory_layers: 9, speed, rate, latency: Duration::from_millis(1) };
        let captain = MachinePlan { memory_layers: 3, rate: 1e6, ..machine(20.0) };
        let plan = TeamPlan { helpers: speeds.map(machine).to_vec(), captain, ..TeamPlan::calm(3, 12, 12) };
        let run = run(&plan);
        assert_eq!(run.violations, []);
        let predicted = 1000.0 / run.status.and_then(|status| status.cut).expect("a cut").tokens_per_second;
        let ratio = predicted / run.batch_seconds;
        println!("{speeds:?} at {rate} B/s: {:.2} s a batch, {predicted:.2} predicted", run.batch_seconds);
        assert!((0.9..1.15).contains(&ratio), "{speeds:?} at {rate}: {predicted} predicted, {}", run.batch_seconds);
    }
}

#[test]
fn a_helper_that_is_faster_than_it_said_gets_more_layers_after_a_few_steps() {
    let machine = MachinePlan { memory_layers: 10, speed: 20.0, rate: 1e6, latency: Duration::from_micros(200) };
    let layers = |faults| {
        let plan = TeamPlan { helpers: vec![machine], captain: machine, faults, ..TeamPlan::calm(1, 10, 16) };
        let run = run(&plan);
        assert_eq!((run.violations, run.stepped), (Vec::new(), 20));
        let cut = run.status.and_then(|status| status.cut).expect("a cut");
        cut.of_helpers().map(|(_, _, stage)| stage.layers.len()).sum::<u32>()
    };
    let as_said = layers(Vec::new());
    let faster = layers(vec![(Duration::ZERO, Fault::Slow { helper: 0, times: 0.4 })]);
    assert!((5..=6).contains(&as_said) && faster == 8, "{as_said} layers, and {faster}");
}

#[test]
fn a_team_without_memory_waits_visibly_and_goes_on_with_the_helper_that_comes() {
    let mut plan = TeamPlan::calm(1, 6, 4);
    plan.captain.memory_layers = 2;
    plan.helpers[0].memory_layers = 3;
    plan.lasts = Duration::from_secs(60);
    let waiting = run(&plan);
    let status = waiting.status.expect("a captain");
    assert_eq!((waiting.violations, waiting.stepped, status.phase), (Vec::new(), 0, TeamPhase::Waiting));
    assert!(status.missing_bytes >= 1000 && status.waited > Duration::from_secs(40), "{status:?}");
    plan.helpers.push(MachinePlan { memory_layers: 2, ..plan.helpers[0] });
    plan.lasts = Duration::from_secs(600);
    let run = run(&plan);
    assert!(run.violations.is_empty() && run.is_compared && run.stepped == 20, "{run:?}");
}

#[test]
fn a_stage_that_swaps_microbatches_is_found() {
    let plan = TeamPlan::calm(2, 9, 6);
    let broken = TeamPlan { mistake: Some((0, Mistake::SwapsMicrobatches)), ..plan.clone() };
    is_found(TeamLaw::CountsOnce, &plan, &broken);
}

#[test]
fn a_stage_that_steps_twice_is_found() {
    let plan = TeamPlan::calm(2, 9, 6);
    let broken = TeamPlan { mistake: Some((1, Mistake::StepsTwice)), ..plan.clone() };
    is_found(TeamLaw::CountsOnce, &plan, &broken);
    is_found(TeamLaw::OneNode, &plan, &broken);
}

#[test]
fn a_stage_that_computes_with_the_parameters_of_before_is_found() {
    let plan = TeamPlan::calm(2, 9, 6);
    let broken = TeamPlan { mistake: Some((0, Mistake::UsesParametersOfBefore)), ..plan.clone() };
    is_found(TeamLaw::CountsOnce, &plan, &broken);
}

#[test]
fn a_stage_that_forgets_to_drop_is_found() {
    let broken = TeamPlan { mistake: Some((1, Mistake::ForgetsDrop)), ..troubled() };
    is_found(TeamLaw::AllOrNone, &troubled(), &broken);
}

#[test]
fn a_stage_that_says_it_has_stepped_and_has_not_is_found() {
    let plan = TeamPlan::calm(2, 9, 6);
    let broken = TeamPlan { mistake: Some((0, Mistake::SkipsStep)), ..plan.clone() };
    is_found(TeamLaw::AllOrNone, &plan, &broken);
}

#[test]
fn a_commit_that_never_came_is_found() {
    let plan = TeamPlan { copies_after_steps: false, ..TeamPlan::calm(2, 9, 6) };
    let broken = TeamPlan { carelessness: Some(Carelessness::AnswersForHelper), ..plan.clone() };
    is_found(TeamLaw::AllOrNone, &plan, &broken);
}

#[test]
fn a_stage_that_keeps_activations_is_found() {
    let plan = TeamPlan::calm(2, 9, 6);
    let broken = TeamPlan { mistake: Some((0, Mistake::KeepsActivations)), ..plan.clone() };
    is_found(TeamLaw::Bounded, &plan, &broken);
}

#[test]
fn a_driver_that_forgets_deadlines_is_found() {
    // What vanishes is missed by nobody but who looks at the clock.
    let faults = vec![(Duration::from_secs(25), Fault::Swallow { helper: 1, lasts: Duration::from_secs(3) })];
    let plan = TeamPlan { faults, ..troubled() };
    let broken = TeamPlan { carelessness: Some(Carelessness::ForgetsDeadlines), ..plan.clone() };
    is_found(TeamLaw::Ends, &plan, &broken);
}

#[test]
fn streams_of_an_earlier_batch_are_found() {
    let plan = TeamPlan::calm(2, 9, 6);
    let broken = TeamPlan { carelessness: Some(Carelessness::RelabelsOldStreams), ..plan.clone() };
    is_found(TeamLaw::NothingOfBefore, &plan, &broken);
}

/// A team whose first helper sends states that cannot be read. The others and the captain can do without it.
fn with_liar(copies_after_steps: bool) -> TeamPlan {
    let calm = TeamPlan::calm(2, 9, 6);
    let captain = MachinePlan { memory_layers: 9, ..calm.captain };
    let hostile_for = Duration::from_secs(1);
    let mistake = Some((0, Mistake::SendsUnfitStates));
    TeamPlan { captain, copies_after_steps, others_percent: 60, hostile_for, mistake, batches_max: u64::MAX, ..calm }
}

#[test]
fn a_helper_whose_states_cannot_be_read_is_let_go_and_the_others_go_on() {
    for copies_after_steps in [true, false] {
        let mut missed_in_all = 0;
        for seed in 0..12 {
            let run = run(&TeamPlan { seed, ..with_liar(copies_after_steps) });
            assert_eq!(run.violations, [], "{seed}");
            let status = run.status.expect("a captain");
            let cut = status.cut.expect("a cut");
            assert!(!cut.has(murmur_protocol::PeerId::from_public_key([1; 32])), "{cut:?}");
            assert!(run.stepped > 20 && status.counts.helpers_lost >= 1, "{:?}", status.counts);
            // Its layers go back to the last copy that could be read, in each stage that takes some: with copies after steps by one
            // step, or by none where it was asked for a copy before.
            let (missed, lost) = run.missed_and_lost;
            let expected = if copies_after_steps { missed <= 1 && lost <= 2 * missed } else { missed == 0 };
            assert!(expected, "{missed} {lost}");
            missed_in_all += missed;
        }
        assert_eq!(missed_in_all > 0, copies_after_steps);
    }
}

#[test]
fn a_captain_that_goes_on_with_a_state_that_cannot_be_read_is_found() {
    for copies_after_steps in [true, false] {
        let plan = with_liar(copies_after_steps);
        let broken = TeamPlan { carelessness: Some(Carelessness::TakesUnfitStates), ..plan.clone() };
        is_found(TeamLaw::UnfitGoes, &plan, &broken);
    }
}

#[test]
fn a_helper_that_is_taken_for_lost_in_a_calm_is_found() {
    let plan = TeamPlan::calm(2, 9, 6);
    let faults = vec![(Duration::from_secs(20), Fault::Pause { helper: 0, lasts: Duration::from_secs(60) })];
    let broken = TeamPlan { faults, ..plan.clone() };
    is_found(TeamLaw::NobodyLost, &plan, &broken);
}
