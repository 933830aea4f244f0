//! The swarm task: polls libp2p, forwards orders to the tasks of peers, and does nothing that could wait.
//!
//! Its own events (failed dials, addresses, transfers that never began) go through a bounded queue with a task of its
//! own, so that a busy core never stops the swarm. While that queue is nearly full no orders are taken.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use futures::StreamExt;
use libp2p::core::ConnectedPoint;
use libp2p::swarm::{ConnectionId, Swarm, SwarmEvent};
use libp2p::{Multiaddr, ping};
use murmur_protocol::{Address, Event, NetworkOrder, PeerId};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout_at};

use crate::access::Admission;
use crate::address::{is_circuit, to_core_address, to_core_peer};
use crate::behaviour::{Behaviour, BehaviourEvent};
use crate::bounds::{
    CLOSE_TIMEOUT, HANDSHAKES_MAX, LOOK_PERIOD, OUTBOX_RESERVE, OUTGOING_PARTS_MAX, PING_TIMEOUT, TURNED_AWAY_MAX,
};
use crate::connectivity::Connectivity;
use crate::dial_filter::DialFilter;
use crate::dialing::Dial;
use crate::discovery::neighbours::Neighbours;
use crate::discovery::table::Finding;
use crate::handshake::gate::refusal_of_dial;
use crate::handshake::{Dialed, Link, NewConnection, NoLink, is_inbound, perform, stand_by};
use crate::member::{MemberEnded, MemberOrder};
use crate::nat::Nat;
use crate::paths::Paths;
use crate::places::{Places, Proven};
use crate::reachability::Reachability;
use crate::shared::Shared;
use crate::sources::{Source, Waiting, who_gives_way};
use crate::visits::Visits;

mod discovery;
pub(crate) mod listening;
mod orders;
mod welcome;

/// The state of the swarm task.
pub(crate) struct Driver {
    pub(crate) swarm: Swarm<Behaviour>,
    /// What the swarm may dial of itself.
    dial_filter: DialFilter,
    pub(crate) shared: Arc<Shared>,
    pub(crate) orders: mpsc::Receiver<NetworkOrder>,
    pub(crate) closing: watch::Receiver<bool>,
    admission: watch::Receiver<Admission>,
    pub(crate) views: Views,
    /// Events of this task. Has room for one per dial and order at any time.
    pub(crate) outbox: mpsc::Sender<Event>,
    dials: HashMap<ConnectionId, Dial>,
    /// Connections whose handshake is under way, the oldest first; libp2p's limits bound them.
    handshakes: BTreeMap<ConnectionId, Handshake>,
    members: HashMap<PeerId, MemberHandle>,
    /// Of those who are told whom else to turn to.
    partings: Arc<Semaphore>,
    tasks: JoinSet<TaskEnd>,
    /// Of transfers that exchanges need.
    places: Places,
    /// Of parts of the model.
    part_places: Arc<Semaphore>,
    connectivity: Connectivity,
    finding: Finding,
    neighbours: Neighbours,
    visits: Visits,
    nat: Nat,
    paths: Paths,
    /// When to look after what takes its time.
    looks: Interval,
}

/// What others may see of this task's knowledge, as it changes.
pub(crate) struct Views {
    /// Where the node listens.
    pub(crate) listen: watch::Sender<Vec<Multiaddr>>,
    /// Where it is found, best first: for handshakes.
    pub(crate) own: watch::Sender<Vec<Multiaddr>>,
    /// Whether and how others reach it.
    pub(crate) reachability: watch::Sender<Reachability>,
}

/// A handshake under way, or a connection on which there may be one.
struct Handshake {
    peer: PeerId,
    task: AbortHandle,
    /// Starts it, where this connection was opened for something else: a lookup, a circuit, a probe.
    wanted: Option<oneshot::Sender<Dialed>>,
    is_direct: bool,
    /// Where the connection comes from, or leads to.
    source: Option<Source>,
    /// Whether the other side is to greet.
    is_inbound: bool,
    /// Whether the connection came about with a relay's help.
    is_punched: bool,
}

/// A member as the swarm task sees it.
struct MemberHandle {
    orders: mpsc::Sender<MemberOrder>,
    close: Option<oneshot::Sender<()>>,
    proven: Proven,
    /// From where it was reached first; `None` where that is not known.
    source: Option<Source>,
    /// Where it listens, for those whom to tell of it.
    addresses: Vec<Address>,
    /// Whether one of its connections was dialed by this node.
    dialed: bool,
    /// Connections that wait for the member to end, because it takes no more.
    waiting: Vec<Link>,
}

enum TaskEnd {
    Handshake {
        connection: ConnectionId,
        peer: PeerId,
        link: Result<Box<Link>, NoLink>,
    },
    Member(MemberEnded),
    /// Somebody was turned away, and knows it.
    TurnedAway,
}

impl Driver {
    pub(crate) fn new(
        (swarm, dial_filter): (Swarm<Behaviour>, DialFilter),
        shared: Arc<Shared>,
        orders: mpsc::Receiver<NetworkOrder>,
        closing: watch::Receiver<bool>,
        views: Views,
        outbox: mpsc::Sender<Event>,
        connectivity: Connectivity,
    ) -> Driver {
        let mut looks = interval(LOOK_PERIOD);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let finding = Finding::new(shared.me, shared.manifest.run_id());
        Driver {
            swarm,
            admission: shared.access.admission.clone(),
            dial_filter,
            shared,
            orders,
            closing,
            views,
            outbox,
            dials: HashMap::new(),
            handshakes: BTreeMap::new(),
            members: HashMap::new(),
            partings: Arc::new(Semaphore::new(TURNED_AWAY_MAX)),
            tasks: JoinSet::new(),
            places: Places::new(),
            part_places: Arc::new(Semaphore::new(OUTGOING_PARTS_MAX)),
            connectivity,
            finding,
            neighbours: Neighbours::default(),
            visits: Visits::default(),
            nat: Nat::new(connectivity.exposure),
            paths: Paths::default(),
            looks,
        }
    }

    /// Runs until the node closes, then takes leave.
    pub(crate) async fn run(mut self) {
        self.take_in_known_addresses();
        loop {
            let has_room = self.outbox.capacity() > OUTBOX_RESERVE;
            tokio::select! {
                event = self.swarm.select_next_some() => self.on_swarm_event(event),
                Some(ended) = self.tasks.join_next() => self.on_task_ended(ended),
                order = self.orders.recv(), if has_room => match order {
                    Some(order) => self.obey(order),
                    None => break,
                },
                _ = self.looks.tick() => self.look_around(),
                // Wakes this loop once there is room again.
                () = wait_for_room(&self.outbox), if !has_room => {}
                Ok(()) = self.admission.changed() => self.disconnect_excluded(),
                // It only ever changes to true, or its sender is gone.
                _ = self.closing.changed() => break,
            }
        }
        self.take_leave().await;
    }

    /// Tries what is left of a dial until something is under way.
    fn dial(&mut self, mut dial: Dial) {
        while let Some(options) = dial.next_attempt() {
            let connection = options.connection_id();
            self.dial_filter.vouch(dial.trying());
            match self.swarm.dial(options) {
                Ok(()) => {
                    self.dials.insert(connection, dial);
                    return;
                }
                Err(error) => dial.on_failure(&error),
            }
        }
        self.dial_failed(dial);
    }

    fn dial_failed(&mut self, dial: Dial) {
        let failed = dial.into_event();
        if let Event::DialFailed { reason, .. } = &failed {
            self.nat.dial_failed(reason.clone());
        }
        self.emit(failed);
    }

    /// Whether a peer is connected as a member, or about to be.
    fn is_taken(&self, peer: PeerId) -> bool {
        let may_be_auxiliary = self.connectivity.has_auxiliary_connections();
        let is_under_way = |handshake: &Handshake| {
            handshake.peer == peer && handshake.wanted.is_none() && !(may_be_auxiliary && handshake.is_inbound)
        };
        self.members.contains_key(&peer)
            || self.dials.values().any(|dial| dial.peer() == Some(peer))
            || self.handshakes.values().any(is_under_way)
    }

    /// Greets on a direct connection to the peer that is there already, for another purpose. Gives the dial back where
    /// there is none.
    fn use_auxiliary(&mut self, dial: Dial) -> Option<Dial> {
        let Some(peer) = dial.peer() else { return Some(dial) };
        let is_usable = |handshake: &&mut Handshake| {
            let is_open = handshake.wanted.as_ref().is_some_and(|wanted| !wanted.is_closed());
            handshake.peer == peer && handshake.is_direct && is_open
        };
        match self.handshakes.values_mut().find(is_usable).and_then(|handshake| handshake.wanted.take()) {
            // Where it has just closed, the core's own limit counts the dial as failed.
            Some(wanted) => {
                let _ = wanted.send(dial.into_dialed());
                None
            }
            None => Some(dial),
        }
    }

    fn disconnect(&mut self, peer: PeerId) {
        // A handshake under way drops its connection when it is aborted.
        let under_way = self.handshakes.extract_if(.., |_, handshake| handshake.peer == peer);
        under_way.for_each(|(_, handshake)| handshake.task.abort());
        if let Some(member) = self.members.get_mut(&peer) {
            member.waiting.clear();
            if let Some(close) = member.close.take() {
                let _ = close.send(());
            }
        }
    }

    /// Parts from those whom the owner lets in no longer.
    fn disconnect_excluded(&mut self) {
        let handshakes = self.handshakes.values().map(|handshake| handshake.peer);
        let mut excluded: BTreeSet<PeerId> = self.members.keys().copied().chain(handshakes).collect();
        excluded.retain(|peer| !self.shared.access.admits(*peer));
        excluded.into_iter().for_each(|peer| self.disconnect(peer));
    }

    pub(crate) fn on_swarm_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                self.on_connected(&peer_id, connection_id, &endpoint);
            }
            SwarmEvent::OutgoingConnectionError { connection_id, error, .. } => {
                if let Some(mut dial) = self.dials.remove(&connection_id) {
                    match refusal_of_dial(&error) {
                        Some((peer, refusal)) => self.refused(peer, refusal),
                        None => {
                            dial.on_failure(&error);
                            self.dial(dial);
                        }
                    }
                }
            }
            SwarmEvent::IncomingConnection { connection_id, send_back_addr, .. } => {
                if let Some(from) = to_core_address(&send_back_addr) {
                    self.visits.begin(Instant::now(), connection_id, from);
                }
            }
            SwarmEvent::IncomingConnectionError { connection_id, send_back_addr, error, .. } => {
                self.visits.end(connection_id);
                self.on_visit_failed(&send_back_addr, &error);
            }
            SwarmEvent::NewListenAddr { listener_id, address } if is_circuit(&address) => {
                self.on_circuit_address(listener_id, address);
            }
            SwarmEvent::NewListenAddr { address, .. } => self.on_listen_address(address),
            SwarmEvent::ExpiredListenAddr { address, .. } => self.on_listen_addresses_lost(&[address]),
            SwarmEvent::ListenerClosed { listener_id, addresses, reason } => {
                self.on_listener_closed(listener_id, &addresses, reason);
            }
            // What the system refuses, such as more open files, is this machine's trouble; the rest is what strangers send.
            SwarmEvent::ListenerError { error, .. } if error.raw_os_error().is_some() => {
                tracing::warn!(%error, "a listener reports an error");
            }
            SwarmEvent::ListenerError { error, .. } => tracing::debug!(%error, "a listener reports an error"),
            SwarmEvent::Behaviour(BehaviourEvent::Ping(ping)) => self.on_ping(&ping),
            other => self.on_discovery_event(other),
        }
    }

    fn on_connected(&mut self, peer: &libp2p::PeerId, connection: ConnectionId, endpoint: &ConnectedPoint) {
        let dial = self.dials.remove(&connection);
        self.visits.end(connection);
        let is_punched = self.on_way_found(peer, connection, endpoint);
        let Some(streams) = self.swarm.behaviour_mut().streams.take(connection) else { return };
        let source = Source::of(endpoint.get_remote_address());
        let is_flooded = dial.is_none() && self.handshakes.len() >= HANDSHAKES_MAX;
        if self.is_closing() || (is_flooded && !self.make_room(source)) {
            return;
        }
        let Some(peer) = to_core_peer(peer) else {
            // Dropping the streams closes the connection.
            if let Some(dial) = dial {
                self.emit(dial.refuse("the peer there has no ed25519 identity"));
            }
            return;
        };
        let remote = endpoint.get_remote_address().clone();
        let (is_ours, dialed) = (dial.is_some(), dial.map(Dial::into_dialed));
        let (is_relayed, may_be_auxiliary) = (endpoint.is_relayed(), self.connectivity.has_auxiliary_connections());
        let new = NewConnection { peer, remote, is_relayed, dialed, may_be_auxiliary, streams };
        let shared = self.shared.clone();
        let is_inbound = is_inbound(endpoint);
        let (wanted, task) = if is_ours || is_inbound {
            let task = self.tasks.spawn(async move {
                let link = perform(shared, new).await.map(Box::new);
                TaskEnd::Handshake { connection, peer, link }
            });
            (None, task)
        } else {
            let (wanted, is_wanted) = oneshot::channel();
            let task = self.tasks.spawn(async move {
                let link = stand_by(shared, new, is_wanted).await.map(Box::new);
                TaskEnd::Handshake { connection, peer, link }
            });
            (Some(wanted), task)
        };
        let is_direct = !is_relayed;
        let handshake = Handshake { peer, task, wanted, is_direct, source, is_inbound, is_punched };
        self.handshakes.insert(connection, handshake);
    }

    /// Makes room among the handshakes for one from there: one for which another peer has to greet is over. `false`: there is
    /// none.
    fn make_room(&mut self, newcomer: Option<Source>) -> bool {
        let streams = &self.swarm.behaviour().streams;
        let inbound = self.handshakes.iter().filter(|(_, handshake)| handshake.is_inbound);
        let (connections, waiting): (Vec<ConnectionId>, Vec<Waiting>) = inbound
            .map(|(id, handshake)| (*id, Waiting { source: handshake.source, is_silent: streams.is_silent(*id) }))
            .unzip();
        let place = who_gives_way(&waiting, newcomer);
        let ended = place.and_then(|place| self.handshakes.remove(&connections[place]));
        ended.map(|handshake| handshake.task.abort()).is_some()
    }

    fn on_ping(&mut self, ping: &ping::Event) {
        match &ping.result {
            Ok(took) => {
                self.swarm.behaviour().streams.hear(ping.connection);
                if let Some(peer) = to_core_peer(&ping.peer) {
                    self.shared.round_trips.note(peer, *took);
                }
            }
            Err(ping::Failure::Unsupported) => {}
            // It waits behind the bulk, on either side.
            Err(_) if self.swarm.behaviour().streams.is_moving(ping.connection, PING_TIMEOUT) => {}
            Err(failure) => {
                tracing::debug!(peer = %ping.peer, %failure, "closing a dead connection");
                self.swarm.close_connection(ping.connection);
            }
        }
    }

    fn on_task_ended(&mut self, ended: Result<TaskEnd, JoinError>) {
        match ended {
            Ok(TaskEnd::Handshake { connection, peer, link }) => {
                let handshake = self.handshakes.remove(&connection);
                match (link, handshake) {
                    (Ok(link), Some(handshake)) => {
                        self.paths.wanted(connection);
                        if handshake.is_punched {
                            self.nat.punched();
                            self.publish();
                        }
                        self.welcome(peer, *link);
                    }
                    (Err(NoLink::Stranger), _) => self.finding.met_stranger(Instant::now(), peer),
                    (Ok(_), None) | (Err(NoLink::Closed), _) => {}
                }
            }
            Ok(TaskEnd::Member(MemberEnded { peer, leftover })) => {
                let waiting = self.members.remove(&peer).map(|member| member.waiting);
                for link in leftover.into_iter().chain(waiting.into_iter().flatten()) {
                    self.welcome(peer, link);
                }
            }
            Ok(TaskEnd::TurnedAway) => {}
            Err(error) if error.is_panic() => tracing::error!(%error, "a peer's task failed"),
            Err(_) => {}
        }
    }

    fn emit(&self, event: Event) {
        if let Err(error) = self.outbox.try_send(event) {
            tracing::warn!(%error, "dropped an event: the core takes none");
        }
    }

    fn is_closing(&self) -> bool {
        *self.closing.borrow() || self.closing.has_changed().is_err()
    }

    /// Stops listening, lets members write what is queued, closes all connections. Bounded by a deadline.
    async fn take_leave(mut self) {
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        let _ = timeout_at(deadline, self.close_members()).await;
        self.tasks.shutdown().await;
        let peers: Vec<_> = self.swarm.connected_peers().copied().collect();
        for peer in peers {
            let _ = self.swarm.disconnect_peer_id(peer);
        }
        while self.swarm.network_info().connection_counters().num_connections() > 0 {
            match timeout_at(deadline, self.swarm.select_next_some()).await {
                Ok(event) => tracing::trace!(?event, "while closing"),
                Err(_) => break,
            }
        }
    }

    async fn close_members(&mut self) {
        // What was ordered before is still carried out: the last messages among it.
        self.orders.close();
        while let Ok(order) = self.orders.try_recv() {
            self.obey(order);
        }
        let peers: Vec<PeerId> = self.members.keys().copied().collect();
        for peer in peers {
            self.disconnect(peer);
        }
        while !self.members.is_empty() {
            tokio::select! {
                event = self.swarm.select_next_some() => self.on_swarm_event(event),
                Some(ended) = self.tasks.join_next() => self.on_task_ended(ended),
            }
        }
    }
}

/// Waits until the outbox has room for an order's event beyond its reserve, or nobody empties it any more.
async fn wait_for_room(outbox: &mpsc::Sender<Event>) {
    if outbox.reserve_many(OUTBOX_RESERVE + 1).await.is_err() {
        std::future::pending().await
    }
}
