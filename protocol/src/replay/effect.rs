//! Effects in words, and digests of them. What is as large as the model counts by its length.

use std::fmt::Write;

use crate::effect::{Effect, NetworkOrder, TrainerOrder, WorkerOrder};
use crate::numerics::{EncodeRole, Encoded, ReduceStep, Reference};

/// Four bytes of BLAKE3 over the [`outline`].
pub fn digest(effect: &Effect) -> u32 {
    let hash = *blake3::hash(outline(effect).as_bytes()).as_bytes();
    u32::from_le_bytes([hash[0], hash[1], hash[2], hash[3]])
}

/// An effect in words: different decisions have different words.
pub fn outline(effect: &Effect) -> String {
    let mut text = String::new();
    let written = match effect {
        Effect::Network(NetworkOrder::StartTransfer { transfer, peer, header, payload }) => {
            write!(text, "StartTransfer {transfer:?} to {peer}: {header:?}, {} bytes", payload.len())
        }
        Effect::Trainer(TrainerOrder::ApplyCorrection { request, part, correction: _, progress_shift }) => {
            write!(text, "ApplyCorrection {request:?} of {part:?}, progress {progress_shift:?}")
        }
        Effect::Trainer(TrainerOrder::LoadState { request, chunks, holding: _, progress }) => {
            let bytes: usize = chunks.iter().map(crate::Payload::len).sum();
            write!(text, "LoadState {request:?}: {} chunks, {bytes} bytes, progress {progress:?}", chunks.len())
        }
        Effect::Worker(WorkerOrder::Encode { request, snapshot, job }) => {
            let role = match &job.role {
                EncodeRole::Starter { scales } => format!("starter, scales {}", scales.is_some()),
                EncodeRole::Responder { scales } => format!("responder, {} bytes of scales", scales.len()),
                EncodeRole::Link { reference, received } => {
                    let bytes = received.as_ref().map(crate::Payload::len);
                    format!("link of {:?}, {bytes:?} bytes", known(reference.as_ref()))
                }
            };
            let values = snapshot.values().len();
            write!(text, "Encode {request:?}: {values} values, {:?}, nonce {}, {role}", job.width, job.nonce)
        }
        Effect::Worker(WorkerOrder::Merge { request, job }) => {
            let Encoded { scales, codes, reference, norm: _ } = &job.own;
            write!(
                text,
                "Merge {request:?}: {:?}, {} parameters, own {} and {} of {:?}, received {}, {:?}, nonce {}, gamma {:?}, share \
                 {:?}, clip {:?}, fraction {:?}, scales {}, of {:?}",
                job.role,
                job.parameters,
                scales.len(),
                codes.len(),
                known(reference.as_ref()),
                job.received.len(),
                job.width,
                job.nonce,
                job.gamma,
                job.starter_share,
                job.clip,
                job.step_fraction,
                job.scales.is_some(),
                known(job.reference.as_ref()),
            )
        }
        Effect::Trainer(TrainerOrder::TakeUp { sum, members, progress }) => {
            write!(text, "TakeUp {} values of {members}, progress {progress:?}", sum.values().len())
        }
        Effect::Trainer(TrainerOrder::LoadReplica { request, replica, progress }) => {
            write!(text, "LoadReplica {request:?}: {} bytes, progress {progress:?}", replica.len())
        }
        Effect::Worker(WorkerOrder::Reduce { request, job }) => {
            write!(text, "Reduce {request:?}, {:?}: ", job.codec).expect("a string takes everything");
            match &job.step {
                ReduceStep::Begin { contribution, residual } => {
                    write!(text, "{} values and {}", contribution.values().len(), residual.values().len())
                }
                ReduceStep::Absorb { accumulator, range, received, action } => {
                    let (values, bytes) = (accumulator.sum.values().len(), received.len());
                    write!(text, "{range:?} of {values} values, {bytes} bytes, {action:?}")
                }
                ReduceStep::Write { accumulator, range, action } => {
                    write!(text, "write {range:?} of {} values, {action:?}", accumulator.sum.values().len())
                }
            }
        }
        other => write!(text, "{other:?}"),
    };
    written.expect("a string takes everything");
    text
}

fn known(reference: Option<&Reference>) -> Option<(u64, u32)> {
    reference.map(|reference| (reference.digest(), reference.exchanges()))
}
