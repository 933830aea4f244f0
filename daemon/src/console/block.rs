//! What a daemon shows on a terminal: a few lines, drawn anew, that say how far it is and what goes on.

use std::time::Duration;

use super::figures::{Losses, bar, count, counted, duration, fitted, human_bytes, percent, steps, time_left};
use super::screen::Size;
use super::speed;
use crate::drivers::DataReport;
use crate::observe::report::NodeReport;

/// Columns of a sparkline, at most.
const SPARK_COLUMNS_MAX: usize = 32;

/// Columns of a bar, at most and at least.
const BAR_COLUMNS_MAX: usize = 40;
const BAR_COLUMNS_MIN: usize = 6;

/// The block of a daemon that is this far, for a terminal of this size.
pub(super) fn daemon_block(report: &NodeReport, losses: &Losses, size: Size) -> Vec<String> {
    let columns = size.block_columns();
    let number = |value: f64| format!("{value:.3}");
    let mut lines = vec![fitted(progress(report, columns), columns)];
    if report.copying.as_ref().is_some_and(|copy| copy.share > 0.0) || report.phase != "training" {
        lines.push(fitted([report.doing.clone()], columns));
    }
    if let Some(data) = report.data.as_ref().filter(|data| data.shards_assigned_held < data.shards_assigned) {
        lines.push(fitted(shards(data), columns));
    }
    if let Some(loss) = report.loss {
        let sparkline = losses.sparkline(SPARK_COLUMNS_MAX.min(columns / 3));
        let right = match (&report.scores, report.accuracy) {
            (Some(scores), _) => scores.to_string(),
            (None, share) => share.map_or(String::new(), |share| format!("{:.2} % right", 100.0 * share)),
        };
        let validation = report.validation_loss.map_or(String::new(), |loss| format!("validation {}", number(loss)));
        let loss = format!("loss {} {sparkline}", number(loss));
        lines.push(fitted([loss.trim_end().to_owned(), validation, right], columns));
    }
    let (own, swarm) = (report.tokens_per_second as u64, report.swarm_tokens_per_second as u64);
    let swarm = if swarm > own { format!("swarm {}, as members tell", count(swarm)) } else { String::new() };
    let here = if report.is_over() { "" } else { " here" };
    lines.push(fitted([format!("{}{here}", speed(report)), swarm], columns));
    let disagreement = report.disagreement.map_or(String::new(), |value| format!("disagreement {}", number(value)));
    let exchanges = match &report.synchronous {
        Some(synchronous) => synchronous.summary(),
        None => counted(report.exchanges_completed, "exchange"),
    };
    let sent = format!("{} sent", human_bytes(report.bytes_sent));
    lines.push(fitted([counted(report.peers as u64, "peer"), exchanges, sent, disagreement], columns));
    if let Some(team) = &report.team {
        lines.push(fitted([format!("team {}", team.summary())], columns));
    }
    if let Some(privacy) = &report.privacy {
        lines.push(fitted([format!("privacy {privacy}")], columns));
    }
    if let Some(reason) = &report.resting {
        lines.push(fitted([format!("network at rest: {reason}")], columns));
    }
    lines.truncate(size.block_rows());
    lines
}

/// How far the run is: what goes on, a bar where there is an end, both counters, the time.
fn progress(report: &NodeReport, columns: usize) -> Vec<String> {
    let what = if report.phase == "training" { &report.doing } else { &report.phase };
    let what = what.split(':').next().unwrap_or_default();
    let counters = steps(report.steps, report.progress);
    let ran = format!("for {}", duration(Duration::from_secs(report.seconds.max(0.0) as u64)));
    let Some(share) = report.outlook.share else {
        return vec![what.to_owned(), counters, "no end set".to_owned(), ran];
    };
    let end = report.outlook.nearer(report.steps, report.progress);
    let total = match (end.own, end.swarm) {
        (Some(own), _) => format!("of own {}", count(own)),
        (None, Some(swarm)) => format!("of swarm {}", count(swarm)),
        (None, None) => String::new(),
    };
    let left = time_left(report.outlook.seconds_left);
    let percent = percent(share);
    let taken = what.len() + percent.len() + counters.len() + total.len() + left.len() + 11;
    let width = columns.saturating_sub(taken).clamp(BAR_COLUMNS_MIN, BAR_COLUMNS_MAX);
    let bar = bar(share, width);
    vec![format!("{what} {bar} {percent}"), format!("{counters} {total}").trim_end().to_owned(), left, ran]
}

fn shards(data: &DataReport) -> Vec<String> {
    let held = format!("data {} of {}", data.shards_assigned_held, counted(data.shards_assigned as u64, "shard"));
    vec![held, format!("{} fetched", human_bytes(data.bytes_fetched))]
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr;

    use super::*;
    use crate::observe::outlook::OutlookReport;

    fn report() -> NodeReport {
        NodeReport {
            phase: "training".to_owned(),
            doing: "training".to_owned(),
            steps: 154,
            progress: 8150.0,
            loss: Some(2.104),
            validation_loss: Some(2.2),
            tokens_per_second: 26_000.0,
            swarm_tokens_per_second: 98_100.0,
            peers: 1,
            exchanges_completed: 81,
            seconds: 130.0,
            ..NodeReport::default()
        }
    }

    fn losses() -> Losses {
        let mut losses = Losses::default();
        (1..300).for_each(|step| losses.observe(step, Some(5.0 / step as f64)));
        losses
    }

    fn shown(report: &NodeReport, columns: usize) -> Vec<String> {
        daemon_block(report, &losses(), Size { columns, rows: 24 })
    }

    #[test]
    fn a_run_with_an_end_shows_a_bar_both_counters_and_the_time_left() {
        let outlook = OutlookReport {
            share: Some(0.385),
            own_steps: Some(400),
            seconds_left: Some(130.0),
            ..OutlookReport::default()
        };
        let lines = shown(&NodeReport { outlook, ..report() }, 80);
        assert_eq!(lines[0], "training [####·······] 38 % · own 154, swarm 8,150 of own 400 · 2 min 10 s left");
        assert!(lines[1].starts_with("loss 2.104 █") && lines[1].ends_with("validation 2.200"), "{lines:?}");
        assert_eq!(lines[2], "26,000 tokens/s here · swarm 98,100, as members tell");
        assert_eq!(lines[3], "1 peer · 81 exchanges · 0 B sent");
    }

    #[test]
    fn a_run_without_an_end_says_so() {
        assert_eq!(shown(&report(), 80)[0], "training · own 154, swarm 8,150 · no end set · for 2 min 10 s");
    }

    #[test]
    fn what_goes_on_is_said() {
        let joining = NodeReport {
            phase: "joining".to_owned(),
            doing: "copying the model: 12.3 MB of 40.1 MB from 2 members".to_owned(),
            ..report()
        };
        assert!(shown(&joining, 80).iter().any(|line| line.contains("12.3 MB of 40.1 MB")));
        let evaluating = NodeReport { doing: "evaluating".to_owned(), ..report() };
        assert!(shown(&evaluating, 80)[0].starts_with("evaluating"));
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_and_no_block_higher() {
        let outlook = OutlookReport {
            share: Some(0.5),
            swarm_steps: Some(1_000_000),
            seconds_left: Some(1e6),
            ..OutlookReport::default()
        };
        let reports = [report(), NodeReport { outlook, ..report() }];
        for report in &reports {
            for (columns, rows) in [(20, 3), (40, 10), (80, 24), (120, 24), (200, 50)] {
                let lines = daemon_block(report, &losses(), Size { columns, rows });
                assert!(lines.len() < rows, "{columns}×{rows}: {lines:#?}");
                assert!(lines.iter().all(|line| line.width() < columns), "{columns}×{rows}: {lines:#?}");
            }
        }
    }
}
