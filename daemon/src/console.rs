//! What a daemon prints: lines for people (the ticket on stdout, all else on stderr), or one JSON object a line.

mod aside;
mod block;
mod conditions;
mod fetching;
pub(crate) mod figures;
mod finished;
mod fitted;
mod hearing;
mod names;
mod next;
mod notice;
mod once;
pub(crate) mod output;
mod reachability;
pub(crate) mod screen;
mod terminal;
mod words;

use std::time::Duration;

use murmur_network::{Multiaddr, Reachability, ReachabilityState};
use murmur_protocol::Notice;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};

use crate::daemon::Ready;
use crate::engine::Noticed;
use crate::observe::report::{CopyReport, NodeReport};
pub use aside::settle;
pub(crate) use aside::{settle_within, wait_for_no_reader};
use figures::{Losses, count};
pub(crate) use figures::{counted, examples, human_bytes};
pub use finished::FinishedRun;
pub(crate) use hearing::{Heard, Hearing};
pub(crate) use names::{SHORT_ID_LETTERS, labelled, short};
pub(crate) use next::{Given, next_commands, quoted, start_command};
pub(crate) use once::ToldOnce;
pub use reachability::ReachabilityReport;
pub use screen::{LogLine, has_colours};
pub(crate) use screen::{note, print_fitted, print_line};
pub(crate) use terminal::{ModelText, in_ascii, wants_ascii, with_ascii};
pub use words::Words;

/// How often people are told how it goes.
const LINE_PERIOD: Duration = Duration::from_secs(10);

/// How often machines are told.
const JSON_PERIOD: Duration = Duration::from_millis(500);

/// How often the block on a terminal is drawn.
const BLOCK_PERIOD: Duration = Duration::from_millis(250);

/// Of a bar in a line, without its ends.
const BAR_COLUMNS: usize = 24;

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
    pub fn show_ready(self, ready: &Ready, resumed_at: Option<f64>, founds: bool) {
        if self == Console::Json {
            print_line(&json!({ "ready": ready }).to_string());
            return;
        }
        note(&format!("peer        {}", labelled(&ready.peer, ready.name.as_deref())));
        let parameters = count(ready.parameters as u64);
        note(&format!("run         {} · {} · {parameters} parameters · {}", ready.run_name, ready.run, ready.device));
        note(&format!("data        {}", ready.data_directory.display()));
        // The peer id is above, and what comes after it is for programs.
        let plain = |address: &String| address.split("/p2p/").next().unwrap_or_default().to_owned();
        ready.addresses.iter().map(plain).for_each(|address| note(&format!("listening   {address}")));
        if let Some(address) = &ready.status_address {
            note(&format!("status      murmur status --address {address}"));
            note(&format!("dashboard   http://{address}/"));
        }
        if founds {
            note("begun       a new swarm, of which this node is the first");
        }
        if let Some(progress) = resumed_at {
            note(&format!("resumed     at swarm step {}", count(progress.max(0.0) as u64)));
        }
        note(match ready.closed {
            true => "Closed: only the secret in this ticket lets anybody in. Others join with:",
            false => "Others join with:",
        });
        print_line(&format!("murmur join {}", ready.ticket));
    }

    /// Tells how it goes until it is aborted: on a terminal in a block that is drawn anew, elsewhere line by line.
    pub async fn follow(self, reports: watch::Receiver<NodeReport>, mut notices: broadcast::Receiver<Noticed>) {
        let is_live = self == Console::Text && screen::is_live();
        let period = if self == Console::Json { JSON_PERIOD } else { LINE_PERIOD };
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
        let mut copy_ticks = tokio::time::interval(COPY_PERIOD);
        let mut block_ticks = tokio::time::interval(BLOCK_PERIOD);
        let mut teller = Teller::new(self);
        let mut losses = Losses::default();
        let (mut is_over, mut copy_told) = (false, String::new());
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    let was_over = std::mem::replace(&mut is_over, reports.borrow().phase == "completed");
                    // Of a node that only answers others, one line says it all.
                    if !is_live && (self == Console::Json || !(was_over && is_over)) {
                        let report = reports.borrow().clone();
                        self.show_report(&report);
                    }
                    teller.end_quiet();
                }
                _ = block_ticks.tick(), if is_live => {
                    let report = reports.borrow().clone();
                    losses.observe(report.steps, report.loss);
                    screen::draw(block::daemon_block(&report, &losses, screen::Size::now()));
                }
                _ = copy_ticks.tick(), if self == Console::Text && !is_live => {
                    let copying = reports.borrow().copying.clone();
                    // One that rests, in quiet hours for example, says the same for long.
                    let line = copying.filter(|copy| copy.share > 0.0).map(|copy| copy_line(&copy));
                    if let Some(line) = line.filter(|line| *line != copy_told) {
                        note(&line);
                        copy_told = line;
                    }
                }
                notice = notices.recv() => match notice {
                    Ok(Noticed { notice, .. }) => {
                        teller.hearing.names.learn(&reports.borrow());
                        teller.tell(&notice);
                    }
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
            if now.state == told.state && addresses == known {
                continue;
            }
            self.show_words(&reachability::describe(&now));
            let is_better = matches!(
                now.state,
                ReachabilityState::Reachable | ReachabilityState::HolePunching | ReachabilityState::Relayed
            );
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
        // It is not what is lost on somebody who reads slowly.
        settle();
        match self {
            Console::Text => {
                screen::end();
                note(&format!("left        {}", summary_line(report)));
            }
            Console::Json => print_line(&json!({ "finished": report }).to_string()),
        }
    }

    fn show_report(self, report: &NodeReport) {
        match self {
            Console::Text => note(&format!("{:<11} {}", report.phase, summary_line(report))),
            Console::Json => print_line(&json!({ "status": report }).to_string()),
        }
    }
}

/// Tells what the core notices, each condition once.
struct Teller {
    console: Console,
    hearing: Hearing,
}

impl Teller {
    fn new(console: Console) -> Teller {
        Teller { console, hearing: Hearing::new() }
    }

    fn tell(&mut self, notice: &Notice) {
        let Heard { ended, words, is_repeated } = self.hearing.hear(notice);
        ended.iter().for_each(|words| self.console.show_words(words));
        // The line every ten seconds counts exchanges; each of them would drown the rest.
        let is_minor = matches!(notice, Notice::ExchangeCompleted { .. } | Notice::ExchangeFailed { .. });
        if is_repeated || (is_minor && self.console == Console::Text) {
            tracing::debug!("{}", words.text);
        } else {
            self.console.show_words(&words);
        }
    }

    /// Says which conditions have not come again for long.
    fn end_quiet(&mut self) {
        self.hearing.quiet().iter().for_each(|words| self.console.show_words(words));
    }
}

/// One line that proves health: steps go up, exchanges go up, the disagreement does not.
pub(crate) fn summary_line(report: &NodeReport) -> String {
    let number = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.3}"));
    let accuracy = match (&report.scores, report.accuracy) {
        (Some(scores), _) => format!(" ({scores})"),
        (None, Some(share)) => format!(" ({:.2} % right)", 100.0 * share),
        (None, None) => String::new(),
    };
    let averaged = match &report.synchronous {
        Some(synchronous) => synchronous.summary(),
        None => format!(
            "{} · disagreement {}",
            figures::counted(report.exchanges_completed, "exchange"),
            number(report.disagreement)
        ),
    };
    format!(
        "{} · loss {} · validation {}{accuracy} · {} · {} · {averaged} · {} sent",
        figures::steps(report.steps, report.progress),
        number(report.loss),
        number(report.validation_loss),
        speed(report),
        figures::counted(report.peers as u64, "peer"),
        human_bytes(report.bytes_sent),
    )
}

/// Lately while it trains, else of all the time in which it did.
pub(crate) fn speed(report: &NodeReport) -> String {
    let examples = figures::examples(&report.prediction);
    let of_all = if report.is_over() && report.speed() > Some(0.0) { " on average" } else { "" };
    format!("{} {examples}/s{of_all}", known(report.speed()))
}

/// A speed without its unit.
pub(crate) fn known(speed: Option<f64>) -> String {
    speed.map_or("–".to_owned(), |speed| count(speed as u64))
}

fn copy_line(CopyReport { share, bytes, donors }: &CopyReport) -> String {
    let members = figures::counted(donors.len() as u64, "member");
    let come = human_bytes((share * *bytes as f64) as u64);
    let bar = figures::bar(*share, BAR_COLUMNS);
    format!("copying     {bar} {:.0} % of the model, {come} of {}, from {members}", 100.0 * share, human_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::StepTimes;

    #[test]
    fn one_peer_is_one_and_a_loss_is_told_with_the_word_of_what_is_predicted() {
        let report =
            NodeReport { peers: 1, exchanges_completed: 1, prediction: "image".to_owned(), ..NodeReport::default() };
        let line = summary_line(&report);
        assert!(line.contains(" images/s · 1 peer · 1 exchange · "), "{line}");
        let line = summary_line(&NodeReport { peers: 2, prediction: "byte".to_owned(), ..NodeReport::default() });
        assert!(line.contains(" tokens/s · 2 peers · 0 exchanges · "), "{line}");
    }

    #[test]
    fn a_node_that_has_trained_tells_how_fast_it_was() {
        let times = StepTimes { tokens_trained: 1_800_000, seconds_in_training: 60.0, ..StepTimes::default() };
        let report = |phase: &str, tokens_per_second| NodeReport {
            phase: phase.to_owned(),
            times,
            tokens_per_second,
            ..NodeReport::default()
        };
        assert_eq!(speed(&report("training", 25_000.0)), "25,000 tokens/s");
        assert_eq!(speed(&report("training", 0.0)), "– tokens/s", "no step is measured yet");
        let waits = NodeReport { step_seconds: 0.5, ..report("training", 0.0) };
        assert_eq!(speed(&waits), "0 tokens/s", "it waits for others");
        assert_eq!(speed(&report("completed", 0.0)), "30,000 tokens/s on average");
        assert_eq!(speed(&NodeReport { phase: "left".to_owned(), ..NodeReport::default() }), "0 tokens/s");
    }
}
