//! The scale of one block.

/// The scale of a block of [`BLOCK`](crate::bulk::BLOCK) parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BlockScale {
    /// In the parameters' unit, a positive bfloat16.
    pub scale: f32,
    /// Exchanges in a row, whoever the partners were, in which the block wrapped.
    pub wraps_in_row: u32,
}
