//! What a member is doing, and what it knows of members outside of its epoch.

use std::collections::{BTreeMap, VecDeque};

use super::{Members, Stalled, Version};
use crate::Time;
use crate::peer::PeerId;

/// What a member is doing.
#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// It computes its contribution; nobody is waited for.
    Contributing,
    /// The schedule runs.
    Reducing(Reduction),
    /// It missed an operation and waits for a copy of the state.
    Copying { since: Time, version: Version },
    /// It has dropped the operation and seeks agreement on a new epoch.
    Stalled(Stall),
}

/// A schedule under way.
#[derive(Clone, Debug)]
pub(super) struct Reduction {
    pub(super) begun: Time,
    pub(super) round: u16,
    /// Lines of this round that are yet to be absorbed, in order.
    pub(super) expected: VecDeque<usize>,
}

/// The search for a new epoch.
#[derive(Clone, Debug)]
pub(super) struct Stall {
    /// Since when nothing useful is done.
    pub(super) since: Time,
    /// When is decided with those that were heard.
    pub(super) until: Time,
    pub(super) heard: BTreeMap<PeerId, (Time, Stalled)>,
    /// Who has said that its group works, and when.
    pub(super) running: BTreeMap<PeerId, Time>,
}

impl Stall {
    pub(super) fn begin(since: Time, until: Time) -> Stall {
        Stall { since, until, heard: BTreeMap::new(), running: BTreeMap::new() }
    }

    /// Somebody stands still.
    pub(super) fn hear(&mut self, now: Time, from: PeerId, said: Stalled) {
        self.heard.insert(from, (now, said));
        self.forget_running(from);
    }

    /// What this one has said of its group holds no more; what others have said of theirs does.
    pub(super) fn forget_running(&mut self, of: PeerId) {
        self.running.remove(&of);
    }
}

/// What a member outside of the epoch has said.
#[derive(Clone, Debug)]
pub(super) struct Outside {
    pub(super) heard: Time,
    /// The number of its epoch.
    pub(super) epoch: u64,
    /// Whom it reaches directly.
    pub(super) reaches: Members,
}

impl Outside {
    pub(super) fn of(heard: Time, said: &Stalled) -> Outside {
        Outside { heard, epoch: said.epoch.number, reaches: said.reaches.clone() }
    }
}
