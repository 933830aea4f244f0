//! Peers that a node wants nothing of until some time: the banned, those that left on purpose, and those of other runs.

use std::collections::BTreeMap;

use crate::peer::PeerId;
use crate::time::Time;

/// A bounded set of peers, each with a time at which it drops out.
#[derive(Debug)]
pub(super) struct Blocklist {
    until: BTreeMap<PeerId, Time>,
    count_max: usize,
}

impl Blocklist {
    pub(super) fn new(count_max: usize) -> Blocklist {
        Blocklist { until: BTreeMap::new(), count_max }
    }

    pub(super) fn contains(&self, peer: PeerId, now: Time) -> bool {
        self.until.get(&peer).is_some_and(|until| now < *until)
    }

    /// Those blocked at `now`, each with its end.
    pub(super) fn present(&self, now: Time) -> impl Iterator<Item = (PeerId, Time)> + '_ {
        self.until.iter().map(|(peer, until)| (*peer, *until)).filter(move |(_, until)| now < *until)
    }

    /// Adds a peer, or moves its end. When full, the one whose end is next makes room.
    pub(super) fn insert(&mut self, now: Time, peer: PeerId, until: Time) {
        if self.until.len() >= self.count_max && !self.until.contains_key(&peer) {
            self.until.retain(|_, until| now < *until);
            if self.until.len() >= self.count_max {
                let next = self.until.iter().min_by_key(|(_, until)| **until).map(|(peer, _)| *peer);
                next.map(|peer| self.until.remove(&peer));
            }
        }
        self.until.insert(peer, until);
    }

    pub(super) fn remove(&mut self, peer: PeerId) {
        self.until.remove(&peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::peer;
    use crate::time::second;

    #[test]
    fn a_peer_is_blocked_until_its_end_and_the_first_to_end_makes_room() {
        let mut blocked = Blocklist::new(2);
        blocked.insert(second(0), peer(1), second(10));
        blocked.insert(second(0), peer(2), second(5));
        assert!(blocked.contains(peer(2), second(4)) && !blocked.contains(peer(2), second(5)));
        blocked.insert(second(1), peer(3), second(20));
        assert!(!blocked.contains(peer(2), second(1)), "its end was next");
        assert!(blocked.contains(peer(1), second(1)) && blocked.contains(peer(3), second(1)));
    }
}
