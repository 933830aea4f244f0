//! One member's part in the choice of a [scheme](crate::scheme): what it has heard of others' costs, and what it decides where it
//! is its turn.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::collective::{MEMBERS_MAX, Shape};
use crate::message::Message;
use crate::misbehaviour::Misbehaviour;
use crate::outbox::Outbox;
use crate::peer::PeerId;
use crate::scheme::{Comparison, Costs, Scheme, SchemeOrder};
use crate::time::Time;

/// A member tells its costs, and looks at those of others, every so many of its steps: often enough to follow a line that
/// changes, and a few hundred bytes.
const LOOK_STEPS: f64 = 4.0;
const LOOK_MIN: Duration = Duration::from_secs(1);
const LOOK_MAX: Duration = Duration::from_secs(30);

/// Who has told nothing for so long does not train (any more): nobody waits for what it would tell.
const STALE: Duration = Duration::from_secs(90);

/// A step of all must be expected to be so much cheaper, or have turned out so much dearer, than it is worth before the members
/// change (guesses: machines of one kind differ by some percent, and a busy one for a while by more).
const CHEAPER: f64 = 1.05;
const DEARER: f64 = 1.15;

/// All-reduces are judged by what was finished between so many looks, without the slowest few of these times: a member that
/// dies, or comes, costs one or two. Before the first is finished, for which members copy a replica, after so many.
const WINDOW: usize = 6;
const SPARED: usize = 2;
const WINDOW_FIRST: usize = 16;

/// What was given up is not tried again for so many steps, at first and at most: it doubles each time.
const BACK_OFF_STEPS: f64 = 64.0;
const BACK_OFF_STEPS_MAX: f64 = 4096.0;

/// So many steps of one member alone, which gossips, is a step of all together worth: measured by the steps to one loss.
pub(crate) fn worth(members: usize, drift: bool) -> f64 {
    let worth = 1.0 + WORTH_PER_DOUBLING * (members.max(1) as f64).log2();
    if drift { WORTH_IN_DRIFT * worth } else { worth }
}

/// Fitted to two, four and eight members (see BENCHMARKS.md).
const WORTH_PER_DOUBLING: f64 = 0.2;

/// Models that drift apart learn little from each other (a guess).
const WORTH_IN_DRIFT: f64 = 1.5;

/// What a node knows of itself when it looks.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    pub(crate) me: PeerId,
    /// What it tells; `None` while it does not train, or does not know.
    pub(crate) costs: Option<Costs>,
    /// Members that transfers reach.
    pub(crate) connected: Vec<PeerId>,
    /// Members of the swarm that it knows of, itself not counted.
    pub(crate) known: usize,
    /// All-reduces that it has finished, where it takes part in them.
    pub(crate) finished: Option<u64>,
}

/// One member's part in the choice.
#[derive(Debug)]
pub(crate) struct SchemeChoice {
    shape: Shape,
    /// Bytes of all slices of an all-reduce.
    bytes: usize,
    /// With fewer members nobody averages all at once.
    members_min: usize,
    order: Option<SchemeOrder>,
    /// Of those that are connected, and when they told them; at most [`MEMBERS_MAX`].
    costs: BTreeMap<PeerId, (Time, Costs)>,
    /// Who is connected and tells none, and since when.
    silent: BTreeMap<PeerId, Time>,
    next_look: Time,
    /// When was looked, and how many all-reduces were finished then: the oldest first, at most [`WINDOW_FIRST`] and one.
    looks: VecDeque<(Time, u64)>,
    /// All-reduces are not tried before.
    not_before: Time,
    back_off_steps: f64,
}

impl SchemeChoice {
    /// `bytes`: of all slices of an all-reduce, which takes at least so many members.
    pub(crate) fn new(shape: Shape, bytes: usize, members_min: usize, now: Time) -> SchemeChoice {
        SchemeChoice {
            shape,
            bytes,
            members_min: members_min.max(2),
            order: None,
            costs: BTreeMap::new(),
            silent: BTreeMap::new(),
            next_look: now + LOOK_MIN,
            looks: VecDeque::new(),
            not_before: now,
            back_off_steps: BACK_OFF_STEPS,
        }
    }

    /// What holds.
    pub(crate) fn scheme(&self) -> Scheme {
        self.order.map(|order| order.scheme).unwrap_or_default()
    }

    /// The order that holds, for somebody who may not know it.
    pub(crate) fn order(&self) -> Option<SchemeOrder> {
        self.order
    }

    pub(crate) fn next_deadline(&self) -> Time {
        self.next_look
    }

    pub(crate) fn on_lost(&mut self, peer: PeerId) {
        self.costs.remove(&peer);
    }

    /// # Errors
    /// When the numbers are out of range.
    pub(crate) fn on_costs(&mut self, now: Time, peer: PeerId, costs: Costs) -> Result<(), Misbehaviour> {
        if !costs.is_sound() {
            return Err(Misbehaviour::OutOfRange("costs of averaging".into()));
        }
        if self.costs.len() < MEMBERS_MAX || self.costs.contains_key(&peer) {
            self.costs.insert(peer, (now, costs));
        }
        Ok(())
    }

    /// Takes in an order; whether it holds from now on.
    ///
    /// # Errors
    /// When a number in it is out of range.
    pub(crate) fn hear(&mut self, now: Time, order: SchemeOrder) -> Result<bool, Misbehaviour> {
        if !order.is_sound() {
            return Err(Misbehaviour::OutOfRange("number in an order".into()));
        }
        if self.order.is_some_and(|known| known.key() >= order.key()) {
            return Ok(false);
        }
        self.adopt(now, order);
        Ok(true)
    }

    /// Tells others what averaging costs here, and where this node is the one that decides and it is time for another
    /// scheme, returns the order, which holds here from now on.
    pub(crate) fn look(&mut self, now: Time, own: &Own, out: &mut Outbox) -> Option<SchemeOrder> {
        if now < self.next_look {
            return None;
        }
        let step = own.costs.map_or(0.0, |costs| f64::from(costs.step_seconds));
        let period = Duration::from_secs_f64((LOOK_STEPS * step).min(LOOK_MAX.as_secs_f64())).max(LOOK_MIN);
        self.next_look = now + period;
        let costs = own.costs?;
        own.connected.iter().for_each(|peer| out.send(*peer, Message::Costs(costs)));
        if let Some(finished) = own.finished {
            self.note(now, finished);
        }
        self.costs.retain(|_, (told, _)| now.saturating_since(*told) <= STALE);
        self.note_silent(now, &own.connected);
        let lowest = self.costs.keys().next();
        if lowest.is_some_and(|lowest| *lowest < own.me) {
            return None;
        }
        let everybody: Vec<Costs> = self.costs.values().map(|(_, costs)| *costs).chain([costs]).collect();
        let (scheme, reason) = match self.scheme() {
            Scheme::Pairs => (Scheme::AllReduce, self.expected(now, own, &everybody)?),
            Scheme::AllReduce => (Scheme::Pairs, self.measured(&everybody)?),
        };
        let serial = self.order.map_or(0, |order| order.serial) + 1;
        let order = SchemeOrder { serial, by: own.me, scheme, reason };
        // Where somebody has used up the numbers, what holds stays: others would take the next one for an offence.
        if !order.is_sound() {
            return None;
        }
        self.adopt(now, order);
        Some(order)
    }

    fn note_silent(&mut self, now: Time, connected: &[PeerId]) {
        self.silent.retain(|peer, _| connected.contains(peer) && !self.costs.contains_key(peer));
        for peer in connected.iter().filter(|peer| !self.costs.contains_key(peer)) {
            self.silent.entry(*peer).or_insert(now);
        }
    }

    /// Looks at how many all-reduces are finished.
    fn note(&mut self, now: Time, finished: u64) {
        // The first one waits for copies of the replica.
        if finished > 0 && self.looks.front().is_some_and(|(_, before)| *before == 0) {
            self.looks.clear();
        }
        self.looks.push_back((now, finished));
        while self.looks.len() > self.looks_wanted(finished) {
            self.looks.pop_front();
        }
    }

    fn looks_wanted(&self, finished: u64) -> usize {
        1 + if finished == 0 { WINDOW_FIRST } else { WINDOW }
    }

    /// Why all-reduces are expected to pay, where they are.
    fn expected(&self, now: Time, own: &Own, everybody: &[Costs]) -> Option<Comparison> {
        let all_tell = self.silent.values().all(|since| now.saturating_since(*since) > STALE);
        let all_are_reached = own.known <= own.connected.len();
        let members = everybody.len();
        let is_open = now >= self.not_before && (self.members_min..=MEMBERS_MAX).contains(&members);
        let uplink = everybody.iter().map(|costs| costs.uplink).fold(f32::INFINITY, f32::min);
        if !is_open || !all_tell || !all_are_reached || uplink <= 0.0 {
            return None;
        }
        let slowest = everybody.iter().map(|costs| f64::from(costs.step_seconds)).fold(0.0, f64::max);
        let way = everybody.iter().map(|costs| f64::from(costs.round_trip) / 2.0).fold(0.0, f64::max);
        let schedule = self.shape.schedule(members);
        let sent = schedule.share_of_busiest() * self.bytes as f64;
        let together = slowest + sent / f64::from(uplink) + f64::from(schedule.rounds) * way;
        let comparison = compare(together, everybody);
        (CHEAPER * comparison.ratio() <= f64::from(comparison.worth)).then_some(comparison)
    }

    /// Why all-reduces have turned out not to pay, where they have.
    fn measured(&self, everybody: &[Costs]) -> Option<Comparison> {
        let (_, finished) = *self.looks.back()?;
        if self.looks.len() < self.looks_wanted(finished) {
            return None;
        }
        let between = self.looks.iter().zip(self.looks.iter().skip(1));
        let mut times: Vec<(f64, u64)> = between
            .map(|((since, before), (until, after))| ((*until - *since).as_secs_f64(), after - before))
            .collect();
        // Where none was finished, one takes longer than that.
        times.sort_by(|one, other| (one.0 * other.1 as f64).total_cmp(&(other.0 * one.1 as f64)));
        times.truncate(times.len() - SPARED);
        let (seconds, count) = times.iter().fold((0.0, 0), |(seconds, count), one| (seconds + one.0, count + one.1));
        let together = seconds / count.max(1) as f64;
        let comparison = compare(together, everybody);
        (comparison.ratio() > DEARER * f64::from(comparison.worth)).then_some(comparison)
    }

    fn adopt(&mut self, now: Time, order: SchemeOrder) {
        if order.scheme == Scheme::Pairs && self.scheme() == Scheme::AllReduce {
            let wait = self.back_off_steps * f64::from(order.reason.alone).clamp(0.0, 1e6);
            self.not_before = now + Duration::try_from_secs_f64(wait).unwrap_or_default();
            self.back_off_steps = (2.0 * self.back_off_steps).min(BACK_OFF_STEPS_MAX);
        }
        self.looks.clear();
        self.order = Some(order);
    }
}

/// What a step of all, that takes `together` seconds, is beside those of each alone.
fn compare(together: f64, everybody: &[Costs]) -> Comparison {
    let rates: f64 = everybody.iter().map(|costs| 1.0 / f64::from(costs.step_seconds)).sum();
    let members = everybody.len();
    let drifting = everybody.iter().filter(|costs| costs.drifts).count();
    Comparison {
        members: members as u32,
        together: together as f32,
        alone: (members as f64 / rates) as f32,
        worth: worth(members, 2 * drifting > members) as f32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::peer;

    fn at(seconds: f64) -> Time {
        Time::from_start(Duration::from_secs_f64(seconds))
    }

    fn costs(step_seconds: f32, uplink: f32) -> Costs {
        Costs { step_seconds, uplink, round_trip: 0.0, drifts: false }
    }

    fn own(costs: Costs, finished: Option<u64>) -> Own {
        let connected = vec![peer(2), peer(3), peer(4)];
        Own { me: peer(1), costs: Some(costs), known: connected.len(), connected, finished }
    }

    /// Of four members with slices of a megabyte, of which this one decides; the others have told these costs.
    fn choice(others: Costs) -> SchemeChoice {
        let mut choice = SchemeChoice::new(Shape::Ring, 1_000_000, 1, Time::ZERO);
        for key in 2..5 {
            choice.on_costs(Time::ZERO, peer(key), others).expect("sound");
        }
        choice
    }

    /// When something is decided, and what, of all looks until then.
    fn decision(choice: &mut SchemeChoice, own: impl Fn(f64) -> Own, until: f64) -> Option<(f64, Scheme)> {
        loop {
            let now = choice.next_deadline();
            let seconds = now.saturating_since(Time::ZERO).as_secs_f64();
            if seconds > until {
                return None;
            }
            choice.costs.values_mut().for_each(|(told, _)| *told = now);
            if let Some(order) = choice.look(now, &own(seconds), &mut Outbox::default()) {
                return Some((seconds, order.scheme));
            }
        }
    }

    #[test]
    fn all_reduces_are_taken_up_where_lines_carry_them() {
        let fast = costs(1.0, 10e6);
        let decided = decision(&mut choice(fast), |_| own(fast, None), 10.0);
        assert_eq!(decided.map(|(_, scheme)| scheme), Some(Scheme::AllReduce), "1.5 MB each take 0.15 s");
        for (slow, why) in [
            (costs(1.0, 1e6), "1.5 s"),
            (costs(1.0, 0.0), "nobody knows"),
            (Costs { round_trip: 0.4, ..fast }, "six rounds of 0.2 s"),
            (costs(4.0, 10e6), "the others are slow"),
        ] {
            assert_eq!(decision(&mut choice(slow), |_| own(fast, None), 100.0), None, "{why}");
        }
        let middling = costs(1.0, 2.3e6);
        assert_eq!(decision(&mut choice(middling), |_| own(middling, None), 100.0), None);
        let drifting = Costs { drifts: true, ..middling };
        let decided = decision(&mut choice(drifting), |_| own(middling, None), 10.0);
        assert!(decided.is_some(), "where models drift apart, more is paid for it");
    }

    #[test]
    fn nobody_decides_alone_for_strangers_or_out_of_turn() {
        let fast = costs(1.0, 10e6);
        let unknown = |_| Own { known: 4, ..own(fast, None) };
        assert_eq!(decision(&mut choice(fast), unknown, 100.0), None, "somebody is not connected");
        let silent = |_| Own { connected: vec![peer(2), peer(3), peer(4), peer(5)], ..own(fast, None) };
        assert_eq!(decision(&mut choice(fast), silent, 80.0), None, "somebody has told nothing");
        let not_lowest = |_| Own { me: peer(9), ..own(fast, None) };
        assert_eq!(decision(&mut choice(fast), not_lowest, 100.0), None, "it is another one's turn");
        let mut alone = SchemeChoice::new(Shape::Ring, 1_000_000, 1, Time::ZERO);
        let nobody = |_| Own { connected: Vec::new(), known: 0, ..own(fast, None) };
        assert_eq!(decision(&mut alone, nobody, 100.0), None);
    }

    #[test]
    fn all_reduces_that_take_too_long_are_given_up_and_tried_later_and_later() {
        let fast = costs(1.0, 10e6);
        let mut choice = choice(fast);
        let in_pairs = |choice: &mut SchemeChoice| decision(choice, |_| own(fast, None), 1000.0);
        // One in two seconds, where it is worth less.
        let slowly = |choice: &mut SchemeChoice| decision(choice, |now| own(fast, Some((now / 2.0) as u64)), 1000.0);
        assert_eq!(in_pairs(&mut choice).map(|(_, scheme)| scheme), Some(Scheme::AllReduce));
        for least in [64.0, 128.0, 256.0] {
            let (given_up, scheme) = slowly(&mut choice).expect("it takes too long");
            assert_eq!(scheme, Scheme::Pairs);
            let (again, _) = in_pairs(&mut choice).expect("it is expected to pay");
            assert!((least..least + 8.0).contains(&(again - given_up)), "from {given_up} to {again}");
        }
        // One a second is what was expected.
        assert_eq!(decision(&mut choice, |now| own(fast, Some(now as u64)), 1000.0), None);
    }

    #[test]
    fn where_not_even_the_first_one_ends_it_is_given_up() {
        let fast = costs(1.0, 10e6);
        let mut choice = choice(fast);
        let (begun, _) = decision(&mut choice, |_| own(fast, None), 10.0).expect("it is expected to pay");
        let (given_up, _) = decision(&mut choice, |_| own(fast, Some(0)), 1000.0).expect("nothing is finished");
        assert!((60.0..80.0).contains(&(given_up - begun)), "{given_up}: there is time for a copy of the replica");
    }

    #[test]
    fn who_tells_nothing_any_more_is_no_member_and_leaves_the_decision_to_others() {
        let fast = costs(1.0, 10e6);
        let mut choice = choice(fast);
        // It has ended, but is connected.
        choice.on_costs(Time::ZERO, peer(0), fast).expect("sound");
        let known = Own { known: 4, ..own(fast, None) };
        assert_eq!(choice.look(at(10.0), &known, &mut Outbox::default()), None, "it is the other one's turn");
        for key in 2..5 {
            choice.on_costs(at(100.0), peer(key), fast).expect("sound");
        }
        let left = Own { known: 3, ..known };
        assert!(choice.look(at(101.0), &left, &mut Outbox::default()).is_some());
    }

    /// One that had ended by itself kept all-reduces away for good.
    #[test]
    fn who_is_connected_and_tells_nothing_for_long_is_waited_for_no_more() {
        let fast = costs(1.0, 10e6);
        let mut choice = choice(fast);
        let with = |also: &[u8]| Own {
            connected: [2, 3, 4].iter().chain(also).map(|key| peer(*key)).collect(),
            known: 3 + also.len(),
            ..own(fast, None)
        };
        let both = |now: f64| with(if now < 50.0 { &[5] } else { &[5, 6] });
        assert_eq!(decision(&mut choice, both, 130.0), None, "the other one has come later");
        let decided = decision(&mut choice, |_| with(&[5, 6]), 160.0);
        assert_eq!(decided.map(|(_, scheme)| scheme), Some(Scheme::AllReduce));
    }

    #[test]
    fn the_order_with_the_larger_number_holds() {
        let mut choice = choice(costs(1.0, 1e6));
        let order = |serial, by, scheme| SchemeOrder { serial, by: peer(by), scheme, reason: Comparison::default() };
        assert_eq!(choice.hear(at(1.0), order(3, 5, Scheme::AllReduce)), Ok(true));
        assert_eq!(choice.hear(at(1.0), order(3, 5, Scheme::AllReduce)), Ok(false), "known");
        assert_eq!(choice.hear(at(1.0), order(2, 9, Scheme::Pairs)), Ok(false), "older");
        assert_eq!(choice.hear(at(1.0), order(3, 4, Scheme::Pairs)), Ok(false), "the larger id's");
        assert_eq!(choice.scheme(), Scheme::AllReduce);
        assert_eq!(choice.hear(at(1.0), order(3, 6, Scheme::Pairs)), Ok(true));
        assert!(
            choice.hear(at(1.0), order(u64::MAX, 6, Scheme::AllReduce)).is_err(),
            "or nobody could decide any more"
        );
        assert_eq!(choice.scheme(), Scheme::Pairs);
    }

    #[test]
    fn costs_out_of_range_are_refused() {
        for wrong in [costs(0.0, 1.0), costs(f32::NAN, 1.0), costs(1.0, -1.0), costs(1.0, f32::INFINITY)] {
            assert!(choice(costs(1.0, 1.0)).on_costs(Time::ZERO, peer(2), wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_order_with_a_reason_that_nobody_can_have_is_refused() {
        let fast = costs(1.0, 10e6);
        let order = |serial, scheme, reason| SchemeOrder { serial, by: peer(5), scheme, reason };
        let mut choice = choice(fast);
        let none = Comparison::default();
        assert_eq!(choice.hear(at(1.0), order(1, Scheme::AllReduce, none)), Ok(true), "steps that take no time");
        for wrong in [f32::NAN, f32::INFINITY, -1.0] {
            for reason in [
                Comparison { alone: wrong, ..none },
                Comparison { together: wrong, ..none },
                Comparison { worth: wrong, ..none },
            ] {
                assert!(choice.hear(at(1.0), order(2, Scheme::Pairs, reason)).is_err(), "{reason:?}");
            }
        }
        for wrong in [f32::NAN, f32::INFINITY, -1.0] {
            choice.adopt(at(1.0), order(2, Scheme::AllReduce, none));
            choice.adopt(at(1.0), order(3, Scheme::Pairs, Comparison { alone: wrong, ..none }));
            assert_eq!(choice.scheme(), Scheme::Pairs, "whatever comes, it is taken in");
        }
    }

    #[test]
    fn where_the_numbers_of_orders_are_used_up_what_holds_stays() {
        let fast = costs(1.0, 10e6);
        let order = |serial| SchemeOrder { serial, by: peer(9), scheme: Scheme::Pairs, reason: Comparison::default() };
        for (serial, is_decided) in [((1 << 62) - 2, true), ((1 << 62) - 1, false)] {
            let mut choice = choice(fast);
            assert_eq!(choice.hear(at(1.0), order(serial)), Ok(true));
            let decided = decision(&mut choice, |_| own(fast, None), 100.0);
            assert_eq!(decided.is_some(), is_decided, "others would take the next number for an offence");
            assert!(choice.order().is_some_and(|order| order.is_sound()));
        }
    }
}
