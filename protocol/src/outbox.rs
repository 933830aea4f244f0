//! The one way out: effects in order, and what awaits a reply.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::bounds::PENDING_MAX;
use crate::collective::Version;
use crate::effect::{Effect, NetworkOrder, RequestId, TrainerOrder, TransferId};
use crate::event::TrainingReport;
use crate::message::{ExchangeNumber, Message, TransferHeader};
use crate::misbehaviour::Misbehaviour;
use crate::notice::Notice;
use crate::numerics::{Encoded, Merged, Reduced};
use crate::part::Part;
use crate::peer::PeerId;
use crate::time::Time;
use crate::{Correction, Payload, Snapshot};

/// Who awaits a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Our own exchange's snapshot.
    StarterSnapshot(ExchangeNumber),
    /// Our own exchange's codes.
    StarterCodes(ExchangeNumber),
    /// Our own exchange's correction.
    StarterMerge(ExchangeNumber),
    /// A partner's exchange: our snapshot.
    ResponderSnapshot(PeerId, ExchangeNumber),
    /// A partner's exchange: our codes.
    ResponderCodes(PeerId, ExchangeNumber),
    /// A partner's exchange: our correction.
    ResponderMerge(PeerId, ExchangeNumber),
    /// A correction on its way into the model, made from a snapshot at this own step.
    Correction { part: Part, snapshot_steps: u64 },
    /// A snapshot for joiners.
    StateSnapshot,
    /// A peer's model on its way to become ours.
    StateLoad,
    /// What is contributed to an all-reduce: the order of this number.
    Contribution(u64),
    /// Slices on their way into a sum.
    Reduction,
    /// A copy of the replica of this version for other members.
    ReplicaCopy(Version),
    /// The replica of this member on its way to become ours.
    ReplicaLoad(PeerId),
}

impl Purpose {
    /// Whether it is one of an all-reduce.
    pub(crate) fn is_of_all_reduce(self) -> bool {
        matches!(
            self,
            Purpose::Contribution(_) | Purpose::Reduction | Purpose::ReplicaCopy(_) | Purpose::ReplicaLoad(_)
        )
    }
}

/// A reply without its request.
#[derive(Debug)]
pub(crate) enum Reply {
    Snapshot(Snapshot, TrainingReport),
    Codes(Result<Encoded, Misbehaviour>),
    Merge(Result<Merged, Misbehaviour>),
    Applied(TrainingReport),
    Contributed(Snapshot, u64, TrainingReport),
    Reduced(Result<Reduced, Misbehaviour>),
    Loaded(bool, TrainingReport),
    /// The order was refused by a full queue; there will be nothing else.
    Failed,
}

/// Effects in order, with the requests among them.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    effects: VecDeque<Effect>,
    pending: BTreeMap<RequestId, (Purpose, Time)>,
    /// Bytes of the transfers under way, and when each was ordered; at most [`PENDING_MAX`].
    transfers: BTreeMap<TransferId, (usize, Time)>,
    next_request: u64,
    next_transfer: u64,
    now: Time,
}

impl Outbox {
    /// The time of the event whose effects come next.
    pub(crate) fn begin(&mut self, now: Time) {
        self.now = now;
    }

    /// As told by [`begin`](Self::begin).
    pub(crate) fn now(&self) -> Time {
        self.now
    }

    pub(crate) fn push(&mut self, effect: impl Into<Effect>) {
        self.effects.push_back(effect.into());
    }

    pub(crate) fn notice(&mut self, notice: Notice) {
        self.push(Effect::Notice(notice));
    }

    pub(crate) fn send(&mut self, peer: PeerId, message: Message) {
        self.push(NetworkOrder::Send { peer, message });
    }

    pub(crate) fn transfer(&mut self, peer: PeerId, header: TransferHeader, payload: Payload) -> TransferId {
        let transfer = TransferId(self.next_transfer);
        self.next_transfer += 1;
        if self.transfers.len() == PENDING_MAX {
            self.transfers.pop_first();
        }
        self.transfers.insert(transfer, (payload.len(), self.now));
        self.push(NetworkOrder::StartTransfer { transfer, peer, header, payload });
        transfer
    }

    /// Bytes of all transfers that have not ended.
    pub(crate) fn bytes_under_way(&self) -> usize {
        self.transfers.values().map(|(bytes, _)| bytes).sum()
    }

    /// A transfer has ended: its bytes, and how long it took; `None` for one that is forgotten.
    pub(crate) fn transfer_ended(&mut self, transfer: TransferId) -> Option<(usize, Duration)> {
        let (bytes, since) = self.transfers.remove(&transfer)?;
        Some((bytes, self.now - since))
    }

    /// Emits the order that `make` builds around a new request.
    pub(crate) fn request<Order: Into<Effect>>(&mut self, purpose: Purpose, make: impl FnOnce(RequestId) -> Order) {
        let request = RequestId(self.next_request);
        self.next_request += 1;
        // Drivers answer every request, so this many open ones are a driver that swallows them: forget the oldest.
        if self.pending.len() == PENDING_MAX {
            self.pending.pop_first();
        }
        self.pending.insert(request, (purpose, self.now));
        self.push(make(request));
    }

    pub(crate) fn apply(&mut self, part: Part, correction: Correction, progress_shift: f64, snapshot_steps: u64) {
        self.request(Purpose::Correction { part, snapshot_steps }, |request| TrainerOrder::ApplyCorrection {
            request,
            part,
            correction,
            progress_shift,
        });
    }

    /// Who awaited this reply, and since when; `None` for a late or duplicate one.
    pub(crate) fn answered(&mut self, request: RequestId) -> Option<(Purpose, Time)> {
        self.pending.remove(&request)
    }

    /// Replies for these purposes are awaited no more.
    pub(crate) fn forget(&mut self, is_void: impl Fn(Purpose) -> bool) {
        self.pending.retain(|_, (purpose, _)| !is_void(*purpose));
    }

    pub(crate) fn is_correction_pending(&self) -> bool {
        self.pending.values().any(|(purpose, _)| matches!(purpose, Purpose::Correction { .. }))
    }

    pub(crate) fn pop(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.effects.is_empty()
    }
}
