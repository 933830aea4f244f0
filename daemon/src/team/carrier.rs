//! Carries words between the network's connections and the thread that pumps a machine of a team.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use murmur_network::team::{TeamLink, TeamSender, TeamWord};
use murmur_protocol::PeerId;
use murmur_protocol::team::{Link, Offer, Packet, TeamMessage};
use murmur_training::team::{Heard, TeamWire, Told, Untold, Word};
use tokio::sync::Notify;

use super::probing::Way;

/// How long to wait for room among the facts of a machine's thread: it computes meanwhile.
const ROOM_PERIOD: Duration = Duration::from_millis(2);

/// Connections to machines of a team; clones share them. Behind a lock, since the machine's thread sends while connections come and
/// go; held for a look-up.
#[derive(Clone, Debug, Default)]
pub(super) struct Carrier(Arc<Mutex<Lines>>);

#[derive(Debug, Default)]
struct Lines {
    open: BTreeMap<PeerId, Line>,
    /// Machines that are let go for good.
    dismissed: BTreeSet<PeerId>,
}

#[derive(Clone, Debug)]
struct Line {
    sender: TeamSender,
    /// Ends the connection.
    end: Arc<Notify>,
}

impl Carrier {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a machine is let go for good, and no connection to be made to it.
    pub(super) fn has_dismissed(&self, machine: PeerId) -> bool {
        self.lines().dismissed.contains(&machine)
    }

    /// Brings what comes on a connection to the machine's thread until it ends; the reason. On a way that was measured, offers tell
    /// its rates; one that was heard meanwhile comes first.
    pub(super) async fn follow(
        &self,
        mut link: TeamLink,
        told: &Told,
        (way, first): (Option<Link>, Option<Offer>),
    ) -> String {
        let (peer, end) = (link.peer, Arc::new(Notify::new()));
        let before = self.lines().open.insert(peer, Line { sender: link.sender(), end: end.clone() });
        // One that came again is there twice until the connection before is noticed to be gone.
        before.inspect(|before| before.end.notify_one());
        tell(told, Heard::Connected(peer)).await;
        let bounded = |offer| {
            let offer = if let Some(way) = &way { Way::bounded(way, offer) } else { offer };
            Word::Packet(Packet::Message(TeamMessage::Offer(offer)))
        };
        if let Some(offer) = first {
            tell(told, Heard::Said(peer, bounded(offer))).await;
        }
        let reason = loop {
            let heard = tokio::select! {
                heard = link.next() => heard,
                () = end.notified() => break "this machine has ended it".to_owned(),
            };
            let TeamWord { header, body } = match heard {
                Ok(word) => word,
                Err(closed) => break closed.to_string(),
            };
            let Some(word) = Word::from_parts(&header, body) else { break "it has sent what is no word".to_owned() };
            if let Some(echo) = word.echo() {
                let (header, body) = echo.to_parts();
                // Where so much waits, the other side does not hear how long it takes.
                let _ = link.sender().try_send(TeamWord { header, body });
                continue;
            }
            let word = match word {
                Word::Packet(Packet::Message(TeamMessage::Offer(offer))) => bounded(offer),
                word => word,
            };
            if !tell(told, Heard::Said(peer, word)).await {
                break "this machine has ended".to_owned();
            }
        };
        let is_last = {
            let mut lines = self.lines();
            let is_last = lines.open.get(&peer).is_some_and(|line| Arc::ptr_eq(&line.end, &end));
            is_last.then(|| lines.open.remove(&peer));
            is_last
        };
        if is_last {
            tell(told, Heard::Disconnected(peer)).await;
            // Another link may have said that it is there before that was told.
            if self.lines().open.contains_key(&peer) {
                tell(told, Heard::Connected(peer)).await;
            }
        }
        reason
    }
}

/// Waits for room. `false` where the thread has ended.
async fn tell(told: &Told, mut heard: Heard) -> bool {
    loop {
        match told.try_tell(heard) {
            Ok(()) => return true,
            Err(Untold::Ended) => return false,
            Err(Untold::Full(back)) => heard = back,
        }
        tokio::time::sleep(ROOM_PERIOD).await;
    }
}

impl TeamWire for Carrier {
    fn send(&mut self, to: PeerId, word: Word) {
        let Some(line) = self.lines().open.get(&to).cloned() else { return };
        let (header, body) = word.to_parts();
        if line.sender.try_send(TeamWord { header, body }).is_err() {
            line.end.notify_one();
        }
    }

    fn disconnect(&mut self, from: PeerId) {
        self.lines().open.get(&from).inspect(|line| line.end.notify_one());
    }

    fn dismiss(&mut self, from: PeerId) {
        self.lines().dismissed.insert(from);
        self.disconnect(from);
    }
}
