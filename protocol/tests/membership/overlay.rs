//! A swarm of nodes that do nothing but stay in touch: a queue, constant latency, no models. Small enough for ten
//! thousand of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use murmur_protocol::message::KnownPeer;
use murmur_protocol::*;

const LATENCY: Duration = Duration::from_millis(50);

/// How long a dead connection goes unnoticed, and an unanswered dial goes on.
const UNNOTICED: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
enum Happening {
    Woken { node: usize, wake: u64 },
    DialArrives { dialer: usize, target: usize, expected: Option<PeerId>, addresses: Vec<Address> },
    Connected { node: usize, other: usize },
    Disconnected { node: usize, other: usize },
    Arrives { from: usize, to: usize, message: Message },
    Told { node: usize, event: Event },
}

/// What one node has caused.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    /// Of control messages sent.
    pub(crate) bytes: u64,
    pub(crate) messages: u64,
    pub(crate) dials: u64,
    pub(crate) wakes: u64,
    pub(crate) accusations: u64,
}

pub(crate) struct Overlay {
    pub(crate) now: Time,
    seed: u64,
    nodes: Vec<Option<(Node, u64)>>,
    linked: Vec<BTreeSet<usize>>,
    index_of: BTreeMap<PeerId, usize>,
    queue: BTreeMap<(Time, u64), Happening>,
    sequence: u64,
    layout: Arc<ModelLayout>,
    pub(crate) traffic: Vec<Traffic>,
}

pub(crate) fn peer(index: usize) -> PeerId {
    let mut key = *blake3::hash(&(index as u64).to_le_bytes()).as_bytes();
    key[31] = 1;
    PeerId::from_public_key(key)
}

pub(crate) fn address(index: usize) -> Address {
    Address::new(format!("/ip4/10.0.0.1/udp/{index}/quic-v1")).expect("short")
}

fn host_at(address: &Address) -> Option<usize> {
    address.as_str().split('/').nth(4)?.parse().ok()
}

impl Overlay {
    pub(crate) fn new(seed: u64) -> Overlay {
        Overlay {
            now: Time::ZERO,
            seed,
            nodes: Vec::new(),
            linked: Vec::new(),
            index_of: BTreeMap::new(),
            queue: BTreeMap::new(),
            sequence: 0,
            layout: Arc::new(ModelLayout::new([("w".to_owned(), vec![8])])),
            traffic: Vec::new(),
        }
    }

    /// `count` nodes, each told the address of the one that `bootstrap` names.
    pub(crate) fn of(count: usize, seed: u64, bootstrap: impl Fn(usize) -> usize) -> Overlay {
        let mut overlay = Overlay::new(seed);
        for index in 0..count {
            let known = (index > 0).then(|| bootstrap(index));
            overlay.add(known, &[]);
        }
        overlay
    }

    pub(crate) fn add(&mut self, bootstrap: Option<usize>, remembered: &[usize]) -> usize {
        let index = self.nodes.len();
        let entry = |host| Bootstrap { peer: None, address: address(host) };
        let known = |host: &usize| KnownPeer { peer: peer(*host), addresses: vec![address(*host)] };
        let config = Config {
            bootstrap: bootstrap.map(entry).into_iter().collect(),
            remembered: remembered.iter().map(known).collect(),
            ..Config::founder(&RunManifest::default())
        };
        let seed = self.seed + index as u64;
        let mut node = Node::new(config, peer(index), self.layout.clone(), seed, self.now);
        while node.poll_effect().is_some() {}
        self.nodes.push(Some((node, 0)));
        self.linked.push(BTreeSet::new());
        self.traffic.push(Traffic::default());
        self.index_of.insert(peer(index), index);
        self.tell(index, Event::AddressFound { address: address(index) });
        index
    }

    pub(crate) fn run_for(&mut self, duration: Duration) {
        let limit = self.now + duration;
        while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= limit) {
            self.now = entry.key().0;
            let happening = entry.remove();
            self.happen(happening);
        }
        self.now = limit;
    }

    /// The process is gone; its peers notice later.
    pub(crate) fn crash(&mut self, index: usize) {
        self.nodes[index] = None;
        for other in std::mem::take(&mut self.linked[index]) {
            self.push(UNNOTICED, Happening::Disconnected { node: other, other: index });
        }
    }

    pub(crate) fn living(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|index| self.nodes[*index].is_some())
    }

    pub(crate) fn status(&self, index: usize) -> Status {
        self.nodes[index].as_ref().expect("alive").0.status()
    }

    /// Whom a node is connected to, by index.
    pub(crate) fn connected(&self, index: usize) -> Vec<usize> {
        self.status(index).connected.iter().filter_map(|peer| self.index_of.get(peer).copied()).collect()
    }

    /// Whom a node knows, by index.
    pub(crate) fn known(&self, index: usize) -> Vec<usize> {
        self.status(index).known.iter().filter_map(|known| self.index_of.get(&known.peer).copied()).collect()
    }

    pub(crate) fn clear_traffic(&mut self) {
        self.traffic.fill(Traffic::default());
    }

    pub(crate) fn tell(&mut self, index: usize, event: Event) {
        let now = self.now;
        let Some((node, _)) = &mut self.nodes[index] else { return };
        node.handle(now, event);
        let effects: Vec<Effect> = std::iter::from_fn(|| node.poll_effect()).collect();
        effects.into_iter().for_each(|effect| self.carry_out(index, effect));
        self.set_wake(index);
    }

    fn set_wake(&mut self, node: usize) {
        let Some((state, wake)) = &mut self.nodes[node] else { return };
        *wake += 1;
        let wake = *wake;
        if let Some(deadline) = state.next_deadline() {
            self.sequence += 1;
            self.queue.insert((deadline.max(self.now), self.sequence), Happening::Woken { node, wake });
        }
    }

    fn carry_out(&mut self, index: usize, effect: Effect) {
        match effect {
            Effect::Network(NetworkOrder::Send { peer, message }) => {
                let Some(to) = self.index_of.get(&peer).copied() else { return };
                self.traffic[index].messages += 1;
                self.traffic[index].bytes += codec::encode(&message).len() as u64;
                if self.linked[index].contains(&to) {
                    self.push(LATENCY, Happening::Arrives { from: index, to, message });
                }
            }
            Effect::Network(NetworkOrder::Dial { peer, addresses }) => {
                self.traffic[index].dials += 1;
                let target = addresses.first().and_then(host_at).filter(|target| *target < self.nodes.len());
                match target {
                    Some(target) => {
                        let arrives = Happening::DialArrives { dialer: index, target, expected: peer, addresses };
                        self.push(LATENCY, arrives);
                    }
                    _ => self.fail(index, UNNOTICED, peer, addresses),
                }
            }
            Effect::Network(NetworkOrder::Disconnect { peer }) => {
                let Some(other) = self.index_of.get(&peer).copied() else { return };
                self.push(Duration::ZERO, Happening::Disconnected { node: index, other });
                self.push(LATENCY, Happening::Disconnected { node: other, other: index });
            }
            Effect::Notice(Notice::PeerMisbehaved { .. }) => self.traffic[index].accusations += 1,
            _ => {}
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Woken { node, wake } => {
                if self.nodes[node].as_ref().is_some_and(|(_, last)| *last == wake) {
                    self.traffic[node].wakes += 1;
                    self.tell(node, Event::TimePassed);
                }
            }
            Happening::DialArrives { dialer, target, expected, addresses } => {
                let is_expected = expected.is_none_or(|expected| expected == peer(target));
                if self.nodes[target].is_none() || !is_expected || target == dialer {
                    self.fail(dialer, LATENCY, expected, addresses);
                } else {
                    // The dialer knows before anything that the target says reaches it.
                    self.push(LATENCY, Happening::Connected { node: dialer, other: target });
                    self.happen(Happening::Connected { node: target, other: dialer });
                }
            }
            Happening::Connected { node, other } => {
                if self.nodes[node].is_some() {
                    self.linked[node].insert(other);
                    self.tell(node, Event::PeerConnected { peer: peer(other), addresses: vec![address(other)] });
                }
            }
            Happening::Disconnected { node, other } => {
                if self.linked[node].remove(&other) {
                    self.tell(node, Event::PeerDisconnected { peer: peer(other) });
                }
            }
            Happening::Arrives { from, to, message } => {
                if self.linked[to].contains(&from) {
                    self.tell(to, Event::MessageReceived { peer: peer(from), message });
                }
            }
            Happening::Told { node, event } => self.tell(node, event),
        }
    }

    fn fail(&mut self, node: usize, after: Duration, peer: Option<PeerId>, addresses: Vec<Address>) {
        let event = Event::DialFailed { peer, addresses, reason: "no answer".to_owned() };
        self.push(after, Happening::Told { node, event });
    }

    fn push(&mut self, after: Duration, happening: Happening) {
        self.sequence += 1;
        self.queue.insert((self.now + after, self.sequence), happening);
    }
}

/// Smallest, median and largest.
pub(crate) fn spread(mut values: Vec<usize>) -> (usize, usize, usize) {
    values.sort_unstable();
    (values[0], values[values.len() / 2], values[values.len() - 1])
}

/// How well random walks on the connections mix: the second largest eigenvalue modulus of the lazy-free walk, by power
/// iteration. 1 for parts that do not touch; 2√(d−1)/d for the best graph of degree d (0.6 for 10).
pub(crate) fn second_eigenvalue(edges: &[Vec<usize>]) -> f64 {
    let count = edges.len();
    let degree = |node: usize| edges[node].len() as f64;
    let total: f64 = (0..count).map(degree).sum();
    // On the symmetric form D^-1/2 A D^-1/2, whose first eigenvector is √d.
    let first: Vec<f64> = (0..count).map(|node| (degree(node) / total).sqrt()).collect();
    let mut vector: Vec<f64> = (0..count).map(|node| node as f64 / count as f64 - 0.5).collect();
    let mut length = 0.0;
    for _ in 0..300 {
        let along: f64 = vector.iter().zip(&first).map(|(value, first)| value * first).sum();
        vector.iter_mut().zip(&first).for_each(|(value, first)| *value -= along * first);
        let scaled: Vec<f64> = (0..count).map(|node| vector[node] / degree(node).sqrt()).collect();
        let next = |node: usize| edges[node].iter().map(|other| scaled[*other]).sum::<f64>() / degree(node).sqrt();
        vector = (0..count).map(next).collect();
        length = vector.iter().map(|value| value * value).sum::<f64>().sqrt();
        vector.iter_mut().for_each(|value| *value /= length);
    }
    length
}
