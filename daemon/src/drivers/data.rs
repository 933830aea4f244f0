//! The data driver: sees to it that this node holds its part of the data that the swarm shares, while others train.
//!
//! It follows the members that the core knows, works out which shards are this node's, fetches them from whoever is
//! connected and has them, and hands each to the trainer and to the shelf from which peers are served. Nobody waits for
//! it: the trainer takes shards up at its step boundaries. What was fetched is kept, also when a newcomer's weight is
//! higher: it is paid for, and another copy does no harm. While the node rests, nothing is asked for or given.

mod fetch;
mod peers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use murmur_network::{HeldShards, Network, ShardError, Shelf};
use murmur_protocol::bounds::SHARD_REPLICAS;
use murmur_protocol::shards::{ShardHash, ShardSet, Sharding, assignment, next_fetch, own_order};
use murmur_protocol::{Payload, PeerId};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::Instant;

use crate::console::note;
use crate::engine::Picture;
use crate::setup::sharing::SharedData;
use crate::store::ShardStore;
use fetch::{Fetch, Fetched, Outcome};
use peers::Peers;

/// Shards fetched at once, from all peers together: enough to fill a link when one source is slow.
const FETCHES_MAX: usize = 4;

/// How often the driver looks whether there is something to do that no event tells of.
const LOOK_PERIOD: Duration = Duration::from_millis(500);

/// After the disk failed, this long passes before it is tried again (a guess: people need longer to make room); each time twice as
/// long, until something could be stored.
const DISK_PAUSE: Duration = Duration::from_secs(10);

/// The longest time between two tries.
const DISK_PAUSE_MAX: Duration = Duration::from_secs(600);

/// A shard that has arrived and been verified, for the trainer.
pub type Arrival = (usize, Payload);

/// A node's part of the data that its swarm shares.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DataReport {
    /// Shards of the run's data.
    pub shards: usize,
    /// Shards that this node holds.
    pub shards_held: usize,
    /// Shards that it is to hold, given the members that it knows.
    pub shards_assigned: usize,
    /// Among those, the ones that it holds.
    pub shards_assigned_held: usize,
    /// Shards that it or a member connected to it holds.
    pub shards_reachable: usize,
    /// Whether there is enough to begin training.
    #[serde(skip)]
    pub suffices: bool,
    /// Bytes of shards received from peers.
    pub bytes_fetched: u64,
    /// Bytes of shards sent to peers.
    pub bytes_served: u64,
}

/// What the driver works with.
pub struct DataDriver {
    me: PeerId,
    network: Network,
    sharding: Sharding,
    order: Vec<usize>,
    store: ShardStore,
    held: HeldShards,
    assigned: ShardSet,
    members: Vec<PeerId>,
    peers: Peers,
    under_way: BTreeMap<usize, PeerId>,
    /// Whether a part of a shard may lie on the disk that falls to others by now.
    has_leftovers: bool,
    /// Whether such parts are being removed; no shard is begun meanwhile.
    is_giving_up: bool,
    tasks: JoinSet<TaskEnd>,
    disk_rests_until: Instant,
    /// Where the disk fails next.
    disk_pause: Duration,
    /// Whether the owner wants the network left alone for now.
    is_resting: bool,
    bytes_fetched: Arc<AtomicU64>,
    shelf: Shelf,
    shelf_sender: watch::Sender<HeldShards>,
    arrivals: mpsc::Sender<Arrival>,
    view: watch::Sender<DataReport>,
}

/// The shelf and the channel that fills it: the network needs the one before the driver can start with the other.
pub struct ShelfParts {
    /// For the network.
    pub shelf: Shelf,
    sender: watch::Sender<HeldShards>,
}

impl ShelfParts {
    /// A shelf with what is at hand.
    pub fn new(held: HeldShards) -> ShelfParts {
        let (sender, shards) = watch::channel(held);
        ShelfParts { shelf: Shelf::new(shards), sender }
    }
}

enum TaskEnd {
    Asked(PeerId, Result<ShardSet, ShardError>),
    Fetched(Fetched),
    GivenUp,
}

impl DataDriver {
    /// Starts the driver's task. `arrivals` must have room for all shards of the run.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(
        data: SharedData,
        network: Network,
        shelf: ShelfParts,
        pictures: watch::Receiver<Picture>,
        arrivals: mpsc::Sender<Arrival>,
    ) -> (watch::Receiver<DataReport>, AbortHandle) {
        let me = network.peer_id();
        let SharedData { sharding, store, held } = data;
        let (view, shown) = watch::channel(DataReport::default());
        let mut driver = DataDriver {
            me,
            network,
            order: own_order(me, sharding.hashes()),
            sharding,
            store,
            held,
            assigned: ShardSet::EMPTY,
            members: Vec::new(),
            peers: Peers::default(),
            under_way: BTreeMap::new(),
            has_leftovers: false,
            is_giving_up: false,
            tasks: JoinSet::new(),
            disk_rests_until: Instant::now(),
            disk_pause: DISK_PAUSE,
            is_resting: false,
            bytes_fetched: Arc::new(AtomicU64::new(0)),
            shelf: shelf.shelf,
            shelf_sender: shelf.sender,
            arrivals,
            view,
        };
        driver.assign();
        driver.show();
        let task = tokio::spawn(driver.run(pictures));
        (shown, task.abort_handle())
    }

    async fn run(mut self, mut pictures: watch::Receiver<Picture>) {
        let mut looks = tokio::time::interval(LOOK_PERIOD);
        loop {
            tokio::select! {
                changed = pictures.changed() => match changed {
                    Ok(()) => self.follow(&pictures.borrow_and_update()),
                    Err(_) => return,
                },
                Some(ended) = self.tasks.join_next() => self.on_ended(ended),
                _ = looks.tick() => {}
            }
            self.give_up();
            if !self.is_resting {
                self.ask_around();
                self.fetch_more();
            }
            self.show();
        }
    }

    /// Takes over who is there.
    fn follow(&mut self, picture: &Picture) {
        let status = &picture.status;
        self.rest(status.is_resting);
        self.peers.keep_connected(&status.connected);
        let mut members: Vec<PeerId> = status.known.iter().map(|known| known.peer).collect();
        members.extend(&status.connected);
        members.sort_unstable();
        members.dedup();
        if members != self.members {
            self.members = members;
            self.assign();
        }
    }

    /// In a rest nothing is fetched and nobody is given anything; what is on its way still arrives, as exchanges do.
    fn rest(&mut self, is_resting: bool) {
        if self.is_resting != is_resting {
            self.is_resting = is_resting;
            self.offer();
        }
    }

    /// Puts on the shelf what peers may fetch.
    fn offer(&self) {
        let offered = if self.is_resting { HeldShards::default() } else { self.held.clone() };
        self.shelf_sender.send_replace(offered);
    }

    /// What every node needs, and what falls to this one.
    fn assign(&mut self) {
        let own = assignment(self.me, &self.members, self.sharding.hashes(), SHARD_REPLICAS);
        let assigned = own.union(self.sharding.held_out());
        self.has_leftovers |= !assigned.contains_all(self.assigned);
        self.assigned = assigned;
    }

    /// Removes what has arrived of shards that fall to others by now. Not before training can begin: until then any shard will do.
    fn give_up(&mut self) {
        if !self.has_leftovers || self.is_giving_up || !self.sharding.suffices(self.held_set()) {
            return;
        }
        (self.has_leftovers, self.is_giving_up) = (false, true);
        let hashes = self.sharding.hashes();
        let wanted = self.under_way.keys().copied().chain(self.assigned.iter());
        let wanted: BTreeSet<ShardHash> = wanted.map(|index| hashes[index]).collect();
        let given_up: Vec<usize> = (0..hashes.len()).filter(|index| !wanted.contains(&hashes[*index])).collect();
        given_up.iter().for_each(|index| self.peers.forget_partial(*index));
        let (store, given_up) =
            (self.store.clone(), given_up.into_iter().map(|index| hashes[index]).collect::<Vec<_>>());
        self.tasks.spawn(async move {
            let _ = tokio::task::spawn_blocking(move || store.give_up(&given_up)).await;
            TaskEnd::GivenUp
        });
    }

    /// The shards with the same bytes, this one among them: a text that repeats itself has such.
    fn equals(&self, index: usize) -> Vec<usize> {
        let hashes = self.sharding.hashes();
        (0..hashes.len()).filter(|other| hashes[*other] == hashes[index]).collect()
    }

    fn held_set(&self) -> ShardSet {
        self.held.keys().copied().collect()
    }

    fn ask_around(&mut self) {
        let complete = self.held_set().contains_all(self.assigned);
        for peer in self.peers.choose_whom_to_ask(self.sharding.all(), complete) {
            let network = self.network.clone();
            self.tasks.spawn(async move { TaskEnd::Asked(peer, network.ask_holdings(peer).await) });
        }
    }

    fn fetch_more(&mut self) {
        if Instant::now() < self.disk_rests_until || self.is_giving_up {
            return;
        }
        while self.under_way.len() < FETCHES_MAX {
            // Equal shards have one file, and arrive together.
            let under_way: ShardSet = self.under_way.keys().flat_map(|index| self.equals(*index)).collect();
            let sources = self.peers.sources();
            let held = self.held_set();
            let next = next_fetch(&self.sharding, &self.order, self.assigned, held, under_way, &sources);
            let Some((index, peer)) = next else { return };
            let afresh = self.peers.must_not_mix(index, peer);
            if afresh {
                self.peers.forget_partial(index);
            }
            let fetch = Fetch {
                index,
                peer,
                hash: self.sharding.hashes()[index],
                length: self.sharding.length(index),
                afresh,
                counter: self.bytes_fetched.clone(),
            };
            self.under_way.insert(index, peer);
            self.peers.begin_fetch(peer);
            let (network, store) = (self.network.clone(), self.store.clone());
            self.tasks.spawn(async move { TaskEnd::Fetched(fetch.run(&network, store).await) });
        }
    }

    fn on_ended(&mut self, ended: Result<TaskEnd, JoinError>) {
        match ended {
            Ok(TaskEnd::Asked(peer, answer)) => self.peers.on_answer(peer, answer),
            Ok(TaskEnd::GivenUp) => self.is_giving_up = false,
            Ok(TaskEnd::Fetched(fetched)) => {
                self.under_way.remove(&fetched.index);
                self.on_fetched(fetched);
            }
            // A task that panicked has shown a mistake of ours; its shard stays under way and the others go on.
            Err(error) => tracing::error!(%error, "a task of the data driver failed"),
        }
    }

    fn on_fetched(&mut self, fetched: Fetched) {
        let Fetched { index, peer, held, resumed_at, arrived, outcome } = fetched;
        self.peers.end_fetch(peer, held);
        let hash = self.sharding.hashes()[index].short();
        match outcome {
            Outcome::Stored(shard) => {
                self.peers.forget_partial(index);
                self.peers.succeeded(peer);
                self.disk_pause = DISK_PAUSE;
                for equal in self.equals(index) {
                    Arc::make_mut(&mut self.held).insert(equal, shard.clone());
                    // There is room for all shards; without a trainer nobody needs them any more.
                    let _ = self.arrivals.try_send((equal, shard.clone()));
                }
                self.offer();
            }
            // It was whole on disk already, and wrong.
            Outcome::WrongHash if arrived == 0 => self.peers.forget_partial(index),
            Outcome::WrongHash => {
                if self.peers.blame(index, peer, resumed_at) {
                    note(&format!(
                        "warning: peer {} sent other bytes than those of shard {index} ({hash})\nhint: nothing is \
                         fetched from it any more; the shard is taken from another peer",
                        peer.short()
                    ));
                } else {
                    tracing::info!("shard {index} came from several peers and is wrong: it is fetched from one alone");
                }
            }
            Outcome::Missing => self.peers.lacks(peer, index),
            Outcome::Busy => self.peers.rest(peer, peers::BUSY_PAUSE),
            Outcome::Failed(error) => {
                tracing::debug!(peer = %peer, %error, index, "a shard did not arrive; the next peer goes on");
                self.peers.contributed(index, peer, resumed_at, arrived);
                self.peers.failed(peer, &error);
            }
            Outcome::Disk(error) => {
                self.peers.contributed(index, peer, resumed_at, arrived);
                if Instant::now() >= self.disk_rests_until {
                    note(&format!(
                        "warning: cannot store shard {index} in {}: {error}\nhint: free some space there; it is tried \
                         again in {} s, and training goes on with what is here",
                        self.store.folder().display(),
                        self.disk_pause.as_secs()
                    ));
                    self.disk_rests_until = Instant::now() + self.disk_pause;
                    self.disk_pause = (2 * self.disk_pause).min(DISK_PAUSE_MAX);
                }
            }
        }
    }

    fn show(&self) {
        let held = self.held_set();
        let view = DataReport {
            shards: self.sharding.count(),
            shards_held: held.len(),
            shards_assigned: self.assigned.len(),
            shards_assigned_held: self.assigned.intersection(held).len(),
            shards_reachable: held.union(self.peers.held_by_any()).intersection(self.sharding.all()).len(),
            suffices: self.sharding.suffices(held),
            bytes_fetched: self.bytes_fetched.load(Ordering::Relaxed),
            bytes_served: self.shelf.bytes_served(),
        };
        self.view.send_if_modified(|shown| {
            let changed = *shown != view;
            *shown = view;
            changed
        });
    }
}
