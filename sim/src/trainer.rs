//! A trainer without tensors: a noisy quadratic that steps by the clock and serves its node at step boundaries.
//!
//! Every node pulls towards its own optimum, like nodes that read different data; only averaging keeps them together.
//! The outer momentum follows the gossip study: corrections go into the slow weights and so stay out of it.

use std::borrow::Cow;

use murmur_protocol::random::{Generator, RngExt, stream};
use murmur_protocol::{Correction, Event, Part, Payload, RequestId, Selection, Snapshot, TrainingReport, Vector};

use crate::scenario::{HostIndex, Scenario, TrainerSpec};

/// The centre of all optima, in each coordinate.
const CENTRE: f32 = 1.0;

/// A checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Saved {
    /// As for a joiner.
    state: Snapshot,
    pub(crate) steps: u64,
    pub(crate) progress: f64,
}

/// Something to be done at the next step boundary.
#[derive(Debug)]
pub(crate) enum Order {
    Snapshot(RequestId, Selection),
    /// `merge` is the index of its record.
    Correction {
        request: RequestId,
        part: Part,
        correction: Correction,
        progress_shift: f64,
        merge: Option<usize>,
    },
    State {
        request: RequestId,
        payload: Payload,
        progress: f64,
    },
    AdvanceOuter,
}

/// What an order came to.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) reply: Option<Event>,
    /// The record of the correction that is now part of the model.
    pub(crate) landed: Option<usize>,
}

/// One host's trainer.
#[derive(Debug)]
pub(crate) struct Trainer {
    spec: TrainerSpec,
    random: Generator,
    optimum: Vec<f32>,
    tokens_per_second: f64,
    outer: (f32, f32),
    /// Slow weights and momentum, once an outer round has ended.
    slow: Option<(Vec<f32>, Vec<f32>)>,
    orders: Vec<Order>,
    values: Vec<f32>,
    first_values: Vec<f32>,
    local_movement: Vec<f64>,
    pub(crate) has_model: bool,
    pub(crate) is_training: bool,
    pub(crate) steps: u64,
    /// As of the last step that was reported.
    reported_steps: u64,
    pub(crate) progress: f64,
    travel: f64,
    /// What own training did since the last snapshot of the model.
    moved: Vec<f64>,
}

impl Trainer {
    /// The trainer of one life; the optimum is the host's, the noise that of `life_seed`. `has_model`: it may train the
    /// run's first model, else it is to copy one.
    pub(crate) fn new(scenario: &Scenario, host: HostIndex, (seed, life_seed): (u64, u64), has_model: bool) -> Trainer {
        let (spec, gossip, parameters) = (&scenario.trainer, &scenario.gossip, scenario.parameters);
        let mut place = stream(seed, "simulated optimum", &[&host.to_le_bytes()]);
        let mut first = stream(seed, "simulated first model", &[]);
        let values: Vec<f32> = (0..parameters).map(|_| first.random_range(-1.0..1.0)).collect();
        Trainer {
            spec: spec.clone(),
            random: stream(life_seed, "simulated noise", &[]),
            optimum: (0..parameters).map(|_| CENTRE + spec.spread * place.random_range(-1.0f32..1.0)).collect(),
            tokens_per_second: scenario.nodes[host].tokens_per_second,
            outer: (gossip.outer_learning_rate as f32, gossip.outer_momentum as f32),
            slow: None,
            orders: Vec::new(),
            first_values: values.clone(),
            local_movement: vec![0.0; parameters],
            values,
            has_model,
            is_training: false,
            steps: 0,
            reported_steps: 0,
            progress: 0.0,
            travel: 0.0,
            moved: vec![0.0; parameters],
        }
    }

    /// What a restarted host resumes from.
    pub(crate) fn save(&mut self) -> Saved {
        Saved { state: self.select(Selection::State).into(), steps: self.steps, progress: self.progress }
    }

    /// Goes on from what an earlier life saved.
    pub(crate) fn resume(&mut self, saved: &Saved) {
        let accepted = self.load_state(&saved.state.to_payload(), saved.progress);
        assert!(accepted, "what was saved fits the same scenario");
        (self.steps, self.reported_steps) = (saved.steps, saved.steps);
    }

    /// The model that this life began with, own or copied.
    pub(crate) fn first_values(&self) -> &[f32] {
        &self.first_values
    }

    /// The model now.
    pub(crate) fn values(&self) -> Cow<'_, [f32]> {
        Cow::Borrowed(&self.values)
    }

    /// The sum of all that own training did to the model.
    pub(crate) fn local_movement(&self) -> Vec<f64> {
        self.local_movement.clone()
    }

    /// The swarm's objective: ½ · mean squared distance from the centre of all optima.
    pub(crate) fn loss(&self) -> f64 {
        let squares = self.values.iter().map(|value| (f64::from(*value) - f64::from(CENTRE)).powi(2));
        0.5 * squares.sum::<f64>() / self.values.len() as f64
    }

    pub(crate) fn order(&mut self, order: Order) {
        self.orders.push(order);
    }

    pub(crate) fn report(&self) -> TrainingReport {
        TrainingReport {
            steps: self.reported_steps,
            progress: self.progress,
            tokens_per_second: self.tokens_per_second,
            travel: self.travel,
            local_progress: self.moved.iter().map(|moved| moved * moved).sum::<f64>().sqrt(),
        }
    }

    /// `count` steps; they move the model unless `learning` is over, and show in reports unless `reporting` is.
    pub(crate) fn step(&mut self, count: u64, learning: bool, reporting: bool) {
        self.steps += count;
        self.progress += count as f64;
        if reporting {
            self.reported_steps = self.steps;
        }
        for _ in 0..if learning { count } else { 0 } {
            self.learn();
        }
    }

    fn learn(&mut self) {
        let mut squares = 0.0;
        let sums = self.local_movement.iter_mut().zip(&mut self.moved);
        for ((value, optimum), (movement, recent)) in self.values.iter_mut().zip(&self.optimum).zip(sums) {
            let noise = self.spec.noise * self.random.random_range(-1.0f32..1.0);
            let before = *value;
            *value -= self.spec.learning_rate * (*value - optimum + noise);
            let moved = f64::from(*value) - f64::from(before);
            *movement += moved;
            *recent += moved;
            squares += moved * moved;
        }
        self.travel += f64::sqrt(squares);
    }

    /// Carries out all orders, oldest first.
    pub(crate) fn boundary(&mut self) -> Vec<Done> {
        let orders = std::mem::take(&mut self.orders);
        orders.into_iter().map(|order| self.carry_out(order)).collect()
    }

    fn carry_out(&mut self, order: Order) -> Done {
        match order {
            Order::Snapshot(request, selection) => {
                let snapshot = Snapshot::from(self.select(selection));
                let report = self.report();
                if matches!(selection, Selection::Part(Part { vector: Vector::Model, .. })) {
                    self.moved.fill(0.0);
                }
                Done { reply: Some(Event::SnapshotTaken { request, snapshot, report }), landed: None }
            }
            Order::Correction { request, part, correction, progress_shift, merge } => {
                self.add(part, &correction);
                self.progress += progress_shift;
                Done { reply: Some(Event::CorrectionApplied { request, report: self.report() }), landed: merge }
            }
            Order::State { request, payload, progress } => {
                let accepted = self.load_state(&payload, progress);
                Done { reply: Some(Event::StateLoaded { request, accepted, report: self.report() }), landed: None }
            }
            Order::AdvanceOuter => {
                self.advance_outer();
                Done { reply: None, landed: None }
            }
        }
    }

    fn load_state(&mut self, payload: &Payload, progress: f64) -> bool {
        let length = self.values.len();
        let vectors = if self.outer.0 > 0.0 { 3 } else { 1 };
        let Some(state) = Snapshot::from_payload(payload, vectors * length) else { return false };
        let before = self.values.clone();
        let mut parts = state.values().chunks(length).map(<[f32]>::to_vec);
        self.values = parts.next().expect("a state begins with the model");
        self.slow = parts.next().zip(parts.next());
        if self.has_model && self.steps > 0 {
            // Copied anew: the node's own doing.
            self.note_movement(&before);
        } else {
            self.first_values = self.values.clone();
        }
        self.progress = progress;
        self.has_model = true;
        true
    }

    fn select(&mut self, selection: Selection) -> Vec<f32> {
        let range = |part: Part| part.fragment.range(self.values.len());
        match selection {
            Selection::Part(part) if part.vector == Vector::Model => self.values[range(part)].to_vec(),
            Selection::Part(part) => {
                let range = range(part);
                self.outer_state().1[range].to_vec()
            }
            Selection::State if self.outer.0 > 0.0 => {
                let values = self.values.clone();
                let (slow, speed) = self.outer_state();
                [&values[..], slow, speed].concat()
            }
            Selection::State => self.values.clone(),
        }
    }

    fn add(&mut self, part: Part, correction: &Correction) {
        let range = part.fragment.range(self.values.len());
        match part.vector {
            Vector::Model => {
                correction.add_to(&mut self.values[range.clone()]);
                if let Some((slow, _)) = &mut self.slow {
                    correction.add_to(&mut slow[range]);
                }
            }
            Vector::Momentum => correction.add_to(&mut self.outer_state().1[range]),
        }
    }

    /// φ and u; before the first outer round they are the first model and zeros.
    fn outer_state(&mut self) -> &mut (Vec<f32>, Vec<f32>) {
        self.slow.get_or_insert_with(|| (self.first_values.clone(), vec![0.0; self.first_values.len()]))
    }

    /// D = θ − φ;  u ← μ·u + D;  φ ← φ + α·(μ·u + D);  θ ← φ
    fn advance_outer(&mut self) {
        let (rate, momentum) = self.outer;
        let before = self.values.clone();
        let (slow, speed) = {
            self.outer_state();
            self.slow.as_mut().expect("made by the line above")
        };
        for ((value, slow), speed) in self.values.iter_mut().zip(slow).zip(speed) {
            let difference = *value - *slow;
            *speed = momentum * *speed + difference;
            *slow += rate * (momentum * *speed + difference);
            *value = *slow;
        }
        self.note_movement(&before);
    }

    fn note_movement(&mut self, before: &[f32]) {
        let mut squares = 0.0;
        let sums = self.local_movement.iter_mut().zip(&mut self.moved);
        for (((movement, recent), value), before) in sums.zip(&self.values).zip(before) {
            let moved = f64::from(*value) - f64::from(*before);
            *movement += moved;
            *recent += moved;
            squares += moved * moved;
        }
        self.travel += squares.sqrt();
    }
}
