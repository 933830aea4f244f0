//! How far many seeds have come: one line on stderr that redraws itself on a terminal, a line now and then elsewhere.

use std::time::{Duration, Instant};

use crate::console::{note, screen};

/// Without a terminal to redraw, a line this often.
const PLAIN_PERIOD: Duration = Duration::from_secs(15);

/// Nothing is told of what takes no longer.
const SILENT: Duration = Duration::from_secs(1);

pub(in crate::commands) struct Progress {
    total: u64,
    /// What is counted.
    things: &'static str,
    begin: Instant,
    redraws: bool,
    is_drawn: bool,
    last_plain: Instant,
}

impl Progress {
    pub(in crate::commands) fn new(total: u64, things: &'static str) -> Progress {
        let begin = Instant::now();
        Progress { total, things, begin, redraws: screen::is_live(), is_drawn: false, last_plain: begin }
    }

    pub(in crate::commands) fn show(&mut self, finished: u64, further: &str) {
        let elapsed = self.begin.elapsed();
        if elapsed < SILENT || finished == self.total {
            return;
        }
        let left = match finished {
            0 => String::new(),
            _ => format!(
                " · about {:.0} s left",
                elapsed.as_secs_f64() / finished as f64 * (self.total - finished) as f64
            ),
        };
        let seconds = elapsed.as_secs();
        let line = format!("{finished} of {} {}{further} · {seconds} s{left}", self.total, self.things);
        if self.redraws {
            self.is_drawn = true;
            screen::draw(vec![line]);
        } else if self.last_plain.elapsed() >= PLAIN_PERIOD {
            self.last_plain = Instant::now();
            note(&line);
        }
    }

    /// Makes room for other lines.
    pub(in crate::commands) fn clear(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            screen::draw(Vec::new());
        }
    }
}
