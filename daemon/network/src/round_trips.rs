//! How long the last ping to each peer took.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use murmur_protocol::PeerId;

/// Peers whose last round trip is remembered; more than are ever connected.
const REMEMBERED_MAX: usize = 512;

/// Round trips by peer; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundTrips(Arc<Mutex<BTreeMap<PeerId, Duration>>>);

impl RoundTrips {
    /// A ping was answered.
    pub(crate) fn note(&self, peer: PeerId, took: Duration) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED_MAX && !known.contains_key(&peer) {
            known.pop_first();
        }
        known.insert(peer, took);
    }

    /// All that are remembered, of peers that are gone as well.
    pub(crate) fn read(&self) -> BTreeMap<PeerId, Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_round_trip_counts_and_not_all_are_remembered() {
        let trips = RoundTrips::default();
        let peer = |number: u16| {
            let mut key = [0; 32];
            key[..2].copy_from_slice(&number.to_be_bytes());
            PeerId::from_public_key(key)
        };
        for number in 0..600 {
            trips.note(peer(number), Duration::from_millis(1));
        }
        trips.note(peer(599), Duration::from_millis(7));
        let known = trips.read();
        assert_eq!(known.len(), REMEMBERED_MAX);
        assert_eq!(known.get(&peer(599)), Some(&Duration::from_millis(7)));
    }
}
