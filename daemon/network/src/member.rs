//! One peer of this run, for as long as it is connected.
//!
//! A member's task owns the peer's connections and all tasks that work on them, so the order of what the core hears is a
//! matter of structure: `PeerConnected` is emitted before any child exists, and `PeerDisconnected` after the last child
//! is gone. Two nodes that dial each other at once end up with two connections: both are read, the newest is written to
//! (after a peer's restart the older one is dead), and the other is a spare until it closes. A link through a relay
//! carries messages only, and is given up as soon as there is a direct one.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::AsyncReadExt;
use murmur_protocol::message::{Message, TransferHeader};
use murmur_protocol::{AddressRange, Event, Payload, PeerId, TransferId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};

use crate::bounds::{
    DATA_SENDING_PER_PEER_MAX, FAREWELL_TIMEOUT, INBOUND_TRANSFERS_PER_PEER_MAX, OUTGOING_MESSAGES_MAX,
    OUTGOING_TRANSFERS_PER_PEER_MAX, RELAY_LINGER,
};
use crate::bulk::flow::Flow;
use crate::bulk::receive::receive;
use crate::bulk::room::Inflow;
use crate::bulk::send::{SendError, Turns, send};
use crate::control::{ReaderEnd, read_messages, write_messages};
use crate::data::serve::attend;
use crate::handshake::Link;
use crate::life::asking;
use crate::places::{Place, Proven};
use crate::shared::Shared;
use crate::streams::{Stream, StreamOpener};

/// Why a transfer is refused where no direct connection leads to the peer.
const RELAYED: &str = "only a relay leads to the peer, and relays carry no transfers: a direct connection is needed";

/// What the swarm task tells a member.
pub(crate) enum MemberOrder {
    /// Send a control message.
    Send(Message),
    /// Send a payload.
    StartTransfer(OutgoingTransfer),
    /// The peer has one more connection.
    AddLink(Box<Link>),
}

/// A transfer to be sent.
pub(crate) struct OutgoingTransfer {
    pub(crate) transfer: TransferId,
    pub(crate) header: TransferHeader,
    pub(crate) payload: Payload,
    /// Its place among the node's outgoing transfers.
    pub(crate) place: Place,
}

/// A member is gone, and the core knows it.
pub(crate) struct MemberEnded {
    pub(crate) peer: PeerId,
    /// Connections that came too late for this member: a new period begins with them.
    pub(crate) leftover: Vec<Link>,
}

/// The state of a member's task.
pub(crate) struct Member {
    shared: Arc<Shared>,
    peer: PeerId,
    orders: mpsc::Receiver<MemberOrder>,
    close: oneshot::Receiver<()>,
    /// Newest last; at most as many as libp2p's limit of connections per peer.
    links: Vec<ActiveLink>,
    links_so_far: u64,
    children: JoinSet<ChildEnd>,
    /// Inbound transfers whose turn it is.
    inbound: mpsc::Receiver<(Stream, OwnedSemaphorePermit)>,
    inbound_queue: mpsc::Sender<(Stream, OwnedSemaphorePermit)>,
    receiving: Arc<Semaphore>,
    /// What this peer's inbound transfers together may hold, and how they went.
    inflow: Arc<Inflow>,
    sending: Arc<Semaphore>,
    turns: Turns,
    flow: Arc<Flow>,
    proven: Proven,
    /// In which the peer is reached, where that is known.
    network: Option<u128>,
    /// Turns of shards that the peer asked for.
    sending_data: Arc<Semaphore>,
    /// Transfers that the core has heard nothing of yet; at most the node's outgoing transfers.
    unreported: BTreeSet<TransferId>,
    /// Whether the core believes that transfers are possible.
    told_direct: bool,
    /// In which range of addresses the core believes the peer to be reached.
    told_range: Option<AddressRange>,
}

struct ActiveLink {
    number: u64,
    is_relayed: bool,
    range: Option<AddressRange>,
    /// Keeps the connection open.
    opener: StreamOpener,
    /// `None` once nothing more is to be written.
    outgoing: Option<mpsc::Sender<Message>>,
}

/// What became of a child task.
enum ChildEnd {
    Reader {
        link: u64,
        end: ReaderEnd,
    },
    Writer {
        link: u64,
        flushed: bool,
    },
    Acceptor {
        link: u64,
    },
    Sent(TransferId),
    Done,
    /// The other side knows of the direct link by now as well.
    Lingered,
}

impl Member {
    /// `network`: in which the peer is reached, where that is known; `proven`: what it has shown, which is told here.
    pub(crate) fn new(
        shared: Arc<Shared>,
        peer: PeerId,
        (network, proven): (Option<u128>, Proven),
        orders: mpsc::Receiver<MemberOrder>,
        close: oneshot::Receiver<()>,
    ) -> Member {
        let (inbound_queue, inbound) = mpsc::channel(1);
        let inflow = Arc::new(shared.room.inflow(network));
        Member {
            inflow,
            shared,
            peer,
            orders,
            close,
            links: Vec::new(),
            links_so_far: 0,
            children: JoinSet::new(),
            inbound,
            inbound_queue,
            receiving: Arc::new(Semaphore::new(INBOUND_TRANSFERS_PER_PEER_MAX)),
            sending: Arc::new(Semaphore::new(OUTGOING_TRANSFERS_PER_PEER_MAX)),
            turns: Turns::default(),
            flow: Arc::new(Flow::new()),
            proven,
            network,
            sending_data: Arc::new(Semaphore::new(DATA_SENDING_PER_PEER_MAX)),
            unreported: BTreeSet::new(),
            told_direct: true,
            told_range: None,
        }
    }

    /// Lives from the first connection to the last.
    pub(crate) async fn run(mut self, mut first: Link) -> MemberEnded {
        let addresses = std::mem::take(&mut first.addresses);
        self.shared.emit(Event::PeerConnected { peer: self.peer, addresses }).await;
        self.add_link(first);
        while !self.links.is_empty() {
            self.report_path().await;
            tokio::select! {
                order = self.orders.recv() => match order {
                    Some(order) => self.obey(order),
                    None => break,
                },
                Some(ended) = self.children.join_next() => self.on_child_ended(ended),
                Some((stream, turn)) = self.inbound.recv() => self.start_receiving(stream, turn),
                _ = &mut self.close => {
                    self.say_goodbye().await;
                    break;
                }
            }
        }
        self.end().await
    }

    fn obey(&mut self, order: MemberOrder) {
        match order {
            MemberOrder::Send(message) => self.queue_message(message),
            MemberOrder::StartTransfer(transfer) => self.start_sending(transfer),
            MemberOrder::AddLink(link) => self.add_link(*link),
        }
    }

    fn add_link(&mut self, link: Link) {
        let number = self.links_so_far;
        self.links_so_far += 1;
        let (outgoing, queue) = mpsc::channel(OUTGOING_MESSAGES_MAX);
        let (reader, writer) = link.control.split();
        let (shared, for_writer, peer, scope) = (self.shared.clone(), self.shared.clone(), self.peer, link.scope);
        self.children.spawn(async move {
            let end = read_messages(&shared, peer, scope, reader).await;
            ChildEnd::Reader { link: number, end }
        });
        self.children.spawn(async move {
            let flushed = write_messages(&for_writer, queue, writer).await.is_ok();
            ChildEnd::Writer { link: number, flushed }
        });
        let (bulk, receiving, inbound) = (link.streams.bulk, self.receiving.clone(), self.inbound_queue.clone());
        let requests = link.streams.data;
        self.spawn(asking::attend(self.shared.clone(), link.streams.life));
        if link.is_relayed {
            // Without a receiver, streams for transfers and shards are reset.
            drop((bulk, requests));
        } else {
            self.children.spawn(async move {
                accept(bulk, receiving, inbound).await;
                ChildEnd::Acceptor { link: number }
            });
            let (shared, turns) = (self.shared.clone(), (self.network, self.sending_data.clone()));
            let opener = link.streams.opener.downgrade();
            self.spawn(attend(shared, peer, (number, opener), requests, turns));
        }
        let (is_relayed, range, opener) = (link.is_relayed, link.range, link.streams.opener);
        if let Some(before) = self.links.last() {
            let connections = [before.opener.clone(), opener.clone()];
            self.spawn(asking::compare(self.shared.clone(), peer, connections));
        }
        self.links.push(ActiveLink { number, is_relayed, range, opener, outgoing: Some(outgoing) });
        let relayed = self.links.iter().filter(|link| link.is_relayed).count();
        if relayed > 0 && relayed < self.links.len() {
            self.children.spawn(async {
                sleep(RELAY_LINGER).await;
                ChildEnd::Lingered
            });
        }
    }

    /// A child with whose end nothing more is to be done.
    fn spawn(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        self.children.spawn(async move {
            work.await;
            ChildEnd::Done
        });
    }

    /// Says no more on relayed links, where there is a direct one. Both sides do so, and the last to read closes it.
    fn leave_relays(&mut self) {
        if self.best_link().is_some_and(|link| !link.is_relayed) {
            for link in self.links.iter_mut().filter(|link| link.is_relayed) {
                link.outgoing = None;
            }
        }
    }

    /// The link to use: the newest direct one, else the newest.
    fn best_link(&self) -> Option<&ActiveLink> {
        let direct = self.links.iter().rev().find(|link| !link.is_relayed);
        direct.or_else(|| self.links.last())
    }

    /// Tells the core when transfers have become possible, or impossible, and where the peer is reached.
    async fn report_path(&mut self) {
        let is_direct = self.best_link().is_none_or(|link| !link.is_relayed);
        if self.told_direct != is_direct {
            self.told_direct = is_direct;
            self.shared.emit(Event::PathChanged { peer: self.peer, is_direct }).await;
            self.told_range = None;
        }
        let range = self.best_link().and_then(|link| link.range);
        if let Some(found) = range
            && self.told_range != range
        {
            self.told_range = range;
            self.shared.emit(Event::RangeFound { peer: self.peer, range: found }).await;
        }
    }

    fn queue_message(&self, message: Message) {
        let outgoing = self.best_link().and_then(|link| link.outgoing.as_ref());
        if outgoing.is_none_or(|outgoing| outgoing.try_send(message).is_err()) {
            self.shared.count_dropped_message(self.peer);
        }
    }

    fn start_sending(&mut self, outgoing: OutgoingTransfer) {
        let OutgoingTransfer { transfer, header, payload, place } = outgoing;
        self.unreported.insert(transfer);
        // Without a link the member is about to end, which reports the transfer as failed.
        let Some(link) = self.best_link() else { return };
        let (opener, is_relayed) = (link.opener.clone(), link.is_relayed);
        let (shared, sending, turns) = (self.shared.clone(), self.sending.clone(), self.turns.clone());
        let (peer, flow, proven) = (self.peer, self.flow.clone(), self.proven.clone());
        self.children.spawn(async move {
            if is_relayed {
                let event = Event::TransferFailed { transfer, reason: RELAYED.to_owned() };
                shared.emit_releasing(event, place).await;
                return ChildEnd::Sent(transfer);
            }
            let turn = sending.acquire_owned().await.expect("never closed");
            let event = match send(opener, &header, &payload, (&*shared.upload, &flow), turns).await {
                Ok(()) => {
                    proven.on_taken();
                    Event::TransferFinished { transfer }
                }
                Err(error) => {
                    let reason = error.to_string();
                    if let SendError::Misbehaved(misbehaviour) = error {
                        proven.on_stalled();
                        shared.emit(Event::PeerMisbehaved { peer, misbehaviour }).await;
                    }
                    Event::TransferFailed { transfer, reason }
                }
            };
            shared.emit_releasing(event, (turn, place)).await;
            ChildEnd::Sent(transfer)
        });
    }

    fn start_receiving(&mut self, stream: Stream, turn: OwnedSemaphorePermit) {
        let (shared, peer, inflow) = (self.shared.clone(), self.peer, self.inflow.clone());
        self.spawn(async move {
            receive(&shared, peer, &inflow, stream).await;
            drop(turn);
        });
    }

    fn on_child_ended(&mut self, ended: Result<ChildEnd, JoinError>) {
        match ended {
            Ok(ChildEnd::Reader { end: ReaderEnd::Misbehaved, .. }) => self.links.clear(),
            Ok(
                ChildEnd::Reader { link, .. } | ChildEnd::Writer { link, flushed: false } | ChildEnd::Acceptor { link },
            ) => {
                self.links.retain(|active| active.number != link);
            }
            Ok(ChildEnd::Sent(transfer)) => {
                self.unreported.remove(&transfer);
            }
            Ok(ChildEnd::Lingered) => self.leave_relays(),
            Ok(ChildEnd::Writer { flushed: true, .. } | ChildEnd::Done) => {}
            // A child that panicked has shown a mistake of ours; this peer starts afresh.
            Err(error) => {
                tracing::error!(peer = %self.peer, %error, "a connection's task failed");
                self.links.clear();
            }
        }
    }

    /// Writes out what is queued and waits, not for long, until the peer has read it and hung up.
    async fn say_goodbye(&mut self) {
        while let Ok(order) = self.orders.try_recv() {
            self.obey(order);
        }
        for link in &mut self.links {
            link.outgoing = None;
        }
        let hung_up = async {
            while !self.links.is_empty() {
                match self.children.join_next().await {
                    Some(ended) => self.on_child_ended(ended),
                    None => break,
                }
            }
        };
        let _ = timeout(FAREWELL_TIMEOUT, hung_up).await;
    }

    /// Stops all children, then tells the core what has become of their work and that the peer is gone.
    async fn end(mut self) -> MemberEnded {
        let mut leftover = Vec::new();
        self.orders.close();
        while let Ok(order) = self.orders.try_recv() {
            match order {
                MemberOrder::AddLink(link) => leftover.push(*link),
                MemberOrder::StartTransfer(outgoing) => {
                    self.unreported.insert(outgoing.transfer);
                }
                MemberOrder::Send(_) => {}
            }
        }
        // Without openers the connections close.
        self.links.clear();
        self.children.abort_all();
        while let Some(ended) = self.children.join_next().await {
            if let Ok(ChildEnd::Sent(transfer)) = ended {
                self.unreported.remove(&transfer);
            }
        }
        for transfer in std::mem::take(&mut self.unreported) {
            let reason = "the peer disconnected".to_owned();
            self.shared.emit(Event::TransferFailed { transfer, reason }).await;
        }
        self.shared.emit(Event::PeerDisconnected { peer: self.peer }).await;
        MemberEnded { peer: self.peer, leftover }
    }
}

/// Passes on a connection's inbound transfers one by one, as turns become free. Until then they wait unread.
async fn accept(
    mut bulk: mpsc::Receiver<Stream>,
    receiving: Arc<Semaphore>,
    inbound: mpsc::Sender<(Stream, OwnedSemaphorePermit)>,
) {
    while let Some(stream) = bulk.recv().await {
        let turn = receiving.clone().acquire_owned().await.expect("never closed");
        if inbound.send((stream, turn)).await.is_err() {
            return;
        }
    }
}
