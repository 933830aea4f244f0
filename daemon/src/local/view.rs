//! The merged view: a table that redraws itself on a terminal, plain lines elsewhere.

use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use murmur_protocol::RunManifest;

use super::child::Child;
use super::summary::{Summary, mean};
use crate::console::{Console, human_bytes, note, print_line};
use crate::report::{NodeReport, share_of};

/// Without a terminal to redraw, a line this often.
const PLAIN_PERIOD: Duration = Duration::from_secs(5);

/// Draws on stderr, where it is in nobody's way; stdout has the summary.
pub(super) struct View {
    format: Console,
    floor: Option<f64>,
    nodes: usize,
    /// What the run's model predicts.
    prediction: &'static str,
    redraws: bool,
    /// Lines of the last drawing, to be drawn over.
    drawn_lines: Cell<usize>,
    last_plain: Cell<Option<Instant>>,
    begin: Instant,
}

impl View {
    pub(super) fn new(format: Console, floor: Option<f64>, nodes: usize, manifest: &RunManifest) -> View {
        View {
            format,
            floor,
            nodes,
            prediction: manifest.prediction(),
            redraws: std::io::stderr().is_terminal(),
            drawn_lines: Cell::new(0),
            last_plain: Cell::new(None),
            begin: Instant::now(),
        }
    }

    pub(super) fn show_beginning(&self, manifest: &RunManifest, children: &[Child], folder: &Path) {
        let parameters = children.iter().find_map(|child| child.ready.as_ref()).map_or(0, |ready| ready.parameters);
        self.say(&format!(
            "murmur local · {} · {} daemons · {:.2}M parameters each · {} steps",
            manifest.run.name,
            self.nodes,
            parameters as f64 / 1e6,
            manifest.schedule.total_steps
        ));
        if let Some(floor) = self.floor {
            self.say(&format!("built-in stories: no model can get below their entropy rate, {floor:.3} nats/byte"));
        }
        self.say(&format!("data, checkpoints and logs in {}", folder.display()));
    }

    /// A line that stays.
    pub(super) fn say(&self, text: &str) {
        if self.format == Console::Text {
            self.clear();
            note(text);
        }
    }

    pub(super) fn draw(&self, children: &[Child]) {
        if self.format == Console::Json {
            return;
        }
        if self.redraws {
            self.clear();
            let table = self.table(children);
            self.drawn_lines.set(table.lines().count());
            let _ = write!(std::io::stderr().lock(), "{table}");
        } else if children.iter().any(|child| child.report.is_none()) {
            // Nothing to tell until all have started.
        } else if self.last_plain.get().is_none_or(|last| last.elapsed() >= PLAIN_PERIOD) {
            self.last_plain.set(Some(Instant::now()));
            note(&self.plain_line(children));
        }
    }

    pub(super) fn draw_last(&self, children: &[Child]) {
        if self.redraws {
            self.draw(children);
            self.drawn_lines.set(0);
        }
    }

    pub(super) fn show_summary(&self, summary: &Summary) {
        let number =
            |value: Option<f64>, digits: usize| value.map_or("unknown".to_owned(), |value| format!("{value:.digits$}"));
        print_line("");
        print_line("node                 steps  validation  tokens/s  exchanges     sent  boundaries");
        for node in &summary.nodes {
            print_line(&format!(
                "{:>4}  {:<12} {:>7}  {:>10}  {:>8.0}  {:>9}  {:>7}  {:>8.2} %",
                node.node,
                tail(&node.peer),
                node.steps,
                number(node.validation_loss, 4),
                node.tokens_per_second,
                node.exchanges_completed,
                human_bytes(node.bytes_sent),
                100.0 * share_of(node.seconds_at_boundaries, node.seconds_in_training),
            ));
        }
        let floor = self.floor.map_or(String::new(), |floor| format!(" (floor {floor:.4})"));
        let loss = number(summary.mean_validation_loss(), 4);
        print_line(&format!("mean validation loss {loss}{floor} nats/{}", self.prediction));
        if let Some((mean, lowest)) = summary.accuracy() {
            let (mean, lowest) = (100.0 * mean, 100.0 * lowest);
            print_line(&format!("mean accuracy {mean:.2} % of held-out images (lowest {lowest:.2} %)"));
        }
        print_line(&format!(
            "consensus distance {} · {} bytes per parameter and exchange · {:.0} s",
            number(summary.consensus_distance, 4),
            number(summary.bytes_per_parameter_per_exchange, 3),
            summary.seconds
        ));
        if let Some(node) = summary.node_with_longest_gap() {
            print_line(&format!(
                "longest gap between two steps {:.0} ms (node {}, whose median step takes {:.1} ms)",
                1e3 * node.longest_gap_seconds,
                node.node,
                1e3 * node.median_step_seconds
            ));
        }
    }

    pub(super) fn show_sample(&self, number: usize, text: &str) {
        print_line(&format!("\nWhat node {number} writes:\n"));
        text.trim().lines().for_each(|line| print_line(&format!("  {line}")));
        print_line("");
    }

    /// Moves back over the last drawing and wipes it.
    fn clear(&self) {
        let lines = self.drawn_lines.replace(0);
        if lines > 0 {
            let _ = write!(std::io::stderr().lock(), "\x1b[{lines}A\x1b[0J");
        }
    }

    fn table(&self, children: &[Child]) -> String {
        let mut table =
            "\nnode          phase       step   loss  valid.  tokens/s  peers  exchanges  disagreement     sent\n"
                .to_owned();
        for child in children {
            let name = child.ready.as_ref().map_or(String::new(), |ready| tail(&ready.peer).to_owned());
            let row = match &child.report {
                Some(report) => row(report, child.has_ended && child.last.is_none()),
                None => if child.has_ended { "gone" } else { "starting" }.to_owned(),
            };
            table.push_str(&format!("{:>3} {name:<9} {row}\n", child.number));
        }
        table.push_str(&format!("{}\n", self.progress_line(children)));
        table
    }

    fn plain_line(&self, children: &[Child]) -> String {
        let reports: Vec<&NodeReport> = children.iter().filter_map(|child| child.report.as_ref()).collect();
        let steps: Vec<String> = reports.iter().map(|report| report.steps.to_string()).collect();
        let peers = reports.iter().map(|report| report.peers).min().unwrap_or(0);
        let exchanges: u64 = reports.iter().map(|report| report.exchanges_completed).sum();
        let sent: u64 = reports.iter().map(|report| report.bytes_sent).sum();
        let disagreement = mean(reports.iter().filter_map(|report| report.disagreement));
        format!(
            "{} · step {} · {}+ peers · {} exchanges · disagreement {} · {} sent",
            self.progress_line(children),
            steps.join(" "),
            peers,
            exchanges / 2,
            shown(disagreement),
            human_bytes(sent)
        )
    }

    fn progress_line(&self, children: &[Child]) -> String {
        let reports = || children.iter().filter_map(|child| child.report.as_ref());
        let loss = mean(reports().filter_map(|report| report.loss));
        let validation = mean(reports().filter_map(|report| report.validation_loss));
        // From zero, since an empty sum of floats is a negative zero.
        let speed = reports().fold(0.0, |sum, report| sum + report.tokens_per_second);
        let floor = self.floor.map_or(String::new(), |floor| format!(" (floor {floor:.3})"));
        let right = mean(reports().filter_map(|report| report.accuracy));
        let right = right.map_or(String::new(), |share| format!(" ({:.2} % right)", 100.0 * share));
        let each = if self.prediction == "image" { "image" } else { "token" };
        let seconds = self.begin.elapsed().as_secs();
        let (loss, validation) = (shown(loss), shown(validation));
        format!("{seconds:>4} s · loss {loss} · validation {validation}{right}{floor} · {speed:.0} {each}s/s")
    }
}

fn row(report: &NodeReport, is_gone: bool) -> String {
    format!(
        "{:<10} {:>5}  {:>5}  {:>6}  {:>8.0}  {:>5}  {:>9}  {:>12}  {:>7}",
        if is_gone { "gone" } else { &report.phase },
        report.steps,
        shown(report.loss),
        shown(report.validation_loss),
        report.tokens_per_second,
        report.peers,
        report.exchanges_completed,
        shown(report.disagreement),
        human_bytes(report.bytes_sent),
    )
}

fn shown(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.3}"))
}

/// The end of a peer id, which tells peers apart.
fn tail(peer: &str) -> &str {
    &peer[peer.len().saturating_sub(8)..]
}
