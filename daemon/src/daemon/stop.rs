//! What ends a daemon: a signal, the end of standard input, of its run or of its stay.

use std::time::Duration;

use tokio::sync::watch;

use crate::console::{note, settle_within};
use crate::drivers::TrainingView;
use crate::failure::ExitCode;
use crate::process::signal::{Signals, end_of_stdin};

/// How long who reads the last word may take to do so where the process is to end at once.
const AT_ONCE: Duration = Duration::from_millis(200);

/// Turns the first of these into one wish to stop: Ctrl-C, SIGTERM, a lost terminal, the end of standard input, of the run or of the
/// `stay`, which says why. The second Ctrl-C or SIGTERM ends the process at once, but not one that comes together with the first.
pub(super) async fn watch_for_stop(
    mut signals: Signals,
    stop: watch::Sender<bool>,
    until_stdin_closes: bool,
    mut training: watch::Receiver<TrainingView>,
    exits: bool,
    stay: impl Future<Output = String>,
) {
    let mut stdin_closed = end_of_stdin(until_stdin_closes);
    let over = move |view: &TrainingView| view.failure.is_some() || (exits && view.completed);
    let why = tokio::select! {
        () = signals.first() => Some("leaving the swarm (once more to end at once)".to_owned()),
        why = stay => Some(format!("leaving the swarm: {why}")),
        _ = stdin_closed.recv(), if until_stdin_closes => None,
        _ = training.wait_for(over) => None,
    };
    // Before a word of it: nobody may be reading.
    let _ = stop.send(true);
    why.iter().for_each(|why| note(why));
    signals.second(|| note("leaving the swarm already (once more to end at once)")).await;
    note("warning: ended without leaving; the last checkpoint stays");
    settle_within(AT_ONCE);
    std::process::exit(ExitCode::Interrupted as i32);
}

/// Turns the first Ctrl-C, SIGTERM or end of standard input into the wish to stop, of a process that takes part in no swarm. The second
/// Ctrl-C or SIGTERM ends it at once.
pub(crate) async fn watch_for_end(signals: Signals, stop: watch::Sender<bool>, until_stdin_closes: bool) {
    let mut signals = signals.or_end_of_stdin(until_stdin_closes);
    signals.first().await;
    let _ = stop.send(true);
    signals.second(|| ()).await;
    std::process::exit(ExitCode::Interrupted as i32);
}
