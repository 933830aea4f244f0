//! Each method in words: for a terminal, and with the numbers of a run.

use super::{Row, seconds};
use crate::compare::{ALL, Outcome, Results};
use crate::report::{bytes, counted};

/// All methods, a paragraph each, in lines of at most `columns` characters.
pub fn list(columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for method in ALL {
        lines.push(format!("{} – {}", method.name, method.title));
        let words = method.sentences.join(" ")
            + &if method.source == "-" { String::new() } else { format!(" ({})", method.source) };
        let mut line = "  ".to_owned();
        for word in words.split(' ') {
            if line.chars().count() + 1 + word.chars().count() > columns {
                lines.push(std::mem::replace(&mut line, "  ".to_owned()));
            }
            if line.trim().is_empty() {
                line = format!("  {word}");
            } else {
                line = format!("{line} {word}");
            }
        }
        lines.push(line);
        lines.push(String::new());
    }
    lines.pop();
    lines
}

/// What a method did in this comparison, in a sentence of its own numbers.
pub fn explanation(results: &Results, row: &Row) -> String {
    let runs = results.of(&row.method);
    let Some(run): Option<&&Outcome> = runs.first() else { return String::new() };
    let steps = run.nodes.iter().map(|node| node.steps).sum::<u64>() as f64 / run.nodes.len() as f64;
    let mut parts = vec![
        format!("{steps:.0} steps a node in {}", seconds(run.end().seconds)),
        format!("computing {:.0} % of it", 100.0 * row.shares.0),
        format!("uplinks busy {:.0} %", 100.0 * row.shares.2),
    ];
    if run.counted.rounds > 0.0 {
        parts.push(format!("{:.0} rounds or exchanges a node", run.counted.rounds));
    }
    if row.busiest_bytes > 0.0 {
        let mean_bytes = row.all_bytes / run.nodes.len() as f64;
        parts.push(format!(
            "{} sent by the busiest node, {:.1} times the mean",
            bytes(row.busiest_bytes),
            row.busiest_bytes / mean_bytes
        ));
    }
    if run.counted.staleness_max > 0 {
        let counted = run.counted;
        parts.push(format!(
            "gradients {:.1} steps old on average, {} at most",
            counted.staleness_mean, counted.staleness_max
        ));
    }
    if run.counted.changes > 0.0 {
        parts.push(format!(
            "all at once for {}, after {:.1} changes of a node",
            seconds(run.counted.together),
            run.counted.changes
        ));
    }
    if run.counted.dropped > 0 {
        parts.push(format!("{} begun anew", counted(run.counted.dropped, "operation")));
    }
    if run.counted.missed > 0 {
        parts.push(format!("{} without the other side", counted(run.counted.missed, "round")));
    }
    format!("In this run: {}.", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_fits_a_terminal_and_has_every_method() {
        let lines = list(80);
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:?}");
        assert!(ALL.iter().all(|method| lines.iter().any(|line| line.starts_with(method.name))));
    }
}
