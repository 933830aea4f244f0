//! What a daemon prints: lines for people (the ticket on stdout, all else on stderr), or one JSON object a line.

mod fetching;
mod finished;
mod next;
mod notice;
pub(crate) mod output;
mod reachability;

use std::io::Write;
use std::time::Duration;

use murmur_network::{Multiaddr, Reachability, Standing};
use murmur_protocol::Notice;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};

use crate::daemon::Ready;
use crate::report::{CopyReport, NodeReport};
pub use finished::FinishedRun;
pub(crate) use next::{next_commands, quoted};
use notice::{Words, describe};
pub use reachability::ReachabilityReport;

/// How often people are told how it goes.
const LINE_PERIOD: Duration = Duration::from_secs(10);

/// How often machines are told.
const JSON_PERIOD: Duration = Duration::from_millis(500);

/// How often people are told of a copy on its way in.
const COPY_PERIOD: Duration = Duration::from_secs(1);

/// Who reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Console {
    /// People.
    #[default]
    Text,
    /// Machines: one JSON object a line.
    Json,
}

impl Console {
    /// How others join, and what runs here.
    pub fn show_ready(self, ready: &Ready, resumed_at: Option<f64>) {
        if self == Console::Json {
            print_line(&json!({ "ready": ready }).to_string());
            return;
        }
        note(&format!("peer        {}", ready.peer));
        note(&format!("run         {} · {} parameters · {}", ready.run, ready.parameters, ready.device));
        note(&format!("data        {}", ready.data_directory.display()));
        ready.addresses.iter().for_each(|address| note(&format!("listening   {address}")));
        if let Some(address) = &ready.status_address {
            note(&format!("status      murmur status --address {address}"));
        }
        if let Some(progress) = resumed_at {
            note(&format!("resumed     at step {progress:.0}"));
        }
        note("Others join with:");
        print_line(&format!("murmur join {}", ready.ticket));
    }

    /// Tells how it goes until it is aborted.
    pub async fn follow(self, reports: watch::Receiver<NodeReport>, mut notices: broadcast::Receiver<Notice>) {
        let period = if self == Console::Json { JSON_PERIOD } else { LINE_PERIOD };
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
        let mut copy_ticks = tokio::time::interval(COPY_PERIOD);
        loop {
            tokio::select! {
                _ = ticks.tick() => self.show_report(&reports.borrow()),
                _ = copy_ticks.tick(), if self == Console::Text => {
                    if let Some(copy) = reports.borrow().copying.as_ref().filter(|copy| copy.share > 0.0) {
                        note(&copy_line(copy));
                    }
                }
                notice = notices.recv() => match notice {
                    Ok(notice) => self.show_notice(&notice),
                    Err(RecvError::Lagged(missed)) => tracing::debug!("{missed} notices were not shown"),
                    Err(RecvError::Closed) => return,
                },
            }
        }
    }

    /// Tells when it changes whether others reach this node, and, where a ticket with better addresses can be made, that
    /// ticket.
    pub async fn follow_reachability(
        self,
        mut view: watch::Receiver<Reachability>,
        ticket: impl Fn(&[Multiaddr]) -> String,
    ) {
        let mut told = Reachability::default();
        while view.changed().await.is_ok() {
            let now = view.borrow_and_update().clone();
            let (addresses, known) = (now.public_addresses(), told.public_addresses());
            if now.standing == told.standing && addresses == known {
                continue;
            }
            self.show_words(&reachability::describe(&now));
            let is_better = matches!(now.standing, Standing::Reachable | Standing::HolePunching | Standing::Relayed);
            if is_better && addresses != known && self == Console::Text {
                note(&format!("            others join with: murmur join {}", ticket(&addresses)));
            }
            told = now;
        }
    }

    fn show_words(self, Words { text, hint }: &Words) {
        match (self, hint) {
            (Console::Json, hint) => print_line(&json!({ "notice": text, "hint": hint }).to_string()),
            (Console::Text, Some(hint)) => note(&format!("warning: {text}\nhint: {hint}")),
            (Console::Text, None) => note(&format!("            {text}")),
        }
    }

    /// The state at the end.
    pub fn show_last(self, report: &NodeReport) {
        match self {
            Console::Text => note(&format!("left        {}", summary_line(report))),
            Console::Json => print_line(&json!({ "finished": report }).to_string()),
        }
    }

    fn show_report(self, report: &NodeReport) {
        match self {
            Console::Text => note(&format!("{:<11} {}", report.phase, summary_line(report))),
            Console::Json => print_line(&json!({ "status": report }).to_string()),
        }
    }

    fn show_notice(self, notice: &Notice) {
        let words = describe(notice);
        // The line every ten seconds counts exchanges; each of them would drown the rest.
        let is_minor = matches!(notice, Notice::ExchangeCompleted { .. } | Notice::ExchangeFailed { .. });
        if is_minor && self == Console::Text {
            tracing::debug!("{}", words.text);
        } else {
            self.show_words(&words);
        }
    }
}

/// One line that proves health: steps go up, exchanges go up, the disagreement does not.
pub(crate) fn summary_line(report: &NodeReport) -> String {
    let number = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.3}"));
    let accuracy = report.accuracy.map_or(String::new(), |share| format!(" ({:.2} % right)", 100.0 * share));
    format!(
        "step {} · loss {} · validation {}{accuracy} · {:.0} {}/s · {} peers · {} exchanges · disagreement {} · {} sent",
        report.steps,
        number(report.loss),
        number(report.validation_loss),
        report.tokens_per_second,
        if report.accuracy.is_some() { "images" } else { "tokens" },
        report.peers,
        report.exchanges_completed,
        number(report.disagreement),
        human_bytes(report.bytes_sent),
    )
}

fn copy_line(CopyReport { share, donors }: &CopyReport) -> String {
    let count = donors.len();
    let members = if count == 1 { "member" } else { "members" };
    format!("copying     {} {:.0} % of the model, from {count} {members}", fetching::bar(*share), 100.0 * share)
}

/// Bytes for people.
pub(crate) fn human_bytes(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

/// A line on standard output; where that cannot be written, see [`output`].
pub(crate) fn print_line(line: &str) {
    let _ = writeln!(output::StandardOutput, "{line}");
}

/// The same for standard error: a line for people.
pub(crate) fn note(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
