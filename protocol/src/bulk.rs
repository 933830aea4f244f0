//! What is as large as the model, by reference.
//!
//! The state machine passes these on and never looks inside; only the [`numerics`](crate::numerics) loop over them.
//! Cloning is a reference count, and `Debug` prints length and digest, so that a trace stays readable.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::misbehaviour::Misbehaviour;
use crate::numerics::{InstructionSet, Kernel, Pooled};

/// Values that tell a vector's norm well enough.
const SAMPLES_MAX: usize = 4096;

/// A copy of all parameters at one step boundary: flat, `f32`, in the order of the model's
/// [layout](crate::ModelLayout).
#[derive(Clone, PartialEq)]
pub struct Snapshot(Arc<Vec<f32>>);

impl Snapshot {
    /// The parameters.
    pub fn values(&self) -> &[f32] {
        &self.0
    }

    /// The Euclidean norm of the finite values, by at most [`SAMPLES_MAX`] of them at even distances: good for an order of
    /// magnitude.
    pub(crate) fn norm_about(&self) -> f64 {
        // Odd, so that it is no multiple of a matrix's width.
        let every = self.0.len().div_ceil(SAMPLES_MAX) | 1;
        let finite = self.0.iter().step_by(every).filter(|value| value.is_finite());
        let squares: f64 = finite.map(|value| f64::from(*value).powi(2)).sum();
        (squares * every as f64).sqrt()
    }

    /// The parameters, without a copy where nobody else holds them.
    pub fn into_values(self) -> Vec<f32> {
        Arc::unwrap_or_clone(self.0)
    }

    /// A copy of `values`, in the memory of `unused` where that is as long and nobody else holds it: fresh memory costs the
    /// system more than copying does.
    pub fn copied(values: &[f32], unused: Option<Snapshot>) -> Snapshot {
        if let Some(mut unused) = unused
            && let Some(place) = Arc::get_mut(&mut unused.0)
            && place.len() == values.len()
        {
            place.copy_from_slice(values);
            return unused;
        }
        Snapshot::from(values.to_vec())
    }

    /// The same memory as little-endian bytes, for a transfer.
    pub fn to_payload(&self) -> Payload {
        if cfg!(target_endian = "little") {
            struct Owner(Arc<Vec<f32>>);
            impl AsRef<[u8]> for Owner {
                fn as_ref(&self) -> &[u8] {
                    bytemuck::cast_slice(&self.0)
                }
            }
            Payload(Bytes::from_owner(Owner(self.0.clone())))
        } else {
            Payload(self.0.iter().flat_map(|value| value.to_le_bytes()).collect())
        }
    }

    /// Reads little-endian `f32`s from chunks that lie behind each other; `None` where the length is not
    /// `4 * parameters`, a chunk ends within a value, or a value is not finite.
    pub fn from_chunks(chunks: &[Payload], parameters: usize) -> Option<Snapshot> {
        let chunked = ChunkedValues::new(chunks, parameters)?;
        let mut values = vec![0.0; parameters];
        chunked.copy_to(0, &mut values);
        Some(Snapshot::from(values))
    }

    /// As [`from_chunks`](Self::from_chunks), of one.
    pub fn from_payload(payload: &Payload, parameters: usize) -> Option<Snapshot> {
        Snapshot::from_chunks(std::slice::from_ref(payload), parameters)
    }
}

/// Little-endian `f32`s in chunks that lie behind each other, sound as a whole, and read where they are: a second copy of
/// a large state would take as long as its way here.
#[derive(Clone, Copy, Debug)]
pub struct ChunkedValues<'a>(&'a [Payload]);

impl<'a> ChunkedValues<'a> {
    /// `None` where there are not `count` values, a chunk ends within one, or one is 2³¹ or more away from zero, infinite or
    /// no number: no grid of exchanges would reach it.
    pub fn new(chunks: &'a [Payload], count: usize) -> Option<ChunkedValues<'a>> {
        let is_whole = chunks.iter().all(|chunk| chunk.len().is_multiple_of(4));
        let length: usize = chunks.iter().map(Payload::len).sum();
        (is_whole && Some(length) == count.checked_mul(4) && chunks.iter().all(is_within_reach))
            .then_some(ChunkedValues(chunks))
    }

    /// Copies the values from `start` on to `place`.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn copy_to(self, start: usize, mut place: &mut [f32]) {
        let mut skipped = 4 * start;
        for chunk in self.0 {
            let Some(bytes) = chunk.bytes().get(skipped..) else {
                skipped -= chunk.len();
                continue;
            };
            skipped = 0;
            let (here, rest) = place.split_at_mut(place.len().min(bytes.len() / 4));
            let bytes = &bytes[..4 * here.len()];
            if cfg!(target_endian = "little") {
                bytemuck::cast_slice_mut(here).copy_from_slice(bytes);
            } else {
                here.iter_mut().zip(bytes.as_chunks().0).for_each(|(value, four)| *value = f32::from_le_bytes(*four));
            }
            place = rest;
        }
        assert!(place.is_empty(), "no more than there is");
    }
}

/// Whether all values are nearer to zero than 2³¹: one look at the exponents (IEEE 754), of which those of infinity and NaN
/// are the largest; unlike a search, a maximum needs no branch.
fn is_within_reach(chunk: &Payload) -> bool {
    const EXPONENT: u32 = 0xff << 23;
    const LIMIT: u32 = (127 + 31) << 23;
    let fours = chunk.bytes().as_chunks::<4>().0.iter();
    fours.map(|four| u32::from_le_bytes(*four) & EXPONENT).max().is_none_or(|largest| largest < LIMIT)
}

impl From<Vec<f32>> for Snapshot {
    fn from(values: Vec<f32>) -> Snapshot {
        Snapshot(Arc::new(values))
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digest = blake3::hash(self.to_payload().bytes());
        write!(formatter, "Snapshot({} values, {:.8})", self.0.len(), digest.to_hex())
    }
}

/// Bytes on their way to or from a peer.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Payload(Bytes);

impl Payload {
    /// The bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes, where there are so many.
    ///
    /// # Errors
    /// When there are not.
    pub(crate) fn of_length(&self, expected: usize) -> Result<&[u8], Misbehaviour> {
        if self.len() == expected {
            Ok(self.bytes())
        } else {
            Err(Misbehaviour::WrongLength { expected: expected as u64, actual: self.len() as u64 })
        }
    }

    /// Some of the bytes, in the same memory; `None` where they are not there.
    pub fn slice(&self, range: std::ops::Range<usize>) -> Option<Payload> {
        (range.start <= range.end && range.end <= self.0.len()).then(|| Payload(self.0.slice(range)))
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Payload {
        Payload(bytes.into())
    }
}

impl From<Pooled<u8>> for Payload {
    fn from(bytes: Pooled<u8>) -> Payload {
        Payload(Bytes::from_owner(bytes))
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Payload {
        Payload(bytes)
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Payload({} bytes, {:.8})", self.0.len(), blake3::hash(&self.0).to_hex())
    }
}

/// Parameters per scale: one `f32` steers a block of this many.
pub const BLOCK: usize = 256;

/// What an exchange adds to a model: `factor · scale[block] · code`, one byte a parameter (two in a first exchange)
/// until the moment it is added.
///
/// Both partners hold the same codes and scales with opposite signs, so with equal weights their corrections are
/// bit-exact negations of each other.
#[derive(Clone, PartialEq)]
pub struct Correction(Arc<CorrectionParts>);

#[derive(PartialEq)]
struct CorrectionParts {
    codes: PooledCodes,
    /// One per block of [`BLOCK`] parameters: its scale times the factor, sign included.
    scales: Pooled<f32>,
}

/// Differences in multiples of the scale, masked blocks as zeros.
#[derive(PartialEq, Debug)]
pub enum Codes {
    /// Codes of up to 8 bits.
    Narrow(Vec<i8>),
    /// Codes of up to 16 bits.
    Wide(Vec<i16>),
}

/// [`Codes`] in memory that goes back to its pool.
#[derive(PartialEq)]
pub(crate) enum PooledCodes {
    Narrow(Pooled<i8>),
    Wide(Pooled<i16>),
}

impl Correction {
    /// A correction of `scales[index / BLOCK] * codes[index]`.
    ///
    /// # Panics
    /// When there is not one scale per block.
    pub fn new(codes: Codes, scales: Vec<f32>) -> Correction {
        let codes = match codes {
            Codes::Narrow(codes) => PooledCodes::Narrow(codes.into()),
            Codes::Wide(codes) => PooledCodes::Wide(codes.into()),
        };
        Correction::from_pooled(codes, scales.into())
    }

    pub(crate) fn from_pooled(codes: PooledCodes, scales: Pooled<f32>) -> Correction {
        let correction = Correction(Arc::new(CorrectionParts { codes, scales }));
        assert_eq!(correction.0.scales.len(), correction.len().div_ceil(BLOCK), "one scale per block");
        correction
    }

    /// One per block of [`BLOCK`] parameters: the scale of the codes times the share of a difference that is moved, with its
    /// sign.
    pub fn scales(&self) -> &[f32] {
        &self.0.scales
    }

    /// The codes as they lie in memory, one or two bytes each.
    pub fn code_bytes(&self) -> &[u8] {
        match &self.0.codes {
            PooledCodes::Narrow(codes) => bytemuck::cast_slice(codes),
            PooledCodes::Wide(codes) => bytemuck::cast_slice(codes),
        }
    }

    /// Number of parameters.
    pub fn len(&self) -> usize {
        match &self.0.codes {
            PooledCodes::Narrow(codes) => codes.len(),
            PooledCodes::Wide(codes) => codes.len(),
        }
    }

    /// Whether it covers no parameter.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds the correction to `values`, which may have moved since the snapshot that it was made from.
    ///
    /// # Panics
    /// When `values` has another length.
    pub fn add_to(&self, values: &mut [f32]) {
        self.add_with(InstructionSet::best(), values);
    }

    /// [`add_to`](Self::add_to) with the loop of `instructions`.
    fn add_with(&self, instructions: InstructionSet, values: &mut [f32]) {
        assert_eq!(values.len(), self.len(), "a correction fits its model");
        let scales = &*self.0.scales;
        match &self.0.codes {
            PooledCodes::Narrow(codes) => instructions.run(Addition { values, codes, scales }),
            PooledCodes::Wide(codes) => instructions.run(Addition { values, codes, scales }),
        }
    }

    /// The correction as plain values.
    pub fn to_values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.len()];
        self.add_to(&mut values);
        values
    }
}

struct Addition<'a, Code> {
    values: &'a mut [f32],
    codes: &'a [Code],
    scales: &'a [f32],
}

impl<Code: Copy + Into<f32>> Kernel for Addition<'_, Code> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let blocks = self.values.chunks_mut(BLOCK).zip(self.codes.chunks(BLOCK));
        for ((values, codes), scale) in blocks.zip(self.scales) {
            for (value, code) in values.iter_mut().zip(codes) {
                *value += scale * (*code).into();
            }
        }
    }
}

impl fmt::Debug for Correction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digest = blake3::hash(bytemuck::cast_slice(&self.to_values()));
        write!(formatter, "Correction({} values, {:.8})", self.len(), digest.to_hex())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_survives_its_payload() {
        let snapshot = Snapshot::from(vec![1.5, -2.0, 0.0]);
        let payload = snapshot.to_payload();
        assert_eq!(Snapshot::from_payload(&payload, 3), Some(snapshot));
        assert_eq!(Snapshot::from_payload(&payload, 2), None);
    }

    #[test]
    fn a_norm_is_told_by_samples_whatever_the_width_of_the_matrices() {
        for (width, count) in [(1, 3), (96, 96 * 400), (128, 1_000_000), (4096, 3_000_000)] {
            let values: Vec<f32> = (0..count).map(|place| if place % width == 0 { 9.0 } else { 1.0 }).collect();
            let norm = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
            let told = Snapshot::from(values).norm_about();
            assert!((0.8 * norm..1.2 * norm).contains(&told), "{width}, {count}: {told} for {norm}");
        }
        assert_eq!(Snapshot::from(vec![3.0, f32::NAN, 4.0, f32::INFINITY]).norm_about(), 5.0);
    }

    #[test]
    fn values_are_read_across_chunks() {
        let values: Vec<f32> = (0..20).map(|value| value as f32).collect();
        let chunks: Vec<Payload> = values.chunks(6).map(|chunk| Snapshot::from(chunk.to_vec()).to_payload()).collect();
        let chunked = ChunkedValues::new(&chunks, 20).expect("whole and finite");
        for start in 0..20 {
            for end in start..=20 {
                let mut place = vec![0.0; end - start];
                chunked.copy_to(start, &mut place);
                assert_eq!(place, values[start..end]);
            }
        }
    }

    #[test]
    fn a_snapshot_from_a_peer_is_within_reach_of_a_grid() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -2f32.powi(31)] {
            let payload = Snapshot::from(vec![1.0, value]).to_payload();
            assert_eq!(Snapshot::from_payload(&payload, 2), None);
        }
        let payload = Snapshot::from(vec![-2.1e9, 2.1e9]).to_payload();
        assert!(Snapshot::from_payload(&payload, 2).is_some());
    }

    #[test]
    fn a_correction_adds_and_never_overwrites() {
        let correction = Correction::new(Codes::Narrow(vec![2; BLOCK + 1]), vec![0.5, -1.0]);
        let mut values = vec![10.0; BLOCK + 1];
        correction.add_to(&mut values);
        assert_eq!((values[0], values[BLOCK]), (11.0, 8.0));
    }

    #[test]
    fn all_instruction_sets_add_the_same_bits() {
        for length in [1, 15, BLOCK, 3 * BLOCK + 201] {
            let model: Vec<f32> = (0..length).map(|index| (index as f32).sin() * 1e3).collect();
            let scales: Vec<f32> = (0..length.div_ceil(BLOCK)).map(|block| 0.3 - 0.17 * block as f32).collect();
            let narrow = Codes::Narrow((0..length).map(|index| (index * 37) as i8).collect());
            let wide = Codes::Wide((0..length).map(|index| (index * 3701) as i16).collect());
            for correction in [narrow, wide].map(|codes| Correction::new(codes, scales.clone())) {
                let sums = InstructionSet::available().into_iter().map(|instructions| {
                    let mut values = model.clone();
                    correction.add_with(instructions, &mut values);
                    values.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                });
                let sums: Vec<_> = sums.collect();
                assert!(sums.windows(2).all(|two| two[0] == two[1]), "{length} values");
            }
        }
    }

    #[test]
    fn debug_output_stays_short() {
        let text = format!("{:?}", Snapshot::from(vec![0.0; 100_000]));
        assert!(text.starts_with("Snapshot(100000 values, ") && text.len() < 50, "{text}");
    }
}
