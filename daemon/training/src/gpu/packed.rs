//! A frozen base as a GPU holds it, in one stretch of memory: what is read in 32 bits, then what products read. It is packed in the
//! machine's memory, so that it travels as it is held.

use std::ops::Range;

use half::bf16;
use murmur_protocol::ModelLayout;
use murmur_protocol::layout::TensorSpec;
use murmur_protocol::manifest::LoraSpec;

use super::copies::in_parts;
use super::{Kind, bytes_of, bytes_of_mut};
use crate::ops::base_weights::{BLOCK, BaseWeights};

/// Each part begins at a multiple of so many bytes, as memory does that is allocated alone.
const ALIGNMENT: usize = 256;

/// Values that a thread writes at once.
const TASK_VALUES: usize = 1 << 14;

/// Where everything lies; all places are in bytes.
pub(super) struct Packed {
    parts: Vec<Part>,
    /// Where what products read begins: all weights in the order of the layout, or codes of matrices and then their scales.
    pub(super) for_products: usize,
    /// Where the scales begin, of matrices that are coded.
    pub(super) scales: Option<usize>,
    bytes: usize,
}

/// A tensor, or one of two things that there are of it.
pub(super) struct Part {
    /// In the base.
    tensor: Range<usize>,
    form: Form,
    place: Range<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    F32,
    Bf16,
    /// Those of 8 bits, and their scales.
    Codes,
    Scales,
}

/// Whether matrices of a base are in 8 bits.
pub(super) fn is_coded(spec: &LoraSpec) -> bool {
    spec.base_bits == 8
}

/// Whether a tensor is read in 32 bits, not by products: a vector, and the table of the embedding where it is not coded.
fn is_read_exactly(tensor: &TensorSpec, is_coded: bool) -> bool {
    tensor.shape.len() < 2 || (tensor.name == "model.embed_tokens.weight" && !is_coded)
}

/// Blocks of a matrix that is coded.
pub(super) fn blocks(tensor: &TensorSpec) -> usize {
    tensor.len().div_ceil(BLOCK)
}

pub(super) fn matrices(base: &ModelLayout) -> impl Iterator<Item = &TensorSpec> {
    base.tensors().iter().filter(|tensor| tensor.shape.len() > 1)
}

impl Packed {
    /// A base of this layout in the bits of `spec`, which products read as `kind`.
    pub(super) fn new(base: &ModelLayout, kind: Kind, spec: &LoraSpec) -> Packed {
        let is_coded = is_coded(spec);
        let mut packed = Packed { parts: Vec::new(), for_products: 0, scales: None, bytes: 0 };
        if is_coded || kind != Kind::F32 {
            for tensor in base.tensors().iter().filter(|tensor| is_read_exactly(tensor, is_coded)) {
                packed.push(tensor, Form::F32, tensor.len() * Kind::F32.size());
                packed.align();
            }
        }
        packed.for_products = packed.bytes;
        if is_coded {
            // Whole blocks, so that threads read aligned.
            matrices(base).for_each(|tensor| packed.push(tensor, Form::Codes, blocks(tensor) * BLOCK));
            packed.align();
            packed.scales = Some(packed.bytes);
            matrices(base).for_each(|tensor| packed.push(tensor, Form::Scales, blocks(tensor) * Kind::Bf16.size()));
        } else {
            let form = if kind == Kind::F32 { Form::F32 } else { Form::Bf16 };
            base.tensors().iter().for_each(|tensor| packed.push(tensor, form, tensor.len() * kind.size()));
        }
        packed
    }

    fn push(&mut self, tensor: &TensorSpec, form: Form, bytes: usize) {
        let place = self.bytes..self.bytes + bytes;
        self.bytes = place.end;
        self.parts.push(Part { tensor: tensor.range(), form, place });
    }

    fn align(&mut self) {
        self.bytes = self.bytes.next_multiple_of(ALIGNMENT);
    }

    /// In words of four bytes.
    pub(super) fn words(&self) -> usize {
        self.bytes.div_ceil(Kind::F32.size())
    }

    /// What is read in 32 bits and lies before what products read: where in the base, and its first byte.
    pub(super) fn exact(&self) -> impl Iterator<Item = (&Range<usize>, usize)> {
        let exact = self.parts.iter().filter(|part| part.place.start < self.for_products);
        exact.map(|part| (&part.tensor, part.place.start))
    }

    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Fills memory of so many words. `weights` are in the bits of which the packing was made, and have each tensor of the base at
    /// the position that is told of its own.
    pub(super) fn fill(&self, weights: &BaseWeights, position: impl Fn(usize) -> usize, memory: &mut [f32]) {
        let memory = bytes_of_mut(memory);
        for part in &self.parts {
            part.fill(weights, position(part.tensor.start), &mut memory[part.place.clone()]);
        }
    }
}

impl Part {
    /// In bytes.
    pub(super) fn place(&self) -> Range<usize> {
        self.place.clone()
    }

    /// Where its tensor begins in the base.
    pub(super) fn start(&self) -> usize {
        self.tensor.start
    }

    /// Fills its place with its tensor, which begins there in `weights`.
    pub(super) fn fill(&self, weights: &BaseWeights, start: usize, to: &mut [u8]) {
        let length = self.tensor.len();
        let in_8_bits = || weights.in_8_bits(start, length).expect("a base that is coded");
        match self.form {
            Form::F32 => match weights.exact(&(start..start + length)) {
                Some(values) => to.copy_from_slice(bytes_of(values)),
                None => write(weights, start, to, f32::to_ne_bytes),
            },
            Form::Bf16 => match weights.in_16_bits(start, length) {
                Some(codes) => to.copy_from_slice(bytes_of(codes)),
                None => write(weights, start, to, |value| bf16::from_f32(value).to_ne_bytes()),
            },
            Form::Codes => to[..length].copy_from_slice(bytes_of(in_8_bits().0)),
            Form::Scales => to.copy_from_slice(bytes_of(in_8_bits().1)),
        }
    }
}

/// Writes the weights from this one on, each as so many bytes.
fn write<const BYTES: usize>(weights: &BaseWeights, start: usize, to: &mut [u8], bytes: fn(f32) -> [u8; BYTES]) {
    in_parts(to.as_chunks_mut().0, |first, to| {
        let mut values = vec![0.0; to.len().min(TASK_VALUES)];
        for (task, to) in to.chunks_mut(TASK_VALUES).enumerate() {
            let values = &mut values[..to.len()];
            weights.read(start + first + task * TASK_VALUES, values);
            to.iter_mut().zip(&*values).for_each(|(to, value)| *to = bytes(*value));
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Barrier};
    use std::time::Duration;

    use super::*;
    use crate::ops::gradient_check::random_values;

    /// The threads of rayon's pool may be those that wait for what is filled.
    #[test]
    fn weights_are_written_while_all_threads_of_the_pool_wait() {
        let values = random_values(3 * TASK_VALUES + 5, 1);
        let expected: Vec<u8> = values.iter().flat_map(|value| bf16::from_f32(*value).to_ne_bytes()).collect();
        let weights = BaseWeights::from(values);
        let waiting = Arc::new(Barrier::new(rayon::current_num_threads() + 1));
        let waits = waiting.clone();
        rayon::spawn_broadcast(move |_| {
            waits.wait();
            waits.wait();
        });
        waiting.wait();
        let (sender, arrival) = channel();
        std::thread::spawn(move || {
            let mut written = vec![0; 2 * (3 * TASK_VALUES + 5)];
            write(&weights, 0, &mut written, |value| bf16::from_f32(value).to_ne_bytes());
            drop(sender.send(written));
        });
        let written = arrival.recv_timeout(Duration::from_secs(20));
        waiting.wait();
        assert!(written.is_ok_and(|written| written == expected), "it waits for the pool, or is not all");
    }
}
