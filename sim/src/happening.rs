//! What the queue holds: everything that can happen to a swarm.
//!
//! Whatever is meant for one life of a host names it, so that nothing of a crashed node reaches its successor.

use murmur_protocol::{Address, Event, Message, Payload, PeerId, TransferHeader, TransferId};

use crate::network::LinkId;
use crate::scenario::{HostIndex, Incident};

/// Counts the lives of all hosts: a restarted one gets a new number.
pub(crate) type Life = u64;

#[derive(Clone, Debug)]
pub(crate) enum Happening {
    /// A host's first life begins.
    Begins { host: HostIndex },
    /// The scenario's turn.
    Incident(Incident),
    /// A local driver replies, or a dial came to nothing.
    Told { host: HostIndex, life: Life, event: Event },
    /// The node's deadline; void unless `wake` is the last one set.
    Woken { host: HostIndex, life: Life, wake: u64 },
    /// The trainer ends a step; void once that stint of training is over.
    StepEnded { host: HostIndex, life: Life, stint: u64 },
    /// A trainer that does not train looks at its requests.
    IdleBoundary { host: HostIndex, life: Life },
    /// A dial reaches its target.
    DialArrived { dialler: HostIndex, life: Life, target: HostIndex, expected: Option<PeerId>, addresses: Vec<Address> },
    /// The dialler learns that its dial succeeded.
    LinkOpened { host: HostIndex, life: Life, link: LinkId },
    /// A host learns that a link is gone.
    LinkLost { host: HostIndex, life: Life, link: LinkId },
    /// A control message reaches the other end.
    MessageArrived { link: LinkId, to: HostIndex, message: Message },
    /// A payload reaches the other end; `confirmed` tells whether its sender will hear of it.
    TransferArrived {
        link: LinkId,
        to: HostIndex,
        from: (HostIndex, Life),
        transfer: TransferId,
        header: TransferHeader,
        payload: Payload,
        confirmed: bool,
    },
    /// The sender learns what became of a transfer.
    TransferEnded { host: HostIndex, life: Life, transfer: TransferId, finished: bool },
    /// A node that has stopped closes its links.
    LinksClosed { host: HostIndex, life: Life },
}

impl Happening {
    /// Whose process must be running for this to happen.
    pub(crate) fn addressee(&self) -> Option<HostIndex> {
        match self {
            Happening::Begins { .. } | Happening::Incident(_) | Happening::LinksClosed { .. } => None,
            Happening::Told { host, .. }
            | Happening::Woken { host, .. }
            | Happening::StepEnded { host, .. }
            | Happening::IdleBoundary { host, .. }
            | Happening::LinkOpened { host, .. }
            | Happening::LinkLost { host, .. }
            | Happening::TransferEnded { host, .. } => Some(*host),
            Happening::DialArrived { target, .. } => Some(*target),
            Happening::MessageArrived { to, .. } | Happening::TransferArrived { to, .. } => Some(*to),
        }
    }
}
