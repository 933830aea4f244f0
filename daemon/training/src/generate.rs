//! Using a trained model: text from a prompt, and how well it predicts held-out data.

mod choice;
mod decoder;

use candle_core::{Device, Result, Tensor, bail};
use murmur_protocol::manifest::ModelSpec;

use crate::data::{Batch, Window};
use crate::model::{Evaluation, Model, Transformer};
use crate::ops::Kernels;
use choice::Chooser;
pub use choice::Sampling;
use decoder::Decoder;

/// A model that only reads: from a checkpoint or a snapshot.
pub struct LanguageModel {
    spec: ModelSpec,
    model: Transformer,
    /// In the order of the model's layout.
    parameters: Vec<Tensor>,
    kernels: Kernels,
}

impl LanguageModel {
    /// The model of `spec` with flat `parameters`.
    ///
    /// # Errors
    /// When the device has no memory for it.
    ///
    /// # Panics
    /// When the number of parameters is not the model's: check with [`crate::parameter_count`] what comes from outside.
    pub fn from_parameters(spec: &ModelSpec, parameters: &[f32], device: &Device) -> Result<LanguageModel> {
        let model = Transformer::new(spec);
        assert_eq!(parameters.len(), model.layout().parameters(), "one value per parameter");
        let tensor = |tensor: &murmur_protocol::TensorSpec| {
            Tensor::from_slice(&parameters[tensor.range()], tensor.shape.as_slice(), device)
        };
        let parameters = model.layout().tensors().iter().map(tensor).collect::<Result<_>>()?;
        // Generation needs no backward, but the fused operations are the faster ones forward as well.
        Ok(LanguageModel { spec: spec.clone(), model, parameters, kernels: Kernels::for_device(device) })
    }

    /// How well it predicts `windows` (see [`crate::Corpus::validation`]).
    ///
    /// # Errors
    /// When the device fails.
    pub fn evaluate(&self, windows: &[Window], batch_sequences: usize) -> Result<Evaluation> {
        let mut evaluation = Evaluation::default();
        for windows in windows.chunks(batch_sequences.max(1)) {
            let batch = Batch::of(windows);
            let logits = self.model.forward(self.kernels, &self.parameters, &batch)?;
            evaluation = evaluation.with(Evaluation::of(&logits, batch.targets())?);
        }
        Ok(evaluation)
    }

    /// The logits of the token after `tokens`, of which there are at least one and at most the context.
    ///
    /// # Errors
    /// When a token is not in the vocabulary, or the device fails.
    pub fn logits_after(&self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.decoder()?.read(tokens)
    }

    /// Continues `prompt` token by token, without end: take as many as wanted. An empty prompt begins after a newline.
    ///
    /// The model sees at most its context. Once that is full, it goes on with the newer half of it: positions count from
    /// the first token seen, so dropping one alone would mean to read all others anew for each token.
    ///
    /// # Errors
    /// When the device has no memory for the keys and values of a whole context.
    pub fn generate(&self, prompt: &[u32], sampling: &Sampling) -> Result<Continuation<'_>> {
        let newline = [u32::from(b'\n')];
        let seen = if prompt.is_empty() { &newline } else { prompt };
        let tail = &seen[seen.len().saturating_sub(self.spec.context as usize)..];
        Ok(Continuation {
            decoder: self.decoder()?,
            context: self.spec.context as usize,
            seen: tail.to_vec(),
            chooser: Chooser::new(sampling),
        })
    }

    fn decoder(&self) -> Result<Decoder<'_>> {
        Decoder::new(&self.spec, self.model.layout(), &self.parameters, self.kernels)
    }
}

/// An endless text, made as it is read.
pub struct Continuation<'a> {
    decoder: Decoder<'a>,
    context: usize,
    /// At most the context; those in front have gone through the decoder.
    seen: Vec<u32>,
    chooser: Chooser,
}

impl Iterator for Continuation<'_> {
    type Item = Result<u32>;

    fn next(&mut self) -> Option<Result<u32>> {
        Some(self.advance())
    }
}

impl Continuation<'_> {
    fn advance(&mut self) -> Result<u32> {
        if self.seen.len() > self.context {
            self.seen.drain(..self.seen.len() - self.context / 2);
            self.decoder.clear();
        }
        let logits = self.decoder.read(&self.seen[self.decoder.length()..])?;
        if !logits.iter().all(|logit| logit.is_finite()) {
            bail!("the model's output is not finite: it has diverged");
        }
        let token = self.chooser.choose(&logits) as u32;
        self.seen.push(token);
        Ok(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::TokenBatch;

    fn spec() -> ModelSpec {
        ModelSpec { layers: 2, width: 16, heads: 4, feed_forward: 24, context: 24, ..ModelSpec::default() }
    }

    fn language_model(spec: &ModelSpec) -> Result<LanguageModel> {
        LanguageModel::from_parameters(spec, &Transformer::new(spec).initial_parameters(1), &Device::Cpu)
    }

    fn bytes(text: &[u8]) -> Vec<u32> {
        text.iter().map(|byte| u32::from(*byte)).collect()
    }

    /// Without the cache: the whole text through the model again.
    fn logits_anew(model: &LanguageModel, tokens: &[u32]) -> Result<Vec<f32>> {
        let batch = TokenBatch { inputs: tokens.to_vec(), targets: tokens.to_vec(), sequences: 1 };
        let logits = model.model.forward(model.kernels, &model.parameters, &Batch::Tokens(batch))?;
        logits.narrow(0, tokens.len() - 1, 1)?.flatten_all()?.to_vec1()
    }

    fn distance(left: &[f32], right: &[f32]) -> f32 {
        left.iter().zip(right).fold(0.0, |largest, (left, right)| largest.max((left - right).abs()))
    }

    #[test]
    fn the_cache_changes_no_logits() -> Result<()> {
        for tied_head in [false, true] {
            let model = language_model(&ModelSpec { tied_head, ..spec() })?;
            let text = bytes(b"once upon a time in a m");
            // The composed operations are those of other devices.
            for kernels in [Kernels::Fused, Kernels::Composed] {
                let mut decoder = Decoder::new(&model.spec, model.model.layout(), &model.parameters, kernels)?;
                let mut read = 0;
                for next in [5, 6, 7, 15, 16, text.len()] {
                    let logits = decoder.read(&text[read..next])?;
                    read = next;
                    assert!(distance(&logits, &logits_anew(&model, &text[..read])?) < 1e-5, "{kernels:?} {read}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn shared_keys_and_values_are_those_of_a_model_that_repeats_them() -> Result<()> {
        let shared = ModelSpec { key_value_heads: 2, ..spec() };
        let narrow = Transformer::new(&shared);
        let values = narrow.initial_parameters(1);
        let whole = Transformer::new(&spec());
        let mut repeated = vec![0.0; whole.layout().parameters()];
        for (from, to) in narrow.layout().tensors().iter().zip(whole.layout().tensors()) {
            // Four rows of four heads: head 0 and 1 share the first, 2 and 3 the second.
            let head = 4 * 16;
            for (index, place) in repeated[to.range()].iter_mut().enumerate() {
                let source = if from.len() == to.len() { index } else { index / head / 2 * head + index % head };
                *place = values[from.offset + source];
            }
        }
        let (narrow, whole) = (
            LanguageModel::from_parameters(&shared, &values, &Device::Cpu)?,
            LanguageModel::from_parameters(&spec(), &repeated, &Device::Cpu)?,
        );
        let text = bytes(b"once upon a time");
        assert!(distance(&narrow.logits_after(&text)?, &whole.logits_after(&text)?) < 1e-6);
        Ok(())
    }

    #[test]
    fn a_text_follows_from_its_seed_and_outgrows_the_context() -> Result<()> {
        let model = language_model(&spec())?;
        let text = |temperature: f64, seed: u64| -> Result<Vec<u32>> {
            model.generate(&bytes(b"once"), &Sampling { temperature, top_p: 1.0, seed })?.take(60).collect()
        };
        assert_eq!(text(1.0, 1)?, text(1.0, 1)?);
        assert_ne!(text(1.0, 1)?, text(1.0, 2)?);
        assert_eq!(text(0.0, 1)?, text(0.0, 2)?);
        Ok(())
    }

    #[test]
    fn an_empty_or_long_prompt_is_fine() -> Result<()> {
        let model = language_model(&spec())?;
        for prompt in [&b""[..], &[b'x'; 100]] {
            let sampling = Sampling { temperature: 1.0, top_p: 0.9, seed: 1 };
            let text: Vec<u32> = model.generate(&bytes(prompt), &sampling)?.take(3).collect::<Result<_>>()?;
            assert_eq!(text.len(), 3);
        }
        Ok(())
    }
}
