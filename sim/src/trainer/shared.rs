//! One learner of several hosts: a team's, whose machines hold some of the model each.
//!
//! The captain's trainer takes the steps; a helper's counts them. Each copies and corrects what its host holds.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use murmur_protocol::{Correction, Ending, Part, Payload, Selection, Snapshot};
use murmur_training::TrainingError;
use murmur_training::engine::Taken;

use super::{Learner, gathered, scatter};

/// What a team learns with.
#[derive(Clone, Debug)]
pub(crate) struct Team(Arc<Mutex<Inside>>);

#[derive(Debug)]
struct Inside {
    learner: Box<dyn Learner>,
    /// How far all steps so far have moved the model.
    travel: f64,
}

/// One host's part in it.
#[derive(Debug)]
pub(crate) struct Shared {
    team: Team,
    is_captain: bool,
    held: Vec<Range<usize>>,
    /// How much of the team's travel it has told.
    travel_told: f64,
}

impl Team {
    pub(crate) fn new(learner: Box<dyn Learner>) -> Team {
        Team(Arc::new(Mutex::new(Inside { learner, travel: 0.0 })))
    }

    /// The part of a host that holds these parameters.
    pub(crate) fn part(&self, is_captain: bool, held: Vec<Range<usize>>) -> Shared {
        Shared { team: self.clone(), is_captain, held, travel_told: 0.0 }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Learner for Shared {
    fn learn(&mut self, progress: f64) -> Option<f64> {
        let mut team = self.team.inside();
        if self.is_captain {
            let travel = team.learner.learn(progress)?;
            team.travel += travel;
            return Some(travel);
        }
        let travel = team.travel - self.travel_told;
        self.travel_told = team.travel;
        Some(travel)
    }

    fn values(&self) -> Cow<'_, [f32]> {
        Cow::Owned(self.team.inside().learner.values().into_owned())
    }

    fn snapshot(&mut self, selection: Selection) -> Result<Taken, TrainingError> {
        let learner = &mut self.team.inside().learner;
        let (first, end) = match selection {
            Selection::State => (0, usize::MAX),
            Selection::Values { first, end } => (first, end),
            Selection::Part(_) | Selection::Replica => return learner.snapshot(selection),
        };
        let taken = learner.snapshot(Selection::State)?;
        let held = gathered(taken.values.values(), &self.held);
        Ok(Taken { values: Snapshot::from(held[first..end.min(held.len())].to_vec()), ..taken })
    }

    fn apply(&mut self, part: Part, correction: &Correction) -> Result<(), TrainingError> {
        self.team.inside().learner.apply(part, correction)
    }

    /// What this host holds is replaced; the rest of the team's model stays.
    fn load_state(&mut self, chunks: &[Payload]) -> Result<(), TrainingError> {
        let mut team = self.team.inside();
        let mut values = team.learner.values().into_owned();
        scatter(chunks, &self.held, &mut values)?;
        team.learner.load_state(&[Snapshot::from(values).to_payload()])
    }

    fn hold(&mut self, held: Vec<Range<usize>>) {
        self.held = held;
    }

    fn advance_outer(&mut self) -> Result<(), TrainingError> {
        if self.is_captain { self.team.inside().learner.advance_outer() } else { Ok(()) }
    }

    fn set_members(&mut self, members: f64) {
        if self.is_captain {
            self.team.inside().learner.set_members(members);
        }
    }

    fn gradient(&mut self) -> Vec<f32> {
        self.team.inside().learner.gradient()
    }

    fn step_with_sum(&mut self, sum: &Snapshot, members: u32, progress: f64) {
        self.team.inside().learner.step_with_sum(sum, members, progress);
    }

    fn load_replica(&mut self, replica: &Payload) -> Result<(), TrainingError> {
        self.team.inside().learner.load_replica(replica)
    }

    fn finish(&mut self, ending: Ending) {
        if self.is_captain {
            self.team.inside().learner.finish(ending);
        }
    }

    fn is_run_over(&self, progress: f64) -> bool {
        self.team.inside().learner.is_run_over(progress)
    }
}
