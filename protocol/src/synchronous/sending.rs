//! Transfers of a synchronous run: a few at a time, again where they failed.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::bulk::Payload;
use crate::collective::Epoch;
use crate::effect::TransferId;
use crate::message::TransferHeader;
use crate::outbox::Outbox;
use crate::peer::PeerId;
use crate::time::Time;

/// Transfers at once to one peer, as many as its network driver takes from one.
const TO_ONE_MAX: usize = 2;

/// Transfers at once in all: fewer than a network driver takes, for exchanges and joiners have some as well.
const AT_ONCE_MAX: usize = 4;

/// A transfer that failed, or found no place, is begun again after this. A guess.
const RETRY: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
struct Item {
    to: PeerId,
    header: TransferHeader,
    payload: Payload,
}

impl Item {
    fn epoch(&self) -> Option<Epoch> {
        match &self.header {
            TransferHeader::Slices(name) => Some(name.epoch),
            TransferHeader::Replica { epoch, .. } => Some(*epoch),
            _ => None,
        }
    }

    fn is_replica_for(&self, member: PeerId) -> bool {
        self.to == member && matches!(self.header, TransferHeader::Replica { .. })
    }
}

/// What waits and what is under way. Bounded by one schedule's sends and a replica for each member.
#[derive(Debug, Default)]
pub(super) struct Sending {
    waiting: VecDeque<Item>,
    under_way: BTreeMap<TransferId, Item>,
    /// Nothing begins before then.
    paused_until: Option<Time>,
    /// Of the present epoch or later.
    least: Option<Epoch>,
}

impl Sending {
    /// A replica takes the place of one that waits for the same member.
    pub(super) fn push(&mut self, to: PeerId, header: TransferHeader, payload: Payload) {
        if matches!(header, TransferHeader::Replica { .. }) {
            self.waiting.retain(|item| !item.is_replica_for(to));
        }
        self.waiting.push_back(Item { to, header, payload });
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.paused_until.filter(|_| !self.waiting.is_empty())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.under_way.is_empty()
    }

    pub(super) fn is_busy_with(&self, peer: PeerId) -> bool {
        self.waiting.iter().chain(self.under_way.values()).any(|item| item.to == peer)
    }

    /// Begins what may begin.
    pub(super) fn proceed(&mut self, now: Time, out: &mut Outbox) {
        if self.paused_until.is_some_and(|until| now < until) {
            return;
        }
        self.paused_until = None;
        let mut place = 0;
        while place < self.waiting.len() && self.under_way.len() < AT_ONCE_MAX {
            let to = self.waiting[place].to;
            if self.under_way.values().filter(|item| item.to == to).count() >= TO_ONE_MAX {
                place += 1;
            } else if let Some(item) = self.waiting.remove(place) {
                let transfer = out.transfer(to, item.header.clone(), item.payload.clone());
                self.under_way.insert(transfer, item);
            }
        }
    }

    pub(super) fn on_ended(&mut self, now: Time, transfer: TransferId, finished: bool) {
        let Some(item) = self.under_way.remove(&transfer) else { return };
        let is_replaced =
            item.is_replica_for(item.to) && self.waiting.iter().any(|other| other.is_replica_for(item.to));
        if !finished && item.epoch() >= self.least && !is_replaced {
            self.waiting.push_front(item);
            self.paused_until = Some(now + RETRY);
        }
    }

    /// Nothing reaches this peer any more.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.waiting.retain(|item| item.to != peer);
        self.under_way.retain(|_, item| item.to != peer);
    }

    /// What belongs to an epoch before this one is not wanted any more.
    pub(super) fn forget_before(&mut self, epoch: Epoch) {
        self.least = Some(epoch);
        self.waiting.retain(|item| item.epoch() >= Some(epoch));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Version;

    fn replica(number: u64) -> TransferHeader {
        let epoch = Epoch { number, leader: PeerId::from_public_key([1; 32]) };
        TransferHeader::Replica { epoch, version: Version { operations: 0, epoch } }
    }

    /// Each time that a member asked again one more waited for it.
    #[test]
    fn a_replica_takes_the_place_of_one_that_waits_for_the_same_member() {
        let (mut sending, mut out) = (Sending::default(), Outbox::default());
        let to = PeerId::from_public_key([2; 32]);
        for number in 0..5 {
            sending.push(to, replica(number), Payload::from(vec![0; 8]));
            sending.proceed(Time::ZERO, &mut out);
        }
        let waiting = |sending: &Sending| sending.waiting.iter().map(|item| item.header.clone()).collect::<Vec<_>>();
        assert_eq!((sending.under_way.len(), waiting(&sending)), (TO_ONE_MAX, vec![replica(4)]));
        let first = *sending.under_way.keys().next().expect("two are under way");
        sending.on_ended(Time::ZERO, first, false);
        assert_eq!(waiting(&sending), [replica(4)], "the one that failed is not wanted any more");
    }
}
