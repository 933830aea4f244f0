//! The matrices of a frozen base in 8 bits in a GPU's memory, coded as `ops/base_weights.rs` has them in the machine's. Products
//! read a panel of rows at a time, which is decoded right before.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Result;
use murmur_protocol::ModelLayout;
use murmur_protocol::layout::TensorSpec;

use super::packed::{blocks, matrices};
use super::{AT_ONCE, Accelerator, Argument, Matrix, Memory, Span, count, launch_for_each, of_kind, size, sizes};
use crate::ops::base_weights::BLOCK;

/// Rows of a panel are a multiple of this where there are so many, so that all products have aligned columns.
const PANEL_ROWS: usize = 64;

/// Matrices, in the order of the base's layout.
pub(super) struct Coded {
    codes: Span,
    /// Of each block of [`BLOCK`] values of a matrix, in the order of its rows.
    scales: Span,
    places: Vec<Place>,
    panel: Arc<Memory>,
}

struct Place {
    /// In the base's layout.
    range: Range<usize>,
    /// In the codes, a whole block.
    first: usize,
}

/// Values of the panel of a base of this layout.
pub(super) fn panel_values(base: &ModelLayout) -> usize {
    let widest = matrices(base).map(|tensor| tensor.shape[1]).max().unwrap_or(0);
    let all = matrices(base).map(TensorSpec::len).sum::<usize>();
    sizes().panel_values.min(all).max(widest)
}

impl Coded {
    /// The matrices of a base whose codes and scales are there.
    pub(super) fn new(base: &ModelLayout, (codes, scales): (Span, Span), panel: Arc<Memory>) -> Coded {
        let mut block = 0;
        let place = |tensor: &TensorSpec| {
            let first = block * BLOCK;
            block += blocks(tensor);
            Place { range: tensor.range(), first }
        };
        Coded { codes, scales, places: matrices(base).map(place).collect(), panel }
    }

    /// The matrices of which some values lie in `range` of the base.
    fn within(&self, range: &Range<usize>) -> &[Place] {
        let first = self.places.partition_point(|place| place.range.end <= range.start);
        let end = self.places.partition_point(|place| place.range.start < range.end);
        &self.places[first..end]
    }

    /// Codes and scales of a matrix.
    fn spans(&self, place: &Place) -> [Span; 2] {
        let (length, block) = (place.range.len(), place.first / BLOCK);
        let codes = self.codes.part(place.first..place.first + length);
        [codes, self.scales.part(block..block + length.div_ceil(BLOCK))]
    }

    /// Rows of a panel of a weight with so many columns.
    pub(super) fn panel_rows(&self, columns: usize) -> usize {
        let rows = self.panel.span().values / columns;
        if rows > PANEL_ROWS { rows - rows % PANEL_ROWS } else { rows }
    }

    /// Decodes at most a panel of a weight, which may lie in several matrices. It holds until the next one is decoded.
    pub(super) fn decode(&self, device: &dyn Accelerator, range: &Range<usize>, columns: usize) -> Result<Matrix> {
        let panel = self.panel.span().first(range.len());
        for place in self.within(range) {
            let (begin, end) = (range.start.max(place.range.start), range.end.min(place.range.end));
            let decoded = panel.part(begin - range.start..end - range.start);
            let [codes, scales] = self.spans(place).map(Argument::from);
            let arguments = [codes, scales, decoded.into(), count(begin - place.range.start), count(end - begin)];
            let threads = (end - begin).div_ceil(AT_ONCE);
            launch_for_each(device, &of_kind("decode", panel.kind), threads, &arguments)?;
        }
        Ok(Matrix::new(panel, columns))
    }

    /// Writes the rows of a table of so many columns for these tokens.
    pub(super) fn embed(
        &self,
        device: &dyn Accelerator,
        table: &Range<usize>,
        (tokens, rows): (Span, usize),
        (stream, columns): (Span, usize),
    ) -> Result<()> {
        let [place] = self.within(table) else { panic!("a table is one matrix") };
        let [codes, scales] = self.spans(place);
        let spans = [codes, scales, tokens, stream].map(Argument::from);
        device.launch("embed_coded", rows, &[&spans[..], &[size(columns)]].concat())
    }
}
