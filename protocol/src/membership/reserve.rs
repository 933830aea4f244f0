//! Members lost for long, against splits of hours.
//!
//! A view forgets what it cannot reach, as it must, and with it the other part of a split swarm. So a few of the lost are
//! kept beside it and dialed now and then; nobody is told of them.

use std::collections::BTreeMap;

use super::known::{Known, Teller};
use crate::bounds::*;
use crate::peer::PeerId;
use crate::random::{Generator, RngExt};
use crate::time::Time;

/// Lost members; at most [`RESERVE_MAX`].
#[derive(Debug, Default)]
pub(super) struct Reserve {
    members: BTreeMap<PeerId, Known>,
}

impl Reserve {
    pub(super) fn iter(&self) -> impl Iterator<Item = (PeerId, &Known)> {
        self.members.iter().map(|(peer, known)| (*peer, known))
    }

    pub(super) fn get(&self, peer: PeerId) -> Option<&Known> {
        self.members.get(&peer)
    }

    pub(super) fn get_mut(&mut self, peer: PeerId) -> Option<&mut Known> {
        self.members.get_mut(&peer)
    }

    pub(super) fn remove(&mut self, peer: PeerId) -> Option<Known> {
        self.members.remove(&peer)
    }

    /// Keeps a member, at the cost of a random other one when full. One that this node was itself connected to is never
    /// displaced by hearsay.
    pub(super) fn keep(&mut self, peer: PeerId, known: Known, random: &mut Generator) {
        if self.members.len() >= RESERVE_MAX && !self.members.contains_key(&peer) {
            let is_hearsay = |known: &Known| known.teller != Teller::NOBODY;
            let hearsay = self.members.iter().filter(|(_, known)| is_hearsay(known)).map(|(peer, _)| *peer);
            let mut displaceable: Vec<PeerId> = hearsay.collect();
            if displaceable.is_empty() && !is_hearsay(&known) {
                displaceable = self.members.keys().copied().collect();
            }
            if displaceable.is_empty() {
                return;
            }
            self.members.remove(&displaceable[random.random_range(0..displaceable.len())]);
        }
        self.members.insert(peer, known);
    }

    /// Forgets those that have been lost for too long.
    pub(super) fn expire(&mut self, now: Time) {
        self.members.retain(|_, known| known.alive_at.age(now) <= RESERVE_KEPT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Descriptor, KnownPeer};
    use crate::peer::peer;
    use crate::profile::Profile;
    use crate::random::stream;

    fn known(number: u8, teller: Teller) -> Known {
        let known = KnownPeer { peer: peer(number), addresses: Vec::new() };
        Known::told(Time::ZERO, teller, &Descriptor { known, age_seconds: 0, profile: Profile::default() })
    }

    #[test]
    fn hearsay_never_displaces_experience() {
        let mut random = stream(1, "test", &[]);
        let mut reserve = Reserve::default();
        for number in 0..40 {
            reserve.keep(peer(number), known(number, Teller::NOBODY), &mut random);
        }
        assert_eq!(reserve.iter().count(), RESERVE_MAX);
        reserve.keep(peer(200), known(200, Teller::of(peer(1))), &mut random);
        assert!(reserve.get(peer(200)).is_none());
        reserve.keep(peer(201), known(201, Teller::NOBODY), &mut random);
        assert!(reserve.get(peer(201)).is_some());
        assert_eq!(reserve.iter().count(), RESERVE_MAX);
    }

    #[test]
    fn the_lost_are_forgotten_after_a_weekend() {
        let mut reserve = Reserve::default();
        reserve.keep(peer(1), known(1, Teller::NOBODY), &mut stream(1, "test", &[]));
        reserve.expire(Time::from_start(RESERVE_KEPT));
        assert!(reserve.get(peer(1)).is_some());
        reserve.expire(Time::from_start(RESERVE_KEPT * 2));
        assert!(reserve.get(peer(1)).is_none());
    }
}
