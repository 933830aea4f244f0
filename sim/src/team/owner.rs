//! A simulated captain and its owner: what it trains on, what it keeps, and when it wants what.

use std::collections::VecDeque;
use std::time::Duration;

use murmur_protocol::random::{Generator, RngExt};
use murmur_protocol::team::{
    BatchOutcome, Captain, CaptainConfig, CaptainEffect, CaptainEvent, Cut, DropReason, Lanes, LayerCosts, LayerRange,
    Link, ModelCosts, Outcome, Place, StateKind, StepFactors, TeamTimeouts, Wire, Work, WorkKind, WriteOutcome,
};
use murmur_protocol::{Payload, Time};

use super::arithmetic::{Layer, example, of_loss};
use super::ledger::{Learned, Ledger};
use super::lending::{EMBEDDING, LAYER_BYTES, seconds_of};
use super::links::STREAM_BYTES;
use super::plan::{Carelessness, TeamPlan};
use super::stage::{Stage, state_bytes, states_of, stream, value};

/// What a captain comes back with after its process died.
#[derive(Clone, Debug)]
struct Checkpoint {
    layers: Vec<Layer>,
    data: u64,
    learned: usize,
}

/// A captain's process.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) machine: Option<Captain>,
    pub(crate) life: u32,
    /// Its own stages, with their numbers in the cut.
    pub(crate) stages: Vec<(usize, Stage)>,
    /// Its copy of all layers, the embedding and the head among them; of its own stages the stages have what is newer.
    kept: Vec<Layer>,
    checkpoint: Checkpoint,
    /// What the head gave for the forwards whose backward is to come.
    outputs: VecDeque<u64>,
    /// Number of the batch's data.
    pub(crate) data: u64,
    lanes: Lanes,
    wanted: Wanted,
    pub(crate) epoch: u64,
    pub(crate) busy_until: Time,
    pub(crate) wakes_at: Option<Time>,
    pub(crate) dies_in: Option<(u32, Duration)>,
    /// Batches that stepped, and the last one's end.
    pub(crate) stepped: u64,
    pub(crate) batch_ends: Vec<Time>,
    /// Steps missed and revisions lost in lives that are over.
    missed_before: u64,
    lost_before: u64,
    /// Whether what is learned may differ from what one learner learns: something was lost, and counted.
    pub(crate) has_lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Wanted {
    Nothing,
    Batch,
    Evaluation,
    Copy(StateKind),
    Correction(u64),
}

/// The learning rate of a batch's data.
fn learning_rate(data: u64) -> f64 {
    1.0 / (data + 1) as f64
}

/// Each microbatch's lane, and whether it is the first there.
pub(crate) fn places(lanes: Lanes) -> Vec<(u8, bool)> {
    (0..lanes.microbatches()).map(|microbatch| lanes.place(microbatch)).collect()
}

/// All layers of the model's beginning.
pub(crate) fn initial(plan: &TeamPlan) -> Vec<Layer> {
    (0..plan.layers as usize + 2).map(Layer::initial).collect()
}

/// Where a stage's layers are among all, the ends counted.
pub(crate) fn range_of(cut: &Cut, stage: usize) -> std::ops::Range<usize> {
    let of = &cut.stages[stage];
    let first = if of.embeds { 0 } else { of.layers.first as usize + 1 };
    first..of.layers.end as usize + 1 + usize::from(of.predicts)
}

pub(crate) fn model_costs(plan: &TeamPlan) -> ModelCosts {
    let layer = LayerCosts { operations: 3.0, bytes: LAYER_BYTES, moved_bytes: 256, ..LayerCosts::default() };
    // The head computes as a layer does; what the ends take is not counted.
    let head = LayerCosts { bytes: 0, ..layer };
    let embedding = LayerCosts { operations: EMBEDDING * layer.operations, ..head };
    ModelCosts {
        layers: plan.layers,
        layer,
        embedding,
        head,
        stream_bytes: STREAM_BYTES,
        stage_bytes: 0,
        batch_tokens: 1000,
        borders: Vec::new(),
    }
}

pub(crate) fn captain_place(plan: &TeamPlan) -> Place {
    let rate = plan.captain.rate;
    Place {
        memory_bytes: u64::from(plan.captain.memory_layers) * LAYER_BYTES,
        operations_per_second: plan.captain.speed,
        link: Link { up: rate, down: rate, latency: 0.0 },
    }
}

impl Owner {
    pub(crate) fn new(plan: &TeamPlan) -> Owner {
        let kept = initial(plan);
        Owner {
            machine: None,
            life: 0,
            stages: Vec::new(),
            checkpoint: Checkpoint { layers: kept.clone(), data: 0, learned: 0 },
            kept,
            outputs: VecDeque::new(),
            data: 0,
            lanes: Lanes::one(1),
            wanted: Wanted::Nothing,
            epoch: 0,
            busy_until: Time::ZERO,
            wakes_at: None,
            dies_in: None,
            stepped: 0,
            batch_ends: Vec::new(),
            missed_before: 0,
            lost_before: 0,
            has_lost: false,
        }
    }

    /// The process begins, from its checkpoint.
    pub(crate) fn begin(&mut self, now: Time, plan: &TeamPlan, ledger: &mut Ledger) {
        self.life += 1;
        let lanes = if plan.microbatches % 2 == 1 && plan.microbatches > 1 {
            Lanes { first: plan.microbatches - plan.microbatches / 2, second: plan.microbatches / 2 }
        } else {
            Lanes::one(plan.microbatches)
        };
        let config = CaptainConfig {
            epoch: u64::from(self.life) << 32,
            model: model_costs(plan),
            captain: captain_place(plan),
            wire: Wire::F32,
            width: 2,
            rows_max: 2,
            lanes,
            tensors_per_layer: 1,
            tensors_of_ends: (1, 1),
            state_bytes_per_layer: 16,
            run: "a run".to_owned(),
            copies_after_steps: plan.copies_after_steps,
            helpers_wanted: plan.helpers.len().max(1),
            timeouts: TeamTimeouts {
                initial: Duration::from_secs(4),
                floor: Duration::from_millis(200),
                loading: Duration::from_secs(20),
                grace: Duration::from_secs(2),
                gathering: Duration::from_secs(3),
            },
        };
        self.machine = Some(Captain::new(config, now));
        let Checkpoint { layers, data, learned } = self.checkpoint.clone();
        ledger.learned.truncate(learned);
        ledger.unfit.clear();
        (self.kept, self.data, self.lanes, self.wanted) = (layers, data, lanes, Wanted::Nothing);
        (self.stages, self.wakes_at, self.busy_until) = (Vec::new(), None, now);
        self.outputs.clear();
    }

    pub(crate) fn die(&mut self, now: Time, ledger: &mut Ledger) {
        if let Some(machine) = self.machine.take() {
            let counts = machine.status(now).counts;
            self.missed_before += counts.steps_missed;
            self.lost_before += counts.revisions_lost.max(counts.moments_lost);
        }
        ledger.leave_under_way();
        self.life += 1;
        (self.stages, self.dies_in) = (Vec::new(), None);
    }

    /// Steps that stages missed and revisions that layers went back, in all lives.
    pub(crate) fn missed_and_lost(&self, now: Time) -> (u64, u64) {
        let counts = self.machine.as_ref().map(|machine| machine.status(now).counts).unwrap_or_default();
        (self.missed_before + counts.steps_missed, self.lost_before + counts.revisions_lost.max(counts.moments_lost))
    }

    /// The states of all layers of its own, and what it keeps of the others.
    pub(crate) fn layers(&self) -> Vec<Layer> {
        let mut layers = self.kept.clone();
        for (_, stage) in &self.stages {
            layers[stage.range()].copy_from_slice(&stage.layers);
        }
        layers
    }

    /// What it wants next, where it wants nothing yet.
    pub(crate) fn want(&mut self, plan: &TeamPlan, dice: &mut Generator) -> Option<CaptainEvent> {
        if self.wanted != Wanted::Nothing || self.machine.is_none() {
            return None;
        }
        let is_other = dice.random_range(0..100) < plan.others_percent;
        let choice = if is_other { dice.random_range(0..3) } else { 3 };
        self.wanted = match choice {
            0 => Wanted::Evaluation,
            1 => Wanted::Copy(if dice.random() { StateKind::Training } else { StateKind::Parameters }),
            2 if self.epoch > 0 => Wanted::Correction(dice.random()),
            _ => Wanted::Batch,
        };
        Some(match self.wanted {
            Wanted::Evaluation => CaptainEvent::EvaluationWanted { microbatches: plan.microbatches + 3 },
            Wanted::Copy(kind) => CaptainEvent::CopyWanted { kind },
            Wanted::Correction(value) => {
                let helpers = self.machine.as_ref().and_then(|machine| machine.status(Time::ZERO).cut);
                let helpers = helpers.map_or(0, |cut| cut.of_helpers().count());
                let parts = vec![stream(value, 1).payload; helpers];
                let (kind, is_kept) = (StateKind::Correction, plan.copies_after_steps);
                CaptainEvent::WriteWanted { kind, parts, epoch: self.epoch, is_kept }
            }
            Wanted::Batch | Wanted::Nothing => CaptainEvent::BatchWanted { lanes: self.lanes },
        })
    }

    /// Lanes of the batch under way.
    pub(crate) fn places(&self, is_evaluation: bool, plan: &TeamPlan) -> Vec<(u8, bool)> {
        if is_evaluation { places(Lanes::one(plan.microbatches + 3)) } else { places(self.lanes) }
    }

    /// Carries out an order to whoever computes. Returns the reply and how long the processor takes, in layers of a forward.
    pub(crate) fn carry_out(
        &mut self,
        order: CaptainEffect,
        dice: &mut Generator,
        plan: &TeamPlan,
        ledger: &mut Ledger,
    ) -> Option<(CaptainEvent, f64)> {
        Some(match order {
            CaptainEffect::Load { epoch, cut } => {
                self.load(&cut);
                self.epoch = epoch;
                (CaptainEvent::Loaded { epoch, result: Ok(()) }, 1.0)
            }
            CaptainEffect::Compute { work, input } => self.compute(work, input, ledger),
            CaptainEffect::Sum { epoch, batch } => {
                self.stages.iter().for_each(|(_, stage)| ledger.check_sums("the captain", batch, stage));
                let squares = self.stages.iter().map(|(_, stage)| stage.squares()).collect();
                (CaptainEvent::Summed { epoch, batch, squares }, 0.0)
            }
            CaptainEffect::Gathered { batch, squares } => {
                let discards = plan.others_percent > 0 && dice.random_range(0..20) == 0;
                let gradient_norm = super::arithmetic::norm(squares.into_iter());
                let factors = StepFactors { gradient_norm, learning_rate: learning_rate(self.data), members: 1.0 };
                let step = CaptainEvent::StepDecided { batch, factors };
                (if discards { CaptainEvent::DiscardDecided { batch } } else { step }, 0.0)
            }
            CaptainEffect::Step { epoch, batch, factors } => {
                let number = super::arithmetic::factors(factors.gradient_norm, factors.learning_rate, factors.members);
                for (_, stage) in &mut self.stages {
                    let before = stage.layers.clone();
                    stage.step(number);
                    ledger.check_step("the captain", batch, &before, stage, factors);
                }
                (CaptainEvent::Stepped { epoch, batch }, 0.5)
            }
            CaptainEffect::Discard { batch, .. } => {
                self.outputs.clear();
                for (_, stage) in &mut self.stages {
                    stage.discard();
                    ledger.check_discard("the captain", batch, stage);
                }
                return None;
            }
            CaptainEffect::ReadOut { request, layers, .. } => {
                let payload = Some(state_bytes(&self.layers()[numbers(layers)]));
                (CaptainEvent::ReadOut { request, payload }, 0.1)
            }
            CaptainEffect::Keep { number, helper, layers, kind, payload, .. } => {
                let is_fit = self.keep(layers, kind, &payload);
                if !is_fit {
                    ledger.unfit.insert(helper);
                }
                let is_taken = is_fit || plan.carelessness == Some(Carelessness::TakesUnfitStates);
                let result = if is_taken { Ok(()) } else { Err("no state of these layers".to_owned()) };
                (CaptainEvent::Kept { number, result }, 0.05)
            }
            CaptainEffect::Send { .. }
            | CaptainEffect::Disconnect { .. }
            | CaptainEffect::Dismiss { .. }
            | CaptainEffect::BatchEnded { .. }
            | CaptainEffect::CopyEnded { .. }
            | CaptainEffect::WriteEnded { .. }
            | CaptainEffect::Notice(_) => return None,
        })
    }

    fn load(&mut self, cut: &Cut) {
        self.kept = self.layers();
        let stage = |number| {
            let range = range_of(cut, number);
            (number, Stage::new(range.start, self.kept[range].to_vec(), None))
        };
        self.stages = cut.of_captain().map(stage).collect();
        self.outputs.clear();
    }

    /// Whether it could be read.
    fn keep(&mut self, layers: LayerRange, kind: StateKind, payload: &Payload) -> bool {
        let Some(states) = states_of(payload, layers.len() as usize) else { return false };
        for (kept, state) in self.kept[numbers(layers)].iter_mut().zip(states) {
            let moments = if kind == StateKind::Training { state.moments } else { kept.moments };
            *kept = Layer { parameters: state.parameters, moments };
        }
        true
    }

    fn compute(
        &mut self,
        work: Work,
        input: Option<murmur_protocol::team::Stream>,
        ledger: &mut Ledger,
    ) -> (CaptainEvent, f64) {
        let last = self.stages.len() - 1;
        let place =
            self.stages.iter().position(|(number, _)| *number == work.stage as usize).expect("a stage of its own");
        let (embeds, predicts) = (place == 0, place == last);
        let stage = &mut self.stages[place].1;
        let (data, target) = example(self.data, work.microbatch);
        let rows = input.as_ref().map_or(1 + work.microbatch % 2, |input| input.rows);
        let output = match work.kind {
            WorkKind::Forward | WorkKind::Evaluate => {
                let input = input.as_ref().map_or(data, value);
                ledger.check_input("the captain", &work, stage.first, input);
                let output = stage.forward(work.kind, input);
                if predicts && work.kind == WorkKind::Forward {
                    self.outputs.push_back(output);
                }
                (!predicts).then_some(output)
            }
            WorkKind::Backward => {
                let to_output = match &input {
                    Some(input) => value(input),
                    None => of_loss(self.outputs.pop_front().expect("a forward waits"), target),
                };
                ledger.check_input("the captain", &work, stage.range().end, to_output);
                let to_input = stage.backward(to_output, work.lane, work.is_first).expect("a forward waits");
                (!embeds).then_some(to_input)
            }
        };
        let outcome = Outcome::Output(output.map(|output| stream(output, rows)));
        let layers = stage.layers.len() as f64 - if embeds { 1.0 - EMBEDDING } else { 0.0 };
        let seconds = seconds_of(work.kind, layers, 1.0);
        (CaptainEvent::Computed { work, outcome, busy: Duration::ZERO }, seconds)
    }

    /// What it wanted has ended.
    pub(crate) fn on_ended(&mut self, now: Time, effect: &CaptainEffect, plan: &TeamPlan, ledger: &mut Ledger) {
        match effect {
            CaptainEffect::BatchEnded { batch, outcome } => {
                ledger.end(now, *batch, *outcome);
                if *outcome == BatchOutcome::Stepped {
                    let (data, lanes) = (self.data, places(self.lanes));
                    let learned = Learned::Step { data, lanes, learning_rate: learning_rate(self.data) };
                    ledger.learned.push(learned);
                    self.stepped += 1;
                    self.batch_ends.push(now);
                }
                let again = matches!(outcome, BatchOutcome::Dropped(reason) if *reason != DropReason::NotFinite);
                if self.wanted == Wanted::Batch && !again {
                    self.data += 1;
                }
            }
            CaptainEffect::WriteEnded { outcome } => {
                let Wanted::Correction(value) = self.wanted else { return };
                if *outcome != WriteOutcome::Nothing {
                    self.correct(value, plan.copies_after_steps);
                    ledger.learned.push(Learned::Correction(value));
                    self.has_lost |= *outcome == WriteOutcome::Partial && !plan.copies_after_steps;
                }
            }
            CaptainEffect::CopyEnded { .. } => {}
            _ => return,
        }
        let is_copied = matches!(effect, CaptainEffect::CopyEnded { is_complete: true });
        if plan.copies_after_steps || (is_copied && self.wanted == Wanted::Copy(StateKind::Training)) {
            self.checkpoint = Checkpoint { layers: self.layers(), data: self.data, learned: ledger.learned.len() };
        }
        self.wanted = Wanted::Nothing;
    }

    fn correct(&mut self, value: u64, is_kept: bool) {
        let own: Vec<std::ops::Range<usize>> = self.stages.iter().map(|(_, stage)| stage.range()).collect();
        for (_, stage) in &mut self.stages {
            stage.layers.iter_mut().for_each(|layer| *layer = layer.corrected(value));
        }
        let others = (0..self.kept.len()).filter(|layer| is_kept && !own.iter().any(|range| range.contains(layer)));
        others.for_each(|layer| self.kept[layer] = self.kept[layer].corrected(value));
    }
}

/// Where layers are among all, the ends counted.
fn numbers(layers: LayerRange) -> std::ops::Range<usize> {
    layers.first as usize + 1..layers.end as usize + 1
}
