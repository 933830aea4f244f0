//! The captain's part of a team: who has which layers, what is computed when, what becomes of a batch, whom to wait for.
//!
//! ```text
//! Waiting ──a cut fits──► Saving ──states of layers that move are kept──► Loading ──all are ready──► Ready
//!    ▲                                                                                              │ ▲
//!    │                        a helper is lost, wherever that is                                     ▼ │
//!    └──────────────────────────────────────────────────────────────── Computing, Copying, Writing ──┘
//! ```
//!
//! A batch is computed by all stages, then all tell the squares of their gradients, then the owner decides. Until the first commit
//! is out, whatever goes wrong ends in a drop on all stages: parameters and moments are as before, bit for bit. After it all
//! step; a helper that is lost in between may miss that one step, which is counted.

mod band;
mod batch;
mod forming;
mod loading;
mod members;
mod progress;
mod roster;
mod saving;
mod states;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::bounds::{FRAME_BYTES_MAX, LAYERS_MAX, NUMBER_MAX, REASON_BYTES_MAX};
use super::config::CaptainConfig;
use super::cut::Cut;
use super::effect::{CaptainEffect, Packet};
use super::event::CaptainEvent;
use super::frame::StateKind;
use super::message::{BatchKind, Lanes, TeamMessage};
use super::notice::{BatchOutcome, DropReason, TeamCounts, TeamNotice, TeamPhase, TeamStatus, WriteOutcome};
use super::work::Work;
use crate::Payload;
use crate::numerics::StreamCodec;
use crate::peer::PeerId;
use crate::time::Time;
use batch::Batch;
use forming::Waiting;
use loading::Loading;
use members::Members;
use roster::{Roster, Speed, Task};
use saving::Saving;
use states::{Checked, Copying, Writing};

/// A captain. See the [module's documentation](super) for the contract.
#[derive(Debug)]
pub struct Captain {
    config: CaptainConfig,
    roster: Roster,
    /// The next epoch, batch or request.
    next_number: u64,
    /// Of the cut that there is, or that is being made.
    epoch: u64,
    /// The cut that there is; whatever becomes of a new one, its stages are in memory where helpers are connected.
    cut: Option<Cut>,
    /// Steps since it was taken.
    steps_of_cut: u64,
    /// Of the model's state.
    revision: u64,
    /// Of the owner's copy of each layer with its moments.
    kept: Vec<u64>,
    /// Of the parameters alone of that copy: as new, or newer.
    kept_parameters: Vec<u64>,
    phase: Phase,
    /// States at the owner, which says whether it could read them, by the numbers of the orders.
    checking: BTreeMap<u64, Checked>,
    /// What the owner wants next.
    want: Option<Want>,
    /// At the owner, whatever has become of its batch.
    computing: Option<Work>,
    /// Of the captain's own machine, as measured.
    speed: Speed,
    members: Members,
    /// Whether a better cut is to be looked for: a helper has offered, or much was measured.
    reconsiders: bool,
    waited: Duration,
    /// Since when the owner waits for a cut.
    waits_since: Option<Time>,
    effects: VecDeque<CaptainEffect>,
    counts: TeamCounts,
}

#[derive(Debug)]
enum Phase {
    Waiting(Waiting),
    Saving(Saving),
    Loading(Loading),
    Ready,
    Computing(Box<Batch>),
    Copying(Copying),
    Writing(Writing),
    Ended,
}

/// What the owner wants.
#[derive(Debug)]
enum Want {
    Batch(BatchKind, Lanes),
    Copy(StateKind),
    Write { kind: StateKind, parts: Vec<Payload>, epoch: u64, is_kept: bool },
}

impl Captain {
    /// A captain without helpers.
    ///
    /// # Panics
    /// When the model has no layers, or more than [`LAYERS_MAX`], or a stream would have more than [`FRAME_BYTES_MAX`] bytes.
    pub fn new(config: CaptainConfig, now: Time) -> Captain {
        assert!((1..=LAYERS_MAX).contains(&config.model.layers), "a model of layers");
        let bytes = StreamCodec::new(config.wire, config.width as usize).bytes(config.rows_max as usize);
        assert!(bytes as u64 <= FRAME_BYTES_MAX, "streams of {bytes} bytes");
        let phase = Phase::Waiting(Waiting::gathering(now + config.timeouts.gathering));
        Captain {
            roster: Roster::new(config.timeouts),
            next_number: config.epoch.max(1),
            epoch: 0,
            cut: None,
            steps_of_cut: 0,
            revision: 0,
            kept: vec![0; config.model.layers as usize],
            kept_parameters: vec![0; config.model.layers as usize],
            phase,
            checking: BTreeMap::new(),
            want: None,
            computing: None,
            speed: Speed::default(),
            members: Members::default(),
            reconsiders: false,
            waited: Duration::ZERO,
            waits_since: None,
            effects: VecDeque::new(),
            counts: TeamCounts::default(),
            config,
        }
    }

    /// Takes a fact in.
    ///
    /// # Panics
    /// When the owner wants something before what it wanted before has ended.
    pub fn handle(&mut self, now: Time, event: CaptainEvent) {
        match event {
            CaptainEvent::HelperConnected { helper } => self.on_connected(now, helper),
            CaptainEvent::HelperDisconnected { helper } => self.lose(now, helper, DropReason::HelperLost),
            CaptainEvent::MessageArrived { helper, message } => self.on_message(now, helper, message),
            CaptainEvent::FrameArrived { helper, frame, size } => self.on_frame(now, helper, frame, size),
            CaptainEvent::StateArrived { helper, header, payload } => self.on_state(now, helper, header, payload),
            CaptainEvent::Loaded { epoch, result } => self.on_loaded(now, epoch, result),
            CaptainEvent::Computed { work, outcome, busy } => self.on_computed(now, work, outcome, busy),
            CaptainEvent::Summed { epoch, batch, squares } => self.on_summed(epoch, batch, squares),
            CaptainEvent::StepDecided { batch, factors } => self.on_step_decided(now, batch, factors),
            CaptainEvent::DiscardDecided { batch } => self.on_discard_decided(batch),
            CaptainEvent::Stepped { epoch, batch } => self.on_stepped(now, epoch, batch),
            CaptainEvent::ReadOut { request, payload } => self.on_read_out(now, request, payload),
            CaptainEvent::Kept { number, result } => self.on_kept(now, number, result),
            CaptainEvent::BatchWanted { lanes } => self.wish(now, Want::Batch(BatchKind::Training, lanes)),
            CaptainEvent::EvaluationWanted { microbatches } => {
                self.wish(now, Want::Batch(BatchKind::Evaluation, Lanes::one(microbatches)));
            }
            CaptainEvent::MembershipDecided { epoch, membership } => self.on_membership_decided(epoch, membership),
            CaptainEvent::CopyWanted { kind } => self.wish(now, Want::Copy(kind)),
            CaptainEvent::WriteWanted { kind, parts, epoch, is_kept } => {
                self.wish(now, Want::Write { kind, parts, epoch, is_kept });
            }
            CaptainEvent::EndWanted => self.end(),
            CaptainEvent::TimePassed => {}
        }
        self.members.on_time(now);
        self.reconsiders |= self.roster.on_time(now);
        self.end_waits(now);
        self.go_on(now);
    }

    /// The next order, where there is one.
    pub fn poll_effect(&mut self) -> Option<CaptainEffect> {
        self.effects.pop_front()
    }

    /// When [`CaptainEvent::TimePassed`] is wanted at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        let awaited = self.awaited();
        let limits =
            awaited.iter().filter_map(|(helper, task, since)| Some(*since + self.roster.get(*helper)?.limit(*task)));
        let until = match &self.phase {
            Phase::Waiting(waiting) if self.checking.is_empty() => Some(waiting.until),
            _ => None,
        };
        limits.chain(until).chain(self.roster.next_deadline()).min()
    }

    /// Where it stands.
    pub fn status(&self, now: Time) -> TeamStatus {
        let phase = match &self.phase {
            Phase::Waiting(_) => TeamPhase::Waiting,
            Phase::Saving(_) | Phase::Loading(_) => TeamPhase::Cutting,
            Phase::Ready => TeamPhase::Ready,
            Phase::Computing(batch) if batch.steps() => TeamPhase::Stepping,
            Phase::Computing(_) => TeamPhase::Computing,
            Phase::Copying(_) | Phase::Writing(_) => TeamPhase::Copying,
            Phase::Ended => TeamPhase::Ended,
        };
        let is_whole = !matches!(phase, TeamPhase::Waiting | TeamPhase::Cutting);
        let awaits = self.awaited().into_iter().filter(|_| is_whole).min_by_key(|(_, _, since)| *since);
        TeamStatus {
            phase,
            awaits: awaits.map(|(helper, _, since)| (helper, now - since)),
            epoch: self.epoch,
            cut: self.cut.clone(),
            revision: self.revision,
            helpers: self.roster.offering(),
            places: self.roster.places(),
            own_speed: self.speed.reached(),
            is_apart: self.members.is_apart(),
            own_outdated: self.members.own_outdated,
            missing_bytes: if let Phase::Waiting(waiting) = &self.phase { waiting.missing_bytes } else { 0 },
            waited: self.waited + self.waits_since.map_or(Duration::ZERO, |since| now - since),
            counts: self.counts,
        }
    }

    /// Streams that wait at the captain, and microbatches that are under way.
    pub fn waiting_and_under_way(&self) -> (usize, usize) {
        match &self.phase {
            Phase::Computing(batch) => (batch.waiting(), batch.under_way()),
            _ => (0, 0),
        }
    }

    fn wish(&mut self, now: Time, want: Want) {
        let is_free = matches!(self.phase, Phase::Waiting(_) | Phase::Saving(_) | Phase::Loading(_) | Phase::Ready);
        match self.phase {
            Phase::Ended => self.refuse(want),
            _ => {
                assert!(is_free && self.want.is_none(), "the owner wants one thing after the other");
                self.want = Some(want);
                self.waits_since = Some(now);
            }
        }
    }

    /// The team has ended: nothing comes of what is wanted.
    fn refuse(&mut self, want: Want) {
        let effect = match want {
            Want::Batch(..) => {
                let (batch, outcome) = (self.number(), BatchOutcome::Dropped(DropReason::Ended));
                CaptainEffect::BatchEnded { batch, outcome }
            }
            Want::Copy(_) => CaptainEffect::CopyEnded { is_complete: false },
            Want::Write { .. } => CaptainEffect::WriteEnded { outcome: WriteOutcome::Nothing },
        };
        self.effects.push_back(effect);
    }

    /// Whatever may begin now does.
    fn go_on(&mut self, now: Time) {
        if matches!(self.phase, Phase::Waiting(_)) {
            self.seek_cut(now);
        }
        if matches!(self.phase, Phase::Ready) {
            self.improve_cut(now);
        }
        if matches!(self.phase, Phase::Ready)
            && let Some(want) = self.want.take()
        {
            self.waited += self.waits_since.take().map_or(Duration::ZERO, |since| now - since);
            match want {
                Want::Batch(kind, lanes) => self.begin_batch(now, kind, lanes),
                Want::Copy(kind) => self.begin_copy(now, kind),
                Want::Write { kind, parts, epoch, is_kept } => self.begin_write(now, kind, parts, epoch, is_kept),
            }
        }
    }

    /// Whom it waits for, for what, and since when.
    fn awaited(&self) -> Vec<(PeerId, Task, Time)> {
        match &self.phase {
            Phase::Waiting(_) | Phase::Ready | Phase::Ended => Vec::new(),
            Phase::Saving(saving) => saving.awaited(),
            Phase::Loading(loading) => loading.awaited(),
            Phase::Computing(batch) => batch.awaited(),
            Phase::Copying(copying) => copying.awaited(),
            Phase::Writing(writing) => writing.awaited(),
        }
    }

    /// Treats helpers as gone that took longer than they are trusted to.
    fn end_waits(&mut self, now: Time) {
        for (helper, task, since) in self.awaited() {
            let Some(known) = self.roster.get_mut(helper) else { continue };
            if since + known.limit(task) <= now {
                known.record_in_vain(task);
                self.lose(now, helper, DropReason::HelperLate);
            }
        }
    }

    fn on_connected(&mut self, now: Time, helper: PeerId) {
        // The connection before may be gone without a word.
        self.lose(now, helper, DropReason::HelperLost);
        match self.roster.connect(helper) {
            None => self.effects.push_back(CaptainEffect::Disconnect { helper }),
            Some(known) if known.is_barred() => {
                self.roster.disconnect(helper);
                self.effects.push_back(CaptainEffect::Dismiss { helper });
            }
            Some(_) => {}
        }
    }

    fn on_message(&mut self, now: Time, helper: PeerId, message: TeamMessage) {
        let Some(known) = self.roster.get_mut(helper) else { return self.counts.stale += 1 };
        if !message.is_sound() {
            return self.counts.misbehaved += 1;
        }
        match message {
            TeamMessage::Offer(offer) => {
                // An earlier life counted further, where this machine's clock has gone back since: the helper takes nothing lower.
                let told = offer.held.map(|held| held.epoch).filter(|epoch| *epoch < NUMBER_MAX / 2);
                if let Some(further) = told.filter(|epoch| *epoch >= self.next_number) {
                    self.next_number = further + 1;
                    self.config.epoch = self.next_number;
                }
                // What it held is known where it was told on this connection; of a life before nothing is taken up.
                let first = known.offer.is_none();
                if first {
                    known.held = offer.held.filter(|held| {
                        held.epoch >= self.config.epoch
                            && held.epoch <= self.epoch
                            && held.layers.end <= self.config.model.layers
                            && held.revision <= self.revision
                    });
                }
                // One that is there offers what it has again where it has let layers go.
                let is_news = first || known.cannot;
                known.offer = Some(offer);
                known.cannot = false;
                self.reconsiders = true;
                if is_news {
                    self.notice(TeamNotice::HelperOffered { helper });
                }
            }
            TeamMessage::Leaving => {
                known.leaves = true;
                self.reconsiders = true;
            }
            TeamMessage::WantsBase { epoch } => self.on_wants_base(helper, epoch),
            TeamMessage::Ready { epoch } => self.on_ready(now, helper, epoch),
            TeamMessage::Cannot { epoch, reason } => self.on_cannot(now, helper, epoch, reason),
            TeamMessage::Sums { epoch, batch, squares, busy_nanos } => {
                self.on_sums(now, helper, (epoch, batch), squares, Duration::from_nanos(busy_nanos));
            }
            TeamMessage::Done { epoch, batch } => self.on_done(now, helper, epoch, batch),
            TeamMessage::Failed { epoch, batch, cause } => self.on_failed(now, helper, epoch, batch, cause),
            TeamMessage::Written { epoch, request } => self.on_written(now, helper, epoch, request),
            TeamMessage::Apart { epoch } => self.on_apart(now, helper, epoch),
            TeamMessage::Assign(_)
            | TeamMessage::Begin { .. }
            | TeamMessage::Commit { .. }
            | TeamMessage::Drop { .. }
            | TeamMessage::Copy { .. }
            | TeamMessage::Release { .. }
            | TeamMessage::Dismiss { .. } => self.counts.misbehaved += 1,
        }
    }

    /// A helper is gone, or treated as if it were.
    fn lose(&mut self, now: Time, helper: PeerId, reason: DropReason) {
        if !self.roster.disconnect(helper) {
            return;
        }
        self.counts.helpers_lost += 1;
        if matches!(self.phase, Phase::Computing(_)) && self.cut.as_ref().is_some_and(|cut| cut.has(helper)) {
            self.roster.record_loss(now, helper);
        }
        // One that is let go for good has been told already.
        if !self.roster.is_barred(helper) {
            if reason != DropReason::HelperLost {
                self.effects.push_back(CaptainEffect::Disconnect { helper });
            }
            self.notice(TeamNotice::HelperLost { helper, reason });
        }
        match &mut self.phase {
            Phase::Waiting(_) | Phase::Ended => {}
            Phase::Saving(saving) if !saving.concerns(helper) => {}
            Phase::Loading(loading) if !loading.cut.has(helper) => {}
            Phase::Saving(_) | Phase::Loading(_) => self.wait_for(now, helper),
            Phase::Ready | Phase::Computing(_) | Phase::Copying(_) | Phase::Writing(_) => {
                if self.cut.as_ref().is_some_and(|cut| cut.has(helper)) {
                    self.lose_stage(now, helper, reason);
                }
            }
        }
    }

    /// A helper of the cut is gone: what is under way ends, and the model is cut anew unless it returns.
    fn lose_stage(&mut self, now: Time, helper: PeerId, reason: DropReason) {
        match &mut self.phase {
            Phase::Computing(batch) if batch.steps() => {
                self.counts.steps_missed += u64::from(batch.lose(helper));
                return self.end_step(now);
            }
            Phase::Computing(_) => self.drop_batch(reason),
            Phase::Copying(_) => self.effects.push_back(CaptainEffect::CopyEnded { is_complete: false }),
            Phase::Writing(writing) => {
                writing.lose(helper);
                return self.end_write(now);
            }
            Phase::Waiting(_) | Phase::Saving(_) | Phase::Loading(_) | Phase::Ready | Phase::Ended => {}
        }
        self.wait_for(now, helper);
    }

    /// What a helper sent cannot be: it is let go, and for good the third time.
    fn accuse(&mut self, now: Time, helper: PeerId) {
        self.counts.misbehaved += 1;
        if let Some(known) = self.roster.get_mut(helper) {
            known.strike();
            if known.is_barred() {
                return self.dismiss(
                    now,
                    helper,
                    DropReason::HelperMisbehaved,
                    "it has sent what cannot be".to_owned(),
                );
            }
        }
        self.lose(now, helper, DropReason::HelperMisbehaved);
    }

    /// A helper is let go for good.
    fn dismiss(&mut self, now: Time, helper: PeerId, why: DropReason, mut reason: String) {
        while reason.len() > REASON_BYTES_MAX {
            reason.pop();
        }
        self.roster.bar(helper);
        if self.roster.get(helper).is_some() {
            self.send(helper, TeamMessage::Dismiss { reason: reason.clone() });
        }
        self.effects.push_back(CaptainEffect::Dismiss { helper });
        self.notice(TeamNotice::HelperDismissed { helper, reason });
        self.lose(now, helper, why);
    }

    fn end(&mut self) {
        if matches!(self.phase, Phase::Computing(_)) {
            self.drop_batch(DropReason::Ended);
        }
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Copying(_) => self.effects.push_back(CaptainEffect::CopyEnded { is_complete: false }),
            Phase::Writing(_) => self.effects.push_back(CaptainEffect::WriteEnded { outcome: WriteOutcome::Partial }),
            _ => {}
        }
        for helper in self.roster.offering() {
            self.send(helper, TeamMessage::Release { epoch: self.epoch });
        }
        if let Some(want) = self.want.take() {
            self.refuse(want);
        }
    }

    /// One that was never given before.
    fn number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    fn send(&mut self, helper: PeerId, message: TeamMessage) {
        self.effects.push_back(CaptainEffect::Send { helper, packet: Packet::Message(message) });
    }

    fn notice(&mut self, notice: TeamNotice) {
        self.effects.push_back(CaptainEffect::Notice(notice));
    }
}
