//! What the two sides of an exchange compute, and what comes of it.

use super::difference::Differences;
use super::reference::Reference;
use super::scales::Scales;
use super::width::CodeWidth;
use bincode::{Decode, Encode};

use crate::bulk::{Correction, Payload};
use crate::misbehaviour::Misbehaviour;
use crate::stand_ins::StandIns;

/// How a side encodes its snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodeJob {
    /// Which side this is.
    pub role: EncodeRole,
    /// Seeds the dither; the same for both partners.
    pub nonce: u64,
    /// How wide the codes are; 16 bits in a first exchange.
    pub width: CodeWidth,
}

/// Which side of an exchange encodes.
#[derive(Clone, Debug, PartialEq)]
pub enum EncodeRole {
    /// Chooses the scales of the exchange.
    Starter {
        /// The node's scales; `None` before its first exchange, which takes them from the model itself.
        scales: Option<Scales>,
    },
    /// Takes the starter's scales.
    Responder {
        /// As they were received.
        scales: Payload,
    },
    /// Either side of an exchange on a link.
    Link {
        /// The one that both sides have; without one the starter makes it from its model.
        reference: Option<Reference>,
        /// Towards a responder without one: the starter's.
        received: Option<Payload>,
    },
}

/// A model on the grid of an exchange.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
#[bincode(decode_context = "StandIns")]
pub struct Encoded {
    /// The scales of the exchange, each a bfloat16; on a link a new reference, or nothing.
    pub scales: Payload,
    /// Checks and codes; on a link this side's scales and signs.
    pub codes: Payload,
    /// On a link: what the codes refer to.
    pub reference: Option<Reference>,
    /// The Euclidean norm of the model, about.
    pub norm: f64,
}

/// Which side of an exchange merges.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MergeRole {
    /// The first to merge.
    Responder,
    /// Merges what the responder has merged.
    Starter {
        /// The responder's digest of the differences.
        digest: u64,
    },
}

/// How a side merges.
#[derive(Clone, Debug, PartialEq)]
pub struct MergeJob {
    /// Which side this is.
    pub role: MergeRole,
    /// Number of parameters that are exchanged: those of any range of whole blocks of a model.
    pub parameters: usize,
    /// This side's codes.
    pub own: Encoded,
    /// The partner's codes.
    pub received: Payload,
    /// From the exchange.
    pub width: CodeWidth,
    /// From the exchange.
    pub nonce: u64,
    /// γ, 0 to 0.5; 0 measures the distance and moves nothing.
    pub gamma: f64,
    /// The starter's share of the joint weight, 0 to 1. Each side moves by the other's.
    pub starter_share: f32,
    /// The smaller τ of the two, a Euclidean norm.
    pub clip: f64,
    /// The run's `gossip.step_fraction`.
    pub step_fraction: f64,
    /// This node's scales before the exchange.
    pub scales: Option<Scales>,
    /// On a link: what the codes refer to.
    pub reference: Option<Reference>,
}

impl MergeJob {
    /// The partner's share of the joint weight, 0 to 1: how far this side moves.
    pub fn partner_share(&self) -> f64 {
        let starter_share = f64::from(self.starter_share);
        if self.role == MergeRole::Responder { starter_share } else { 1.0 - starter_share }
    }

    /// κ, for differences of this length.
    pub(super) fn clip_scale(&self, norm: f64) -> f64 {
        // Not `clip / norm` alone: a norm of zero must not become NaN.
        if norm > self.clip { self.clip.max(0.0) / norm } else { 1.0 }
    }

    /// The digest of the differences and of the terms: terms or scales that differ would be as bad as codes that differ, for
    /// the corrections would not cancel. The scales are in the norm.
    ///
    /// # Errors
    /// When the responder has found another.
    pub(super) fn finish_digest(&self, differences: &mut Differences) -> Result<u64, Misbehaviour> {
        let norm_bits = differences.norm_squared.to_bits();
        for term in [norm_bits, self.gamma.to_bits(), self.clip.to_bits(), u64::from(self.starter_share.to_bits())] {
            differences.mix(term);
        }
        match self.role {
            MergeRole::Starter { digest } if digest != differences.digest => Err(Misbehaviour::Disagreement),
            _ => Ok(differences.digest),
        }
    }
}

/// What a merge gives.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
#[bincode(decode_context = "StandIns")]
pub struct Merged {
    /// To be added to this side's model.
    pub correction: Correction,
    /// How far apart the models were, a Euclidean norm; at least so far where blocks wrapped.
    pub distance: f64,
    /// The same over the blocks that did not wrap: what is clipped.
    pub norm: f64,
    /// κ, 0 to 1.
    pub clip_scale: f64,
    /// Blocks left out.
    pub masked_blocks: u32,
    /// Those among them that this node's grid does not reach though it has grown.
    pub stuck_blocks: u32,
    /// Digest of the differences, the mask and the terms, equal on both sides.
    pub digest: u64,
    /// This node's scales from now on; a link leaves them as they were.
    pub scales: Option<Scales>,
    /// On a link: its reference from now on.
    pub reference: Option<Reference>,
}
