//! Private steps of the trainer: each is in the ledger before it is taken.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::TrainerThread;
use crate::console::{counted, note};
use crate::store::PrivacyLedger;

/// Steps that are written down at once: a disk takes milliseconds to flush. A node that is killed has spent the rest of them.
const STEPS_AT_ONCE: u64 = 16;

/// From one attempt to write to a disk that does not take it to the next.
const RETRY_PERIOD: Duration = Duration::from_secs(1);

/// What private training has told so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PrivacyReport {
    /// ε of all steps that the ledger counts.
    pub epsilon: f64,
    /// ε at which own training ends.
    pub budget: f64,
    /// δ of both.
    pub delta: f64,
    /// Own steps until then.
    pub steps_left: u64,
}

impl PrivacyReport {
    /// Of a ledger, some of whose steps have not been taken yet.
    pub fn new(ledger: &PrivacyLedger, permits: u64) -> PrivacyReport {
        let budget = ledger.budget();
        let steps_left = ledger.steps_left().saturating_add(permits);
        PrivacyReport { epsilon: ledger.epsilon(), budget: budget.epsilon, delta: budget.delta, steps_left }
    }
}

impl std::fmt::Display for PrivacyReport {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let PrivacyReport { epsilon, budget, delta, steps_left } = self;
        // Rounded up: what is shown is never less than what was told.
        let epsilon = (epsilon * 100.0).ceil() / 100.0;
        write!(formatter, "epsilon {epsilon:.2} of {budget} at delta {delta:e}, ")?;
        match steps_left {
            0 => write!(formatter, "used up: own training has ended"),
            steps => write!(formatter, "ends in {}", counted(*steps, "own step")),
        }
    }
}

/// When the disk did not take the ledger.
#[derive(Debug, Default)]
pub(super) struct Withheld {
    since: Option<Instant>,
}

impl TrainerThread {
    /// Whether the next step may be taken: where steps are private, it is written down first.
    pub(super) fn is_permitted(&mut self) -> bool {
        if self.is_run_over() {
            return true;
        }
        let Some(ledger) = &mut self.settings.privacy else { return true };
        let steps = ledger.steps_left().min(STEPS_AT_ONCE);
        if self.engine.permits() != Some(0) {
            return true;
        }
        if self.withheld.since.is_some_and(|since| since.elapsed() < RETRY_PERIOD) {
            return false;
        }
        let begin = Instant::now();
        let written = ledger.spend(steps);
        self.clock.spent_aside(begin.elapsed());
        match written {
            Ok(steps) => {
                self.engine.permit(steps);
                if self.withheld.since.take().is_some() {
                    note("privacy: its ledger is written again; training goes on");
                }
            }
            Err(error) => {
                if self.withheld.since.replace(Instant::now()).is_none() {
                    note(&format!(
                        "warning: privacy: no step is taken while its ledger cannot be written: {error}\n\
                         hint: is the disk full? it is tried again every second"
                    ));
                }
            }
        }
        self.withheld.since.is_none()
    }

    /// Whether private training has told all that it may.
    pub(super) fn is_budget_used_up(&self) -> bool {
        self.settings
            .privacy
            .as_ref()
            .is_some_and(|ledger| self.engine.permits() == Some(0) && ledger.steps_left() == 0)
    }

    /// What has been told so far, where steps are private.
    pub(super) fn privacy_report(&self) -> Option<PrivacyReport> {
        let ledger = self.settings.privacy.as_ref()?;
        Some(PrivacyReport::new(ledger, self.engine.permits().unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_said_in_a_line_and_rounded_up() {
        let report = PrivacyReport { epsilon: 2.8912, budget: 3.0, delta: 1e-5, steps_left: 140 };
        assert_eq!(report.to_string(), "epsilon 2.90 of 3 at delta 1e-5, ends in 140 own steps");
        let over = PrivacyReport { epsilon: 2.999, steps_left: 0, ..report };
        assert_eq!(over.to_string(), "epsilon 3.00 of 3 at delta 1e-5, used up: own training has ended");
    }
}
