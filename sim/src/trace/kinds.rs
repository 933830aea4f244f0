//! What kinds of events nodes were told: what never happens in a scenario proves nothing there.

use murmur_protocol::Event;

/// What kind of event this is, by the name of its variant.
pub(super) fn kind(event: &Event) -> &'static str {
    match event {
        Event::PeerConnected { .. } => "PeerConnected",
        Event::PeerDisconnected { .. } => "PeerDisconnected",
        Event::DialFailed { .. } => "DialFailed",
        Event::HandshakeRefused { .. } => "HandshakeRefused",
        Event::AddressFound { .. } => "AddressFound",
        Event::AddressLost { .. } => "AddressLost",
        Event::PeersFound { .. } => "PeersFound",
        Event::PathChanged { .. } => "PathChanged",
        Event::RangeFound { .. } => "RangeFound",
        Event::MessageReceived { .. } => "MessageReceived",
        Event::TransferReceived { .. } => "TransferReceived",
        Event::TransferFinished { .. } => "TransferFinished",
        Event::TransferFailed { .. } => "TransferFailed",
        Event::PeerMisbehaved { .. } => "PeerMisbehaved",
        Event::IdentityDoubled { .. } => "IdentityDoubled",
        Event::StepsCompleted(_) => "StepsCompleted",
        Event::TrainingCompleted(_) => "TrainingCompleted",
        Event::SnapshotTaken { .. } => "SnapshotTaken",
        Event::Encoded { .. } => "Encoded",
        Event::Merged { .. } => "Merged",
        Event::Contributed { .. } => "Contributed",
        Event::Reduced { .. } => "Reduced",
        Event::CorrectionApplied { .. } => "CorrectionApplied",
        Event::StateLoaded { accepted: true, .. } => "StateLoaded",
        Event::StateLoaded { accepted: false, .. } => "StateLoaded, not accepted",
        Event::RequestFailed { .. } => "RequestFailed",
        Event::TimePassed => "TimePassed",
        Event::LeaveRequested => "LeaveRequested",
        Event::FinishOrdered { .. } => "FinishOrdered",
        Event::HoldingChanged { .. } => "HoldingChanged",
        Event::ModelOutdated => "ModelOutdated",
        Event::RestBegan => "RestBegan",
        Event::RestEnded => "RestEnded",
    }
}
