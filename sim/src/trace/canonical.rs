//! Events and effects as bytes: kind, numbers, and what is as large as a model as it lies in memory.
//!
//! Different ones have different bytes; equal ones have equal bytes on every machine of one byte order. Nobody reads them back.

use std::fmt::Debug;
use std::io::Write;

use murmur_protocol::event::TrainingReport;
use murmur_protocol::numerics::{Encoded, MergeRole, Merged};
use murmur_protocol::{
    Address, Correction, Effect, Event, NetworkOrder, Notice, Payload, PeerId, Snapshot, TrainerOrder, WorkerOrder,
    codec,
};

/// What an event is, then what it holds.
pub(super) fn event(event: &Event, out: &mut Vec<u8>) {
    match event {
        Event::PeerConnected { peer, addresses } => {
            out.push(0);
            id(*peer, out);
            all(addresses, out);
        }
        Event::PeerDisconnected { peer } => {
            out.push(1);
            id(*peer, out);
        }
        Event::DialFailed { peer, addresses, reason } => {
            out.push(2);
            out.push(u8::from(peer.is_some()));
            peer.iter().for_each(|peer| id(*peer, out));
            all(addresses, out);
            out.extend_from_slice(reason.as_bytes());
        }
        Event::AddressFound { address } => {
            out.push(3);
            out.extend_from_slice(address.as_str().as_bytes());
        }
        Event::AddressLost { address } => {
            out.push(23);
            out.extend_from_slice(address.as_str().as_bytes());
        }
        Event::PeersFound { peers } => {
            out.push(24);
            for known in peers {
                id(known.peer, out);
                all(&known.addresses, out);
            }
        }
        Event::PathChanged { peer, is_direct } => {
            out.push(25);
            id(*peer, out);
            out.push(u8::from(*is_direct));
        }
        Event::RangeFound { peer, range } => {
            out.push(33);
            id(*peer, out);
            number(range.0, out);
        }
        Event::MessageReceived { peer, message } => {
            out.push(4);
            id(*peer, out);
            out.extend_from_slice(&codec::encode(message));
        }
        Event::TransferReceived { peer, header, payload } => {
            out.push(5);
            id(*peer, out);
            out.extend_from_slice(&codec::encode(header));
            bulk(payload, out);
        }
        Event::TransferFinished { transfer } => {
            out.push(6);
            number(transfer.0, out);
        }
        Event::TransferFailed { transfer, reason } => {
            out.push(7);
            number(transfer.0, out);
            out.extend_from_slice(reason.as_bytes());
        }
        Event::StepsCompleted(standing) => {
            out.push(8);
            report(standing, out);
        }
        Event::TrainingCompleted(standing) => {
            out.push(9);
            report(standing, out);
        }
        Event::SnapshotTaken { request, snapshot, report: standing } => {
            out.push(10);
            number(request.0, out);
            model(snapshot, out);
            report(standing, out);
        }
        Event::Encoded { request, result } => {
            out.push(11);
            number(request.0, out);
            match result {
                Ok(Encoded { scales, codes, reference: _, norm: _ }) => {
                    [scales, codes].into_iter().for_each(|payload| bulk(payload, out))
                }
                Err(misbehaviour) => words(misbehaviour, out),
            }
        }
        Event::Merged { request, result } => {
            out.push(12);
            number(request.0, out);
            match result {
                Ok(merged) => outcome(merged, out),
                Err(misbehaviour) => words(misbehaviour, out),
            }
        }
        Event::CorrectionApplied { request, report: standing } => {
            out.push(13);
            number(request.0, out);
            report(standing, out);
        }
        Event::StateLoaded { request, accepted, report: standing } => {
            out.push(14);
            number(request.0, out);
            out.push(u8::from(*accepted));
            report(standing, out);
        }
        Event::RequestFailed { request } => {
            out.push(15);
            number(request.0, out);
        }
        Event::TimePassed => out.push(16),
        Event::LeaveRequested => out.push(17),
        // Rare ones, and those that the simulator never tells.
        other => {
            out.push(u8::MAX);
            words(other, out);
        }
    }
}

/// What an effect is, then what it holds.
pub(super) fn effect(effect: &Effect, out: &mut Vec<u8>) {
    match effect {
        Effect::Network(NetworkOrder::Dial { peer, addresses }) => {
            out.push(100);
            out.push(u8::from(peer.is_some()));
            peer.iter().for_each(|peer| id(*peer, out));
            all(addresses, out);
        }
        Effect::Network(NetworkOrder::Disconnect { peer }) => {
            out.push(101);
            id(*peer, out);
        }
        Effect::Network(NetworkOrder::Send { peer, message }) => {
            out.push(102);
            id(*peer, out);
            out.extend_from_slice(&codec::encode(message));
        }
        Effect::Network(NetworkOrder::StartTransfer { transfer, peer, header, payload }) => {
            out.push(103);
            number(transfer.0, out);
            id(*peer, out);
            out.extend_from_slice(&codec::encode(header));
            bulk(payload, out);
        }
        Effect::Trainer(TrainerOrder::TakeSnapshot { request, selection }) => {
            out.push(104);
            number(request.0, out);
            words(selection, out);
        }
        Effect::Worker(WorkerOrder::Encode { request, snapshot, job }) => {
            out.push(105);
            number(request.0, out);
            number(job.nonce, out);
            model(snapshot, out);
        }
        Effect::Worker(WorkerOrder::Merge { request, job }) => {
            out.push(106);
            number(request.0, out);
            number(job.nonce, out);
            for amount in [job.gamma, f64::from(job.starter_share), job.clip] {
                number(amount.to_bits(), out);
            }
            if let MergeRole::Starter { digest } = job.role {
                number(digest, out);
            }
            [&job.own.scales, &job.own.codes, &job.received].into_iter().for_each(|payload| bulk(payload, out));
        }
        Effect::Trainer(TrainerOrder::ApplyCorrection { request, part, correction: change, progress_shift }) => {
            out.push(107);
            number(request.0, out);
            out.extend_from_slice(&codec::encode(part));
            correction(change, out);
            number(progress_shift.to_bits(), out);
        }
        Effect::Trainer(TrainerOrder::LoadState { request, chunks, holding: _, progress }) => {
            out.push(108);
            number(request.0, out);
            chunks.iter().for_each(|chunk| bulk(chunk, out));
            number(progress.to_bits(), out);
        }
        Effect::Notice(Notice::ExchangeCompleted { partner, part: _, distance, clip_scale, masked_blocks, coarse }) => {
            out.push(109);
            id(*partner, out);
            number(distance.to_bits(), out);
            number(clip_scale.to_bits(), out);
            number(u64::from(*masked_blocks), out);
            out.push(u8::from(*coarse));
        }
        // Rare, or without anything inside.
        other => {
            out.push(u8::MAX - 1);
            words(other, out);
        }
    }
}

fn number(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn id(peer: PeerId, out: &mut Vec<u8>) {
    out.extend_from_slice(peer.as_bytes());
}

fn all(addresses: &[Address], out: &mut Vec<u8>) {
    for address in addresses {
        out.push(address.as_str().len() as u8);
        out.extend_from_slice(address.as_str().as_bytes());
    }
}

fn report(report: &TrainingReport, out: &mut Vec<u8>) {
    number(report.steps, out);
    for amount in [report.progress, report.tokens_per_second, report.travel, report.local_progress] {
        number(amount.to_bits(), out);
    }
}

fn outcome(merged: &Merged, out: &mut Vec<u8>) {
    number(merged.digest, out);
    number(merged.distance.to_bits(), out);
    number(merged.clip_scale.to_bits(), out);
    correction(&merged.correction, out);
}

fn bulk(payload: &Payload, out: &mut Vec<u8>) {
    number(payload.len() as u64, out);
    out.extend_from_slice(payload.bytes());
}

fn model(snapshot: &Snapshot, out: &mut Vec<u8>) {
    out.extend_from_slice(bytemuck::cast_slice(snapshot.values()));
}

fn correction(correction: &Correction, out: &mut Vec<u8>) {
    out.extend_from_slice(bytemuck::cast_slice(correction.scales()));
    out.extend_from_slice(correction.code_bytes());
}

fn words(what: &impl Debug, out: &mut Vec<u8>) {
    // Writing to a vector cannot fail.
    let _ = write!(out, "{what:?}");
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
