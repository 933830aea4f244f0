//! The owner of a captain's state machine, on the trainer's thread: asks it for batches, copies and writes, and carries out what it
//! orders of the captain's own stages.

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use candle_core::{Error, Result};
use murmur_protocol::Holding;
use murmur_protocol::team::{
    BatchOutcome, CaptainConfig, CaptainEffect, CaptainEvent, DropReason, Lanes, Membership, Outcome, StateKind,
    TeamPhase, WriteOutcome,
};

use super::captain::{CaptainModel, Passing};
use super::captain_thread::{CaptainThread, OnNotice, Order, TeamView};
use super::membership::SwarmTicket;
use super::part::Piece;
use super::wire::{Facts, TeamWire, Told};
use crate::engine::TrainingError;
use crate::optimizer::Moments;
use crate::replica::stage::Microbatch;

/// How long a call waits for a team that is not whole before it says so: exchanges wait as long.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);

/// How long an evaluation waits while stages are loaded, for it is not tried again: less than a daemon has for its end.
pub(super) const EVALUATION_PATIENCE: Duration = Duration::from_secs(30);

/// So many times in a row this machine may be unable to compute its own part: a model that does not fit any more stays so. A guess.
const OWN_FAILURES_MAX: u32 = 3;

/// How often orders are looked for while there may be none.
const LOOK: Duration = Duration::from_millis(5);

/// What begins once training does.
pub(super) struct Setup {
    pub(super) config: CaptainConfig,
    pub(super) facts: (Told, Facts),
    pub(super) carrier: Box<dyn TeamWire>,
    pub(super) on_notice: OnNotice,
}

/// What the machine has been asked for, and has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Nothing,
    Batch,
    /// A batch whose gradient is complete, with its number: to be stepped with or not.
    Gathered(u64),
    /// The same, which is not to be stepped with.
    Discarded,
    Evaluation,
    Copy,
    Write,
}

/// How something that was asked for has ended.
pub(super) enum Ended {
    Gathered,
    Batch(BatchOutcome),
    Copied(bool),
    Written,
}

/// Which of the team's machines exchange what with the swarm.
#[derive(Debug, Default)]
pub(super) struct Division {
    /// What is exchanged from here now: the whole model, or what helpers do not exchange by themselves.
    pub(super) holding: Holding,
    /// What is left for the captain where helpers of this cut do.
    left: Holding,
    /// Swarm progress of the next step.
    pub(super) progress: f64,
    /// No step follows.
    pub(super) is_over: bool,
    /// How often it was told that what is exchanged from here is older than what a lost helper has exchanged.
    outdated_told: u64,
    /// Whether the captain's part has changed since the batch under way was asked for.
    has_changed: bool,
}

/// See the file's documentation.
pub(super) struct Owner {
    pub(super) model: CaptainModel,
    pub(super) setup: Option<Setup>,
    pub(super) thread: Option<CaptainThread>,
    pub(super) view: TeamView,
    pub(super) asked: Asked,
    /// Of the whole gradient.
    pub(super) squares: Vec<f64>,
    pub(super) members: f64,
    /// Whether helpers' states are copied after each step, so that those kept are always of now.
    pub(super) copies_after_steps: bool,
    /// How helpers come to the swarm.
    pub(super) ticket: SwarmTicket,
    pub(super) division: Division,
    /// Whether what is kept of helpers' parameters, and of their moments, is older than the last step.
    pub(super) is_old: [bool; 2],
    /// What helpers are to write of what is kept: it has changed since they had it.
    pub(super) unwritten: Option<StateKind>,
    /// Why the last call came to nothing, where only a machine is missing.
    pub(super) waits: Option<String>,
    /// Since when it has been so, as far as it has not been counted.
    pub(super) waits_since: Option<Instant>,
    /// When the last order was carried out.
    pub(super) idle_since: Instant,
    /// Pieces of work that this machine itself could not do since the last batch that came to its end.
    pub(super) own_failures: u32,
}

/// So many microbatches in each lane.
pub(super) fn lanes_of(lanes: &[usize]) -> Lanes {
    let of = |lane: usize| lanes.get(lane).copied().unwrap_or_default() as u32;
    Lanes { first: of(0), second: of(1) }
}

fn team_error(error: &TrainingError) -> Error {
    Error::Msg(error.to_string())
}

impl Owner {
    /// What the engine hears where a machine is missing.
    pub(super) fn waiting<T>(&mut self) -> Result<T> {
        let status = self.view.status();
        let why = match status {
            Some(status) if status.phase == TeamPhase::Waiting && status.missing_bytes > 0 => {
                format!("{:.1} MB are missing", status.missing_bytes as f64 / 1e6)
            }
            Some(status) if status.phase == TeamPhase::Cutting => "the model is cut anew".to_owned(),
            _ => "helpers are missing".to_owned(),
        };
        self.count_wait();
        self.waits_since = Some(Instant::now());
        self.waits = Some(why.clone());
        Err(Error::Msg(why))
    }

    fn count_wait(&mut self) {
        self.waits_since.take().inspect(|since| self.view.add_without(since.elapsed()));
    }

    fn thread(&mut self) -> &CaptainThread {
        if let Some(Setup { config, facts, carrier, on_notice }) = self.setup.take() {
            self.thread = Some(CaptainThread::start(config, facts, carrier, self.view.clone(), on_notice));
        }
        self.thread.as_ref().expect("there is one from the first call on")
    }

    pub(super) fn tell(&mut self, event: CaptainEvent) {
        self.thread().tell(event);
    }

    fn phase(&self) -> TeamPhase {
        self.view.status().map_or(TeamPhase::Waiting, |status| status.phase)
    }

    /// Carries out one order if it comes within this time. `None` where none has come, or nothing has ended by it.
    fn carry_out_next(&mut self, within: Duration) -> Result<Option<Ended>> {
        let order = match self.thread().orders.recv_timeout(within) {
            Ok(order) => order,
            Err(RecvTimeoutError::Timeout) => return Ok(None),
            Err(RecvTimeoutError::Disconnected) => return Err(Error::Msg("the team's thread has ended".to_owned())),
        };
        if let Some(helper) = order.after.filter(|_| matches!(self.asked, Asked::Batch | Asked::Evaluation)) {
            self.view.add_wait(helper, self.idle_since.elapsed());
        }
        let ended = self.carry_out(order).map_err(|error| team_error(&error));
        self.idle_since = Instant::now();
        ended
    }

    fn carry_out(&mut self, order: Order) -> std::result::Result<Option<Ended>, TrainingError> {
        match order.effect {
            CaptainEffect::Load { epoch, cut } => {
                self.division.left = self.model.left_for_captain(&cut);
                // What is kept of helpers' layers may be old: until helpers have been told nothing more of it is shown than before.
                if self.has_members() && !self.division.left.is_all() {
                    self.division.holding = self.division.left;
                }
                let result = self.model.load(epoch, cut).map_err(|error| error.to_string());
                self.tell(CaptainEvent::Loaded { epoch, result });
            }
            CaptainEffect::Compute { work, input } => {
                let computed = self.model.compute(work, input);
                let failure = match &computed {
                    CaptainEvent::Computed { outcome: Outcome::Failed(failure), .. } => Some(failure.clone()),
                    _ => None,
                };
                self.tell(computed);
                if let Some(failure) = failure {
                    self.own_failures += 1;
                    if self.own_failures >= OWN_FAILURES_MAX {
                        return Err(TrainingError::Team(format!(
                            "this machine's own part cannot be computed: {failure}"
                        )));
                    }
                }
            }
            CaptainEffect::Sum { epoch, batch } => {
                let squares = self.model.sum()?;
                self.tell(CaptainEvent::Summed { epoch, batch, squares });
            }
            CaptainEffect::Step { epoch, batch, factors } => {
                self.model.step(factors)?;
                self.is_old = [!self.copies_after_steps; 2];
                self.tell(CaptainEvent::Stepped { epoch, batch });
            }
            CaptainEffect::Discard { .. } => self.model.discard()?,
            CaptainEffect::ReadOut { request, layers, kind } => {
                let payload = self.model.read_out(layers, kind)?;
                self.tell(CaptainEvent::ReadOut { request, payload });
            }
            CaptainEffect::Keep { number, layers, payload, .. } => {
                let result = self.model.keep(layers, &payload, self.unwritten).map_err(|error| error.to_string());
                self.tell(CaptainEvent::Kept { number, result });
            }
            CaptainEffect::Gathered { batch, squares } => {
                self.squares = squares;
                self.asked = Asked::Gathered(batch);
                return Ok(Some(Ended::Gathered));
            }
            CaptainEffect::BatchEnded { batch: _, outcome } => {
                self.asked = Asked::Nothing;
                if matches!(outcome, BatchOutcome::Stepped | BatchOutcome::Evaluated) {
                    self.own_failures = 0;
                }
                return Ok(Some(Ended::Batch(outcome)));
            }
            CaptainEffect::CopyEnded { is_complete } => {
                self.asked = Asked::Nothing;
                return Ok(Some(Ended::Copied(is_complete)));
            }
            CaptainEffect::WriteEnded { outcome } => {
                self.asked = Asked::Nothing;
                // Else it is written again once the team is whole: nobody computes before.
                if outcome == WriteOutcome::Complete {
                    self.unwritten = None;
                }
                return Ok(Some(Ended::Written));
            }
            CaptainEffect::Send { .. }
            | CaptainEffect::Disconnect { .. }
            | CaptainEffect::Dismiss { .. }
            | CaptainEffect::Notice(_) => {}
        }
        Ok(None)
    }

    /// Carries out orders until what was asked for has ended. `None` where that waits for the team to be whole again: it stays
    /// asked for. Else the machine sees to it that it ends: it drops what takes too long.
    pub(super) fn until_ended(&mut self) -> Result<Option<Ended>> {
        let begin = Instant::now();
        loop {
            if let Some(ended) = self.carry_out_next(LOOK)? {
                return Ok(Some(ended));
            }
            if begin.elapsed() > PATIENCE && !self.is_whole() {
                return Ok(None);
            }
        }
    }

    fn is_whole(&self) -> bool {
        !matches!(self.phase(), TeamPhase::Waiting | TeamPhase::Cutting)
    }

    /// Carries out orders until the team is whole, every machine has what it is to have, and nothing is asked for but, where it is
    /// wanted, the batch that was asked for before. For so long at most, and shorter where nobody has some layers.
    pub(super) fn is_ready_within(&mut self, patience: Duration, wants_batch: bool) -> Result<bool> {
        let begin = Instant::now();
        self.thread();
        loop {
            while self.carry_out_next(Duration::ZERO)?.is_some() {}
            match self.asked {
                Asked::Batch if wants_batch && self.is_whole() => return Ok(true),
                Asked::Nothing if self.phase() == TeamPhase::Ready && self.unwritten.is_none() => return Ok(true),
                Asked::Nothing if self.phase() == TeamPhase::Ready => self.write()?,
                // The engine did not want the step.
                Asked::Gathered(batch) => {
                    self.asked = Asked::Discarded;
                    self.tell(CaptainEvent::DiscardDecided { batch });
                }
                _ => {}
            }
            let is_hopeless = self.phase() == TeamPhase::Waiting && begin.elapsed() > PATIENCE;
            if begin.elapsed() > patience || is_hopeless {
                return Ok(false);
            }
            self.carry_out_next(LOOK)?;
        }
    }

    /// Has helpers write what is kept of their layers.
    fn write(&mut self) -> Result<()> {
        let Some(kind) = self.unwritten else { return Ok(()) };
        let with_moments = kind == StateKind::Training;
        let Some((epoch, parts)) = self.model.of_helpers(with_moments) else { return Ok(()) };
        self.asked = Asked::Write;
        // Of moments that are not kept after each step, what is kept is older than the parameters.
        let is_kept = with_moments || self.copies_after_steps;
        self.tell(CaptainEvent::WriteWanted { kind, parts, epoch, is_kept });
        self.until_ended().map(drop)
    }

    /// Fetches what helpers have where what is kept is older and the team is whole. Returns whether all is of now.
    fn refresh(&mut self, with_moments: bool) -> Result<bool> {
        let is_old = self.has_members() || self.is_old[0] || (with_moments && self.is_old[1]);
        if !is_old || !self.is_ready_within(PATIENCE, false)? {
            return Ok(!is_old);
        }
        let kind = if with_moments { StateKind::Training } else { StateKind::Parameters };
        self.asked = Asked::Copy;
        self.tell(CaptainEvent::CopyWanted { kind });
        if let Some(Ended::Copied(true)) = self.until_ended()? {
            self.is_old = if with_moments { [false; 2] } else { [false, self.is_old[1]] };
            return Ok(true);
        }
        Ok(false)
    }

    /// Where helpers exchange their layers by themselves, what is kept of those may be old: nobody is shown them.
    /// Else a state whose parts are of different steps is none: what is older waits for the team to be whole.
    pub(super) fn parameters(&mut self) -> Result<Vec<f32>> {
        if !self.has_members() && !self.refresh(false)? {
            return self.waiting();
        }
        self.model.parameters().map_err(|error| team_error(&error))
    }

    /// Fetches what helpers have, with moments.
    pub(super) fn gather(&mut self) -> Result<()> {
        if self.refresh(true)? { Ok(()) } else { self.waiting() }
    }

    /// New parameters, of which every machine is given its part before it computes: once where several follow each other meanwhile.
    ///
    /// Where helpers exchange their layers by themselves they are new in the captain's part alone.
    pub(super) fn set_parameters(&mut self, values: &[f32]) -> Result<()> {
        let set =
            if self.has_members() { self.model.set_own_parameters(values) } else { self.model.set_parameters(values) };
        set.map_err(|error| team_error(&error))?;
        self.has_changed(false);
        Ok(())
    }

    /// The same of moments, which helpers are given with the parameters of now.
    pub(super) fn set_moments(&mut self, moments: &Moments, steps: u64) -> Result<()> {
        if !self.has_members() && !self.refresh(false)? {
            return self.waiting();
        }
        let set = self.model.set_moments(moments, steps, !self.has_members());
        set.map_err(|error| team_error(&error))?;
        self.has_changed(true);
        Ok(())
    }

    /// What helpers are to write from now on.
    fn has_changed(&mut self, with_moments: bool) {
        if self.has_members() {
            self.division.has_changed = true;
            return;
        }
        self.is_old[0] = false;
        self.is_old[1] &= !with_moments;
        if self.setup.is_some() {
            // Nobody has any of it.
            return;
        }
        // Where helpers' moments are kept after each step, those go along: a helper may have been lost meanwhile.
        let is_whole = with_moments || (self.copies_after_steps && !self.is_whole());
        self.unwritten = match (is_whole, self.unwritten) {
            (true, _) | (_, Some(StateKind::Training)) => Some(StateKind::Training),
            _ => Some(StateKind::Parameters),
        };
    }

    /// Whether helpers exchange their layers by themselves.
    fn has_members(&self) -> bool {
        !self.division.holding.is_all()
    }

    /// Whether what is exchanged from here is older, since the last call, than what a helper exchanged that is gone.
    pub(super) fn take_outdated(&mut self) -> bool {
        let count = self.view.status().map_or(0, |status| status.own_outdated);
        std::mem::replace(&mut self.division.outdated_told, count) < count
    }

    /// Tells helpers whether they are to exchange their layers by themselves from the next batch on.
    fn decide_membership(&mut self) {
        let Some((epoch, _)) = self.model.cut else { return };
        let is_apart = self.view.status().is_some_and(|status| status.is_apart);
        let Division { left, progress, is_over, .. } = self.division;
        let ticket = self.ticket.get().filter(|_| !left.is_all() && !is_over && !is_apart);
        let membership = ticket.map(|ticket| Membership { ticket, progress, is_outdated: false });
        if self.has_members() && membership.is_none() {
            // Exchanges may have changed what helpers have since it was copied.
            self.is_old = [true; 2];
        }
        self.division.holding = if membership.is_some() { left } else { Holding::ALL };
        self.division.has_changed = false;
        self.tell(CaptainEvent::MembershipDecided { epoch, membership });
    }

    /// No step follows: the captain exchanges all of the model again, from what helpers have now. Where the team is not whole, nobody
    /// exchanges the layers that are missing.
    pub(super) fn end_membership(&mut self) -> Result<()> {
        self.division.is_over = true;
        if self.has_members() && self.is_ready_within(EVALUATION_PATIENCE, false)? {
            self.decide_membership();
            self.refresh(true)?;
        }
        Ok(())
    }

    /// Tries one batch; `None` where it came to nothing and is to be tried again.
    pub(super) fn try_batch(
        &mut self,
        microbatches: &[Microbatch],
        lanes: usize,
        share: f32,
    ) -> Result<Option<[f64; 2]>> {
        if !self.is_ready_within(PATIENCE, true)? {
            return self.waiting();
        }
        self.count_wait();
        if self.asked == Asked::Nothing {
            let pieces: Vec<Piece> = microbatches.iter().cloned().map(Piece).collect();
            let count = |lane| microbatches.iter().filter(|microbatch| microbatch.lane == lane).count();
            let counts: Vec<usize> = (0..lanes).map(count).collect();
            self.model.passing = Passing { pieces, share, ..Passing::default() };
            self.asked = Asked::Batch;
            self.idle_since = Instant::now();
            self.decide_membership();
            self.tell(CaptainEvent::BatchWanted { lanes: lanes_of(&counts) });
        }
        match self.until_ended()? {
            None => self.waiting(),
            // It was asked for before the state changed: some stages may have computed with the one before.
            Some(Ended::Gathered) if self.unwritten.is_some() || self.division.has_changed => Ok(None),
            Some(Ended::Gathered) => Ok(Some(self.model.passing.losses)),
            Some(Ended::Batch(BatchOutcome::Dropped(DropReason::NotFinite))) => {
                self.squares.fill(f64::NAN);
                Ok(Some([f64::NAN; 2]))
            }
            Some(_) => Ok(None),
        }
    }
}
