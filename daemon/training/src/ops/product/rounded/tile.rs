//! The innermost loop: a tile of 12 rows and 32 columns of the output, kept in registers, from packed factors.
//!
//! Both instructions take pairs of 16-bit values that lie next to each other in depth, so that one line of registers holds
//! a pair for each of 16 columns. 24 registers hold the sums, two a line of the right factor, one a value of the left.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _MM_HINT_T0, _mm_prefetch, _mm512_add_ps, _mm512_cvtepi32_ps, _mm512_dpbf16_ps,
    _mm512_dpwssd_epi32, _mm512_load_si512, _mm512_loadu_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps,
    _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512,
};
use std::mem::transmute;

use super::pack::{DEPTH_PAIRS, Order, mask};

/// Rows of a tile.
pub(super) const ROWS: usize = 12;

/// Columns of a tile.
pub(super) const COLUMNS: usize = 32;

/// The factors of one tile.
#[derive(Clone, Copy)]
pub(super) struct Factors<'a> {
    /// A packed panel of [`ROWS`] lanes.
    pub(super) left: &'a [i32],
    pub(super) order: Order,
    /// A packed panel of [`COLUMNS`] lanes, in the order [`Order::DepthFirst`], at a multiple of 64 bytes.
    pub(super) right: &'a [i32],
    /// Pairs of depth.
    pub(super) pairs: usize,
    /// What each row's sums are multiplied by.
    pub(super) row_scales: &'a [f32; ROWS],
    /// And each column's.
    pub(super) column_scales: &'a [f32; COLUMNS],
}

/// Where a tile's results go: `rows` × `columns` values from `values` on.
pub(super) struct Place {
    pub(super) values: *mut f32,
    pub(super) row_stride: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Whether they are added to what is there.
    pub(super) adds: bool,
}

impl Place {
    /// `rows` of them from `row` on, and of their columns `columns` from `column` on, fewer where there are no more.
    pub(super) fn part(&self, (row, rows): (usize, usize), (column, columns): (usize, usize)) -> Place {
        let values = self.values.wrapping_add(row * self.row_stride + column);
        Place { values, rows: rows.min(self.rows - row), columns: columns.min(self.columns - column), ..*self }
    }
}

/// An instruction that adds the products of pairs.
trait Dot {
    type Sums: Copy;

    unsafe fn zero() -> Self::Sums;

    unsafe fn add(sums: Self::Sums, left: __m512i, right: __m512i) -> Self::Sums;

    unsafe fn values(sums: Self::Sums) -> __m512;
}

struct Integers;

impl Dot for Integers {
    type Sums = __m512i;

    #[inline(always)]
    unsafe fn zero() -> __m512i {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn add(sums: __m512i, left: __m512i, right: __m512i) -> __m512i {
        // SAFETY: the caller has AVX512-VNNI.
        unsafe { _mm512_dpwssd_epi32(sums, left, right) }
    }

    #[inline(always)]
    unsafe fn values(sums: __m512i) -> __m512 {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_cvtepi32_ps(sums) }
    }
}

struct Bf16;

impl Dot for Bf16 {
    type Sums = __m512;

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn add(sums: __m512, left: __m512i, right: __m512i) -> __m512 {
        // SAFETY: the caller has AVX512-BF16, and all three types are 512 bits without rules.
        unsafe { _mm512_dpbf16_ps(sums, transmute::<__m512i, __m512bh>(left), transmute::<__m512i, __m512bh>(right)) }
    }

    #[inline(always)]
    unsafe fn values(sums: __m512) -> __m512 {
        sums
    }
}

/// As [`Factors`] and [`Place`] say, with products of integers summed in 32 bits.
///
/// # Safety
/// Every value of the place may be written, and no one else looks at it meanwhile.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) unsafe fn integers(factors: &Factors<'_>, place: &Place) {
    // SAFETY: the features are there, and the place is the caller's.
    unsafe { ordered::<Integers>(factors, place) }
}

/// The same with products of bf16 values summed in `f32`.
///
/// # Safety
/// As of [`integers`].
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn bf16(factors: &Factors<'_>, place: &Place) {
    // SAFETY: the features are there, and the place is the caller's.
    unsafe { ordered::<Bf16>(factors, place) }
}

#[inline(always)]
unsafe fn ordered<D: Dot>(factors: &Factors<'_>, place: &Place) {
    // SAFETY: the caller's.
    unsafe {
        match factors.order {
            Order::DepthFirst => tile::<D, 1, ROWS>(factors, place),
            Order::LaneFirst => tile::<D, DEPTH_PAIRS, 1>(factors, place),
        }
    }
}

/// `ROW` and `STEP`: how far neighbouring rows and pairs of the left panel are apart.
#[inline(always)]
unsafe fn tile<D: Dot, const ROW: usize, const STEP: usize>(factors: &Factors<'_>, place: &Place) {
    let Factors { left, right, pairs, .. } = *factors;
    assert!(pairs > 0 && (ROWS - 1) * ROW + (pairs - 1) * STEP < left.len(), "the left panel has so many pairs");
    assert!(pairs * COLUMNS <= right.len(), "the right panel has so many pairs");
    // SAFETY: the caller has the features; reads lie inside the panels by the assertions above, and the right one begins
    // at a multiple of 64 bytes by its maker; writes lie inside the place, which is the caller's.
    unsafe {
        // The place is needed at the end; a large output is in no near cache, and rows of many lie in one set of it.
        for row in 0..place.rows {
            let to = place.values.wrapping_add(row * place.row_stride).cast();
            _mm_prefetch::<_MM_HINT_T0>(to);
            _mm_prefetch::<_MM_HINT_T0>(to.wrapping_add(64));
        }
        let mut sums = [[D::zero(); 2]; ROWS];
        let (left, right) = (left.as_ptr(), right.as_ptr());
        for pair in 0..pairs {
            let line = right.add(pair * COLUMNS);
            let halves = [_mm512_load_si512(line.cast()), _mm512_load_si512(line.add(16).cast())];
            for (row, sums) in sums.iter_mut().enumerate() {
                let value = _mm512_set1_epi32(*left.add(row * ROW + pair * STEP));
                sums[0] = D::add(sums[0], value, halves[0]);
                sums[1] = D::add(sums[1], value, halves[1]);
            }
        }
        let masks = [mask(place.columns), mask(place.columns.saturating_sub(16))];
        let scales = factors.column_scales.as_ptr();
        let scales = [_mm512_loadu_ps(scales), _mm512_loadu_ps(scales.add(16))];
        for (row, sums) in sums.iter().enumerate() {
            if row < place.rows {
                let row_scale = _mm512_set1_ps(factors.row_scales[row]);
                for half in 0..2 {
                    let to = place.values.wrapping_add(row * place.row_stride + 16 * half);
                    let scaled = _mm512_mul_ps(D::values(sums[half]), _mm512_mul_ps(scales[half], row_scale));
                    let value =
                        if place.adds { _mm512_add_ps(_mm512_maskz_loadu_ps(masks[half], to), scaled) } else { scaled };
                    _mm512_mask_storeu_ps(to, masks[half], value);
                }
            }
        }
    }
}
