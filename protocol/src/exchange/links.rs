//! The links of a node: partners with whom it keeps a common reference, so that an exchange sends one bit a value.
//!
//! A node makes [`LINKS_MADE`] links, or as many as it has members, and lets others make the rest of [`LINKS_MAX`]: who
//! wants to be all its partners can be no more than those. Its own exchanges use all of them in turn. A link has no end of
//! its own: both ends tell each other the digest of their reference with every proposal, and where the digests differ (an
//! exchange that one side alone has merged, a restart, a copied model) the starter sends a new reference. After [`LINK_LIFE`]
//! exchanges both forget it, so that links move through the swarm and no part of it stays apart from the rest.
//!
//! Partners that hold no fragment in common take no link from one another.

use std::collections::BTreeMap;

use crate::bounds::LINKS_MAX;
use crate::fragments::Holding;
use crate::numerics::Reference;
use crate::part::Part;
use crate::peer::PeerId;

/// Links that a node makes by itself. With as many that others make a swarm of thousands has a diameter of about eight links.
const LINKS_MADE: usize = 2;

/// Exchanges after which a link ends, and by how many it may be more: both ends draw the number from the digest with which
/// the link began. A new reference costs as much as seven exchanges.
const LINK_LIFE: u32 = 200;
const LINK_LIFE_SPREAD: u64 = 100;

/// A link that was not used in so many own rounds is given up: its other end is gone, or has forgotten it.
const ROUNDS_UNUSED: u64 = 20;

/// What this node keeps of its links.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// By partner; for each fragment of the model a reference of its own.
    links: BTreeMap<PeerId, Link>,
    /// Own rounds so far.
    round: u64,
    /// Whether own rounds are over. They tell which links are unused, so that none is forgotten any more.
    is_at_rest: bool,
}

#[derive(Debug, Default)]
struct Link {
    /// Whether this node has made it.
    is_own: bool,
    /// Whether its partner was out of reach since.
    is_lost: bool,
    /// Whether its partner's word counts.
    is_believed: bool,
    /// Which fragments its partner holds.
    holding: Holding,
    references: BTreeMap<Part, Kept>,
    used: u64,
}

#[derive(Debug)]
struct Kept {
    reference: Reference,
    /// Exchanges after which it is forgotten.
    life: u32,
}

impl Link {
    /// Whether it has a reference of this fragment.
    fn has(&self, fragment: u16) -> bool {
        self.references.keys().any(|part| part.fragment.index == fragment)
    }
}

impl Links {
    /// An own round begins.
    pub(crate) fn on_round(&mut self, round: u64) {
        self.round = round;
        self.links.retain(|_, link| link.used + ROUNDS_UNUSED >= round);
    }

    /// There are no more own rounds: the run is over for this node, which answers those that still train.
    pub(crate) fn rest(&mut self) {
        self.is_at_rest = true;
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        self.is_at_rest
    }

    /// Own rounds go on, with a model that was copied from one that still trains.
    pub(crate) fn wake(&mut self) {
        self.is_at_rest = false;
    }

    /// What both ends have, as far as this one knows.
    pub(crate) fn reference(&self, peer: PeerId, part: Part) -> Option<Reference> {
        Some(self.links.get(&peer)?.references.get(&part)?.reference.clone())
    }

    /// Partners with whom a reference is kept.
    pub(crate) fn count(&self) -> usize {
        self.links.len()
    }

    /// Partners with whom one of this fragment is kept; at most [`LINKS_MAX`].
    pub(crate) fn count_of(&self, fragment: u16) -> usize {
        self.links.values().filter(|link| link.has(fragment)).count()
    }

    /// Whether an exchange of this fragment that this peer proposes needs no new link, or a new one has room. At rest there always
    /// is: a member that comes back to a run that is over for all others would find nobody to exchange with.
    pub(crate) fn has_room_for(&self, peer: PeerId, fragment: u16) -> bool {
        let limit = LINKS_MAX - LINKS_MADE;
        let is_believed = |(_, link): &(&PeerId, &Link)| link.is_believed;
        self.is_at_rest
            || match self.links.get(&peer) {
                Some(link) if link.is_own || link.has(fragment) => true,
                Some(_) => self.made_for(false, fragment).filter(is_believed).count() < limit,
                None => self.made(false, fragment).filter(is_believed).count() < limit,
            }
    }

    /// The links that this node has made, or those that others have, with partners that hold this fragment.
    fn made(&self, is_own: bool, fragment: u16) -> impl Iterator<Item = (&PeerId, &Link)> {
        self.links.iter().filter(move |(_, link)| link.is_own == is_own && link.holding.holds(fragment))
    }

    /// Those of them that have a reference of this fragment.
    fn made_for(&self, is_own: bool, fragment: u16) -> impl Iterator<Item = (&PeerId, &Link)> {
        self.links.iter().filter(move |(_, link)| link.is_own == is_own && link.has(fragment))
    }

    /// This partner is out of reach; if it comes back soon the link goes on.
    pub(crate) fn on_partner_lost(&mut self, peer: PeerId) {
        self.links.entry(peer).and_modify(|link| link.is_lost = true);
    }

    /// An exchange has moved a reference, perhaps its last one. A new link for which there was room when it was agreed on may
    /// take the place of one whose partner is not believed, or of the one that was not used for longest. An own link whose
    /// partner is not believed any more is given up, one that the partner has made goes on: it costs less than anew each time.
    pub(crate) fn keep(
        &mut self,
        (peer, holding): (PeerId, Holding),
        part: Part,
        reference: Reference,
        (is_own, is_believed): (bool, bool),
    ) {
        // What it says that it holds may be old.
        let (round, holding) = (self.round, holding.with(part.fragment.index));
        if !is_believed && self.links.get(&peer).map_or(is_own, |link| link.is_own) {
            self.links.remove(&peer);
            return;
        }
        self.make_room(peer, part.fragment.index, is_own);
        self.links.entry(peer).or_insert_with(|| Link { is_own, ..Link::default() });
        let link = self.links.entry(peer).or_default();
        (link.used, link.is_lost, link.is_believed, link.holding) = (round, false, is_believed, holding);
        link.references.retain(|part, _| holding.holds(part.fragment.index));
        let spread = (reference.digest() % LINK_LIFE_SPREAD) as u32;
        let life = match link.references.get(&part) {
            Some(kept) if reference.exchanges() > 1 => kept.life,
            _ => LINK_LIFE + spread,
        };
        if reference.exchanges() < life {
            link.references.insert(part, Kept { reference, life });
        } else {
            link.references.remove(&part);
            if link.references.is_empty() {
                self.links.remove(&peer);
            }
        }
    }

    /// Gives up links that were used least, until there is room for one of this peer, or in its link for another fragment than
    /// before: it may hold more than it did.
    fn make_room(&mut self, peer: PeerId, fragment: u16, is_own: bool) {
        let known = self.links.get(&peer).map(|link| (link.is_own, link.has(fragment)));
        let is_own = known.map_or(is_own, |(is_own, _)| is_own);
        let limit = if is_own { LINKS_MADE } else { LINKS_MAX - LINKS_MADE };
        loop {
            let others: Vec<(&PeerId, &Link)> = match known {
                Some((_, true)) => return,
                Some(_) => self.made_for(is_own, fragment).collect(),
                None => self.made(is_own, fragment).collect(),
            };
            let least_used = others.iter().min_by_key(|(_, link)| (link.is_believed, link.used));
            let Some(given_up) = least_used.filter(|_| others.len() >= limit).map(|(peer, _)| **peer) else { return };
            self.links.remove(&given_up);
        }
    }

    /// The model is another one.
    pub(crate) fn forget_all(&mut self) {
        self.links.clear();
    }

    /// References of all other parts are of no use any more.
    pub(crate) fn forget_unless(&mut self, is_held: impl Fn(Part) -> bool) {
        self.links.values_mut().for_each(|link| link.references.retain(|part, _| is_held(*part)));
        self.links.retain(|_, link| !link.references.is_empty());
    }

    /// Of these partners, which all hold `fragment`, those to ask for it in this round: somebody new while there are too few
    /// links and nobody has refused in this round (`is_first`), else the one whose link was not used for longest. Nobody where all links
    /// are busy: a new one costs more than a round that is left out. Whose word counts for little is not asked; the links that it
    /// makes go on, so that it can come nearer.
    pub(crate) fn choose(
        &self,
        partners: Vec<(PeerId, Holding)>,
        (fragment, is_first): (u16, bool),
        is_believed: impl Fn(PeerId) -> bool,
    ) -> Vec<(PeerId, Holding)> {
        let (linked, mut strangers): (Vec<_>, Vec<_>) =
            partners.into_iter().partition(|(peer, _)| self.links.contains_key(peer));
        strangers.retain(|(peer, _)| is_believed(*peer));
        let made = self.made(true, fragment).filter(|(_, link)| !link.is_lost).count();
        if made < LINKS_MADE && !strangers.is_empty() && (is_first || linked.is_empty()) {
            return strangers;
        }
        let least_used = linked.into_iter().min_by_key(|(peer, _)| self.links.get(peer).map(|link| link.used));
        least_used.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Snapshot;
    use crate::numerics::{Buffers, CodeWidth, EncodeJob, EncodeRole, encode};
    use crate::part::{Fragment, Vector};
    use crate::peer::peer;

    fn whole(number: u8) -> (PeerId, Holding) {
        (peer(number), Holding::ALL)
    }

    fn new_reference() -> Reference {
        let role = EncodeRole::Link { reference: None, received: None };
        let job = EncodeJob { role, nonce: 1, width: CodeWidth::One };
        let encoded = encode(&Snapshot::from(vec![1.0; 3]), &job, &Buffers::new()).expect("its own reference");
        encoded.reference.expect("an exchange on a link has one")
    }

    #[test]
    fn strangers_are_asked_until_there_are_enough_links_and_then_links_take_turns() {
        let mut links = Links::default();
        let partners: Vec<(PeerId, Holding)> = (1..=5).map(whole).collect();
        links.keep(whole(3), Part::MODEL, new_reference(), (false, true));
        for number in 1..=2 {
            links.on_round(u64::from(number));
            assert_eq!(
                links.choose(partners.clone(), (0, true), |_| true).len(),
                5 - usize::from(number),
                "one of the strangers"
            );
            links.keep(whole(number), Part::MODEL, new_reference(), (true, true));
        }
        for (round, number) in (3..=20).zip([3, 1, 2].into_iter().cycle()) {
            links.on_round(round);
            assert_eq!(links.choose(partners.clone(), (0, true), |_| true), [whole(number)], "in round {round}");
            links.keep(whole(number), Part::MODEL, new_reference(), (true, true));
        }
        let choose = |links: &Links| links.choose(partners[3..].to_vec(), (0, true), |_| true);
        assert_eq!(choose(&links), [], "where all links are busy");
        links.on_partner_lost(peer(2));
        assert_eq!(choose(&links), partners[3..], "one end is gone");
        links.keep(whole(2), Part::MODEL, new_reference(), (true, true));
        assert_eq!(choose(&links), [], "and back");
    }

    #[test]
    fn who_is_not_believed_is_not_asked() {
        let mut links = Links::default();
        links.keep(whole(1), Part::MODEL, new_reference(), (true, true));
        assert_eq!(links.choose(vec![whole(1), whole(2)], (0, true), |other| other == peer(1)), [whole(1)]);
        assert_eq!(links.choose(vec![whole(1), whole(2)], (0, true), |_| true), [whole(2)]);
    }

    #[test]
    fn others_make_a_few_links_and_never_take_the_place_of_own_ones() {
        let mut links = Links::default();
        for number in 1..=3 {
            assert!(links.has_room_for(peer(number), 0));
            links.keep(whole(number), Part::MODEL, new_reference(), (false, true));
        }
        assert!(links.has_room_for(peer(1), 0) && !links.has_room_for(peer(4), 0));
        links.keep(whole(5), Part::MODEL, new_reference(), (true, true));
        links.keep(whole(6), Part::MODEL, new_reference(), (true, true));
        links.on_round(ROUNDS_UNUSED);
        links.keep(whole(1), Part::MODEL, new_reference(), (false, true));
        links.keep(whole(7), Part::MODEL, new_reference(), (false, true));
        assert_eq!(
            (links.count(), links.reference(peer(2), Part::MODEL)),
            (LINKS_MAX, None),
            "the least used one goes"
        );
        links.on_round(ROUNDS_UNUSED + 1);
        assert_eq!(links.count(), 2, "nobody has used the others");
        links.keep(whole(1), Part::MODEL, new_reference(), (false, false));
        assert_eq!(links.count(), 2, "what the partner has made goes on");
        links.keep(whole(8), Part::MODEL, new_reference(), (true, true));
        links.keep(whole(8), Part::MODEL, new_reference(), (true, false));
        assert_eq!(links.count(), 2, "what this node has made does not");
        for number in 9..=10 {
            assert!(links.has_room_for(peer(number), 0), "one who is not believed takes no place");
            links.keep(whole(number), Part::MODEL, new_reference(), (false, true));
        }
        assert_eq!((links.has_room_for(peer(11), 0), links.reference(peer(1), Part::MODEL)), (false, None));
        links.rest();
        assert!(links.has_room_for(peer(11), 0), "without rounds none of them is forgotten");
        links.keep(whole(11), Part::MODEL, new_reference(), (false, true));
        assert!(links.count() <= LINKS_MAX && links.reference(peer(11), Part::MODEL).is_some());
        links.wake();
        assert!(!links.has_room_for(peer(12), 0), "who trains again forgets them");
    }

    #[test]
    fn a_link_ends_after_as_many_exchanges_at_both_ends() {
        let mut links = Links::default();
        let reference = new_reference();
        links.keep(whole(1), Part::MODEL, reference.clone(), (true, true));
        let life = links.links[&peer(1)].references[&Part::MODEL].life;
        assert!((LINK_LIFE..LINK_LIFE + LINK_LIFE_SPREAD as u32).contains(&life));
        let mut other_end = Links::default();
        other_end.keep(whole(2), Part::MODEL, reference, (false, true));
        assert_eq!(other_end.links[&peer(2)].references[&Part::MODEL].life, life);
    }

    #[test]
    fn partners_that_hold_nothing_in_common_take_no_link_from_one_another() {
        let mut links = Links::default();
        let half = |number: u8| (peer(number), Holding::of([u16::from(number) % 2]));
        for number in 1..=4 {
            let fragment = u16::from(number) % 2;
            let strangers = links.choose(vec![half(number)], (fragment, true), |_| true);
            assert_eq!(strangers, [half(number)], "there are {} links", links.count());
            links.keep(half(number), halves(fragment), new_reference(), (true, true));
        }
        assert_eq!((links.count(), links.count_of(0), links.count_of(1)), (4, 2, 2), "two for each half");
        assert_eq!(links.choose(vec![half(6)], (0, true), |_| true), [], "which are enough");
        links.keep(half(6), halves(0), new_reference(), (true, true));
        assert!(links.reference(peer(1), halves(1)).is_some() && links.reference(peer(3), halves(1)).is_some());
    }

    #[test]
    fn a_link_of_several_fragments_leaves_none_of_them_too_many() {
        let mut links = Links::default();
        for number in 1..=3 {
            links.keep((peer(number), Holding::of([0])), halves(0), new_reference(), (false, true));
        }
        links.on_round(1);
        links.keep((peer(4), Holding::of([1])), halves(1), new_reference(), (false, true));
        assert!(!links.has_room_for(peer(5), 0), "agreed on before all of them were there");
        links.keep((peer(5), Holding::of([0, 1])), halves(0), new_reference(), (false, true));
        assert!(links.count_of(0) <= LINKS_MAX - LINKS_MADE, "{} of the first", links.count_of(0));
    }

    #[test]
    fn a_fragment_has_room_whatever_links_there_are_of_others() {
        let mut links = Links::default();
        for number in 1..=3 {
            links.keep((peer(number), Holding::of([0])), halves(0), new_reference(), (false, true));
        }
        assert!(links.has_room_for(peer(4), 1) && !links.has_room_for(peer(4), 0));
        links.keep(whole(4), halves(1), new_reference(), (false, true));
        assert_eq!((links.count_of(0), links.count_of(1)), (3, 1), "and takes no place of theirs");
    }

    #[test]
    fn who_is_refused_by_strangers_asks_a_link_in_the_same_round() {
        let mut links = Links::default();
        links.keep(whole(1), Part::MODEL, new_reference(), (true, true));
        let partners: Vec<(PeerId, Holding)> = (1..=3).map(whole).collect();
        assert_eq!(links.choose(partners.clone(), (0, true), |_| true), partners[1..]);
        assert_eq!(links.choose(partners.clone(), (0, false), |_| true), partners[..1]);
        assert_eq!(links.choose(partners[1..].to_vec(), (0, false), |_| true), partners[1..], "where there is none");
    }

    fn halves(index: u16) -> Part {
        Part { vector: Vector::Model, fragment: Fragment { index, count: 2 } }
    }

    #[test]
    fn what_is_given_up_has_no_references() {
        let mut links = Links::default();
        links.keep(whole(1), halves(0), new_reference(), (true, true));
        links.keep(whole(1), halves(1), new_reference(), (true, true));
        links.keep(whole(2), halves(0), new_reference(), (false, true));
        links.forget_unless(|part| part == halves(1));
        let has = |number, index| links.reference(peer(number), halves(index)).is_some();
        assert_eq!((has(1, 0), has(1, 1), has(2, 0), links.count()), (false, true, false, 1));
    }

    #[test]
    fn a_partner_that_comes_to_hold_more_leaves_no_fragment_with_too_many_links() {
        let mut links = Links::default();
        for number in 1..=3 {
            links.keep((peer(number), Holding::of([1])), halves(1), new_reference(), (false, true));
        }
        links.on_round(1);
        links.keep((peer(4), Holding::of([0])), halves(0), new_reference(), (false, true));
        assert!(links.has_room_for(peer(4), 0) && !links.has_room_for(peer(4), 1), "three have the second");
        links.keep(whole(4), halves(1), new_reference(), (false, true));
        assert_eq!((links.count_of(0), links.count_of(1)), (1, 3), "agreed on before all of them were there");
        let (last_said, exchanged) = (Holding::of([0]), 1);
        assert!(!links.has_room_for(peer(6), exchanged), "of what it holds it has not said all");
        links.keep((peer(6), last_said), halves(exchanged), new_reference(), (false, true));
        assert_eq!(links.count_of(1), 3);
        links.keep((peer(4), Holding::ALL), halves(1), new_reference(), (false, true));
        // What a partner has given up takes no place.
        links.keep((peer(4), Holding::of([0])), halves(0), new_reference(), (false, true));
        assert_eq!(links.count_of(1), 2);
        assert!(links.has_room_for(peer(5), 1));
        links.keep((peer(5), Holding::of([1])), halves(1), new_reference(), (false, true));
        assert_eq!(links.count_of(1), 3);
    }
}
