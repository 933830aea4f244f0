//! Raw streams by protocol, with a real queue on the receiving side.
//!
//! `libp2p-stream` drops inbound streams when several open at once, so this small behaviour takes its place. Each
//! connection is one value, [`ConnectionStreams`]: its owner takes inbound streams from it and opens outbound ones,
//! without going through the swarm task. Until its owner knows the peer, a connection has control streams alone: what strangers
//! write on others would wait in memory for a reader. Ownership is the life of the connection, both ways: the connection closes when
//! the last [`StreamOpener`] is dropped, and the queues end when the connection does.

mod activity;
mod handler;

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::swarm::behaviour::{DialFailure, FromSwarm, ListenFailure};
use libp2p::swarm::{
    CloseConnection, ConnectionDenied, ConnectionId, NetworkBehaviour, StreamProtocol, THandlerInEvent,
    THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId};
use tokio::sync::{mpsc, oneshot};

use crate::bounds::{
    OPEN_REQUESTS_MAX, OPEN_TIMEOUT, WAITING_BULK_STREAMS_MAX, WAITING_CONTROL_STREAMS_MAX, WAITING_DATA_STREAMS_MAX,
    WAITING_LIFE_STREAMS_MAX,
};
pub use activity::{Activity, Stream};
pub use handler::StreamsHandler;
use handler::{Abandoned, InboundQueues, OpenRequest};

/// Handshake, then control messages, both ways, for as long as the connection lasts.
pub const CONTROL_PROTOCOL: StreamProtocol = StreamProtocol::new("/murmur/control/1");

/// One transfer.
pub const BULK_PROTOCOL: StreamProtocol = StreamProtocol::new("/murmur/bulk/3");

/// One request for a shard of shared data, and its answer.
pub const DATA_PROTOCOL: StreamProtocol = StreamProtocol::new("/murmur/data/1");

/// One question about the life behind a connection, and its answer.
pub const LIFE_PROTOCOL: StreamProtocol = StreamProtocol::new("/murmur/life/1");

/// The streams of one connection.
#[derive(Debug)]
pub struct ConnectionStreams {
    /// Opens streams. The connection closes when the last clone is dropped.
    pub opener: StreamOpener,
    /// Whether the peer may open streams beside control streams.
    knows_peer: Arc<AtomicBool>,
    /// Control streams that the peer opened.
    pub control: mpsc::Receiver<Stream>,
    /// Bulk streams that the peer opened. Beyond the queue's bound they are reset.
    pub bulk: mpsc::Receiver<Stream>,
    /// Requests for shards that the peer opened. Beyond the queue's bound they are reset.
    pub data: mpsc::Receiver<Stream>,
    /// Questions about this node's life that the peer opened. Beyond the queue's bound they are reset.
    pub life: mpsc::Receiver<Stream>,
}

impl ConnectionStreams {
    /// From now on the peer may open all streams. Before it is told so, lest it is too fast.
    pub fn accept_all(&self) {
        self.knows_peer.store(true, Ordering::Release);
    }
}

/// Opens streams on one connection.
#[derive(Clone, Debug)]
pub struct StreamOpener(mpsc::Sender<OpenRequest>);

/// An opener that does not keep its connection open.
#[derive(Clone, Debug)]
pub struct WeakOpener(mpsc::WeakSender<OpenRequest>);

impl WeakOpener {
    /// The opener, while somebody else keeps the connection open.
    pub fn upgrade(&self) -> Option<StreamOpener> {
        self.0.upgrade().map(StreamOpener)
    }
}

/// Why a stream could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The connection is gone.
    #[error("the connection is closed")]
    Closed,
    /// Nothing happened in time.
    #[error("no stream could be opened within {} s", OPEN_TIMEOUT.as_secs())]
    TimedOut,
    /// The other side speaks no such protocol.
    #[error("the peer does not speak {0}")]
    Unsupported(StreamProtocol),
    /// The connection failed while the stream was being opened.
    #[error("cannot open a stream: {0}")]
    Io(std::io::Error),
}

impl StreamOpener {
    /// Opens a stream.
    ///
    /// # Errors
    /// When the connection is closed, the peer does not speak the protocol, or nothing happens within ten seconds.
    pub async fn open(&self, protocol: StreamProtocol) -> Result<Stream, OpenError> {
        let (reply, answer) = oneshot::channel();
        let request = OpenRequest { protocol, reply };
        let opened = async {
            self.0.send(request).await.map_err(|_| OpenError::Closed)?;
            answer.await.map_err(|_| OpenError::Closed)?
        };
        tokio::time::timeout(OPEN_TIMEOUT, opened).await.unwrap_or(Err(OpenError::TimedOut))
    }

    /// The same without a say in how long the connection lives.
    pub fn downgrade(&self) -> WeakOpener {
        WeakOpener(self.0.downgrade())
    }

    /// Waits until the connection is closed.
    pub async fn closed(&self) {
        self.0.closed().await;
    }
}

/// Opens and accepts raw streams of our protocols.
#[derive(Default)]
pub struct StreamsBehaviour {
    /// Streams of connections that nobody has taken yet: as many as there are connections being established.
    untaken: HashMap<ConnectionId, ConnectionStreams>,
    /// When something came, by connection: as many as there are.
    activities: HashMap<ConnectionId, Activity>,
    /// Connections whose owner is gone; at most one entry a connection.
    abandoned: VecDeque<(PeerId, ConnectionId)>,
}

impl StreamsBehaviour {
    /// Hands over a connection's streams, once: to be called when the swarm reports it as established.
    pub fn take(&mut self, connection: ConnectionId) -> Option<ConnectionStreams> {
        self.untaken.remove(&connection)
    }

    /// Whether bytes have come on a connection's streams within this time.
    pub fn is_moving(&self, connection: ConnectionId, within: Duration) -> bool {
        self.activities.get(&connection).is_some_and(|activity| activity.is_fresh(within))
    }

    /// Whether nothing has come on a connection's streams so far.
    pub(crate) fn is_silent(&self, connection: ConnectionId) -> bool {
        self.activities.get(&connection).is_none_or(Activity::is_silent)
    }

    /// Something came on a connection beside its streams.
    pub(crate) fn hear(&self, connection: ConnectionId) {
        if let Some(activity) = self.activities.get(&connection) {
            activity.hear();
        }
    }

    fn forget(&mut self, connection: ConnectionId) {
        self.untaken.remove(&connection);
        self.activities.remove(&connection);
    }

    fn prepare(&mut self, connection: ConnectionId) -> StreamsHandler {
        let (open, requests) = mpsc::channel(OPEN_REQUESTS_MAX);
        let (control_queue, control) = mpsc::channel(WAITING_CONTROL_STREAMS_MAX);
        let (bulk_queue, bulk) = mpsc::channel(WAITING_BULK_STREAMS_MAX);
        let (data_queue, data) = mpsc::channel(WAITING_DATA_STREAMS_MAX);
        let (life_queue, life) = mpsc::channel(WAITING_LIFE_STREAMS_MAX);
        let knows_peer = Arc::new(AtomicBool::new(false));
        let opener = StreamOpener(open);
        let streams = ConnectionStreams { opener, knows_peer: knows_peer.clone(), control, bulk, data, life };
        self.untaken.insert(connection, streams);
        let queues = InboundQueues { control: control_queue, bulk: bulk_queue, data: data_queue, life: life_queue };
        let activity = Activity::new();
        self.activities.insert(connection, activity.clone());
        StreamsHandler::new(requests, queues, knows_peer, activity)
    }
}

impl NetworkBehaviour for StreamsBehaviour {
    type ConnectionHandler = StreamsHandler;
    type ToSwarm = Infallible;

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<StreamsHandler, ConnectionDenied> {
        Ok(self.prepare(connection))
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<StreamsHandler, ConnectionDenied> {
        Ok(self.prepare(connection))
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        match event {
            // Another behaviour denied the connection after ours had prepared for it.
            FromSwarm::DialFailure(DialFailure { connection_id, .. })
            | FromSwarm::ListenFailure(ListenFailure { connection_id, .. }) => {
                self.forget(connection_id);
            }
            FromSwarm::ConnectionClosed(closed) => {
                self.forget(closed.connection_id);
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        Abandoned: THandlerOutEvent<Self>,
    ) {
        self.abandoned.push_back((peer, connection));
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Infallible, THandlerInEvent<Self>>> {
        // No waker is kept: the swarm polls again after each event of a handler.
        match self.abandoned.pop_front() {
            Some((peer_id, connection)) => {
                Poll::Ready(ToSwarm::CloseConnection { peer_id, connection: CloseConnection::One(connection) })
            }
            None => Poll::Pending,
        }
    }
}
