//! What the tasks of all connections share: facts about this node, and the way to the core.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use libp2p::Multiaddr;
use murmur_protocol::handshake::Credentials;
use murmur_protocol::{Address, Event, PeerId, RunManifest};
use tokio::sync::{mpsc, watch};

use crate::access::{Access, Admission};
use crate::address::addresses_to_tell;
use crate::bulk::room::Room;
use crate::config::NetworkConfig;
use crate::data::DataExchange;
use crate::life::{Double, OwnLife};
use crate::rate_limit::{RateLimiter, Throttle};
use crate::round_trips::RoundTrips;
use crate::streams::Activity;

/// Shared by the tasks of one node; nothing in it is locked for longer than a read.
pub(crate) struct Shared {
    /// This node.
    pub(crate) me: PeerId,
    /// The run it takes part in.
    pub(crate) manifest: Arc<RunManifest>,
    /// The run's canonical text, as it goes into handshakes.
    pub(crate) manifest_text: String,
    /// This process among those that may run as this node.
    pub(crate) life: OwnLife,
    /// Who is let in.
    pub(crate) access: Access,
    /// Where the node is found, best first, as it changes.
    pub(crate) own: watch::Receiver<Vec<Multiaddr>>,
    /// Paces what is sent, over all peers.
    pub(crate) upload: Arc<RateLimiter>,
    /// Paces what is received.
    pub(crate) download: Arc<RateLimiter>,
    /// The longest payload that a peer may announce.
    pub(crate) payload_bytes_max: u64,
    /// What all inbound transfers together may hold.
    pub(crate) room: Room,
    /// When this node last asked for a model, or a part of one came.
    pub(crate) copying: Activity,
    /// Shards that this node gives, and where it may ask for others.
    pub(crate) data: Arc<DataExchange>,
    /// How long pings took.
    pub(crate) round_trips: RoundTrips,
    events: mpsc::Sender<Event>,
    messages_dropped: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        me: PeerId,
        config: NetworkConfig,
        own: watch::Receiver<Vec<Multiaddr>>,
        admission: watch::Receiver<Admission>,
        double: watch::Sender<Option<Double>>,
        events: mpsc::Sender<Event>,
    ) -> Shared {
        let NetworkConfig {
            identity, manifest, secret, throttle, payload_bytes_max, inbound_bytes_budget, shelf, ..
        } = config;
        let Throttle { upload, download } = throttle;
        Shared {
            me,
            life: OwnLife::begin(identity, manifest.run_id(), double),
            manifest_text: manifest.canonical_text(),
            access: Access { credentials: Credentials { run: manifest.run_id(), secret }, admission },
            manifest,
            own,
            upload,
            payload_bytes_max,
            room: Room::new(inbound_bytes_budget, payload_bytes_max),
            data: Arc::new(DataExchange::new(shelf, download.clone())),
            download,
            copying: Activity::new(),
            round_trips: RoundTrips::default(),
            events,
            messages_dropped: AtomicU64::new(0),
        }
    }

    /// Tells the core, waiting while it is busy. Where the core is gone nobody needs to know any more.
    pub(crate) async fn emit(&self, event: Event) {
        let _ = self.events.send(event).await;
    }

    /// Tells the core, and lets go of what the work held just before it hears: it may order the next at once. Until
    /// then the place stays taken, so that a busy core bounds the tasks that wait for it.
    pub(crate) async fn emit_releasing<Held>(&self, event: Event, held: Held) {
        if let Ok(slot) = self.events.reserve().await {
            drop(held);
            slot.send(event);
        }
    }

    /// Notes that a control message was dropped because a queue was full. The core repeats what matters.
    pub(crate) fn count_dropped_message(&self, peer: PeerId) {
        let dropped = self.messages_dropped.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::debug!(%peer, dropped, "dropped a control message: the peer's queue is full");
    }

    /// Where this node says that it is found, to a peer that is reached at `remote`.
    pub(crate) fn addresses_for(&self, remote: &Multiaddr) -> Vec<Address> {
        addresses_to_tell(&self.own.borrow(), remote)
    }
}
