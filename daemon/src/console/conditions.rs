//! Conditions that last: said when they begin, counted while they come again, said once more when they end.
//!
//! A warning that repeats every few seconds hides what else is said, and one that never ends leaves open whether it
//! still holds.

use std::collections::BTreeMap;
use std::time::Duration;

/// Conditions held at once; the one that came again longest ago makes room. More than a node has peers, twice over.
const CONDITIONS_MAX: usize = 256;

/// A condition without an end of its own is over when it has not come again for this long.
const QUIET: Duration = Duration::from_secs(120);

/// What is the case, by whatever tells conditions apart.
#[derive(Debug)]
pub(super) struct Conditions<Key> {
    held: BTreeMap<Key, Held>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    since: Duration,
    last: Duration,
    count: u64,
}

/// How a condition that is over went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    /// How often it was met, the first time included.
    pub(super) count: u64,
    /// From the first time to its end.
    pub(super) lasted: Duration,
}

impl<Key: Ord + Clone> Conditions<Key> {
    pub(super) fn new() -> Conditions<Key> {
        Conditions { held: BTreeMap::new() }
    }

    /// It is the case at `now`, on any clock that only grows. Returns whether that is to be said: it was not the case
    /// before.
    pub(super) fn meet(&mut self, now: Duration, key: Key) -> bool {
        if let Some(held) = self.held.get_mut(&key) {
            held.last = now;
            held.count += 1;
            return false;
        }
        if self.held.len() >= CONDITIONS_MAX {
            let oldest = self.held.iter().min_by_key(|(_, held)| held.last).map(|(key, _)| key.clone());
            oldest.map(|oldest| self.held.remove(&oldest));
        }
        self.held.insert(key, Held { since: now, last: now, count: 1 });
        true
    }

    /// Whether it is the case.
    pub(super) fn holds(&self, key: &Key) -> bool {
        self.held.contains_key(key)
    }

    /// It is the case no more; `None` where it was not.
    pub(super) fn end(&mut self, now: Duration, key: &Key) -> Option<Ended> {
        let held = self.held.remove(key)?;
        Some(Ended { count: held.count, lasted: now.saturating_sub(held.since) })
    }

    /// Takes out those of `ends_by_itself` that have not come again for two minutes.
    pub(super) fn take_quiet(&mut self, now: Duration, ends_by_itself: impl Fn(&Key) -> bool) -> Vec<(Key, Ended)> {
        let is_over = |key: &Key, held: &mut Held| ends_by_itself(key) && now.saturating_sub(held.last) >= QUIET;
        let over = self.held.extract_if(.., is_over);
        over.map(|(key, held)| (key, Ended { count: held.count, lasted: held.last - held.since })).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn a_condition_is_said_once_then_counted_then_ended() {
        let mut conditions = Conditions::new();
        assert!(conditions.meet(second(20), "alone"));
        for turn in 1..17 {
            assert!(!conditions.meet(second(20 + 20 * turn), "alone"), "again after {turn} turns");
        }
        assert_eq!(conditions.end(second(360), &"alone"), Some(Ended { count: 17, lasted: second(340) }));
        assert_eq!(conditions.end(second(361), &"alone"), None, "it ends once");
        assert!(conditions.meet(second(400), "alone"), "and may begin anew");
    }

    #[test]
    fn what_has_no_end_of_its_own_ends_when_it_is_quiet() {
        let mut conditions = Conditions::new();
        conditions.meet(second(0), "refused");
        conditions.meet(second(0), "alone");
        conditions.meet(second(60), "refused");
        let by_itself = |key: &&str| *key == "refused";
        assert_eq!(conditions.take_quiet(second(179), by_itself), []);
        assert_eq!(
            conditions.take_quiet(second(180), by_itself),
            [("refused", Ended { count: 2, lasted: second(60) })]
        );
        assert!(conditions.end(second(999), &"alone").is_some());
    }

    #[test]
    fn conditions_are_bounded_and_told_apart() {
        let mut conditions = Conditions::new();
        for number in 0..3 * CONDITIONS_MAX {
            assert!(conditions.meet(second(number as u64), number));
        }
        assert_eq!(conditions.held.len(), CONDITIONS_MAX);
        assert!(conditions.meet(second(9999), 0), "the oldest made room");
    }
}
