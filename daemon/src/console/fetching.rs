//! How far the first shards of shared data have come: one line on stderr that redraws itself on a terminal, a line now
//! and then elsewhere, until there is enough to begin training.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::{Console, human_bytes, note};
use crate::drivers::DataView;

/// The line is redrawn this often at most.
const REDRAW_PERIOD: Duration = Duration::from_millis(250);

/// Without a terminal to redraw, a line this often.
const PLAIN_PERIOD: Duration = Duration::from_secs(5);

/// Nothing is told of what takes no longer.
const SILENT: Duration = Duration::from_millis(500);

/// Width of the bar, in characters.
const BAR_WIDTH: usize = 24;

impl Console {
    /// Tells people how the first shards come in. Machines find it in the reports.
    pub async fn show_fetching(self, view: watch::Receiver<DataView>) {
        if self == Console::Json {
            return;
        }
        let redraws = std::io::stderr().is_terminal();
        let (begin, mut drawn, mut last_plain) = (Instant::now(), false, None::<Instant>);
        let mut ticks = tokio::time::interval(REDRAW_PERIOD);
        loop {
            ticks.tick().await;
            let now = view.borrow().clone();
            if drawn {
                let _ = write!(std::io::stderr().lock(), "\r\x1b[2K");
            }
            if now.suffices || view.has_changed().is_err() {
                if drawn || last_plain.is_some() {
                    note(&format!("shards      {}: training begins, the rest follows meanwhile", counted(&now)));
                }
                return;
            }
            if begin.elapsed() < SILENT {
                continue;
            }
            if redraws {
                drawn = true;
                let _ = write!(
                    std::io::stderr().lock(),
                    "shards      {} {}",
                    bar(now.assigned_held as f64 / now.assigned.max(1) as f64),
                    counted(&now)
                );
            } else if last_plain.is_none_or(|last| last.elapsed() >= PLAIN_PERIOD) {
                last_plain = Some(Instant::now());
                note(&format!("shards      fetching: {}", counted(&now)));
            }
        }
    }
}

/// Shards and bytes for people.
fn counted(view: &DataView) -> String {
    let DataView { assigned_held, assigned, shards, bytes_fetched, .. } = view;
    let fetched = human_bytes(*bytes_fetched);
    let stuck = view.reachable < *shards && view.reachable == view.held;
    let stuck = if stuck { " · no member connected has more" } else { "" };
    format!("{assigned_held} of {assigned} assigned ({shards} in all), {fetched} fetched{stuck}")
}

/// A progress bar of a share, 0 to 1.
pub(super) fn bar(share: f64) -> String {
    let filled = ((BAR_WIDTH as f64 * share) as usize).min(BAR_WIDTH);
    format!("[{}{}]", "#".repeat(filled), "·".repeat(BAR_WIDTH - filled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_counts_what_this_node_is_to_hold() {
        let counts = DataView { shards: 40, assigned: 12, assigned_held: 3, held: 5, ..DataView::default() };
        let view = DataView { bytes_fetched: 196_608, reachable: 40, ..counts.clone() };
        assert_eq!(counted(&view), "3 of 12 assigned (40 in all), 196.6 kB fetched");
        let stuck = DataView { reachable: 5, ..counts };
        assert_eq!(counted(&stuck), "3 of 12 assigned (40 in all), 0 B fetched · no member connected has more");
        assert_eq!(bar(0.25), "[######··················]");
        assert_eq!(bar(2.0).chars().count(), BAR_WIDTH + 2);
    }
}
