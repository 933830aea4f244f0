//! The wish to stop from outside: Ctrl-C, or SIGTERM where there is such a thing.
//!
//! The first one asks for an orderly end, a later one for an end at once. One wish may come as two signals: GNU
//! `timeout` signals its child and then the group that both are in, and so may a supervisor. Two within
//! [`ONE_WISH`] therefore count as one.

use std::time::Duration;

use tokio::time::Instant;

/// Signals that come this soon after the first are the same wish. Nobody who wants an end at once waits so short a time
/// before the second Ctrl-C, or minds a third.
const ONE_WISH: Duration = Duration::from_secs(1);

/// Hears signals from its construction on.
pub(crate) struct Signals {
    arriving: Arriving,
    first: Option<Instant>,
}

impl Signals {
    /// Must be made in a runtime. From now on these signals do not end the process by themselves.
    pub(crate) fn new() -> Signals {
        Signals { arriving: Arriving::new(), first: None }
    }

    /// Waits for the wish to stop.
    pub(crate) async fn first(&mut self) {
        self.arriving.next().await;
        self.first = Some(Instant::now());
    }

    /// Waits for a second wish: a signal that does not belong to the first. Where the first wish was none of ours (the
    /// end of standard input, say), any signal will do.
    pub(crate) async fn second(&mut self) {
        loop {
            self.arriving.next().await;
            if self.first.is_none_or(|first| first.elapsed() >= ONE_WISH) {
                return;
            }
        }
    }
}

#[cfg(unix)]
struct Arriving {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Arriving {
    fn new() -> Arriving {
        use tokio::signal::unix::{SignalKind, signal};
        let handled = "the runtime handles signals";
        Arriving {
            interrupt: signal(SignalKind::interrupt()).expect(handled),
            terminate: signal(SignalKind::terminate()).expect(handled),
        }
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Arriving;

#[cfg(not(unix))]
impl Arriving {
    fn new() -> Arriving {
        Arriving
    }

    async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::pin::pin;
    use std::task::Poll;

    use super::*;

    /// A real signal to this process, which handles it.
    fn send(name: &str) {
        let id = std::process::id().to_string();
        let sent = std::process::Command::new("kill").args([name, &id]).status().expect("kill is there");
        assert!(sent.success());
    }

    /// One test, because all tests of a process get its signals.
    #[tokio::test]
    async fn two_signals_within_a_second_are_one_wish_and_a_later_one_is_a_second() {
        let mut signals = Signals::new();
        let mut observer = Arriving::new();
        send("-TERM");
        signals.first().await;
        observer.next().await;
        {
            let mut second = pin!(signals.second());
            for name in ["-TERM", "-INT"] {
                send(name);
                observer.next().await;
                let is_waiting =
                    std::future::poll_fn(|context| Poll::Ready(second.as_mut().poll(context).is_pending()));
                assert!(is_waiting.await, "{name} belongs to the first one");
            }
        }
        // A second later.
        signals.first = Instant::now().checked_sub(ONE_WISH);
        send("-INT");
        signals.second().await;
        // Where something else was the first wish, a signal is the second at once.
        let mut signals = Signals::new();
        send("-TERM");
        signals.second().await;
    }
}
