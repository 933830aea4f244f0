//! The partial view: a bounded sample of the members to which a node is not connected.
//!
//! After the peer sampling service (Jelasity et al. 2007), with their two rules of forgetting: what was just given to
//! the teller makes room first (swap, which keeps every member in about as many views as any other), then the oldest
//! (heal, which rids all views of the dead). A teller has a share of the view that it cannot pass.

use super::known::{Known, Teller};
use crate::bounds::*;
use crate::message::Descriptor;
use crate::peer::PeerId;
use crate::time::Time;

/// Members known and not connected, sorted by peer; at most [`DESCRIPTORS_MAX`]. A vector, because it is read through
/// far more often than it changes.
#[derive(Debug, Default)]
pub(super) struct View {
    members: Vec<(PeerId, Known)>,
}

impl View {
    pub(super) fn iter(&self) -> impl Iterator<Item = (PeerId, &Known)> {
        self.members.iter().map(|(peer, known)| (*peer, known))
    }

    /// Those of them that are members for all that this node knows: a lookup may name anybody, of another run as well.
    pub(super) fn members(&self) -> impl Iterator<Item = (PeerId, &Known)> {
        self.iter().filter(|(_, known)| known.teller != Teller::LOOKUP)
    }

    pub(super) fn get(&self, peer: PeerId) -> Option<&Known> {
        self.place(peer).ok().map(|place| &self.members[place].1)
    }

    pub(super) fn get_mut(&mut self, peer: PeerId) -> Option<&mut Known> {
        self.place(peer).ok().map(|place| &mut self.members[place].1)
    }

    pub(super) fn remove(&mut self, peer: PeerId) -> Option<Known> {
        self.place(peer).ok().map(|place| self.members.remove(place).1)
    }

    /// Takes in hearsay; returns whether it is of a member not known before. `given`: what the teller was just told,
    /// which may make room.
    pub(super) fn learn(&mut self, now: Time, teller: PeerId, told: &Descriptor, given: &mut Vec<PeerId>) -> bool {
        self.learn_from(now, Teller::of(teller), told, given)
    }

    /// The same, of a teller that may be none of the members.
    pub(super) fn learn_from(&mut self, now: Time, teller: Teller, told: &Descriptor, given: &mut Vec<PeerId>) -> bool {
        let peer = told.known.peer;
        let share = self.members.iter().filter(|(_, known)| known.teller == teller).count();
        if let Some(known) = self.get_mut(peer) {
            if known.refresh(now, told) && known.teller == Teller::LOOKUP && share < TOLD_BY_ONE_MAX {
                known.teller = teller;
            }
            return false;
        }
        let known = Known::told(now, teller, told);
        if known.addresses.is_empty() || known.is_too_old(now) {
            return false;
        }
        if share >= TOLD_BY_ONE_MAX || self.members.len() >= DESCRIPTORS_MAX {
            let displaced = if share >= TOLD_BY_ONE_MAX {
                self.oldest(|oldest| oldest.teller == teller && oldest.alive_at <= known.alive_at)
            } else {
                let swapped = std::iter::from_fn(|| given.pop()).find_map(|given| self.place(given).ok());
                swapped
                    .or_else(|| self.oldest(Known::is_suspect))
                    .or_else(|| self.oldest(|oldest| oldest.alive_at < known.alive_at))
            };
            let Some(displaced) = displaced else { return false };
            self.members.remove(displaced);
        }
        self.insert(peer, known);
        true
    }

    /// Takes in a member that this node knows from its own experience.
    pub(super) fn keep(&mut self, peer: PeerId, known: Known) {
        if let Some(earlier) = self.get_mut(peer) {
            *earlier = known;
            return;
        }
        if self.members.len() >= DESCRIPTORS_MAX {
            let displaced = self.oldest(Known::is_suspect).or_else(|| self.oldest(|_| true));
            displaced.map(|displaced| self.members.remove(displaced));
        }
        self.insert(peer, known);
    }

    /// Takes out all that have grown too old, or could not be reached for long.
    pub(super) fn take_lost(&mut self, now: Time) -> Vec<(PeerId, Known)> {
        let is_lost = |known: &Known| known.is_too_old(now) || known.dial.failures >= DIAL_FAILURES_MAX;
        self.members.extract_if(.., |(_, known)| is_lost(known)).collect()
    }

    /// Where a member is, or belongs.
    fn place(&self, peer: PeerId) -> Result<usize, usize> {
        self.members.binary_search_by(|(member, _)| member.cmp(&peer))
    }

    fn insert(&mut self, peer: PeerId, known: Known) {
        let place = self.place(peer).unwrap_or_else(|place| place);
        self.members.insert(place, (peer, known));
    }

    /// The place of the one that was heard of longest ago among those that may go.
    fn oldest(&self, may_go: impl Fn(&Known) -> bool) -> Option<usize> {
        let candidates = self.members.iter().enumerate().filter(|(_, (_, known))| may_go(known));
        candidates.min_by_key(|(_, (_, known))| known.alive_at).map(|(place, _)| place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::KnownPeer;
    use crate::peer::Address;
    use crate::profile::Profile;
    use crate::random::stream;

    fn peer(number: usize) -> PeerId {
        PeerId::from_public_key(std::array::from_fn(|index| number.to_le_bytes().get(index % 8).copied().unwrap_or(0)))
    }

    fn descriptor(number: usize, age_seconds: u32) -> Descriptor {
        let addresses = vec![Address::new(format!("sim/{number}")).expect("short")];
        Descriptor { known: KnownPeer { peer: peer(number), addresses }, age_seconds, profile: Profile::default() }
    }

    /// A full view: members 1000… told by four tellers, each a second older than the one before.
    fn full() -> View {
        let mut view = View::default();
        for index in 0..DESCRIPTORS_MAX {
            let teller = peer(1 + index / TOLD_BY_ONE_MAX);
            assert!(view.learn(Time::ZERO, teller, &descriptor(1000 + index, index as u32), &mut Vec::new()));
        }
        view
    }

    #[test]
    fn a_flood_of_one_teller_displaces_no_more_than_its_share() {
        let mut view = full();
        for index in 0..10_000 {
            view.learn(Time::ZERO, peer(99), &descriptor(5000 + index, 0), &mut Vec::new());
        }
        let of_flood = view.iter().filter(|(_, known)| known.teller == Teller::of(peer(99))).count();
        assert_eq!(of_flood, TOLD_BY_ONE_MAX);
        assert_eq!(view.iter().count(), DESCRIPTORS_MAX);
        assert!(view.get(peer(1000)).is_some(), "the youngest of the others stay");
    }

    #[test]
    fn what_was_given_makes_room_before_the_oldest() {
        let mut view = full();
        let mut given = vec![peer(1003), peer(77)];
        assert!(view.learn(Time::ZERO, peer(99), &descriptor(1, 5), &mut given));
        assert!(view.get(peer(1003)).is_none() && view.get(peer(1063)).is_some());
        assert!(view.learn(Time::ZERO, peer(99), &descriptor(2, 5), &mut given));
        assert!(view.get(peer(1063)).is_none(), "nothing given is left, so the oldest goes");
    }

    #[test]
    fn a_full_view_takes_nothing_older_than_it_has() {
        let mut view = full();
        assert!(!view.learn(Time::ZERO, peer(99), &descriptor(1, 500), &mut Vec::new()));
        assert!(!view.learn(Time::ZERO, peer(99), &descriptor(1, u32::MAX), &mut Vec::new()));
    }

    #[test]
    fn the_unreachable_go_before_the_old() {
        let mut view = full();
        let mut random = stream(1, "test", &[]);
        view.get_mut(peer(1000)).expect("known").dial_failed(Time::ZERO, &mut random);
        assert!(view.learn(Time::ZERO, peer(99), &descriptor(1, 5), &mut Vec::new()));
        assert!(view.get(peer(1000)).is_none());
    }

    #[test]
    fn the_old_and_the_unreachable_are_taken_out() {
        let mut view = full();
        let late = Time::from_start(AGE_MAX - std::time::Duration::from_secs(10));
        let lost = view.take_lost(late);
        assert_eq!(lost.len(), DESCRIPTORS_MAX - 11, "all but those of 0 to 10 s");
        let mut random = stream(1, "test", &[]);
        let dead = view.get_mut(peer(1000)).expect("young");
        (0..DIAL_FAILURES_MAX).for_each(|_| dead.dial_failed(late, &mut random));
        assert_eq!(view.take_lost(late).len(), 1);
    }
}
