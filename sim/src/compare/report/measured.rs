//! What real daemons came to, beside what was simulated.

use super::mean;
use crate::compare::{Method, Results};
use crate::report::{Table, bytes};

/// What real daemons came to with a method, with the first seed.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The method by which they trained.
    pub method: Method,
    /// Of each daemon, the loss on its held-out text at its end.
    pub losses: Vec<f64>,
    /// Bytes that each daemon sent: everything, joining included.
    pub sent_bytes: Vec<u64>,
    /// Steps a second of each daemon while it trained.
    pub steps_per_second: Vec<f64>,
    /// Whether all of them came to the end of the run.
    pub is_complete: bool,
}

impl Measured {
    /// The mean loss of all daemons.
    pub fn loss(&self) -> f64 {
        mean(self.losses.iter().copied())
    }
}

/// Loss and bytes of the busiest node, simulated with the first seed and measured.
pub fn measured_table(results: &Results, measured: &[Measured]) -> Table {
    let head = ["method", "loss", "simulated", "busiest node", "simulated", "steps/s of each"];
    let mut table = Table::new(&head);
    for one in measured {
        let runs = results.of(&one.method);
        let Some(simulated) = runs.first().map(|run| run.end()) else { continue };
        table.row(vec![
            one.method.name.to_owned(),
            format!("{:.3}{}", one.loss(), if one.is_complete { "" } else { " (unfinished)" }),
            format!("{:.3}", simulated.loss),
            bytes(one.sent_bytes.iter().copied().max().unwrap_or(0) as f64),
            bytes(simulated.busiest_bytes as f64),
            format!("{:.1}", mean(one.steps_per_second.iter().copied())),
        ]);
    }
    table
}
