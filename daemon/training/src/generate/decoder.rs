//! The model one token at a time, with the keys and values of earlier tokens kept (a key-value cache): a token then costs
//! one row through each matrix, instead of all rows before it again.

use std::collections::BTreeMap;

use candle_core::{CpuStorage, D, DType, Device, Result, Storage, Tensor};
use murmur_protocol::layout::ModelLayout;
use murmur_protocol::manifest::TransformerModel;
use rayon::prelude::*;

use crate::model::transformer::composed::Composed;
use crate::ops::exponential::dot;
use crate::ops::linear;
use crate::ops::rotary::RotaryTables;
use crate::ops::vector::vectorised;

/// Tokens of a prompt that go through the model at once: their attention scores take `heads · this · context` values.
const PROMPT_TOKENS: usize = 128;

/// Rows of a matrix that one task multiplies with: enough work to outweigh a task's cost. A guess.
const TASK_ROWS: usize = 32;

/// What has been read so far, inside a model.
pub(super) struct Decoder<'a> {
    spec: &'a TransformerModel,
    weights: BTreeMap<&'a str, Tensor>,
    rotary: RotaryTables,
    layers: Vec<Cache>,
    /// Tokens read, at most the context.
    length: usize,
}

/// Of one layer: one row per token.
struct Cache {
    /// `[context, key width]`, turned by their positions.
    keys: Tensor,
    /// `[context, key width]`.
    values: Tensor,
}

impl<'a> Decoder<'a> {
    /// A decoder that has read nothing; `parameters` in the order of `layout`.
    pub(super) fn new(
        spec: &'a TransformerModel,
        layout: &'a ModelLayout,
        parameters: Vec<Tensor>,
    ) -> Result<Decoder<'a>> {
        let device = parameters.first().map_or(Device::Cpu, |tensor| tensor.device().clone());
        let shape = (spec.context as usize, spec.key_width() as usize);
        let place = || Tensor::zeros(shape, DType::F32, &device);
        let cache = |_| Ok(Cache { keys: place()?, values: place()? });
        let layers = (0..spec.layers).map(cache).collect::<Result<_>>()?;
        let rotary = RotaryTables::of(spec);
        let weights = layout.tensors().iter().map(|tensor| tensor.name.as_str()).zip(parameters).collect();
        Ok(Decoder { spec, weights, rotary, layers, length: 0 })
    }

    /// Tokens read.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.length = 0;
    }

    /// Reads `tokens`, at least one and at most what the context has room for, and gives the logits of the one after
    /// them.
    pub(super) fn read(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let mut logits = Vec::new();
        for tokens in tokens.chunks(PROMPT_TOKENS) {
            logits = self.read_at_once(tokens)?;
            self.length += tokens.len();
        }
        Ok(logits)
    }

    fn read_at_once(&self, tokens: &[u32]) -> Result<Vec<f32>> {
        let weights = |name: &str| self.weights.get(name);
        let composed = Composed { spec: self.spec, weights, dtype: DType::F32, multiply };
        let (count, device) = (tokens.len(), self.layers[0].keys.device());
        let positions = self.rotary.part(self.length..self.length + count);
        let tokens = Tensor::from_slice(tokens, (1, count), device)?;
        let stream = composed.stream(&tokens, &positions, |layer, heads| self.attend(layer, heads))?;
        composed.logits(&stream.narrow(1, count - 1, 1)?.contiguous()?)?.flatten_all()?.to_vec1()
    }

    /// Over all that has been read before, and these.
    fn attend(&self, layer: u32, [query, key, value]: [Tensor; 3]) -> Result<Tensor> {
        let (cache, count) = (&self.layers[layer as usize], query.dim(1)?);
        cache.keys.slice_set(&key.squeeze(0)?.contiguous()?, 0, self.length)?;
        cache.values.slice_set(&value.squeeze(0)?.contiguous()?, 0, self.length)?;

        let (heads, groups) = (self.spec.heads as usize, self.spec.resolved_key_value_heads() as usize);
        let (sharing, total) = (heads / groups, self.length + count);
        let (width, head_width) = (self.spec.query_width() as usize, self.spec.resolved_head_width() as usize);
        // `[groups, sharing · count, head width]`: the heads of a group stand one below the other.
        let query = query.reshape((count, groups, sharing, head_width))?.permute((1, 2, 0, 3))?.contiguous()?;
        let query = query.reshape((groups, sharing * count, head_width))?;
        let seen = |cached: &Tensor| self.heads_of(cached, total, groups, head_width);
        let scores = (query.matmul(&seen(&cache.keys)?.transpose(1, 2)?)? * (1.0 / (head_width as f64).sqrt()))?;
        let probabilities = softmax(&self.hide_later(scores, count, sharing)?)?;
        let mixed = probabilities.matmul(&seen(&cache.values)?)?.reshape((groups, sharing, count, head_width))?;
        mixed.permute((2, 0, 1, 3))?.reshape((1, count, width))
    }

    /// The first `total` rows as `[groups, total, head width]`.
    fn heads_of(&self, cached: &Tensor, total: usize, groups: usize, head_width: usize) -> Result<Tensor> {
        let heads = cached.narrow(0, 0, total)?.reshape((total, groups, head_width))?.transpose(0, 1)?;
        // Matrix products on the CPU take views; on other devices not all do.
        if heads.device().is_cpu() { Ok(heads) } else { heads.contiguous() }
    }

    /// Nobody sees a token after its own.
    fn hide_later(&self, scores: Tensor, count: usize, sharing: usize) -> Result<Tensor> {
        if count == 1 {
            return Ok(scores);
        }
        let total = self.length + count;
        let hidden = (0..sharing * count * total).map(|index| {
            let (row, column) = (index / total % count, index % total);
            if column > self.length + row { f32::NEG_INFINITY } else { 0.0 }
        });
        let mask = Tensor::from_iter(hidden, scores.device())?.reshape((1, sharing * count, total))?;
        scores.broadcast_add(&mask)
    }
}

/// `input · weightᵀ`. A product with a single row only reads the matrix once, so it is shared out by the matrix' rows.
fn multiply(input: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (outputs, inputs) = weight.dims2()?;
    if !weight.device().is_cpu() || input.elem_count() != inputs {
        return linear::composed(input, weight);
    }
    let row = input.flatten_all()?.to_vec1::<f32>()?;
    let (storage, layout) = weight.storage_and_layout();
    let (Storage::Cpu(CpuStorage::F32(values)), Some((first, end))) = (&*storage, layout.contiguous_offsets()) else {
        return linear::composed(input, weight);
    };
    let mut output = vec![0.0; outputs];
    let tasks = output.par_chunks_mut(TASK_ROWS).zip(values[first..end].par_chunks(TASK_ROWS * inputs));
    tasks.for_each(|(output, weight)| multiply_rows(output, weight, &row));
    Tensor::from_vec(output, (1, 1, outputs), &Device::Cpu)
}

vectorised! {
    fn multiply_rows(output: &mut [f32], weight: &[f32], row: &[f32]) {
        for (output, weight) in output.iter_mut().zip(weight.chunks_exact(row.len())) {
            *output = dot(weight, row);
        }
    }
}

fn softmax(scores: &Tensor) -> Result<Tensor> {
    let weights = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
    weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)
}
