//! Words and figures of outcomes made by hand, of which some went wrong.

use super::*;
use crate::compare::tests::setting;
use crate::compare::{Counted, NodeAccount, Plan};

/// A run whose loss is evaluated every ten seconds.
fn outcome(name: &str, fault: Fault, losses: &[f64]) -> Outcome {
    let point =
        |(at, loss): (usize, &f64)| Point { seconds: 10.0 * at as f64, tokens: at as u64, loss: *loss, ..NO_POINT };
    Outcome {
        method: Method::named(name).expect("a method"),
        learning_rate: 1e-3,
        seed: 1,
        fault,
        points: losses.iter().enumerate().map(point).collect(),
        nodes: vec![NodeAccount { lived: 10.0 * (losses.len() - 1) as f64, ..NodeAccount::default() }],
        counted: Counted::default(),
        is_complete: true,
        stands_still: false,
        violations: Vec::new(),
    }
}

const NO_POINT: Point = Point { seconds: 0.0, tokens: 0, busiest_bytes: 0, all_bytes: 0, loss: 0.0 };

/// Every method of `runs` with every fault of theirs.
fn results(runs: Vec<Outcome>) -> Results {
    let calm = runs.iter().filter(|run| run.fault == Fault::None);
    let methods: Vec<Method> = calm.map(|run| run.method).collect();
    let hurts = |fault: &Fault| runs.iter().any(|run| run.fault == *fault);
    let faults = Fault::ALL.into_iter().filter(hurts).collect();
    let plan = Plan { base: setting("ring", Fault::None), methods, faults, seeds: 1, learning_rates: vec![1e-3, 8e-3] };
    Results { plan, left_out: 0, tuning: Vec::new(), runs }
}

#[test]
fn what_a_fault_cost_is_told_by_both_runs() {
    let words = |calm: &Outcome, hurt: Outcome| {
        let figures = Figures::new(&results(vec![calm.clone(), hurt]), Some(2.0));
        figures.costs[0].words()
    };
    let hurt = |losses: &[f64]| outcome("ring", Fault::Kill, losses);
    let [quick, never] = [[5.0, 2.0, 1.0], [5.0, 4.0, 3.0]].map(|losses| outcome("ring", Fault::None, &losses));
    let late = Outcome { is_complete: false, ..never.clone() };
    let stuck = Outcome { is_complete: false, stands_still: true, ..hurt(&[5.0, 4.0]) };
    assert_eq!(words(&quick, hurt(&[5.0, 2.0, 1.0])), "none");
    assert_eq!(words(&quick, hurt(&[5.0, 4.0, 2.0])), "+10 s");
    assert_eq!(words(&quick, hurt(&[2.0, 2.0, 2.0])), "-10 s");
    assert_eq!(words(&quick, hurt(&[5.0, 4.0, 3.5])), "never (+2.500)");
    assert_eq!(words(&never, hurt(&[5.0, 4.0, 3.5])), "never, without it too (+0.500)");
    assert_eq!(words(&never, hurt(&[5.0, 2.0, 1.0])), "only with it (-2.000)");
    assert_eq!(words(&quick, stuck.clone()), "stands still");
    assert_eq!(words(&quick, Outcome { stands_still: false, ..stuck.clone() }), "unfinished");
    assert_eq!(words(&late, stuck), "unfinished, without it too");
}

#[test]
fn who_diverged_or_did_not_finish_has_not_learned_best() {
    let unfinished = Outcome { is_complete: false, ..outcome("tree", Fault::None, &[5.0, 1.5, 0.5]) };
    let runs = vec![
        outcome("ring", Fault::None, &[5.0, 3.0, 2.0]),
        outcome("star", Fault::None, &[5.0, 3.0, 2.5]),
        outcome("gossip", Fault::None, &[5.0, 3.0, -f64::NAN]),
        unfinished,
    ];
    let results = results(runs);
    let figures = Figures::new(&results, None);
    assert_eq!(figures.target, 2.5, "every method that did not diverge is there");
    let verdict = figures.verdict(&results);
    assert!(verdict.contains("ring learned best (2.000)"), "{verdict}");
}

#[test]
fn where_all_diverge_figures_are_still_finite() {
    let diverges =
        |name, losses: [f64; 3]| outcome(name, Fault::None, &[&losses[..], &[f64::INFINITY, f64::NAN]].concat());
    for names in [["ring", "star"], ["ring", "alone"]] {
        let results = results(vec![diverges(names[0], [5.0, 4.0, 4.5]), diverges(names[1], [5.0, f64::INFINITY, 4.7])]);
        let figures = Figures::new(&results, None);
        assert_eq!(figures.target, 4.0);
        let verdict = figures.verdict(&results);
        assert!(verdict.contains("ring reached a loss of 4.000 first, in 10 s"), "{verdict}");
        assert!(!verdict.contains("learned best") && !verdict.contains("inf") && !verdict.contains("NaN"), "{verdict}");
    }
}

#[test]
fn who_does_not_finish_or_learns_nothing_sets_no_target() {
    let unfinished = Outcome { is_complete: false, ..outcome("tree", Fault::None, &[5.0]) };
    let runs =
        vec![unfinished, outcome("noloco", Fault::None, &[5.0, 5.0]), outcome("gossip", Fault::None, &[5.0, 3.0])];
    let figures = Figures::new(&results(runs), None);
    assert_eq!(figures.target, 3.0);
    // A target of the user's own that was there at once.
    let runs = results(vec![outcome("ring", Fault::None, &[5.0, 3.0]), outcome("star", Fault::None, &[5.0, 4.0])]);
    let verdict = Figures::new(&runs, Some(9.0)).verdict(&runs);
    assert!(verdict.starts_with("A loss of 9.000 was there from the beginning"), "{verdict}");
    assert!(verdict.contains("ring learned best (3.000)") && !verdict.contains("first"), "{verdict}");
}

#[test]
fn a_fault_is_charged_with_what_it_adds() {
    let stood_still = |name, fault, seconds| {
        let counted = Counted { stood_still: seconds, ..Counted::default() };
        Outcome { counted, ..outcome(name, fault, &[5.0, 3.0]) }
    };
    let runs = |hurt| vec![stood_still("ring", Fault::None, 257.0), stood_still("ring", Fault::Kill, hurt)];
    let charged = |hurt| Figures::new(&results(runs(hurt)), None).costs[0].stood_still;
    assert_eq!((charged(257.0), charged(260.0), charged(200.0)), (0.0, 3.0, 0.0));
}

#[test]
fn short_times_keep_their_digits() {
    assert_eq!([0.04, 0.25, 1.5, 12.4, 601.0].map(seconds), ["0.04 s", "0.25 s", "1.5 s", "12 s", "10 min"]);
}

#[test]
fn a_target_is_reached_at_the_next_point_after_one_at_infinity() {
    let again = outcome("ring", Fault::None, &[5.0, f64::INFINITY, 4.0, 2.0]);
    let times = [4.5, 3.0].map(|target| again.reaches(target).map(|point| (point.seconds, point.loss)));
    assert_eq!(times, [Some((20.0, 4.5)), Some((25.0, 3.0))]);
}

#[test]
fn the_page_says_how_a_run_ended_and_what_vectors_travel_as() {
    let calm = outcome("ring-bf16", Fault::None, &[5.0, 2.0]);
    for (stands_still, words) in [(true, "nobody went on after 10 s"), (false, "time was over after 10 s")] {
        let hurt = Outcome { is_complete: false, stands_still, ..outcome("ring-bf16", Fault::Kill, &[5.0, 4.0]) };
        let results = results(vec![calm.clone(), hurt]);
        let page = page(&results, &Figures::new(&results, None), None, "murmur compare");
        assert!(page.contains(&format!("ring-bf16 did not do all its steps with fault kill: {words}.")), "{words}");
        assert!(page.contains("the 16 and 8 bits of the rings that are named after them"));
    }
}
