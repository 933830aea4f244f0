//! What goes to and fro between the core and its drivers, counted: bytes by peer, how peers are reached, and what each
//! exchange took. The core decides nothing by it; views show it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use murmur_protocol::message::{ExchangeNumber, Message, TransferHeader};
use murmur_protocol::{Effect, Event, NetworkOrder, Notice, PeerId, TransferId};

/// Peers that are counted; of those that are gone, one goes for each that is new beyond that.
const PEERS_MAX: usize = 256;

/// Exchanges that are followed at once; more than a node has under way.
const OPEN_MAX: usize = 128;

/// Transfers of ours whose end is waited for; more than the network takes at once.
const TRANSFERS_MAX: usize = 1024;

/// What went to and from a peer since this process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerTraffic {
    /// Bytes of exchanges and models that it has confirmed; without encryption, framing and messages.
    pub sent: u64,
    /// The same, received from it.
    pub received: u64,
    /// Whether a connection without a relay leads to it.
    pub is_direct: bool,
    /// Whether it is connected.
    pub is_connected: bool,
}

/// What an exchange took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Taken {
    /// From the proposal to the merge.
    pub time: Duration,
    /// Bytes of scales and codes sent.
    pub sent: u64,
    /// Bytes of scales and codes received.
    pub received: u64,
    /// This node's swarm progress less the partner's when it began, in steps.
    pub lag: Option<f64>,
}

/// A notice of the core, and what the exchange that it tells of has taken, where that is known.
#[derive(Clone, Debug)]
pub struct Noticed {
    /// The notice.
    pub notice: Notice,
    /// Of an exchange that has ended.
    pub taken: Option<Taken>,
}

/// An exchange: with whom, whether this node has started it, and its number.
type Key = (PeerId, bool, ExchangeNumber);

/// Everything that is counted.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    peers: BTreeMap<PeerId, PeerTraffic>,
    /// Our transfers under way, with their bytes.
    transfers: BTreeMap<TransferId, (PeerId, u64)>,
    open: BTreeMap<Key, Open>,
}

/// An exchange that has not ended.
#[derive(Clone, Copy, Debug)]
struct Open {
    began: Instant,
    sent: u64,
    received: u64,
    /// This node's swarm progress when it began, and the partner's, as they have told each other.
    progress: [Option<f64>; 2],
    /// Whether all has come that this side needs to merge.
    is_ready: bool,
}

impl Ledger {
    /// Bytes and paths by peer.
    pub(super) fn peers(&self) -> BTreeMap<PeerId, PeerTraffic> {
        self.peers.clone()
    }

    /// What the core is about to hear.
    pub(super) fn on_event(&mut self, now: Instant, event: &Event) {
        match event {
            Event::PeerConnected { peer, .. } => {
                let traffic = self.peer(*peer);
                (traffic.is_connected, traffic.is_direct) = (true, true);
            }
            Event::PeerDisconnected { peer } => {
                self.peer(*peer).is_connected = false;
                self.open.retain(|(partner, ..), _| partner != peer);
            }
            Event::PathChanged { peer, is_direct } => self.peer(*peer).is_direct = *is_direct,
            Event::MessageReceived { peer, message: Message::Propose(propose) } => {
                self.begin((*peer, false, propose.exchange), now).progress[1] = Some(propose.standing.progress);
            }
            Event::MessageReceived { peer, message: Message::Accept(accept) } => {
                if let Some(open) = self.open.get_mut(&(*peer, true, accept.exchange)) {
                    open.progress[1] = Some(accept.standing.progress);
                }
            }
            Event::TransferReceived { peer, header, payload } => {
                let bytes = payload.len() as u64;
                self.peer(*peer).received += bytes;
                let Some((is_own, exchange)) = received_for(header) else { return };
                if let Some(open) = self.open.get_mut(&(*peer, is_own, exchange)) {
                    open.received += bytes;
                    open.is_ready |=
                        matches!(header, TransferHeader::ProposalCodes { .. } | TransferHeader::Merged { .. });
                }
            }
            Event::TransferFinished { transfer } => {
                if let Some((peer, bytes)) = self.transfers.remove(transfer) {
                    self.peer(peer).sent += bytes;
                }
            }
            Event::TransferFailed { transfer, .. } => drop(self.transfers.remove(transfer)),
            _ => {}
        }
    }

    /// What the core orders.
    pub(super) fn on_effect(&mut self, now: Instant, effect: &Effect) {
        match effect {
            Effect::Network(NetworkOrder::Send { peer, message: Message::Propose(propose) }) => {
                self.begin((*peer, true, propose.exchange), now).progress[0] = Some(propose.standing.progress);
            }
            Effect::Network(NetworkOrder::Send { peer, message: Message::Accept(accept) }) => {
                if let Some(open) = self.open.get_mut(&(*peer, false, accept.exchange)) {
                    open.progress[0] = Some(accept.standing.progress);
                }
            }
            Effect::Network(NetworkOrder::StartTransfer { transfer, peer, header, payload }) => {
                let bytes = payload.len() as u64;
                if self.transfers.len() >= TRANSFERS_MAX {
                    self.transfers.pop_first();
                }
                self.transfers.insert(*transfer, (*peer, bytes));
                if let Some((is_own, exchange)) = sent_for(header)
                    && let Some(open) = self.open.get_mut(&(*peer, is_own, exchange))
                {
                    open.sent += bytes;
                }
            }
            _ => {}
        }
    }

    /// The notice with what its exchange has taken. A node that takes part in two with one partner at once ends the one of
    /// them that can be merged; where both can, the older one.
    pub(super) fn on_notice(&mut self, now: Instant, notice: Notice) -> Noticed {
        let (partner, is_done) = match &notice {
            Notice::ExchangeCompleted { partner, .. } => (*partner, true),
            Notice::ExchangeFailed { partner, .. } => (*partner, false),
            _ => return Noticed { notice, taken: None },
        };
        let with = |(key, _): &(&Key, &Open)| key.0 == partner;
        let candidates = || self.open.iter().filter(with);
        let ended = match is_done {
            true => candidates().filter(|(_, open)| open.is_ready).min_by_key(|(_, open)| open.began),
            // Which of several has failed is not told.
            false => candidates().next().filter(|_| candidates().count() == 1),
        };
        let ended = ended.map(|(key, _)| *key);
        let taken = ended.and_then(|key| self.open.remove(&key)).map(|open| Taken {
            time: now.saturating_duration_since(open.began),
            sent: open.sent,
            received: open.received,
            lag: open.progress[0].zip(open.progress[1]).map(|(own, partners)| own - partners),
        });
        Noticed { notice, taken }
    }

    /// An exchange begins; a proposal that is repeated belongs to the same.
    fn begin(&mut self, key: Key, now: Instant) -> &mut Open {
        // Those before it with this partner have come to nothing, in the same direction.
        self.open.retain(|other, _| (other.0, other.1) != (key.0, key.1) || other.2 == key.2);
        if self.open.len() >= OPEN_MAX
            && !self.open.contains_key(&key)
            && let Some(oldest) = self.open.iter().min_by_key(|(_, open)| open.began).map(|(key, _)| *key)
        {
            self.open.remove(&oldest);
        }
        let new = Open { began: now, sent: 0, received: 0, progress: [None; 2], is_ready: false };
        self.open.entry(key).or_insert(new)
    }

    fn peer(&mut self, peer: PeerId) -> &mut PeerTraffic {
        if self.peers.len() >= PEERS_MAX && !self.peers.contains_key(&peer) {
            let gone = self.peers.iter().find(|(_, traffic)| !traffic.is_connected).map(|(peer, _)| *peer);
            gone.map(|gone| self.peers.remove(&gone));
        }
        self.peers.entry(peer).or_default()
    }
}

/// Whose exchange a transfer that has come belongs to: whether this node's own, and its number.
fn received_for(header: &TransferHeader) -> Option<(bool, ExchangeNumber)> {
    match header {
        TransferHeader::Scales { exchange } | TransferHeader::ProposalCodes { exchange } => Some((false, *exchange)),
        TransferHeader::ReplyCodes { exchange } | TransferHeader::Merged { exchange, .. } => Some((true, *exchange)),
        TransferHeader::State { .. } | TransferHeader::Slices(_) | TransferHeader::Replica { .. } => None,
    }
}

/// The same of a transfer that goes out.
fn sent_for(header: &TransferHeader) -> Option<(bool, ExchangeNumber)> {
    received_for(header).map(|(is_own, exchange)| (!is_own, exchange))
}

#[cfg(test)]
mod tests {
    use murmur_protocol::message::{Accept, Propose, Standing};
    use murmur_protocol::{ExchangeFailure, Part, Payload};

    use super::*;

    fn peer(number: u8) -> PeerId {
        PeerId::from_public_key([number; 32])
    }

    fn standing(progress: f64) -> Standing {
        Standing { weight: 1.0, clip: 1.0, gamma: 0.5, progress }
    }

    fn propose(exchange: u64, progress: f64) -> Message {
        let standing = standing(progress);
        Message::Propose(Propose {
            exchange,
            part: Part::MODEL,
            nonce: 0,
            bits: 8,
            reference: 0,
            standing,
            deadline_ms: 1,
            step_left_max_ms: 1,
        })
    }

    fn received(header: TransferHeader, bytes: usize) -> Event {
        Event::TransferReceived { peer: peer(1), header, payload: Payload::from(vec![0; bytes]) }
    }

    fn started(transfer: u64, header: TransferHeader, bytes: usize) -> Effect {
        let payload = Payload::from(vec![0; bytes]);
        Effect::Network(NetworkOrder::StartTransfer { transfer: TransferId(transfer), peer: peer(1), header, payload })
    }

    fn completed() -> Notice {
        Notice::ExchangeCompleted {
            partner: peer(1),
            part: Part::MODEL,
            distance: 1.0,
            clip_scale: 1.0,
            masked_blocks: 0,
            coarse: false,
        }
    }

    #[test]
    fn an_own_exchange_and_an_answered_one_with_the_same_partner_are_told_apart() {
        let mut ledger = Ledger::default();
        let begin = Instant::now();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        ledger.on_effect(at(0), &Effect::Network(NetworkOrder::Send { peer: peer(1), message: propose(7, 10.0) }));
        ledger.on_effect(at(1), &Effect::Network(NetworkOrder::Send { peer: peer(1), message: propose(7, 10.0) }));
        ledger.on_event(at(1), &Event::MessageReceived { peer: peer(1), message: propose(7, 55.0) });
        let accept = |progress| {
            let standing = standing(progress);
            Message::Accept(Accept { exchange: 7, starter_share: 0.5, reference: 0, standing })
        };
        ledger.on_effect(at(1), &Effect::Network(NetworkOrder::Send { peer: peer(1), message: accept(11.0) }));
        ledger.on_event(at(2), &Event::MessageReceived { peer: peer(1), message: accept(44.0) });
        ledger.on_effect(at(2), &started(1, TransferHeader::Scales { exchange: 7 }, 10));
        ledger.on_effect(at(2), &started(2, TransferHeader::ProposalCodes { exchange: 7 }, 100));
        ledger.on_event(at(3), &received(TransferHeader::Scales { exchange: 7 }, 20));
        ledger.on_event(at(3), &received(TransferHeader::ReplyCodes { exchange: 7 }, 300));
        ledger.on_event(at(3), &received(TransferHeader::ProposalCodes { exchange: 7 }, 200));
        ledger.on_effect(at(3), &started(3, TransferHeader::ReplyCodes { exchange: 7 }, 400));
        let answered = ledger.on_notice(at(4), completed()).taken.expect("followed");
        let expected = Taken { time: Duration::from_secs(3), sent: 400, received: 220, lag: Some(11.0 - 55.0) };
        assert_eq!(answered, expected, "the partner has not said that it has merged the other");
        ledger.on_event(at(9), &received(TransferHeader::Merged { exchange: 7, digest: 0 }, 0));
        let own = ledger.on_notice(at(9), completed()).taken.expect("followed");
        let expected = Taken { time: Duration::from_secs(9), sent: 110, received: 300, lag: Some(10.0 - 44.0) };
        assert_eq!(own, expected);
        assert_eq!(ledger.on_notice(at(9), completed()).taken, None);
    }

    #[test]
    fn bytes_count_for_their_peer_once_they_are_confirmed() {
        let mut ledger = Ledger::default();
        let now = Instant::now();
        ledger.on_event(now, &Event::PeerConnected { peer: peer(1), addresses: Vec::new() });
        ledger.on_effect(now, &started(1, TransferHeader::Scales { exchange: 1 }, 10));
        ledger.on_effect(now, &started(2, TransferHeader::Scales { exchange: 1 }, 100));
        ledger.on_event(now, &received(TransferHeader::Scales { exchange: 1 }, 5));
        ledger.on_event(now, &Event::TransferFinished { transfer: TransferId(2) });
        ledger.on_event(now, &Event::TransferFailed { transfer: TransferId(1), reason: String::new() });
        ledger.on_event(now, &Event::PathChanged { peer: peer(1), is_direct: false });
        let traffic = PeerTraffic { sent: 100, received: 5, is_direct: false, is_connected: true };
        assert_eq!(ledger.peers(), BTreeMap::from([(peer(1), traffic)]));
        assert!(ledger.transfers.is_empty());
    }

    #[test]
    fn what_a_failure_has_taken_is_told_only_where_it_is_sure() {
        let mut ledger = Ledger::default();
        let now = Instant::now();
        let failed = || Notice::ExchangeFailed { partner: peer(1), failure: ExchangeFailure::DeadlinePassed };
        ledger.on_effect(now, &Effect::Network(NetworkOrder::Send { peer: peer(1), message: propose(1, 1.0) }));
        ledger.on_event(now, &Event::MessageReceived { peer: peer(1), message: propose(1, 1.0) });
        assert_eq!(ledger.on_notice(now, failed()).taken, None, "there are two");
        ledger.on_event(now, &Event::PeerDisconnected { peer: peer(1) });
        ledger.on_effect(now, &Effect::Network(NetworkOrder::Send { peer: peer(1), message: propose(2, 1.0) }));
        assert!(
            ledger
                .on_notice(now + Duration::from_secs(2), failed())
                .taken
                .is_some_and(|taken| taken.time.as_secs() == 2)
        );
    }

    #[test]
    fn memory_is_bounded_whatever_peers_do() {
        let mut ledger = Ledger::default();
        let now = Instant::now();
        for number in 0..2000u64 {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_le_bytes());
            let peer = PeerId::from_public_key(key);
            ledger.on_event(now, &Event::MessageReceived { peer, message: propose(number, 1.0) });
            ledger.on_event(now, &Event::PathChanged { peer, is_direct: true });
            ledger.on_effect(now, &started(number, TransferHeader::Scales { exchange: 1 }, 10));
        }
        assert_eq!(ledger.open.len(), OPEN_MAX);
        assert!(ledger.peers.len() <= PEERS_MAX && ledger.transfers.len() <= TRANSFERS_MAX);
    }
}
