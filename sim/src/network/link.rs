//! A connection of two hosts, as the network sees it.

use murmur_protocol::{PeerId, Time};

use crate::scenario::HostIndex;

/// Names a link; never used twice.
pub(crate) type LinkId = u64;

/// A connection of two hosts.
#[derive(Debug)]
pub(crate) struct Link {
    /// Dialler and target.
    pub(super) ends: [HostIndex; 2],
    /// The identities that shook hands.
    pub(super) peers: [PeerId; 2],
    /// When the dialer's end opens; nothing reaches it before.
    pub(super) dialer_opens_at: Time,
    pub(crate) broken: bool,
    /// Whether it is decided already when it is given up, should nothing be heard on it until then.
    pub(crate) starves: bool,
    /// Which ends know that it is broken, or are no more.
    pub(super) is_closed: [bool; 2],
}

impl Link {
    /// Both ends.
    pub(crate) fn ends(&self) -> [HostIndex; 2] {
        self.ends
    }

    /// The end that is not `host`.
    pub(crate) fn other_end(&self, host: HostIndex) -> HostIndex {
        if self.ends[0] == host { self.ends[1] } else { self.ends[0] }
    }

    /// Who is at the end that is not `host`.
    pub(crate) fn other_peer(&self, host: HostIndex) -> PeerId {
        if self.ends[0] == host { self.peers[1] } else { self.peers[0] }
    }

    /// The earliest that something can reach `host`.
    pub(crate) fn opens_at(&self, host: HostIndex) -> Time {
        if self.ends[0] == host { self.dialer_opens_at } else { Time::ZERO }
    }
}
