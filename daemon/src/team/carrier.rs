//! Carries words between the network's connections and the thread that pumps a machine of a team.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use murmur_network::team::{TeamLink, TeamSender, TeamWord};
use murmur_protocol::PeerId;
use murmur_training::team::{Heard, TeamWire, Told, Untold, Word};
use tokio::sync::Notify;

/// How long to wait for room among the facts of a machine's thread: it computes meanwhile.
const ROOM_PERIOD: Duration = Duration::from_millis(2);

/// Connections to machines of a team; clones share them. Behind a lock, since the machine's thread sends while connections come and
/// go; held for a look-up.
#[derive(Clone, Debug, Default)]
pub(super) struct Carrier(Arc<Mutex<BTreeMap<PeerId, Line>>>);

#[derive(Clone, Debug)]
struct Line {
    sender: TeamSender,
    /// Ends the connection.
    end: Arc<Notify>,
}

impl Carrier {
    fn lines(&self) -> MutexGuard<'_, BTreeMap<PeerId, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings what comes on a connection to the machine's thread until it ends; the reason.
    pub(super) async fn follow(&self, mut link: TeamLink, told: &Told) -> String {
        let (peer, end) = (link.peer, Arc::new(Notify::new()));
        let before = self.lines().insert(peer, Line { sender: link.sender(), end: end.clone() });
        // One that came again is there twice until the connection before is noticed to be gone.
        before.inspect(|before| before.end.notify_one());
        tell(told, Heard::Connected(peer)).await;
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
            if !tell(told, Heard::Said(peer, word)).await {
                break "this machine has ended".to_owned();
            }
        };
        let is_last = {
            let mut lines = self.lines();
            let is_last = lines.get(&peer).is_some_and(|line| Arc::ptr_eq(&line.end, &end));
            is_last.then(|| lines.remove(&peer));
            is_last
        };
        if is_last {
            tell(told, Heard::Disconnected(peer)).await;
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
        let Some(line) = self.lines().get(&to).cloned() else { return };
        let (header, body) = word.to_parts();
        if line.sender.try_send(TeamWord { header, body }).is_err() {
            line.end.notify_one();
        }
    }

    fn disconnect(&mut self, from: PeerId) {
        self.lines().get(&from).inspect(|line| line.end.notify_one());
    }
}
