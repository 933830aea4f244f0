//! All-reduce at every node: gradients in every step, or parameters every H steps with an outer Nesterov step (DiLoCo,
//! Douillard et al., arXiv 2311.08105).

use std::collections::BTreeMap;
use std::ops::Range;

use murmur_protocol::collective::{Beginning, Collective, Epoch, Members, Order, Shape, SliceName, Version, Word};
use murmur_protocol::manifest::GossipSpec;
use murmur_protocol::numerics::{Accumulator, ReduceJob, ReduceStep, SliceCodec, reduce};
use murmur_protocol::{Payload, PeerId, Snapshot, Time};
use murmur_training::OuterMomentum;

use super::learner::{Learner, digest};
use super::method::{OUTER_LEARNING_RATE, OUTER_MOMENTUM};
use super::outcome::Counted;
use super::setting::{Sabotage, Setting};
use super::world::{Common, Machine, Parcel, World};
use super::{Kind, method};

/// Nodes compare no digests here: a law looks at all replicas after each operation.
const SAME_BITS: u64 = 1;

/// A node's id, in the order of the nodes.
fn id(node: usize) -> PeerId {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&(node as u64).to_be_bytes());
    PeerId::from_public_key(key)
}

fn node_of(id: PeerId) -> usize {
    let number: [u8; 8] = id.as_bytes()[..8].try_into().expect("a key has 32 bytes");
    u64::from_be_bytes(number) as usize
}

struct Member {
    collective: Collective,
    learner: Learner,
    outer: Option<OuterMomentum>,
    contribution: Snapshot,
    accumulator: Accumulator,
    /// What rounding took away in the last operation.
    residual: Snapshot,
    kept: BTreeMap<SliceName, Payload>,
    states: BTreeMap<(Epoch, Version), Common>,
    /// The operation that it computes a contribution to.
    operation: u64,
    /// Operations taken up, for the law that each is once.
    taken_up: u64,
}

impl Member {
    fn length(&self) -> usize {
        self.accumulator.sum.values().len()
    }

    fn take_accumulator(&mut self) -> Accumulator {
        std::mem::replace(&mut self.accumulator, Accumulator { sum: nothing(), residual: nothing() })
    }

    /// What the daemon's worker does, at once.
    fn reduce(&mut self, codec: SliceCodec, step: ReduceStep) -> Option<Payload> {
        let reduced = reduce(ReduceJob { codec, step }).expect("slices of this schedule");
        self.accumulator = reduced.accumulator;
        reduced.written
    }
}

fn nothing() -> Snapshot {
    Snapshot::from(Vec::new())
}

/// The members.
pub(super) struct Collectives {
    members: Vec<Member>,
    /// Local steps before each reduction; 1 where gradients are reduced.
    interval: u64,
    steps: u64,
    is_diloco: bool,
    codec: SliceCodec,
    sabotage: Option<Sabotage>,
    /// BLAKE3 of the parameters with each version.
    replicas: BTreeMap<Version, blake3::Hash>,
    violations: Vec<String>,
}

impl Collectives {
    pub(super) fn new(setting: &Setting) -> Collectives {
        let (shape, is_diloco, codec) = match setting.method.kind {
            Kind::Diloco(shape) => (shape, true, SliceCodec::Float32),
            Kind::DataParallel(shape, codec) => (shape, false, codec),
            _ => (Shape::Ring, false, SliceCodec::Float32),
        };
        let interval = if is_diloco { method::INTERVAL } else { 1 };
        let timeouts = setting.timeouts();
        let everybody: Members = (0..setting.nodes).map(id).collect();
        let member = |node: usize| {
            let learner = Learner::new(setting, node);
            let gossip = GossipSpec {
                outer_learning_rate: OUTER_LEARNING_RATE,
                outer_momentum: OUTER_MOMENTUM,
                ..GossipSpec::default()
            };
            Member {
                collective: Collective::new(shape, id(node), Beginning::Together(everybody.clone()), timeouts),
                outer: is_diloco.then(|| OuterMomentum::new(&gossip, learner.parameters())),
                learner,
                contribution: nothing(),
                accumulator: Accumulator { sum: nothing(), residual: nothing() },
                residual: nothing(),
                kept: BTreeMap::new(),
                states: BTreeMap::new(),
                operation: 0,
                taken_up: 0,
            }
        };
        Collectives {
            members: (0..setting.nodes).map(member).collect(),
            interval,
            steps: setting.steps,
            is_diloco,
            codec,
            sabotage: setting.sabotage,
            replicas: BTreeMap::new(),
            violations: Vec::new(),
        }
    }

    /// The steps before the reduction of an operation. The last one may come early, where steps are no multiple of the interval.
    fn local_steps(&self, operation: u64) -> Range<u64> {
        let until = |operations: u64| (operations * self.interval).min(self.steps);
        until(operation)..until(operation + 1)
    }

    fn drain(&mut self, world: &mut World, node: usize) {
        while let Some(order) = self.members[node].collective.poll_order() {
            self.carry_out(world, node, order);
        }
    }

    fn carry_out(&mut self, world: &mut World, node: usize, order: Order) {
        let member = &mut self.members[node];
        match order {
            Order::Contribute { operation } => {
                member.operation = operation;
                let steps = self.local_steps(operation);
                if !steps.is_empty() {
                    world.compute(node, steps.end - steps.start);
                }
            }
            Order::Begin { .. } => {
                let (contribution, residual) = (member.contribution.clone(), member.residual.clone());
                member.reduce(self.codec, ReduceStep::Begin { contribution, residual });
            }
            Order::Send { to, name, what } => {
                let range = self.codec.elements(what.slices, member.length());
                let own = (self.sabotage == Some(Sabotage::KeepsWhatItRounds)).then(|| member.accumulator.clone());
                let step = ReduceStep::Write { accumulator: member.take_accumulator(), range, action: what.action };
                let payload = member.reduce(self.codec, step).expect("slices are written");
                member.accumulator = own.unwrap_or_else(|| member.take_accumulator());
                world.send(node, node_of(to), Parcel::Slices { name, payload });
            }
            Order::Absorb { name, what } => {
                let received = member.kept.remove(&name).expect("kept until it is absorbed");
                let range = self.codec.elements(what.slices, member.length());
                let accumulator = member.take_accumulator();
                member.reduce(self.codec, ReduceStep::Absorb { accumulator, range, received, action: what.action });
            }
            Order::Finish { operation, version, members } => {
                self.finish(node, operation, members.len());
                self.check(node, operation, version);
            }
            Order::GiveState { to, version, epoch } => {
                let common = match &member.outer {
                    Some(outer) => {
                        Common::Outer { slow: outer.slow_weights().to_vec(), momentum: outer.momentum().to_vec() }
                    }
                    None => Common::Replica(member.learner.replica()),
                };
                world.send(node, node_of(to), Parcel::State { epoch, version, common });
            }
            Order::TakeState { version, epoch } => {
                match (member.states.remove(&(epoch, version)).expect("kept until it is taken"), &mut member.outer) {
                    (Common::Replica(replica), _) => member.learner.take(replica),
                    (Common::Outer { slow, momentum }, Some(own)) => {
                        member.learner.set_parameters(slow.clone());
                        own.restore(slow, momentum);
                    }
                    (Common::Outer { .. }, None) => {}
                }
                (member.taken_up, member.residual) = (version.operations, nothing());
                member.states.clear();
                self.check_replica(node, version);
            }
            Order::Say { to, word } => world.say(node, node_of(to), word),
        }
    }

    fn finish(&mut self, node: usize, operation: u64, members: usize) {
        let member = &mut self.members[node];
        let Accumulator { sum, residual } = member.take_accumulator();
        member.residual = residual;
        let mean: Vec<f32> = sum.values().iter().map(|sum| sum / members as f32).collect();
        let is_odd = node == 1 && operation == 2;
        let times = match self.sabotage {
            Some(Sabotage::SkipsAResult) if is_odd => 0,
            Some(Sabotage::TakesAResultTwice) if is_odd => 2,
            _ => 1,
        };
        for _ in 0..times {
            match &mut member.outer {
                Some(outer) => {
                    let next = outer.advance(&mean).to_vec();
                    member.learner.set_parameters(next);
                }
                None => member.learner.step_with(mean.clone(), operation as f64),
            }
            member.taken_up += 1;
        }
        member.kept.retain(|name, _| name.operation > operation);
    }

    /// The laws: each result once, and one replica everywhere.
    fn check(&mut self, node: usize, operation: u64, version: Version) {
        let member = &self.members[node];
        if member.taken_up != operation + 1 {
            self.violations
                .push(format!("node {node} took result {operation} up {} times", member.taken_up - operation));
            self.members[node].taken_up = operation + 1;
        }
        self.check_replica(node, version);
    }

    /// The law of one replica, which a member has before it trains on.
    fn check_replica(&mut self, node: usize, version: Version) {
        let hash = digest(self.members[node].learner.parameters());
        if *self.replicas.entry(version).or_insert(hash) != hash {
            let operations = version.operations;
            self.violations.push(format!("node {node} has another model after {operations} operations"));
        }
    }
}

impl Machine for Collectives {
    fn begin(&mut self, world: &mut World) {
        (0..self.members.len()).for_each(|node| self.drain(world, node));
    }

    fn computed(&mut self, world: &mut World, node: usize) {
        let is_diloco = self.is_diloco;
        let steps = self.local_steps(self.members[node].operation);
        let member = &mut self.members[node];
        if is_diloco {
            steps.for_each(|step| member.learner.step(step as f64));
            member.contribution = member.learner.parameters().into();
        } else {
            member.contribution = member.learner.gradient().into();
        }
        member.collective.contributed(world.now(), member.operation, SAME_BITS);
        self.drain(world, node);
    }

    fn arrived(&mut self, world: &mut World, to: usize, from: usize, parcel: Parcel) {
        let (now, member) = (world.now(), &mut self.members[to]);
        match parcel {
            Parcel::Slices { name, payload } => {
                member.kept.insert(name, payload);
                member.collective.slice_received(now, id(from), name);
            }
            Parcel::State { epoch, version, common } => {
                member.states.insert((epoch, version), common);
                member.collective.state_received(now, epoch, version);
            }
            _ => {}
        }
        self.drain(world, to);
    }

    fn heard(&mut self, world: &mut World, to: usize, from: usize, word: Word) {
        self.members[to].collective.word_received(world.now(), id(from), word);
        self.drain(world, to);
    }

    fn lost(&mut self, world: &mut World, node: usize, dead: usize) {
        self.members[node].collective.peer_lost(world.now(), id(dead));
        self.drain(world, node);
    }

    fn looked(&mut self, world: &mut World, node: usize) {
        self.members[node].collective.time_passed(world.now());
        self.drain(world, node);
    }

    fn next_deadline(&self, node: usize) -> Option<Time> {
        self.members[node].collective.next_deadline()
    }

    fn progress(&self, node: usize) -> f64 {
        self.local_steps(self.members[node].collective.version().operations).start as f64
    }

    /// With an outer optimizer its slow weights, which are the same everywhere.
    fn model(&self, node: usize) -> Vec<f32> {
        let member = &self.members[node];
        let slow = member.outer.as_ref().map(|outer| outer.slow_weights().to_vec());
        slow.unwrap_or_else(|| member.learner.parameters())
    }

    fn counted(&self) -> Counted {
        // Waiting is measured by the world, which knows when nodes compute.
        let counts = || self.members.iter().map(|member| member.collective.counts(Time::ZERO));
        Counted {
            rounds: counts().map(|one| one.finished).sum::<u64>() as f64 / self.members.len() as f64,
            dropped: counts().map(|one| one.dropped).max().unwrap_or(0),
            stood_still: counts().map(|one| one.stood_still.as_secs_f64()).fold(0.0, f64::max),
            copied: counts().map(|one| one.copied).sum(),
            ..Counted::default()
        }
    }

    fn violations(&self) -> Vec<String> {
        self.violations.clone()
    }
}
