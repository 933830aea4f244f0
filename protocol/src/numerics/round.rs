//! What a round costs.

use super::width::{CodeWidth, codes_bytes, scales_bytes};
use crate::manifest::{GossipKind, GossipSpec};

/// Bytes that a node sends in a round for a model of so many parameters, in the steady state: codes and scales of the
/// exchange that it starts, and the codes of one that it answers. With fragments a round exchanges one of them.
pub fn round_bytes(parameters: usize, gossip: &GossipSpec) -> usize {
    let width = CodeWidth::from_bits(gossip.bits).unwrap_or(CodeWidth::Eight);
    let bytes = match gossip.kind {
        GossipKind::Pairs => scales_bytes(parameters) + 2 * codes_bytes(parameters, width),
        GossipKind::Links => 2 * codes_bytes(parameters, CodeWidth::One),
    };
    bytes / usize::from(gossip.fragments.max(1))
}
