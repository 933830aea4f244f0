//! The virtual clock and what is still to happen.
//!
//! Happenings are ordered by time, then by the order in which they were made: never by a hash or an address, so the
//! same seed gives the same run on every machine. The heap holds times and places alone, so that what moves through it
//! is small.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use murmur_protocol::Time;

use crate::happening::Happening;

/// Time, order of making, and where the happening lies.
type Entry = Reverse<(Time, u64, usize)>;

/// The clock, and everything ahead of it.
#[derive(Debug)]
pub(crate) struct Queue<T = Happening> {
    now: Time,
    next_sequence: u64,
    ahead: BinaryHeap<Entry>,
    /// The happenings ahead, in places that are used again.
    places: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue { now: Time::ZERO, next_sequence: 0, ahead: BinaryHeap::new(), places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Queue<T> {
    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// Whether nothing is ahead, at any time.
    pub(crate) fn is_empty(&self) -> bool {
        self.ahead.is_empty()
    }

    /// Puts `happening` at `time`, or now where that is over.
    pub(crate) fn push(&mut self, time: Time, happening: T) {
        let place = self.free.pop().unwrap_or(self.places.len());
        if place == self.places.len() {
            self.places.push(None);
        }
        self.places[place] = Some(happening);
        self.ahead.push(Reverse((time.max(self.now), self.next_sequence, place)));
        self.next_sequence += 1;
    }

    /// The next happening up to `limit`; moves the clock to it, or to `limit` where there is none.
    pub(crate) fn pop_until(&mut self, limit: Time) -> Option<T> {
        let is_next = self.ahead.peek().is_some_and(|Reverse((time, ..))| *time <= limit);
        if !is_next {
            self.now = self.now.max(limit);
            return None;
        }
        let Reverse((time, _, place)) = self.ahead.pop()?;
        self.now = time;
        self.free.push(place);
        self.places[place].take()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_happens_at_one_time_happens_in_the_order_of_making() {
        let second = Time::from_start(Duration::from_secs(1));
        let mut queue = Queue::default();
        let begins = |host| Happening::Begins { host };
        queue.push(second, begins(2));
        queue.push(second, begins(1));
        queue.push(Time::ZERO, begins(3));
        let order: Vec<String> =
            std::iter::from_fn(|| queue.pop_until(second)).map(|what| format!("{what:?}")).collect();
        assert_eq!(order, ["Begins { host: 3 }", "Begins { host: 2 }", "Begins { host: 1 }"]);
        assert_eq!(queue.now(), second);
        assert_eq!(queue.places.len(), 3, "places are used again");
        queue.push(second, begins(4));
        assert_eq!(queue.places.len(), 3);
    }
}
