//! The innermost loop on processors with AMX: a tile of 32 rows and 32 columns of the output, kept in four of the eight tile
//! registers, from packed bf16 factors.
//!
//! A tile register holds 16 rows of 64 bytes. `tdpbf16ps` adds to 16 × 16 sums the products of 16 rows with 16 columns, 32
//! values deep: 8,192 products in 16 cycles, eight times as many as `vpdpwssd` in this time (Intel 64 and IA-32
//! Architectures Optimization Reference Manual, chapter on AMX). It is written in assembly, for the compiler's own functions
//! are not stable.

use std::arch::asm;
use std::arch::x86_64::{
    __cpuid_count, _mm512_add_ps, _mm512_load_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_mul_ps,
    _mm512_set1_ps,
};
use std::mem::MaybeUninit;
use std::sync::LazyLock;

use super::pack::{CHUNK_PAIRS, DEPTH_PAIRS, mask};
use super::tile::{COLUMNS, Place};

/// Rows of a tile.
pub(super) const ROWS: usize = 32;

/// Rows, and columns, of one tile register of sums.
const SIDE: usize = 16;

/// Whether this machine has the instructions, and its system lets this process use them.
pub(super) fn is_here() -> bool {
    static IS_HERE: LazyLock<bool> =
        LazyLock::new(|| is_x86_feature_detected!("avx512bf16") && has_tiles() && is_permitted());
    *IS_HERE
}

fn has_tiles() -> bool {
    const BF16: u32 = 1 << 22;
    const TILES: u32 = 1 << 24;
    __cpuid_count(7, 0).edx & (BF16 | TILES) == BF16 | TILES
}

/// Tile registers are 8 KiB that Linux saves only for those who ask (Documentation/arch/x86/xstate.rst). It is for the whole
/// process, its threads as well.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ASK_FOR_STATE: libc::c_ulong = 0x1023;
    const TILE_DATA: libc::c_ulong = 18;
    // SAFETY: the call reads no memory and changes what signals need of a stack, for which Rust's own have room.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ASK_FOR_STATE, TILE_DATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// Registers of this thread that are set up; unused again when it is dropped, so that nobody saves them.
pub(super) struct Registers(());

/// All registers as large as they can be.
#[repr(C, align(64))]
struct Setup {
    palette: u8,
    first_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static SETUP: Setup = Setup {
    palette: 1,
    first_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

impl Registers {
    /// # Panics
    /// Where the machine has none.
    pub(super) fn new() -> Registers {
        assert!(is_here(), "the machine has the instructions");
        // SAFETY: they are there, and the setup is a valid one of 64 bytes.
        unsafe { asm!("ldtilecfg [{setup}]", setup = in(reg) &raw const SETUP, options(nostack, readonly)) };
        Registers(())
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        // SAFETY: whoever has made it had the instructions.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// The factors of one tile.
pub(super) struct Factors<'a> {
    /// A panel of [`ROWS`] lanes, packed [in chunks](super::pack::bf16_in_chunks).
    pub(super) left: &'a [i32],
    /// A packed panel of [`COLUMNS`] lanes, in the order [`DepthFirst`](super::pack::Order).
    pub(super) right: &'a [i32],
    /// Pairs of depth; up to the next whole chunk both panels hold zeros.
    pub(super) pairs: usize,
    /// What sums are multiplied by.
    pub(super) scale: f32,
}

/// Sums of the four registers, each row by row.
#[repr(C, align(64))]
struct Sums([[[f32; SIDE]; SIDE]; 4]);

/// Has the next row of the place come near: it is needed at the end, and a large output is in no near cache. A few rows with each
/// chunk, or the panels' lines would wait for them.
macro_rules! fetch_row {
    () => {
        "prefetcht0 [{place}]\nprefetcht0 [{place} + 64]\nadd {place}, {row_bytes}"
    };
}

/// As [`Factors`] and [`Place`] say.
///
/// # Safety
/// Every value of the place may be written, and no one else looks at it meanwhile.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn tile(_registers: &Registers, factors: &Factors<'_>, place: &Place) {
    let Factors { left, right, pairs, scale } = *factors;
    let chunks = pairs.div_ceil(CHUNK_PAIRS);
    assert!(chunks > 0 && chunks * CHUNK_PAIRS <= DEPTH_PAIRS, "a panel has so many pairs");
    assert!(left.len() >= ROWS * DEPTH_PAIRS && right.len() >= COLUMNS * DEPTH_PAIRS, "whole panels");
    assert!(place.rows <= ROWS && place.columns <= COLUMNS, "a tile");
    let mut sums = MaybeUninit::<Sums>::uninit();
    // SAFETY: the registers are set up; reads lie inside the panels by the assertions above; all sums are written before they are
    // read; the rest of the writes lie inside the place, which is the caller's.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            fetch_row!(),
            fetch_row!(),
            fetch_row!(),
            fetch_row!(),
            "tileloadd tmm4, [{left} + {left_stride}]",
            "tileloadd tmm6, [{right} + {right_stride}]",
            "tileloadd tmm7, [{right} + {right_stride} + 64]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{left} + {left_stride} + 1024]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {left}, {left_chunk}",
            "add {right}, {right_chunk}",
            "dec {chunks}",
            "jnz 2b",
            "tilestored [{sums} + {sums_stride}], tmm0",
            "tilestored [{sums} + {sums_stride} + 1024], tmm1",
            "tilestored [{sums} + {sums_stride} + 2048], tmm2",
            "tilestored [{sums} + {sums_stride} + 3072], tmm3",
            left = inout(reg) left.as_ptr() => _,
            left_stride = in(reg) 4 * CHUNK_PAIRS,
            left_chunk = const 4 * ROWS * CHUNK_PAIRS,
            right = inout(reg) right.as_ptr() => _,
            right_stride = in(reg) 4 * COLUMNS,
            right_chunk = const 4 * COLUMNS * CHUNK_PAIRS,
            chunks = inout(reg) chunks => _,
            place = inout(reg) place.values => _,
            row_bytes = in(reg) 4 * place.row_stride,
            sums = in(reg) sums.as_mut_ptr(),
            sums_stride = in(reg) 4 * SIDE,
            options(nostack)
        );
        let Sums(sums) = sums.assume_init_ref();
        let masks = [mask(place.columns), mask(place.columns.saturating_sub(SIDE))];
        let scale = _mm512_set1_ps(scale);
        for row in 0..place.rows {
            for (half, live) in masks.into_iter().enumerate() {
                let to = place.values.wrapping_add(row * place.row_stride + SIDE * half);
                let sums = sums[row / SIDE * 2 + half][row % SIDE].as_ptr();
                let scaled = _mm512_mul_ps(_mm512_load_ps(sums), scale);
                let value = if place.adds { _mm512_add_ps(_mm512_maskz_loadu_ps(live, to), scaled) } else { scaled };
                _mm512_mask_storeu_ps(to, live, value);
            }
        }
    }
}
