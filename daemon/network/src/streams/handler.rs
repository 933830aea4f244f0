//! The part of the streams behaviour that lives with one connection, on libp2p's task for it.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use libp2p::StreamProtocol;
use libp2p::core::upgrade::{InboundUpgrade, OutboundUpgrade, UpgradeInfo};
use libp2p::swarm::handler::{ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound};
use libp2p::swarm::{
    ConnectionHandler, ConnectionHandlerEvent, Stream as RawStream, StreamUpgradeError, SubstreamProtocol,
};
use tokio::sync::{mpsc, oneshot};

use super::{Activity, BULK_PROTOCOL, CONTROL_PROTOCOL, DATA_PROTOCOL, LIFE_PROTOCOL, OpenError, Stream};
use crate::bounds::OPEN_TIMEOUT;

/// Asks the handler for an outbound stream.
#[derive(Debug)]
pub struct OpenRequest {
    pub(super) protocol: StreamProtocol,
    pub(super) reply: oneshot::Sender<Result<Stream, OpenError>>,
}

/// Nobody holds the connection's opener any more: the connection may close.
#[derive(Debug)]
pub struct Abandoned;

/// Where streams go that the peer opens, by protocol.
pub(super) struct InboundQueues {
    pub(super) control: mpsc::Sender<Stream>,
    pub(super) bulk: mpsc::Sender<Stream>,
    pub(super) data: mpsc::Sender<Stream>,
    pub(super) life: mpsc::Sender<Stream>,
}

/// Serves one connection's requests and queues.
pub struct StreamsHandler {
    requests: mpsc::Receiver<OpenRequest>,
    queues: InboundQueues,
    /// Whether the peer may open streams beside control streams.
    knows_peer: Arc<AtomicBool>,
    activity: Activity,
    abandoned: bool,
}

impl StreamsHandler {
    pub(super) fn new(
        requests: mpsc::Receiver<OpenRequest>,
        queues: InboundQueues,
        knows_peer: Arc<AtomicBool>,
        activity: Activity,
    ) -> StreamsHandler {
        StreamsHandler { requests, queues, knows_peer, activity, abandoned: false }
    }

    /// Queues a stream that the peer opened. Dropping it where the queue is full, or the peer is not known yet, resets it.
    fn accept(&self, protocol: &StreamProtocol, stream: Stream) {
        if *protocol != CONTROL_PROTOCOL && !self.knows_peer.load(Ordering::Acquire) {
            tracing::debug!(%protocol, "reset an inbound stream: its peer has not greeted");
            return;
        }
        let queue = match protocol {
            protocol if *protocol == CONTROL_PROTOCOL => &self.queues.control,
            protocol if *protocol == DATA_PROTOCOL => &self.queues.data,
            protocol if *protocol == LIFE_PROTOCOL => &self.queues.life,
            _ => &self.queues.bulk,
        };
        if queue.try_send(stream).is_err() {
            tracing::debug!(%protocol, "reset an inbound stream: too many wait already");
        }
    }
}

impl ConnectionHandler for StreamsHandler {
    type FromBehaviour = Infallible;
    type ToBehaviour = Abandoned;
    type InboundProtocol = Offer;
    type OutboundProtocol = Offer;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = OpenRequest;

    fn listen_protocol(&self) -> SubstreamProtocol<Offer> {
        SubstreamProtocol::new(Offer(vec![CONTROL_PROTOCOL, BULK_PROTOCOL, DATA_PROTOCOL, LIFE_PROTOCOL]), ())
            .with_timeout(OPEN_TIMEOUT)
    }

    // Any open stream keeps the connection alive, and the control stream is open for as long as it lasts, so the
    // default of `connection_keep_alive` is right.

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<ConnectionHandlerEvent<Offer, OpenRequest, Abandoned>> {
        if self.abandoned {
            return Poll::Pending;
        }
        match self.requests.poll_recv(context) {
            Poll::Ready(Some(request)) => {
                let offer = Offer(vec![request.protocol.clone()]);
                let protocol = SubstreamProtocol::new(offer, request).with_timeout(OPEN_TIMEOUT);
                Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol })
            }
            Poll::Ready(None) => {
                self.abandoned = true;
                Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(Abandoned))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn on_behaviour_event(&mut self, event: Infallible) {
        match event {}
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<'_, Offer, Offer, (), OpenRequest>) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol: (name, stream), .. }) => {
                self.accept(&name, Stream::new(stream, self.activity.clone()));
            }
            // Where the asker has given up meanwhile, the stream is dropped, which resets it.
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol: (_, stream), info }) => {
                let _ = info.reply.send(Ok(Stream::new(stream, self.activity.clone())));
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info: OpenRequest { protocol, reply }, error }) => {
                let error = match error {
                    StreamUpgradeError::Timeout => OpenError::TimedOut,
                    StreamUpgradeError::NegotiationFailed => OpenError::Unsupported(protocol),
                    StreamUpgradeError::Io(error) => OpenError::Io(error),
                    StreamUpgradeError::Apply(never) => match never {},
                };
                let _ = reply.send(Err(error));
            }
            _ => {}
        }
    }
}

/// Offers protocols by name and hands over the raw stream with the name agreed on.
#[derive(Clone, Debug)]
pub struct Offer(Vec<StreamProtocol>);

impl UpgradeInfo for Offer {
    type Info = StreamProtocol;
    type InfoIter = std::vec::IntoIter<StreamProtocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.0.clone().into_iter()
    }
}

impl InboundUpgrade<RawStream> for Offer {
    type Output = (StreamProtocol, RawStream);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_inbound(self, stream: RawStream, name: StreamProtocol) -> Self::Future {
        ready(Ok((name, stream)))
    }
}

impl OutboundUpgrade<RawStream> for Offer {
    type Output = (StreamProtocol, RawStream);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_outbound(self, stream: RawStream, name: StreamProtocol) -> Self::Future {
        ready(Ok((name, stream)))
    }
}
