//! A member whose contribution does not come leaves by itself.
//!
//! Its owner may have nothing to contribute: its data is on its way, or another machine of its team is gone. The member answers
//! all the same, and so the others would begin each operation anew with it, for ever. When the second epoch in a row is dropped
//! for it, it says nothing and is left out. It comes back with the contribution, which tells that its owner goes on.
//!
//! One that is slow alone is to be waited for in the end, for deadlines double: each time that it has come back it stays for
//! twice as many epochs, and for half as many each time that it is in time.

/// Epochs in a row that are dropped for a contribution until the member leaves, at first.
const EPOCHS_FIRST: u32 = 2;

/// The same at most: half an hour of the longest waits. A guess.
const EPOCHS_MAX: u32 = 16;

/// How the others have waited in vain for this member's contribution.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lateness {
    /// Epochs in a row that were dropped for it.
    epochs: u32,
    /// With so many the member leaves; from [`EPOCHS_FIRST`] to [`EPOCHS_MAX`].
    epochs_max: u32,
    /// It has left.
    pub(super) is_left_out: bool,
}

impl Default for Lateness {
    fn default() -> Lateness {
        Lateness { epochs: 0, epochs_max: EPOCHS_FIRST, is_left_out: false }
    }
}

impl Lateness {
    /// An epoch was dropped for it; whether the member is to leave.
    pub(super) fn is_once_too_often(&mut self) -> bool {
        self.epochs += 1;
        self.epochs >= self.epochs_max
    }

    /// The contribution is there.
    pub(super) fn on_contribution(&mut self) {
        if self.epochs == 0 {
            self.epochs_max = (self.epochs_max / 2).max(EPOCHS_FIRST);
        }
        self.epochs = 0;
    }

    /// The contribution is there, and the member had left.
    pub(super) fn come_back(&mut self) {
        let epochs_max = (2 * self.epochs_max).min(EPOCHS_MAX);
        *self = Lateness { epochs_max, ..Lateness::default() };
    }
}
