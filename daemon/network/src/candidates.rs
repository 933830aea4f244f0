//! Which of the addresses at which peers see this node are worth a probe.
//!
//! Whoever is connected says where it sees this node, and may say something else as often as it likes. libp2p's client of
//! AutoNAT remembers all of it for ever, and for each address asks a peer to dial it, to which it sends up to 100 kB. So it hears
//! of a few in a while, and of those of few from one host: else a stranger that comes first would keep it from the true ones.

use std::collections::VecDeque;

use libp2p::Multiaddr;
use tokio::time::Instant;

use crate::bounds::{CANDIDATE_KEPT, CANDIDATES_MAX, CANDIDATES_PER_HOST_MAX};
use crate::sources::Source;

/// The addresses that were let through of late.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    /// The host of the peer that was heard last; `None` for all that come through relays.
    teller: Option<u128>,
    /// When each was let through, and who told of it first: the oldest first, at most [`CANDIDATES_MAX`].
    known: VecDeque<(Instant, Option<u128>, Multiaddr)>,
}

impl Candidates {
    /// What is seen next was told by a peer from there.
    pub(crate) fn hear_from(&mut self, source: Option<Source>) {
        self.teller = source.map(|source| source.host);
    }

    /// Whether an address is let through.
    pub(crate) fn admit(&mut self, now: Instant, address: &Multiaddr) -> bool {
        while self.known.front().is_some_and(|(since, ..)| now >= *since + CANDIDATE_KEPT) {
            self.known.pop_front();
        }
        if self.known.iter().any(|(.., known)| known == address) {
            return true;
        }
        let of_host = self.known.iter().filter(|(_, teller, _)| *teller == self.teller).count();
        let has_room = self.known.len() < CANDIDATES_MAX && of_host < CANDIDATES_PER_HOST_MAX;
        if has_room {
            self.known.push_back((now, self.teller, address.clone()));
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: usize) -> Multiaddr {
        format!("/ip4/8.8.8.{host}/tcp/1").parse().expect("an address")
    }

    #[test]
    fn one_host_tells_of_few_addresses_and_all_of_a_few_more() {
        let (mut candidates, now) = (Candidates::default(), Instant::now());
        let mut admitted = |teller: usize, told: std::ops::Range<usize>, now| {
            candidates.hear_from(Source::of(&address(teller)));
            told.filter(|host| candidates.admit(now, &address(*host))).count()
        };
        assert_eq!(admitted(1, 0..200, now), CANDIDATES_PER_HOST_MAX);
        assert_eq!(admitted(2, 200..202, now), 2, "another one is believed as before");
        assert_eq!(admitted(3, 200..202, now), 2, "these are known");
        let of_all: usize = (3..20).map(|teller| admitted(teller, 0..200, now)).sum();
        assert!(of_all >= CANDIDATES_MAX);
        assert_eq!(admitted(20, 202..204, now), 0, "there are enough");
        assert_eq!(admitted(20, 202..204, now + CANDIDATE_KEPT), 2, "this machine may be somewhere else by now");
    }
}
