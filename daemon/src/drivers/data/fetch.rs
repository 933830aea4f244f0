//! One shard from one peer to the disk.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use murmur_network::{Network, Offered, ShardError};
use murmur_protocol::shards::{ShardHash, ShardSet};
use murmur_protocol::{Payload, PeerId};

use crate::store::{PartialShard, ShardStore};

/// What to fetch, and how.
pub(super) struct Fetch {
    pub(super) index: usize,
    pub(super) peer: PeerId,
    pub(super) hash: ShardHash,
    pub(super) length: u64,
    /// Whether to drop what has arrived from others.
    pub(super) afresh: bool,
    /// Counts every byte that arrives.
    pub(super) counter: Arc<AtomicU64>,
}

/// What became of it.
pub(super) struct Fetched {
    pub(super) index: usize,
    pub(super) peer: PeerId,
    /// What the peer said that it holds.
    pub(super) held: Option<ShardSet>,
    /// Bytes that were there before.
    pub(super) resumed_at: u64,
    /// Bytes that this peer sent.
    pub(super) arrived: u64,
    pub(super) outcome: Outcome,
}

pub(super) enum Outcome {
    /// Verified and on disk.
    Stored(Payload),
    /// Whole, but with another hash; nothing of it is kept.
    WrongHash,
    /// The peer does not have it.
    Missing,
    /// The peer sends enough already.
    Busy,
    /// The peer, or the way to it.
    Failed(ShardError),
    /// Our own disk.
    Disk(io::Error),
}

impl Fetch {
    pub(super) async fn run(self, network: &Network, store: ShardStore) -> Fetched {
        let mut fetched = Fetched {
            index: self.index,
            peer: self.peer,
            held: None,
            resumed_at: 0,
            arrived: 0,
            outcome: Outcome::Missing,
        };
        fetched.outcome = self.fetch(network, store, &mut fetched).await.unwrap_or_else(|outcome| outcome);
        fetched
    }

    /// The error is an outcome, too: it ends the way early.
    async fn fetch(&self, network: &Network, store: ShardStore, fetched: &mut Fetched) -> Result<Outcome, Outcome> {
        let (hash, length, afresh) = (self.hash, self.length, self.afresh);
        let mut partial = on_disk(move || store.begin(hash, length, afresh)).await?;
        fetched.resumed_at = partial.bytes();
        let index = u16::try_from(self.index).expect("a run has at most 128 shards");
        // What is whole was left by a daemon that was killed before it could compare.
        if partial.bytes() < length {
            partial = on_disk(move || partial.take_room(length)).await?;
            let asked = network.ask_shard(self.peer, index, partial.bytes(), length).await;
            let (held, offered) = asked.map_err(Outcome::Failed)?;
            fetched.held = Some(held);
            let mut stream = match offered {
                Offered::Missing => return Err(Outcome::Missing),
                Offered::Busy => return Err(Outcome::Busy),
                Offered::Coming(stream) => stream,
            };
            while let Some(bytes) = stream.next().await.map_err(Outcome::Failed)? {
                fetched.arrived += bytes.len() as u64;
                self.counter.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                partial = write(partial, bytes).await?;
            }
        }
        match on_disk(move || partial.complete()).await? {
            Some(shard) => Ok(Outcome::Stored(shard)),
            None => Ok(Outcome::WrongHash),
        }
    }
}

/// Appends, and gives room back where there was none: a partial shard on a full disk is in everybody's way.
async fn write(mut partial: PartialShard, bytes: Vec<u8>) -> Result<PartialShard, Outcome> {
    on_disk(move || match partial.write(&bytes) {
        Ok(()) => Ok(partial),
        Err(error) => {
            if error.kind() == io::ErrorKind::StorageFull {
                partial.discard();
            }
            Err(error)
        }
    })
    .await
}

/// Off the runtime's threads: a disk may hang.
async fn on_disk<Value: Send + 'static>(
    work: impl FnOnce() -> io::Result<Value> + Send + 'static,
) -> Result<Value, Outcome> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(Outcome::Disk),
        Err(error) => Err(Outcome::Disk(io::Error::other(error))),
    }
}
