//! What each network has of something that all share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The shares of networks; as many as are held by somebody.
#[derive(Debug)]
pub(crate) struct Shares<Share>(Mutex<BTreeMap<u128, Weak<Share>>>);

impl<Share> Default for Shares<Share> {
    fn default() -> Shares<Share> {
        Shares(Mutex::default())
    }
}

impl<Share> Shares<Share> {
    /// That of a network, made anew where nobody holds it.
    pub(crate) fn of(&self, network: u128, make: impl FnOnce() -> Share) -> Arc<Share> {
        let mut shares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shares.retain(|_, share| share.strong_count() > 0);
        shares.get(&network).and_then(Weak::upgrade).unwrap_or_else(|| {
            let share = Arc::new(make());
            shares.insert(network, Arc::downgrade(&share));
            share
        })
    }

    /// How many there are, those counted that nobody holds any more since the last call of [`of`](Self::of).
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
