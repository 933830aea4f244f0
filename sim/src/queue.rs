//! The virtual clock and what is still to happen.
//!
//! Happenings are ordered by time, then by the order in which they were made: never by a hash or an address, so the
//! same seed gives the same run on every machine.

use std::collections::BTreeMap;

use murmur_protocol::Time;

use crate::happening::Happening;

/// The clock, and everything ahead of it.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    now: Time,
    next_sequence: u64,
    ahead: BTreeMap<(Time, u64), Happening>,
}

impl Queue {
    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// Puts `happening` at `time`, or now where that is over.
    pub(crate) fn push(&mut self, time: Time, happening: Happening) {
        self.ahead.insert((time.max(self.now), self.next_sequence), happening);
        self.next_sequence += 1;
    }

    /// The next happening up to `limit`; moves the clock to it, or to `limit` where there is none.
    pub(crate) fn pop_until(&mut self, limit: Time) -> Option<Happening> {
        let next = self.ahead.first_entry().filter(|entry| entry.key().0 <= limit);
        let Some(entry) = next else {
            self.now = self.now.max(limit);
            return None;
        };
        self.now = entry.key().0;
        Some(entry.remove())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::scenario::Incident;

    #[test]
    fn what_happens_at_one_time_happens_in_the_order_of_making() {
        let second = Time::from_start(Duration::from_secs(1));
        let mut queue = Queue::default();
        queue.push(second, Happening::Incident(Incident::Crash(2)));
        queue.push(second, Happening::Incident(Incident::Crash(1)));
        queue.push(Time::ZERO, Happening::Incident(Incident::Crash(3)));
        let order: Vec<String> =
            std::iter::from_fn(|| queue.pop_until(second)).map(|what| format!("{what:?}")).collect();
        assert_eq!(order, ["Incident(Crash(3))", "Incident(Crash(2))", "Incident(Crash(1))"]);
        assert_eq!(queue.now(), second);
    }
}
