//! Events as a recording has them: bulk by its length, a worker's result by what the node reads of it.

use std::collections::BTreeMap;

use bincode::{Decode, Encode};

use crate::bulk::{Codes, Correction, Payload, Snapshot};
use crate::effect::{RequestId, TransferId};
use crate::event::{Event, TrainingReport};
use crate::finish::FinishOrder;
use crate::handshake::Refusal;
use crate::message::{KnownPeer, Message, TransferHeader};
use crate::misbehaviour::Misbehaviour;
use crate::numerics::{Accumulator, Encoded, Merged, Reduced, Reference, Scales};
use crate::peer::{Address, AddressRange, PeerId};

/// Steps, progress, tokens a second, travel and local progress.
pub(super) type ReportFields = (u64, f64, f64, f64, f64);

/// Values of a sum, values of what rounding took away, bytes that were written of the sum.
type Sums = (u64, u64, Option<u64>);

fn sums(reduced: &Reduced) -> Sums {
    let Accumulator { sum, residual } = &reduced.accumulator;
    let written = reduced.written.as_ref().map(|written| written.len() as u64);
    (sum.values().len() as u64, residual.values().len() as u64, written)
}

/// An event without what is as large as the model.
#[derive(Clone, Debug, Encode, Decode)]
pub struct Told(Kind);

/// As in [`Event`].
#[derive(Clone, Debug, Encode, Decode)]
enum Kind {
    /// None: the node was made.
    Made,
    PeerConnected {
        peer: PeerId,
        addresses: Vec<Address>,
    },
    PeerDisconnected {
        peer: PeerId,
    },
    DialFailed {
        peer: Option<PeerId>,
        addresses: Vec<Address>,
        reason: String,
    },
    HandshakeRefused {
        peer: PeerId,
        refusal: Refusal,
    },
    AddressFound {
        address: Address,
    },
    AddressLost {
        address: Address,
    },
    PeersFound {
        peers: Vec<KnownPeer>,
    },
    PathChanged {
        peer: PeerId,
        is_direct: bool,
    },
    MessageReceived {
        peer: PeerId,
        message: Message,
    },
    TransferReceived {
        peer: PeerId,
        header: TransferHeader,
        bytes: u64,
    },
    TransferFinished {
        transfer: u64,
    },
    TransferFailed {
        transfer: u64,
        reason: String,
    },
    PeerMisbehaved {
        peer: PeerId,
        misbehaviour: Misbehaviour,
    },
    IdentityDoubled {
        peer: PeerId,
    },
    StepsCompleted(ReportFields),
    TrainingCompleted(ReportFields),
    SnapshotTaken {
        request: u64,
        values: u64,
        report: ReportFields,
    },
    Encoded {
        request: u64,
        result: Result<Codings, Misbehaviour>,
    },
    Merged {
        request: u64,
        result: Result<Outcome, Misbehaviour>,
    },
    Contributed {
        request: u64,
        values: u64,
        digest: u64,
        report: ReportFields,
    },
    Reduced {
        request: u64,
        result: Result<Sums, Misbehaviour>,
    },
    CorrectionApplied {
        request: u64,
        report: ReportFields,
    },
    StateLoaded {
        request: u64,
        accepted: bool,
        report: ReportFields,
    },
    RequestFailed {
        request: u64,
    },
    TimePassed,
    LeaveRequested,
    FinishOrdered {
        order: FinishOrder,
    },
    RestBegan,
    RestEnded,
    RangeFound {
        peer: PeerId,
        range: AddressRange,
    },
}

/// Lengths of scales and codes in bytes, and digest and exchanges of the reference.
#[derive(Clone, Debug, Encode, Decode)]
struct Codings {
    scales: u64,
    codes: u64,
    reference: Option<(u64, u32)>,
    norm: f64,
}

/// What a node reads of a [`Merged`].
#[derive(Clone, Debug, Encode, Decode)]
struct Outcome {
    distance: f64,
    norm: f64,
    clip_scale: f64,
    masked_blocks: u32,
    stuck_blocks: u32,
    digest: u64,
    has_scales: bool,
    reference: Option<(u64, u32)>,
}

/// What stands for bulk: of the same length, and nothing in it.
#[derive(Debug)]
pub(super) struct StandIns {
    /// The longest payload of a model of this size, with room for what a peer adds.
    bytes: Payload,
    snapshots: BTreeMap<usize, Snapshot>,
    values_max: usize,
}

impl StandIns {
    /// For a model of so many parameters.
    pub(super) fn new(parameters: usize) -> StandIns {
        // Memory of zeros that nobody looks at is not taken from the system.
        let bytes = parameters.saturating_mul(8).saturating_add(1 << 20);
        StandIns { bytes: vec![0; bytes].into(), snapshots: BTreeMap::new(), values_max: parameters }
    }

    fn payload(&self, bytes: u64) -> Result<Payload, ()> {
        let bytes = usize::try_from(bytes).map_err(drop)?;
        // A longer one came from a peer and fits no model.
        self.bytes.slice(0..bytes.min(self.bytes.len())).ok_or(())
    }

    fn snapshot(&mut self, values: u64) -> Result<Snapshot, ()> {
        let values = usize::try_from(values).ok().filter(|values| *values <= self.values_max).ok_or(())?;
        Ok(self.snapshots.entry(values).or_insert_with(|| vec![0.0; values].into()).clone())
    }
}

pub(super) fn fields(report: &TrainingReport) -> ReportFields {
    (report.steps, report.progress, report.tokens_per_second, report.travel, report.local_progress)
}

pub(super) fn report(fields: ReportFields) -> TrainingReport {
    let (steps, progress, tokens_per_second, travel, local_progress) = fields;
    TrainingReport { steps, progress, tokens_per_second, travel, local_progress }
}

fn seen(reference: Option<&Reference>) -> Option<(u64, u32)> {
    reference.map(|reference| (reference.digest(), reference.exchanges()))
}

fn reference(seen: Option<(u64, u32)>) -> Option<Reference> {
    seen.map(|(digest, exchanges)| Reference::stand_in(digest, exchanges))
}

impl Told {
    /// What of an event is recorded.
    pub(super) fn of(event: &Event) -> Told {
        Told(match event.clone() {
            Event::PeerConnected { peer, addresses } => Kind::PeerConnected { peer, addresses },
            Event::PeerDisconnected { peer } => Kind::PeerDisconnected { peer },
            Event::DialFailed { peer, addresses, reason } => Kind::DialFailed { peer, addresses, reason },
            Event::HandshakeRefused { peer, refusal } => Kind::HandshakeRefused { peer, refusal },
            Event::AddressFound { address } => Kind::AddressFound { address },
            Event::AddressLost { address } => Kind::AddressLost { address },
            Event::PeersFound { peers } => Kind::PeersFound { peers },
            Event::PathChanged { peer, is_direct } => Kind::PathChanged { peer, is_direct },
            Event::RangeFound { peer, range } => Kind::RangeFound { peer, range },
            Event::MessageReceived { peer, message } => Kind::MessageReceived { peer, message },
            Event::TransferReceived { peer, header, payload } => {
                Kind::TransferReceived { peer, header, bytes: payload.len() as u64 }
            }
            Event::TransferFinished { transfer } => Kind::TransferFinished { transfer: transfer.0 },
            Event::TransferFailed { transfer, reason } => Kind::TransferFailed { transfer: transfer.0, reason },
            Event::PeerMisbehaved { peer, misbehaviour } => Kind::PeerMisbehaved { peer, misbehaviour },
            Event::IdentityDoubled { peer } => Kind::IdentityDoubled { peer },
            Event::StepsCompleted(standing) => Kind::StepsCompleted(fields(&standing)),
            Event::TrainingCompleted(standing) => Kind::TrainingCompleted(fields(&standing)),
            Event::SnapshotTaken { request, snapshot, report } => {
                let values = snapshot.values().len() as u64;
                Kind::SnapshotTaken { request: request.0, values, report: fields(&report) }
            }
            Event::Encoded { request, result } => {
                Kind::Encoded { request: request.0, result: result.map(Codings::from) }
            }
            Event::Merged { request, result } => Kind::Merged { request: request.0, result: result.map(Outcome::from) },
            Event::Contributed { request, contribution, digest, report } => {
                let values = contribution.values().len() as u64;
                Kind::Contributed { request: request.0, values, digest, report: fields(&report) }
            }
            Event::Reduced { request, result } => {
                let result = result.map(|reduced| sums(&reduced));
                Kind::Reduced { request: request.0, result }
            }
            Event::CorrectionApplied { request, report } => {
                Kind::CorrectionApplied { request: request.0, report: fields(&report) }
            }
            Event::StateLoaded { request, accepted, report } => {
                Kind::StateLoaded { request: request.0, accepted, report: fields(&report) }
            }
            Event::RequestFailed { request } => Kind::RequestFailed { request: request.0 },
            Event::TimePassed => Kind::TimePassed,
            Event::LeaveRequested => Kind::LeaveRequested,
            Event::FinishOrdered { order } => Kind::FinishOrdered { order },
            Event::RestBegan => Kind::RestBegan,
            Event::RestEnded => Kind::RestEnded,
        })
    }

    /// That the node was made.
    pub(super) fn made() -> Told {
        Told(Kind::Made)
    }

    /// The event again, with stand-ins for what is not recorded; none where the node was made.
    ///
    /// # Errors
    /// When it has more values than the model.
    pub(super) fn into_event(self, stand_ins: &mut StandIns) -> Result<Option<Event>, ()> {
        let event = match self.0 {
            Kind::Made => return Ok(None),
            Kind::PeerConnected { peer, addresses } => Event::PeerConnected { peer, addresses },
            Kind::PeerDisconnected { peer } => Event::PeerDisconnected { peer },
            Kind::DialFailed { peer, addresses, reason } => Event::DialFailed { peer, addresses, reason },
            Kind::HandshakeRefused { peer, refusal } => Event::HandshakeRefused { peer, refusal },
            Kind::AddressFound { address } => Event::AddressFound { address },
            Kind::AddressLost { address } => Event::AddressLost { address },
            Kind::PeersFound { peers } => Event::PeersFound { peers },
            Kind::PathChanged { peer, is_direct } => Event::PathChanged { peer, is_direct },
            Kind::RangeFound { peer, range } => Event::RangeFound { peer, range },
            Kind::MessageReceived { peer, message } => Event::MessageReceived { peer, message },
            Kind::TransferReceived { peer, header, bytes } => {
                Event::TransferReceived { peer, header, payload: stand_ins.payload(bytes)? }
            }
            Kind::TransferFinished { transfer } => Event::TransferFinished { transfer: TransferId(transfer) },
            Kind::TransferFailed { transfer, reason } => {
                Event::TransferFailed { transfer: TransferId(transfer), reason }
            }
            Kind::PeerMisbehaved { peer, misbehaviour } => Event::PeerMisbehaved { peer, misbehaviour },
            Kind::IdentityDoubled { peer } => Event::IdentityDoubled { peer },
            Kind::StepsCompleted(fields) => Event::StepsCompleted(report(fields)),
            Kind::TrainingCompleted(fields) => Event::TrainingCompleted(report(fields)),
            Kind::SnapshotTaken { request, values, report: fields } => Event::SnapshotTaken {
                request: RequestId(request),
                snapshot: stand_ins.snapshot(values)?,
                report: report(fields),
            },
            Kind::Encoded { request, result } => {
                let result = match result {
                    Ok(Codings { scales, codes, reference: seen, norm }) => Ok(Encoded {
                        scales: stand_ins.payload(scales)?,
                        codes: stand_ins.payload(codes)?,
                        reference: reference(seen),
                        norm,
                    }),
                    Err(wrong) => Err(wrong),
                };
                Event::Encoded { request: RequestId(request), result }
            }
            Kind::Merged { request, result } => {
                Event::Merged { request: RequestId(request), result: result.map(Merged::from) }
            }
            Kind::Contributed { request, values, digest, report: fields } => Event::Contributed {
                request: RequestId(request),
                contribution: stand_ins.snapshot(values)?,
                digest,
                report: report(fields),
            },
            Kind::Reduced { request, result } => {
                let result = match result {
                    Ok((values, residual, written)) => Ok(Reduced {
                        accumulator: Accumulator {
                            sum: stand_ins.snapshot(values)?,
                            residual: stand_ins.snapshot(residual)?,
                        },
                        written: written.map(|bytes| stand_ins.payload(bytes)).transpose()?,
                    }),
                    Err(wrong) => Err(wrong),
                };
                Event::Reduced { request: RequestId(request), result }
            }
            Kind::CorrectionApplied { request, report: fields } => {
                Event::CorrectionApplied { request: RequestId(request), report: report(fields) }
            }
            Kind::StateLoaded { request, accepted, report: fields } => {
                Event::StateLoaded { request: RequestId(request), accepted, report: report(fields) }
            }
            Kind::RequestFailed { request } => Event::RequestFailed { request: RequestId(request) },
            Kind::TimePassed => Event::TimePassed,
            Kind::LeaveRequested => Event::LeaveRequested,
            Kind::FinishOrdered { order } => Event::FinishOrdered { order },
            Kind::RestBegan => Event::RestBegan,
            Kind::RestEnded => Event::RestEnded,
        };
        Ok(Some(event))
    }

    /// For people.
    pub(super) fn words(&self) -> String {
        format!("{:?}", self.0)
    }
}

impl From<Encoded> for Codings {
    fn from(encoded: Encoded) -> Codings {
        let Encoded { scales, codes, reference, norm } = encoded;
        let (scales, codes) = (scales.len() as u64, codes.len() as u64);
        Codings { scales, codes, reference: seen(reference.as_ref()), norm }
    }
}

impl From<Merged> for Outcome {
    fn from(merged: Merged) -> Outcome {
        Outcome {
            distance: merged.distance,
            norm: merged.norm,
            clip_scale: merged.clip_scale,
            masked_blocks: merged.masked_blocks,
            stuck_blocks: merged.stuck_blocks,
            digest: merged.digest,
            has_scales: merged.scales.is_some(),
            reference: seen(merged.reference.as_ref()),
        }
    }
}

impl From<Outcome> for Merged {
    fn from(outcome: Outcome) -> Merged {
        Merged {
            correction: Correction::new(Codes::Narrow(Vec::new()), Vec::new()),
            distance: outcome.distance,
            norm: outcome.norm,
            clip_scale: outcome.clip_scale,
            masked_blocks: outcome.masked_blocks,
            stuck_blocks: outcome.stuck_blocks,
            digest: outcome.digest,
            scales: outcome.has_scales.then(|| Scales::for_first_exchange(&[])),
            reference: reference(outcome.reference),
        }
    }
}
