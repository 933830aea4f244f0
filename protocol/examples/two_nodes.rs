//! The smallest useful driver: two nodes in one process, a queue between them and a clock that jumps.
//!
//! Each pulls its own little vector towards its own target, and averages with the other. Everything that a driver has
//! to do is here: connect, carry messages and payloads, step, serve the trainer's orders at a step boundary, call the
//! numerics. Run it with `cargo run -p murmur-protocol --example two_nodes`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use murmur_protocol::numerics::Buffers;
use murmur_protocol::*;

/// Length of the models.
const PARAMETERS: usize = 32;
/// Time of a step, and of everything else: the clock ticks once a step.
const STEP: Duration = Duration::from_millis(100);
/// Steps in which the models learn; then they only average.
const LEARNING_STEPS: u64 = 200;
/// Share of the way to its target that a model moves in a step.
const RATE: f32 = 0.02;

/// A node, and what a real daemon has around it.
pub struct Side {
    /// The state machine.
    pub node: Node,
    /// The model.
    pub model: Vec<f32>,
    /// What the steps alone have added up to.
    pub local: Vec<f64>,
    target: f32,
    steps: u64,
    /// Corrections and snapshots ordered since the last boundary.
    at_boundary: Vec<TrainerOrder>,
}

/// Two sides after their run.
pub struct Outcome {
    /// Both sides.
    pub sides: [Side; 2],
    /// Distance between the models, as measured by each completed exchange.
    pub distances: Vec<f64>,
}

fn main() {
    let outcome = run(|line| println!("{line}"));
    println!("met after {} exchanges", outcome.distances.len() / 2);
}

/// Runs both nodes until they have met; tells of each completed exchange.
pub fn run(mut tell: impl FnMut(String)) -> Outcome {
    let peers = [1, 2].map(|key| PeerId::from_public_key([key; 32]));
    let layout = Arc::new(ModelLayout::new([("model".to_owned(), vec![PARAMETERS])]));
    let side = |index: usize| Side {
        node: Node::new(Config::founder(&RunManifest::default()), peers[index], layout.clone(), 7, Time::ZERO),
        model: vec![0.5; PARAMETERS],
        local: vec![0.0; PARAMETERS],
        target: [2.0, -1.0][index],
        steps: 0,
        at_boundary: Vec::new(),
    };
    let mut sides = [side(0), side(1)];
    let mut distances = Vec::new();
    let mut queue: VecDeque<(usize, Event)> =
        [0, 1].map(|index| (index, Event::PeerConnected { peer: peers[1 - index], addresses: vec![] })).into();
    let mut now = Time::ZERO;
    while now < Time::ZERO + STEP * 10 * LEARNING_STEPS as u32 {
        // Handle one event, drain all effects.
        while let Some((index, event)) = queue.pop_front() {
            // A new node has its first effects to drain before its first event.
            while let Some(effect) = sides[index].node.poll_effect() {
                carry_out(&mut sides[index], effect, index, &peers, &mut queue);
            }
            sides[index].node.handle(now, event);
            while let Some(effect) = sides[index].node.poll_effect() {
                if let Effect::Notice(Notice::ExchangeCompleted { distance, .. }) = &effect {
                    tell(format!("{now:?}  node {index}: the models were {distance:.6} apart"));
                    distances.push(*distance);
                }
                carry_out(&mut sides[index], effect, index, &peers, &mut queue);
            }
        }
        let have_learned = sides.iter().all(|side| side.steps > LEARNING_STEPS && side.at_boundary.is_empty());
        if have_learned && distance(&sides) < 1e-4 {
            break;
        }
        now = now + STEP;
        for (index, side) in sides.iter_mut().enumerate() {
            side.step().into_iter().for_each(|event| queue.push_back((index, event)));
            if side.node.next_deadline().is_some_and(|deadline| deadline <= now) {
                queue.push_back((index, Event::TimePassed));
            }
        }
    }
    Outcome { sides, distances }
}

/// The largest difference of two parameters.
fn distance([one, other]: &[Side; 2]) -> f32 {
    one.model.iter().zip(&other.model).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max)
}

fn carry_out(side: &mut Side, effect: Effect, index: usize, peers: &[PeerId; 2], queue: &mut VecDeque<(usize, Event)>) {
    let (me, other) = (peers[index], 1 - index);
    match effect {
        Effect::Network(NetworkOrder::Send { message, .. }) => {
            queue.push_back((other, Event::MessageReceived { peer: me, message }))
        }
        Effect::Network(NetworkOrder::StartTransfer { transfer, header, payload, .. }) => {
            queue.push_back((other, Event::TransferReceived { peer: me, header, payload }));
            queue.push_back((index, Event::TransferFinished { transfer }));
        }
        Effect::Trainer(order) => side.at_boundary.push(order),
        Effect::Worker(WorkerOrder::Encode { request, snapshot, job }) => {
            queue.push_back((
                index,
                Event::Encoded { request, result: numerics::encode(&snapshot, &job, &Buffers::new()) },
            ));
        }
        Effect::Worker(WorkerOrder::Merge { request, job }) => {
            queue.push_back((index, Event::Merged { request, result: numerics::merge(&job, &Buffers::new()) }));
        }
        // Nobody joins, leaves or is dialed here, the trainer trains from the start, and notices are told above.
        _ => {}
    }
}

impl Side {
    /// One step, then whatever was ordered for its boundary; returns what the node must hear.
    fn step(&mut self) -> Vec<Event> {
        self.steps += 1;
        if self.steps <= LEARNING_STEPS {
            for (value, local) in self.model.iter_mut().zip(&mut self.local) {
                let before = *value;
                *value += RATE * (self.target - before);
                *local += f64::from(*value) - f64::from(before);
            }
        }
        // An upper bound: no step is longer than the first.
        let travel = self.steps as f64 * f64::from(RATE) * 3.0 * (PARAMETERS as f64).sqrt();
        let report = TrainingReport {
            steps: self.steps,
            progress: self.steps as f64,
            tokens_per_second: 1000.0,
            travel,
            local_progress: travel,
        };
        let serve = |order| match order {
            TrainerOrder::TakeSnapshot { request, .. } => {
                Some(Event::SnapshotTaken { request, snapshot: self.model.clone().into(), report })
            }
            TrainerOrder::ApplyCorrection { request, correction, .. } => {
                correction.add_to(&mut self.model);
                Some(Event::CorrectionApplied { request, report })
            }
            _ => None,
        };
        let mut events: Vec<Event> = std::mem::take(&mut self.at_boundary).into_iter().filter_map(serve).collect();
        events.push(Event::StepsCompleted(report));
        events
    }
}
