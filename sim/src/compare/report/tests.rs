//! Words and figures of outcomes made by hand, of which some went wrong.

use std::time::Duration;

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
        [figures.costs[0].until_the_end(), figures.costs[0].to_target()]
    };
    let hurt = |losses: &[f64]| outcome("ring", Fault::Kill, losses);
    let [quick, never] = [[5.0, 2.0, 1.0], [5.0, 4.0, 3.0]].map(|losses| outcome("ring", Fault::None, &losses));
    let late = Outcome { is_complete: false, ..never.clone() };
    let stuck = Outcome { is_complete: false, stands_still: true, ..hurt(&[5.0, 4.0]) };
    assert_eq!(words(&quick, hurt(&[5.0, 2.0, 1.0])), ["none (+0.000)", "none"]);
    assert_eq!(words(&quick, hurt(&[5.0, 4.0, 2.0])), ["none (+1.000)", "+10 s"]);
    assert_eq!(words(&quick, hurt(&[5.0, 1.0])), ["-10 s (+0.000)", "-2.5 s"]);
    assert_eq!(words(&quick, hurt(&[5.0, 4.0, 3.5, 3.0])), ["+10 s (+2.000)", "never"]);
    assert_eq!(words(&never, hurt(&[5.0, 4.0, 3.5])), ["none (+0.500)", "never, without it too"]);
    assert_eq!(words(&never, hurt(&[5.0, 2.0, 1.0])), ["none (-2.000)", "only with it"]);
    assert_eq!(words(&quick, hurt(&[5.0, 2.0, f64::NAN]))[0], "none (diverged)");
    for (calm, hurt, expected) in [
        (&quick, stuck.clone(), "stands still"),
        (&quick, Outcome { stands_still: false, ..stuck.clone() }, "unfinished"),
        (&late, stuck, "unfinished, without it too"),
        (&late, hurt(&[5.0, 2.0]), "only without it unfinished"),
    ] {
        assert_eq!(words(calm, hurt), [expected; 2]);
    }
}

/// What did not come cost nothing that could be measured, and not "none" either.
#[test]
fn a_run_that_is_over_before_the_fault_comes_says_so() {
    let words = |target, is_complete| {
        let hurt = Outcome { is_complete, ..outcome("ring", Fault::Kill, &[5.0, 3.0, 2.0]) };
        let mut results = results(vec![outcome("ring", Fault::None, &[5.0, 3.0, 2.0]), hurt]);
        // A third of 24 steps: 20 s, at which the run is over.
        results.plan.base.step_time = Duration::from_millis(2500);
        let figures = Figures::new(&results, Some(target));
        let file = table_file(&results, &figures);
        let last = file.lines().last().and_then(|line| line.split_once("ring")).expect("a row").1.to_owned();
        let cost = &figures.costs[0];
        ([cost.until_the_end(), cost.to_target()], cost.figures(), last)
    };
    for (target, is_complete, to_target) in
        [(3.0, true, "before it"), (1.0, true, "ended before it"), (3.0, false, "before it")]
    {
        let (words, figures, row) = words(target, is_complete);
        assert_eq!((words, figures), (["ended before it", to_target].map(str::to_owned), [None; 3]));
        assert!(row.ends_with(&format!(",,,,{is_complete}")), "{row}");
    }
}

/// A straggler costs time, however early the target was.
#[test]
fn a_target_that_was_reached_before_the_fault_came_hides_no_cost() {
    let losses = [5.0, 2.0, 1.5, 1.0];
    let slow = [&losses[..], &[0.9; 4]].concat();
    let mut results = results(vec![outcome("ring", Fault::None, &losses), outcome("ring", Fault::Straggler, &slow)]);
    let words = |results: &Results| {
        let cost = &Figures::new(results, Some(2.0)).costs[0];
        ([cost.until_the_end(), cost.to_target()], cost.figures())
    };
    assert_eq!(
        words(&results),
        (["+40 s (-0.100)", "none"].map(str::to_owned), [Some(40.0), Some(0.9 - 1.0), Some(0.0)])
    );
    // A third of 24 steps: 20 s, where the target is there after ten.
    results.plan.base.step_time = Duration::from_millis(2500);
    assert_eq!(
        words(&results),
        (["+40 s (-0.100)", "before it"].map(str::to_owned), [Some(40.0), Some(0.9 - 1.0), None])
    );
    let page = page(&results, &Figures::new(&results, Some(2.0)), None, "murmur compare");
    assert!(page.contains("<td>+40 s (-0.100)</td>") && page.contains("<td>before it</td>"), "{page}");
    assert!(page.contains("A fault comes after 20 s.</p>"), "{page}");
    results.plan.faults = vec![Fault::Partition];
    assert_eq!(when(&results.plan), "A fault comes after 20 s; a partition lasts 15 s.");
}

#[test]
fn who_is_killed_costs_those_that_train_alone_nothing_and_gains_them_nothing() {
    let words = |name, fault| {
        let runs = vec![outcome(name, Fault::None, &[5.0, 4.0, 2.0]), outcome(name, fault, &[5.0, 2.0])];
        let figures = Figures::new(&results(runs), Some(3.0));
        let cost = &figures.costs[0];
        ([cost.until_the_end(), cost.to_target()], cost.figures()[0])
    };
    for fault in [Fault::Kill, Fault::KillFirst] {
        assert_eq!(words("alone", fault), (["-", "-"].map(str::to_owned), None));
        assert_eq!(words("gossip", fault).1, Some(-10.0));
    }
    assert_eq!(words("alone", Fault::Straggler).1, Some(-10.0));
}

/// Gossip ends by the swarm's progress, with fewer tokens where speeds differ.
#[test]
fn who_learned_best_is_told_at_the_fewest_tokens_that_all_took() {
    let after = |name, tokens: [u64; 3], losses: [f64; 3]| {
        let mut run = outcome(name, Fault::None, &losses);
        run.points.iter_mut().zip(tokens).for_each(|(point, tokens)| point.tokens = 1000 * tokens);
        run
    };
    let unfinished = Outcome { is_complete: false, ..after("tree", [0, 1, 2], [5.0, 3.0, 2.9]) };
    let runs = |own| vec![after("ring", [0, 2, 4], [5.0, 3.0, 2.0]), after("gossip", [0, 1, own], [5.0, 4.0, 2.4])];
    let results = results([runs(3), vec![unfinished.clone()]].concat());
    let figures = Figures::new(&results, None);
    assert_eq!(figures.fewest_tokens, Some(3000));
    let verdict = figures.verdict(&results);
    assert!(verdict.contains("For the same number of tokens (3,000) gossip learned best (2.400)."), "{verdict}");
    let page = page(&results, &figures, None, "murmur compare");
    assert!(page.contains("<th>loss after 3,000 tokens</th>") && page.contains("<td>2.500</td>"), "{page}");
    // One that took fewer has no loss there: its last one, 2.9, is of before.
    assert_eq!([unfinished.loss_after(3000), unfinished.loss_after(2000)], [None, Some(2.9)]);
    let file = table_file(&results, &figures);
    let of_unfinished = file.lines().find(|line| line.starts_with("tree,")).expect("a row");
    assert!(of_unfinished.ends_with(",2000,"), "{of_unfinished}");
    assert!(!page.contains("<td>2.900</td>") && page.contains("<td>2,000</td><td>-</td>"), "{page}");
    let cells = |figures: &Figures| figures.table().rows().map(|row| row.last().map(str::to_owned)).collect::<Vec<_>>();
    assert_eq!(cells(&figures)[0].as_deref(), Some("tokens"));
    let alike = Figures::new(&self::results(runs(4)), None);
    assert_eq!(cells(&alike)[0].as_deref(), Some("rate"), "no column of what is the same");
    assert!(alike.rows.iter().all(|row| row.loss_at_fewest_tokens == Some(row.loss.0)), "the end is the end");
}

#[test]
fn a_paper_finds_its_conditions_and_its_table() {
    let runs = vec![
        outcome("ring", Fault::None, &[5.0, 3.0, 2.0]),
        outcome("alone", Fault::None, &[5.0, 4.0, 3.5]),
        outcome("ring", Fault::Kill, &[5.0, 4.0, 3.0, 2.5]),
        outcome("alone", Fault::Kill, &[5.0, 3.0]),
    ];
    let mut results = results(runs);
    results.plan.base.trainer.text = crate::Text::Bytes(b"Once upon a time".as_slice().into());
    let figures = Figures::new(&results, None);
    assert_eq!(figures.target_source, "what every method but alone reached with every seed");
    let page = page(&results, &figures, None, "murmur compare");
    assert!(page.contains("<p>This loss is what every method but alone reached with every seed.</p>"), "{page}");
    assert!(page.contains("Source: Patarasuk") && !page.contains("Source: -"), "those alone have no source");
    let text: String = conditions(&results).iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
    for part in [
        concat!("murmur: version ", env!("CARGO_PKG_VERSION")),
        "loss: mean over the living nodes, nats a byte, on held-out text",
        "model: transformer of bytes, 1 layer, width 16, 2 heads, feed-forward width 24, context 16,",
        "batch: 2 sequences of 16 bytes a node and step",
        "optimizer: AdamW, β₁ ",
        "schedule: 2 steps of linear warm-up",
        "text: 16 bytes, BLAKE3 ",
        &blake3::hash(b"Once upon a time").to_hex(),
        "held-out set: 8 windows of 16 bytes",
        "nodes: 5, speeds 1, 0.8, repeated",
        "links: home: 10 Mbit/s up, 50 Mbit/s down, latency 20 ms (median; log-normal, spread 0.3), 0 % of messages",
        "faults: kill: the last node is killed. A fault comes after 0.8 s.",
    ] {
        assert!(text.contains(part), "{part} is missing: {text}");
        assert!(page.contains(part), "{part} is missing on the page");
    }
    let table = table_file(&results, &figures);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split(',').collect()).collect();
    let cell = |row: usize, name: &str| {
        let place = rows[0].iter().position(|head| *head == name).unwrap_or_else(|| panic!("no {name}: {table}"));
        rows[row][place]
    };
    assert_eq!(cell(2, "sending"), "0");
    assert!(rows.iter().all(|row| row.len() == rows[0].len()) && rows.len() == 3, "{table}");
    assert_eq!(
        [cell(1, "method"), cell(1, "loss_mean"), cell(1, "seconds_to_target"), cell(1, "tokens")],
        ["ring", "2", "20", "2"]
    );
    assert_eq!(
        [cell(1, "kill_more_seconds"), cell(1, "kill_more_loss"), cell(1, "kill_more_seconds_to_target")],
        ["10", "0.5", ""]
    );
    assert_eq!(
        [cell(2, "seconds_to_target"), cell(2, "kill_more_seconds")],
        ["", ""],
        "never, and nothing that it cost"
    );
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
    assert_eq!(figures.target_source, "what every method but gossip, tree reached with every seed");
    let verdict = figures.verdict(&results);
    assert!(verdict.contains("ring learned best (2.000)"), "{verdict}");
}

#[test]
fn nobody_computes_for_longer_than_it_trains() {
    let account = NodeAccount { lived: 11.0, training: 10.0, computing: 10.015, ..NodeAccount::default() };
    let run = Outcome { nodes: vec![account], ..outcome("gossip", Fault::None, &[5.0, 3.0]) };
    assert_eq!((run.shares().0, run.shares().1), (1.0, 0.0));
}

#[test]
fn who_has_the_same_loss_as_shown_has_learned_as_well() {
    let runs = vec![
        outcome("ring", Fault::None, &[5.0, 3.0, 2.4682]),
        outcome("star", Fault::None, &[5.0, 3.0, 2.4678]),
        outcome("gossip", Fault::None, &[5.0, 3.0, 2.469]),
    ];
    let results = results(runs);
    let verdict = Figures::new(&results, None).verdict(&results);
    let (_, learned) = verdict.split_once(" For the same number of tokens ").expect("who learned best");
    assert!(learned.contains(" star and ring learned best (2.468)."), "{verdict}");
}

#[test]
fn where_all_diverge_figures_are_still_finite() {
    let diverges =
        |name, losses: [f64; 3]| outcome(name, Fault::None, &[&losses[..], &[f64::INFINITY, f64::NAN]].concat());
    for names in [["ring", "star"], ["ring", "alone"]] {
        let results = results(vec![diverges(names[0], [5.0, 4.0, 4.5]), diverges(names[1], [5.0, f64::INFINITY, 4.7])]);
        let figures = Figures::new(&results, None);
        assert_eq!(figures.target, 4.0);
        assert_eq!(figures.target_source, "the least that any method had before it diverged or ended");
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
    assert_eq!(Figures::new(&runs, None).target_source, "what every method reached with every seed");
    assert_eq!(Figures::new(&runs, Some(9.0)).target_source, "set by --target");
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
    assert_eq!([0.04, 0.25, 1.5, 12.4, 599.4].map(seconds), ["0.04 s", "0.25 s", "1.5 s", "12 s", "599 s"]);
}

#[test]
fn long_times_keep_their_seconds() {
    assert_eq!([599.6, 640.0, 659.7].map(seconds), ["10 min 0 s", "10 min 40 s", "11 min 0 s"]);
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
        assert!(page.contains("the 16 and 8 bits of the rings that are"));
        // What links begin with and runs end with is most of what gossip sends in a short run.
        assert!(page.contains("a byte in the first one of two partners and in each of"));
    }
}
