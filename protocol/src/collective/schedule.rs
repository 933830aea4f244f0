//! Schedules of an all-reduce: who sends which slices to whom in which round, and whether the receiver adds or replaces.
//!
//! A schedule is a table, and one executor carries out all of them. Star is what a synchronous parameter server does;
//! ring is Patarasuk and Yuan (2009); recursive halving and doubling is Thakur, Rabenseifner and Gropp (2005), with their
//! fold for counts that are no power of two. Each slice is summed in one place and copied from there, so that all members
//! end with the same bits.

use std::collections::BTreeMap;
use std::ops::Range;

use super::MEMBERS_MAX;

/// Neighbouring slices of a vector that is cut into equal ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slices {
    /// The first slice.
    pub start: u16,
    /// The one behind the last.
    pub end: u16,
    /// Slices of the whole vector, from 1.
    pub of: u16,
}

impl Slices {
    /// Their elements, of a vector of `length`. Slices differ by at most one element.
    pub fn elements(self, length: usize) -> Range<usize> {
        let boundary = |slice: u16| length * usize::from(slice) / usize::from(self.of);
        boundary(self.start)..boundary(self.end)
    }
}

const WHOLE: Slices = Slices { start: 0, end: 1, of: 1 };

/// The kinds of schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Everybody sends to the first member, which sends the sum back.
    Star,
    /// Slices go round a ring twice: once to be summed, once to be copied.
    Ring,
    /// Sums go up a binary tree and down again.
    Tree,
    /// Pairs halve what they sum with each round, then double what they copy.
    HalvingDoubling,
}

impl Shape {
    /// All of them.
    pub const ALL: [Shape; 4] = [Shape::Star, Shape::Ring, Shape::Tree, Shape::HalvingDoubling];

    /// The schedule for `members`, 1 to [`MEMBERS_MAX`].
    ///
    /// # Panics
    /// When there are none, or more.
    pub fn schedule(self, members: usize) -> Schedule {
        assert!((1..=MEMBERS_MAX).contains(&members), "1 to {MEMBERS_MAX} members, not {members}");
        let count = members as u16;
        let moves = match self {
            Shape::Star => star(count),
            Shape::Ring => ring(count),
            Shape::Tree => tree(count),
            Shape::HalvingDoubling => halving_doubling(count),
        };
        let rounds = moves.iter().map(|one| one.round + 1).max().unwrap_or(0);
        Schedule { rounds, moves }
    }
}

/// What a receiver does with a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Adds it to its own.
    Add,
    /// Puts it in the place of its own.
    Replace,
}

/// One line of a schedule. Members are named by rank, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// When: a member begins a round once it has absorbed all that it receives in earlier ones.
    pub round: u16,
    /// The member that sends.
    pub from: u16,
    /// The member that receives.
    pub to: u16,
    /// Which slices of the vector.
    pub slices: Slices,
    /// What the receiver does with them.
    pub action: Action,
}

/// The table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Rounds; 0 for a member alone.
    pub rounds: u16,
    /// The lines; those of one round to one receiver are in the order in which it absorbs them.
    pub moves: Vec<Move>,
}

impl Schedule {
    /// What the member that sends most sends, in vectors.
    pub fn share_of_busiest(&self) -> f64 {
        let mut sent = [0.0; MEMBERS_MAX];
        for one in &self.moves {
            sent[usize::from(one.from)] += f64::from(one.slices.end - one.slices.start) / f64::from(one.slices.of);
        }
        sent.into_iter().fold(0.0, f64::max)
    }

    /// What is sent or received by the busiest member of each round, summed over the rounds, in vectors: where lines are equally
    /// slow an operation takes as long as that.
    pub fn longest_way(&self) -> f64 {
        let mut carried: BTreeMap<(u16, bool, u16), f64> = BTreeMap::new();
        for one in &self.moves {
            let share = f64::from(one.slices.end - one.slices.start) / f64::from(one.slices.of);
            *carried.entry((one.round, true, one.from)).or_default() += share;
            *carried.entry((one.round, false, one.to)).or_default() += share;
        }
        let mut busiest = vec![0.0; usize::from(self.rounds)];
        for ((round, _, _), share) in carried {
            let most = &mut busiest[usize::from(round)];
            *most = share.max(*most);
        }
        busiest.into_iter().sum()
    }
}

fn star(count: u16) -> Vec<Move> {
    let up = (1..count).map(|from| Move { round: 0, from, to: 0, slices: WHOLE, action: Action::Add });
    let down = (1..count).map(|to| Move { round: 1, from: 0, to, slices: WHOLE, action: Action::Replace });
    up.chain(down).collect()
}

fn ring(count: u16) -> Vec<Move> {
    let steps = count - 1;
    let one = |round: u16, from: u16| {
        let (action, ahead) = if round < steps { (Action::Add, 0) } else { (Action::Replace, 1) };
        let slice = (from + ahead + 2 * count - round % steps.max(1)) % count;
        Move { round, from, to: (from + 1) % count, slices: Slices { start: slice, end: slice + 1, of: count }, action }
    };
    (0..2 * steps).flat_map(|round| (0..count).map(move |from| one(round, from))).collect()
}

/// Member `i` has its parent at `(i − 1) / 2`.
fn tree(count: u16) -> Vec<Move> {
    let depth = |rank: u16| (rank + 1).ilog2() as u16;
    let deepest = depth(count - 1);
    let parent = |rank: u16| (rank - 1) / 2;
    let up = (1..count).map(|from| Move {
        round: deepest - depth(from),
        from,
        to: parent(from),
        slices: WHOLE,
        action: Action::Add,
    });
    let down = (1..count).map(|to| Move {
        round: deepest + depth(to) - 1,
        from: parent(to),
        to,
        slices: WHOLE,
        action: Action::Replace,
    });
    up.chain(down).collect()
}

/// Members beyond the largest power of two give their vector to a partner first, and copy the sum from it at the end.
fn halving_doubling(count: u16) -> Vec<Move> {
    let power = largest_power(count);
    let stages = power.ilog2() as u16;
    let folds = u16::from(count > power);
    let mut moves = Vec::new();
    for extra in power..count {
        moves.push(Move {
            round: 0,
            from: extra,
            to: extra - power,
            slices: Slices { start: 0, end: power, of: power },
            action: Action::Add,
        });
    }
    // What a member still sums after `stage` halvings.
    let held = |rank: u16, stage: u16| {
        let size = power >> stage;
        let start = rank / size * size;
        Slices { start, end: start + size, of: power }
    };
    for stage in 0..stages {
        for from in 0..power {
            let to = from ^ (power >> (stage + 1));
            moves.push(Move { round: folds + stage, from, to, slices: held(to, stage + 1), action: Action::Add });
        }
    }
    for stage in (0..stages).rev() {
        for from in 0..power {
            let (round, to) = (folds + 2 * stages - 1 - stage, from ^ (power >> (stage + 1)));
            moves.push(Move { round, from, to, slices: held(from, stage + 1), action: Action::Replace });
        }
    }
    for extra in power..count {
        let round = folds + 2 * stages;
        moves.push(Move {
            round,
            from: extra - power,
            to: extra,
            slices: Slices { start: 0, end: power, of: power },
            action: Action::Replace,
        });
    }
    moves
}

fn largest_power(count: u16) -> u16 {
    1 << count.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Carries a schedule out on one vector a member, as the executor's contract says.
    fn reduced(schedule: &Schedule, vectors: &[Vec<i64>]) -> Vec<Vec<i64>> {
        let mut vectors = vectors.to_vec();
        for round in 0..schedule.rounds {
            let before = vectors.clone();
            for one in schedule.moves.iter().filter(|one| one.round == round) {
                let range = one.slices.elements(before[0].len());
                let sent = before[usize::from(one.from)][range.clone()].iter();
                for (value, sent) in vectors[usize::from(one.to)][range].iter_mut().zip(sent) {
                    *value = if one.action == Action::Add { *value + sent } else { *sent };
                }
            }
        }
        vectors
    }

    #[test]
    fn every_schedule_gives_every_member_the_exact_sum() {
        for shape in Shape::ALL {
            for members in 1..=MEMBERS_MAX {
                for length in [1, 7, members, 193] {
                    let vector = |rank: usize| (0..length).map(|at| ((rank + 1) * (at + 3)) as i64).collect();
                    let vectors: Vec<Vec<i64>> = (0..members).map(vector).collect();
                    let sum: Vec<i64> = (0..length).map(|at| vectors.iter().map(|vector| vector[at]).sum()).collect();
                    let ends = reduced(&shape.schedule(members), &vectors);
                    assert!(ends.iter().all(|end| *end == sum), "{shape:?} of {members}, {length} elements");
                }
            }
        }
    }

    #[test]
    fn a_schedule_with_a_line_less_or_one_twice_gives_another_sum() {
        for shape in Shape::ALL {
            let vectors: Vec<Vec<i64>> = (0..6).map(|rank| vec![1 << rank; 12]).collect();
            let whole = shape.schedule(6);
            for line in 0..whole.moves.len() {
                let mut less = whole.clone();
                less.moves.remove(line);
                let ends = reduced(&less, &vectors);
                assert!(ends.iter().any(|end| end != &vec![63; 12]), "{shape:?} without line {line}");
                if whole.moves[line].action == Action::Add {
                    let mut twice = whole.clone();
                    twice.moves.insert(line, whole.moves[line]);
                    let ends = reduced(&twice, &vectors);
                    assert!(ends.iter().any(|end| end != &vec![63; 12]), "{shape:?} with line {line} twice");
                }
            }
        }
    }

    #[test]
    fn the_longest_way_counts_what_waits_for_each_other() {
        let way = |shape: Shape, members: usize| shape.schedule(members).longest_way();
        assert!(Shape::ALL.into_iter().all(|shape| way(shape, 1) == 0.0));
        assert_eq!(Shape::ALL.map(|shape| way(shape, 2)), [2.0, 1.0, 2.0, 1.0]);
        assert_eq!((way(Shape::Ring, 4), way(Shape::HalvingDoubling, 4)), (1.5, 1.5));
        assert_eq!((way(Shape::Star, 4), way(Shape::Tree, 7)), (6.0, 8.0));
    }

    /// The formulas of the literature, in elements of a vector that all slices divide.
    #[test]
    fn every_member_sends_what_the_literature_says() {
        for members in 1..=MEMBERS_MAX {
            let length = members * 64 * 63;
            let sent = |shape: Shape, rank: usize| {
                let schedule = shape.schedule(members);
                let own = schedule.moves.iter().filter(|one| usize::from(one.from) == rank);
                own.map(|one| one.slices.elements(length).len()).sum::<usize>()
            };
            let power = usize::from(largest_power(members as u16));
            for rank in 0..members {
                let is_extra_partner = rank + power < members;
                let children = (2 * rank + 1..=2 * rank + 2).filter(|child| *child < members).count();
                let not_root = usize::from(rank > 0);
                assert_eq!(sent(Shape::Star, rank), if rank == 0 { (members - 1) * length } else { length });
                assert_eq!(sent(Shape::Ring, rank), 2 * (members - 1) * length / members);
                assert_eq!(sent(Shape::Tree, rank), (children + not_root) * length);
                let halving = 2 * (power - 1) * length / power + usize::from(is_extra_partner) * length;
                assert_eq!(sent(Shape::HalvingDoubling, rank), if rank < power { halving } else { length });
            }
            for shape in Shape::ALL {
                let busiest = (0..members).map(|rank| sent(shape, rank)).max().unwrap_or(0) as f64 / length as f64;
                let share = shape.schedule(members).share_of_busiest();
                assert!((share - busiest).abs() < 1e-9, "{shape:?} of {members}: {share}, {busiest}");
            }
            let rounds = |shape: Shape| usize::from(shape.schedule(members).rounds);
            assert_eq!(rounds(Shape::Ring), 2 * (members - 1));
            let folds = if members > power { 2 } else { 0 };
            assert_eq!(rounds(Shape::HalvingDoubling), 2 * power.ilog2() as usize + folds);
        }
    }
}
