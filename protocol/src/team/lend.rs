//! One helper's part of a team: takes a stage, computes what comes in, steps when all do.
//!
//! A helper decides little: it works off a batch in the order of its [`Schedule`](super::Schedule), and steps only when the captain,
//! which has heard of all stages, says so. It serves one captain at a time. Where its captain is gone, it keeps the stage for a
//! while; where it comes back, it tells in its offer what it still has.

mod batch;
mod stage;

use std::collections::{BTreeSet, VecDeque};

use super::bounds::{HELPERS_KNOWN_MAX, MEMBER_IDLE_MAX};
use super::config::HelperConfig;
use super::effect::{HelperEffect, Packet};
use super::event::{HelperEvent, Loading};
use super::frame::{Frame, StateHeader, StateKind};
use super::layers::LayerRange;
use super::message::{HeldLayers, Membership, Offer, TeamMessage};
use super::notice::{TeamCounts, TeamNotice};
use super::work::{Outcome, Work};
use crate::Payload;
use crate::peer::PeerId;
use crate::time::Time;
use batch::{Batch, Heard, State};
use stage::{Held, Progress};

/// A helper. See the [module's documentation](super) for the contract.
#[derive(Debug)]
pub struct Helper {
    config: HelperConfig,
    /// That are connected; at most [`HELPERS_KNOWN_MAX`].
    connected: BTreeSet<PeerId>,
    /// Whom it serves: connected or, while its stage is kept, gone.
    captain: Option<PeerId>,
    stage: Option<Held>,
    batch: Option<Batch>,
    /// Frames of the batch that comes next, which have overtaken its beginning.
    early: VecDeque<Frame>,
    /// The highest batch that has begun, or was dropped before.
    last_batch: u64,
    /// At the owner, whatever has become of its batch.
    computing: Option<Work>,
    /// A copy that the owner makes.
    copying: Option<(u64, StateKind, LayerRange)>,
    /// Whether the owner was told to be a member of the swarm.
    is_member: bool,
    /// Since when it is one while no batch is under way.
    idle_since: Option<Time>,
    /// Whether an offer waits until a step or a write is done.
    offer_is_due: bool,
    kept_until: Option<Time>,
    effects: VecDeque<HelperEffect>,
    counts: TeamCounts,
}

impl Helper {
    /// A helper without a captain.
    pub fn new(config: HelperConfig) -> Helper {
        Helper {
            config,
            connected: BTreeSet::new(),
            captain: None,
            stage: None,
            batch: None,
            early: VecDeque::new(),
            last_batch: 0,
            computing: None,
            copying: None,
            is_member: false,
            idle_since: None,
            offer_is_due: false,
            kept_until: None,
            effects: VecDeque::new(),
            counts: TeamCounts::default(),
        }
    }

    /// Takes a fact in.
    pub fn handle(&mut self, now: Time, event: HelperEvent) {
        match event {
            HelperEvent::CaptainConnected { captain } => self.on_connected(captain),
            HelperEvent::CaptainDisconnected { captain } => self.on_disconnected(now, captain),
            HelperEvent::MessageArrived { captain, message } => self.on_message(captain, message),
            HelperEvent::FrameArrived { captain, frame } => self.on_frame(captain, frame),
            HelperEvent::StateArrived { captain, header, payload } => self.on_state(captain, header, payload),
            HelperEvent::Loaded { epoch, result } => self.on_loaded(epoch, result),
            HelperEvent::Computed { work, outcome, busy } => self.on_computed(work, outcome, busy),
            HelperEvent::Summed { epoch, batch, squares } => self.on_summed(epoch, batch, squares),
            HelperEvent::Stepped { epoch, batch } => self.on_stepped(epoch, batch),
            HelperEvent::Copied { request, payload } => self.on_copied(request, payload),
            HelperEvent::Written { request, result } => self.on_written(request, result),
            HelperEvent::OfferChanged { offer } => {
                self.config.offer = offer;
                self.offer_is_due = true;
            }
            HelperEvent::FoundApart => {
                if let Some(epoch) = self.stage.as_ref().map(|stage| stage.assign.epoch) {
                    self.say(TeamMessage::Apart { epoch });
                }
            }
            HelperEvent::LeaveWanted => self.say(TeamMessage::Leaving),
            HelperEvent::TimePassed => {}
        }
        if self.kept_until.is_some_and(|until| until <= now) {
            self.unload();
            self.captain = None;
        }
        let is_idle = self.is_member && self.batch.is_none();
        self.idle_since = is_idle.then(|| self.idle_since.unwrap_or(now));
        if self.idle_since.is_some_and(|since| since + MEMBER_IDLE_MAX <= now) {
            self.average(None);
            self.idle_since = None;
        }
        self.serve_next();
        self.offer_if_settled();
    }

    /// The next order, where there is one.
    pub fn poll_effect(&mut self) -> Option<HelperEffect> {
        self.effects.pop_front()
    }

    /// When [`HelperEvent::TimePassed`] is wanted at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        let idle_until = self.idle_since.map(|since| since + MEMBER_IDLE_MAX);
        [self.kept_until, idle_until].into_iter().flatten().min()
    }

    /// What it has counted of its own part.
    pub fn counts(&self) -> TeamCounts {
        self.counts
    }

    /// Whom it serves, connected or gone for a while.
    pub fn captain(&self) -> Option<PeerId> {
        self.captain
    }

    /// What it has for its captain: a stage whose state is in memory.
    pub fn held(&self) -> Option<HeldLayers> {
        let stage = self.stage.as_ref().filter(|stage| stage.has_state())?;
        let Held { assign, revision, .. } = stage;
        Some(HeldLayers { epoch: assign.epoch, layers: assign.layers, revision: *revision })
    }

    /// Whether a batch is under way: its parameters must not change but by the step.
    pub fn is_in_batch(&self) -> bool {
        self.batch.is_some()
    }

    /// Microbatches of which it holds the activations, and frames that wait for it.
    pub fn held_and_waiting(&self) -> (usize, usize) {
        let (held, waiting) = self.batch.as_ref().map_or((0, 0), |batch| (batch.held(), batch.waiting()));
        (held, waiting + self.early.len())
    }

    fn on_connected(&mut self, captain: PeerId) {
        if self.connected.len() < HELPERS_KNOWN_MAX {
            self.connected.insert(captain);
        }
        if self.captain == Some(captain) {
            // The connection before is gone without a word.
            self.abandon_batch();
            self.average(None);
            self.kept_until = None;
            self.offer_is_due = true;
        }
    }

    fn on_disconnected(&mut self, now: Time, captain: PeerId) {
        self.connected.remove(&captain);
        if self.captain != Some(captain) {
            return;
        }
        self.abandon_batch();
        self.average(None);
        self.offer_is_due = false;
        if self.stage.as_ref().is_some_and(Held::has_state) {
            self.kept_until = Some(now + self.config.kept_for);
            self.notice(TeamNotice::CaptainLost { kept_for: self.config.kept_for });
        } else {
            self.unload();
            self.captain = None;
        }
    }

    /// Takes the next captain, where it serves none.
    fn serve_next(&mut self) {
        if self.captain.is_none()
            && let Some(captain) = self.connected.first()
        {
            self.captain = Some(*captain);
            self.offer_is_due = true;
        }
    }

    fn offer_if_settled(&mut self) {
        let is_connected = self.captain.is_some_and(|captain| self.connected.contains(&captain));
        if !self.offer_is_due || !is_connected || !self.is_settled() {
            return;
        }
        self.offer_is_due = false;
        let offer = Offer { held: self.held(), ..self.config.offer.clone() };
        self.say(TeamMessage::Offer(offer));
    }

    /// Whether no step or write is under way: then the state's revision is known.
    fn is_settled(&self) -> bool {
        let steps = self.batch.as_ref().is_some_and(|batch| matches!(batch.state, State::Stepping { .. }));
        !steps && !self.stage.as_ref().is_some_and(Held::is_writing)
    }

    fn on_message(&mut self, captain: PeerId, message: TeamMessage) {
        if self.captain != Some(captain) || !message.is_sound() {
            self.counts.misbehaved += 1;
            return;
        }
        match message {
            TeamMessage::Assign(assign) => self.on_assign(assign),
            TeamMessage::Begin { epoch, batch, kind, lanes, membership } => {
                self.on_begin((epoch, batch), kind, lanes, membership);
            }
            TeamMessage::Commit { epoch, batch, factors, revision, wants_copy } => {
                let Some(running) = self.batch_of(epoch, batch) else { return self.counts.stale += 1 };
                match running.commit(revision, wants_copy) {
                    true => self.effects.push_back(HelperEffect::Step { epoch, batch, factors }),
                    false => self.counts.stale += 1,
                }
            }
            TeamMessage::Drop { epoch, batch } => self.on_drop(epoch, batch),
            TeamMessage::Copy { epoch, request, kind, layers, stays_member } => {
                let may = self.batch.is_none() && self.copying.is_none() && self.is_settled();
                if may && self.held().is_some_and(|held| held.epoch == epoch && held.layers.contains(layers)) {
                    if !stays_member {
                        self.average(None);
                    }
                    self.copy(request, kind, layers);
                } else {
                    self.counts.stale += 1;
                }
            }
            TeamMessage::Release { epoch } => {
                if self.stage.as_ref().is_some_and(|stage| stage.assign.epoch <= epoch) {
                    self.unload();
                    self.offer_is_due = true;
                } else {
                    self.counts.stale += 1;
                }
            }
            TeamMessage::Dismiss { reason } => {
                self.unload();
                self.offer_is_due = false;
                self.notice(TeamNotice::HelperDismissed { helper: captain, reason });
            }
            TeamMessage::Offer(_)
            | TeamMessage::WantsBase { .. }
            | TeamMessage::Ready { .. }
            | TeamMessage::Cannot { .. }
            | TeamMessage::Sums { .. }
            | TeamMessage::Done { .. }
            | TeamMessage::Failed { .. }
            | TeamMessage::Written { .. }
            | TeamMessage::Apart { .. }
            | TeamMessage::Leaving => self.counts.misbehaved += 1,
        }
    }

    fn is_ready_in(&self, epoch: u64) -> bool {
        self.stage.as_ref().is_some_and(|stage| stage.is_ready() && stage.assign.epoch == epoch)
    }

    fn batch_of(&mut self, epoch: u64, batch: u64) -> Option<&mut Batch> {
        self.batch.as_mut().filter(|running| running.epoch == epoch && running.number == batch)
    }

    fn say(&mut self, message: TeamMessage) {
        self.send(Packet::Message(message));
    }

    fn send(&mut self, packet: Packet) {
        if let Some(captain) = self.captain.filter(|captain| self.connected.contains(captain)) {
            self.effects.push_back(HelperEffect::Send { captain, packet });
        }
    }

    fn notice(&mut self, notice: TeamNotice) {
        self.effects.push_back(HelperEffect::Notice(notice));
    }

    /// The batch comes to nothing, unless the step is under way.
    fn abandon_batch(&mut self) {
        self.early.clear();
        if let Some(batch) = self.batch.take_if(|batch| !matches!(batch.state, State::Stepping { .. })) {
            self.last_batch = self.last_batch.max(batch.number);
            self.counts.dropped += 1;
            if !matches!(batch.state, State::Failed) {
                self.effects.push_back(HelperEffect::Discard { epoch: batch.epoch, batch: batch.number });
            }
        }
    }

    fn unload(&mut self) {
        self.kept_until = None;
        self.abandon_batch();
        self.average(None);
        self.batch = None;
        self.copying = None;
        if self.stage.take().is_some() {
            self.effects.push_back(HelperEffect::Unload);
            self.notice(TeamNotice::StageUnloaded);
        }
    }

    /// Tells the owner whether it is a member of the swarm from now on.
    fn average(&mut self, membership: Option<Membership>) {
        if self.is_member || membership.is_some() {
            self.is_member = membership.is_some();
            self.effects.push_back(HelperEffect::Average { membership });
        }
    }

    fn copy(&mut self, request: u64, kind: StateKind, layers: LayerRange) {
        self.copying = Some((request, kind, layers));
        self.effects.push_back(HelperEffect::Copy { request, kind, layers });
    }

    fn on_copied(&mut self, request: u64, payload: Payload) {
        let Some((_, kind, layers)) = self.copying.take_if(|(wanted, ..)| *wanted == request) else {
            return self.counts.stale += 1;
        };
        let Some(stage) = &self.stage else { return };
        let (epoch, revision) = (stage.assign.epoch, stage.revision);
        let header = StateHeader { epoch, request, kind, layers, revision, bytes: payload.len() as u64 };
        self.send(Packet::State(header, payload));
    }

    fn on_loaded(&mut self, epoch: u64, result: Result<Loading, String>) {
        let Some(stage) = self.stage.as_mut().filter(|stage| stage.assign.epoch == epoch) else {
            return self.counts.stale += 1;
        };
        if stage.progress != Progress::Loading {
            return self.counts.stale += 1;
        }
        match result {
            Ok(Loading::Complete) => self.write_state(),
            Ok(Loading::BaseMissing) => {
                stage.progress = Progress::AwaitsBase;
                self.say(TeamMessage::WantsBase { epoch });
            }
            Err(reason) => self.give_up_stage(reason),
        }
    }

    fn on_computed(&mut self, work: Work, outcome: Outcome, busy: std::time::Duration) {
        if self.computing != Some(work) {
            return self.counts.stale += 1;
        }
        self.computing = None;
        if let Some(batch) = self.batch_of(work.epoch, work.batch) {
            match batch.on_computed(work, outcome, busy) {
                Heard::Stream(stream) => {
                    let direction = work.kind.direction();
                    let frame =
                        Frame { epoch: work.epoch, batch: work.batch, microbatch: work.microbatch, direction, stream };
                    self.send(Packet::Frame(frame));
                }
                Heard::Failure(cause) => {
                    let (epoch, batch) = (work.epoch, work.batch);
                    self.effects.push_back(HelperEffect::Discard { epoch, batch });
                    self.say(TeamMessage::Failed { epoch, batch, cause });
                }
                Heard::Nothing => {}
            }
        }
        self.work();
    }
}
