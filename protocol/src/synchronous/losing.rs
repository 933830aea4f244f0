//! What a member drops: what is void, what is lost, and all of it while its owner wants the network left alone.

use super::Synchronous;
use crate::collective::Order;
use crate::outbox::Outbox;
use crate::time::Time;

impl Synchronous {
    /// The owner wants the network left alone: training stands still meanwhile. What others need of one that has ended stays.
    pub(crate) fn begin_rest(&mut self) {
        self.is_resting = true;
        if !self.is_away() {
            return;
        }
        if self.work.iter().any(makes_a_state) {
            self.collective.not_taken_up();
        }
        self.work.clear();
        self.kept.clear();
        self.collective.pause();
    }

    pub(crate) fn end_rest(&mut self, now: Time, out: &mut Outbox) {
        self.is_resting = false;
        self.collective.state_lost(now);
        self.drain(now, out);
    }

    /// What was under way is void; a sum that is complete is not.
    pub(super) fn drop_schedule(&mut self) {
        let whole = self.work.iter().rposition(|order| !is_of_schedule(order)).map_or(0, |last| last + 1);
        self.work.truncate(whole);
    }

    /// The sum is lost, and what was to be made of it.
    pub(super) fn lose_sum(&mut self, now: Time) {
        self.accumulator = None;
        let is_anew = |order: &Order| matches!(order, Order::Begin { .. } | Order::TakeState { .. });
        let needs_it_until = self.work.iter().rposition(is_anew).unwrap_or(self.work.len());
        let later = self.work.split_off(needs_it_until);
        let was_finished = self.work.iter().any(makes_a_state);
        self.work.retain(|order| matches!(order, Order::GiveState { .. }) && !was_finished);
        if !later.is_empty() {
            self.work.extend(later);
            return;
        }
        if was_finished {
            self.collective.not_taken_up();
        }
        self.collective.state_lost(now);
    }

    /// The replica that was to be loaded is not this node's.
    pub(super) fn lose_replica(&mut self, now: Time) {
        self.work.clear();
        self.collective.not_taken_up();
        self.collective.state_lost(now);
    }
}

/// Whether an order belongs to one operation under way, and is void with it.
fn is_of_schedule(order: &Order) -> bool {
    matches!(order, Order::Begin { .. } | Order::Send { .. } | Order::Absorb { .. })
}

/// Whether the state that a member claims is there once this is carried out.
fn makes_a_state(order: &Order) -> bool {
    matches!(order, Order::Finish { .. } | Order::TakeState { .. })
}
