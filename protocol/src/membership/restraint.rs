//! Restraint in dialing: whom a node dials is what others have told it, so members could aim its dials at anybody.
//!
//! An address at which a dial came to nothing is left alone for a while that doubles, whoever is said to be there: a
//! member that tells of a thousand made-up peers at one address causes the dials of one. And all dials of members draw on
//! one budget, so that a thousand made-up addresses cause no flood either. A node that has used it up waits; nobody
//! counts as lost for it. Configured addresses are not restrained: the owner has vouched for them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::known::Dial;
use crate::bounds::*;
use crate::peer::Address;
use crate::random::Generator;
use crate::time::Time;

/// What keeps a node from dialing an address.
#[derive(Debug, Default)]
pub(super) struct Restraint {
    /// Addresses at which dials have failed; at most [`FAILED_ADDRESSES_MAX`].
    failed: BTreeMap<Address, Dial>,
    /// When all that was drawn on the budget is made good again.
    made_good_at: Time,
}

impl Restraint {
    /// A dial of this address has come to nothing.
    pub(super) fn failed(&mut self, now: Time, address: &Address, random: &mut Generator) {
        self.failed.retain(|_, dial| now - dial.not_before <= DIAL_BACK_OFF_MAX);
        if self.failed.len() >= FAILED_ADDRESSES_MAX && !self.failed.contains_key(address) {
            let next = self.failed.iter().min_by_key(|(_, dial)| dial.not_before);
            let next = next.map(|(address, _)| address.clone());
            next.map(|address| self.failed.remove(&address));
        }
        let dial = self.failed.entry(address.clone()).or_default();
        // Several dials may have been under way: together they are one failure.
        if dial.may_start(now) {
            dial.failed(now, random);
        }
    }

    /// A dial of these addresses has found whom it was for.
    pub(super) fn reached(&mut self, addresses: &[Address]) {
        for address in addresses {
            self.failed.remove(address);
        }
    }

    /// Those of a member's addresses that may be dialed now.
    pub(super) fn permitted<'a>(
        &'a self,
        now: Time,
        addresses: impl Iterator<Item = &'a Address>,
    ) -> impl Iterator<Item = &'a Address> {
        let is_free = move |address: &&Address| self.failed.get(*address).is_none_or(|dial| dial.may_start(now));
        addresses.filter(is_free).take(self.affordable(now))
    }

    /// When one of these addresses may be dialed, if none of them is being dialed.
    pub(super) fn ready_at(&self, now: Time, addresses: &[Address]) -> Time {
        let ready_at = |address: &Address| self.failed.get(address).map_or(now, |dial| dial.not_before);
        let budget_at = Time::ZERO + (self.made_good_at + ADDRESS_DIAL_PERIOD).saturating_since(Time::ZERO + LENT);
        addresses.iter().map(ready_at).min().unwrap_or(now).max(budget_at)
    }

    /// So many addresses are dialed now.
    pub(super) fn spend(&mut self, now: Time, addresses: usize) {
        self.made_good_at = self.made_good_at.max(now) + ADDRESS_DIAL_PERIOD * addresses as u32;
    }

    fn affordable(&self, now: Time) -> usize {
        let left = LENT.saturating_sub(self.made_good_at.saturating_since(now));
        (left.as_nanos() / ADDRESS_DIAL_PERIOD.as_nanos()) as usize
    }
}

/// How far the budget may be overdrawn, as the time in which that is made good.
const LENT: Duration = ADDRESS_DIAL_PERIOD.saturating_mul(ADDRESS_DIALS_MAX);
