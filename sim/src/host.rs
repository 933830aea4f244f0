//! One host: a node in its present life, its trainer, and the bookkeeping of a driver.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use murmur_protocol::{Address, Effect, Event, Node, PeerId, RequestId, Time, TransferId};

use crate::happening::Life;
use crate::network::LinkId;
use crate::record::{LifeRecord, Peaks, Side};
use crate::scenario::{HostIndex, NodePlan};
use crate::trainer::Trainer;

/// A running process.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) index: HostIndex,
    pub(crate) life: Life,
    pub(crate) peer: PeerId,
    pub(crate) node: Node,
    pub(crate) trainer: Trainer,
    /// Links that are open as far as this end knows, oldest first. Two hosts that dial each other at once get two.
    pub(crate) links: BTreeSet<LinkId>,
    /// Outgoing payloads whose end is not known yet, and whether each is a state.
    pub(crate) transfers: BTreeMap<TransferId, (LinkId, bool)>,
    /// Merges in the worker pool.
    pub(crate) merging: BTreeMap<RequestId, Merging>,
    /// Requests without a reply so far.
    pub(crate) awaited: BTreeSet<RequestId>,
    /// Number of the last deadline put into the queue, and its time.
    pub(crate) wake: (u64, Time),
    pub(crate) idle_boundary_is_set: bool,
    pub(crate) has_stopped: bool,
    pub(crate) step_time: Duration,
    pub(crate) steps_max: Option<u64>,
    /// Number of the present stint of training, and when it began.
    pub(crate) stint: u64,
    pub(crate) training_since: Option<Time>,
    pub(crate) trained_before: Duration,
    pub(crate) paused_while_training: Duration,
    pub(crate) interruptions: u64,
}

/// What must be remembered of a merge until its correction is ordered.
#[derive(Clone, Debug)]
pub(crate) struct Merging {
    pub(crate) exchange: u64,
    pub(crate) side: Side,
    pub(crate) factor: f64,
    pub(crate) clipped_distance: f64,
}

impl Host {
    pub(crate) fn new(
        (index, life): (HostIndex, Life),
        peer: PeerId,
        node: Node,
        trainer: Trainer,
        plan: &NodePlan,
    ) -> Host {
        Host {
            index,
            life,
            peer,
            node,
            trainer,
            links: BTreeSet::new(),
            transfers: BTreeMap::new(),
            merging: BTreeMap::new(),
            awaited: BTreeSet::new(),
            wake: (0, Time::ZERO),
            idle_boundary_is_set: false,
            has_stopped: false,
            step_time: plan.step_time,
            steps_max: plan.steps_max,
            stint: 0,
            training_since: None,
            trained_before: Duration::ZERO,
            paused_while_training: Duration::ZERO,
            interruptions: 0,
        }
    }

    /// Remembers that `effect` awaits a reply, where it does.
    pub(crate) fn note_request(&mut self, effect: &Effect) {
        match effect {
            Effect::TakeSnapshot { request, .. }
            | Effect::Encode { request, .. }
            | Effect::Merge { request, .. }
            | Effect::ApplyCorrection { request, .. }
            | Effect::LoadState { request, .. } => {
                self.awaited.insert(*request);
            }
            _ => {}
        }
    }

    /// Takes the reply off the list; returns what was remembered of a merge.
    pub(crate) fn note_reply(&mut self, event: &Event) -> Option<Merging> {
        let (Event::SnapshotTaken { request, .. }
        | Event::Encoded { request, .. }
        | Event::Merged { request, .. }
        | Event::CorrectionApplied { request, .. }
        | Event::StateLoaded { request, .. }
        | Event::RequestFailed { request }) = event
        else {
            return None;
        };
        self.awaited.remove(request);
        self.merging.remove(request)
    }

    /// Raises the peaks to what this host holds now.
    pub(crate) fn measure(&self, peaks: &mut Peaks) {
        peaks.awaited = peaks.awaited.max(self.awaited.len());
        peaks.merging = peaks.merging.max(self.merging.len());
        let giving = self.transfers.values().filter(|(_, is_state)| *is_state).count();
        peaks.giving = peaks.giving.max(giving);
    }

    /// Raises the peaks to what the node shows of itself: this makes a status, so it is for now and then.
    pub(crate) fn measure_node(&self, peaks: &mut Peaks) {
        let status = self.node.status();
        peaks.known = peaks.known.max(status.known.len());
        peaks.connected = peaks.connected.max(status.connected.len());
        peaks.misbehaving = peaks.misbehaving.max(status.misbehaviours.len());
    }

    pub(crate) fn begin_training(&mut self, now: Time) {
        self.trainer.is_training = true;
        self.stint += 1;
        self.training_since = Some(now);
    }

    pub(crate) fn end_training(&mut self, now: Time) {
        if let Some(since) = self.training_since.take() {
            self.trained_before += now - since;
            self.trainer.is_training = false;
            self.interruptions += 1;
        }
    }

    /// The life as checks see it, at `now`.
    pub(crate) fn record(&self, now: Time, active: bool) -> LifeRecord {
        let running = self.training_since.map(|since| now - since).unwrap_or_default();
        LifeRecord {
            host: self.index,
            active: active && self.trainer.has_model && !self.has_stopped,
            first_model: self.trainer.first_values().to_vec(),
            model: self.trainer.values().into_owned(),
            local_movement: self.trainer.local_movement(),
            steps: self.trainer.steps,
            step_time: self.step_time,
            training_time: (self.trained_before + running).saturating_sub(self.paused_while_training),
            interruptions: self.interruptions,
        }
    }
}

/// Where a host listens, in every life.
pub(crate) fn address_of(host: HostIndex) -> Address {
    Address::new(format!("sim/{host}")).expect("short and not empty")
}

/// The host behind an address.
pub(crate) fn host_at(address: &Address) -> Option<HostIndex> {
    address.as_str().strip_prefix("sim/")?.parse().ok()
}

/// An identity of a host; `stranger` counts how often it lost the one before.
pub(crate) fn identity(seed: u64, host: HostIndex, stranger: u64) -> PeerId {
    let mut hasher = blake3::Hasher::new_derive_key("murmuration 2026 simulated identity");
    for number in [seed, host as u64, stranger] {
        hasher.update(&number.to_le_bytes());
    }
    PeerId::from_public_key(*hasher.finalize().as_bytes())
}
