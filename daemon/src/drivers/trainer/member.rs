//! The trainer while all members average at once: it computes a contribution, then stands still until the sum of all is there.

use std::time::Instant;

use murmur_protocol::manifest::SynchronousSpec;
use murmur_protocol::scheme::Scheme;
use murmur_protocol::{Event, Payload, RequestId, Snapshot};
use murmur_training::TrainingError;

use super::{Stage, TrainerThread, blend};

/// A step counts as so many usual ones at most: hours of rest would be the pace of hundreds of steps after them.
const AVERAGES_MAX: f64 = 10.0;

/// Where a trainer stands between two averages.
#[derive(Debug)]
pub(super) struct Member {
    spec: SynchronousSpec,
    /// The contribution that has been ordered.
    ordered: Option<RequestId>,
    /// Own steps since the last average.
    steps: u32,
    /// Whether a contribution has been handed over whose sum is not here.
    waits: bool,
    /// Of the last batch: bytes, tokens or images, and the seconds that its gradient took.
    last_batch: (usize, f64),
    /// Since when the time of the next step counts: from its first order, or from the end of what followed the last step.
    step_since: Option<Instant>,
    /// The swarm's progress from which the last batch was to lead on.
    batch_at: Option<f64>,
    /// Whether the others are told that nothing more will come.
    has_ended: bool,
}

impl Member {
    fn new(spec: SynchronousSpec) -> Member {
        let last_batch = (0, 0.0);
        Member {
            spec,
            ordered: None,
            steps: 0,
            waits: false,
            last_batch,
            step_since: None,
            batch_at: None,
            has_ended: false,
        }
    }

    /// Whether there is something to compute.
    pub(super) fn is_asked(&self) -> bool {
        self.ordered.is_some()
    }

    /// Whether the model is the average of all, and nothing of this node alone.
    pub(super) fn is_between(&self) -> bool {
        !self.waits && self.steps == 0
    }

    /// Whether a gradient was contributed whose sum is not here.
    pub(super) fn has_open_gradient(&self) -> bool {
        self.waits && self.spec.averages_gradients()
    }

    pub(super) fn order(&mut self, request: RequestId) {
        self.ordered = Some(request);
        self.step_since.get_or_insert_with(Instant::now);
    }

    /// The last step is done, and all that followed it.
    pub(super) fn begin_step(&mut self) {
        self.step_since = Some(Instant::now());
    }

    /// What a step has taken with all that it waited for, where it took so long by itself, and steps of late took that `average`.
    pub(super) fn step_seconds(&self, alone: f64, average: f64) -> f64 {
        let most = if average > 0.0 { AVERAGES_MAX * average } else { f64::INFINITY };
        self.step_since.map_or(alone, |since| since.elapsed().as_secs_f64().min(most).max(alone))
    }

    /// The model is the average of all.
    fn begin_anew(&mut self) {
        (self.steps, self.waits) = (0, false);
    }
}

impl TrainerThread {
    /// What a trainer is that is asked for contributions, from the first order that says so.
    pub(super) fn member(&mut self) -> &mut Member {
        self.member.get_or_insert_with(|| Member::new(self.settings.manifest.synchronous.clone()))
    }

    /// From now on it computes what it is asked for, or steps by itself.
    pub(super) fn average(&mut self, scheme: Scheme) {
        match scheme {
            Scheme::AllReduce => {
                self.member();
            }
            Scheme::Pairs => {
                // A gradient whose sum will not come has moved nothing: its batch is taken again.
                if self.member.take().is_some_and(|member| member.has_open_gradient()) {
                    self.engine.repeat_batch();
                }
            }
        }
    }

    /// One step towards the contribution that was ordered: the gradient of a batch, or a step of the own model.
    pub(super) fn step_of_member(&mut self) {
        let Some(member) = &mut self.member else { return };
        if member.spec.averages_gradients() {
            self.contribute_gradient();
            return;
        }
        let every_steps = member.spec.every_steps;
        if member.steps < every_steps {
            // What own steps lead away from.
            if member.steps == 0
                && let Err(error) = self.engine.keep_average()
            {
                return self.fail_unless_it_waits(&error);
            }
            let before = self.view.steps;
            // Where it waits for other machines, the order stays open, and the same step is tried again.
            if !self.step() {
                return;
            }
            let Some(member) = &mut self.member else { return };
            // A step that was left out counts as well, or the others would wait.
            member.steps += 1;
            tracing::trace!(before, "step {} of {every_steps}", member.steps);
        }
        let is_due = self.member.as_ref().is_some_and(|member| member.steps >= every_steps);
        if is_due && self.stage == Stage::Training {
            match self.engine.contributed_model().and_then(|values| Ok((values, self.engine.replica_digest()?))) {
                Err(error @ TrainingError::TeamWaits(_)) => self.fail_unless_it_waits(&error),
                contribution => self.contribute(contribution),
            }
        }
    }

    /// Training ends with an error, but not with one that other machines mend by coming back.
    fn fail_unless_it_waits(&mut self, error: &TrainingError) {
        if let TrainingError::TeamWaits(why) = error {
            tracing::debug!("waits for the team: {why}");
            return self.show();
        }
        self.give_up(format!("at {}: {error}", self.place()));
    }

    /// Where training has failed, the others are to go on without this member.
    pub(super) fn end_failed_member(&mut self) {
        let has_failed = self.view.failure.is_some();
        let Some(member) = self.member.as_mut().filter(|_| has_failed) else { return };
        let ends = !std::mem::replace(&mut member.has_ended, true);
        if ends {
            let report = self.report();
            self.tell(Event::TrainingCompleted(report));
        }
    }

    fn contribute_gradient(&mut self) {
        let begin = Instant::now();
        // What was begun anew takes the same batch: none is left out. Where the others have gone on meanwhile, it counts as
        // taken, because they may have its gradient.
        let at = Some(self.view.progress);
        if self.member.as_mut().is_some_and(|member| std::mem::replace(&mut member.batch_at, at) == at) {
            self.engine.repeat_batch();
        }
        let gradient = self.engine.contributed_gradient();
        self.keep_pace(begin);
        let end = Instant::now();
        let pause = self.throttle.taken();
        let tokens = gradient.as_ref().map_or(0, |gradient| gradient.tokens);
        self.clock.stepped(tokens, (begin, end), pause);
        self.throttle.stepped(end - begin, end);
        let contribution = gradient.and_then(|gradient| {
            let loss = self.view.loss.map_or(gradient.loss, |loss| blend(loss, gradient.loss));
            self.view.loss = Some(loss).filter(|loss| loss.is_finite()).or(self.view.loss);
            if let Some(member) = &mut self.member {
                member.last_batch = (gradient.tokens, (end - begin).as_secs_f64());
            }
            Ok((gradient.values, self.engine.replica_digest()?))
        });
        self.contribute(contribution);
    }

    fn contribute(&mut self, contribution: Result<(Vec<f32>, u64), TrainingError>) {
        let Some(request) = self.member.as_mut().and_then(|member| member.ordered.take()) else { return };
        match contribution {
            Ok((values, digest)) => {
                if let Some(member) = &mut self.member {
                    member.waits = true;
                }
                let report = self.report();
                self.tell(Event::Contributed { request, contribution: Snapshot::from(values), digest, report });
            }
            Err(error) => {
                self.refuse(request, &error);
                self.give_up(format!("at {}: {error}", self.place()));
            }
        }
    }

    /// The sum of all contributions is here.
    pub(super) fn take_up_sum(&mut self, sum: Snapshot, members: u32, progress: f64) {
        let Some(member) = &mut self.member else { return };
        let ((tokens, seconds), averages_gradients) = (member.last_batch, member.spec.averages_gradients());
        member.begin_anew();
        if !averages_gradients {
            self.view.progress = progress;
            if let Err(error) = self.engine.average_with_sum(sum, members) {
                tracing::error!("at {}: {error}", self.place());
            }
            return self.show();
        }
        let begin = Instant::now();
        let before = (progress - 1.0).max(0.0);
        match self.engine.step_with_sum(sum, members, (before, tokens)) {
            Ok(report) => {
                self.divergence.stepped();
                self.travel += report.travel;
                self.count_step(seconds + begin.elapsed().as_secs_f64(), tokens);
            }
            Err(error) => self.on_failed_step(&error),
        }
        self.view.progress = progress;
        self.clock.spent_aside(begin.elapsed());
        self.after_step();
    }

    /// Another member's replica is to be this node's.
    pub(super) fn load_replica(&mut self, request: RequestId, replica: &Payload, progress: f64) {
        // Whoever came first to a run that was interrupted goes on with what it has, however old that is.
        let round = self.settings.manifest.synchronous.steps_of_a_round() as f64;
        if progress + round < self.view.progress && self.is_worth_keeping() {
            tracing::warn!(
                "the others' model, at swarm step {progress:.0}, takes the place of this node's, at {:.0}",
                self.view.progress
            );
            self.keep_own();
        }
        let loaded = self.engine.load_replica(replica);
        let accepted = loaded.is_ok();
        match loaded {
            Ok(()) => {
                self.view.progress = progress;
                if let Some(member) = &mut self.member {
                    member.ordered = None;
                    member.begin_anew();
                }
                self.show();
            }
            Err(error) => tracing::error!("cannot load a member's replica: {error}"),
        }
        let report = self.report();
        self.tell(Event::StateLoaded { request, accepted, report });
    }
}
