//! Places for transfers that this node sends for exchanges: slow readers must not take those of all others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::bounds::{OUTGOING_TRANSFERS_MAX, OUTGOING_TRANSFERS_RESERVED};

/// The places of a node.
#[derive(Debug)]
pub(crate) struct Places {
    /// For everybody.
    common: Arc<Semaphore>,
    /// For peers that have proven themselves.
    reserved: Arc<Semaphore>,
}

/// Whether a peer has taken a whole transfer, and let none wait since; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Proven(Arc<AtomicBool>);

impl Places {
    pub(crate) fn new() -> Places {
        let semaphore = |places| Arc::new(Semaphore::new(places));
        Places { common: semaphore(OUTGOING_TRANSFERS_MAX), reserved: semaphore(OUTGOING_TRANSFERS_RESERVED) }
    }

    /// A place for one more transfer to such a peer, until it is dropped.
    pub(crate) fn take(&self, proven: &Proven) -> Option<OwnedSemaphorePermit> {
        let of = |places: &Arc<Semaphore>| places.clone().try_acquire_owned().ok();
        of(&self.common).or_else(|| if proven.is_proven() { of(&self.reserved) } else { None })
    }
}

impl Proven {
    /// The peer has taken a whole transfer.
    pub(crate) fn on_taken(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_proven(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// It has let one wait.
    pub(crate) fn on_stalled(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_proven_itself_finds_a_place_where_strangers_have_taken_theirs() {
        let (places, stranger, partner) = (Places::new(), Proven::default(), Proven::default());
        let taken: Vec<_> = (0..OUTGOING_TRANSFERS_MAX).map(|_| places.take(&stranger).expect("a place")).collect();
        assert!(places.take(&stranger).is_none() && places.take(&partner).is_none());
        partner.on_taken();
        let kept: Vec<_> = (0..OUTGOING_TRANSFERS_RESERVED).map(|_| places.take(&partner).expect("a place")).collect();
        assert!(places.take(&partner).is_none(), "there is an end to it");
        drop(kept);
        partner.on_stalled();
        assert!(places.take(&partner).is_none(), "a stranger again");
        drop(taken);
        assert!(places.take(&stranger).is_some());
    }
}
