//! Whom to dial, and when.
//!
//! A node with too few healthy connections dials random members of its view at once, and where there are no others those
//! from which it has parted. Direct ones are wanted: where relays lead to those that it has, which are no partners, it looks for a
//! few more. One that is alone tries everybody it ever knew. And every node, however well connected, now and
//! then dials somebody lost: where a swarm has split, both parts are well connected, and only this brings them together again.

use super::*;
use crate::Bootstrap;
use crate::random::RngExt;

impl Membership {
    /// Dials until enough connections are there or on their way, and sets when to search again.
    pub(super) fn search(&mut self, now: Time, out: &mut Outbox) {
        self.search_at = NEVER;
        if self.connections.is_full() {
            return;
        }
        let is_alone = self.connections.is_alone();
        if is_alone {
            self.dial_bootstrap(now, |_| true, DIALS_MAX, out);
        }
        if !self.wants_more(now) {
            return;
        }
        let mut candidates = self.candidates(now, is_alone);
        if candidates.is_empty() {
            candidates = self.pruned(now);
        }
        while self.wants_more(now) && self.dialing.has_room() && !candidates.is_empty() {
            let peer = candidates.swap_remove(self.random.random_range(0..candidates.len()));
            self.dial(now, peer, out);
        }
        // The end of a dial and every new member lead here again; only waits must be waited for.
        if self.dialing.has_room() && self.wants_more(now) {
            self.search_at = self.next_may_start(now, is_alone);
        }
    }

    /// Whether connections are wanted beyond those that are there or on their way.
    fn wants_more(&self, now: Time) -> bool {
        let (direct, all) = (self.connections.direct_count(now), self.connections.healthy_count(now));
        let under_way = self.dialing.under_way_count();
        direct + under_way < CONNECTIONS_WANTED && all + under_way < CONNECTIONS_SURPLUS
    }

    /// Dials one random member of the view beyond those wanted.
    pub(super) fn dial_one_more(&mut self, now: Time, out: &mut Outbox) {
        let mut candidates = self.candidates(now, false);
        // Rather somebody whom this node has never met: it tells others mostly of those whom it has.
        let is_new = |peer: &PeerId| self.view.get(*peer).is_some_and(|known| known.teller != known::Teller::NOBODY);
        if candidates.iter().any(is_new) {
            candidates.retain(is_new);
        }
        if !candidates.is_empty() && self.dialing.has_room() && !self.connections.is_full() {
            // Of three the one of which was heard longest ago: its descriptor has come from farthest.
            let mut pick = || candidates[self.random.random_range(0..candidates.len())];
            let picked = [pick(), pick(), pick()];
            let alive_at = |peer: &PeerId| self.view.get(*peer).map(|known| known.alive_at);
            let peer = picked.into_iter().min_by_key(alive_at).expect("three were picked");
            self.dial(now, peer, out);
        }
    }

    /// Dials bootstrap addresses and lost members: with few direct peers all addresses and one member, else one of all.
    pub(super) fn dial_lost(&mut self, now: Time, out: &mut Outbox) {
        let has_few = self.connections.direct_count(now) < CONNECTIONS_WANTED;
        let is_missed = |known: &Known| known.lost_at.is_some() && known.teller == known::Teller::NOBODY;
        let lost_lately = self.view.iter().filter(|(_, known)| is_missed(known));
        let mut lost: Vec<PeerId> = lost_lately.map(|(peer, _)| peer).collect();
        let period = if has_few || !lost.is_empty() { BOOTSTRAP_PERIOD } else { RETRY_PERIOD };
        self.retry_at = now + jittered(period, &mut self.random);
        if has_few {
            self.dial_bootstrap(now, |_| true, DIALS_MAX, out);
        }
        lost.extend(self.reserve.iter().map(|(peer, _)| peer).filter(|peer| self.view.get(*peer).is_none()));
        lost.retain(|peer| self.may_dial(now, *peer, self.view.get(*peer).or_else(|| self.reserve.get(*peer))));
        let doubtful = |entry: &dialing::Entry| entry.is_doubtful(now);
        let addresses = self.dialing.bootstrap().iter().filter(|entry| doubtful(entry)).count();
        let chosen = self.random.random_range(0..(lost.len() + addresses).max(1));
        if let Some(peer) = lost.get(chosen).filter(|_| self.dialing.has_room() && !self.connections.is_full()) {
            self.dial(now, *peer, out);
        } else if !has_few {
            self.dial_bootstrap(now, doubtful, 1, out);
        }
    }

    /// A dialed member was not there, or not willing.
    pub(super) fn member_not_reached(&mut self, now: Time, peer: PeerId) {
        self.dialing.end(Target::Member(peer));
        for known in [self.view.get_mut(peer), self.reserve.get_mut(peer)].into_iter().flatten() {
            known.dial_failed(now, &mut self.random);
        }
    }

    /// Nobody was found at these addresses, or somebody else.
    pub(super) fn dial_in_vain(&mut self, now: Time, tried: &[Address]) {
        let bootstrap = self.dialing.bootstrap();
        let is_configured = |address: &Address| bootstrap.iter().any(|entry| entry.configured.address == *address);
        for address in tried.iter().filter(|address| !is_configured(address)) {
            self.restraint.failed(now, address, &mut self.random);
        }
    }

    fn dial_bootstrap(
        &mut self,
        now: Time,
        may_be_worth_it: impl Fn(&dialing::Entry) -> bool,
        count_max: usize,
        out: &mut Outbox,
    ) {
        let wanted = |(index, entry): &(usize, &dialing::Entry)| {
            let peer = entry.configured.peer;
            let is_me = peer == Some(self.me) || self.own_addresses.contains(&entry.configured.address);
            let is_here = [peer, entry.seen].into_iter().flatten().any(|peer| self.connections.contains(peer));
            let blocked = |peer: PeerId| self.is_banned(peer, now) || self.foreign.contains(peer, now);
            let is_banned = peer.is_some_and(blocked);
            let is_free = entry.dial.may_start(now) && !self.dialing.is_under_way(Target::Bootstrap(*index));
            is_free && !is_me && !is_here && !is_banned && may_be_worth_it(entry)
        };
        let mut indices: Vec<usize> =
            self.dialing.bootstrap().iter().enumerate().filter(wanted).map(|(index, _)| index).collect();
        for _ in 0..count_max.min(indices.len()) {
            if !self.dialing.has_room() {
                return;
            }
            if indices.is_empty() {
                return;
            }
            let index = indices.swap_remove(self.random.random_range(0..indices.len()));
            let Bootstrap { peer, address } = self.dialing.bootstrap()[index].configured.clone();
            let mut addresses = vec![address];
            self.dialing.begin(now, Target::Bootstrap(index), addresses.clone());
            // Where it is known who is there, the other addresses of that member are dialed with it: a dial for each would be
            // refused while the first one waits for an answer.
            let is_same =
                |other: &mut usize| peer.is_some() && self.dialing.bootstrap()[*other].configured.peer == peer;
            let others: Vec<usize> = indices.extract_if(.., is_same).collect();
            for other in others {
                addresses.push(self.dialing.bootstrap()[other].configured.address.clone());
                self.dialing.dial_with_it(now, other);
            }
            out.push(NetworkOrder::Dial { peer, addresses });
        }
    }

    fn dial(&mut self, now: Time, peer: PeerId, out: &mut Outbox) {
        let known = self.view.get(peer).or_else(|| self.reserve.get(peer)).expect("only known members are dialed");
        let addresses: Vec<Address> = self.permitted(now, known).cloned().collect();
        if addresses.is_empty() {
            // Others have been dialed meanwhile.
            return;
        }
        self.restraint.spend(now, addresses.len());
        self.dialing.begin(now, Target::Member(peer), addresses.clone());
        out.push(NetworkOrder::Dial { peer: Some(peer), addresses });
    }

    /// Those of a member's addresses that may be dialed now.
    fn permitted<'a>(&'a self, now: Time, known: &'a Known) -> impl Iterator<Item = &'a Address> {
        self.restraint.permitted(now, known.addresses.iter().filter(|address| !self.dialing.is_dialed(address)))
    }

    /// Members that may be dialed now; with the reserve where `desperate`.
    fn candidates(&self, now: Time, desperate: bool) -> Vec<PeerId> {
        let may_dial = |peer: PeerId, known: &Known| self.may_dial(now, peer, Some(known));
        let viewed = self.view.iter().filter(|(peer, known)| may_dial(*peer, known)).map(|(peer, _)| peer);
        let in_reserve_only = |peer: PeerId| desperate && self.view.get(peer).is_none();
        let lost = self.reserve.iter().filter(|(peer, known)| in_reserve_only(*peer) && may_dial(*peer, known));
        viewed.chain(lost.map(|(peer, _)| peer)).collect()
    }

    /// Members that may be dialed where there are no other candidates.
    fn pruned(&self, now: Time) -> Vec<PeerId> {
        let may_dial = |peer: PeerId, known: &Known| {
            self.is_free(peer) && known.dial.may_start_at_last(now) && self.permitted(now, known).next().is_some()
        };
        self.view.iter().filter(|(peer, known)| may_dial(*peer, known)).map(|(peer, _)| peer).collect()
    }

    fn may_dial(&self, now: Time, peer: PeerId, known: Option<&Known>) -> bool {
        let may_start = |known: &Known| known.dial.may_start(now) && self.permitted(now, known).next().is_some();
        self.is_free(peer) && known.is_some_and(may_start)
    }

    /// Neither connected nor being dialed.
    fn is_free(&self, peer: PeerId) -> bool {
        !self.dialing.is_under_way(Target::Member(peer)) && !self.connections.contains(peer)
    }

    /// When the next wait of somebody who could be dialed is over.
    fn next_may_start(&self, now: Time, desperate: bool) -> Time {
        let ready_at = |known: &Known| known.dial.not_before.max(self.restraint.ready_at(now, &known.addresses));
        let viewed = self.view.iter().map(|(_, known)| ready_at(known));
        let lost = self.reserve.iter().map(|(_, known)| ready_at(known)).filter(|_| desperate);
        let bootstrap = self.dialing.bootstrap().iter().map(|entry| entry.dial.not_before).filter(|_| desperate);
        viewed.chain(lost).chain(bootstrap).filter(|not_before| *not_before > now).min().unwrap_or(NEVER)
    }
}
