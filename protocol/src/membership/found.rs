//! Peers that the driver has looked up: in the run's table, or on the local network.
//!
//! Anybody can write anything there, so these are hints about where to dial and nothing else. They have a share of the
//! view like one teller's, displace nothing fresher, and are forgotten where nobody answers.

use super::known::{Teller, remember_addresses};
use super::*;

impl Membership {
    /// Takes in hints; malformed ones are passed over.
    pub(crate) fn on_found(&mut self, now: Time, found: &[KnownPeer]) {
        for hint in found.iter().take(PEERS_TOLD_MAX) {
            let KnownPeer { peer, addresses } = hint;
            let is_sane = !addresses.is_empty()
                && addresses.len() <= ADDRESSES_TOLD_MAX
                && addresses.iter().all(Address::is_well_formed);
            let is_unwanted = self.is_unwanted(*peer, now);
            if !is_sane || is_unwanted || *peer == self.me || self.connections.contains(*peer) {
                continue;
            }
            let known = [self.view.get_mut(*peer), self.reserve.get_mut(*peer)];
            if known.iter().any(Option::is_some) {
                // What the peer itself said stands, unless it proved wrong.
                for known in known.into_iter().flatten().filter(|known| known.dial.failures > 0) {
                    remember_addresses(&mut known.addresses, addresses);
                }
                continue;
            }
            let age_seconds = FOUND_AGE.as_secs() as u32;
            let descriptor = Descriptor { known: hint.clone(), age_seconds, profile: Profile::default() };
            if self.view.learn_from(now, Teller::LOOKUP, &descriptor, &mut Vec::new()) {
                self.search_at = now;
            }
        }
    }

    /// Takes part in another run: it is left alone for [`FOREIGN_KEPT`], wherever it is heard of.
    pub(crate) fn on_foreign(&mut self, now: Time, peer: PeerId) {
        self.foreign.insert(now, peer, now + FOREIGN_KEPT);
        self.view.remove(peer);
        self.reserve.remove(peer);
    }
}
