//! Runs side by side, each beside its ratio to the first.

use super::table::{Table, bytes, count, number};
use super::{RunReport, SeedReport};

/// A run in a comparison: the means over its seeds.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Compared {
    /// What the user called it.
    pub name: String,
    /// Seeds that count: those that came to their end.
    pub seeds: usize,
    /// Seeds in which a check failed.
    pub failed: usize,
    /// Mean loss of the nodes at the end.
    pub loss: f64,
    /// The worst node's.
    pub worst_loss: f64,
    /// When learning ended.
    pub disagreement: f64,
    /// Exchanges that ended well.
    pub exchanges: f64,
    /// Sent by a node in a round.
    pub control_bytes_per_node_and_round: f64,
    /// Sent by a node in a round.
    pub payload_bytes_per_node_and_round: f64,
    /// Payloads of all.
    pub payload_bytes: f64,
}

impl Compared {
    /// The means of a run; not a number where no seed has come to its end.
    pub fn new(name: &str, report: &RunReport) -> Compared {
        let ended: Vec<&SeedReport> = report.seeds.iter().filter(|seed| !seed.series.is_empty()).collect();
        let mean =
            |value: fn(&SeedReport) -> f64| ended.iter().map(|seed| value(seed)).sum::<f64>() / ended.len() as f64;
        Compared {
            name: name.to_owned(),
            seeds: ended.len(),
            failed: report.failed().count(),
            loss: mean(|seed| seed.summary.loss),
            worst_loss: mean(|seed| seed.summary.worst_loss),
            disagreement: mean(|seed| seed.summary.disagreement),
            exchanges: mean(|seed| seed.summary.exchanges_completed as f64),
            control_bytes_per_node_and_round: mean(|seed| seed.summary.control_bytes_per_node_and_round),
            payload_bytes_per_node_and_round: mean(|seed| seed.summary.payload_bytes_per_node_and_round),
            payload_bytes: mean(|seed| seed.summary.payload_bytes as f64),
        }
    }
}

/// A column for each run; from the second on with the ratio to the first.
pub fn comparison(runs: &[Compared]) -> Table {
    let mut head = vec!["mean over the seeds"];
    for (index, run) in runs.iter().enumerate() {
        head.push(&run.name);
        if index > 0 {
            head.push("ratio");
        }
    }
    let mut table = Table::new(&head);
    let mut row = |title: &str, format: fn(f64) -> String, value: fn(&Compared) -> f64| {
        let mut cells = vec![title.to_owned()];
        for (index, run) in runs.iter().enumerate() {
            cells.push(format(value(run)));
            if index > 0 {
                cells.push(ratio(value(run), value(&runs[0])));
            }
        }
        table.row(cells);
    };
    row("seeds", count, |run| run.seeds as f64);
    row("seeds with a failed check", count, |run| run.failed as f64);
    row("loss, mean of the nodes", number, |run| run.loss);
    row("loss, worst node", number, |run| run.worst_loss);
    row("disagreement when learning ends", number, |run| run.disagreement);
    row("exchanges completed", count, |run| run.exchanges);
    row("control bytes / node and round", bytes, |run| run.control_bytes_per_node_and_round);
    row("payload bytes / node and round", bytes, |run| run.payload_bytes_per_node_and_round);
    row("payload bytes", bytes, |run| run.payload_bytes);
    table
}

fn ratio(value: f64, first: f64) -> String {
    // Of nothing, or where a run has no number.
    let ratio = value / first;
    if ratio.is_finite() { format!("×{ratio:.3}") } else { "–".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Point, Summary};

    #[test]
    fn a_run_of_which_no_seed_has_ended_is_not_the_best() {
        let summary = Summary { loss: 2.0, ..Summary::default() };
        let ended = SeedReport { summary, series: vec![Point::default()], ..SeedReport::default() };
        let report = |seed| RunReport { seeds: vec![seed], ..RunReport::default() };
        let runs = [Compared::new("a", &report(ended)), Compared::new("b", &report(SeedReport::default()))];
        assert!(runs[0].loss == 2.0 && runs[1].loss.is_nan());
        let lines = comparison(&runs).lines();
        let loss = lines.iter().find(|line| line.starts_with("loss, mean")).expect("a row");
        assert_eq!(loss.split_whitespace().rev().take(2).collect::<Vec<_>>(), ["–", "NaN"]);
    }
}
