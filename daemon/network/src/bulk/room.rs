//! Memory for what comes in, so that nobody keeps others out by announcing much and sending little.
//!
//! A transfer holds what it has sent, not what it has announced. Half of the memory is for peers that have delivered as
//! much before, whole and in time; of the other half one network has at most half.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::bounds::{BUDGET_UNIT_BYTES, LEARNED_FROM_BYTES, SLOWEST_OF_LEARNED, TRANSFER_RATE_MIN};
use crate::shares::Shares;

/// The memory of a node.
#[derive(Debug)]
pub(crate) struct Room {
    /// For everybody.
    common: Budget,
    /// For peers that have delivered.
    reserved: Budget,
    /// Of what is for everybody, those of networks.
    networks: Shares<Budget>,
    network_bytes: u64,
    payload_bytes_max: u64,
}

/// What is held until it is dropped.
pub(crate) type Held = Vec<OwnedSemaphorePermit>;

impl Room {
    /// `bytes`: in all. Each part has room for the largest payload.
    pub(crate) fn new(bytes: u64, payload_bytes_max: u64) -> Room {
        let half = (bytes / 2).max(payload_bytes_max);
        Room {
            common: Budget::new(half),
            reserved: Budget::new(half),
            networks: Shares::default(),
            network_bytes: (half / 2).max(payload_bytes_max.min(half)),
            payload_bytes_max,
        }
    }

    /// The share of one more peer, which is reached in this network where that is known.
    pub(crate) fn inflow(&self, network: Option<u128>) -> Inflow {
        let share = network.map(|network| self.networks.of(network, || Budget::new(self.network_bytes)));
        // A starter's steps and codes may come side by side, each rounded up.
        let own = Budget::new(self.payload_bytes_max + BUDGET_UNIT_BYTES);
        Inflow { own, network: share, delivered: AtomicU64::new(0), rate: AtomicU64::new(0) }
    }

    /// Waits until `bytes` more of a payload of `length` fit. The sender feels it as a stream that is not read.
    pub(crate) async fn grow(&self, of: &Inflow, bytes: u64, length: u64, held: &mut Held) {
        if of.delivered.load(Ordering::Relaxed) >= length {
            tokio::select! {
                biased;
                permit = self.reserved.acquire(bytes) => held.push(permit),
                permits = self.of_everybody(of, bytes) => held.extend(permits),
            }
        } else {
            held.extend(self.of_everybody(of, bytes).await);
        }
    }

    async fn of_everybody(&self, of: &Inflow, bytes: u64) -> Held {
        let mut held = Held::new();
        // Its own first: while it waits for that, it holds nothing that others need.
        if let Some(network) = &of.network {
            held.push(network.acquire(bytes).await);
        }
        held.push(self.common.acquire(bytes).await);
        held
    }
}

/// Of a peer's own share what one payload has, until it is dropped.
#[derive(Debug)]
pub(crate) struct OwnShare {
    /// Since when its bytes may be on their way.
    since: Instant,
    _permit: OwnedSemaphorePermit,
}

/// One peer's share, and what it has shown.
#[derive(Debug)]
pub(crate) struct Inflow {
    own: Budget,
    network: Option<Arc<Budget>>,
    /// Bytes of whole payloads since the last one that stalled.
    delivered: AtomicU64,
    /// The fastest transfer so far, in bytes a second.
    rate: AtomicU64,
}

impl Inflow {
    /// Waits until the peer's own share has room for a payload of so many bytes.
    pub(crate) async fn begin(&self, length: u64) -> OwnShare {
        let since = Instant::now();
        OwnShare { since, _permit: self.own.acquire(length).await }
    }

    /// A payload has come whole. How fast its peer is follows from all the time that has passed: while this side waits, for its cap
    /// or for memory, bytes pile up on the way and are then read at once.
    pub(crate) fn on_delivered(&self, bytes: u64, share: &OwnShare) {
        self.delivered.fetch_add(bytes, Ordering::Relaxed);
        if bytes >= LEARNED_FROM_BYTES {
            let seconds = share.since.elapsed().as_secs_f64().max(1e-6);
            self.rate.fetch_max((bytes as f64 / seconds) as u64, Ordering::Relaxed);
        }
    }

    /// A payload did not come in time.
    pub(crate) fn on_stalled(&self) {
        self.delivered.store(0, Ordering::Relaxed);
    }

    /// The bytes a second that a transfer of this peer has to move in the long run.
    pub(crate) fn rate_min(&self) -> f64 {
        (self.rate.load(Ordering::Relaxed) as f64 / SLOWEST_OF_LEARNED).max(TRANSFER_RATE_MIN)
    }
}

/// Bytes that may be held at once.
#[derive(Debug)]
struct Budget {
    units: Arc<Semaphore>,
    total: u32,
}

impl Budget {
    fn new(bytes: u64) -> Budget {
        let total = units_of(bytes).max(1);
        Budget { units: Arc::new(Semaphore::new(total as usize)), total }
    }

    /// Waits until `bytes` more fit.
    async fn acquire(&self, bytes: u64) -> OwnedSemaphorePermit {
        let units = units_of(bytes).min(self.total);
        self.units.clone().acquire_many_owned(units).await.expect("the budget is never closed")
    }
}

fn units_of(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(BUDGET_UNIT_BYTES)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use murmur_protocol::collective::MEMBERS_MAX;
    use murmur_protocol::manifest::{SynchronousSpec, Topology};
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::bounds::ROOM_START_BYTES;
    use crate::rate_limit::RateLimiter;

    const MIB: u64 = 1 << 20;

    async fn fits(room: &Room, of: &Inflow, bytes: u64, length: u64) -> Option<Held> {
        let mut held = Held::new();
        timeout(Duration::from_millis(20), room.grow(of, bytes, length, &mut held)).await.ok().map(|()| held)
    }

    #[tokio::test]
    async fn who_has_delivered_finds_room_where_strangers_have_taken_theirs() {
        let room = Room::new(8 * MIB, MIB);
        let (stranger, other, proven) = (room.inflow(Some(1)), room.inflow(Some(2)), room.inflow(Some(1)));
        let _first = fits(&room, &stranger, 2 * MIB, MIB).await.expect("half of a half");
        assert!(fits(&room, &stranger, 1, MIB).await.is_none(), "its network has no more");
        assert!(fits(&room, &proven, 1, MIB).await.is_none(), "nor for others of it");
        let _second = fits(&room, &other, 2 * MIB, MIB).await.expect("another network has its own share");
        proven.on_delivered(MIB, &proven.begin(MIB).await);
        let _third = fits(&room, &proven, 4 * MIB, MIB).await.expect("what is reserved");
        assert!(fits(&room, &proven, 1, MIB).await.is_none());
        drop(_third);
        assert!(fits(&room, &proven, 1, MIB + 1).await.is_none(), "more than it has ever delivered");
        proven.on_stalled();
        assert!(fits(&room, &proven, 1, MIB).await.is_none(), "a stranger again");
    }

    /// Each held half of a replica, and waited for the half that the other one held.
    #[tokio::test]
    async fn two_replicas_that_come_from_one_network_do_not_wait_for_each_other() {
        let length = murmur_protocol::bounds::replica_bytes_max(100_000);
        let room = Room::new(SynchronousSpec::default().inbound_budget(100_000), length);
        let senders = [room.inflow(Some(1)), room.inflow(Some(1))];
        let mut held = Vec::new();
        for part in [length / 2, length - length / 2] {
            for sender in &senders {
                held.push(fits(&room, sender, part, length).await.expect("there is room for both"));
            }
        }
    }

    /// Each held what it had sent, and waited for what the others held: seven were too many for a model of two million parameters.
    #[tokio::test]
    async fn what_all_members_of_a_star_send_its_hub_at_once_fits() {
        let parameters = 2_000_000;
        let spec = SynchronousSpec { topology: Topology::Star, ..SynchronousSpec::default() };
        let replica = murmur_protocol::bounds::replica_bytes_max(parameters);
        let room = Room::new(spec.inbound_budget(parameters), replica);
        let senders: Vec<Inflow> = (1..MEMBERS_MAX).map(|_| room.inflow(Some(1))).collect();
        let length = spec.codec().bytes(parameters) as u64;
        let (mut come, mut held) = (0, Vec::new());
        while come < length {
            let more = come.max(ROOM_START_BYTES as u64).min(length - come);
            for (number, sender) in senders.iter().enumerate() {
                let fitting = fits(&room, sender, more, length).await;
                held.push(fitting.unwrap_or_else(|| panic!("no room for member {number} after {come} bytes of each")));
            }
            come += more;
        }
    }

    #[tokio::test]
    async fn the_least_rate_follows_the_fastest_transfer() {
        let inflow = Room::new(MIB, MIB).inflow(None);
        inflow.on_delivered(100, &inflow.begin(100).await);
        assert_eq!(inflow.rate_min(), TRANSFER_RATE_MIN, "too small to tell");
        let share = inflow.begin(LEARNED_FROM_BYTES).await;
        sleep(Duration::from_millis(10)).await;
        inflow.on_delivered(LEARNED_FROM_BYTES, &share);
        assert!(inflow.rate_min() > TRANSFER_RATE_MIN);
    }

    /// What waited for this node's cap was read at once, and its peer was taken for one with a line of gigabits: on an honest day of
    /// its own line it was punished.
    #[tokio::test]
    async fn a_cap_of_this_node_teaches_no_faster_line_than_the_cap() {
        const CAP: u64 = 2_000_000;
        let download = RateLimiter::new(Some(CAP), Duration::ZERO);
        let inflow = Room::new(2 * MIB, MIB).inflow(None);
        let share = inflow.begin(MIB).await;
        download.wait(MIB as usize).await;
        inflow.on_delivered(MIB, &share);
        let most = (CAP as f64 / SLOWEST_OF_LEARNED).max(TRANSFER_RATE_MIN);
        assert!(inflow.rate_min() <= most, "{} bytes a second", inflow.rate_min());
    }
}
