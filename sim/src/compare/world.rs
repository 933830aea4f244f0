//! Virtual time for the machines of [`compare`](super): who computes until when, what is on its way, what goes wrong.
//!
//! Links are those of the [simulator](crate::NetworkSpec): a node's uplink carries one transfer after the other, and so
//! does a downlink. Transfers are made again until they arrive, as by TCP, and may arrive twice; words may be lost. What is
//! on its way when its sender dies never arrives, and what a cut meets on its way is sent again after it.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use murmur_protocol::collective::{Epoch, SliceName, Version, Word};
use murmur_protocol::{Payload, Time};

use super::learner::{Replica, digest};
use super::outcome::{Activity, Counted, NodeAccount, Outcome, Point, Span};
use super::setting::{STRAGGLER, Sabotage};
use super::{Fault, Setting};
use crate::network::{Network, TransferFate};
use crate::queue::Queue;
use crate::{Objective, TrainerSpec};

/// Points of a curve beside the first.
pub(super) const POINTS: u64 = 16;

/// A run that takes longer than the slowest node would alone by this factor is ended.
const TIME_FACTOR_MAX: f64 = 80.0;

/// Bytes of names and lengths before a transfer's values, and of a word. Guesses.
const HEADER_BYTES: usize = 32;

/// How long after a cut a transfer is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Steps at the beginning of a run, and after a fault, of which the timeline is kept.
pub(super) const STEPS_SHOWN: f64 = 16.0;

/// What goes from one node to another.
#[derive(Clone, Debug)]
pub(super) enum Parcel {
    /// Slices of a sum, as the codec writes them.
    Slices { name: SliceName, payload: Payload },
    /// What members have in common.
    State { epoch: Epoch, version: Version, common: Common },
    /// A worker's gradient for a shard.
    Gradient { shard: usize, tick: u64, values: Vec<f32> },
    /// A shard's parameters for a worker.
    Parameters { shard: usize, tick: u64, values: Vec<f32> },
    /// φ and θ of a round.
    Weights { round: u64, slow: Vec<f32>, fast: Vec<f32> },
    /// A model to be averaged with; the reply is the partner's.
    Model { exchange: u64, is_reply: bool, values: Vec<f32> },
}

/// What all members of a group have in common, and a newcomer is given.
#[derive(Clone, Debug)]
pub(super) enum Common {
    /// Where gradients are reduced.
    Replica(Replica),
    /// φ and u, where parameters are: what a member made of φ since, and its inner optimizer's moments, are its own.
    Outer { slow: Vec<f32>, momentum: Vec<f32> },
}

impl Parcel {
    fn bytes(&self) -> usize {
        let values = match self {
            Parcel::Slices { payload, .. } => return HEADER_BYTES + payload.len(),
            Parcel::Gradient { values, .. } | Parcel::Parameters { values, .. } | Parcel::Model { values, .. } => {
                values.len()
            }
            Parcel::Weights { slow, fast, .. } => slow.len() + fast.len(),
            Parcel::State { common: Common::Replica(replica), .. } => replica.values(),
            Parcel::State { common: Common::Outer { slow, momentum }, .. } => slow.len() + momentum.len(),
        };
        HEADER_BYTES + 4 * values
    }
}

/// What a method does at every node; all facts of the world go through it.
pub(super) trait Machine {
    /// Everything begins.
    fn begin(&mut self, world: &mut World);
    /// The steps that were asked for are computed.
    fn computed(&mut self, world: &mut World, node: usize);
    /// Something has arrived.
    fn arrived(&mut self, world: &mut World, to: usize, from: usize, parcel: Parcel);
    /// Somebody has said something.
    fn heard(&mut self, _world: &mut World, _to: usize, _from: usize, _word: Word) {}
    /// A node's connection to one that has died is gone: it knows after a while, as a daemon does.
    fn lost(&mut self, _world: &mut World, _node: usize, _dead: usize) {}
    /// A deadline may be over.
    fn looked(&mut self, world: &mut World, node: usize);
    /// When to look at the latest.
    fn next_deadline(&self, node: usize) -> Option<Time>;
    /// Steps of a node that count towards the end of the run.
    fn progress(&self, node: usize) -> f64;
    /// The model that a node would hand out now.
    fn model(&self, node: usize) -> Vec<f32>;
    /// What was counted.
    fn counted(&self) -> Counted;
    /// Laws that did not hold.
    fn violations(&self) -> Vec<String>;
}

enum What {
    Computed { node: usize, id: u64 },
    Arrived { to: usize, from: usize, parcel: Box<Parcel> },
    Heard { to: usize, from: usize, word: Word },
    Again { to: usize, from: usize, parcel: Box<Parcel> },
    Lost { node: usize, dead: usize },
    Look { node: usize, at: Time },
    FaultBegins,
    FaultEnds,
}

struct Node {
    is_alive: bool,
    step_time: Duration,
    /// The computation under way: its number, its steps, and when it began.
    computing: Option<(u64, u64, Time)>,
    looks_at: Option<Time>,
    account: NodeAccount,
}

/// Clock, links and nodes of one run.
pub(super) struct World {
    pub(super) setting: Setting,
    queue: Queue<What>,
    network: Network,
    nodes: Vec<Node>,
    next_computation: u64,
    objective: Objective,
    points: Vec<Point>,
    tokens: u64,
}

impl World {
    fn new(setting: &Setting) -> World {
        let node = |node| Node {
            is_alive: true,
            step_time: setting.step_time_of(node),
            computing: None,
            looks_at: None,
            account: NodeAccount::default(),
        };
        let mut queue = Queue::default();
        if setting.fault != Fault::None {
            queue.push(Time::from_start(setting.fault_at()), What::FaultBegins);
        }
        World {
            queue,
            network: Network::new(setting.links.network(), &setting.plans(), setting.seed),
            nodes: (0..setting.nodes).map(node).collect(),
            next_computation: 0,
            objective: Objective::new(&TrainerSpec::Transformer(setting.trainer.clone()), setting.seed),
            points: Vec::new(),
            tokens: 0,
            setting: setting.clone(),
        }
    }

    pub(super) fn now(&self) -> Time {
        self.queue.now()
    }

    pub(super) fn is_alive(&self, node: usize) -> bool {
        self.nodes[node].is_alive
    }

    fn is_cut(&self, from: usize, to: usize) -> bool {
        from != to && !self.network.is_open(from, to)
    }

    /// A node computes so many steps from now on; what it computed before is dropped.
    pub(super) fn compute(&mut self, node: usize, steps: u64) {
        self.stop_computing(node);
        let (now, id) = (self.now(), self.next_computation);
        self.next_computation += 1;
        let computing = &mut self.nodes[node];
        computing.computing = Some((id, steps, now));
        let ends = now + computing.step_time.mul_f64(steps as f64);
        self.queue.push(ends, What::Computed { node, id });
    }

    /// Steps of a node's computation that are over by now, in parts of one.
    pub(super) fn steps_under_way(&self, node: usize) -> f64 {
        let Node { computing, step_time, .. } = &self.nodes[node];
        let over = |since: Time| self.now().saturating_since(since).as_secs_f64() / step_time.as_secs_f64();
        computing.map_or(0.0, |(_, steps, since)| over(since).min(steps as f64))
    }

    /// A node has done all that it has to do: from now on it does not wait for anybody.
    pub(super) fn ends_training(&mut self, node: usize) {
        self.nodes[node].account.training = self.now().since_start().as_secs_f64();
    }

    /// Sends until it arrives; to the node itself without any way.
    pub(super) fn send(&mut self, from: usize, to: usize, parcel: Parcel) {
        let now = self.now();
        if from == to {
            self.queue.push(now, What::Arrived { to, from, parcel: Box::new(parcel) });
            return;
        }
        if self.is_cut(from, to) {
            self.queue.push(now + RETRY, What::Again { to, from, parcel: Box::new(parcel) });
            return;
        }
        let bytes = parcel.bytes();
        self.nodes[from].account.sent_bytes += bytes as u64;
        let again = What::Again { to, from, parcel: Box::new(parcel.clone()) };
        let begins = self.network.uplink_free_at(from).max(now);
        let fate = self.network.transfer_fate(now, from, to, bytes);
        self.note(from, begins, self.network.uplink_free_at(from), Activity::Sending);
        match fate {
            TransferFate::Arrives { after, confirmed } => {
                self.queue.push(now + after, What::Arrived { to, from, parcel: Box::new(parcel) });
                if !confirmed {
                    self.queue.push(now + after, again);
                }
            }
            TransferFate::BreaksOff { after } => self.queue.push(now + after, again),
        }
    }

    /// Says something small, which may be lost or heard twice.
    pub(super) fn say(&mut self, from: usize, to: usize, word: Word) {
        self.nodes[from].account.sent_bytes += HEADER_BYTES as u64;
        for delay in self.network.message_delays(from, to).into_iter().flatten() {
            self.queue.push(self.now() + delay, What::Heard { to, from, word: word.clone() });
        }
    }

    fn stop_computing(&mut self, node: usize) {
        if let Some((_, _, since)) = self.nodes[node].computing.take() {
            self.note(node, since, self.now(), Activity::Computing);
        }
    }

    fn note(&mut self, node: usize, from: Time, to: Time, activity: Activity) {
        let account = &mut self.nodes[node].account;
        let (from, to) = (from.since_start().as_secs_f64(), to.since_start().as_secs_f64());
        match activity {
            Activity::Computing => account.computing += to - from,
            Activity::Sending => account.sending += to - from,
        }
        if is_shown(&self.setting, from, to) {
            account.spans.push(Span { from, to, activity });
        }
    }

    fn happen(&mut self, machine: &mut dyn Machine, what: What) {
        match what {
            What::Computed { node, id } => {
                let Some((_, steps, _)) = self.nodes[node].computing.filter(|(under_way, ..)| *under_way == id) else {
                    return;
                };
                self.stop_computing(node);
                self.nodes[node].account.steps += steps;
                self.tokens += steps * self.setting.tokens_per_step();
                machine.computed(self, node);
                self.plan_look(machine, node);
            }
            What::Arrived { to, from, parcel } if self.is_cut(from, to) => {
                self.queue.push(self.now() + RETRY, What::Again { to, from, parcel });
            }
            What::Arrived { to, from, parcel } => {
                if self.is_alive(to) && self.is_alive(from) {
                    machine.arrived(self, to, from, *parcel);
                    self.plan_look(machine, to);
                }
            }
            What::Heard { to, from, word } => {
                if self.is_alive(to) && self.is_alive(from) && !self.is_cut(from, to) {
                    machine.heard(self, to, from, word);
                    self.plan_look(machine, to);
                }
            }
            What::Again { to, from, parcel } => {
                if self.is_alive(from) && self.is_alive(to) {
                    self.send(from, to, *parcel);
                }
            }
            What::Lost { node, dead } => {
                if self.is_alive(node) {
                    machine.lost(self, node, dead);
                    self.plan_look(machine, node);
                }
            }
            What::Look { node, at } => {
                if self.nodes[node].looks_at == Some(at) && self.is_alive(node) {
                    self.nodes[node].looks_at = None;
                    if self.setting.sabotage != Some(Sabotage::NeverLooks) {
                        machine.looked(self, node);
                        self.plan_look(machine, node);
                    }
                }
            }
            What::FaultBegins => self.fault_begins(),
            What::FaultEnds => self.network.heal(),
        }
    }

    fn fault_begins(&mut self) {
        let last = self.nodes.len() - 1;
        match self.setting.fault {
            Fault::None => {}
            Fault::Kill => self.kill(last),
            Fault::KillFirst => self.kill(0),
            Fault::Straggler => self.nodes[last].step_time = self.nodes[last].step_time.mul_f64(STRAGGLER),
            Fault::Partition => {
                self.network.split(&self.setting.cut_off());
                let ends = self.now() + self.setting.partition_lasts();
                self.queue.push(ends, What::FaultEnds);
            }
        }
    }

    fn kill(&mut self, node: usize) {
        self.stop_computing(node);
        let (now, unsent) = (self.now(), self.network.uplink_free_at(node).saturating_since(self.now()));
        let dead = &mut self.nodes[node];
        dead.is_alive = false;
        dead.account.end(now.since_start().as_secs_f64());
        dead.account.sending -= unsent.as_secs_f64();
        for living in self.living().collect::<Vec<_>>() {
            let known = now + self.network.detection();
            self.queue.push(known, What::Lost { node: living, dead: node });
        }
    }

    fn plan_look(&mut self, machine: &dyn Machine, node: usize) {
        let Some(deadline) = machine.next_deadline(node) else { return };
        let planned = &mut self.nodes[node].looks_at;
        if planned.is_none_or(|at| deadline < at) {
            *planned = Some(deadline);
            self.queue.push(deadline, What::Look { node, at: deadline });
        }
    }

    fn living(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].is_alive)
    }

    /// How far the run is: the mean of the nodes that are there.
    pub(super) fn progress(&self, machine: &dyn Machine) -> f64 {
        self.mean_of_living(|node| machine.progress(node))
    }

    pub(super) fn mean_of_living(&self, value: impl Fn(usize) -> f64) -> f64 {
        let (sum, count) = self.living().fold((0.0, 0.0), |(sum, count), node| (sum + value(node), count + 1.0));
        sum / count
    }

    /// Adds a point. Models that are the same are evaluated once.
    fn sample(&mut self, machine: &dyn Machine) {
        let mut known: BTreeMap<[u8; 32], f64> = BTreeMap::new();
        let mut losses = Vec::new();
        for node in self.living() {
            let model = machine.model(node);
            let name = *digest(model.clone()).as_bytes();
            let loss = *known.entry(name).or_insert_with(|| self.objective.loss(&model));
            losses.push(loss);
        }
        let sent = || self.nodes.iter().map(|node| node.account.sent_bytes);
        self.points.push(Point {
            seconds: self.now().since_start().as_secs_f64(),
            tokens: self.tokens,
            busiest_bytes: sent().max().unwrap_or(0),
            all_bytes: sent().sum(),
            loss: losses.iter().sum::<f64>() / losses.len() as f64,
        });
    }
}

/// Whether a piece of a timeline is in the part that is shown.
pub(super) fn is_shown(setting: &Setting, from: f64, to: f64) -> bool {
    let length = STEPS_SHOWN * setting.step_time.as_secs_f64();
    let begin = if setting.fault == Fault::None { 0.0 } else { setting.fault_at().as_secs_f64() - length / 4.0 };
    from < begin + length && to > begin
}

/// Runs a method to its end; `None` where it is interrupted.
pub(super) fn run(setting: &Setting, machine: &mut dyn Machine, is_interrupted: &dyn Fn() -> bool) -> Option<Outcome> {
    let mut world = World::new(setting);
    machine.begin(&mut world);
    (0..setting.nodes).for_each(|node| world.plan_look(machine, node));
    world.sample(machine);
    let steps = setting.steps as f64;
    let period = steps / POINTS as f64;
    let limit = Time::from_start(setting.slowest_step_time().mul_f64(TIME_FACTOR_MAX * steps));
    let mut next = period;
    let mut is_complete = false;
    let mut stuck_at = Time::ZERO;
    while let Some(what) = world.queue.pop_until(limit) {
        stuck_at = world.now();
        if is_interrupted() {
            return None;
        }
        world.happen(machine, what);
        let progress = world.progress(machine);
        if progress + 1e-9 >= next {
            world.sample(machine);
            while progress + 1e-9 >= next {
                next += period;
            }
            if progress + 1e-9 >= steps {
                is_complete = true;
                break;
            }
        }
    }
    let mut violations = machine.violations();
    // Where nothing is left to happen, nobody will ever look at a deadline that is still ahead.
    let latest = if is_complete { world.now() } else { limit };
    let is_late = |node: &usize| machine.next_deadline(*node).is_some_and(|deadline| deadline < latest);
    violations.extend(world.living().find(is_late).map(|node| format!("node {node} waits beyond its deadline")));
    let end = if is_complete { world.now() } else { stuck_at }.since_start().as_secs_f64();
    for node in 0..setting.nodes {
        if world.is_alive(node) {
            world.nodes[node].account.live_until(end);
            if is_complete {
                world.stop_computing(node);
            }
        }
    }
    Some(Outcome {
        method: setting.method,
        learning_rate: setting.trainer.optimizer.learning_rate,
        seed: setting.seed,
        fault: setting.fault,
        points: world.points,
        nodes: world.nodes.into_iter().map(|node| node.account).collect(),
        counted: machine.counted(),
        is_complete,
        stands_still: !is_complete && world.queue.is_empty(),
        violations,
    })
}
