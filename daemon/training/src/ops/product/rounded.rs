//! Matrix products of factors that are rounded to 16 bits, summed in 32: twice the rate of `f32` products, and more, on
//! processors with the instructions for it. Values, places and all else stay `f32`.
//!
//! Two roundings. `bf16` has the exponent of `f32` and 8 bits of precision (`tdpbf16ps`, AMX, or `vdpbf16ps`, AVX512-BF16).
//! Integers have 12 to 14 bits with their sign and one `f32` scale for up to 256 values along the depth of the product
//! (`vpdpwssd`, AVX512-VNNI): a block floating point, whose sums of a block are exact. Which one is fast differs. On Intel's
//! (measured on a Xeon of model 207) `vdpbf16ps` takes two cycles, half the rate of `f32`, and `vpdpwssd` half a cycle, twice
//! the rate; AMX, where it is there, has sixteen times the rate. On AMD's since Zen 4, where PyTorch gains a third by it,
//! bf16 is taken; this was not measured.
//!
//! An element's sum depends neither on what lies beside it nor on how a product is shared out among threads. Loops and
//! blocks as in Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008).

use std::cell::RefCell;

use super::{Matrix, MatrixMut, Write};

mod amx;
mod pack;
mod tile;

use pack::{DEPTH, DEPTH_PAIRS, Lanes, Panel};
use tile::{COLUMNS, Factors, Place, ROWS};

/// Rows whose packed values stay in the second-level cache (48 KiB) while columns pass by: a multiple of a tile's.
const BLOCK_ROWS: usize = 8 * ROWS;
const _: () = assert!(BLOCK_ROWS.is_multiple_of(amx::ROWS));

/// Columns whose packed values do (512 KiB), a multiple of a tile's.
const BLOCK_COLUMNS: usize = 32 * COLUMNS;

/// What factors are rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// The upper half of `f32`, rounded to the nearest, and multiplied in tiles.
    Bf16InTiles,
    /// The same, and multiplied line by line.
    Bf16,
    /// Integers with a scale for each lane of a block.
    Integers,
}

impl Rounding {
    /// The fastest one that this machine has, also by the maker of its processor; `None` where it has none.
    pub(crate) fn of_this_machine() -> Option<Rounding> {
        let otherwise = if is_of_amd() { [Rounding::Bf16, Rounding::Integers] } else { [Rounding::Integers; 2] };
        std::iter::once(Rounding::Bf16InTiles).chain(otherwise).find(|rounding| rounding.is_here())
    }

    /// Whether this machine has the instructions.
    fn is_here(self) -> bool {
        is_x86_feature_detected!("avx512bw")
            && match self {
                Rounding::Bf16InTiles => amx::is_here(),
                Rounding::Bf16 => is_x86_feature_detected!("avx512bf16"),
                Rounding::Integers => is_x86_feature_detected!("avx512vnni"),
            }
    }

    /// Whether a value keeps its precision beside far larger ones.
    pub(crate) fn keeps_small_values(self) -> bool {
        self != Rounding::Integers
    }

    /// Rows of a tile.
    fn rows(self) -> usize {
        if self == Rounding::Bf16InTiles { amx::ROWS } else { ROWS }
    }
}

/// Whether AMD made the processor.
fn is_of_amd() -> bool {
    let leaf = std::arch::x86_64::__cpuid(0);
    let name = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).concat();
    name == b"AuthenticAMD"
}

/// A line of the processor's cache, and of its registers.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([i32; 16]);

/// Packed blocks, made once for each thread.
struct Packed {
    /// Panels of [`ROWS`] lanes.
    left: Vec<Line>,
    /// Panels of [`COLUMNS`] lanes.
    right: Vec<Line>,
    row_scales: Vec<f32>,
    column_scales: Vec<f32>,
}

thread_local! {
    /// Fresh pages for every product would cost as much as small products do.
    static PACKED: RefCell<Packed> = RefCell::new(Packed {
        left: vec![Line([0; 16]); BLOCK_ROWS * DEPTH_PAIRS / 16],
        right: Vec::new(),
        row_scales: vec![0.0; BLOCK_ROWS],
        column_scales: vec![0.0; BLOCK_COLUMNS],
    });
}

/// `output = scale · left · right` of rounded factors, or `+=` with [`Write::Add`], on this thread.
///
/// # Panics
/// When the shapes do not fit, or the machine has no such instructions.
pub(crate) fn multiply(
    rounding: Rounding,
    output: MatrixMut<'_>,
    write: Write,
    scale: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
) {
    assert_eq!((output.rows, output.columns), (left.rows, right.columns), "the product fits its place");
    assert_eq!(left.columns, right.rows, "the factors fit each other");
    assert!(rounding.is_here(), "the machine has the instructions");
    if left.columns == 0 {
        // A sum of nothing.
        return super::multiply(output, write, scale, left, right);
    }
    PACKED.with_borrow_mut(|packed| packed.multiply(rounding, output, write, scale, left, right));
}

impl Packed {
    fn multiply(
        &mut self,
        rounding: Rounding,
        output: MatrixMut<'_>,
        write: Write,
        scale: f32,
        left: Matrix<'_>,
        right: Matrix<'_>,
    ) {
        let registers = (rounding == Rounding::Bf16InTiles).then(amx::Registers::new);
        let (left, right) = (lanes_of(left), lanes_of(right.transposed()));
        let length = block_depth(left.depth);
        let block_columns = right.lanes.min(BLOCK_COLUMNS);
        let lines = block_columns.div_ceil(COLUMNS) * COLUMNS * DEPTH_PAIRS / 16;
        if self.right.len() < lines {
            self.right.resize(lines, Line([0; 16]));
        }
        for first_column in (0..right.lanes).step_by(BLOCK_COLUMNS) {
            for first in (0..left.depth).step_by(length) {
                let depth = (first, length);
                self.pack_right(rounding, right.part((first_column, BLOCK_COLUMNS), depth));
                for first_row in (0..left.lanes).step_by(BLOCK_ROWS) {
                    let order = self.pack_left(rounding, scale, left.part((first_row, BLOCK_ROWS), depth));
                    let place = Place {
                        values: output.values.wrapping_add(first_row * output.row_stride + first_column),
                        row_stride: output.row_stride,
                        rows: (left.lanes - first_row).min(BLOCK_ROWS),
                        columns: (right.lanes - first_column).min(BLOCK_COLUMNS),
                        adds: write == Write::Add || first > 0,
                    };
                    let pairs = length.min(left.depth - first).div_ceil(2);
                    match &registers {
                        Some(registers) => self.multiply_in_tiles(registers, (pairs, scale), &place),
                        None => self.multiply_block(rounding, order, pairs, &place),
                    }
                }
            }
        }
    }

    fn pack_right(&mut self, rounding: Rounding, lanes: Lanes<'_>) {
        let panels = flat_mut(&mut self.right).chunks_exact_mut(COLUMNS * DEPTH_PAIRS);
        let panels = panels.zip(self.column_scales.chunks_exact_mut(COLUMNS));
        for (first, (pairs, scales)) in (0..lanes.lanes).step_by(COLUMNS).zip(panels) {
            pack::<COLUMNS>(rounding, lanes.part((first, COLUMNS), (0, DEPTH)), 1.0, Panel { pairs, scales });
        }
    }

    fn pack_left(&mut self, rounding: Rounding, scale: f32, lanes: Lanes<'_>) -> pack::Order {
        let rows = rounding.rows();
        let panels = flat_mut(&mut self.left).chunks_exact_mut(rows * DEPTH_PAIRS);
        let panels = panels.zip(self.row_scales.chunks_exact_mut(rows));
        let mut order = pack::Order::DepthFirst;
        for (first, (pairs, scales)) in (0..lanes.lanes).step_by(rows).zip(panels) {
            let lanes = lanes.part((first, rows), (0, DEPTH));
            if rounding == Rounding::Bf16InTiles {
                // SAFETY: `multiply` has checked for the instructions.
                unsafe { pack::bf16_in_chunks::<{ amx::ROWS }>(lanes, pairs) };
            } else {
                order = pack::<ROWS>(rounding, lanes, scale, Panel { pairs, scales });
            }
        }
        order
    }

    /// All tiles of a block; `place` is all of it.
    fn multiply_block(&self, rounding: Rounding, order: pack::Order, pairs: usize, place: &Place) {
        let (left, right) = (flat(&self.left), flat(&self.right));
        for column in (0..place.columns).step_by(COLUMNS) {
            for row in (0..place.rows).step_by(ROWS) {
                let factors = Factors {
                    left: &left[row * DEPTH_PAIRS..][..ROWS * DEPTH_PAIRS],
                    order,
                    right: &right[column * DEPTH_PAIRS..][..COLUMNS * DEPTH_PAIRS],
                    pairs,
                    row_scales: self.row_scales[row..].first_chunk().expect("blocks are whole panels"),
                    column_scales: self.column_scales[column..].first_chunk().expect("blocks are whole panels"),
                };
                let place = place.part((row, ROWS), (column, COLUMNS));
                // SAFETY: `multiply` has checked for the instructions; the place is a part of its output, which is
                // borrowed exclusively.
                unsafe {
                    match rounding {
                        Rounding::Integers => tile::integers(&factors, &place),
                        _ => tile::bf16(&factors, &place),
                    }
                }
            }
        }
    }

    /// The same of bf16 values whose sums are multiplied by `scale`.
    fn multiply_in_tiles(&self, registers: &amx::Registers, (pairs, scale): (usize, f32), place: &Place) {
        let (left, right) = (flat(&self.left), flat(&self.right));
        for column in (0..place.columns).step_by(COLUMNS) {
            for row in (0..place.rows).step_by(amx::ROWS) {
                let factors = amx::Factors {
                    left: &left[row * DEPTH_PAIRS..][..amx::ROWS * DEPTH_PAIRS],
                    right: &right[column * DEPTH_PAIRS..][..COLUMNS * DEPTH_PAIRS],
                    pairs,
                    scale,
                };
                // SAFETY: the place is a part of the output of `multiply`, which is borrowed exclusively.
                unsafe { amx::tile(registers, &factors, &place.part((row, amx::ROWS), (column, COLUMNS))) }
            }
        }
    }
}

/// Packs a panel; `scale` multiplies what comes of it.
fn pack<const LANES: usize>(rounding: Rounding, lanes: Lanes<'_>, scale: f32, panel: Panel<'_>) -> pack::Order {
    match rounding {
        Rounding::Bf16InTiles | Rounding::Bf16 => {
            panel.scales.fill(scale);
            // SAFETY: `multiply` has checked for the instructions.
            unsafe { pack::bf16::<LANES>(lanes, panel) }
        }
        Rounding::Integers => {
            let range = pack::Range { limit: integer_limit(lanes.depth), scale };
            // SAFETY: `multiply` has checked for the instructions.
            unsafe { pack::integers::<LANES>(lanes, range, panel) }
        }
    }
}

fn lanes_of(matrix: Matrix<'_>) -> Lanes<'_> {
    let Matrix { values, rows, columns, row_stride, column_stride } = matrix;
    Lanes { values, lanes: rows, depth: columns, lane_stride: row_stride, depth_stride: column_stride }
}

/// How deep the blocks of a product are: as equal as whole chunks make them.
fn block_depth(depth: usize) -> usize {
    depth.div_ceil(depth.div_ceil(DEPTH)).next_multiple_of(pack::CHUNK).min(DEPTH)
}

/// The largest integer of which `depth` squares are surely less than 2³¹.
fn integer_limit(depth: usize) -> f32 {
    (i32::MAX as u64 / depth.max(1) as u64).isqrt().min(i16::MAX as u64) as f32
}

fn flat(lines: &[Line]) -> &[i32] {
    // SAFETY: a line is 16 integers without anything between them.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), 16 * lines.len()) }
}

fn flat_mut(lines: &mut [Line]) -> &mut [i32] {
    // SAFETY: a line is 16 integers without anything between them.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), 16 * lines.len()) }
}

#[cfg(test)]
mod tests;
