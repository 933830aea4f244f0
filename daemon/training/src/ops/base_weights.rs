//! The weights of a base model, which training only reads where it trains adapters: in 32 bits, or fewer.
//!
//! In 16 bits matrices are bf16. In 8 bits a matrix is cut into blocks of 64 values in the order of its rows, and each value is
//! an integer from -127 to 127 times its block's scale, which is bf16: 1.03 bytes a value. Norms and biases stay `f32`.
//! Products decode a panel of rows at a time, right before they pack it ([`super::linear`]).

use half::bf16;
use murmur_protocol::layout::ModelLayout;
use rayon::prelude::*;

use super::vector::vectorised;

/// Values that share a scale: QLoRA's block (arXiv 2305.14314).
pub(crate) const BLOCK: usize = 64;

/// Values that a task encodes or decodes: whole blocks, enough work to outweigh a task's cost.
const TASK_VALUES: usize = 256 * BLOCK;

/// Flat weights in the order of a layout.
#[derive(Clone, Debug)]
pub struct BaseWeights {
    /// All values in 32 bits; else those of vectors, one after the other.
    exact: Vec<f32>,
    /// Those of matrices, one after the other, and where the tensors lie; none in 32 bits.
    coded: Option<Coded>,
}

#[derive(Clone, Debug)]
struct Coded {
    /// In the order of the layout.
    tensors: Vec<Place>,
    codes: Codes,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// In the layout.
    start: usize,
    length: usize,
    /// Of a matrix in the codes, of a vector in the exact values.
    first: usize,
    /// Of a matrix: its first block.
    first_block: usize,
    is_matrix: bool,
}

#[derive(Clone, Debug)]
enum Codes {
    Sixteen(Vec<u16>),
    Eight { codes: Vec<i8>, scales: Vec<u16> },
}

impl From<Vec<f32>> for BaseWeights {
    /// In 32 bits.
    fn from(exact: Vec<f32>) -> BaseWeights {
        BaseWeights { exact, coded: None }
    }
}

impl BaseWeights {
    /// Of no tensor yet: [`BaseWeights::push`] adds those of `layout`, in its order.
    ///
    /// # Panics
    /// When `bits` are not 8, 16 or 32.
    pub fn with_room(layout: &ModelLayout, bits: u32) -> BaseWeights {
        let lengths = |is_matrix: bool| {
            let tensors = layout.tensors().iter().filter(move |tensor| (tensor.shape.len() > 1) == is_matrix);
            tensors.map(|tensor| tensor.len())
        };
        let (matrices, blocks) = (lengths(true).sum(), lengths(true).map(|length| length.div_ceil(BLOCK)).sum());
        let codes = match bits {
            32 => None,
            16 => Some(Codes::Sixteen(Vec::with_capacity(matrices))),
            8 => Some(Codes::Eight { codes: Vec::with_capacity(matrices), scales: Vec::with_capacity(blocks) }),
            _ => panic!("weights in {bits} bits"),
        };
        let exact = if codes.is_some() { lengths(false).sum() } else { layout.parameters() };
        let coded = codes.map(|codes| Coded { tensors: Vec::new(), codes });
        BaseWeights { exact: Vec::with_capacity(exact), coded }
    }

    /// Adds the values of the next tensor.
    pub fn push(&mut self, is_matrix: bool, values: &[f32]) {
        let start = self.len();
        let Some(Coded { tensors, codes }) = &mut self.coded else { return self.exact.extend_from_slice(values) };
        let length = values.len();
        let (first, first_block) = match codes {
            _ if !is_matrix => (self.exact.len(), 0),
            Codes::Sixteen(codes) => (codes.len(), 0),
            Codes::Eight { codes, scales } => (codes.len(), scales.len()),
        };
        tensors.push(Place { start, length, first, first_block, is_matrix });
        match codes {
            _ if !is_matrix => self.exact.extend_from_slice(values),
            Codes::Sixteen(codes) => {
                codes.resize(first + length, 0);
                let tasks = codes[first..].par_chunks_mut(TASK_VALUES).zip(values.par_chunks(TASK_VALUES));
                tasks.for_each(|(codes, values)| {
                    codes.iter_mut().zip(values).for_each(|(code, value)| *code = bf16::from_f32(*value).to_bits());
                });
            }
            Codes::Eight { codes, scales } => {
                codes.resize(first + length, 0);
                scales.resize(first_block + length.div_ceil(BLOCK), 0);
                let tasks = codes[first..].par_chunks_mut(BLOCK).zip(values.par_chunks(BLOCK));
                let tasks = tasks.zip(&mut scales[first_block..]).with_min_len(TASK_VALUES / BLOCK);
                tasks.for_each(|((codes, values), scale)| *scale = encode_block(codes, values));
            }
        }
    }

    /// The same in so many bits; weights that are in fewer already stay as they are.
    ///
    /// # Panics
    /// When they are not of this layout, or `bits` are not 8, 16 or 32.
    pub fn in_bits(self, layout: &ModelLayout, bits: u32) -> BaseWeights {
        assert_eq!(self.len(), layout.parameters(), "one value per parameter");
        if bits == 32 || self.coded.is_some() {
            return self;
        }
        let mut coded = BaseWeights::with_room(layout, bits);
        layout.tensors().iter().for_each(|tensor| coded.push(tensor.shape.len() > 1, &self.exact[tensor.range()]));
        coded
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        match &self.coded {
            None => self.exact.len(),
            Some(Coded { tensors, .. }) => tensors.last().map_or(0, |last| last.start + last.length),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Those of a stretch of whole tensors.
    ///
    /// # Panics
    /// When it cuts a tensor.
    pub fn part(&self, range: std::ops::Range<usize>) -> BaseWeights {
        let Some(Coded { tensors, codes }) = &self.coded else { return self.exact[range].to_vec().into() };
        let mut part = BaseWeights { exact: Vec::new(), coded: None };
        let none = match codes {
            Codes::Sixteen(_) => Codes::Sixteen(Vec::new()),
            Codes::Eight { .. } => Codes::Eight { codes: Vec::new(), scales: Vec::new() },
        };
        let mut own = Coded { tensors: Vec::new(), codes: none };
        for place in tensors.iter().filter(|place| range.contains(&place.start)) {
            assert!(place.start + place.length <= range.end, "a part has whole tensors");
            let mut moved = Place { start: place.start - range.start, ..*place };
            let values = place.first..place.first + place.length;
            match (&mut own.codes, codes) {
                _ if !place.is_matrix => {
                    moved.first = part.exact.len();
                    part.exact.extend_from_slice(&self.exact[values]);
                }
                (Codes::Sixteen(own), Codes::Sixteen(codes)) => {
                    moved.first = own.len();
                    own.extend_from_slice(&codes[values]);
                }
                (Codes::Eight { codes: own, scales: own_scales }, Codes::Eight { codes, scales }) => {
                    (moved.first, moved.first_block) = (own.len(), own_scales.len());
                    own.extend_from_slice(&codes[values]);
                    own_scales.extend_from_slice(&scales[place.first_block..][..place.length.div_ceil(BLOCK)]);
                }
                _ => unreachable!("both are of one kind"),
            }
            own.tensors.push(moved);
        }
        part.coded = Some(own);
        part
    }

    /// These tensors, and then those of others that are held in the same way.
    ///
    /// # Panics
    /// When they are held in other bits.
    pub fn followed_by(mut self, other: BaseWeights) -> BaseWeights {
        let (start, exact) = (self.len(), self.exact.len());
        match (&mut self.coded, other.coded) {
            (None, None) => {}
            (Some(own), Some(other)) => {
                let (first, first_block) = match (&mut own.codes, other.codes) {
                    (Codes::Sixteen(own), Codes::Sixteen(codes)) => {
                        let first = own.len();
                        own.extend(codes);
                        (first, 0)
                    }
                    (Codes::Eight { codes: own, scales: own_scales }, Codes::Eight { codes, scales }) => {
                        let first = (own.len(), own_scales.len());
                        own.extend(codes);
                        own_scales.extend(scales);
                        first
                    }
                    _ => panic!("weights in other bits"),
                };
                own.tensors.extend(other.tensors.into_iter().map(|place| Place {
                    start: start + place.start,
                    first: if place.is_matrix { first } else { exact } + place.first,
                    first_block: if place.is_matrix { first_block + place.first_block } else { 0 },
                    ..place
                }));
            }
            _ => panic!("weights in other bits"),
        }
        self.exact.extend(other.exact);
        self
    }

    /// The tensor that begins at `start`, in the bits in which it is held, for another machine: see
    /// [`BaseWeights::push_encoded`].
    ///
    /// # Panics
    /// When no tensor of `length` values begins there.
    pub fn encoded(&self, start: usize, length: usize) -> Vec<u8> {
        let of_exact = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let Some(Coded { codes, .. }) = &self.coded else { return of_exact(&self.exact[start..start + length]) };
        let place = self.coded.as_ref().expect("looked at above").place_of(start);
        assert!(place.start == start && place.length == length, "a whole tensor");
        let values = place.first..place.first + length;
        match codes {
            _ if !place.is_matrix => of_exact(&self.exact[values]),
            Codes::Sixteen(codes) => codes[values].iter().flat_map(|code| code.to_le_bytes()).collect(),
            Codes::Eight { codes, scales } => {
                let scales = &scales[place.first_block..][..length.div_ceil(BLOCK)];
                let codes = codes[values].iter().map(|code| code.to_le_bytes()[0]);
                codes.chain(scales.iter().flat_map(|scale| scale.to_le_bytes())).collect()
            }
        }
    }

    /// Adds the next tensor, of `length` values, as [`BaseWeights::encoded`] on another machine has given it. `None`, and nothing is
    /// added, where the bytes are no such tensor in these bits, or hold values that are not finite.
    pub fn push_encoded(&mut self, is_matrix: bool, length: usize, bytes: &[u8]) -> Option<()> {
        let start = self.len();
        let exact = || {
            let values = bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect::<Vec<_>>();
            (bytes.len() == 4 * length && values.iter().all(|value| value.is_finite())).then_some(values)
        };
        let halves = |bytes: &[u8]| {
            let halves = bytes.as_chunks::<2>().0.iter().map(|two| u16::from_le_bytes(*two)).collect::<Vec<_>>();
            halves.iter().all(|half| widened(*half).is_finite()).then_some(halves)
        };
        let Some(Coded { tensors, codes }) = &mut self.coded else {
            self.exact.extend(exact()?);
            return Some(());
        };
        let (first, first_block) = match codes {
            _ if !is_matrix => {
                let (first, values) = (self.exact.len(), exact()?);
                self.exact.extend(values);
                (first, 0)
            }
            Codes::Sixteen(codes) => {
                let (first, halves) = (codes.len(), halves(bytes).filter(|_| bytes.len() == 2 * length)?);
                codes.extend(halves);
                (first, 0)
            }
            Codes::Eight { codes, scales } => {
                let own_scales = bytes.get(length..).filter(|scales| scales.len() == 2 * length.div_ceil(BLOCK))?;
                let (first, first_block, own_scales) = (codes.len(), scales.len(), halves(own_scales)?);
                codes.extend(bytes[..length].iter().map(|code| i8::from_le_bytes([*code])));
                scales.extend(own_scales);
                (first, first_block)
            }
        };
        tensors.push(Place { start, length, first, first_block, is_matrix });
        Some(())
    }

    /// All values, in 32 bits.
    pub fn into_exact(self) -> Vec<f32> {
        if self.coded.is_none() {
            return self.exact;
        }
        let mut values = vec![0.0; self.len()];
        values.par_chunks_mut(TASK_VALUES).enumerate().for_each(|(task, values)| self.read(task * TASK_VALUES, values));
        values
    }

    /// The values where they lie in 32 bits: all of them, or those of one vector.
    pub(crate) fn exact(&self, range: &std::ops::Range<usize>) -> Option<&[f32]> {
        let Some(coded) = &self.coded else { return Some(&self.exact[range.clone()]) };
        let place = coded.place_of(range.start);
        let is_it = !place.is_matrix && place.start == range.start && place.length == range.len();
        is_it.then(|| &self.exact[place.first..][..place.length])
    }

    /// A whole matrix that is in 16 bits, those of bf16.
    pub(crate) fn in_16_bits(&self, start: usize, length: usize) -> Option<&[u16]> {
        let Coded { codes: Codes::Sixteen(codes), .. } = self.coded.as_ref()? else { return None };
        let place = self.matrix_at(start, length)?;
        Some(&codes[place.first..][..length])
    }

    /// Codes and scales of a whole matrix that is in 8 bits.
    pub(crate) fn in_8_bits(&self, start: usize, length: usize) -> Option<(&[i8], &[u16])> {
        let Coded { codes: Codes::Eight { codes, scales }, .. } = self.coded.as_ref()? else { return None };
        let place = self.matrix_at(start, length)?;
        Some((&codes[place.first..][..length], &scales[place.first_block..][..length.div_ceil(BLOCK)]))
    }

    fn matrix_at(&self, start: usize, length: usize) -> Option<&Place> {
        let place = self.coded.as_ref()?.place_of(start);
        (place.is_matrix && place.start == start && place.length == length).then_some(place)
    }

    /// Writes the values from `position` on.
    pub(crate) fn read(&self, mut position: usize, mut output: &mut [f32]) {
        let Some(coded) = &self.coded else { return output.copy_from_slice(&self.exact[position..][..output.len()]) };
        while !output.is_empty() {
            let place = coded.place_of(position);
            let skipped = position - place.start;
            let (now, later) = output.split_at_mut((place.length - skipped).min(output.len()));
            let range = place.first + skipped..place.first + skipped + now.len();
            match &coded.codes {
                _ if !place.is_matrix => now.copy_from_slice(&self.exact[range]),
                Codes::Sixteen(codes) => widen(now, &codes[range]),
                Codes::Eight { codes, scales } => {
                    decode(now, &codes[range], &scales[place.first_block + skipped / BLOCK..], skipped % BLOCK);
                }
            }
            position += now.len();
            output = later;
        }
    }
}

impl Coded {
    /// The tensor that holds the value at `position`.
    fn place_of(&self, position: usize) -> &Place {
        &self.tensors[self.tensors.partition_point(|place| place.start <= position) - 1]
    }
}

/// Returns the scale, as the bits of a bf16.
fn encode_block(codes: &mut [i8], values: &[f32]) -> u16 {
    let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    // Rounded up, so that no value lies beyond the last code.
    let bits = (largest / 127.0).to_bits();
    let scale = ((bits + 0xffff) >> 16) as u16;
    let inverse = 1.0 / widened(scale);
    let inverse = if inverse.is_finite() { inverse } else { 0.0 };
    codes.iter_mut().zip(values).for_each(|(code, value)| *code = (value * inverse).round_ties_even() as i8);
    scale
}

#[inline(always)]
fn widened(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

vectorised! {
    fn widen(output: &mut [f32], codes: &[u16]) {
        output.iter_mut().zip(codes).for_each(|(value, code)| *value = widened(*code));
    }
}

vectorised! {
    /// The first value is this far inside the first scale's block.
    fn decode(output: &mut [f32], codes: &[i8], scales: &[u16], offset: usize) {
        let first = ((BLOCK - offset) % BLOCK).min(output.len());
        let (head, body) = output.split_at_mut(first);
        let (head_codes, codes) = codes.split_at(first);
        head.iter_mut().zip(head_codes).for_each(|(value, code)| *value = f32::from(*code) * widened(scales[0]));
        let scales = &scales[usize::from(offset > 0)..];
        for ((values, codes), scale) in body.chunks_mut(BLOCK).zip(codes.chunks(BLOCK)).zip(scales) {
            let scale = widened(*scale);
            values.iter_mut().zip(codes).for_each(|(value, code)| *value = f32::from(*code) * scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::gradient_check::random_values;

    fn layout() -> ModelLayout {
        let tensors = [("a", vec![10, 7]), ("b", vec![5]), ("c", vec![3, 64]), ("d", vec![33, 130])];
        ModelLayout::in_order(tensors.map(|(name, shape)| (name.to_owned(), shape)))
    }

    #[test]
    fn values_are_those_of_the_base_within_half_a_step_wherever_reading_begins() {
        let (layout, mut exact) = (layout(), random_values(layout().parameters(), 1));
        exact[75..139].fill(0.0); // a block without a scale
        exact[140] = 300.0;
        let mut largest_errors = Vec::new();
        for bits in [32, 16, 8] {
            let stored = BaseWeights::from(exact.clone()).in_bits(&layout, bits);
            let decoded = stored.clone().into_exact();
            let mut largest = 0.0_f32;
            for tensor in layout.tensors() {
                let values = exact[tensor.range()].chunks(BLOCK).zip(decoded[tensor.range()].chunks(BLOCK));
                for (exact, decoded) in values {
                    let top = exact.iter().fold(0.0_f32, |top, value| top.max(value.abs()));
                    for (exact, decoded) in exact.iter().zip(decoded) {
                        let step = match bits {
                            _ if tensor.shape.len() == 1 => 0.0,
                            // The scale itself is rounded up by less than a 128th.
                            8 => top / 127.0 * (1.0 + 1.0 / 128.0) / 2.0,
                            16 => exact.abs() / 256.0,
                            _ => 0.0,
                        };
                        assert!((exact - decoded).abs() <= step * 1.0001, "{bits}: {exact} {decoded}");
                        largest = largest.max((exact - decoded).abs());
                    }
                }
            }
            largest_errors.push(largest);
            for first in 0..exact.len() {
                let mut some = vec![f32::NAN; 200.min(exact.len() - first)];
                stored.read(first, &mut some);
                assert_eq!(some, decoded[first..first + some.len()], "{bits} bits from {first}");
            }
            assert_eq!(stored.exact(&(70..75)).map(<[f32]>::to_vec), Some(exact[70..75].to_vec()));
            // A stage has the values that it has in the whole.
            assert_eq!(stored.part(70..layout.parameters()).into_exact(), decoded[70..]);
            // The ends without what is between them, as one part.
            let ends = stored.part(0..70).followed_by(stored.part(75..267)).followed_by(stored.part(267..exact.len()));
            assert_eq!((ends.len(), stored.len()), (exact.len() - 5, exact.len()));
            assert_eq!(ends.encoded(70, 192), stored.encoded(75, 192));
            assert_eq!(ends.into_exact(), [&decoded[..70], &decoded[75..]].concat());
            let mut elsewhere = BaseWeights::with_room(&layout, bits);
            for tensor in layout.tensors() {
                let (is_matrix, length) = (tensor.shape.len() > 1, tensor.len());
                let encoded = stored.encoded(tensor.offset, length);
                assert_eq!(elsewhere.push_encoded(is_matrix, length, &encoded[1..]), None);
                assert_eq!(elsewhere.push_encoded(is_matrix, length + 1, &encoded), None);
                let mut broken = encoded.clone();
                // The last two bytes of an `f32`, a bf16 or a scale; all ones are no number.
                broken.iter_mut().rev().take(2).for_each(|byte| *byte = 0xff);
                assert_eq!(elsewhere.push_encoded(is_matrix, length, &broken), None);
                assert_eq!(elsewhere.push_encoded(is_matrix, length, &encoded), Some(()));
            }
            assert_eq!(elsewhere.into_exact(), decoded);
        }
        assert!(largest_errors[0] == 0.0 && largest_errors[1] > 0.0 && largest_errors[2] > 0.1, "{largest_errors:?}");
    }
}
