//! When a model has diverged for good.
//!
//! A single step whose loss is not a number is left out and training goes on: a rare batch can do that. A model whose
//! weights have grown too large does not come back, whether every step fails or only most of them, so the account below
//! rises with each such step and falls slowly with each good one.

/// What one step that went wrong adds.
const SKIPPED: u32 = 10;

/// What a good step takes away: it takes ten to forgive one that went wrong. A guess.
const FORGIVEN: u32 = 1;

/// Twenty steps in a row that went wrong, or 23 of 46, end training. A guess: a run loses at most a minute to it.
const SKIPPED_MAX: u32 = 20 * SKIPPED;

/// The account of steps that went wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Divergence {
    account: u32,
    last_skipped: bool,
}

impl Divergence {
    /// A step went well.
    pub(super) fn stepped(&mut self) {
        self.account = self.account.saturating_sub(FORGIVEN);
        self.last_skipped = false;
    }

    /// A step was left out. `true` once the model does not come back.
    pub(super) fn skipped(&mut self) -> bool {
        self.account += SKIPPED;
        self.last_skipped = true;
        self.account >= SKIPPED_MAX
    }

    /// Whether the model may be broken now: it is not worth a checkpoint then.
    pub(super) fn is_suspected(self) -> bool {
        self.last_skipped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps until training ends, where `goes_wrong` says which go wrong; `None` where it goes on.
    fn ends_after(goes_wrong: impl Fn(u32) -> bool) -> Option<u32> {
        let mut divergence = Divergence::default();
        (1..10_000).find(|step| {
            if goes_wrong(*step) {
                return divergence.skipped();
            }
            divergence.stepped();
            false
        })
    }

    #[test]
    fn rare_steps_that_go_wrong_are_forgiven() {
        assert_eq!(ends_after(|step| step == 7), None);
        assert_eq!(ends_after(|step| step.is_multiple_of(11)), None);
    }

    #[test]
    fn a_model_that_does_not_come_back_ends_training() {
        assert_eq!(ends_after(|_| true), Some(20));
        assert_eq!(ends_after(|step| step.is_multiple_of(2)), Some(46));
        assert!(ends_after(|step| step.is_multiple_of(5)).is_some());
    }
}
