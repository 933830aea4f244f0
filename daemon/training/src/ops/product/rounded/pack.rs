//! Rounds a factor's values to 16 bits and lays them out as a tile reads them: pairs that are neighbours in depth, in
//! panels of as many lanes as a tile has rows or columns.
//!
//! A lane is a row of the left factor or a column of the right one. What a panel holds beyond the factor's lanes goes to
//! no result; beyond its depth it holds zeros, of bf16 values up to the end of a chunk and of integers of a pair.

use std::arch::x86_64::{
    __m512, __m512i, _mm512_and_si512, _mm512_castps_si512, _mm512_cvtne2ps_pbh, _mm512_cvtps_epi32, _mm512_load_si512,
    _mm512_loadu_ps, _mm512_mask_blend_epi16, _mm512_mask_storeu_epi32, _mm512_maskz_loadu_ps, _mm512_max_epu32,
    _mm512_mul_ps, _mm512_permutex2var_epi16, _mm512_permutexvar_epi16, _mm512_reduce_max_epu32, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_setzero_si512, _mm512_shuffle_i32x4, _mm512_slli_epi32, _mm512_storeu_ps,
    _mm512_storeu_si512, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};
use std::mem::transmute;

/// Values of depth in a block, at most: integers share a scale along it, and `f32` sums are written after each.
pub(super) const DEPTH: usize = 256;

/// Pairs of them.
pub(super) const DEPTH_PAIRS: usize = DEPTH / 2;

/// Values of depth that are rounded at a time where they are neighbours in memory.
pub(super) const CHUNK: usize = 32;

/// Pairs of them.
pub(super) const CHUNK_PAIRS: usize = CHUNK / 2;

/// A lane in which nothing is larger than this counts as zeros: the scale's inverse would not be finite.
const MAGNITUDE_MIN: f32 = 1e-30;

/// How a panel's pairs lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// `[pairs][lanes]`.
    DepthFirst,
    /// `[lanes][DEPTH_PAIRS]`.
    LaneFirst,
}

/// A factor as packing sees it.
#[derive(Clone, Copy)]
pub(super) struct Lanes<'a> {
    pub(super) values: &'a [f32],
    pub(super) lanes: usize,
    pub(super) depth: usize,
    pub(super) lane_stride: usize,
    pub(super) depth_stride: usize,
}

impl<'a> Lanes<'a> {
    /// `lanes` of them from `lane` on, and of their depth `depth` values from `first` on, fewer where there are no more.
    pub(super) fn part(self, (lane, lanes): (usize, usize), (first, depth): (usize, usize)) -> Lanes<'a> {
        let (lanes, depth) = (lanes.min(self.lanes - lane), depth.min(self.depth - first));
        Lanes { values: &self.values[lane * self.lane_stride + first * self.depth_stride..], lanes, depth, ..self }
    }

    /// Whether reading `lanes` × `depth` values stays inside the slice.
    fn is_inside(&self) -> bool {
        let last = (self.lanes.max(1) - 1) * self.lane_stride + (self.depth.max(1) - 1) * self.depth_stride;
        last < self.values.len()
    }
}

/// How values become 16 bits.
trait Rounding {
    /// Whether each lane of a block has a scale.
    const HAS_SCALES: bool;

    /// From 16 values and those that follow them in depth, one of each a pair.
    unsafe fn pairs(even: __m512, odd: __m512, inverse: __m512) -> __m512i;

    /// From 32 values that are neighbours in depth.
    unsafe fn run(first: __m512, second: __m512, inverse: __m512) -> __m512i;
}

struct Integers;

impl Rounding for Integers {
    const HAS_SCALES: bool = true;

    #[inline(always)]
    unsafe fn pairs(even: __m512, odd: __m512, inverse: __m512) -> __m512i {
        // SAFETY: the caller has AVX-512.
        unsafe {
            let even = _mm512_cvtps_epi32(_mm512_mul_ps(even, inverse));
            let odd = _mm512_cvtps_epi32(_mm512_mul_ps(odd, inverse));
            _mm512_mask_blend_epi16(0xaaaa_aaaa, even, _mm512_slli_epi32::<16>(odd))
        }
    }

    #[inline(always)]
    unsafe fn run(first: __m512, second: __m512, inverse: __m512) -> __m512i {
        // SAFETY: the caller has AVX-512.
        unsafe {
            let first = _mm512_cvtps_epi32(_mm512_mul_ps(first, inverse));
            let second = _mm512_cvtps_epi32(_mm512_mul_ps(second, inverse));
            _mm512_permutex2var_epi16(first, EVEN_WORDS.loaded(), second)
        }
    }
}

struct Bf16;

impl Rounding for Bf16 {
    const HAS_SCALES: bool = false;

    #[inline(always)]
    unsafe fn pairs(even: __m512, odd: __m512, inverse: __m512) -> __m512i {
        // SAFETY: the caller has AVX512-BF16.
        unsafe { _mm512_permutexvar_epi16(INTERLEAVED_WORDS.loaded(), Self::run(even, odd, inverse)) }
    }

    #[inline(always)]
    unsafe fn run(first: __m512, second: __m512, _inverse: __m512) -> __m512i {
        // SAFETY: the caller has AVX512-BF16; both types are 512 bits without rules.
        unsafe { transmute(_mm512_cvtne2ps_pbh(second, first)) }
    }
}

/// Numbers of 16-bit words in two lines of registers, or in one.
#[repr(align(64))]
struct Words([u16; 32]);

/// The lower halves of the 32-bit values of two lines.
static EVEN_WORDS: Words = Words::every(2, 0);

/// From words that lie in two halves to words in turn.
static INTERLEAVED_WORDS: Words = Words::every(1, 16);

impl Words {
    /// The numbers at `2 · i` and `2 · i + 1` are `apart` apart where that is not zero, else all are `step` apart.
    const fn every(step: u16, apart: u16) -> Words {
        let (mut words, mut index) = ([0; 32], 0);
        while index < 32 {
            let place = index as u16;
            words[index] = if apart == 0 { place * step } else { place / 2 + (place % 2) * apart };
            index += 1;
        }
        Words(words)
    }

    #[inline(always)]
    unsafe fn loaded(&'static self) -> __m512i {
        // SAFETY: the caller has AVX-512, and the words lie at a multiple of 64 bytes.
        unsafe { _mm512_load_si512(self.0.as_ptr().cast()) }
    }
}

/// A packed panel and the scales of its lanes.
pub(super) struct Panel<'a> {
    /// Pairs, room for [`DEPTH_PAIRS`] of each lane.
    pub(super) pairs: &'a mut [i32],
    /// What each lane's integers are multiplied by; bf16 values leave it as it is.
    pub(super) scales: &'a mut [f32],
}

/// What integers stand for.
#[derive(Clone, Copy)]
pub(super) struct Range {
    /// The largest one of a lane.
    pub(super) limit: f32,
    /// What results are multiplied by.
    pub(super) scale: f32,
}

impl Range {
    /// Of a lane whose largest magnitude is `largest`. A lane with values that are not finite has a scale that is none.
    fn scale_and_inverse(self, largest: f32) -> (f32, f32) {
        if !largest.is_finite() {
            (f32::NAN, 0.0)
        } else if largest < MAGNITUDE_MIN {
            (0.0, 0.0)
        } else {
            (self.scale * (largest / self.limit), self.limit / largest)
        }
    }
}

/// Packs `lanes` as integers of this range, by the largest value of each lane. Returns how they lie.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) fn integers<const LANES: usize>(lanes: Lanes<'_>, range: Range, panel: Panel<'_>) -> Order {
    // SAFETY: the features are there.
    unsafe { packed::<Integers, LANES>(lanes, range, panel) }
}

/// Packs `lanes` as bf16 values, rounded to the nearest. Returns how they lie.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) fn bf16<const LANES: usize>(lanes: Lanes<'_>, panel: Panel<'_>) -> Order {
    // SAFETY: the features are there.
    unsafe { packed::<Bf16, LANES>(lanes, Range { limit: 1.0, scale: 1.0 }, panel) }
}

/// Packs up to `LANES` lanes as bf16 values in the order `[chunks][LANES][CHUNK_PAIRS]`, as tile registers take them.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) fn bf16_in_chunks<const LANES: usize>(lanes: Lanes<'_>, pairs: &mut [i32]) {
    assert!(lanes.is_inside() && lanes.lanes <= LANES && lanes.depth <= DEPTH, "lanes of one panel");
    assert!(pairs.len() >= LANES * DEPTH_PAIRS, "room for a panel");
    // SAFETY: the features are there; the assertions bound what is read and written.
    unsafe {
        let one = _mm512_set1_ps(1.0);
        let mut to = pairs.as_mut_ptr();
        for first in (0..lanes.depth).step_by(CHUNK) {
            if lanes.depth_stride == 1 {
                for lane in 0..lanes.lanes {
                    let run = &lanes.values[lane * lanes.lane_stride..][..lanes.depth];
                    let [even, odd] = chunk(run, first);
                    _mm512_storeu_si512(to.add(lane * CHUNK_PAIRS).cast(), Bf16::run(even, odd, one));
                }
            } else {
                assert_eq!(lanes.lane_stride, 1, "a matrix has neighbours in its rows or in its columns");
                for group in (0..lanes.lanes).step_by(16) {
                    let live = mask(lanes.lanes - group);
                    let mut lines = [_mm512_setzero_si512(); CHUNK_PAIRS];
                    for (pair, line) in lines.iter_mut().enumerate() {
                        *line = pair_of_rows::<Bf16>(lanes, group, live, first / 2 + pair, one);
                    }
                    for (lane, line) in transposed(lines).into_iter().enumerate() {
                        _mm512_storeu_si512(to.add((group + lane) * CHUNK_PAIRS).cast(), line);
                    }
                }
            }
            to = to.wrapping_add(LANES * CHUNK_PAIRS);
        }
    }
}

#[inline(always)]
unsafe fn packed<R: Rounding, const LANES: usize>(lanes: Lanes<'_>, range: Range, panel: Panel<'_>) -> Order {
    assert!(lanes.is_inside() && lanes.lanes <= LANES && lanes.depth <= DEPTH, "lanes of one panel");
    assert!(panel.pairs.len() >= LANES * DEPTH_PAIRS && panel.scales.len() >= LANES, "room for a panel");
    // SAFETY: the caller has the features; the assertions bound what is read and written.
    unsafe {
        match (lanes.depth_stride, lanes.lane_stride) {
            // A row of the left factor is read a pair at a time, so it lies as it did.
            (1, _) if LANES < 32 => runs::<R>(lanes, range, panel),
            (1, _) => turned::<R, LANES>(lanes, range, panel),
            (_, 1) => across::<R, LANES>(lanes, range, panel),
            _ => unreachable!("a matrix has neighbours in its rows or in its columns"),
        }
    }
}

/// Lanes that lie side by side.
#[inline(always)]
unsafe fn across<R: Rounding, const LANES: usize>(lanes: Lanes<'_>, range: Range, panel: Panel<'_>) -> Order {
    // SAFETY: as in `packed`; masks keep reads to the lanes and writes to the panel.
    unsafe {
        for group in (0..LANES).step_by(16) {
            let (live, room) = (mask(lanes.lanes.saturating_sub(group)), mask(LANES - group));
            let mut inverse = _mm512_set1_ps(1.0);
            if R::HAS_SCALES {
                let mut largest = _mm512_setzero_si512();
                for depth in 0..lanes.depth {
                    largest = _mm512_max_epu32(largest, magnitude(row(lanes, group, live, depth)));
                }
                let mut scales = [0.0; 16];
                _mm512_storeu_ps(scales.as_mut_ptr(), transmute::<__m512i, __m512>(largest));
                let mut inverses = [0.0; 16];
                for (lane, (scale, inverse)) in scales.iter_mut().zip(&mut inverses).enumerate() {
                    (*scale, *inverse) = range.scale_and_inverse(*scale);
                    if group + lane < LANES {
                        panel.scales[group + lane] = *scale;
                    }
                }
                inverse = _mm512_loadu_ps(inverses.as_ptr());
            }
            let mut to = panel.pairs.as_mut_ptr().add(group);
            let end = if R::HAS_SCALES { lanes.depth } else { lanes.depth.next_multiple_of(CHUNK) };
            for pair in 0..end.div_ceil(2) {
                _mm512_mask_storeu_epi32(to, room, pair_of_rows::<R>(lanes, group, live, pair, inverse));
                to = to.wrapping_add(LANES);
            }
        }
        Order::DepthFirst
    }
}

/// Of up to 16 lanes from `group` on that lie side by side, those of `live`, the values at one depth; zeros beyond the depth.
#[inline(always)]
unsafe fn row(lanes: Lanes<'_>, group: usize, live: u16, depth: usize) -> __m512 {
    let live = if depth < lanes.depth { live } else { 0 };
    // SAFETY: the caller has AVX-512, and the mask keeps to the lanes.
    unsafe { _mm512_maskz_loadu_ps(live, lanes.values.as_ptr().wrapping_add(depth * lanes.depth_stride + group)) }
}

/// The same, a pair of each lane.
#[inline(always)]
unsafe fn pair_of_rows<R: Rounding>(
    lanes: Lanes<'_>,
    group: usize,
    live: u16,
    pair: usize,
    inverse: __m512,
) -> __m512i {
    // SAFETY: as of `row`.
    unsafe { R::pairs(row(lanes, group, live, 2 * pair), row(lanes, group, live, 2 * pair + 1), inverse) }
}

/// Lanes of which each lies in one run, as they are.
#[inline(always)]
unsafe fn runs<R: Rounding>(lanes: Lanes<'_>, range: Range, panel: Panel<'_>) -> Order {
    // SAFETY: as in `packed`; a lane has room for as many whole chunks as it has values.
    unsafe {
        for lane in 0..lanes.lanes {
            let run = &lanes.values[lane * lanes.lane_stride..][..lanes.depth];
            let inverse = _mm512_set1_ps(if R::HAS_SCALES {
                let (scale, inverse) = range.scale_and_inverse(largest(run));
                panel.scales[lane] = scale;
                inverse
            } else {
                1.0
            });
            for first in (0..lanes.depth).step_by(CHUNK) {
                let [even, odd] = chunk(run, first);
                let to = panel.pairs.as_mut_ptr().add(lane * DEPTH_PAIRS + first / 2);
                _mm512_storeu_si512(to.cast(), R::run(even, odd, inverse));
            }
        }
        Order::LaneFirst
    }
}

/// Lanes of which each lies in one run, so that they lie side by side: 16 × 16 pairs are transposed at a time.
#[inline(always)]
unsafe fn turned<R: Rounding, const LANES: usize>(lanes: Lanes<'_>, range: Range, panel: Panel<'_>) -> Order {
    // SAFETY: as in `packed`; the panel has room for as many whole chunks as there is depth.
    unsafe {
        for group in (0..LANES).step_by(16) {
            let live = lanes.lanes.saturating_sub(group).min(16);
            let run = |lane: usize| &lanes.values[(group + lane) * lanes.lane_stride..][..lanes.depth];
            let mut inverses = [1.0; 16];
            if R::HAS_SCALES {
                for (lane, inverse) in inverses.iter_mut().enumerate() {
                    let largest = if lane < live { largest(run(lane)) } else { 0.0 };
                    (panel.scales[group + lane], *inverse) = range.scale_and_inverse(largest);
                }
            }
            for first in (0..lanes.depth).step_by(CHUNK) {
                let mut pairs = [_mm512_setzero_si512(); 16];
                for (lane, pairs) in pairs.iter_mut().enumerate().take(live) {
                    let [even, odd] = chunk(run(lane), first);
                    *pairs = R::run(even, odd, _mm512_set1_ps(inverses[lane]));
                }
                let to = panel.pairs.as_mut_ptr().add(first / 2 * LANES + group);
                for (pair, line) in transposed(pairs).into_iter().enumerate() {
                    _mm512_storeu_si512(to.add(pair * LANES).cast(), line);
                }
            }
        }
        Order::DepthFirst
    }
}

/// 32 values from `first` on, zeros behind the end.
#[inline(always)]
unsafe fn chunk(run: &[f32], first: usize) -> [__m512; 2] {
    let (from, left) = (run.as_ptr().wrapping_add(first), run.len() - first);
    // SAFETY: the caller has AVX-512, and the masks keep to the run.
    unsafe {
        if left >= CHUNK {
            [_mm512_loadu_ps(from), _mm512_loadu_ps(from.add(16))]
        } else {
            let second = from.wrapping_add(16);
            [_mm512_maskz_loadu_ps(mask(left), from), _mm512_maskz_loadu_ps(mask(left.saturating_sub(16)), second)]
        }
    }
}

/// The largest magnitude of a run; something that is not finite where there is such a value.
#[inline(always)]
unsafe fn largest(run: &[f32]) -> f32 {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let mut largest = [_mm512_setzero_si512(); 2];
        for first in (0..run.len()).step_by(CHUNK) {
            let values = chunk(run, first);
            largest = [0, 1].map(|half| _mm512_max_epu32(largest[half], magnitude(values[half])));
        }
        f32::from_bits(_mm512_reduce_max_epu32(_mm512_max_epu32(largest[0], largest[1])))
    }
}

/// The bits of magnitudes, which order as the magnitudes do, infinity and what is no number last.
#[inline(always)]
unsafe fn magnitude(values: __m512) -> __m512i {
    // SAFETY: the caller has AVX-512.
    unsafe { _mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(0x7fff_ffff)) }
}

/// Line i of the result has value i of each line.
#[inline(always)]
unsafe fn transposed(lines: [__m512i; 16]) -> [__m512i; 16] {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let mut turned = [_mm512_setzero_si512(); 16];
        // Parts of 128 bits that hold the same value of four lines.
        for four in 0..4 {
            let lines = &lines[4 * four..];
            let low = [_mm512_unpacklo_epi32(lines[0], lines[1]), _mm512_unpacklo_epi32(lines[2], lines[3])];
            let high = [_mm512_unpackhi_epi32(lines[0], lines[1]), _mm512_unpackhi_epi32(lines[2], lines[3])];
            turned[four] = _mm512_unpacklo_epi64(low[0], low[1]);
            turned[4 + four] = _mm512_unpackhi_epi64(low[0], low[1]);
            turned[8 + four] = _mm512_unpacklo_epi64(high[0], high[1]);
            turned[12 + four] = _mm512_unpackhi_epi64(high[0], high[1]);
        }
        let parts = turned;
        // Each four of them are a matrix of 4 × 4 parts.
        for value in 0..4 {
            let parts = &parts[4 * value..];
            let even =
                [_mm512_shuffle_i32x4::<0x88>(parts[0], parts[1]), _mm512_shuffle_i32x4::<0x88>(parts[2], parts[3])];
            let odd =
                [_mm512_shuffle_i32x4::<0xdd>(parts[0], parts[1]), _mm512_shuffle_i32x4::<0xdd>(parts[2], parts[3])];
            turned[value] = _mm512_shuffle_i32x4::<0x88>(even[0], even[1]);
            turned[4 + value] = _mm512_shuffle_i32x4::<0x88>(odd[0], odd[1]);
            turned[8 + value] = _mm512_shuffle_i32x4::<0xdd>(even[0], even[1]);
            turned[12 + value] = _mm512_shuffle_i32x4::<0xdd>(odd[0], odd[1]);
        }
        turned
    }
}

/// The first so many of 16.
pub(super) fn mask(count: usize) -> u16 {
    if count >= 16 { u16::MAX } else { (1 << count) - 1 }
}
