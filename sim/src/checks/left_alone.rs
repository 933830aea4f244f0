//! Law: "the unwanted are left alone": a node neither dials nor begins an exchange with whom it has banned or who has
//! taken leave of it, and begins none at all while its owner wants the network left alone.

use std::collections::{BTreeMap, BTreeSet};

use murmur_protocol::{Effect, Event, Message, NetworkOrder, Notice, PeerId, Time};

use super::Violation;
use crate::scenario::HostIndex;

/// Whom one life of a node has to leave alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeftAlone {
    /// Until when, on the node's clock.
    banned: BTreeMap<PeerId, Time>,
    leavers: BTreeSet<PeerId>,
    is_resting: bool,
    /// Number of the last exchange that it began.
    last_begun: Option<u64>,
}

impl LeftAlone {
    /// Takes in what a node is told.
    pub(crate) fn hear(&mut self, event: &Event) {
        match event {
            Event::MessageReceived { peer, message: Message::Leave } => {
                self.leavers.insert(*peer);
            }
            Event::PeerConnected { peer, .. } => {
                self.leavers.remove(peer);
            }
            Event::RestBegan => self.is_resting = true,
            Event::RestEnded => self.is_resting = false,
            _ => {}
        }
    }

    /// Takes in what the node of `host` orders at `now`, on its clock.
    pub(crate) fn order(&mut self, host: HostIndex, now: Time, effect: &Effect) -> Result<(), Violation> {
        let violation = |what: &str, peer| {
            Violation::new("left alone", format!("at {now:?} of its clock host {host} {what} {peer}"))
        };
        let (peer, what) = match effect {
            Effect::Notice(Notice::PeerBanned { peer, duration }) => {
                self.banned.insert(*peer, now + *duration);
                return Ok(());
            }
            Effect::Network(NetworkOrder::Dial { peer: Some(peer), .. }) => (peer, "dials"),
            Effect::Network(NetworkOrder::Send { peer, message: Message::Propose(propose) })
                if self.last_begun < Some(propose.exchange) =>
            {
                self.last_begun = Some(propose.exchange);
                // The check of a copy moves nothing; it ends what was under way.
                if self.is_resting && propose.standing.gamma > 0.0 {
                    return Err(violation("begins an exchange at rest with", peer));
                }
                (peer, "proposes an exchange to")
            }
            _ => return Ok(()),
        };
        if self.banned.get(peer).is_some_and(|until| now < *until) {
            return Err(violation(&format!("{what} the banned"), peer));
        }
        if self.leavers.contains(peer) {
            return Err(violation(&format!("{what} the departed"), peer));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn dial(peer: PeerId) -> Effect {
        Effect::Network(NetworkOrder::Dial { peer: Some(peer), addresses: Vec::new() })
    }

    #[test]
    fn a_ban_holds_until_its_end() {
        let peer = PeerId::from_public_key([1; 32]);
        let mut law = LeftAlone::default();
        let duration = Duration::from_secs(10);
        assert_eq!(law.order(0, Time::ZERO, &Effect::Notice(Notice::PeerBanned { peer, duration })), Ok(()));
        assert!(law.order(0, Time::from_start(Duration::from_secs(9)), &dial(peer)).is_err());
        assert_eq!(law.order(0, Time::from_start(duration), &dial(peer)), Ok(()));
    }

    #[test]
    fn a_leaver_is_left_alone_until_it_comes_back() {
        let peer = PeerId::from_public_key([1; 32]);
        let mut law = LeftAlone::default();
        law.hear(&Event::MessageReceived { peer, message: Message::Leave });
        assert!(law.order(0, Time::ZERO, &dial(peer)).is_err());
        law.hear(&Event::PeerConnected { peer, addresses: Vec::new() });
        assert_eq!(law.order(0, Time::ZERO, &dial(peer)), Ok(()));
    }
}
