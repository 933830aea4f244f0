//! Members found on the local network, which find this node at the same moment.
//!
//! If both dialed, each pair would have two connections. A newcomer dials; who has members already waits for it.

use std::collections::{BTreeMap, VecDeque};

use libp2p::{Multiaddr, PeerId};
use tokio::time::Instant;

use crate::bounds::{NEIGHBOUR_WAIT, NEIGHBOURS_WAITING_MAX};

/// Where they listen.
pub(crate) type Found = BTreeMap<PeerId, Vec<Multiaddr>>;

/// What the core is not told of yet: the oldest first, at most [`NEIGHBOURS_WAITING_MAX`].
#[derive(Debug, Default)]
pub(crate) struct Neighbours(VecDeque<(Instant, Found)>);

impl Neighbours {
    /// Takes in who was found.
    #[cfg(any(test, feature = "mdns"))]
    pub(crate) fn find(&mut self, now: Instant, found: Found) {
        self.0.push_back((now, found));
    }

    /// Who is to be told to the core now; `is_alone`: this node has no members.
    pub(crate) fn due(&mut self, now: Instant, is_alone: bool) -> Option<Found> {
        let (since, _) = self.0.front()?;
        let is_due = is_alone || now >= *since + NEIGHBOUR_WAIT || self.0.len() > NEIGHBOURS_WAITING_MAX;
        if is_due { self.0.pop_front().map(|(_, found)| found) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newcomer_dials_and_who_has_members_waits_for_it() {
        let (mut neighbours, now) = (Neighbours::default(), Instant::now());
        let found = |_| Found::from([(PeerId::random(), Vec::new())]);
        neighbours.find(now, found(0));
        assert!(neighbours.due(now, true).is_some(), "the newcomer");
        neighbours.find(now, found(1));
        assert!(neighbours.due(now + NEIGHBOUR_WAIT / 2, false).is_none());
        assert!(neighbours.due(now + NEIGHBOUR_WAIT, false).is_some(), "it has not come");
        (0..=NEIGHBOURS_WAITING_MAX).for_each(|number| neighbours.find(now, found(number)));
        assert!(neighbours.due(now, false).is_some(), "too many");
        assert!(neighbours.due(now, false).is_none());
    }
}
