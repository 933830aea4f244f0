//! What all blocks have in common.

use crate::ops::attention::Attention;
use crate::ops::product::Products;
use crate::ops::rotary::RotaryTables;

/// For the batch at hand.
pub(super) struct Frame<'a> {
    pub(super) attention: Attention,
    /// Of the residual stream.
    pub(super) width: usize,
    /// Inside the feed-forward part.
    pub(super) inner: usize,
    pub(super) epsilon: f32,
    pub(super) rotary: &'a RotaryTables,
    /// Whether blocks keep queries and keys as they were before the norms of heads.
    pub(super) has_head_norm: bool,
    pub(super) products: Products,
}

impl Frame<'_> {
    /// The same, with products shared out among so many threads.
    pub(super) fn on(self, threads: usize) -> Self {
        Frame { products: Products { threads, ..self.products }, ..self }
    }

    pub(super) fn rows(&self) -> usize {
        self.attention.sequences * self.attention.length
    }
}
