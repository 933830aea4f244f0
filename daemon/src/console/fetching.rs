//! How far the first shards of shared data have come: where there is no terminal with a block, a line now and then, until
//! there is enough to begin training.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::{Console, human_bytes, note};
use crate::drivers::DataReport;

/// How often it is looked at.
const LOOK_PERIOD: Duration = Duration::from_millis(250);

/// Without a terminal to redraw, a line this often.
const PLAIN_PERIOD: Duration = Duration::from_secs(5);

/// Nothing is told of what takes no longer.
const SILENT: Duration = Duration::from_millis(500);

impl Console {
    /// Tells people how the first shards come in. Machines find it in the reports.
    pub async fn show_fetching(self, view: watch::Receiver<DataReport>) {
        if self == Console::Json {
            return;
        }
        // On a terminal the block has it.
        let is_live = super::screen::is_live();
        let (begin, mut last_plain) = (Instant::now(), None::<Instant>);
        let mut ticks = tokio::time::interval(LOOK_PERIOD);
        loop {
            ticks.tick().await;
            let now = view.borrow().clone();
            if now.suffices || view.has_changed().is_err() {
                if last_plain.is_some() || (is_live && begin.elapsed() >= SILENT) {
                    note(&format!("shards      {}: training begins, the rest follows meanwhile", counted(&now)));
                }
                return;
            }
            if begin.elapsed() < SILENT {
                continue;
            }
            if !is_live && last_plain.is_none_or(|last| last.elapsed() >= PLAIN_PERIOD) {
                last_plain = Some(Instant::now());
                note(&format!("shards      fetching: {}", counted(&now)));
            }
        }
    }
}

/// Shards and bytes for people.
fn counted(view: &DataReport) -> String {
    let DataReport { shards, shards_assigned, shards_assigned_held, bytes_fetched, .. } = view;
    let fetched = human_bytes(*bytes_fetched);
    let stuck = view.shards_reachable < *shards && view.shards_reachable == view.shards_held;
    let stuck = if stuck { " · no member connected has more" } else { "" };
    format!("{shards_assigned_held} of {shards_assigned} assigned ({shards} in all), {fetched} fetched{stuck}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_counts_what_this_node_is_to_hold() {
        let counts = DataReport {
            shards: 40,
            shards_assigned: 12,
            shards_assigned_held: 3,
            shards_held: 5,
            ..DataReport::default()
        };
        let view = DataReport { bytes_fetched: 196_608, shards_reachable: 40, ..counts.clone() };
        assert_eq!(counted(&view), "3 of 12 assigned (40 in all), 196.6 kB fetched");
        let stuck = DataReport { shards_reachable: 5, ..counts };
        assert_eq!(counted(&stuck), "3 of 12 assigned (40 in all), 0 B fetched · no member connected has more");
    }
}
