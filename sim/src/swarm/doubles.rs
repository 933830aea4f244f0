//! Identities that run twice: a data directory was copied, or a machine cloned.
//!
//! As the daemon's network does it (`daemon/network/src/life.rs`): who has two connections to one identity asks on both which life
//! is there. Where two answer, it has the elder sign that it lives, and hands that to the younger, which ends.

use murmur_protocol::{Event, PeerId};

use super::Swarm;
use crate::happening::{Happening, Life};
use crate::network::LinkId;
use crate::scenario::HostIndex;

impl Swarm {
    /// A host has a second connection to a peer, over `link`: tells it and the younger life, where two are there.
    pub(super) fn compare_lives(&mut self, index: HostIndex, peer: PeerId, link: LinkId) {
        let Some(here) = self.network.link(link).map(|link| link.other_end(index)) else { return };
        let Some(host) = self.hosts[index].as_ref() else { return };
        let life = host.life;
        let Some(other) = self.newest_link(index, peer, |end| end != here) else { return };
        let Some(there) = self.network.link(other).map(|link| link.other_end(index)) else { return };
        let lives = [here, there].map(|end| Some((self.hosts[end].as_ref()?.life, end)));
        let answers = |end: HostIndex| self.peer_of(end) == Some(peer) && self.network.can_reach(index, end);
        let [Some(one), Some(other)] = lives else { return };
        if !answers(here) || !answers(there) {
            return;
        }
        let (younger_life, younger) = one.max(other);
        // Which life, and the answer; then the elder's signature; then it is on its way to the younger.
        let mut way = |count: u32| (0..count).map(|_| self.network.latency(index, younger)).sum();
        let now = self.queue.now();
        let named_at = now + way(2);
        let yields_at = named_at + way(3);
        let doubled = Box::new(Event::IdentityDoubled { peer });
        self.queue.push(named_at, Happening::Told { host: index, life, event: doubled });
        self.queue.push(yields_at, Happening::Yields { host: younger, life: younger_life });
    }

    /// A life has heard that an elder one lives: it closes its network at once, so that nobody takes its leaving for the elder's.
    pub(super) fn on_yields(&mut self, index: HostIndex, life: Life) {
        if self.living(index, life).is_some() {
            self.crash(index);
        }
    }

    /// Whether somebody runs with this identity.
    pub(super) fn lives(&self, peer: PeerId) -> bool {
        self.hosts.iter().flatten().any(|host| host.peer == peer)
    }

    /// Whether this identity is to run twice at some time.
    pub(super) fn is_doubled(&self, peer: PeerId) -> bool {
        let originals = self.scenario.nodes.iter().filter_map(|plan| plan.double_of);
        self.host_of(peer).is_some_and(|host| originals.into_iter().any(|original| original == host))
    }
}
