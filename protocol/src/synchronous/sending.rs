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
}

/// What waits and what is under way. Bounded by one schedule's sends and the replicas of one epoch.
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
    pub(super) fn push(&mut self, to: PeerId, header: TransferHeader, payload: Payload) {
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
        if !finished && item.epoch() >= self.least {
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
