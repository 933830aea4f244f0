//! Members that stand still until there is agreement on who goes on.

use std::collections::BTreeMap;

use super::{Members, Stalled};
use crate::Time;
use crate::peer::PeerId;

/// The search for a new epoch.
#[derive(Clone, Debug)]
pub(super) struct Stall {
    /// Since when nothing useful is done.
    pub(super) since: Time,
    /// When is decided with those that were heard.
    pub(super) until: Time,
    pub(super) heard: BTreeMap<PeerId, (Time, Stalled)>,
    /// When a group was last heard that works, and of whom.
    pub(super) running: Option<(Time, PeerId)>,
}

impl Stall {
    pub(super) fn begin(since: Time, until: Time) -> Stall {
        Stall { since, until, heard: BTreeMap::new(), running: None }
    }

    /// Somebody stands still.
    pub(super) fn hear(&mut self, now: Time, from: PeerId, said: Stalled) {
        self.heard.insert(from, (now, said));
        self.forget_running(from);
    }

    /// A group that was only heard of by this one may not work any more: one that does will say so again.
    pub(super) fn forget_running(&mut self, of: PeerId) {
        self.running = self.running.filter(|(_, peer)| *peer != of);
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
