//! A small virtual network around some collectives: words are lost, slices come twice, members die and are cut off.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use super::super::*;
use crate::Time;
use crate::random::{Generator, RngExt, stream};

/// Elements of a contribution: no multiple of most numbers of members.
pub(super) const LENGTH: usize = 37;

/// Numbers a member of a test.
pub(super) type Place = u16;

pub(super) fn id(place: Place) -> PeerId {
    PeerId::from_public_key([place as u8; 32])
}

pub(super) fn place(peer: PeerId) -> Place {
    peer.as_bytes()[0].into()
}

/// What an owner may do wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sabotage {
    None,
    AddsTwice,
    DropsASlice,
    /// And nobody compares digests.
    KeepsItsOldState,
    /// A bit of one member's state flips after an operation.
    FlipsABit,
    NeverLooksAtTheClock,
}

pub(super) enum Happening {
    Contributed { at: Place, operation: u64 },
    Slices { at: Place, from: Place, name: SliceName, values: Vec<i64> },
    State { at: Place, epoch: Epoch, version: Version, state: i64 },
    Word { at: Place, from: Place, word: Word },
    Look { at: Place },
}

pub(super) struct Owner {
    pub(super) collective: Collective,
    pub(super) sum: Vec<i64>,
    pub(super) kept: BTreeMap<SliceName, Vec<i64>>,
    /// Stands for a model: a digest of all sums taken up.
    pub(super) state: i64,
    pub(super) states: BTreeMap<(Epoch, Version), i64>,
    pub(super) is_dead: bool,
}

pub(super) struct World {
    pub(super) now: Time,
    pub(super) owners: Vec<Owner>,
    pub(super) ahead: BinaryHeap<Reverse<(Time, u64)>>,
    pub(super) happenings: BTreeMap<u64, Happening>,
    pub(super) next: u64,
    pub(super) dice: Generator,
    /// Places beyond the split.
    pub(super) apart: Vec<Place>,
    pub(super) lost: f64,
    /// What slices need for their way beside a moment.
    pub(super) slowness: Duration,
    pub(super) sabotage: Sabotage,
    pub(super) shape: Shape,
    pub(super) timeouts: Timeouts,
    pub(super) states: BTreeMap<Version, i64>,
    pub(super) broken: Vec<String>,
}

/// Of a state, never 0.
pub(super) fn digest(state: i64) -> u64 {
    (state as u64).max(1)
}

pub(super) fn contribution(place: Place, operation: u64) -> Vec<i64> {
    (0..LENGTH as i64).map(|at| (i64::from(place) + 1) * (at + 3) + 7 * operation as i64).collect()
}

impl World {
    pub(super) fn new(shape: Shape, members: usize, seed: u64, sabotage: Sabotage) -> World {
        World::with(shape, members, seed, sabotage, Split::Quorum)
    }

    pub(super) fn with(shape: Shape, members: usize, seed: u64, sabotage: Sabotage, split: Split) -> World {
        let timeouts = Timeouts {
            initial: Duration::from_secs(5),
            floor: Duration::from_millis(500),
            listening: (split == Split::EachGoesOn).then_some(Duration::from_millis(300)),
            split,
            ..Timeouts::default()
        };
        let all: Members = (0..members as Place).map(id).collect();
        let owner = |place| Owner {
            collective: Collective::new(shape, id(place), Beginning::Together(all.clone()), timeouts),
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
            slowness: Duration::ZERO,
            sabotage,
            shape,
            timeouts,
            states: BTreeMap::new(),
            broken: Vec::new(),
        };
        (0..members as Place).for_each(|place| world.drain(place));
        world
    }

    /// Somebody comes that seeks a group, with a state of so many operations or without one.
    pub(super) fn add(&mut self, operations: Option<u64>) -> Place {
        let place = self.owners.len() as Place;
        let epoch = Epoch { number: 1_000_000 + u64::from(place), leader: id(place) };
        let beginning = Beginning::Seeking { epoch, operations, until: self.now };
        let timeouts = self.timeouts;
        self.owners.push(Owner {
            collective: Collective::new(self.shape, id(place), beginning, timeouts),
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

    pub(super) fn connect(&mut self, one: Place, other: Place) {
        self.owners[usize::from(one)].collective.peers_connected([id(other)]);
        self.owners[usize::from(other)].collective.peers_connected([id(one)]);
        self.drain(one);
        self.drain(other);
    }

    /// From now on these do not reach the others, and notice it.
    pub(super) fn split(&mut self, apart: Vec<Place>) {
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

    pub(super) fn lose(&mut self, victim: Place) {
        let now = self.now;
        for at in 0..self.owners.len() as Place {
            self.owners[usize::from(at)].collective.peer_lost(now, id(victim));
            self.drain(at);
        }
    }

    pub(super) fn later(&mut self, milliseconds: u64, happening: Happening) {
        let at = self.now + Duration::from_millis(milliseconds);
        self.ahead.push(Reverse((at, self.next)));
        self.happenings.insert(self.next, happening);
        self.next += 1;
    }

    pub(super) fn travel(&mut self, from: Place, to: Place, happening: Happening, is_word: bool) {
        let is_cut = self.apart.contains(&from) != self.apart.contains(&to);
        let is_lost = is_word && self.dice.random::<f64>() < self.lost;
        if !is_cut && !is_lost {
            let is_slow = matches!(happening, Happening::Slices { .. });
            let slowness = if is_slow { self.slowness.as_millis() as u64 } else { 0 };
            let time = self.dice.random_range(5..40) + slowness;
            self.later(time, happening);
        }
    }

    pub(super) fn run(&mut self, until: Duration) {
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

    pub(super) fn happen(&mut self, happening: Happening) {
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
            Happening::Slices { from, name, values, .. } => {
                owner.kept.insert(name, values);
                owner.collective.slice_received(now, id(from), name);
            }
            Happening::State { epoch, version, state, .. } => {
                owner.states.insert((epoch, version), state);
                owner.collective.state_received(now, epoch, version);
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

    pub(super) fn drain(&mut self, at: Place) {
        while let Some(order) = self.owners[usize::from(at)].collective.poll_order() {
            self.carry_out(at, order);
        }
    }

    pub(super) fn carry_out(&mut self, at: Place, order: Order) {
        let sabotage = self.sabotage;
        let owner = &mut self.owners[usize::from(at)];
        match order {
            Order::Contribute { operation } => {
                let time = self.dice.random_range(20..60);
                self.later(time, Happening::Contributed { at, operation });
            }
            Order::Begin { operation, .. } => owner.sum = contribution(at, operation),
            Order::Send { to, name, what } => {
                let range = what.slices.elements(LENGTH);
                let values = owner.sum[range].to_vec();
                // Now and then twice, as a network may.
                for _ in 0..self.dice.random_range(1..3) {
                    let to = place(to);
                    let values = values.clone();
                    self.travel(at, to, Happening::Slices { at: to, from: at, name, values }, false);
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
            Order::Finish { operation, version, members } => {
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
                if *self.states.entry(version).or_insert(state) != state {
                    self.broken.push(format!("{at}: two states of {version:?}"));
                }
            }
            Order::GiveState { to, version, epoch } => {
                let (state, to) = (owner.state, place(to));
                self.travel(at, to, Happening::State { at: to, epoch, version, state }, false);
            }
            Order::TakeState { version, epoch } => {
                if sabotage != Sabotage::KeepsItsOldState {
                    owner.state = owner.states[&(epoch, version)];
                }
            }
            Order::Say { to, word } => {
                assert!(word.is_sound(), "{word:?}");
                let to = place(to);
                self.travel(at, to, Happening::Word { at: to, from: at, word }, true);
            }
        }
    }

    pub(super) fn begin_looking(&mut self) {
        (0..self.owners.len() as Place).for_each(|at| self.later(0, Happening::Look { at }));
    }

    pub(super) fn finished(&self, place: usize) -> u64 {
        self.owners[place].collective.version().operations
    }
}
