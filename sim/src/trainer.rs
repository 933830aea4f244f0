//! A trainer without tensors: a noisy quadratic that steps by the clock and serves its node at step boundaries.
//!
//! Every node pulls towards its own optimum, like nodes that read different data; only averaging keeps them together.
//! The outer momentum follows the gossip study: corrections go into the slow weights and so stay out of it.

use murmur_protocol::random::{Generator, RngExt, stream};
use murmur_protocol::{Correction, Event, Part, Payload, RequestId, Selection, Snapshot, TrainingReport, Vector};

use crate::scenario::{HostIndex, Scenario, TrainerSpec};

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
    pub(crate) values: Vec<f32>,
    pub(crate) first_values: Vec<f32>,
    pub(crate) local_movement: Vec<f64>,
    pub(crate) has_model: bool,
    pub(crate) is_training: bool,
    pub(crate) steps: u64,
    /// As of the last step that was reported.
    reported_steps: u64,
    progress: f64,
    travel: f64,
    /// What own training did since the last snapshot of the model.
    moved: Vec<f64>,
}

impl Trainer {
    /// The trainer of one life; the optimum is the host's, the noise that of `life_seed`.
    pub(crate) fn new(
        scenario: &Scenario,
        host: HostIndex,
        seed: u64,
        life_seed: u64,
        first_values: Option<Vec<f32>>,
    ) -> Trainer {
        let (spec, gossip, parameters) = (&scenario.trainer, &scenario.gossip, scenario.parameters);
        let mut place = stream(seed, "simulated optimum", &[&host.to_le_bytes()]);
        let has_model = first_values.is_some();
        let values = first_values.unwrap_or_else(|| vec![0.0; parameters]);
        Trainer {
            spec: spec.clone(),
            random: stream(life_seed, "simulated noise", &[]),
            optimum: (0..parameters).map(|_| 1.0 + spec.spread * place.random_range(-1.0f32..1.0)).collect(),
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

    pub(crate) fn order(&mut self, order: Order) {
        self.orders.push(order);
    }

    pub(crate) fn has_orders(&self) -> bool {
        !self.orders.is_empty()
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

    /// One step; moves the model unless `learning` is over, and shows in reports unless `reporting` is.
    pub(crate) fn step(&mut self, learning: bool, reporting: bool) {
        self.steps += 1;
        if reporting {
            self.reported_steps = self.steps;
        }
        self.progress += 1.0;
        if !learning {
            return;
        }
        let before = self.values.clone();
        for (value, optimum) in self.values.iter_mut().zip(&self.optimum) {
            let noise = self.spec.noise * self.random.random_range(-1.0f32..1.0);
            *value -= self.spec.learning_rate * (*value - optimum + noise);
        }
        self.note_movement(&before);
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
                let length = self.values.len();
                let vectors = if self.outer.0 > 0.0 { 3 } else { 1 };
                let state = Snapshot::from_payload(&payload, vectors * length);
                let accepted = state.is_some();
                if let Some(state) = state {
                    let before = self.values.clone();
                    let mut parts = state.values().chunks(length).map(<[f32]>::to_vec);
                    self.values = parts.next().expect("a state begins with the model");
                    self.slow = parts.next().zip(parts.next());
                    if self.has_model {
                        // Copied anew: the node's own doing.
                        self.note_movement(&before);
                    } else {
                        self.first_values = self.values.clone();
                    }
                    self.progress = progress;
                    self.has_model = true;
                }
                Done { reply: Some(Event::StateLoaded { request, accepted, report: self.report() }), landed: None }
            }
            Order::AdvanceOuter => {
                self.advance_outer();
                Done { reply: None, landed: None }
            }
        }
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
