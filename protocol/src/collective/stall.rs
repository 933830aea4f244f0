//! A member that stands still until there is agreement on who goes on.

use std::collections::BTreeMap;

use super::Stalled;
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
    /// When a group was last heard that works.
    pub(super) running: Option<Time>,
}

impl Stall {
    pub(super) fn begin(since: Time, until: Time) -> Stall {
        Stall { since, until, heard: BTreeMap::new(), running: None }
    }
}
