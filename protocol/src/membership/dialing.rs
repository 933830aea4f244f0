//! Dials under way, and the bootstrap addresses.
//!
//! Bootstrap addresses are never forgotten. Each remembers who was found there, so that it is not dialed while that
//! member is connected.

use super::known::Dial;
use crate::bounds::*;
use crate::config::Bootstrap;
use crate::peer::{Address, PeerId};
use crate::random::{Generator, RngExt};
use crate::time::Time;

/// Whom a dial is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Member(PeerId),
    /// The bootstrap address of this index.
    Bootstrap(usize),
}

/// A bootstrap address and what became of it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) configured: Bootstrap,
    /// Who was there last. Not whom to expect: a machine set up anew has another identity.
    pub(super) seen: Option<PeerId>,
    /// When to make sure that those there are still of one swarm with this node.
    recheck_at: Time,
    /// Whether somebody was there the last time.
    is_reached: bool,
    pub(super) dial: Dial,
}

impl Entry {
    /// Whether a swarm that this node has no part in may be behind the address: nobody was there the last time, or that
    /// was long ago.
    pub(super) fn is_doubtful(&self, now: Time) -> bool {
        !self.is_reached || self.recheck_at <= now
    }

    fn reached(&mut self, now: Time, peer: PeerId, random: &mut Generator) {
        self.seen = Some(peer);
        self.recheck_at = now + BOOTSTRAP_RECHECK_PERIOD.mul_f64(random.random_range(0.5..1.5));
        self.is_reached = true;
    }
}

/// A dial under way.
#[derive(Debug)]
pub(super) struct UnderWay {
    pub(super) target: Target,
    since: Time,
    pub(super) addresses: Vec<Address>,
    /// Of the same dial as one before it: it brings no connection more.
    is_further: bool,
}

#[derive(Debug)]
pub(super) struct Dialing {
    /// At most [`DIALS_MAX`] dials.
    under_way: Vec<UnderWay>,
    bootstrap: Vec<Entry>,
    pub(super) last_failure: Option<String>,
}

impl Dialing {
    pub(super) fn new(bootstrap: &[Bootstrap]) -> Dialing {
        let entry = |configured: &Bootstrap| Entry {
            configured: configured.clone(),
            seen: None,
            recheck_at: Time::ZERO,
            is_reached: false,
            dial: Dial::default(),
        };
        Dialing {
            under_way: Vec::with_capacity(DIALS_MAX),
            bootstrap: bootstrap.iter().map(entry).collect(),
            last_failure: None,
        }
    }

    pub(super) fn bootstrap(&self) -> &[Entry] {
        &self.bootstrap
    }

    pub(super) fn has_room(&self) -> bool {
        self.under_way_count() < DIALS_MAX
    }

    /// Dials that will bring one more connection each, if all goes well.
    pub(super) fn under_way_count(&self) -> usize {
        self.under_way.iter().filter(|under_way| !under_way.is_further).count()
    }

    pub(super) fn is_under_way(&self, target: Target) -> bool {
        self.under_way.iter().any(|under_way| under_way.target == target)
    }

    /// Where somebody is being dialed.
    pub(super) fn addresses_for(&self, target: Target) -> &[Address] {
        let under_way = self.under_way.iter().find(|under_way| under_way.target == target);
        under_way.map_or(&[], |under_way| &under_way.addresses)
    }

    /// Whether an address is being dialed for anybody.
    pub(super) fn is_dialed(&self, address: &Address) -> bool {
        self.under_way.iter().any(|under_way| under_way.addresses.contains(address))
    }

    pub(super) fn begin(&mut self, now: Time, target: Target, addresses: Vec<Address>) {
        debug_assert!(self.has_room());
        self.under_way.push(UnderWay { target, since: now, addresses, is_further: false });
    }

    /// Of the dial that has begun, another bootstrap address of the same member.
    pub(super) fn dial_with_it(&mut self, now: Time, index: usize) {
        let addresses = vec![self.bootstrap[index].configured.address.clone()];
        self.under_way.push(UnderWay { target: Target::Bootstrap(index), since: now, addresses, is_further: true });
    }

    /// When the oldest dial counts as failed.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.under_way.iter().map(|under_way| under_way.since + DIAL_TIMEOUT).min()
    }

    /// Takes out the dials that brought nothing in time.
    pub(super) fn take_expired(&mut self, now: Time) -> Vec<UnderWay> {
        self.under_way.extract_if(.., |under_way| now - under_way.since >= DIAL_TIMEOUT).collect()
    }

    /// A peer that listens at `addresses` has connected, by our dial or by its own.
    pub(super) fn on_connected(&mut self, now: Time, peer: PeerId, addresses: &[Address], random: &mut Generator) {
        self.end(Target::Member(peer));
        for index in 0..self.bootstrap.len() {
            let entry = &mut self.bootstrap[index];
            if entry.configured.peer == Some(peer) || addresses.contains(&entry.configured.address) {
                entry.reached(now, peer, random);
                self.end(Target::Bootstrap(index));
            }
        }
    }

    /// A connection has ended: `lasted` says whether it was worth having, `is_pruned` whether on purpose.
    pub(super) fn on_disconnected(
        &mut self,
        now: Time,
        peer: PeerId,
        (lasted, is_pruned): (bool, bool),
        random: &mut Generator,
    ) {
        for entry in self.bootstrap.iter_mut().filter(|entry| entry.seen == Some(peer)) {
            if lasted {
                entry.dial = Dial::default();
            }
            entry.is_reached &= is_pruned;
            entry.dial.failed(now, random);
            if is_pruned && !lasted {
                // It has no place for this node: whom it has named is dialed first.
                entry.dial.not_before = entry.dial.not_before.max(now + PRUNED_PAUSE);
            }
        }
    }

    /// A dial of these addresses has failed. Where it led to somebody who `is_connected` already, it is now known who is
    /// there.
    pub(super) fn on_failed(
        &mut self,
        now: Time,
        tried: &[Address],
        is_connected: Option<PeerId>,
        random: &mut Generator,
    ) {
        for index in 0..self.bootstrap.len() {
            let entry = &self.bootstrap[index];
            if self.is_under_way(Target::Bootstrap(index)) && tried.contains(&entry.configured.address) {
                self.bootstrap_failed(now, index, random);
                if let Some(peer) = is_connected {
                    self.bootstrap[index].reached(now, peer, random);
                }
            }
        }
    }

    pub(super) fn bootstrap_failed(&mut self, now: Time, index: usize, random: &mut Generator) {
        self.end(Target::Bootstrap(index));
        self.bootstrap[index].dial.failed(now, random);
        self.bootstrap[index].is_reached = false;
    }

    pub(super) fn end(&mut self, target: Target) {
        self.under_way.retain(|under_way| under_way.target != target);
    }
}
