//! What the data driver knows of peers: what they hold, whether they answer, and whom not to ask again.
//!
//! A peer whose bytes have another hash is bad for data from then on. Where a shard came from several peers, one after
//! the other, nobody knows whose bytes were wrong; all of them are then suspects, whose bytes are never again mixed with
//! anybody else's, so the next wrong shard has one author.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use murmur_network::{DATA_SENDING_PER_PEER_MAX, ShardError};
use murmur_protocol::PeerId;
use murmur_protocol::shards::{ShardSet, Source};
use tokio::time::Instant;

/// A peer that sends enough already is asked again after this.
pub(super) const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// A peer that failed is asked again after this, and after twice as long each further time. Short at first: a peer that
/// has just connected may not be ready to be asked.
const FAILURE_PAUSE: Duration = Duration::from_millis(250);

/// The pause is doubled this often: then it is about a minute.
const FAILURE_DOUBLINGS_MAX: u32 = 8;

/// How often a peer is asked what it holds while this node misses shards.
const ASK_PERIOD: Duration = Duration::from_secs(3);

/// How often otherwise, for the figure of what can be reached.
const ASK_PERIOD_COMPLETE: Duration = Duration::from_secs(30);

/// Bad peers and suspects remembered each: an attacker with more identities is no worse than without memory.
const REMEMBERED_MAX: usize = 1024;

#[derive(Default)]
pub(super) struct Peers {
    /// Those that are connected; libp2p's limit bounds them.
    connected: BTreeMap<PeerId, Peer>,
    bad: BTreeSet<PeerId>,
    suspects: BTreeSet<PeerId>,
    /// Who sent what has arrived of a shard that is not whole; at most one entry a shard.
    contributors: BTreeMap<usize, Contributors>,
}

#[derive(Default)]
struct Contributors {
    peers: BTreeSet<PeerId>,
    /// Whether some bytes were there before this life of the daemon: nobody knows from whom.
    unknown: bool,
}

#[derive(Default)]
struct Peer {
    held: ShardSet,
    is_asked: bool,
    asked_at: Option<Instant>,
    fetches: usize,
    failures: u32,
    rests_until: Option<Instant>,
}

impl Peers {
    /// Forgets who has gone, meets who has come.
    pub(super) fn keep_connected(&mut self, connected: &[PeerId]) {
        self.connected.retain(|peer, _| connected.contains(peer));
        for peer in connected.iter().filter(|peer| !self.bad.contains(peer)) {
            self.connected.entry(*peer).or_default();
        }
    }

    /// Whom to ask now what they hold. They count as asked from then on.
    pub(super) fn choose_whom_to_ask(&mut self, all: ShardSet, complete: bool) -> Vec<PeerId> {
        let now = Instant::now();
        let period = if complete { ASK_PERIOD_COMPLETE } else { ASK_PERIOD };
        let is_due = |peer: &Peer| {
            let due = peer.asked_at.is_none_or(|asked_at| now >= asked_at + period);
            due && !peer.is_asked && !peer.rests(now) && !peer.held.contains_all(all)
        };
        let due = self.connected.iter_mut().filter(|(_, peer)| is_due(peer));
        due.map(|(id, peer)| {
            (peer.is_asked, peer.asked_at) = (true, Some(now));
            *id
        })
        .collect()
    }

    pub(super) fn on_answer(&mut self, peer: PeerId, answer: Result<ShardSet, ShardError>) {
        if let Some(known) = self.connected.get_mut(&peer) {
            known.is_asked = false;
        }
        match answer {
            // A peer that answers and then breaks off goes on resting longer: only a shard makes up for failures.
            Ok(held) => self.heard(peer, held),
            Err(error) => {
                tracing::debug!(%peer, %error, "a peer does not say which shards it holds");
                self.failed(peer, &error);
            }
        }
    }

    /// Whom shards can be fetched from, and how many more.
    pub(super) fn sources(&self) -> BTreeMap<PeerId, Source> {
        let now = Instant::now();
        let ready = self.connected.iter().filter(|(_, peer)| !peer.rests(now));
        ready
            .map(|(id, peer)| {
                let room = DATA_SENDING_PER_PEER_MAX.saturating_sub(peer.fetches);
                (*id, Source { held: peer.held, room })
            })
            .collect()
    }

    pub(super) fn held_by_any(&self) -> ShardSet {
        self.connected.values().fold(ShardSet::EMPTY, |sum, peer| sum.union(peer.held))
    }

    pub(super) fn begin_fetch(&mut self, peer: PeerId) {
        if let Some(peer) = self.connected.get_mut(&peer) {
            peer.fetches += 1;
        }
    }

    pub(super) fn end_fetch(&mut self, peer: PeerId, held: Option<ShardSet>) {
        if let Some(known) = self.connected.get_mut(&peer) {
            known.fetches = known.fetches.saturating_sub(1);
        }
        if let Some(held) = held {
            self.heard(peer, held);
        }
    }

    fn heard(&mut self, peer: PeerId, held: ShardSet) {
        if let Some(known) = self.connected.get_mut(&peer) {
            known.held = held;
        }
    }

    pub(super) fn lacks(&mut self, peer: PeerId, index: usize) {
        if let Some(known) = self.connected.get_mut(&peer) {
            known.held.remove(index);
        }
    }

    pub(super) fn succeeded(&mut self, peer: PeerId) {
        if let Some(known) = self.connected.get_mut(&peer) {
            known.failures = 0;
        }
    }

    pub(super) fn rest(&mut self, peer: PeerId, pause: Duration) {
        if let Some(known) = self.connected.get_mut(&peer) {
            known.rests_until = Some(Instant::now() + pause);
        }
    }

    /// A peer that talks nonsense is bad; one that broke off, stalled or is gone rests.
    pub(super) fn failed(&mut self, peer: PeerId, error: &ShardError) {
        if let ShardError::Garbage(_) = error {
            self.condemn(peer);
            return;
        }
        let Some(known) = self.connected.get_mut(&peer) else { return };
        known.asked_at = None;
        let doublings = known.failures.min(FAILURE_DOUBLINGS_MAX);
        known.failures += 1;
        known.rests_until = Some(Instant::now() + FAILURE_PAUSE * 2u32.pow(doublings));
    }

    /// Notes who sent a part of a shard that is not whole yet, and how much of it was there before.
    pub(super) fn contributed(&mut self, index: usize, peer: PeerId, resumed_at: u64, bytes: u64) {
        let known = self.contributors.contains_key(&index);
        if bytes > 0 {
            let contributors = self.contributors.entry(index).or_default();
            contributors.unknown |= resumed_at > 0 && !known;
            contributors.peers.insert(peer);
        }
    }

    pub(super) fn forget_partial(&mut self, index: usize) {
        self.contributors.remove(&index);
    }

    /// Whether what has arrived of a shard must be dropped before this peer sends the rest.
    pub(super) fn must_not_mix(&self, index: usize, peer: PeerId) -> bool {
        let Some(contributors) = self.contributors.get(&index) else { return self.suspects.contains(&peer) };
        let mut others = contributors.peers.iter().filter(|contributor| **contributor != peer).peekable();
        let mixes = contributors.unknown || others.peek().is_some();
        mixes && (self.suspects.contains(&peer) || others.any(|contributor| self.suspects.contains(contributor)))
    }

    /// A shard was wrong of which the last part, or all, came from `peer`. Returns whether it is known to be the one.
    pub(super) fn blame(&mut self, index: usize, peer: PeerId, resumed_at: u64) -> bool {
        let mut contributors = self.contributors.remove(&index).unwrap_or_default();
        let is_all = contributors.peers.iter().all(|contributor| *contributor == peer);
        let alone = resumed_at == 0 || (is_all && !contributors.unknown && !contributors.peers.is_empty());
        if alone {
            self.condemn(peer);
        } else {
            contributors.peers.insert(peer);
            let room = REMEMBERED_MAX.saturating_sub(self.suspects.len());
            self.suspects.extend(contributors.peers.into_iter().take(room));
        }
        alone
    }

    fn condemn(&mut self, peer: PeerId) {
        self.connected.remove(&peer);
        if self.bad.len() < REMEMBERED_MAX {
            self.bad.insert(peer);
        }
    }
}

impl Peer {
    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u8) -> PeerId {
        PeerId::from_public_key([number; 32])
    }

    fn peers() -> Peers {
        let mut peers = Peers::default();
        peers.keep_connected(&[peer(1), peer(2), peer(3)]);
        peers
    }

    #[tokio::test]
    async fn who_sent_a_wrong_shard_alone_is_asked_no_more() {
        let mut peers = peers();
        assert!(peers.blame(7, peer(1), 0));
        peers.keep_connected(&[peer(1), peer(2)]);
        assert_eq!(peers.sources().keys().copied().collect::<Vec<_>>(), [peer(2)]);
    }

    #[tokio::test]
    async fn who_sent_it_together_is_found_out_one_by_one() {
        let mut peers = peers();
        peers.contributed(7, peer(1), 0, 10);
        assert!(!peers.must_not_mix(7, peer(2)));
        assert!(!peers.blame(7, peer(2), 10));
        assert_eq!(peers.sources().len(), 3);
        // From now on nobody goes on with what one of these two has sent, nor they with anybody's.
        peers.contributed(8, peer(1), 0, 10);
        assert!(peers.must_not_mix(8, peer(3)) && !peers.must_not_mix(8, peer(1)));
        peers.forget_partial(8);
        peers.contributed(8, peer(3), 0, 10);
        assert!(peers.must_not_mix(8, peer(2)) && !peers.must_not_mix(8, peer(3)));
        assert!(peers.blame(8, peer(2), 0));
    }

    #[tokio::test]
    async fn bytes_from_an_earlier_life_condemn_nobody() {
        let mut peers = peers();
        assert!(!peers.blame(7, peer(1), 500));
        assert!(peers.must_not_mix(7, peer(1)), "now it begins at the beginning");
        assert!(peers.blame(7, peer(1), 0));
        peers.contributed(8, peer(2), 500, 10);
        assert!(!peers.blame(8, peer(2), 510));
    }

    #[tokio::test]
    async fn peers_that_fail_rest_and_nonsense_is_the_end() {
        let mut peers = peers();
        assert_eq!(peers.choose_whom_to_ask([0].into_iter().collect(), false).len(), 3);
        assert!(peers.choose_whom_to_ask([0].into_iter().collect(), false).is_empty(), "they are being asked");
        peers.on_answer(peer(1), Err(ShardError::NotConnected));
        peers.on_answer(peer(2), Err(ShardError::Garbage("!".to_owned())));
        peers.on_answer(peer(3), Ok([0].into_iter().collect()));
        assert_eq!(peers.sources().keys().copied().collect::<Vec<_>>(), [peer(3)]);
        assert_eq!(peers.held_by_any().len(), 1);
    }
}
