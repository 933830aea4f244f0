//! Events and effects as bytes: kind, numbers, and what is as large as a model as it lies in memory.
//!
//! Different ones have different bytes; equal ones have equal bytes on every machine of one byte order. Nobody reads them back.

use std::fmt::Debug;
use std::io::Write;

use murmur_protocol::event::TrainingReport;
use murmur_protocol::numerics::{Encoded, MergeRole};
use murmur_protocol::{
    Address, Correction, Effect, Event, NetworkOrder, Notice, Payload, PeerId, Snapshot, TrainerOrder, WorkerOrder,
    codec,
};

/// What an event is, then what it holds.
pub(super) fn event(event: &Event, out: &mut Vec<u8>) {
    let out = &mut Bytes(out);
    match event {
        Event::PeerConnected { peer, addresses } => out.kind(0).id(*peer).all(addresses),
        Event::PeerDisconnected { peer } => out.kind(1).id(*peer),
        Event::DialFailed { peer, addresses, reason } => {
            out.kind(2).perhaps(*peer).all(addresses).put(reason.as_bytes())
        }
        Event::AddressFound { address } => out.kind(3).put(address.as_str().as_bytes()),
        Event::AddressLost { address } => out.kind(23).put(address.as_str().as_bytes()),
        Event::PeersFound { peers } => {
            peers.iter().fold(out.kind(24), |out, known| out.id(known.peer).all(&known.addresses))
        }
        Event::PathChanged { peer, is_direct } => out.kind(25).id(*peer).flag(*is_direct),
        Event::RangeFound { peer, range } => out.kind(33).id(*peer).number(range.0),
        Event::MessageReceived { peer, message } => out.kind(4).id(*peer).put(&codec::encode(message)),
        Event::TransferReceived { peer, header, payload } => {
            out.kind(5).id(*peer).put(&codec::encode(header)).bulk(payload)
        }
        Event::TransferFinished { transfer } => out.kind(6).number(transfer.0),
        Event::TransferFailed { transfer, reason } => out.kind(7).number(transfer.0).put(reason.as_bytes()),
        Event::StepsCompleted(report) => out.kind(8).report(report),
        Event::TrainingCompleted(report) => out.kind(9).report(report),
        Event::SnapshotTaken { request, snapshot, report } => {
            out.kind(10).number(request.0).model(snapshot).report(report)
        }
        Event::Encoded { request, result } => match result {
            Ok(Encoded { scales, codes, reference: _, norm: _ }) => {
                out.kind(11).number(request.0).bulk(scales).bulk(codes)
            }
            Err(misbehaviour) => out.kind(11).number(request.0).words(misbehaviour),
        },
        Event::Merged { request, result } => match result {
            Ok(merged) => out
                .kind(12)
                .number(request.0)
                .number(merged.digest)
                .amounts(&[merged.distance, merged.clip_scale])
                .correction(&merged.correction),
            Err(misbehaviour) => out.kind(12).number(request.0).words(misbehaviour),
        },
        Event::CorrectionApplied { request, report } => out.kind(13).number(request.0).report(report),
        Event::StateLoaded { request, accepted, report } => {
            out.kind(14).number(request.0).flag(*accepted).report(report)
        }
        Event::RequestFailed { request } => out.kind(15).number(request.0),
        Event::TimePassed => out.kind(16),
        Event::LeaveRequested => out.kind(17),
        // Rare ones, and those that the simulator never tells.
        other => out.kind(u8::MAX).words(other),
    };
}

/// What an effect is, then what it holds.
pub(super) fn effect(effect: &Effect, out: &mut Vec<u8>) {
    let out = &mut Bytes(out);
    match effect {
        Effect::Network(NetworkOrder::Dial { peer, addresses }) => out.kind(100).perhaps(*peer).all(addresses),
        Effect::Network(NetworkOrder::Disconnect { peer }) => out.kind(101).id(*peer),
        Effect::Network(NetworkOrder::Send { peer, message }) => out.kind(102).id(*peer).put(&codec::encode(message)),
        Effect::Network(NetworkOrder::StartTransfer { transfer, peer, header, payload }) => {
            out.kind(103).number(transfer.0).id(*peer).put(&codec::encode(header)).bulk(payload)
        }
        Effect::Trainer(TrainerOrder::TakeSnapshot { request, selection }) => {
            out.kind(104).number(request.0).words(selection)
        }
        Effect::Worker(WorkerOrder::Encode { request, snapshot, job }) => {
            out.kind(105).number(request.0).number(job.nonce).model(snapshot)
        }
        Effect::Worker(WorkerOrder::Merge { request, job }) => {
            let amounts = [job.gamma, f64::from(job.starter_share), job.clip];
            out.kind(106).number(request.0).number(job.nonce).amounts(&amounts);
            if let MergeRole::Starter { digest } = job.role {
                out.number(digest);
            }
            out.bulk(&job.own.scales).bulk(&job.own.codes).bulk(&job.received)
        }
        Effect::Trainer(TrainerOrder::ApplyCorrection { request, part, correction, progress_shift }) => {
            out.kind(107).number(request.0).put(&codec::encode(part)).correction(correction).amounts(&[*progress_shift])
        }
        Effect::Trainer(TrainerOrder::LoadState { request, chunks, holding: _, progress }) => {
            let out = out.kind(108).number(request.0);
            chunks.iter().fold(out, Bytes::bulk).amounts(&[*progress])
        }
        Effect::Notice(Notice::ExchangeCompleted { partner, part: _, distance, clip_scale, masked_blocks, coarse }) => {
            let out = out.kind(109).id(*partner).amounts(&[*distance, *clip_scale]);
            out.number(u64::from(*masked_blocks)).flag(*coarse)
        }
        // Rare, or without anything inside.
        other => out.kind(u8::MAX - 1).words(other),
    };
}

/// What is written, one thing behind the other.
struct Bytes<'a>(&'a mut Vec<u8>);

impl Bytes<'_> {
    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn kind(&mut self, kind: u8) -> &mut Self {
        self.put(&[kind])
    }

    fn flag(&mut self, flag: bool) -> &mut Self {
        self.put(&[u8::from(flag)])
    }

    fn number(&mut self, number: u64) -> &mut Self {
        self.put(&number.to_le_bytes())
    }

    fn amounts(&mut self, amounts: &[f64]) -> &mut Self {
        amounts.iter().fold(self, |out, amount| out.number(amount.to_bits()))
    }

    fn id(&mut self, peer: PeerId) -> &mut Self {
        self.put(peer.as_bytes())
    }

    fn perhaps(&mut self, peer: Option<PeerId>) -> &mut Self {
        peer.into_iter().fold(self.flag(peer.is_some()), Bytes::id)
    }

    fn all(&mut self, addresses: &[Address]) -> &mut Self {
        addresses
            .iter()
            .map(|address| address.as_str().as_bytes())
            .fold(self, |out, text| out.kind(text.len() as u8).put(text))
    }

    fn report(&mut self, report: &TrainingReport) -> &mut Self {
        let TrainingReport { steps, progress, tokens_per_second, travel, local_progress, .. } = *report;
        self.number(steps).amounts(&[progress, tokens_per_second, travel, local_progress])
    }

    fn bulk(&mut self, payload: &Payload) -> &mut Self {
        self.number(payload.len() as u64).put(payload.bytes())
    }

    fn model(&mut self, snapshot: &Snapshot) -> &mut Self {
        self.put(bytemuck::cast_slice(snapshot.values()))
    }

    fn correction(&mut self, correction: &Correction) -> &mut Self {
        self.put(bytemuck::cast_slice(correction.scales())).put(correction.code_bytes())
    }

    fn words(&mut self, what: &impl Debug) -> &mut Self {
        // Writing to a vector cannot fail.
        let _ = write!(self.0, "{what:?}");
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(snapshot: &[f32]) -> Vec<u8> {
        let request = murmur_protocol::RequestId(1);
        let (snapshot, report) = (Snapshot::from(snapshot.to_vec()), TrainingReport::default());
        let mut out = Vec::new();
        event(&Event::SnapshotTaken { request, snapshot, report }, &mut out);
        out
    }

    #[test]
    fn a_bit_of_a_model_is_another_event() {
        assert_eq!(bytes(&[1.0, 2.0]), bytes(&[1.0, 2.0]));
        assert_ne!(bytes(&[1.0, 2.0]), bytes(&[2.0, 1.0]));
        assert_ne!(bytes(&[0.0]), bytes(&[-0.0]));
    }
}
