//! Places for transfers that this node sends for exchanges: slow readers must not take those of all others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::bounds::{OUTGOING_TRANSFERS_MAX, OUTGOING_TRANSFERS_PER_NETWORK_MAX, OUTGOING_TRANSFERS_RESERVED};
use crate::shares::Shares;

/// The places of a node.
#[derive(Debug)]
pub(crate) struct Places {
    /// For everybody.
    common: Arc<Semaphore>,
    /// For peers that have proven themselves.
    reserved: Arc<Semaphore>,
    /// Of what is for everybody, those of networks of the internet.
    networks: Shares<Semaphore>,
}

/// A place for a transfer, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    _place: OwnedSemaphorePermit,
    _of_network: Option<OwnedSemaphorePermit>,
}

impl From<OwnedSemaphorePermit> for Place {
    fn from(place: OwnedSemaphorePermit) -> Place {
        Place { _place: place, _of_network: None }
    }
}

/// Whether a peer has taken a whole transfer, and let none wait since; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Proven(Arc<AtomicBool>);

impl Places {
    pub(crate) fn new() -> Places {
        let semaphore = |places| Arc::new(Semaphore::new(places));
        Places {
            common: semaphore(OUTGOING_TRANSFERS_MAX),
            reserved: semaphore(OUTGOING_TRANSFERS_RESERVED),
            networks: Shares::default(),
        }
    }

    /// A place for one more transfer to such a peer. `network`: of the internet, in which it is reached; a private one is its
    /// owner's, and has no share.
    pub(crate) fn take(&self, proven: &Proven, network: Option<u128>) -> Option<Place> {
        let of = |places: Arc<Semaphore>| places.try_acquire_owned().ok();
        if proven.is_proven() {
            return of(self.common.clone()).or_else(|| of(self.reserved.clone())).map(Place::from);
        }
        let of_network = match network {
            Some(network) => {
                Some(of(self.networks.of(network, || Semaphore::new(OUTGOING_TRANSFERS_PER_NETWORK_MAX)))?)
            }
            None => None,
        };
        Some(Place { _place: of(self.common.clone())?, _of_network: of_network })
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
        let taken: Vec<_> =
            (0..OUTGOING_TRANSFERS_MAX).map(|_| places.take(&stranger, None).expect("a place")).collect();
        assert!(places.take(&stranger, None).is_none() && places.take(&partner, None).is_none());
        partner.on_taken();
        let kept: Vec<_> =
            (0..OUTGOING_TRANSFERS_RESERVED).map(|_| places.take(&partner, None).expect("a place")).collect();
        assert!(places.take(&partner, None).is_none(), "there is an end to it");
        drop(kept);
        partner.on_stalled();
        assert!(places.take(&partner, None).is_none(), "a stranger again");
        drop(taken);
        assert!(places.take(&stranger, None).is_some());
    }

    /// One name with eight transfers at the least rate kept all others that have not proven themselves from their exchanges, for
    /// two hours with 12 Mi values.
    #[test]
    fn strangers_of_one_network_leave_places_to_strangers_of_another() {
        let (places, stranger, partner) = (Places::new(), Proven::default(), Proven::default());
        partner.on_taken();
        let taken: Vec<_> = std::iter::from_fn(|| places.take(&stranger, Some(1))).take(100).collect();
        assert_eq!(taken.len(), OUTGOING_TRANSFERS_PER_NETWORK_MAX);
        let others: Vec<_> = std::iter::from_fn(|| places.take(&stranger, Some(2))).take(100).collect();
        assert_eq!(others.len(), OUTGOING_TRANSFERS_MAX - OUTGOING_TRANSFERS_PER_NETWORK_MAX);
        assert!(places.take(&partner, Some(1)).is_some(), "a proven neighbour has what is reserved");
        drop((taken, others));
        assert!(places.take(&stranger, Some(1)).is_some());
        assert_eq!(places.networks.count(), 1, "the other has none");
    }
}
