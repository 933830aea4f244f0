//! Layers over places, by exact dynamic programming: which place takes which run of layers, where a stage may cost what it likes.
//!
//! A batch takes as long as its slowest stage for each microbatch and as long as all of them once, so two costs count: the slowest
//! one's and the sum. Of arrangements that reach the same layer over the same places all are kept of which no other is better in
//! both, so the best for any measure that grows with both is among them.

use std::ops::Range;

/// Places, at most, where they may follow each other in any order: their sets are numbered.
const ANY_ORDER_MAX: usize = 16;

/// In which order places may follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As they are listed.
    AsListed,
    /// Any; at most 16 of them.
    Any,
}

/// What a stage, or some of them one after the other, cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    /// Of the slowest one.
    pub slowest: f64,
    /// Of all.
    pub total: f64,
}

impl Costs {
    /// Of a stage that costs that.
    pub fn of(cost: f64) -> Costs {
        Costs { slowest: cost, total: cost }
    }

    /// Of these and what comes with them.
    pub fn and(self, next: Costs) -> Costs {
        Costs { slowest: self.slowest.max(next.slowest), total: self.total + next.total }
    }

    fn is_no_worse(self, other: Costs) -> bool {
        self.slowest <= other.slowest && self.total <= other.total
    }
}

/// A way to some layer.
#[derive(Clone, Copy, Debug)]
struct Way {
    costs: Costs,
    /// Of its last stage.
    place: usize,
    first: u32,
    /// Where the way to that stage is: its key, and its number there.
    before: (usize, usize),
}

/// Each stage's place and layers.
pub type Placement = Vec<(usize, Range<u32>)>;

/// Ways to all layers over exactly so many places.
#[derive(Debug)]
pub struct Arrangements {
    layers: u32,
    /// For each number of stages, key of used places, and layer that is reached.
    ways: Vec<Vec<Vec<Way>>>,
}

/// Finds the ways from layer 0 to every layer over `stages` of the `places`, each with at least one layer. The cost is that of the
/// stage of a number (from 0) on a place with a run of layers; `None` where it does not fit.
///
/// # Panics
/// When there are more than 16 places for any order.
pub fn arrange(
    layers: u32,
    places: usize,
    stages: usize,
    order: Order,
    cost: impl Fn(usize, usize, Range<u32>) -> Option<Costs>,
) -> Arrangements {
    assert!(order == Order::AsListed || places <= ANY_ORDER_MAX, "{places} places in any order");
    let keys = if order == Order::Any { 1 << places } else { places + 1 };
    let width = layers as usize + 1;
    let start = Way { costs: Costs::default(), place: 0, first: 0, before: (0, 0) };
    let mut ways = vec![vec![Vec::new(); keys * width]];
    ways[0][0].push(start);
    for number in 0..stages {
        let mut reached = vec![Vec::new(); keys * width];
        let before = &ways[number];
        for place in 0..places {
            for first in 0..layers {
                let from = (0..keys).filter_map(|key| Some((key, next_key(order, key, place)?)));
                let from: Vec<(usize, usize)> =
                    from.filter(|(key, _)| !before[key * width + first as usize].is_empty()).collect();
                if from.is_empty() {
                    continue;
                }
                for end in first + 1..=layers {
                    let Some(own) = cost(number, place, first..end) else { continue };
                    for (key, next) in &from {
                        for (at, way) in before[key * width + first as usize].iter().enumerate() {
                            let way = Way { costs: way.costs.and(own), place, first, before: (*key, at) };
                            add(&mut reached[next * width + end as usize], way);
                        }
                    }
                }
            }
        }
        ways.push(reached);
    }
    Arrangements { layers, ways }
}

/// The key after a place is taken; `None` where it may not be.
fn next_key(order: Order, key: usize, place: usize) -> Option<usize> {
    match order {
        Order::AsListed => (place >= key).then_some(place + 1),
        Order::Any => (key & 1 << place == 0).then_some(key | 1 << place),
    }
}

/// Adds a way unless there is one that is as good, and forgets those that it is as good as.
fn add(ways: &mut Vec<Way>, way: Way) {
    if ways.iter().any(|other| other.costs.is_no_worse(way.costs)) {
        return;
    }
    ways.retain(|other| !way.costs.is_no_worse(other.costs));
    ways.push(way);
}

impl Arrangements {
    /// The best way over all stages to a layer, by what `measure` makes of its costs: the measure, and each stage's place and layers.
    pub fn best(&self, end: u32, measure: impl Fn(Costs) -> f64) -> Option<(f64, Placement)> {
        let (width, stages) = (self.layers as usize + 1, self.ways.len() - 1);
        let (last, measure) = (&self.ways[stages], &measure);
        let keys = (0..last.len() / width).map(|key| (key, &last[key * width + end as usize]));
        let all =
            keys.flat_map(|(key, ways)| ways.iter().enumerate().map(move |(at, way)| (measure(way.costs), key, at)));
        let (least, mut key, mut at) = all.min_by(|one, other| one.0.total_cmp(&other.0))?;
        let (mut found, mut end) = (Vec::new(), end);
        for stage in (1..=stages).rev() {
            let way = self.ways[stage][key * width + end as usize][at];
            found.push((way.place, way.first..end));
            ((key, at), end) = (way.before, way.first);
        }
        found.reverse();
        Some((least, found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Rng as _, stream};

    type Cost<'a> = &'a dyn Fn(usize, usize, Range<u32>) -> Option<Costs>;

    /// The least measure of all arrangements, one after the other.
    fn by_trying_all(
        (number, stages): (usize, usize),
        (first, layers): (u32, u32),
        (used, places, order): (&[usize], usize, Order),
        before: Costs,
        cost: Cost<'_>,
        measure: &dyn Fn(Costs) -> f64,
    ) -> Option<f64> {
        if number == stages {
            return (first == layers).then(|| measure(before));
        }
        let may = |place: &usize| match order {
            Order::AsListed => used.last().is_none_or(|last| place > last),
            Order::Any => !used.contains(place),
        };
        let mut best: Option<f64> = None;
        for place in (0..places).filter(may) {
            for end in first + 1..=layers {
                let Some(own) = cost(number, place, first..end) else { continue };
                let used: Vec<usize> = used.iter().copied().chain([place]).collect();
                let rest = (&used[..], places, order);
                let found = by_trying_all((number + 1, stages), (end, layers), rest, before.and(own), cost, measure);
                best = [best, found].into_iter().flatten().min_by(f64::total_cmp);
            }
        }
        best
    }

    #[test]
    fn no_arrangement_is_better_than_the_one_found() {
        let mut generator = stream(1, "arrangements", &[]);
        let mut dice = |sides: u64| (generator.next_u64() % sides) as u32;
        let (mut found_some, mut found_none) = (0, 0);
        for round in 0..300 {
            let (layers, places) = (1 + dice(7), 1 + dice(4) as usize);
            let order = if round % 2 == 0 { Order::AsListed } else { Order::Any };
            let speeds: Vec<f64> = (0..places).map(|_| f64::from(1 + dice(5))).collect();
            let hops: Vec<f64> = (0..places).map(|_| f64::from(dice(12))).collect();
            let weights: Vec<f64> = (0..layers).map(|_| f64::from(1 + dice(9))).collect();
            let rooms: Vec<u32> = (0..places).map(|_| dice(6)).collect();
            let share = f64::from(dice(8));
            let measure = |costs: Costs| costs.slowest * share + costs.total;
            for stages in 1..=places.min(layers as usize) {
                let cost = |number: usize, place: usize, range: Range<u32>| {
                    let fits = range.len() as u32 + number as u32 <= rooms[place];
                    let seconds = weights[range.start as usize..range.end as usize].iter().sum::<f64>() / speeds[place];
                    fits.then_some(Costs { slowest: seconds.max(hops[place]), total: seconds + 2.0 * hops[place] })
                };
                let begin = (&[][..], places, order);
                let expected = by_trying_all((0, stages), (0, layers), begin, Costs::default(), &cost, &measure);
                let found = arrange(layers, places, stages, order, cost).best(layers, measure);
                let (Some((least, found)), Some(expected)) = (&found, expected) else {
                    assert_eq!(found.map(|(least, _)| least), expected);
                    found_none += 1;
                    continue;
                };
                found_some += 1;
                assert!((least - expected).abs() <= 1e-9 * expected, "{least} {expected}");
                assert_eq!((found.len(), found[0].1.start, found[stages - 1].1.end), (stages, 0, layers));
                assert!(found.windows(2).all(|pair| pair[0].1.end == pair[1].1.start));
                let each = found.iter().enumerate().map(|(at, (place, range))| cost(at, *place, range.clone()));
                let costs = each.fold(Costs::default(), |before, own| before.and(own.expect("it fits")));
                assert!((measure(costs) - least).abs() <= 1e-9 * expected);
            }
        }
        assert!(found_some > 100 && found_none > 100, "{found_some} {found_none}");
    }
}
