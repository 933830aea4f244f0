//! What the queue holds: everything that can happen to a swarm.
//!
//! Whatever is meant for one life of a host names it, so that nothing of a crashed node reaches its successor.

use murmur_protocol::{Address, Event, Message, Payload, PeerId, RequestId, TransferHeader, TransferId};

use crate::network::LinkId;
use crate::scenario::{HostIndex, Incident};

/// Counts the lives of all hosts: a restarted one gets a new number.
pub(crate) type Life = u64;

#[derive(Clone, Debug)]
pub(crate) enum Happening {
    /// A host's first life begins.
    Begins { host: HostIndex },
    /// The scenario's turn.
    Incident(Box<Incident>),
    /// What a process was to do while it stood still; void where it was killed meanwhile.
    Postponed { host: HostIndex, life: Life, incident: Box<Incident> },
    /// A local driver replies, or a dial came to nothing.
    Told { host: HostIndex, life: Life, event: Box<Event> },
    /// The node's deadline; void unless `wake` is the last one set.
    Woken { host: HostIndex, life: Life, wake: u64 },
    /// The trainer ends a step at which something is due; void unless `due` is the last one set.
    TrainerDue { host: HostIndex, life: Life, due: u64 },
    /// A trainer that does not train looks at its requests.
    IdleBoundary { host: HostIndex, life: Life },
    /// A member has computed what it contributes; void unless `number` is that of the last order.
    ContributionDue { host: HostIndex, life: Life, number: u64, request: RequestId },
    /// The host writes what it would resume from.
    Checkpoint { host: HostIndex, life: Life },
    /// A dial reaches its target.
    DialArrived(Box<DialArrived>),
    /// The dialer learns that its dial succeeded; `dialed` are the addresses, where it did not know who is there.
    LinkOpened { host: HostIndex, life: Life, link: LinkId, dialed: Vec<Address> },
    /// A host learns that a link is gone.
    LinkLost { host: HostIndex, life: Life, link: LinkId },
    /// An end of a connection may not have heard of the other for too long.
    LinkStarved { link: LinkId },
    /// A control message reaches the other end.
    MessageArrived { link: LinkId, to: HostIndex, message: Box<Message> },
    /// A payload reaches the other end.
    TransferArrived(Box<TransferArrived>),
    /// The sender learns what became of a transfer.
    TransferEnded { host: HostIndex, life: Life, transfer: TransferId, finished: bool },
    /// A process hears that an elder one runs with its identity.
    Yields { host: HostIndex, life: Life },
    /// A node that has stopped closes its links.
    LinksClosed { host: HostIndex, life: Life },
}

/// A dial at its target.
#[derive(Clone, Debug)]
pub(crate) struct DialArrived {
    pub(crate) dialer: (HostIndex, Life),
    pub(crate) target: HostIndex,
    pub(crate) expected: Option<PeerId>,
    pub(crate) addresses: Vec<Address>,
}

/// A payload at its target; `confirmed` tells whether its sender will hear of it.
#[derive(Clone, Debug)]
pub(crate) struct TransferArrived {
    pub(crate) link: LinkId,
    pub(crate) to: HostIndex,
    pub(crate) from: (HostIndex, Life),
    pub(crate) transfer: TransferId,
    pub(crate) header: TransferHeader,
    pub(crate) payload: Payload,
    pub(crate) confirmed: bool,
}

impl Happening {
    /// Whose process must be running for this to happen.
    pub(crate) fn addressee(&self) -> Option<HostIndex> {
        match self {
            Happening::Begins { .. }
            | Happening::Incident(_)
            | Happening::LinksClosed { .. }
            | Happening::LinkStarved { .. } => None,
            Happening::Postponed { host, .. }
            | Happening::Told { host, .. }
            | Happening::Woken { host, .. }
            | Happening::TrainerDue { host, .. }
            | Happening::IdleBoundary { host, .. }
            | Happening::ContributionDue { host, .. }
            | Happening::Checkpoint { host, .. }
            | Happening::LinkOpened { host, .. }
            | Happening::Yields { host, .. }
            | Happening::LinkLost { host, .. }
            | Happening::TransferEnded { host, .. } => Some(*host),
            Happening::DialArrived(dial) => Some(dial.target),
            Happening::MessageArrived { to, .. } => Some(*to),
            Happening::TransferArrived(transfer) => Some(transfer.to),
        }
    }
}
