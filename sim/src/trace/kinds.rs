//! What kinds of events nodes were told: what never happens in a scenario proves nothing there.

use murmur_protocol::Event;

/// Names variants by themselves.
macro_rules! names {
    ($event:ident, $($kind:ident),+) => {
        match $event {
            $(Event::$kind { .. } => stringify!($kind),)+
        }
    };
}

/// What kind of event this is, by the name of its variant.
pub(super) fn kind(event: &Event) -> &'static str {
    if let Event::StateLoaded { accepted: false, .. } = event {
        return "StateLoaded, not accepted";
    }
    names! {
        event,
        PeerConnected, PeerDisconnected, DialFailed, HandshakeRefused, AddressFound, AddressLost, PeersFound,
        PathChanged, RangeFound, MessageReceived, TransferReceived, TransferFinished, TransferFailed,
        PeerMisbehaved, IdentityDoubled, StepsCompleted, TrainingCompleted, SnapshotTaken, Encoded, Merged,
        Contributed, Reduced, CorrectionApplied, StateLoaded, RequestFailed, TimePassed, LeaveRequested,
        FinishOrdered, HoldingChanged, ModelOutdated, RestBegan, RestEnded
    }
}
