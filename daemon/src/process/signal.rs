//! The wish to stop from outside: Ctrl-C, or SIGTERM and SIGHUP where there is such a thing.
//!
//! SIGHUP says that the terminal is gone: a window was closed, or a connection of ssh was lost. It asks for an orderly end, and
//! never for one at once. Where it is ignored from the beginning (`nohup`), or the daemon is in the background, it means nothing.
//!
//! The first one asks for an orderly end, a later one for an end at once. One wish may come as two signals: GNU
//! `timeout` signals its child and then the group that both are in, and so may a supervisor. Two within
//! [`ONE_WISH`] therefore count as one.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::failure::ExitCode;

/// Signals that come this soon after the first are the same wish. Nobody who wants an end at once waits so short a time
/// before the second Ctrl-C, or minds a third.
const ONE_WISH: Duration = Duration::from_secs(1);

/// Whether somebody hears signals.
static HEARS: AtomicBool = AtomicBool::new(false);

/// Until somebody hears them, Ctrl-C and SIGTERM end this process at once, with a word and the exit code of an interruption: nothing
/// has begun that would have to end in order. Where they are ignored they stay so.
#[cfg(unix)]
pub(crate) fn end_before_the_beginning() {
    extern "C" fn end(_: libc::c_int) {
        // Chained behind the handlers of whoever hears signals, it has nothing to do.
        if !HEARS.load(Ordering::Relaxed) {
            end_with(b"\nended before it began\n", ExitCode::Interrupted);
        }
    }
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: all zeros is a valid `sigaction`; without a new action the call only writes the one that there is.
        let is_usual = unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut before) == 0 && before.sa_sigaction == libc::SIG_DFL
        };
        if is_usual {
            handle(signal, end, 0);
        }
    }
}

/// Ends this process at once, from a handler of a signal.
#[cfg(unix)]
fn end_with(word: &[u8], code: ExitCode) -> ! {
    // SAFETY: both may be called in a signal handler.
    unsafe {
        libc::write(libc::STDERR_FILENO, word.as_ptr().cast(), word.len());
        libc::_exit(code as i32)
    }
}

/// Has a signal handled. The handler calls nothing but [`end_with`].
#[cfg(unix)]
fn handle(signal: libc::c_int, handler: extern "C" fn(libc::c_int), flags: libc::c_int) {
    // SAFETY: all zeros is a valid `sigaction`, and the handler calls nothing that a handler may not call.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (action.sa_sigaction, action.sa_flags) = (handler as libc::sighandler_t, flags);
        libc::sigaction(signal, &action, std::ptr::null_mut());
    }
}

#[cfg(not(unix))]
pub(crate) fn end_before_the_beginning() {}

/// Where a file that is mapped into memory was shortened, its end cannot be read any more, and the system ends the process (SIGBUS):
/// with a word, and the code of a failure, after which a service manager starts it again.
#[cfg(unix)]
pub(crate) fn tell_of_shortened_files() {
    extern "C" fn end(_: libc::c_int) {
        const WORD: &[u8] = b"error: a file was shortened while it was read, a data file most likely\n\
            hint: start again; what is trained on may grow, and otherwise a new file is renamed over it\n";
        end_with(WORD, ExitCode::Failure);
    }
    handle(libc::SIGBUS, end, libc::SA_ONSTACK);
}

#[cfg(not(unix))]
pub(crate) fn tell_of_shortened_files() {}

/// Hears signals on a thread of its own, from when this returns on, and ends the process as interrupted once they were heard.
///
/// # Errors
/// When the system has no thread or nothing to wait with.
pub(crate) fn hear_aside<F: Future<Output = ()>>(
    hear: impl FnOnce(Signals) -> F + Send + 'static,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (listens, listening) = std::sync::mpsc::channel();
    // Ends with the process: nothing waits for it.
    std::thread::Builder::new().name("interruption".to_owned()).spawn(move || {
        runtime.block_on(async {
            let signals = Signals::new();
            let _ = listens.send(());
            hear(signals).await;
        });
        std::process::exit(ExitCode::Interrupted as i32);
    })?;
    // From now on a signal ends nothing by itself.
    let _ = listening.recv();
    Ok(())
}

/// Hears signals from its construction on.
pub(crate) struct Signals {
    arriving: Arriving,
    first: Option<Instant>,
    /// Where its end is a wish to stop as well.
    stdin: Option<mpsc::Receiver<()>>,
}

impl Signals {
    /// Must be made in a runtime. From now on these signals do not end the process by themselves.
    pub(crate) fn new() -> Signals {
        let signals = Signals { arriving: Arriving::new(), first: None, stdin: None };
        HEARS.store(true, Ordering::Relaxed);
        signals
    }

    /// The same, and where it is looked at the end of standard input is a first wish as well.
    pub(crate) fn or_end_of_stdin(self, is_watched: bool) -> Signals {
        Signals { stdin: is_watched.then(|| end_of_stdin(true)), ..self }
    }

    /// Waits for the wish to stop.
    pub(crate) async fn first(&mut self) {
        let stdin_closed = async {
            match &mut self.stdin {
                Some(stdin) => drop(stdin.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.arriving.next() => self.first = Some(Instant::now()),
            () = stdin_closed => {}
        }
    }

    /// Waits for a second wish: a signal that does not belong to the first. Where the first wish was no signal (the end of standard
    /// input, say), that is the second signal: a machine that shuts down tells those as well that leave already. The first signal
    /// is answered by `already` then.
    pub(crate) async fn second(&mut self, already: impl Fn()) {
        loop {
            let is_hangup = self.arriving.next().await == Arrived::Hangup;
            match self.first {
                _ if is_hangup => {}
                None => {
                    self.first = Some(Instant::now());
                    already();
                }
                Some(first) if first.elapsed() >= ONE_WISH => return,
                Some(_) => {}
            }
        }
    }
}

/// Hears of the end of standard input, where it is looked at.
pub(crate) fn end_of_stdin(is_watched: bool) -> mpsc::Receiver<()> {
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

/// What has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrived {
    /// Ctrl-C or SIGTERM.
    Wish,
    /// The terminal is gone.
    #[cfg_attr(not(unix), expect(dead_code, reason = "only Unix has it"))]
    Hangup,
}

#[cfg(unix)]
struct Arriving {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    /// None where it is ignored: to listen for it would end that.
    hangup: Option<tokio::signal::unix::Signal>,
}

#[cfg(unix)]
impl Arriving {
    fn new() -> Arriving {
        use tokio::signal::unix::{SignalKind, signal};
        let handled = "the runtime handles signals";
        Arriving {
            interrupt: signal(SignalKind::interrupt()).expect(handled),
            terminate: signal(SignalKind::terminate()).expect(handled),
            hangup: (!ignores_hangups()).then(|| signal(SignalKind::hangup()).expect(handled)),
        }
    }

    async fn next(&mut self) -> Arrived {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Arrived::Wish,
            _ = self.terminate.recv() => Arrived::Wish,
            _ = hangup => Arrived::Hangup,
        }
    }
}

/// Whether this process has been told to ignore SIGHUP, as `nohup` does.
#[cfg(unix)]
fn ignores_hangups() -> bool {
    // SAFETY: all zeros is a valid `sigaction`; without a new action the call only writes the one that there is.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGHUP, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

/// From now on SIGHUP means nothing to this process.
#[cfg(unix)]
pub(crate) fn ignore_hangups() {
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
}

#[cfg(not(unix))]
pub(crate) fn ignore_hangups() {}

#[cfg(not(unix))]
struct Arriving;

#[cfg(not(unix))]
impl Arriving {
    fn new() -> Arriving {
        Arriving
    }

    async fn next(&mut self) -> Arrived {
        let _ = tokio::signal::ctrl_c().await;
        Arrived::Wish
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
        // Where the tests themselves run under `nohup`.
        // SAFETY: no handler is installed.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
        let mut signals = Signals::new();
        let mut observer = Arriving::new();
        send("-TERM");
        signals.first().await;
        let _ = observer.next().await;
        // However long a busy machine takes to send the next two: they count as within the second.
        signals.first = Instant::now().checked_add(Duration::from_mins(1));
        {
            let mut second = pin!(signals.second(|| ()));
            for name in ["-TERM", "-INT"] {
                send(name);
                let _ = observer.next().await;
                let is_waiting =
                    std::future::poll_fn(|context| Poll::Ready(second.as_mut().poll(context).is_pending()));
                assert!(is_waiting.await, "{name} belongs to the first one");
            }
        }
        // A second later.
        signals.first = Instant::now().checked_sub(ONE_WISH);
        {
            let mut second = pin!(signals.second(|| ()));
            send("-HUP");
            assert_eq!(observer.next().await, Arrived::Hangup);
            let is_waiting = std::future::poll_fn(|context| Poll::Ready(second.as_mut().poll(context).is_pending()));
            assert!(is_waiting.await, "a lost terminal asks for no end at once");
            send("-INT");
            second.await;
        }
        // Where something else was the first wish, one signal is no second.
        let mut signals = Signals::new();
        let answered = std::cell::Cell::new(0);
        let mut second = pin!(signals.second(|| answered.set(answered.get() + 1)));
        send("-TERM");
        let is_waiting = tokio::time::timeout(ONE_WISH, second.as_mut()).await.is_err();
        assert!(is_waiting && answered.get() == 1, "it leaves already");
        send("-TERM");
        second.await;
        // A lost terminal is a first wish, where it is not ignored.
        let mut signals = Signals::new();
        send("-HUP");
        signals.first().await;
        ignore_hangups();
        let mut signals = Signals::new();
        assert!(signals.arriving.hangup.is_none());
        send("-HUP");
        send("-TERM");
        assert_eq!(signals.arriving.next().await, Arrived::Wish);
    }
}
