//! One host's trainer: it steps by the clock and serves its node at step boundaries.
//!
//! What learns is a [`Learner`]: a [quadratic](quadratic) for large swarms, or the daemon's own engine with a
//! [transformer](transformer). Orders, reports and the accounts that checks need are kept here, once for both.

mod movement;
mod objective;
mod quadratic;
mod shared;
mod spec;
mod transformer;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use murmur_protocol::{
    Correction, Ending, Event, Holding, Part, Payload, RequestId, Selection, Snapshot, TrainingReport, Vector,
};
use murmur_training::engine::Taken;
use murmur_training::{EngineState, TrainingError};

pub use objective::Objective;
pub(crate) use objective::mean;
pub use spec::{QuadraticSpec, Sharing, Text, TrainerSpec, TrainerSpecError, TransformerSpec};

use crate::scenario::{HostIndex, NodePlan, Scenario};
use movement::Movement;
use quadratic::Quadratic;
use shared::Team;
use transformer::Transformer;

/// A model and what trains it, always at a step boundary.
pub(crate) trait Learner: fmt::Debug + Send {
    /// Takes a step at `progress` steps of the swarm; returns what it adds to [`TrainingReport::travel`], `None` where the
    /// step was left out.
    fn learn(&mut self, progress: f64) -> Option<f64>;
    /// θ.
    fn values(&self) -> Cow<'_, [f32]>;
    /// A copy of what is selected, and how far own training has moved the model since the last one.
    fn snapshot(&mut self, selection: Selection) -> Result<Taken, TrainingError>;
    /// Adds a correction: to θ, and to φ where there is one, or to u.
    fn apply(&mut self, part: Part, correction: &Correction) -> Result<(), TrainingError>;
    /// Takes over a peer's state.
    fn load_state(&mut self, chunks: &[Payload]) -> Result<(), TrainingError>;
    /// The outer step; nothing without an outer momentum.
    fn advance_outer(&mut self) -> Result<(), TrainingError>;
    /// States are of this of the model from now on.
    fn hold(&mut self, held: Vec<Range<usize>>);
    /// The model is averaged with so many members, itself counted. Nothing to a learner without second moments.
    fn set_members(&mut self, _members: f64) {}
    /// In a synchronous run: the gradient of the next batch.
    fn gradient(&mut self) -> Vec<f32>;
    /// In a synchronous run: a step with the mean gradient of so many members, from `progress` steps of the swarm on.
    fn step_with_sum(&mut self, sum: &Snapshot, members: u32, progress: f64);
    /// In a synchronous run: takes over another member's replica.
    fn load_replica(&mut self, replica: &Payload) -> Result<(), TrainingError>;
    /// All that it goes on from after a restart; `None` where what a joiner copies is all.
    fn save(&mut self) -> Option<Box<EngineState>> {
        None
    }
    /// Goes on from what was saved.
    fn restore(&mut self, _state: EngineState) -> Result<(), TrainingError> {
        Ok(())
    }
    /// The founder has ordered the final decay of the learning rate.
    fn finish(&mut self, ending: Ending);
    /// Whether the swarm's progress has reached the length of the run.
    fn is_run_over(&self, progress: f64) -> bool;
}

/// What of a model is held, one part after the other: a state as peers copy it.
fn gathered(model: &[f32], held: &[Range<usize>]) -> Vec<f32> {
    held.iter().flat_map(|range| &model[range.clone()]).copied().collect()
}

/// Takes such a state over.
fn scatter(chunks: &[Payload], held: &[Range<usize>], model: &mut [f32]) -> Result<(), TrainingError> {
    let length = held.iter().map(Range::len).sum();
    let state = Snapshot::from_chunks(chunks, length).ok_or(TrainingError::NotFiniteValues("a peer's state"))?;
    let mut rest = state.values();
    for range in held {
        let (part, others) = rest.split_at(range.len());
        model[range.clone()].copy_from_slice(part);
        rest = others;
    }
    Ok(())
}

/// A checkpoint.
#[derive(Clone)]
pub(crate) struct Saved {
    learned: Learned,
    held: Vec<Range<usize>>,
    pub(crate) steps: u64,
    pub(crate) progress: f64,
}

impl fmt::Debug for Saved {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Saved({} steps)", self.steps)
    }
}

/// What a checkpoint has of the learner.
#[derive(Clone)]
enum Learned {
    /// As for a joiner, of what was held then: a quadratic has nothing else but an outer momentum, which begins anew.
    State(Snapshot),
    /// As a daemon's.
    Engine(Box<EngineState>),
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
        chunks: Vec<Payload>,
        /// Of what of the model; where the trainer holds something else by then, it is refused.
        held: Vec<Range<usize>>,
        progress: f64,
    },
    AdvanceOuter,
    /// Whatever was ordered, it fails.
    Refused(RequestId),
}

impl Order {
    /// Under which number a reply is awaited.
    pub(crate) fn request(&self) -> Option<RequestId> {
        match self {
            Order::Snapshot(request, _)
            | Order::Correction { request, .. }
            | Order::State { request, .. }
            | Order::Refused(request) => Some(*request),
            Order::AdvanceOuter => None,
        }
    }
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
    learner: Box<dyn Learner>,
    /// Where other hosts work with it as well.
    team: Option<Team>,
    held: Vec<Range<usize>>,
    tokens_per_second: f64,
    orders: Vec<Order>,
    first_values: Vec<f32>,
    movement: Movement,
    pub(crate) has_model: bool,
    pub(crate) is_training: bool,
    pub(crate) steps: u64,
    /// As of the last step that was reported.
    reported_steps: u64,
    pub(crate) progress: f64,
    /// As the founder has ordered.
    ending: Option<Ending>,
    travel: f64,
}

impl Trainer {
    /// The trainer of one life. `has_model`: it may train the run's first model, else it is to copy one.
    ///
    /// # Panics
    /// When a transformer's specification does not pass [`TransformerSpec::check`].
    pub(crate) fn new(scenario: &Scenario, host: HostIndex, (seed, life_seed): (u64, u64), has_model: bool) -> Trainer {
        let (gossip, holding) = (&scenario.gossip, scenario.nodes[host].holding);
        let fragments = scenario.fragments();
        let held: Vec<Range<usize>> = fragments.held(holding).collect();
        let is_captain = scenario.nodes.iter().any(|plan| plan.helps == Some(host));
        // A team's learner has the whole model.
        let holding = if is_captain { Holding::ALL } else { holding };
        let learner: Box<dyn Learner> = match &scenario.trainer {
            TrainerSpec::Quadratic(spec) => {
                Box::new(Quadratic::new(spec, gossip, (fragments, holding), host, (seed, life_seed)))
            }
            TrainerSpec::Transformer(spec) => {
                Box::new(Transformer::new(spec, gossip, (host, scenario.nodes.len()), seed))
            }
        };
        if !is_captain {
            return Trainer::with(learner, None, held, &scenario.nodes[host], has_model);
        }
        let team = Team::new(learner);
        let learner = Box::new(team.part(true, held.clone()));
        Trainer::with(learner, Some(team), held, &scenario.nodes[host], has_model)
    }

    /// The trainer of a host that helps a captain, which lives.
    pub(crate) fn of_helper(captain: &Trainer, scenario: &Scenario, host: HostIndex) -> Trainer {
        let held: Vec<Range<usize>> = scenario.fragments().held(scenario.nodes[host].holding).collect();
        let team = captain.team.as_ref().expect("it has a helper");
        let learner = Box::new(team.part(false, held.clone()));
        Trainer::with(learner, None, held, &scenario.nodes[host], true)
    }

    fn with(
        learner: Box<dyn Learner>,
        team: Option<Team>,
        held: Vec<Range<usize>>,
        plan: &NodePlan,
        has_model: bool,
    ) -> Trainer {
        let first_values = learner.values().into_owned();
        Trainer {
            learner,
            team,
            held,
            tokens_per_second: plan.tokens_per_second,
            orders: Vec::new(),
            movement: Movement::new(&first_values),
            first_values,
            has_model,
            is_training: false,
            steps: 0,
            reported_steps: 0,
            progress: 0.0,
            ending: None,
            travel: 0.0,
        }
    }

    pub(crate) fn order(&mut self, order: Order) {
        self.orders.push(order);
    }

    /// What a restarted host resumes from.
    pub(crate) fn save(&mut self) -> Saved {
        let learned = match self.learner.save() {
            Some(state) => Learned::Engine(state),
            None => Learned::State(self.learner.snapshot(Selection::State).expect("a copy in memory").values),
        };
        Saved { learned, held: self.held.clone(), steps: self.steps, progress: self.progress }
    }

    /// Goes on from what an earlier life saved. What that one did not hold is as in the first model.
    pub(crate) fn resume(&mut self, saved: &Saved) {
        let held = std::mem::replace(&mut self.held, saved.held.clone());
        self.learner.hold(saved.held.clone());
        let accepted = match &saved.learned {
            Learned::State(state) => self.load_state(&[state.to_payload()], saved.progress),
            Learned::Engine(state) => {
                let restored = self.learner.restore((**state).clone());
                self.has_taken(restored, saved.progress)
            }
        };
        self.hold(held);
        assert!(accepted, "what was saved fits the same scenario");
        (self.steps, self.reported_steps) = (saved.steps, saved.steps);
    }

    /// The model that this life began with, own or copied.
    pub(crate) fn first_values(&self) -> &[f32] {
        &self.first_values
    }

    /// The model now.
    pub(crate) fn values(&self) -> Cow<'_, [f32]> {
        self.learner.values()
    }

    /// What of the model it holds.
    pub(crate) fn held(&self) -> &[Range<usize>] {
        &self.held
    }

    /// It holds this of the model from now on, with the values that are there.
    pub(crate) fn hold(&mut self, held: Vec<Range<usize>>) {
        self.learner.hold(held.clone());
        self.held = held;
    }

    /// It has the first model of this life again, in what it holds. That counts as its own doing.
    pub(crate) fn go_back(&mut self) {
        let state = Snapshot::from(gathered(&self.first_values, &self.held)).to_payload();
        self.learner.load_state(&[state]).expect("it fits what is held");
    }

    /// The sum of all that own training did to the model.
    pub(crate) fn local_movement(&self) -> Vec<f64> {
        self.movement.total(&self.values())
    }

    pub(crate) fn report(&self) -> TrainingReport {
        TrainingReport {
            steps: self.reported_steps,
            progress: self.progress,
            tokens_per_second: self.tokens_per_second,
            travel: self.travel,
            local_progress: 0.0,
        }
    }

    /// The model is averaged with so many members, this one counted.
    pub(crate) fn set_members(&mut self, members: f64) {
        self.learner.set_members(members);
    }

    /// The founder has ordered the end of the run.
    pub(crate) fn finish(&mut self, ending: Ending) {
        self.learner.finish(ending);
        self.ending = Some(ending);
    }

    /// Whether the swarm's progress has reached the end of the run, which replaces its length once it is ordered.
    pub(crate) fn is_run_over(&self) -> bool {
        self.is_finished() || (self.ending.is_none() && self.learner.is_run_over(self.progress))
    }

    /// Whether it has reached the end that the founder has ordered.
    pub(crate) fn is_finished(&self) -> bool {
        self.ending.is_some_and(|ending| self.progress >= ending.until)
    }

    /// A step; it moves the model unless `learning` is over, and shows in reports unless `reporting` is.
    pub(crate) fn step(&mut self, learning: bool, reporting: bool) {
        let travel = if learning { self.learner.learn(self.progress) } else { Some(0.0) };
        if let Some(travel) = travel {
            self.steps += 1;
            self.progress += 1.0;
            self.travel += travel;
        }
        if reporting {
            self.reported_steps = self.steps;
        }
    }

    /// What it contributes to an all-reduce.
    pub(crate) fn contribution(&mut self) -> Vec<f32> {
        self.learner.gradient()
    }

    /// Steps with the sum of so many contributions, to this progress of the swarm.
    pub(crate) fn take_up(&mut self, sum: &Snapshot, members: u32, progress: f64) {
        self.learner.step_with_sum(sum, members, (progress - 1.0).max(0.0));
        (self.steps, self.progress) = (self.steps + 1, progress);
        self.reported_steps = self.steps;
    }

    /// Takes over another member's replica; `false` where it does not fit.
    pub(crate) fn load_replica(&mut self, replica: &Payload, progress: f64) -> bool {
        let accepted = self.learner.load_replica(replica).is_ok();
        if accepted {
            (self.progress, self.has_model) = (progress, true);
        }
        accepted
    }

    /// Carries out all orders, oldest first.
    pub(crate) fn boundary(&mut self) -> Vec<Done> {
        let orders = std::mem::take(&mut self.orders);
        orders.into_iter().map(|order| self.carry_out(order)).collect()
    }

    fn carry_out(&mut self, order: Order) -> Done {
        let mut landed = None;
        let reply = match order {
            Order::Snapshot(request, selection) => match self.learner.snapshot(selection) {
                Ok(Taken { values: snapshot, local_progress }) => {
                    let report = TrainingReport { local_progress, ..self.report() };
                    Some(Event::SnapshotTaken { request, snapshot, report })
                }
                Err(_) => Some(Event::RequestFailed { request }),
            },
            Order::Correction { request, part, correction, progress_shift, merge } => {
                if self.apply(part, &correction).is_err() {
                    return Done { reply: Some(Event::RequestFailed { request }), landed };
                }
                // A node for which the run is over stays at its end: others that are not there yet come to it.
                let least = if self.is_finished() { self.ending.map_or(0.0, |ending| ending.until) } else { 0.0 };
                self.progress = (self.progress + progress_shift).max(least);
                landed = merge;
                Some(Event::CorrectionApplied { request, report: self.report() })
            }
            Order::State { request, chunks, held, progress } => {
                let accepted = held == self.held && self.load_state(&chunks, progress);
                Some(Event::StateLoaded { request, accepted, report: self.report() })
            }
            Order::Refused(request) => Some(Event::RequestFailed { request }),
            Order::AdvanceOuter => {
                // On the CPU it cannot fail; the daemon would go on without it.
                let _ = self.learner.advance_outer();
                None
            }
        };
        Done { reply, landed }
    }

    fn load_state(&mut self, chunks: &[Payload], progress: f64) -> bool {
        let loaded = self.learner.load_state(chunks);
        self.has_taken(loaded, progress)
    }

    /// The learner has taken up a model, or could not.
    fn has_taken(&mut self, taken: Result<(), TrainingError>, progress: f64) -> bool {
        if taken.is_err() {
            return false;
        }
        // A model that is copied anew after steps of its own counts as the node's own doing.
        if !self.has_model || self.steps == 0 {
            self.first_values = self.values().into_owned();
            self.movement = Movement::new(&self.first_values);
        }
        self.progress = progress;
        self.has_model = true;
        true
    }

    fn apply(&mut self, part: Part, correction: &Correction) -> Result<(), TrainingError> {
        if part.vector == Vector::Momentum {
            return self.learner.apply(part, correction);
        }
        let before = self.values().into_owned();
        self.learner.apply(part, correction)?;
        self.movement.leave_out(&before, &self.learner.values());
        Ok(())
    }
}
