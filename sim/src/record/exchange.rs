//! One exchange, as both of its sides went through it.

use std::time::Duration;

use murmur_protocol::numerics::CodeWidth;
use murmur_protocol::{Correction, Snapshot, Time};

use crate::scenario::HostIndex;

/// Which side of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// It proposed.
    Starter,
    /// It answered.
    Responder,
}

/// One side's correction of one exchange, without the correction itself.
#[derive(Clone, Debug)]
pub struct MergeRecord {
    /// Names the exchange on both sides: its nonce, 64 random bits.
    pub exchange: u64,
    /// On which host.
    pub host: HostIndex,
    /// With which host, as this side meant it: a liar may bring others in by repeating old words. `None` where that is
    /// no longer known.
    pub partner: Option<HostIndex>,
    /// In which of all lives: a host that came back knows nothing of what it merged before.
    pub life: u64,
    /// Which side it is.
    pub side: Side,
    /// When it was ordered.
    pub at: Time,
    /// How long before that the snapshot was taken.
    pub age: Duration,
    /// Of the codes that were compared.
    pub width: CodeWidth,
    /// On a link: whether the starter sent a new reference for it.
    pub begins_reference: bool,
    /// The share of the joint weight that is the partner's, 0 to 1.
    pub partner_share: f64,
    /// 2γ · partner's share.
    pub factor: f64,
    /// τ as this side declared it for this exchange; infinite where it has not.
    pub clip: f64,
    /// ‖s·d‖.
    pub distance: f64,
    /// κ, as this side computed it.
    pub clip_scale: f64,
    /// Blocks left out because their codes wrapped.
    pub masked_blocks: u32,
    /// Euclidean length of the correction.
    pub length: f64,
    /// How often it became part of the model before the host died: 0 or 1 where all is well.
    pub landings: u32,
}

/// Both sides of one exchange, with what they held while it was under way.
#[derive(Clone, Debug)]
pub struct ExchangeRecord {
    /// Who proposed.
    pub starter: MergeRecord,
    /// Who answered.
    pub responder: MergeRecord,
    /// What is to be added to the starter's model, and to the responder's.
    pub corrections: [Correction; 2],
    /// The models as both merged them, the starter's first.
    pub snapshots: [Snapshot; 2],
}
