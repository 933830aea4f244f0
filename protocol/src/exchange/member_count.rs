//! With how many members a model is averaged: what tells a small batch's noise from that of all batches together.
//!
//! Counted once a round, and smoothed, for members come and go while what their gradients have told lasts.

/// Weight of the newest round in the running mean: about the last eight count.
const NEWEST: f64 = 0.125;

/// More than these make no difference that an optimizer could use. A guess.
const MEMBERS_MAX: f64 = 64.0;

/// The trainer is told of a change by this share.
const TOLD_FROM: f64 = 0.05;

/// A running mean of the number of members, this node counted. Members that hold only some of its fragments count as less.
#[derive(Clone, Debug)]
pub(crate) struct MemberCount {
    members: f64,
    told: f64,
}

impl MemberCount {
    /// Alone, which is what a trainer takes for granted.
    pub(crate) fn new() -> MemberCount {
        MemberCount { members: 1.0, told: 1.0 }
    }

    /// A round ends, in which this node knows others that count as so many: 0 is alone. Returns what to tell the trainer, 1 to
    /// 64, where it has changed.
    pub(crate) fn on_round(&mut self, others: f64) -> Option<f64> {
        let now = (1.0 + others).min(MEMBERS_MAX);
        // The first number says how many there are: nobody has been averaged with before.
        let weight = if self.told == 1.0 { 1.0 } else { NEWEST };
        self.members += weight * (now - self.members);
        let is_alone = now == 1.0 && self.members < 1.0 + TOLD_FROM;
        self.members = if is_alone { 1.0 } else { self.members };
        let is_new = (self.members / self.told - 1.0).abs() >= TOLD_FROM || (is_alone && self.told != 1.0);
        is_new.then(|| {
            self.told = self.members;
            self.told
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_members_count_at_once_and_changes_little_by_little() {
        let mut member_count = MemberCount::new();
        assert_eq!(member_count.on_round(0.0), None);
        assert_eq!(member_count.on_round(7.0), Some(8.0));
        assert_eq!(member_count.on_round(7.0), None);
        let told = member_count.on_round(3.0).expect("half of them are gone");
        assert!(told < 8.0 && told > 7.0, "{told}");
        assert_eq!(MemberCount::new().on_round(100_000.0), Some(MEMBERS_MAX));
    }

    #[test]
    fn who_stays_alone_is_told_so_in_the_end() {
        let mut member_count = MemberCount::new();
        member_count.on_round(7.0);
        let told: Vec<f64> = (0..100).filter_map(|_| member_count.on_round(0.0)).collect();
        assert!(told.windows(2).all(|pair| pair[1] < pair[0]) && told.last() == Some(&1.0), "{told:?}");
    }
}
