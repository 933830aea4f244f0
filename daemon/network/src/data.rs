//! Shards of shared data, on streams of their own: one stream for each request.
//!
//! ```text
//! asker  → frame: ShardRequest              (codec of the control messages)
//! server → frame: ShardAnswer
//!        → the bytes from the offset on     (where the answer says that they come); then it closes
//! ```
//!
//! The asker pulls: it reads as fast as it stores, and gives up by dropping the stream, which resets it. The server's
//! memory is the shard that it holds anyway. A shard's hash is in the run's manifest, so no digest travels along; whoever
//! stores the bytes compares. The core has no part in this: the daemon's data driver asks through
//! [`Network`](crate::Network), and the tasks of each connection answer by themselves from the [`Shelf`]. A node without
//! a shelf gives nothing to anybody.

pub(crate) mod ask;
pub(crate) mod serve;
mod turns;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use murmur_protocol::shards::ShardSet;
use murmur_protocol::{Payload, PeerId};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use crate::bounds::CONNECTION_READY_TIMEOUT;
use crate::rate_limit::RateLimiter;
use crate::streams::{StreamOpener, WeakOpener};
use turns::Sending;

/// Shards in memory, by index.
pub type HeldShards = Arc<BTreeMap<usize, Payload>>;

/// What a node serves: the newest value of a channel that the daemon's data driver owns.
#[derive(Clone, Debug)]
pub struct Shelf {
    shards: watch::Receiver<HeldShards>,
    bytes_served: Arc<AtomicU64>,
}

impl Shelf {
    /// A shelf of what the channel holds.
    pub fn new(shards: watch::Receiver<HeldShards>) -> Shelf {
        Shelf { shards, bytes_served: Arc::new(AtomicU64::new(0)) }
    }

    /// Bytes of shards sent to peers so far.
    pub fn bytes_served(&self) -> u64 {
        self.bytes_served.load(Ordering::Relaxed)
    }

    fn held(&self) -> ShardSet {
        self.shards.borrow().keys().copied().collect()
    }

    fn shard(&self, index: usize) -> Option<Payload> {
        self.shards.borrow().get(&index).cloned()
    }

    fn count_served(&self, bytes: usize) {
        self.bytes_served.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// This node's part in sharing data.
#[derive(Debug)]
pub(crate) struct DataExchange {
    shelf: Option<Shelf>,
    /// The node's cap on what it receives.
    download: Arc<RateLimiter>,
    /// Shards sent at once in all.
    sending: Sending,
    /// Connections on which peers can be asked, newest last for each; as many as there are. Behind a lock since askers
    /// want an opener without going through the swarm task; it is held for one look-up and never across a wait.
    openers: Mutex<BTreeMap<(PeerId, u64), WeakOpener>>,
    /// Rings when there is one more.
    news: Notify,
}

impl DataExchange {
    pub(crate) fn new(shelf: Option<Shelf>, download: Arc<RateLimiter>) -> DataExchange {
        DataExchange {
            shelf,
            download,
            sending: Sending::default(),
            openers: Mutex::new(BTreeMap::new()),
            news: Notify::new(),
        }
    }

    /// As [`DataExchange::opener`], for a peer that may have connected just now: the core hears of a peer a moment before
    /// the connection's tasks begin.
    async fn opener_soon(&self, peer: PeerId) -> Option<StreamOpener> {
        let deadline = Instant::now() + CONNECTION_READY_TIMEOUT;
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            // From here on nothing is missed, though it is looked before it is waited.
            news.as_mut().enable();
            if let Some(opener) = self.opener(peer) {
                return Some(opener);
            }
            timeout_at(deadline, news).await.ok()?;
        }
    }

    /// The newest connection to a peer that is still open.
    fn opener(&self, peer: PeerId) -> Option<StreamOpener> {
        let openers = self.openers.lock().unwrap_or_else(PoisonError::into_inner);
        openers.range((peer, 0)..=(peer, u64::MAX)).rev().find_map(|(_, opener)| opener.upgrade())
    }

    fn register(&self, peer: PeerId, link: u64, opener: WeakOpener) -> Registration<'_> {
        self.openers.lock().unwrap_or_else(PoisonError::into_inner).insert((peer, link), opener);
        self.news.notify_waiters();
        Registration { exchange: self, key: (peer, link) }
    }
}

/// A connection in the list of openers, for as long as its task lives.
struct Registration<'a> {
    exchange: &'a DataExchange,
    key: (PeerId, u64),
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.exchange.openers.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}
