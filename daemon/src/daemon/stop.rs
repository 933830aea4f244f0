//! What ends a daemon: a signal, the end of standard input, of its run or of its stay.

use std::io::Read;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use crate::console::{note, settle_within};
use crate::drivers::TrainingView;
use crate::failure::ExitCode;
use crate::process::signal::Signals;

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
    let (why, is_signal) = tokio::select! {
        () = signals.first() => (Some("leaving the swarm (once more to end at once)".to_owned()), true),
        why = stay => (Some(format!("leaving the swarm: {why}")), false),
        _ = stdin_closed.recv(), if until_stdin_closes => (None, false),
        _ = training.wait_for(over) => (None, false),
    };
    // Before a word of it: nobody may be reading.
    let _ = stop.send(true);
    why.iter().for_each(|why| note(why));
    if !is_signal {
        // A machine that shuts down after its notice says so to every process.
        signals.first().await;
        note("leaving the swarm already (once more to end at once)");
    }
    signals.second().await;
    note("warning: ended without leaving; the last checkpoint stays");
    settle_within(AT_ONCE);
    std::process::exit(ExitCode::Interrupted as i32);
}

/// Turns the first Ctrl-C, SIGTERM or end of standard input into the wish to stop, of a process that takes part in no swarm. The second
/// Ctrl-C or SIGTERM ends it at once.
pub(crate) async fn watch_for_end(mut signals: Signals, stop: watch::Sender<bool>, until_stdin_closes: bool) {
    let mut stdin_closed = end_of_stdin(until_stdin_closes);
    let is_signal = tokio::select! {
        () = signals.first() => true,
        _ = stdin_closed.recv(), if until_stdin_closes => false,
    };
    let _ = stop.send(true);
    if !is_signal {
        signals.first().await;
    }
    signals.second().await;
    std::process::exit(ExitCode::Interrupted as i32);
}

/// Hears of the end of standard input, where it is looked at.
fn end_of_stdin(is_watched: bool) -> mpsc::Receiver<()> {
    let (closed, stdin_closed) = mpsc::channel(1);
    if is_watched {
        // A thread of its own: a blocking read cannot be cancelled, and must not hold up the runtime's end.
        std::thread::spawn(move || {
            let mut stdin = std::io::stdin();
            while stdin.read(&mut [0; 256]).is_ok_and(|length| length > 0) {}
            let _ = closed.blocking_send(());
        });
    }
    stdin_closed
}
