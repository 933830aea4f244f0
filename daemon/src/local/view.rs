//! The merged view: a table that redraws itself on a terminal, plain lines elsewhere.

use std::cell::{Cell, RefCell};
use std::io::{IsTerminal, stdout};
use std::path::Path;
use std::time::{Duration, Instant};

use murmur_protocol::RunManifest;

use super::child::Child;
use super::summary::{NodeSummary, Summary, mean};
use super::table::{self, Column, Row, Run, shown};
use crate::console::figures::{Losses, count, counted, human_bytes};
use crate::console::{Console, ModelText, note, print_fitted, print_line, screen, short};
use crate::daemon::Ready;
use crate::observe::report::{NodeReport, share_of};

/// Without a terminal to redraw, a line this often.
const PLAIN_PERIOD: Duration = Duration::from_secs(5);

/// Draws on stderr, where it is in nobody's way; stdout has the summary.
pub(super) struct View {
    format: Console,
    floor: Option<f64>,
    nodes: usize,
    helpers: usize,
    /// What the run's model predicts.
    prediction: &'static str,
    redraws: bool,
    losses: RefCell<Losses>,
    last_plain: Cell<Option<Instant>>,
    begin: Instant,
}

impl View {
    pub(super) fn new(
        format: Console,
        floor: Option<f64>,
        (nodes, helpers): (usize, usize),
        manifest: &RunManifest,
    ) -> View {
        View {
            format,
            floor,
            nodes,
            helpers,
            prediction: manifest.prediction(),
            redraws: format == Console::Text && screen::is_live(),
            losses: RefCell::default(),
            last_plain: Cell::new(None),
            begin: Instant::now(),
        }
    }

    /// `are_elsewhere`: on hosts of their own, whose addresses are none of this one.
    pub(super) fn show_beginning(
        &self,
        manifest: &RunManifest,
        (children, are_elsewhere): (&[Child], bool),
        folder: &Path,
    ) {
        let ready = children.iter().find_map(|child| child.ready.clone());
        let ready = ready.map(|ready| match are_elsewhere {
            true => Ready { status_address: None, ..ready },
            false => ready,
        });
        self.beginning(manifest, ready.as_ref(), folder).iter().for_each(|line| self.say(line));
    }

    fn beginning(&self, manifest: &RunManifest, ready: Option<&Ready>, folder: &Path) -> Vec<String> {
        let parameters = ready.map_or(0, |ready| ready.parameters);
        let length = match manifest.schedule.total_steps {
            0 => "no end set".to_owned(),
            steps => counted(steps, "step"),
        };
        let parameters = match parameters {
            0..100_000 => count(parameters as u64),
            _ => format!("{:.2}M", parameters as f64 / 1e6),
        };
        let helpers = match self.helpers {
            0 => String::new(),
            count => format!(" and {}", counted(count as u64, "helper")),
        };
        let mut lines = vec![format!(
            "murmur local · {} · {}{helpers} · {parameters} parameters each · {length}",
            manifest.run.name,
            counted(self.nodes as u64, "daemon"),
        )];
        lines.extend(
            self.floor.map(|floor| {
                format!("built-in stories: no model can get below their entropy rate, {floor:.3} nats/byte")
            }),
        );
        lines.push(format!("data, checkpoints and logs in {}", folder.display()));
        let dashboard = ready.and_then(|ready| ready.status_address.as_ref());
        lines.extend(dashboard.map(|address| format!("dashboard at http://{address}/")));
        // All daemons have the same devices.
        lines
            .extend(ready.and_then(|ready| ready.device_warning.as_ref()).map(|warning| format!("warning: {warning}")));
        lines
    }

    /// A line that stays.
    pub(super) fn say(&self, text: &str) {
        if self.format == Console::Text {
            note(text);
        }
    }

    pub(super) fn draw(&self, children: &[Child]) {
        if self.format == Console::Json {
            return;
        }
        if self.redraws {
            let loss = mean(table::present(&View::rows(children)).into_iter().filter_map(|report| report.loss));
            let steps = children.iter().filter_map(|child| child.report.as_ref()).map(|report| report.steps).sum();
            let mut losses = self.losses.borrow_mut();
            losses.observe(steps, loss);
            screen::draw(table::block(&View::rows(children), &self.run(&losses), screen::Size::now()));
        } else if children.iter().any(|child| child.report.is_none() && !child.has_ended) {
            // Nothing to tell until all have started.
        } else if self.last_plain.get().is_none_or(|last| last.elapsed() >= PLAIN_PERIOD) {
            self.last_plain.set(Some(Instant::now()));
            note(&self.plain_line(children));
        }
    }

    pub(super) fn draw_last(&self, children: &[Child]) {
        if self.redraws {
            self.draw(children);
            screen::keep();
        }
    }

    pub(super) fn show_summary(&self, summary: &Summary, is_resumed: bool) {
        let number =
            |value: Option<f64>, digits: usize| value.map_or("unknown".to_owned(), |value| format!("{value:.digits$}"));
        print_line("");
        let width = if stdout().is_terminal() { screen::Size::now().block_columns() } else { usize::MAX };
        table::table(summary_columns(summary, self.each()), width).iter().for_each(|line| print_line(line));
        if is_resumed {
            print_line("own steps are those of all starts; speed, exchanges, bytes and times are since this start");
        }
        let floor = self.floor.map_or(String::new(), |floor| format!(" (floor {floor:.4})"));
        let loss = number(summary.mean_validation_loss(), 4);
        print_line(&format!("mean validation loss {loss}{floor} nats/{}", self.prediction));
        if let Some((mean, lowest)) = summary.accuracy() {
            let (mean, lowest) = (100.0 * mean, 100.0 * lowest);
            print_line(&format!("mean accuracy {mean:.2} % of held-out {}s (lowest {lowest:.2} %)", self.prediction));
        }
        if let Some((node, scores)) = summary.nodes.iter().find_map(|node| Some((node.node, node.scores?))) {
            print_line(&format!("scores of node {node} {scores} of {}", counted(scores.rows as u64, "held-out row")));
        }
        print_line(&averaging_line(summary));
        if let Some(node) = summary.node_with_longest_gap() {
            print_line(&format!(
                "longest gap between two steps {:.0} ms (node {}, whose median step takes {:.1} ms)",
                1e3 * node.longest_gap_seconds,
                node.node,
                1e3 * node.median_step_seconds
            ));
        }
    }

    pub(super) fn show_sample(&self, number: usize, text: &[u8]) {
        print_line(&format!("\nWhat node {number} writes:\n"));
        let mut shown = Vec::new();
        let mut output = ModelText::new(&mut shown, stdout().is_terminal());
        for line in text.trim_ascii().split(|byte| *byte == b'\n') {
            let line = [b"  ", line, b"\n"].concat();
            output.write(&line).expect("a vector takes everything");
        }
        output.finish().expect("a vector takes everything");
        match str::from_utf8(&shown) {
            Ok(lines) if stdout().is_terminal() => lines.lines().for_each(|line| print_fitted(line, 2)),
            _ => screen::print_bytes(shown.clone()),
        }
    }

    fn rows(children: &[Child]) -> Vec<Row<'_>> {
        children.iter().map(row).collect()
    }

    /// What is counted of what is trained on.
    fn each(&self) -> &'static str {
        match self.prediction {
            "image" | "row" => self.prediction,
            _ => "token",
        }
    }

    fn run<'a>(&self, losses: &'a Losses) -> Run<'a> {
        Run { floor: self.floor, each: self.each(), elapsed: self.begin.elapsed(), losses }
    }

    fn plain_line(&self, children: &[Child]) -> String {
        let reports: Vec<&NodeReport> = children.iter().filter_map(|child| child.report.as_ref()).collect();
        let rows = View::rows(children);
        let peers = table::present(&rows).iter().map(|report| report.peers).min().unwrap_or(0);
        let sent: u64 = reports.iter().map(|report| report.bytes_sent).sum();
        let progress = table::progress(&rows, &self.run(&Losses::default()), usize::MAX);
        let mut parts = vec![progress.join(" · ")];
        if children.len() > 1 {
            parts.push(match peers {
                0 => "not all have a peer".to_owned(),
                peers => format!("at least {}", counted(peers as u64, "peer")),
            });
        }
        parts.extend([averaged(&reports), format!("{} sent", human_bytes(sent))]);
        parts.join(" · ")
    }
}

/// How the nodes have averaged: in pairs, or all at once, as one of them tells.
fn averaged(reports: &[&NodeReport]) -> String {
    let synchronous = reports.iter().filter_map(|report| report.synchronous.as_ref());
    if let Some(synchronous) = synchronous.min_by_key(|synchronous| synchronous.has_ended) {
        return synchronous.summary();
    }
    let exchanges: u64 = reports.iter().map(|report| report.exchanges_completed).sum();
    let exchanges = counted(exchanges.div_ceil(2), "exchange");
    match mean(reports.iter().filter_map(|report| report.disagreement)) {
        None => exchanges,
        disagreement => format!("{exchanges} · disagreement {}", shown(disagreement)),
    }
}

/// What averaging has come to, and how long it all took. A single model agrees with itself, which is no news.
fn averaging_line(summary: &Summary) -> String {
    let disagreement = summary.disagreement.filter(|_| summary.nodes.len() > 1);
    let bytes = summary.bytes_per_parameter_per_exchange;
    let parts = [
        disagreement.map(|apart| format!("disagreement {apart:.4}")),
        bytes.map(|bytes| format!("{bytes:.3} bytes per parameter and exchange")),
        Some(format!("{:.0} s", summary.seconds)),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

fn row(child: &Child) -> Row<'_> {
    Row {
        number: child.number,
        peer: child.ready.as_ref().map(|ready| ready.peer.as_str()),
        report: child.report.as_ref(),
        is_gone: child.has_ended && child.last.is_none(),
    }
}

fn summary_columns(summary: &Summary, each: &str) -> Vec<Column> {
    let column = |title, rank, cell: &dyn Fn(&NodeSummary) -> String| Column {
        title,
        rank,
        is_text: rank == 0,
        cells: summary.nodes.iter().map(cell).collect(),
    };
    let number = |value: Option<f64>| value.map_or("unknown".to_owned(), |value| format!("{value:.4}"));
    let boundaries = |node: &NodeSummary| 100.0 * share_of(node.seconds_at_boundaries, node.seconds_in_training);
    vec![
        column("node", 0, &|node| format!("{:>2}  {}", node.node, short(&node.peer))),
        column("own steps", 1, &|node| count(node.steps)),
        column("validation", 2, &|node| number(node.validation_loss)),
        column(table::rate(each), 3, &|node| count(node.tokens_per_second as u64)),
        column("exchanges", 4, &|node| count(node.exchanges_completed)),
        column("sent", 5, &|node| human_bytes(node.bytes_sent)),
        column("boundaries", 6, &|node| format!("{:.2} %", boundaries(node))),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_gpu_that_does_not_train_as_it_should_is_told_before_the_first_step() {
        let ready = |device_warning: Option<&str>| -> Ready {
            let ready = json!({
                "peer": "p", "run": "r", "addresses": [], "ticket": "t", "status_address": null, "parameters": 20_000,
                "data_directory": "d", "device": "cuda:0", "device_warning": device_warning,
            });
            serde_json::from_value(ready).expect("all that is asked for")
        };
        let view = View::new(Console::Text, None, (2, 0), &RunManifest::default());
        let lines =
            |warning| view.beginning(&RunManifest::default(), Some(&ready(warning)), Path::new("folder")).join("\n");
        assert!(lines(None).contains("2 daemons · 20,000 parameters each") && !lines(None).contains("warning"));
        assert!(
            lines(Some("cuda:0 is slow")).ends_with("\nwarning: cuda:0 is slow"),
            "{}",
            lines(Some("cuda:0 is slow"))
        );
    }
}
