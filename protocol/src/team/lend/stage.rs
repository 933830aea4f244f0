//! How a helper takes up a stage: the owner builds it, then the frozen base and the training state are written in.

use super::{Helper, TeamMessage, TeamNotice};
use crate::Payload;
use crate::peer::PeerId;
use crate::team::bounds::REASON_BYTES_MAX;
use crate::team::effect::HelperEffect;
use crate::team::frame::{StateHeader, StateKind};
use crate::team::message::Assign;

/// A stage, in memory or on its way there.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) assign: Box<Assign>,
    /// Of the state, once the stage is ready.
    pub(super) revision: u64,
    pub(super) progress: Progress,
    /// Whether the state of these layers is in memory, of that revision.
    has_state: bool,
    /// The first layer of which the state that it begins with is yet to be taken up: it comes one part after the other.
    next: u32,
    /// Of the last write: those of a captain grow.
    last_request: u64,
    /// The training state, where it came before the stage could take it.
    early: Option<(StateHeader, Payload)>,
}

/// How far a stage is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The owner builds it.
    Loading,
    AwaitsBase,
    AwaitsState,
    /// The owner takes up what came under this header.
    Writing(StateHeader),
    Ready,
}

impl Held {
    fn new(assign: Box<Assign>, has_state: bool) -> Held {
        let (revision, last_request, progress) = (assign.revision, assign.epoch, Progress::Loading);
        let next = assign.layers.first;
        Held { revision, progress, has_state, next, last_request, early: None, assign }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.progress == Progress::Ready
    }

    pub(super) fn is_writing(&self) -> bool {
        matches!(self.progress, Progress::Writing(_))
    }

    /// Whether a captain may go on with the state that is here, once no write is under way.
    pub(super) fn has_state(&self) -> bool {
        self.has_state
    }
}

impl Helper {
    pub(super) fn on_assign(&mut self, assign: Box<Assign>) {
        let is_new = self.stage.as_ref().is_none_or(|stage| stage.assign.epoch < assign.epoch);
        if !is_new {
            self.counts.stale += 1;
            return;
        }
        let is_held = self.is_settled() && self.held().is_some_and(|held| held.layers == assign.layers);
        let has_state = is_held && assign.keeps_state;
        self.abandon_batch();
        self.average(None);
        self.batch = None;
        self.last_batch = 0;
        self.copying = None;
        if assign.keeps_state && !is_held {
            self.stage = Some(Held::new(assign, false));
            return self.give_up_stage("the state that was here is gone".to_owned());
        }
        self.effects.push_back(HelperEffect::Load { assign: assign.clone() });
        self.stage = Some(Held::new(assign, has_state));
    }

    /// The stage will not be.
    pub(super) fn give_up_stage(&mut self, mut reason: String) {
        let Some(stage) = &self.stage else { return };
        let epoch = stage.assign.epoch;
        while reason.len() > REASON_BYTES_MAX {
            reason.pop();
        }
        self.unload();
        self.say(TeamMessage::Cannot { epoch, reason });
    }

    pub(super) fn on_state(&mut self, captain: PeerId, header: StateHeader, payload: Payload) {
        let has_batch = self.batch.is_some();
        let Some(stage) = self.stage.as_mut().filter(|stage| stage.assign.epoch == header.epoch) else {
            return self.counts.stale += 1;
        };
        if self.captain != Some(captain) || header.bytes != payload.len() as u64 {
            return self.counts.misbehaved += 1;
        }
        let (epoch, layers) = (stage.assign.epoch, stage.assign.layers);
        let begins = !stage.has_state && !stage.assign.keeps_state && header.request >= epoch;
        let is_next = begins && header.layers.first == stage.next && layers.contains(header.layers);
        match (stage.progress, header.kind) {
            (Progress::AwaitsBase, StateKind::Base) if header.request == epoch => self.write(header, payload),
            (Progress::AwaitsState, StateKind::Training) if is_next => self.write(header, payload),
            (
                Progress::Loading | Progress::AwaitsBase | Progress::Writing(StateHeader { kind: StateKind::Base, .. }),
                StateKind::Training,
            ) if is_next && stage.early.is_none() => {
                stage.early = Some((header, payload));
            }
            (Progress::Ready, StateKind::Training | StateKind::Parameters | StateKind::Correction)
                if header.request > stage.last_request && header.layers == layers && !has_batch =>
            {
                stage.last_request = header.request;
                self.write(header, payload);
            }
            _ => self.counts.stale += 1,
        }
    }

    fn write(&mut self, header: StateHeader, payload: Payload) {
        let stage = self.stage.as_mut().expect("a stage that a state is for");
        stage.progress = Progress::Writing(header);
        self.effects.push_back(HelperEffect::Write {
            request: header.request,
            kind: header.kind,
            layers: header.layers,
            payload,
        });
    }

    /// The stage is there but for its training state, which is written where it does not keep the one it has.
    pub(super) fn write_state(&mut self) {
        let Some(stage) = &mut self.stage else { return };
        if stage.assign.keeps_state {
            self.become_ready();
        } else if let Some((header, payload)) = stage.early.take() {
            self.write(header, payload);
        } else {
            stage.progress = Progress::AwaitsState;
        }
    }

    fn become_ready(&mut self) {
        let Some(stage) = &mut self.stage else { return };
        (stage.progress, stage.has_state) = (Progress::Ready, true);
        let (epoch, layers) = (stage.assign.epoch, (stage.assign.layers.first, stage.assign.layers.end));
        self.say(TeamMessage::Ready { epoch });
        self.notice(TeamNotice::StageLoaded { layers });
    }

    pub(super) fn on_written(&mut self, request: u64, result: Result<(), String>) {
        let Some(stage) = &mut self.stage else { return self.counts.stale += 1 };
        let Progress::Writing(header) = stage.progress else { return self.counts.stale += 1 };
        if header.request != request {
            return self.counts.stale += 1;
        }
        if let Err(reason) = result {
            return self.give_up_stage(reason);
        }
        if header.kind == StateKind::Base {
            return self.write_state();
        }
        stage.last_request = stage.last_request.max(request);
        if stage.has_state {
            (stage.revision, stage.progress) = (header.revision, Progress::Ready);
        } else if header.layers.end == stage.assign.layers.end {
            stage.revision = header.revision;
            return self.become_ready();
        } else {
            (stage.next, stage.progress) = (header.layers.end, Progress::AwaitsState);
        }
        let epoch = stage.assign.epoch;
        self.say(TeamMessage::Written { epoch, request });
    }
}
