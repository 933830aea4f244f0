//! The check on a block's indices: 16 bits that their codes do not already tell.
//!
//! The sum `S = Σ w_k · Q_k` over the *unwrapped* indices is known modulo `2^bits` to whoever knows the codes, so its next
//! 16 bits are the ones worth sending. The sum is linear: `S_partner − S_own = Σ w_k · d_k`, which holds in those bits for
//! the differences `d` that were read from the codes unless a code wrapped. A wrap by `m` at position `k` shifts them by
//! `w_k · m`: odd weights, all different and below 2^15, leave no single wrap, no pair and no triple of wraps by one
//! unseen. Each exchange has weights of its own: whatever wraps slip through one check (one set in 65,536) would slip
//! through the same check for ever, and two models stay apart whose distance nobody sees.

use std::cell::RefCell;
use std::rc::Rc;

use super::grid::{Indices, hash};
use super::width::CodeWidth;
use crate::bulk::BLOCK;

/// Exchanges whose weights a thread keeps: those of one are used at least twice, to encode and to merge, and a simulator has
/// many under way.
const KEPT: usize = 256;

/// An exchange's nonce, and its weights.
type Known = Option<(u64, Rc<Weights>)>;

thread_local! {
    static RECENT: RefCell<Vec<Known>> = const { RefCell::new(Vec::new()) };
}

/// The weights of one exchange.
pub(super) struct Weights {
    of_indices: [i32; BLOCK],
    /// The same for codes: vectors multiply numbers of 16 bits at twice the rate, and add pairs on the way.
    of_codes: [i16; BLOCK],
}

impl Weights {
    /// Those of the exchange with this nonce.
    pub(super) fn of(nonce: u64) -> Rc<Weights> {
        RECENT.with_borrow_mut(|recent| {
            recent.resize(KEPT, None);
            let place = &mut recent[nonce as usize % KEPT];
            match place {
                Some((known, weights)) if *known == nonce => weights.clone(),
                _ => place.insert((nonce, Rc::new(Weights::new(nonce)))).1.clone(),
            }
        })
    }

    /// In the lower nine bits the odd numbers in a random order, above them six random bits.
    fn new(nonce: u64) -> Weights {
        // Numbers that the grid does not use: it counts up from zero, and down from the largest.
        let mut drawn: [u64; BLOCK] = std::array::from_fn(|position| hash(nonce, (1 << 62) + position as u64));
        // The low byte tells positions apart, so that the order is one of them; it comes from no random bits.
        drawn.iter_mut().enumerate().for_each(|(position, drawn)| *drawn = (*drawn & !0xff) | position as u64);
        drawn.sort_unstable();
        let of_codes = drawn.map(|drawn| (drawn >> 8 & 0x3f) as i16 * 512 + 2 * (drawn & 0xff) as i16 + 1);
        Weights { of_indices: of_codes.map(i32::from), of_codes }
    }

    /// `S` of a block's indices, modulo 2^32.
    #[inline(always)]
    pub(super) fn sum(&self, indices: &Indices) -> u32 {
        let mut sum = 0i32;
        for (index, weight) in indices.iter().zip(&self.of_indices) {
            sum = sum.wrapping_add(index.wrapping_mul(*weight));
        }
        sum as u32
    }

    /// The same sum of codes or of differences of codes.
    #[inline(always)]
    pub(super) fn sum_of_codes<Code: Copy + Into<i32>>(&self, codes: &[Code; BLOCK]) -> u32 {
        let mut sum = 0i32;
        for (code, weight) in codes.iter().zip(&self.of_codes) {
            sum = sum.wrapping_add((*code).into().wrapping_mul(i32::from(*weight)));
        }
        sum as u32
    }
}

/// The bits of `S` that are sent.
#[inline(always)]
pub(super) fn of_sum(sum: u32, width: CodeWidth) -> u16 {
    (sum >> width.bits()) as u16
}

/// What is known of `S` from a check and the weighted sum of the codes: its lowest `bits + 16` bits.
#[inline(always)]
pub(super) fn sum_of(check: u16, codes_sum: u32, width: CodeWidth) -> u32 {
    (u32::from(check) << width.bits()) | (codes_sum & ((1 << width.bits()) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTHS: [CodeWidth; 4] = [CodeWidth::Four, CodeWidth::Six, CodeWidth::Eight, CodeWidth::Sixteen];

    fn some_indices() -> Indices {
        std::array::from_fn(|position| (position as i32 - 77).wrapping_mul(0x2545_f491))
    }

    #[test]
    fn no_one_or_two_wraps_escape_the_check() {
        let base = [0; BLOCK];
        for (width, nonce) in WIDTHS.into_iter().zip(1..) {
            let weights = Weights::new(nonce);
            let clean = of_sum(weights.sum(&base), width);
            let wrap = 1 << width.bits();
            for first in 0..BLOCK {
                for sign in [-wrap, wrap] {
                    let mut wrapped = base;
                    wrapped[first] += sign;
                    assert_ne!(of_sum(weights.sum(&wrapped), width), clean, "a wrap at {first}");
                    for second in first + 1..BLOCK {
                        let mut twice = wrapped;
                        for second_sign in [-wrap, wrap] {
                            twice[second] = base[second] + second_sign;
                            let check = of_sum(weights.sum(&twice), width);
                            assert_ne!(check, clean, "wraps at {first} and {second} of {width:?}");
                        }
                    }
                }
            }
        }
    }

    /// What one check does not see, the next one does: a pattern of wraps that sums to zero under equal weights for all.
    #[test]
    fn no_pattern_of_wraps_escapes_one_check_after_the_other() {
        for turns in [1, 8, 64] {
            let mut wrapped = [0; BLOCK];
            for (position, sign) in
                [(0, 1), (5, 1), (14, 1), (26, 1), (61, 1), (66, 1), (29, -1), (35, -1), (42, -1), (67, -1)]
            {
                wrapped[position] = (sign * turns) << CodeWidth::Six.bits();
            }
            let unseen = |nonce: &u64| of_sum(Weights::new(*nonce).sum(&wrapped), CodeWidth::Six) == 0;
            // By chance one in 32,768 / turns: the sum of ten odd weights is even.
            assert!((0..1000).filter(unseen).count() <= 10, "{turns} turns");
        }
    }

    #[test]
    fn a_check_and_the_codes_tell_all_bits_that_count() {
        let weights = Weights::new(7);
        let sum = weights.sum(&some_indices());
        for width in WIDTHS {
            let codes: Indices = some_indices().map(|index| index & ((1 << width.bits()) - 1));
            let known = sum_of(of_sum(sum, width), weights.sum(&codes), width);
            let bits = u32::from(width.bits()) + 16;
            assert_eq!(u64::from(known), u64::from(sum) & ((1 << bits) - 1), "{width:?}");
        }
    }
}
