//! The terminal while a view is on it: taken over as a whole, and given back however the view ends.

use std::io::{Stdout, Write, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::queue;
use ratatui::crossterm::terminal::{BeginSynchronizedUpdate, EndSynchronizedUpdate};
use ratatui::layout::Rect;

use crate::process::signal::Signals;

/// A view that has not ended so long after it was asked to is stuck, and its process ends.
const STUCK_AFTER: Duration = Duration::from_secs(2);

/// The screen of a view. Dropping it gives the terminal back; so does a panic, and a signal to end.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    is_to_end: Arc<AtomicBool>,
    is_open: bool,
}

impl Screen {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// Where it is none.
    pub(super) fn open() -> std::io::Result<Screen> {
        let is_to_end = Arc::new(AtomicBool::new(false));
        let wish = is_to_end.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (ready, is_ready) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            runtime.block_on(async {
                let mut signals = Signals::new();
                let _ = ready.send(());
                signals.first().await;
                wish.store(true, Ordering::Relaxed);
                tokio::time::sleep(STUCK_AFTER).await;
                std::process::exit(0);
            });
        });
        // From here on a signal ends the view in order.
        let _ = is_ready.recv();
        // Its hook gives the terminal back before a panic is reported.
        let terminal = ratatui::try_init()?;
        Ok(Screen { terminal, is_to_end, is_open: true })
    }

    /// Whether a signal has asked for the end.
    pub(super) fn is_to_end(&self) -> bool {
        self.is_to_end.load(Ordering::Relaxed)
    }

    /// Waits so long for a key, or another size of the terminal. Where the terminal is gone, the process ends: `crossterm` would
    /// read from it for ever.
    pub(super) fn input(&self, wait: Duration) -> std::io::Result<Option<Event>> {
        if !event::poll(Duration::ZERO)? {
            end_if_gone(wait);
        }
        if event::poll(Duration::ZERO)? { event::read().map(Some) } else { Ok(None) }
    }

    /// Draws; only what has changed is sent.
    pub(super) fn draw(&mut self, render: impl FnOnce(Rect, &mut Buffer)) -> std::io::Result<()> {
        let drawn = self.try_draw(render);
        if drawn.is_err() {
            end_if_gone(Duration::ZERO);
        }
        drawn
    }

    fn try_draw(&mut self, render: impl FnOnce(Rect, &mut Buffer)) -> std::io::Result<()> {
        queue!(stdout(), BeginSynchronizedUpdate)?;
        self.terminal.draw(|frame| render(frame.area(), frame.buffer_mut()))?;
        queue!(stdout(), EndSynchronizedUpdate)?;
        stdout().flush()
    }

    /// Forgets what is on the terminal, which has become another size.
    pub(super) fn clear(&mut self) -> std::io::Result<()> {
        self.terminal.autoresize()?;
        self.terminal.clear()
    }

    /// Gives the terminal to the shell until that lets this process go on.
    pub(super) fn suspend(&mut self) -> std::io::Result<()> {
        #[cfg(unix)]
        {
            use rustix::process::{Signal, getpid, kill_process};
            ratatui::try_restore()?;
            kill_process(getpid(), Signal::TSTP)?;
            self.terminal = ratatui::try_init()?;
            self.terminal.clear()?;
        }
        Ok(())
    }

    /// Gives the terminal back.
    pub(super) fn close(mut self) -> std::io::Result<()> {
        self.is_open = false;
        end_if_gone(Duration::ZERO);
        ratatui::try_restore()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.is_open {
            let _ = ratatui::try_restore();
        }
    }
}

/// Waits so long until something is typed, and ends the process where the terminal is gone: what would be said of that has no reader,
/// and nothing is left to be done.
fn end_if_gone(wait: Duration) {
    #[cfg(unix)]
    {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let terminal = stdout();
        let mut waited_for = [PollFd::new(&terminal, PollFlags::IN)];
        // Another size interrupts it, which is looked at next.
        let _ = poll(&mut waited_for, Timespec::try_from(wait).ok().as_ref());
        if waited_for[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            std::process::exit(0);
        }
    }
    #[cfg(not(unix))]
    std::thread::sleep(wait);
}
