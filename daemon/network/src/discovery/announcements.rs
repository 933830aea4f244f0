//! Who has announced itself in the run's table, and from where: whoever has many identities does not fill it with them.
//!
//! libp2p's store takes as many as there are places and turns all others away, for as long as each is believed. Here the oldest of
//! the place with the most gives way to a newcomer, as it does among connections, so that somebody from elsewhere always has one.

use libp2p::PeerId;

use crate::bounds::ANNOUNCEMENTS_MAX;
use crate::sources::{Source, Waiting, who_gives_way};

/// Those whose announcements this node keeps beside its own, the one that has announced itself longest ago first.
#[derive(Debug, Default)]
pub(crate) struct Announcements(Vec<Announcement>);

#[derive(Clone, Copy, Debug)]
struct Announcement {
    peer: PeerId,
    /// `None` where it came through a relay: all such count as one network.
    source: Option<Source>,
}

impl Announcements {
    /// A peer that comes from there announces itself, once more or for the first time. Returns who has to be forgotten for it.
    /// `is_kept`: whose announcements are still there, for some have expired.
    pub(crate) fn announced(
        &mut self,
        peer: PeerId,
        source: Option<Source>,
        is_kept: impl Fn(&PeerId) -> bool,
    ) -> Option<PeerId> {
        self.0.retain(|earlier| earlier.peer != peer && is_kept(&earlier.peer));
        let waiting = self.0.iter().map(|earlier| Waiting { source: earlier.source, is_silent: false });
        // One place is this node's own.
        let is_full = self.0.len() >= ANNOUNCEMENTS_MAX - 1;
        let place = if is_full { who_gives_way(&waiting.collect::<Vec<_>>(), source) } else { None };
        let gone = place.map(|place| self.0.remove(place).peer);
        self.0.push(Announcement { peer, source });
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Announces a new peer from there; gives it and who has to go for it.
    fn announce(announcements: &mut Announcements, address: &str) -> (PeerId, Option<PeerId>) {
        let peer = PeerId::random();
        let source = Source::of(&address.parse().expect("an address"));
        (peer, announcements.announced(peer, source, |_| true))
    }

    fn announce_many(announcements: &mut Announcements, address: &str, count: usize) -> Vec<PeerId> {
        (0..count).map(|_| announce(announcements, address).0).collect()
    }

    #[test]
    fn one_host_with_many_identities_pushes_out_itself_and_nobody_else() {
        let (mut announcements, crowd) = (Announcements::default(), "/ip4/192.0.2.1/tcp/1");
        let honest = announce(&mut announcements, "/ip4/198.51.100.7/tcp/1").0;
        let first = announce_many(&mut announcements, crowd, ANNOUNCEMENTS_MAX - 2);
        for oldest in &first {
            assert_eq!(announce(&mut announcements, crowd).1, Some(*oldest));
        }
        assert!(announcements.0.iter().any(|kept| kept.peer == honest));
        assert_eq!(announcements.0.len(), ANNOUNCEMENTS_MAX - 1, "one is this node's own");
    }

    #[test]
    fn who_comes_from_elsewhere_finds_a_place_until_all_have_as_much() {
        let mut announcements = Announcements::default();
        let crowd = announce_many(&mut announcements, "/ip4/192.0.2.1/tcp/1", ANNOUNCEMENTS_MAX - 1);
        for (number, oldest) in crowd.iter().enumerate().take(ANNOUNCEMENTS_MAX - 2) {
            let gone = announce(&mut announcements, &format!("/ip4/10.0.{number}.1/tcp/1")).1;
            assert_eq!(gone, Some(*oldest), "for that of network {number}");
        }
    }

    #[test]
    fn who_announces_itself_again_takes_no_second_place_and_is_no_longer_the_oldest() {
        let (mut announcements, here) = (Announcements::default(), "/ip4/192.0.2.1/tcp/1");
        let source = Source::of(&here.parse().expect("an address"));
        let crowd = announce_many(&mut announcements, here, ANNOUNCEMENTS_MAX - 1);
        assert_eq!(announcements.announced(crowd[0], source, |_| true), None);
        assert_eq!(announce(&mut announcements, here).1, Some(crowd[1]));
        let has_expired = |peer: &PeerId| *peer != crowd[5];
        assert_eq!(announcements.announced(PeerId::random(), source, has_expired), None, "one has expired");
    }
}
