//! Nodes of a synchronous run on a small virtual network, with members that come, die, stand still and leave, and words and
//! transfers that are lost: sums hold each contribution once, replicas are one, and nobody waits for long. Each law has a
//! sabotage that breaks it.

mod ending;
mod late;
mod lines;
mod losing;
mod resting;
mod rounding;
mod sabotage;
mod trainers;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use murmur_protocol::collective::Action;
use murmur_protocol::manifest::Topology;
use murmur_protocol::numerics::{ReduceJob, ReduceStep, reduce, state_digest};
use murmur_protocol::random::{Generator, RngExt, stream};
use murmur_protocol::status::SynchronousStatus;
use murmur_protocol::*;

/// No multiple of most numbers of members.
const PARAMETERS: usize = 37;

/// Contributions are integers, so that a sum shows what is in it: the first value has a bit for each member.
fn contribution(node: usize, operation: u64, parameters: usize) -> Vec<f32> {
    let value = |place: usize| ((node + 1) * (place + 3)) as f32 + (operation % 64) as f32;
    std::iter::once((1 << node) as f32).chain((1..parameters).map(value)).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sabotage {
    None,
    /// A worker adds slices twice.
    AddsTwice,
    /// A trainer takes a sum up twice.
    TakesUpTwice,
    /// A trainer keeps its own replica, and tells the digest of the one that it was to load.
    KeepsItsReplica,
    /// Nodes are not told that time has passed.
    NeverLooksAtTheClock,
}

enum Happening {
    Told(Event),
    Contributed(RequestId, u64),
    Look,
}

struct Member {
    node: Node,
    replica: Vec<f32>,
    report: TrainingReport,
    /// Orders to contribute, counted: what an older one would give is void.
    orders: u64,
    told_digest: Option<u64>,
    is_dead: bool,
    /// It has left in order.
    has_left: bool,
    paused_until: Time,
    /// What a contribution takes beside a moment, in milliseconds; `None`: its trainer keeps orders to contribute to itself.
    slowness: Option<u64>,
    /// The last order that it has kept.
    kept: Option<RequestId>,
    /// Replicas that its trainer is to find unfit, from now on.
    refusals: u32,
    /// What happens, once, while the worker puts the last slices of an operation in place.
    trouble: Option<Trouble>,
}

#[derive(Clone, Copy)]
enum Trouble {
    /// The worker has no place for them.
    WorkerFails,
    /// The owner wants the network left alone.
    RestBegins,
}

#[derive(Default)]
struct Sent {
    words: u32,
    replicas: u32,
}

struct World {
    now: Time,
    topology: Topology,
    parameters: usize,
    members: Vec<Member>,
    ahead: BinaryHeap<Reverse<(Time, u64)>>,
    happenings: BTreeMap<u64, (usize, Happening)>,
    next: u64,
    dice: Generator,
    lost: f64,
    /// The run's, for members that are added later.
    members_min: u32,
    slice_bits: u32,
    /// Swarm progress at which training is over, in steps; members leave then.
    ends_at: f64,
    /// Members that have ended stay there.
    stays: bool,
    /// No transfer reaches these.
    deaf: Vec<usize>,
    /// Pairs of members between whom no transfer is possible, as where only a relay leads from one to the other.
    apart: Vec<(usize, usize)>,
    /// What a replica needs for its way beside a moment, in milliseconds.
    replica_delay: u64,
    /// What trainers need for a copy beside a moment, in milliseconds.
    snapshot_delay: u64,
    /// Words that members have said, and replicas on their way that came to their end.
    sent: Sent,
    sabotage: Sabotage,
    /// Digests of replicas by progress and contributors of the last sum, and when the first of them took it up.
    replicas: BTreeMap<(u64, u64), (Time, u64)>,
    broken: Vec<String>,
}

fn id(node: usize) -> PeerId {
    PeerId::from_public_key([node as u8 + 1; 32])
}

fn node_of(peer: PeerId) -> usize {
    usize::from(peer.as_bytes()[0]) - 1
}

/// All members have taken a sum up within this of the first one, but for those that stand still.
const ONE_OPERATION: Duration = Duration::from_secs(2);

const fn milliseconds(count: u64) -> Duration {
    Duration::from_millis(count)
}

impl World {
    fn new(topology: Topology, members: usize, seed: u64, sabotage: Sabotage) -> World {
        let mut world = World::empty(topology, seed, sabotage);
        (0..members).for_each(|node| world.add(if node == 0 { Start::WithModel } else { Start::FromPeer }));
        world
    }

    fn empty(topology: Topology, seed: u64, sabotage: Sabotage) -> World {
        World {
            now: Time::ZERO,
            topology,
            parameters: PARAMETERS,
            members: Vec::new(),
            ahead: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            next: 0,
            dice: stream(seed, "synchronous world", &[]),
            lost: 0.0,
            members_min: 1,
            slice_bits: 32,
            ends_at: f64::INFINITY,
            stays: false,
            deaf: Vec::new(),
            apart: Vec::new(),
            replica_delay: 0,
            snapshot_delay: 0,
            sent: Sent::default(),
            sabotage,
            replicas: BTreeMap::new(),
            broken: Vec::new(),
        }
    }

    fn add(&mut self, start: Start) {
        let number = self.members.len();
        let mut manifest = RunManifest::default();
        manifest.synchronous.topology = self.topology;
        manifest.synchronous.members_min = self.members_min;
        manifest.synchronous.slice_bits = self.slice_bits;
        let first_number = 1000 + self.now.since_start().as_micros() as u64;
        let config = Config { start, first_number, ..Config::founder(&manifest) };
        let layout = Arc::new(ModelLayout::new([("weights".to_owned(), vec![self.parameters])]));
        let node = Node::new(config, id(number), layout, number as u64, self.now);
        let report = TrainingReport { tokens_per_second: 1000.0, ..TrainingReport::default() };
        self.members.push(Member {
            node,
            replica: vec![number as f32; self.parameters],
            report,
            orders: 0,
            told_digest: None,
            is_dead: false,
            has_left: false,
            paused_until: Time::ZERO,
            slowness: Some(0),
            kept: None,
            refusals: 0,
            trouble: None,
        });
        for other in (0..number).filter(|other| !self.members[*other].is_dead).collect::<Vec<_>>() {
            self.connect(number, other);
        }
        self.drain(number);
        self.later(number, 0, Happening::Look);
    }

    fn connect(&mut self, one: usize, other: usize) {
        let is_direct = !self.are_apart(one, other);
        for (node, peer) in [(one, id(other)), (other, id(one))] {
            self.later(node, 5, Happening::Told(Event::PeerConnected { peer, addresses: vec![] }));
            if !is_direct {
                self.later(node, 6, Happening::Told(Event::PathChanged { peer, is_direct }));
            }
        }
    }

    fn kill(&mut self, victim: usize) {
        self.members[victim].is_dead = true;
        for other in 0..self.members.len() {
            self.later(other, 30, Happening::Told(Event::PeerDisconnected { peer: id(victim) }));
        }
    }

    fn later(&mut self, node: usize, delay: u64, happening: Happening) {
        self.ahead.push(Reverse((self.now + milliseconds(delay), self.next)));
        self.happenings.insert(self.next, (node, happening));
        self.next += 1;
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(Reverse((at, number))) = self.ahead.peek().copied().filter(|next| next.0.0 <= until) {
            self.ahead.pop();
            self.now = at;
            let (node, happening) = self.happenings.remove(&number).expect("one for each entry");
            let resumes = self.members[node].paused_until;
            if resumes > at {
                self.ahead.push(Reverse((resumes, number)));
                self.happenings.insert(number, (node, happening));
            } else if !self.members[node].is_dead {
                self.happen(node, happening);
            }
        }
        self.now = until;
    }

    fn happen(&mut self, node: usize, happening: Happening) {
        let event = match happening {
            Happening::Told(event) => event,
            Happening::Contributed(request, order) if order == self.members[node].orders => {
                let member = &mut self.members[node];
                let operation = member.report.progress as u64;
                let digest = member.told_digest.take().unwrap_or_else(|| state_digest(&member.replica));
                let contribution = Snapshot::from(contribution(node, operation, self.parameters));
                Event::Contributed { request, contribution, digest, report: member.report }
            }
            Happening::Contributed(..) => return,
            Happening::Look => {
                self.later(node, 50, Happening::Look);
                if self.sabotage == Sabotage::NeverLooksAtTheClock && self.now > Time::from_start(milliseconds(4000)) {
                    return;
                }
                Event::TimePassed
            }
        };
        self.members[node].node.handle(self.now, event);
        self.drain(node);
    }

    fn drain(&mut self, node: usize) {
        while let Some(effect) = self.members[node].node.poll_effect() {
            match effect {
                Effect::Network(order) => self.carry(node, order),
                Effect::Trainer(order) => self.train(node, order),
                Effect::Worker(WorkerOrder::Reduce { request, job }) => {
                    let is_last = matches!(job.step, ReduceStep::Absorb { action: Action::Replace, .. });
                    match self.members[node].trouble.take_if(|_| is_last) {
                        Some(Trouble::WorkerFails) => {
                            self.later(node, 1, Happening::Told(Event::RequestFailed { request }));
                            continue;
                        }
                        Some(Trouble::RestBegins) => self.later(node, 0, Happening::Told(Event::RestBegan)),
                        None => {}
                    }
                    let is_odd = self.sabotage == Sabotage::AddsTwice && node == 1;
                    let again = is_odd.then(|| job.clone());
                    let mut result = reduce(job);
                    if let (Some(ReduceJob { codec, step }), Ok(reduced)) = (again, &result)
                        && let ReduceStep::Absorb { range, received, action, .. } = step
                    {
                        let accumulator = reduced.accumulator.clone();
                        let step = ReduceStep::Absorb { accumulator, range, received, action };
                        result = reduce(ReduceJob { codec, step });
                    }
                    self.later(node, 1, Happening::Told(Event::Reduced { request, result }));
                }
                Effect::Stop => {
                    self.members[node].has_left = true;
                    self.kill(node);
                }
                _ => {}
            }
        }
    }

    fn carry(&mut self, node: usize, order: NetworkOrder) {
        let (peer, delay) = (id(node), self.dice.random_range(5..40));
        if let NetworkOrder::Send { message: Message::Synchronous(_), .. } = &order {
            self.sent.words += 1;
        }
        match order {
            NetworkOrder::Send { peer: to, message } if self.dice.random::<f64>() >= self.lost => {
                self.later(node_of(to), delay, Happening::Told(Event::MessageReceived { peer, message }));
            }
            NetworkOrder::StartTransfer { transfer, peer: to, header, payload } => {
                let is_deaf = self.deaf.contains(&node_of(to)) || self.are_apart(node, node_of(to));
                let is_replica = matches!(header, TransferHeader::Replica { .. });
                let delay = delay + if is_replica { self.replica_delay } else { 0 };
                if self.dice.random::<f64>() < self.lost || self.members[node_of(to)].is_dead || is_deaf {
                    let reason = "lost".to_owned();
                    self.later(node, delay, Happening::Told(Event::TransferFailed { transfer, reason }));
                } else {
                    self.sent.replicas += u32::from(is_replica);
                    let received = Event::TransferReceived { peer, header, payload };
                    self.later(node_of(to), delay, Happening::Told(received));
                    self.later(node, delay + 5, Happening::Told(Event::TransferFinished { transfer }));
                }
            }
            _ => {}
        }
    }

    fn are_apart(&self, one: usize, other: usize) -> bool {
        self.apart.contains(&(one, other)) || self.apart.contains(&(other, one))
    }

    fn status(&self, node: usize) -> SynchronousStatus {
        self.members[node].node.status().synchronous.expect("the run is synchronous")
    }

    fn living(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|node| !self.members[*node].is_dead).collect()
    }

    /// All that live average together, and go on.
    fn expect_one_group(&mut self, what: &str) {
        let living = self.living();
        let before: Vec<u64> = living.iter().map(|node| self.status(*node).finished).collect();
        self.run(Duration::from_secs(5));
        assert_eq!(self.broken, [] as [String; 0], "{what}");
        for (node, before) in living.iter().zip(before) {
            let status = self.status(*node);
            assert_eq!(status.members, living.len(), "{what}: node {node}: {status:?}");
            assert!(status.finished > before + 5, "{what}: node {node} stands: {status:?} after {before}");
        }
    }
}

const TOPOLOGIES: [Topology; 4] = [Topology::Ring, Topology::Tree, Topology::Star, Topology::HalvingDoubling];

#[test]
fn nodes_find_each_other_take_in_who_comes_and_go_on_without_who_dies() {
    for topology in TOPOLOGIES {
        let mut world = World::new(topology, 4, 1, Sabotage::None);
        world.run(Duration::from_secs(4));
        world.expect_one_group("four");
        assert_eq!((1..4).map(|node| world.status(node).copied).collect::<Vec<_>>(), [1, 1, 1], "{topology}");
        world.add(Start::FromPeer);
        world.run(Duration::from_secs(2));
        world.expect_one_group("a fifth has come");
        let waited = world.status(1).waited;
        world.kill(0);
        world.run(Duration::from_secs(2));
        world.expect_one_group("the founder is dead");
        assert!(world.status(1).waited > waited && world.status(1).waited < world.now.since_start());
        world.kill(3);
        world.kill(4);
        world.run(Duration::from_secs(4));
        world.expect_one_group("two are left");
        world.kill(1);
        world.run(Duration::from_secs(2));
        world.expect_one_group("one is left");
    }
}

#[test]
fn one_that_stands_still_costs_the_others_a_deadline_and_copies_when_it_is_back() {
    for topology in TOPOLOGIES {
        let mut world = World::new(topology, 4, 2, Sabotage::None);
        world.run(Duration::from_secs(10));
        let (deadline, finished) = (world.status(0).deadline, world.status(0).finished);
        world.members[2].paused_until = world.now + Duration::from_secs(20);
        // The wait, then the time in which members listen for each other.
        world.run(deadline + Duration::from_secs(3));
        let after = world.status(0);
        assert!(after.members == 3 && after.finished > finished, "{topology}: {after:?}");
        world.run(Duration::from_secs(20));
        world.expect_one_group("it is back");
        assert!(world.status(2).copied >= 2, "{topology}: {:?}", world.status(2));
    }
}

#[test]
fn laws_hold_whatever_is_lost_and_whoever_comes_and_goes() {
    for seed in 0..12 {
        let mut fate = stream(seed, "fate", &[]);
        let topology = TOPOLOGIES[fate.random_range(0..4)];
        let mut world = World::new(topology, fate.random_range(2..7), seed, Sabotage::None);
        world.lost = [0.0, 0.05, 0.2][fate.random_range(0..3)];
        for _ in 0..5 {
            world.run(milliseconds(fate.random_range(1000..6000)));
            let living = world.living();
            let one = living[fate.random_range(0..living.len())];
            match fate.random_range(0..3) {
                0 if living.len() > 1 => world.kill(one),
                1 => world.add(Start::FromPeer),
                _ => world.members[one].paused_until = world.now + milliseconds(fate.random_range(100..8000)),
            }
        }
        world.lost = 0.0;
        world.run(Duration::from_secs(90));
        world.expect_one_group(&format!("seed {seed}, {topology}"));
    }
}

/// One of its own limit of steps, or whose training has failed.
#[test]
fn the_others_go_on_without_one_whose_training_is_over() {
    let mut world = World::new(Topology::Tree, 3, 6, Sabotage::None);
    world.run(Duration::from_secs(5));
    let report = world.members[1].report;
    world.later(1, 0, Happening::Told(Event::TrainingCompleted(report)));
    for (left, victim) in [(2, 2), (1, 2)] {
        world.run(Duration::from_secs(6));
        let before = world.status(0);
        world.run(Duration::from_secs(4));
        let after = world.status(0);
        assert!(after.members == left && after.finished > before.finished + 5, "{before:?}, {after:?}");
        assert_eq!(world.broken, [] as [String; 0]);
        world.kill(victim);
    }
}
