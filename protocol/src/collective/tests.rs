//! Groups of collectives on a small virtual network: sums are exact, states with one name are one, a death costs a
//! deadline. Each law has a sabotage that breaks it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use super::*;
use crate::Time;
use crate::random::{Generator, RngExt, stream};

/// Elements of a contribution: no multiple of most numbers of members.
const LENGTH: usize = 37;

/// Numbers a member of a test.
type Place = u16;

fn id(place: Place) -> PeerId {
    PeerId::from_public_key([place as u8; 32])
}

fn place(peer: PeerId) -> Place {
    peer.as_bytes()[0].into()
}

/// What an owner may do wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sabotage {
    None,
    AddsTwice,
    DropsASlice,
    /// And nobody compares digests.
    KeepsItsOldState,
    /// A bit of one member's state flips after an operation.
    FlipsABit,
    NeverLooksAtTheClock,
}

enum Happening {
    Contributed { at: Place, operation: u64 },
    Slices { at: Place, name: SliceName, values: Vec<i64> },
    State { at: Place, epoch: Epoch, standing: Standing, state: i64 },
    Word { at: Place, from: Place, word: Word },
    Look { at: Place },
}

struct Owner {
    collective: Collective,
    sum: Vec<i64>,
    kept: BTreeMap<SliceName, Vec<i64>>,
    /// Stands for a model: a digest of all sums taken up.
    state: i64,
    states: BTreeMap<(Epoch, Standing), i64>,
    is_dead: bool,
}

struct World {
    now: Time,
    owners: Vec<Owner>,
    ahead: BinaryHeap<Reverse<(Time, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    next: u64,
    dice: Generator,
    /// Places beyond the split.
    apart: Vec<Place>,
    lost: f64,
    sabotage: Sabotage,
    shape: Shape,
    patience: Patience,
    states: BTreeMap<Standing, i64>,
    broken: Vec<String>,
}

/// Of a state, never 0.
fn digest(state: i64) -> u64 {
    (state as u64).max(1)
}

fn contribution(place: Place, operation: u64) -> Vec<i64> {
    (0..LENGTH as i64).map(|at| (i64::from(place) + 1) * (at + 3) + 7 * operation as i64).collect()
}

impl World {
    fn new(shape: Shape, members: usize, seed: u64, sabotage: Sabotage) -> World {
        World::with(shape, members, seed, sabotage, Split::Quorum)
    }

    fn with(shape: Shape, members: usize, seed: u64, sabotage: Sabotage, split: Split) -> World {
        let patience = Patience {
            initial: Duration::from_secs(5),
            floor: Duration::from_millis(500),
            listening: (split == Split::EachGoesOn).then_some(Duration::from_millis(300)),
            split,
            members_min: 1,
        };
        let all: Members = (0..members as Place).map(id).collect();
        let owner = |place| Owner {
            collective: Collective::new(shape, id(place), Beginning::Together(all.clone()), patience),
            sum: vec![0; LENGTH],
            kept: BTreeMap::new(),
            state: 1,
            states: BTreeMap::new(),
            is_dead: false,
        };
        let mut world = World {
            now: Time::ZERO,
            owners: (0..members as Place).map(owner).collect(),
            ahead: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            next: 0,
            dice: stream(seed, "collective", &[]),
            apart: Vec::new(),
            lost: 0.0,
            sabotage,
            shape,
            patience,
            states: BTreeMap::new(),
            broken: Vec::new(),
        };
        (0..members as Place).for_each(|place| world.drain(place));
        world
    }

    /// Somebody comes that seeks a group, with a state of so many operations or without one.
    fn add(&mut self, operations: Option<u64>) -> Place {
        let place = self.owners.len() as Place;
        let epoch = Epoch { number: 1_000_000 + u64::from(place), leader: id(place) };
        let beginning = Beginning::Seeking { epoch, operations, until: self.now };
        let patience = self.patience;
        self.owners.push(Owner {
            collective: Collective::new(self.shape, id(place), beginning, patience),
            sum: vec![0; LENGTH],
            kept: BTreeMap::new(),
            state: 1000 + i64::from(place),
            states: BTreeMap::new(),
            is_dead: false,
        });
        for other in 0..place {
            self.connect(place, other);
        }
        self.later(0, Happening::Look { at: place });
        place
    }

    fn connect(&mut self, one: Place, other: Place) {
        self.owners[usize::from(one)].collective.peer_connected(id(other));
        self.owners[usize::from(other)].collective.peer_connected(id(one));
        self.drain(one);
        self.drain(other);
    }

    /// From now on these do not reach the others, and notice it.
    fn split(&mut self, apart: Vec<Place>) {
        self.apart = apart;
        let count = self.owners.len() as Place;
        for (one, other) in (0..count).flat_map(|one| (0..one).map(move |other| (one, other))) {
            if self.apart.contains(&one) == self.apart.contains(&other) {
                self.connect(one, other);
            } else {
                self.owners[usize::from(one)].collective.peer_lost(self.now, id(other));
                self.owners[usize::from(other)].collective.peer_lost(self.now, id(one));
            }
        }
        (0..count).for_each(|place| self.drain(place));
    }

    fn lose(&mut self, victim: Place) {
        let now = self.now;
        for at in 0..self.owners.len() as Place {
            self.owners[usize::from(at)].collective.peer_lost(now, id(victim));
            self.drain(at);
        }
    }

    fn later(&mut self, milliseconds: u64, happening: Happening) {
        let at = self.now + Duration::from_millis(milliseconds);
        self.ahead.push(Reverse((at, self.next)));
        self.happenings.insert(self.next, happening);
        self.next += 1;
    }

    fn travel(&mut self, from: Place, to: Place, happening: Happening, is_word: bool) {
        let is_cut = self.apart.contains(&from) != self.apart.contains(&to);
        let is_lost = is_word && self.dice.random::<f64>() < self.lost;
        if !is_cut && !is_lost {
            let time = self.dice.random_range(5..40);
            self.later(time, happening);
        }
    }

    fn run(&mut self, until: Duration) {
        while let Some(Reverse((at, number))) =
            self.ahead.peek().copied().filter(|next| next.0.0.since_start() <= until)
        {
            self.ahead.pop();
            self.now = at;
            let happening = self.happenings.remove(&number).expect("one for each entry");
            self.happen(happening);
        }
        self.now = Time::from_start(until);
    }

    fn happen(&mut self, happening: Happening) {
        let (now, sabotage) = (self.now, self.sabotage);
        let at = match &happening {
            Happening::Contributed { at, .. }
            | Happening::Slices { at, .. }
            | Happening::State { at, .. }
            | Happening::Word { at, .. }
            | Happening::Look { at } => *at,
        };
        let owner = &mut self.owners[usize::from(at)];
        if owner.is_dead {
            return;
        }
        match happening {
            Happening::Contributed { operation, .. } => {
                let digest = if sabotage == Sabotage::KeepsItsOldState { 1 } else { digest(owner.state) };
                owner.collective.contributed(now, operation, digest);
            }
            Happening::Slices { name, values, .. } => {
                owner.kept.insert(name, values);
                owner.collective.slice_received(now, name);
            }
            Happening::State { epoch, standing, state, .. } => {
                owner.states.insert((epoch, standing), state);
                owner.collective.state_received(now, epoch, standing);
            }
            Happening::Word { from, word, .. } => owner.collective.word_received(now, id(from), word),
            Happening::Look { .. } => {
                if sabotage != Sabotage::NeverLooksAtTheClock {
                    owner.collective.time_passed(now);
                }
                self.later(100, Happening::Look { at });
            }
        }
        self.drain(at);
    }

    fn drain(&mut self, at: Place) {
        while let Some(order) = self.owners[usize::from(at)].collective.poll_order() {
            self.carry_out(at, order);
        }
    }

    fn carry_out(&mut self, at: Place, order: Order) {
        let sabotage = self.sabotage;
        let owner = &mut self.owners[usize::from(at)];
        match order {
            Order::Contribute { operation } => {
                let time = self.dice.random_range(20..60);
                self.later(time, Happening::Contributed { at, operation });
            }
            Order::Begin { operation } => owner.sum = contribution(at, operation),
            Order::Send { to, name, what } => {
                let range = what.slices.elements(LENGTH);
                let values = owner.sum[range].to_vec();
                // Now and then twice, as a network may.
                for _ in 0..self.dice.random_range(1..3) {
                    let to = place(to);
                    self.travel(at, to, Happening::Slices { at: to, name, values: values.clone() }, false);
                }
            }
            Order::Absorb { name, what } => {
                let values = owner.kept.remove(&name).expect("kept until it is absorbed");
                let range = what.slices.elements(LENGTH);
                let is_odd = at == 1 && name.operation == 2;
                for (sum, value) in owner.sum[range].iter_mut().zip(values) {
                    *sum = match (what.action, sabotage) {
                        (_, Sabotage::DropsASlice) if is_odd => *sum,
                        (Action::Add, Sabotage::AddsTwice) if is_odd => *sum + 2 * value,
                        (Action::Add, _) => *sum + value,
                        (Action::Replace, _) => value,
                    };
                }
            }
            Order::Finish { operation, standing, members } => {
                let expected: Vec<i64> = (0..LENGTH)
                    .map(|element| members.iter().map(|member| contribution(place(member), operation)[element]).sum())
                    .collect();
                owner.state = owner.sum.iter().fold(owner.state, |state, value| {
                    state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(*value)
                });
                owner.kept.retain(|name, _| name.operation > operation);
                let state = owner.state;
                if owner.sum != expected {
                    self.broken.push(format!("{at}: the sum of operation {operation}"));
                }
                if sabotage == Sabotage::FlipsABit && at == 2 && operation == 5 {
                    owner.state ^= 1 << 40;
                }
                if *self.states.entry(standing).or_insert(state) != state {
                    self.broken.push(format!("{at}: two states of {standing:?}"));
                }
            }
            Order::GiveState { to, standing, epoch } => {
                let (state, to) = (owner.state, place(to));
                self.travel(at, to, Happening::State { at: to, epoch, standing, state }, false);
            }
            Order::TakeState { standing, epoch } => {
                if sabotage != Sabotage::KeepsItsOldState {
                    owner.state = owner.states[&(epoch, standing)];
                }
            }
            Order::Say { to, word } => {
                assert!(word.is_sound(), "{word:?}");
                let to = place(to);
                self.travel(at, to, Happening::Word { at: to, from: at, word }, true);
            }
        }
    }

    fn begin_looking(&mut self) {
        (0..self.owners.len() as Place).for_each(|at| self.later(0, Happening::Look { at }));
    }

    fn finished(&self, place: usize) -> u64 {
        self.owners[place].collective.standing().operations
    }
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn every_shape_and_number_of_members_sums_exactly_and_ends() {
    for shape in Shape::ALL {
        for members in (1..=MEMBERS_MAX).filter(|members| *members <= 9 || members % 11 == 0 || *members == 64) {
            let mut world = World::new(shape, members, members as u64, Sabotage::None);
            world.begin_looking();
            world.run(seconds(6));
            assert_eq!(world.broken, [] as [String; 0], "{shape:?} of {members}");
            assert!((0..members).all(|place| world.finished(place) >= 1), "{shape:?} of {members}");
        }
    }
}

#[test]
fn a_member_that_dies_costs_a_deadline_and_the_others_go_on() {
    for shape in Shape::ALL {
        for victim in [0, 3, 6] {
            let mut world = World::new(shape, 7, 40 + victim as u64, Sabotage::None);
            world.begin_looking();
            world.run(seconds(5));
            world.owners[victim].is_dead = true;
            let before = world.finished((victim + 1) % 7);
            world.run(seconds(30));
            assert_eq!(world.broken, [] as [String; 0], "{shape:?} without {victim}");
            for place in (0..7).filter(|place| *place != victim) {
                assert!(world.finished(place) > before + 20, "{shape:?} without {victim}: {}", world.finished(place));
                let collective = &world.owners[place].collective;
                assert_eq!(collective.members().len(), 6);
                let stood_still = collective.counts(world.now).stood_still;
                assert!((Duration::from_millis(500)..seconds(6)).contains(&stood_still), "{stood_still:?}");
            }
        }
    }
}

#[test]
fn the_larger_part_goes_on_and_the_smaller_one_comes_back_with_its_state() {
    for shape in Shape::ALL {
        for seed in 0..5 {
            let mut world = World::new(shape, 7, seed, Sabotage::None);
            world.begin_looking();
            world.run(seconds(5));
            world.apart = vec![1, 4];
            world.run(seconds(20));
            let (inside, outside) = (world.finished(0), world.finished(4));
            assert!(inside > outside + 10, "{shape:?}: {inside} and {outside}");
            world.apart = Vec::new();
            world.run(seconds(60));
            assert_eq!(world.broken, [] as [String; 0], "{shape:?}");
            let (least, most) = (0..7)
                .map(|place| world.finished(place))
                .fold((u64::MAX, 0), |(least, most), one| (least.min(one), most.max(one)));
            assert!(most - least <= 1 && least > inside + 20, "{shape:?}: {least} to {most}");
            assert!((0..7).all(|place| world.owners[place].collective.members().len() == 7), "{shape:?}");
            assert!(world.owners[4].collective.counts(world.now).copied >= 1);
        }
    }
}

/// Kills, splits and lost words at random: whatever happens, states with one name are one, and those left go on.
#[test]
fn laws_hold_under_random_faults() {
    for seed in 0..24u64 {
        let mut fate = stream(seed, "fate", &[]);
        let members = fate.random_range(3..10);
        let shape = Shape::ALL[fate.random_range(0..4)];
        let mut world = World::new(shape, members, seed, Sabotage::None);
        world.begin_looking();
        world.lost = fate.random_range(0..3) as f64 * 0.1;
        let mut at = 0;
        let deaths_max = (members - 1) / 2;
        let mut deaths = 0;
        for _ in 0..4 {
            at += fate.random_range(1000..8000);
            world.run(Duration::from_millis(at));
            if fate.random::<bool>() && deaths < deaths_max {
                let victim = fate.random_range(0..members);
                deaths += usize::from(!world.owners[victim].is_dead);
                world.owners[victim].is_dead = true;
            } else {
                let apart = fate.random_range(0..members as Place);
                world.apart = (0..members as Place).filter(|place| place % 3 == apart % 3).collect();
                at += fate.random_range(1000..8000);
                world.run(Duration::from_millis(at));
                world.apart = Vec::new();
            }
        }
        world.lost = 0.0;
        world.run(Duration::from_millis(at + 120_000));
        let before: Vec<u64> = (0..members).map(|place| world.finished(place)).collect();
        world.run(Duration::from_millis(at + 150_000));
        assert_eq!(world.broken, [] as [String; 0], "seed {seed}, {shape:?} of {members}");
        for place in (0..members).filter(|place| !world.owners[*place].is_dead) {
            assert!(world.finished(place) > before[place] + 10, "seed {seed}, {shape:?} of {members}: {place} stands");
        }
    }
}

#[test]
fn a_member_with_other_bits_is_noticed_before_the_next_sum_and_copies_the_state_of_the_others() {
    for shape in Shape::ALL {
        let mut world = World::with(shape, 5, 7, Sabotage::FlipsABit, Split::EachGoesOn);
        world.begin_looking();
        world.run(seconds(20));
        assert_eq!(world.broken, [] as [String; 0], "{shape:?}");
        let counts: Vec<Counts> = world.owners.iter().map(|owner| owner.collective.counts(world.now)).collect();
        assert!(counts.iter().any(|one| one.differed > 0), "{shape:?}: {counts:?}");
        assert_eq!(counts.iter().map(|one| one.copied).collect::<Vec<_>>(), [0, 0, 1, 0, 0], "{shape:?}");
        assert!((0..5).all(|place| world.finished(place) > 20), "{shape:?}");
    }
}

/// A member that comes, one that dies, and a group that is split and meets again, where every part goes on.
#[test]
fn every_part_goes_on_and_the_smaller_one_copies_when_they_meet() {
    for shape in Shape::ALL {
        let mut world = World::with(shape, 5, 11, Sabotage::None, Split::EachGoesOn);
        world.begin_looking();
        world.run(seconds(4));
        let newcomer = world.add(None);
        world.run(seconds(10));
        assert_eq!(world.broken, [] as [String; 0], "{shape:?}");
        assert!((0..6).all(|place| world.owners[place].collective.members().len() == 6), "{shape:?}: {newcomer}");
        world.split(vec![1, 4]);
        world.run(seconds(25));
        let sizes: Vec<usize> = world.owners.iter().map(|owner| owner.collective.members().len()).collect();
        assert_eq!(sizes, [4, 2, 4, 4, 2, 4], "{shape:?}");
        let before: Vec<u64> = (0..6).map(|place| world.finished(place)).collect();
        world.run(seconds(30));
        assert!((0..6).all(|place| world.finished(place) > before[place] + 5), "{shape:?}: somebody stands");
        world.split(Vec::new());
        world.run(seconds(60));
        assert_eq!(world.broken, [] as [String; 0], "{shape:?}");
        assert!((0..6).all(|place| world.owners[place].collective.members().len() == 6), "{shape:?}");
        assert!([1, 4].iter().all(|place| world.owners[*place].collective.counts(world.now).copied > 0), "{shape:?}");
        // Down to the last one: nobody needs a quorum.
        for victim in 0..5 {
            world.owners[victim].is_dead = true;
            world.lose(victim as Place);
            let before = world.finished(5);
            world.run(seconds(70 + 10 * victim as u64));
            assert!(world.finished(5) > before + 10, "{shape:?}: {} after {before}", world.finished(5));
        }
        assert_eq!(world.broken, [] as [String; 0], "{shape:?}");
    }
}

#[test]
fn a_member_that_begins_alone_goes_on_alone_and_one_without_a_state_waits() {
    let mut world = World::with(Shape::Ring, 0, 3, Sabotage::None, Split::EachGoesOn);
    world.add(Some(7));
    world.add(None);
    world.split(vec![0]);
    world.begin_looking();
    world.run(seconds(5));
    assert!(world.finished(0) > 20 && world.finished(1) == 0, "{} and {}", world.finished(0), world.finished(1));
    world.split(Vec::new());
    world.run(seconds(10));
    assert_eq!(world.finished(0).abs_diff(world.finished(1)) / 2, 0);
    assert_eq!(world.owners[1].collective.members().len(), 2);
    assert_eq!(world.broken, [] as [String; 0]);
}

#[test]
fn sabotage_is_found() {
    for shape in Shape::ALL {
        for sabotage in [Sabotage::AddsTwice, Sabotage::DropsASlice] {
            let mut world = World::new(shape, 5, 3, sabotage);
            world.begin_looking();
            world.run(seconds(5));
            // In a star and at a leaf of a tree a member adds nothing: there is nothing to add twice.
            if sabotage == Sabotage::DropsASlice || !matches!(shape, Shape::Star) {
                assert!(!world.broken.is_empty(), "{shape:?}");
            }
        }
    }
    let mut world = World::new(Shape::Ring, 7, 1, Sabotage::KeepsItsOldState);
    world.begin_looking();
    world.run(seconds(5));
    world.apart = vec![1, 4];
    world.run(seconds(20));
    world.apart = Vec::new();
    world.run(seconds(60));
    assert!(world.broken.iter().any(|what| what.contains("two states")), "{:?}", world.broken);
    let mut world = World::new(Shape::Ring, 4, 1, Sabotage::NeverLooksAtTheClock);
    world.begin_looking();
    world.run(seconds(5));
    world.owners[2].is_dead = true;
    let before = world.finished(0);
    world.run(seconds(60));
    assert!(world.finished(0) <= before + 1, "without a deadline nobody goes on");
}
