//! Tables that fit a width: the columns that matter most, in their order.

use std::time::Duration;

use unicode_width::UnicodeWidthStr;

use crate::console::figures::{Losses, bar, count, duration, fitted, human_bytes, percent, time_left};
use crate::console::screen::{Size, cut};
use crate::console::{known, labelled, short};
use crate::observe::report::NodeReport;

/// Between two columns.
const GAP: &str = "  ";

/// Columns of a sparkline, at most.
const SPARK_COLUMNS_MAX: usize = 32;

/// Columns of a bar, at most.
const BAR_COLUMNS_MAX: usize = 40;

/// One column of a table.
pub(super) struct Column {
    pub(super) title: &'static str,
    /// Lower ones are left out last.
    pub(super) rank: usize,
    /// Whether texts stand at the left.
    pub(super) is_text: bool,
    /// A cell for each row.
    pub(super) cells: Vec<String>,
}

impl Column {
    fn width(&self) -> usize {
        self.cells.iter().map(|cell| cell.width()).chain([self.title.width()]).max().unwrap_or(0)
    }
}

/// The title line and the rows, at most so many columns wide.
pub(super) fn table(mut columns: Vec<Column>, width_max: usize) -> Vec<String> {
    loop {
        let width: usize = columns.iter().map(|column| column.width() + GAP.len()).sum::<usize>();
        if width <= width_max.saturating_add(GAP.len()) || columns.len() <= 1 {
            break;
        }
        let least = (0..columns.len()).max_by_key(|index| columns[*index].rank).expect("at least two");
        columns.remove(least);
    }
    let rows = columns.first().map_or(0, |column| column.cells.len());
    let line = |cell: &dyn Fn(&Column) -> String| {
        let padded = columns.iter().map(|column| {
            let (text, width) = (cell(column), column.width());
            let space = " ".repeat(width - text.width().min(width));
            if column.is_text { text + &space } else { space + &text }
        });
        cut(padded.collect::<Vec<_>>().join(GAP).trim_end(), width_max)
    };
    let title = line(&|column| column.title.to_owned());
    let cells = (0..rows).map(|row| line(&|column| column.cells[row].clone()));
    std::iter::once(title).chain(cells).collect()
}

/// A daemon as the view sees it.
pub(super) struct Row<'a> {
    pub(super) number: usize,
    /// Its peer id, once it has said it.
    pub(super) peer: Option<&'a str>,
    pub(super) report: Option<&'a NodeReport>,
    /// Its process has ended before the others.
    pub(super) is_gone: bool,
}

/// What the view knows beside the daemons' reports.
pub(super) struct Run<'a> {
    pub(super) floor: Option<f64>,
    /// "token", "image" or "row".
    pub(super) each: &'static str,
    pub(super) elapsed: Duration,
    pub(super) losses: &'a Losses,
}

/// The live view: a row for each daemon, as many as there is room for, then how far all are.
pub(super) fn block(rows: &[Row<'_>], run: &Run<'_>, size: Size) -> Vec<String> {
    let columns = size.block_columns();
    let mut ending = progress(rows, run, columns);
    ending.truncate(size.block_rows());
    let room = size.block_rows() - ending.len();
    let mut lines = Vec::new();
    // A title and one row are the least.
    if room >= 2 {
        let fits = rows.len() < room;
        let shown = if fits { rows.len() } else { room.saturating_sub(2) };
        lines = table(node_columns(&rows[..shown], run.each), columns);
        if !fits {
            let hidden = &rows[shown..];
            let training = hidden.iter().filter(|row| row.report.is_some_and(|report| report.phase == "training"));
            let training = training.count();
            lines.push(cut(&format!("… and {} more, {training} of them training", hidden.len()), columns));
        }
    }
    lines.extend(ending);
    lines
}

fn node_columns(rows: &[Row<'_>], each: &str) -> Vec<Column> {
    let column = |title, rank, cell: &dyn Fn(&NodeReport) -> String| {
        let cells = rows.iter().map(|row| row.report.map_or(String::new(), cell)).collect();
        Column { title, rank, is_text: false, cells }
    };
    let node = rows.iter().map(|row| {
        let name = row.report.and_then(|report| report.name.as_deref());
        format!("{:>2} {}", row.number, labelled(row.peer.map_or("", short), name))
    });
    let phase = rows.iter().map(|row| match row.report {
        _ if row.is_gone => "gone".to_owned(),
        None => "starting".to_owned(),
        Some(report) if report.phase == "training" => report.doing.clone(),
        Some(report) => report.phase.clone(),
    });
    vec![
        Column { title: "node", rank: 0, is_text: true, cells: node.collect() },
        Column { title: "phase", rank: 4, is_text: true, cells: phase.collect() },
        column("own", 1, &|report| count(report.steps)),
        column("swarm", 5, &|report| count(report.progress.max(0.0) as u64)),
        column("loss", 2, &|report| shown(report.loss)),
        column("valid.", 6, &|report| shown(report.validation_loss)),
        column(rate(each), 3, &|report| known(report.speed())),
        column("peers", 7, &|report| report.peers.to_string()),
        column("exchanges", 8, &|report| count(report.exchanges_completed)),
        column("disagreement", 10, &|report| shown(report.disagreement)),
        column("sent", 9, &|report| human_bytes(report.bytes_sent)),
    ]
}

/// What a column is called that tells how many of these are trained on a second.
pub(super) fn rate(each: &str) -> &'static str {
    match each {
        "image" => "images/s",
        "row" => "rows/s",
        _ => "tokens/s",
    }
}

/// What daemons report that are still there: one that died trains no more and comes no further. Of all, where all have ended.
pub(super) fn present<'a>(rows: &[Row<'a>]) -> Vec<&'a NodeReport> {
    let are_all_gone = rows.iter().all(|row| row.is_gone);
    rows.iter().filter(|row| are_all_gone || !row.is_gone).filter_map(|row| row.report).collect()
}

/// How far all are together: a bar, the loss, the speed.
pub(super) fn progress(rows: &[Row<'_>], run: &Run<'_>, columns: usize) -> Vec<String> {
    let present = present(rows);
    let reports = || present.iter().copied();
    let elapsed = duration(run.elapsed);
    let share = super::summary::mean(reports().filter_map(|report| report.outlook.share));
    // All have to arrive.
    let left = reports().filter_map(|report| report.outlook.seconds_left).reduce(f64::max);
    let left = time_left(left);
    let first = match share {
        None => vec!["no end set".to_owned(), steps(&present), elapsed],
        Some(share) => {
            let percent = percent(share);
            let taken = percent.width() + left.width() + steps(&present).width() + elapsed.width() + 14;
            let bar = bar(share, columns.saturating_sub(taken).clamp(6, BAR_COLUMNS_MAX));
            vec![format!("{bar} {percent}"), left, steps(&present), elapsed]
        }
    };
    let all_over = reports().all(NodeReport::is_over);
    let counts = |report: &&NodeReport| all_over || !report.is_over();
    let speed = reports().filter(counts).filter_map(NodeReport::speed).reduce(|sum, speed| sum + speed);
    let loss = super::summary::mean(reports().filter_map(|report| report.loss));
    let validation = super::summary::mean(reports().filter_map(|report| report.validation_loss));
    let right = super::summary::mean(reports().filter_map(|report| report.accuracy));
    let sparkline = run.losses.sparkline(SPARK_COLUMNS_MAX.min(columns / 3));
    let second = vec![
        format!("loss {} {sparkline}", shown(loss)).trim_end().to_owned(),
        format!("validation {}", shown(validation)),
        right.map_or(String::new(), |share| format!("{:.2} % right", 100.0 * share)),
        format!("{} {}s/s", known(speed), run.each),
        run.floor.map_or(String::new(), |floor| format!("floor {floor:.3}")),
    ];
    let team = reports().find_map(|report| report.team.as_ref());
    let team = team.map(|team| cut(&format!("team: {}", team.summary()), columns));
    [fitted(first, columns), fitted(second, columns)].into_iter().chain(team).collect()
}

/// Own steps of the slowest and the fastest daemon, and the swarm's progress.
fn steps(present: &[&NodeReport]) -> String {
    let reports = || present.iter();
    let own = || reports().map(|report| report.steps);
    let (Some(least), Some(most)) = (own().min(), own().max()) else { return String::new() };
    let swarm = reports().map(|report| report.progress).fold(0.0, f64::max);
    let own = if least == most { count(most) } else { format!("{} to {}", count(least), count(most)) };
    format!("own {own}, swarm {}", count(swarm as u64))
}

pub(super) fn shown(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::outlook::OutlookReport;

    fn report(number: usize) -> NodeReport {
        NodeReport {
            phase: "training".to_owned(),
            doing: "writing a checkpoint".to_owned(),
            name: (number == 1).then(|| "a machine with a long name (32)".to_owned()),
            steps: 1100 + number as u64,
            progress: 8150.0,
            loss: Some(2.104),
            validation_loss: Some(2.2),
            tokens_per_second: 26_000.0,
            peers: 3,
            disagreement: Some(0.7),
            outlook: OutlookReport { share: Some(0.38), seconds_left: Some(130.0), ..OutlookReport::default() },
            ..NodeReport::default()
        }
    }

    fn drawn(nodes: usize, columns: usize, rows: usize) -> Vec<String> {
        let reports: Vec<NodeReport> = (0..nodes).map(report).collect();
        let peer = "12D3KooWabcdefgh";
        let row = |(number, report)| Row { number, peer: Some(peer), report: Some(report), is_gone: false };
        let seen: Vec<Row<'_>> = reports.iter().enumerate().map(row).collect();
        let mut losses = Losses::default();
        (1..300).for_each(|step| losses.observe(step, Some(5.0 / step as f64)));
        let run = Run { floor: Some(0.245), each: "token", elapsed: Duration::from_secs(42), losses: &losses };
        block(&seen, &run, Size { columns, rows })
    }

    #[test]
    fn the_view_fits_every_terminal() {
        for nodes in [1, 4, 64] {
            for (columns, rows) in [(20, 3), (40, 10), (40, 24), (80, 24), (80, 10), (120, 24), (200, 50)] {
                let lines = drawn(nodes, columns, rows);
                assert!(lines.len() < rows, "{nodes} nodes at {columns}×{rows}: {lines:#?}");
                assert!(lines.iter().all(|line| line.width() < columns), "{nodes} at {columns}×{rows}: {lines:#?}");
                assert!(lines.iter().any(|line| line.contains("38 %")), "{nodes} at {columns}×{rows}: {lines:#?}");
            }
        }
    }

    #[test]
    fn narrow_terminals_keep_what_matters_most() {
        let wide = drawn(4, 200, 50);
        for title in ["own", "swarm", "exchanges", "disagreement", "sent"] {
            assert!(wide[0].contains(title), "{wide:#?}");
        }
        let narrow = drawn(1, 40, 24);
        assert!(narrow[0].contains("own") && narrow[0].contains("loss"), "{narrow:#?}");
        assert!(!narrow[0].contains("disagreement"), "{narrow:#?}");
    }

    #[test]
    fn nodes_without_room_are_counted() {
        let lines = drawn(64, 80, 10);
        assert!(lines.iter().any(|line| line == "… and 59 more, 59 of them training"), "{lines:#?}");
        assert_eq!(drawn(4, 80, 24).len(), 1 + 4 + 2);
    }

    #[test]
    fn a_daemon_that_died_is_in_its_row_alone() {
        let mut dead = report(0);
        dead.steps = 7;
        dead.loss = Some(9.0);
        dead.outlook = OutlookReport { share: Some(0.01), seconds_left: Some(9000.0), ..OutlookReport::default() };
        let live = report(1);
        let row = |number, report, is_gone| Row { number, peer: None, report: Some(report), is_gone };
        let losses = Losses::default();
        let run = Run { floor: None, each: "row", elapsed: Duration::from_secs(42), losses: &losses };
        let lines = progress(&[row(0, &dead, true), row(1, &live, false)], &run, usize::MAX).join("\n");
        for part in ["38 %", "2 min 10 s left", "own 1,101,", "loss 2.104", "26,000 rows/s"] {
            assert!(lines.contains(part), "{part}: {lines}");
        }
        let ended = progress(&[row(0, &dead, true)], &run, usize::MAX).join("\n");
        assert!(ended.contains("own 7,"), "of all, where none is left: {ended}");
    }

    #[test]
    fn a_speed_that_is_not_measured_yet_is_no_zero() {
        let (begins, trains) = (NodeReport { tokens_per_second: 0.0, ..report(0) }, report(1));
        let row = |number, report| Row { number, peer: None, report: Some(report), is_gone: false };
        let losses = Losses::default();
        let run = Run { floor: None, each: "token", elapsed: Duration::from_secs(2), losses: &losses };
        let size = Size { columns: 120, rows: 24 };
        let lines = block(&[row(0, &begins), row(1, &trains)], &run, size);
        assert!(lines[1].contains(" – ") && lines[2].contains(" 26,000 "), "{lines:#?}");
        let lines = block(&[row(0, &begins)], &run, size);
        assert!(lines.iter().any(|line| line.contains("– tokens/s")), "{lines:#?}");
    }

    #[test]
    fn both_counters_are_named() {
        let lines = drawn(4, 120, 24);
        assert!(lines[5].contains("own 1,100 to 1,103, swarm 8,150"), "{lines:#?}");
        assert!(lines[5].contains("2 min 10 s left"), "{lines:#?}");
    }
}
