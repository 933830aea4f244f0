//! A simulated helper: its machine, its stage, and the one processor that computes in turn what it is ordered.

use std::collections::BTreeSet;
use std::time::Duration;

use murmur_protocol::Time;
use murmur_protocol::team::{
    Helper, HelperConfig, HelperEffect, HelperEvent, Loading, Offer, Outcome, StateKind, WorkKind,
};

use super::arithmetic::Layer;
use super::ledger::Ledger;
use super::plan::{MachinePlan, TeamPlan};
use super::stage::{Mistake, Stage, state_bytes, states_of, stream, unfit, value};

/// How long a helper keeps its stage: shorter than the daemon's, so that a run sees the end of it.
const KEPT_FOR: Duration = Duration::from_secs(30);

/// Bytes of a layer in memory, whatever they are.
pub(crate) const LAYER_BYTES: u64 = 1000;

/// What the embedding computes, in layers: it copies rows of a table.
pub(crate) const EMBEDDING: f64 = 0.01;

/// A helper's process and what it has on disk.
#[derive(Debug)]
pub(crate) struct Lender {
    pub(crate) name: String,
    pub(crate) machine: Option<Helper>,
    /// Grows whenever the process begins anew.
    pub(crate) life: u32,
    pub(crate) stage: Option<Stage>,
    in_flight: u32,
    waiting: u32,
    /// Layers whose frozen base it has on disk.
    base: BTreeSet<u32>,
    pub(crate) busy_until: Time,
    pub(crate) paused_until: Time,
    /// How many times as long as planned it computes.
    pub(crate) slow: f64,
    pub(crate) wakes_at: Option<Time>,
    /// Events until it dies, and how long it stays away.
    pub(crate) dies_in: Option<(u32, Duration)>,
    pub(crate) gives_not_finite: bool,
    /// How long it stays away after it left.
    pub(crate) leaves_for: Duration,
    pub(crate) mistake: Option<Mistake>,
}

/// What a stage does takes so long, in layers of a forward.
fn cost(kind: WorkKind) -> f64 {
    match kind {
        WorkKind::Forward | WorkKind::Evaluate => 1.0,
        WorkKind::Backward => 2.0,
    }
}

/// Seconds of a piece of work.
pub(crate) fn seconds_of(kind: WorkKind, layers: f64, speed: f64) -> f64 {
    cost(kind) * layers / speed
}

pub(crate) fn offer_of(machine: &MachinePlan) -> Offer {
    Offer {
        memory_bytes: u64::from(machine.memory_layers) * LAYER_BYTES,
        // An operation is the forward or half of the backward of a layer.
        operations_per_second: machine.speed,
        up_bytes_per_second: machine.rate as u64,
        down_bytes_per_second: machine.rate as u64,
        held: None,
    }
}

impl Lender {
    pub(crate) fn new(number: usize) -> Lender {
        Lender {
            name: format!("helper {number}"),
            machine: None,
            life: 0,
            stage: None,
            in_flight: 0,
            waiting: 0,
            base: BTreeSet::new(),
            busy_until: Time::ZERO,
            paused_until: Time::ZERO,
            slow: 1.0,
            wakes_at: None,
            dies_in: None,
            gives_not_finite: false,
            leaves_for: Duration::ZERO,
            mistake: None,
        }
    }

    /// The process begins, with nothing in memory.
    pub(crate) fn begin(&mut self, now: Time, machine: &MachinePlan) {
        self.machine = Some(Helper::new(HelperConfig { offer: offer_of(machine), kept_for: KEPT_FOR }));
        self.life += 1;
        (self.stage, self.wakes_at, self.busy_until) = (None, None, now);
    }

    pub(crate) fn die(&mut self) {
        (self.machine, self.stage, self.dies_in) = (None, None, None);
        self.life += 1;
    }

    /// Whether its queues are as long as they may be.
    pub(crate) fn check(&self, ledger: &mut Ledger) {
        if let Some(machine) = &self.machine {
            let (held, waiting) = machine.held_and_waiting();
            ledger.check_bound(&self.name, "microbatches are held", held, self.in_flight as usize);
            ledger.check_bound(&self.name, "streams wait", waiting, 2 * self.waiting as usize);
        }
    }

    /// Carries out an order to whoever computes. Returns the reply and how long the processor takes, in layers of a forward.
    pub(crate) fn carry_out(
        &mut self,
        order: HelperEffect,
        plan: &TeamPlan,
        ledger: &mut Ledger,
    ) -> Option<(HelperEvent, f64)> {
        Some(match order {
            HelperEffect::Load { assign } => {
                (self.in_flight, self.waiting) = (assign.in_flight, assign.waiting);
                let (first, layers) = (assign.layers.first as usize + 1, assign.layers.len() as usize);
                let is_same = self.stage.as_ref().is_some_and(|stage| stage.range() == (first..first + layers));
                if !(assign.keeps_state && is_same) {
                    let nothing = vec![Layer { parameters: 0, moments: 0 }; layers];
                    self.stage = Some(Stage::new(first, nothing, self.mistake));
                }
                let has_base = !plan.has_base || assign.layers.numbers().all(|layer| self.base.contains(&layer));
                self.base.extend(assign.layers.numbers());
                let loading = if has_base { Loading::Complete } else { Loading::BaseMissing };
                (HelperEvent::Loaded { epoch: assign.epoch, result: Ok(loading) }, layers as f64)
            }
            HelperEffect::Unload => {
                self.stage = None;
                return None;
            }
            // A team is simulated without its swarm.
            HelperEffect::Average { .. } => return None,
            HelperEffect::Compute { work, input } => {
                let Some(stage) = &mut self.stage else { return None };
                let (layers, value) = (stage.layers.len(), value(&input));
                let output = match work.kind {
                    WorkKind::Forward | WorkKind::Evaluate => {
                        ledger.check_input(&self.name, &work, stage.first, value);
                        Some(stage.forward(work.kind, value))
                    }
                    WorkKind::Backward => {
                        ledger.check_input(&self.name, &work, stage.first + layers, value);
                        stage.backward(value, work.lane, work.is_first)
                    }
                };
                ledger.check_held(&self.name, stage, &work, self.in_flight);
                let outcome = match output {
                    _ if std::mem::take(&mut self.gives_not_finite) => Outcome::NotFinite,
                    Some(output) => Outcome::Output(Some(stream(output, input.rows))),
                    None => Outcome::Failed("no forward waits".to_owned()),
                };
                let seconds = seconds_of(work.kind, layers as f64, 1.0);
                (HelperEvent::Computed { work, outcome, busy: Duration::ZERO }, seconds)
            }
            HelperEffect::Sum { epoch, batch } => {
                let stage = self.stage.as_ref()?;
                ledger.check_sums(&self.name, batch, stage);
                (HelperEvent::Summed { epoch, batch, squares: stage.squares() }, 0.0)
            }
            HelperEffect::Step { epoch, batch, factors } => {
                let stage = self.stage.as_mut()?;
                let before = stage.layers.clone();
                stage.step(super::arithmetic::factors(factors.gradient_norm, factors.learning_rate, factors.members));
                ledger.check_step(&self.name, batch, &before, stage, factors);
                (HelperEvent::Stepped { epoch, batch }, 0.5)
            }
            HelperEffect::Discard { batch, .. } => {
                let stage = self.stage.as_mut()?;
                stage.discard();
                ledger.check_discard(&self.name, batch, stage);
                return None;
            }
            HelperEffect::Copy { request, kind, layers } => {
                let stage = self.stage.as_ref()?;
                debug_assert!(matches!(kind, StateKind::Training | StateKind::Parameters));
                let state = state_bytes(&stage.layers[stage.places(layers)]);
                let lies = self.mistake == Some(Mistake::SendsUnfitStates);
                let payload = if lies { unfit(&state, request) } else { state };
                (HelperEvent::Copied { request, payload }, 0.1)
            }
            HelperEffect::Write { request, kind, layers, payload } => {
                let stage = self.stage.as_mut()?;
                let result = match (kind, states_of(&payload, layers.len() as usize)) {
                    (StateKind::Base, _) => Ok(()),
                    (StateKind::Correction, _) => {
                        let correction = value(&murmur_protocol::team::Stream { rows: 1, payload });
                        stage.layers.iter_mut().for_each(|layer| *layer = layer.corrected(correction));
                        Ok(())
                    }
                    (StateKind::Training | StateKind::Parameters, Some(states)) => {
                        stage.replace(layers, states);
                        Ok(())
                    }
                    (StateKind::Training | StateKind::Parameters, None) => Err("of another length".to_owned()),
                };
                (HelperEvent::Written { request, result }, 0.1)
            }
            HelperEffect::Send { .. } | HelperEffect::Notice(_) => return None,
        })
    }
}
