//! How long the last ping to each connected peer took.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use murmur_protocol::PeerId;

/// Round trips by peer; clones share them. As many as are connected.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundTrips(Arc<Mutex<BTreeMap<PeerId, Duration>>>);

impl RoundTrips {
    /// A ping was answered.
    pub(crate) fn note(&self, peer: PeerId, took: Duration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(peer, took);
    }

    /// No connection leads to the peer any more.
    pub(crate) fn forget(&self, peer: PeerId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&peer);
    }

    /// All that are known.
    pub(crate) fn read(&self) -> BTreeMap<PeerId, Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
