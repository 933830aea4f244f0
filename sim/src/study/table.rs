//! The study's outcomes as Markdown, with the bars that they must keep.

use std::fmt::Write;

use murmur_protocol::manifest::{GossipKind, OptimizerKind};

use super::plan::{self, DILOCO, GOSSIP, GOSSIP_FULL_PRECISION, GOSSIP_UNEVEN, Question, SEEDS};
use super::{Conditions, Method, Outcome, Setting, Treatment};

/// All tables for which there are outcomes.
pub fn tables(outcomes: &[Outcome]) -> String {
    let mut texts: Vec<&str> = outcomes.iter().map(|outcome| outcome.setting.text.as_str()).collect();
    texts.sort_unstable();
    texts.dedup();
    let mut page = String::new();
    for text in texts {
        for question in Question::ALL {
            let runs = plan::runs(question, text);
            let found: Vec<&Outcome> = outcomes.iter().filter(|outcome| runs.contains(&outcome.setting)).collect();
            // Runs with AdamW alone are those of other questions, too.
            let is_told = |outcome: &&Outcome| {
                matches!(question, Question::Bars | Question::Asynchrony | Question::UnlikeData | Question::Traffic)
                    || outcome.setting.treatment != Treatment::default()
            };
            if found.iter().any(is_told) {
                let (done, all) = (found.len(), runs.len());
                let _ = writeln!(page, "### {} ({text}; {done} of {all} runs)\n", title(question));
                page += &match question {
                    Question::Traffic => traffic(&found),
                    Question::Bars | Question::Asynchrony | Question::UnlikeData => over_seeds(question, &found),
                    _ => against_data_parallel(&found),
                };
                page.push('\n');
            }
        }
    }
    page
}

fn title(question: Question) -> &'static str {
    match question {
        Question::Bars => "Pairwise averaging and 8 bits",
        Question::Asynchrony => "Unequal speeds, delays and losses",
        Question::Traffic => "Loss against traffic, best learning rate of each",
        Question::Optimizers => "Optimizers against data-parallel AdamW",
        Question::Links => "Links of one bit against data-parallel AdamW",
        Question::UnlikeData => "Every node another part of the text",
        Question::Conditions => "Links where nodes come and go, and where each has a part of the text",
        Question::Sizes => "Links of more nodes",
        Question::Lengths => "Links in runs four times as long",
        Question::Longest => "Links in runs sixteen times as long",
        Question::Stages => "Stages: random wiring, and gradients one update old",
        Question::Hybrid => "Whole nodes and teams whose machines exchange what each holds",
    }
}

/// A method in a few words.
pub fn name(method: &Method) -> String {
    match method {
        Method::DataParallel => "data-parallel every step".to_owned(),
        Method::LocalOnly => "local only".to_owned(),
        Method::Delayed => "data-parallel, gradients one update old".to_owned(),
        Method::TwoStages { interval, is_wiring_random } => {
            let wiring = if *is_wiring_random { "drawn for each batch" } else { "fixed" };
            format!("two stages a node, wiring {wiring}, pairs, H = {interval}")
        }
        Method::Diloco { interval, .. } => format!("DiLoCo, H = {interval}"),
        Method::Gossip { kind, interval, outer_learning_rate, full_precision, conditions, .. } => {
            let momentum = if *outer_learning_rate > 0.0 { "" } else { ", no momentum" };
            let precision = if *full_precision { ", 16 bits" } else { "" };
            let conditions = match conditions {
                Conditions::Calm => "",
                Conditions::Uneven => ", speeds 1:1:½:¼, delays, 10 % loss",
                Conditions::Churn => ", a fifth replaced seven times, 10 % loss",
            };
            let kind = if *kind == GossipKind::Links { ", links" } else { "" };
            format!("gossip{kind}, H = {interval}{momentum}{precision}{conditions}")
        }
    }
}

fn over_seeds(question: Question, outcomes: &[&Outcome]) -> String {
    let mut methods: Vec<Method> = Vec::new();
    for outcome in outcomes {
        if !methods.contains(&outcome.setting.method) {
            methods.push(outcome.setting.method);
        }
    }
    let mut page =
        "| | mean of nodes, by seed | mean | of the mean model | before settling | worst node |\n".to_owned();
    page += "|---|---|---|---|---|---|\n";
    for method in &methods {
        let of_method = outcomes.iter().filter(|outcome| outcome.setting.method == *method);
        let rows: Vec<&Outcome> = of_method.copied().collect();
        let seeds: Vec<String> = rows.iter().map(|outcome| format!("{:.4}", outcome.loss)).collect();
        let before: Option<Vec<f64>> = rows.iter().map(|outcome| outcome.loss_before_settling).collect();
        let _ = writeln!(
            page,
            "| {} | {} | {:.4} | {:.4} | {} | {:.4} |",
            name(method),
            seeds.join(" "),
            average(rows.iter().map(|outcome| outcome.loss)),
            average(rows.iter().map(|outcome| outcome.loss_of_mean)),
            before.map_or("–".to_owned(), |losses| format!("{:.4}", average(losses.into_iter()))),
            rows.iter().map(|outcome| outcome.loss_range.1).fold(f64::NEG_INFINITY, f64::max),
        );
    }
    page.push('\n');
    for bar in bars(question) {
        if let Some(difference) = relative_difference(outcomes, &bar.0, &bar.1) {
            let kept = if difference <= bar.2 { "kept" } else { "**not kept**" };
            let (one, other, percent) = (name(&bar.0), name(&bar.1), 100.0 * difference);
            let _ = writeln!(page, "- {one} against {other}: {percent:+.2} % (bar {:+.1} %: {kept})", 100.0 * bar.2);
        }
    }
    page
}

/// (method, reference, the largest relative difference of the loss allowed).
fn bars(question: Question) -> Vec<(Method, Method, f64)> {
    match question {
        Question::Bars => {
            vec![(GOSSIP, DILOCO, 0.015), (GOSSIP, GOSSIP_FULL_PRECISION, 0.005), (GOSSIP, Method::LocalOnly, -0.02)]
        }
        Question::Asynchrony => vec![(GOSSIP_UNEVEN, GOSSIP, 0.02)],
        Question::UnlikeData => vec![(GOSSIP, DILOCO, 0.02), (GOSSIP, Method::LocalOnly, -0.06)],
        _ => vec![],
    }
}

/// By how much the mean loss of `method` lies above that of `reference`, over the seeds that both have.
fn relative_difference(outcomes: &[&Outcome], method: &Method, reference: &Method) -> Option<f64> {
    let loss = |method: &Method, seed: u64| {
        let found = outcomes.iter().find(|outcome| (outcome.setting.method, outcome.setting.seed) == (*method, seed));
        found.map(|outcome| outcome.loss)
    };
    let pairs: Vec<(f64, f64)> =
        SEEDS.iter().filter_map(|seed| loss(method, *seed).zip(loss(reference, *seed))).collect();
    let (ours, theirs): (f64, f64) = (pairs.iter().map(|pair| pair.0).sum(), pairs.iter().map(|pair| pair.1).sum());
    (!pairs.is_empty()).then(|| ours / theirs - 1.0)
}

fn traffic(outcomes: &[&Outcome]) -> String {
    let mut best: Vec<&Outcome> = Vec::new();
    for outcome in outcomes {
        match best.iter_mut().find(|kept| kept.setting.method == outcome.setting.method) {
            Some(kept) if kept.loss > outcome.loss => *kept = outcome,
            Some(_) => {}
            None => best.push(outcome),
        }
    }
    best.sort_by(|one, other| one.loss.total_cmp(&other.loss));
    let reference = best.iter().find(|outcome| outcome.setting.method == Method::DataParallel);
    let mut page =
        "| | loss | against data-parallel | learning rate | of the mean model | steps an own exchange |".to_owned();
    page += " bytes a parameter and node |\n|---|---|---|---|---|---|---|\n";
    for outcome in &best {
        let against = reference.map(|reference| 100.0 * (outcome.loss / reference.loss - 1.0));
        let exchanges = outcome.exchanges;
        let _ = writeln!(
            page,
            "| {} | {:.4} | {} | {} | {:.4} | {} | {:.0} |",
            name(&outcome.setting.method),
            outcome.loss,
            against.map_or("–".to_owned(), |percent| format!("{percent:+.1} %")),
            outcome.setting.learning_rate,
            outcome.loss_of_mean,
            if exchanges > 0.0 { format!("{:.1}", outcome.setting.steps as f64 / exchanges) } else { "–".to_owned() },
            outcome.bytes_per_parameter,
        );
    }
    page
}

/// A treatment in a few words.
pub fn treatment(treatment: &Treatment) -> String {
    let kind = match treatment.kind {
        OptimizerKind::AdamW => "AdamW",
        OptimizerKind::Muon => "Muon",
    };
    format!("{kind}{}", if treatment.match_batch { ", matched" } else { "" })
}

/// All kinds of runs, each against the data-parallel runs of as many nodes and steps, over the seeds that both have.
fn against_data_parallel(outcomes: &[&Outcome]) -> String {
    let mut kinds: Vec<Setting> = Vec::new();
    for outcome in outcomes {
        let kind = Setting { seed: 0, ..outcome.setting.clone() };
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let mut page =
        "| | nodes | steps | optimizer | by seed | mean | against data-parallel AdamW | against Muon | ".to_owned();
    page += "bytes a parameter and node |\n|---|---|---|---|---|---|---|---|---|\n";
    for kind in kinds {
        let is_of_kind = |outcome: &&&Outcome| Setting { seed: 0, ..outcome.setting.clone() } == kind;
        let rows: Vec<&Outcome> = outcomes.iter().filter(is_of_kind).copied().collect();
        let seeds: Vec<String> = rows.iter().map(|row| format!("{:.4}", row.loss)).collect();
        let data = if kind.by_node { ", each a part of the text" } else { "" };
        let cut = if kind.fragments > 1 { format!(", {} fragments", kind.fragments) } else { String::new() };
        let teams = if kind.teams > 0 { format!(", {} teams of two", kind.teams) } else { String::new() };
        let bytes = average(rows.iter().map(|row| row.bytes_per_parameter));
        let _ = writeln!(
            page,
            "| {}{data}{cut}{teams} | {} | {} | {} at {} | {} | {:.4} | {} | {} | {} |",
            name(&kind.method),
            kind.nodes,
            kind.steps,
            treatment(&kind.treatment),
            kind.learning_rate,
            seeds.join(" "),
            average(rows.iter().map(|row| row.loss)),
            against(&rows, outcomes, OptimizerKind::AdamW),
            against(&rows, outcomes, OptimizerKind::Muon),
            if bytes > 0.0 { format!("{bytes:.0}") } else { "–".to_owned() },
        );
    }
    page
}

/// By how much the losses of `rows` lie above those of data-parallel runs with this optimizer.
fn against(rows: &[&Outcome], outcomes: &[&Outcome], kind: OptimizerKind) -> String {
    let with_reference = rows.iter().filter_map(|row| {
        let of = |setting: &Setting| (setting.seed, setting.nodes, setting.steps);
        let is_reference = |outcome: &&&Outcome| {
            let Setting { method, by_node, treatment, .. } = outcome.setting;
            (method, by_node, treatment.kind) == (Method::DataParallel, false, kind)
                && of(&outcome.setting) == of(&row.setting)
        };
        Some((row.loss, outcomes.iter().find(is_reference)?.loss))
    });
    let (ours, theirs) = with_reference.fold((0.0, 0.0), |sums, pair| (sums.0 + pair.0, sums.1 + pair.1));
    if theirs > 0.0 { format!("{:+.1} %", 100.0 * (ours / theirs - 1.0)) } else { "–".to_owned() }
}

fn average(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(question: Question, loss: impl Fn(&Method) -> f64) -> Vec<Outcome> {
        let outcome = |setting: super::super::Setting| {
            let loss = loss(&setting.method);
            Outcome {
                setting,
                loss,
                loss_range: (loss, loss),
                loss_of_mean: loss,
                loss_before_settling: None,
                bytes_per_parameter: 1.0,
                exchanges: 16.0,
                tokens: 1,
                seconds: 1.0,
            }
        };
        plan::runs(question, "text").into_iter().map(outcome).collect()
    }

    #[test]
    fn a_broken_bar_is_shown() {
        let good = tables(&outcomes(Question::Bars, |method| if *method == Method::LocalOnly { 2.1 } else { 2.0 }));
        assert!(good.contains("kept)") && !good.contains("not kept"), "{good}");
        let bad = tables(&outcomes(Question::Bars, |method| if *method == GOSSIP { 2.05 } else { 2.0 }));
        assert_eq!(bad.matches("not kept").count(), 3, "{bad}");
    }

    #[test]
    fn optimizers_are_held_against_data_parallel_adamw_seed_by_seed() {
        let is_gossip = |method: &Method| matches!(method, Method::Gossip { .. });
        let page = tables(&outcomes(Question::Optimizers, |method| if is_gossip(method) { 2.1 } else { 2.0 }));
        let (_, page) = page.split_once("### Optimizers").expect("the table");
        assert_eq!((page.matches("+5.0 %").count(), page.matches("+0.0 %").count()), (18, 4), "{page}");
        assert!(
            page.contains("| gossip, H = 5, no momentum | 8 | 400 | Muon, matched at 0.004 | 2.1000 2.1000 2.1000 |"),
            "{page}"
        );
        assert!(!page.contains("| – |"), "{page}");
    }

    #[test]
    fn runs_are_held_against_data_parallel_ones_of_as_many_nodes() {
        let mut made = outcomes(Question::Sizes, |method| if *method == Method::DataParallel { 32.0 } else { 35.2 });
        made.iter_mut().for_each(|outcome| outcome.loss /= outcome.setting.nodes as f64);
        let page = tables(&made);
        assert_eq!((page.matches("+10.0 %").count(), page.matches("+0.0 %").count()), (2, 2), "{page}");
    }

    #[test]
    fn the_traffic_table_has_each_method_once_and_the_best_first() {
        let page = tables(&outcomes(Question::Traffic, |method| if *method == DILOCO { 1.0 } else { 2.0 }));
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| ") && line.contains('%')).collect();
        assert_eq!(rows.len(), 8, "{page}");
        assert!(rows[0].contains("DiLoCo"), "{page}");
    }
}
