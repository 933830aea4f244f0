//! Using a trained model: text from a prompt, and how well it predicts held-out data.

mod choice;

use std::sync::Arc;

use candle_core::{Device, Result, bail};
use murmur_protocol::manifest::TransformerModel;

use crate::data::{Batch, Window};
use crate::engine::options::TOKENS_AT_ONCE;
use crate::gpu::{self, Accelerator, GpuReader};
use crate::model::transformer::Decoder;
use crate::model::{Evaluation, Model, Transformer};
use choice::Chooser;
pub use choice::Sampling;

/// A model that only reads: from a checkpoint or a snapshot.
pub struct LanguageModel {
    context: usize,
    model: Transformer,
    parameters: Parameters,
    /// Tokens at which a text ends.
    ends: Vec<u32>,
}

/// Where the model is computed.
enum Parameters {
    /// On the CPU, flat.
    Host(Vec<f32>),
    Gpu(GpuReader),
}

impl LanguageModel {
    /// The model of `spec` with flat `parameters`: on the CPU, unless `device` is a GPU that runs our kernels.
    ///
    /// # Errors
    /// When the device has no memory for it.
    ///
    /// # Panics
    /// When the number of parameters is not the model's: check with [`crate::parameter_count`] what comes from outside.
    pub fn from_parameters(spec: &TransformerModel, parameters: &[f32], device: &Device) -> Result<LanguageModel> {
        LanguageModel::on(spec, parameters, gpu::accelerator(device).ok())
    }

    /// The same; on the CPU where a GPU has no room for all of it, with what the GPU says: a model that was trained there with some
    /// layers at a time is larger than its memory.
    ///
    /// # Errors
    /// When the CPU fails.
    ///
    /// # Panics
    /// As [`LanguageModel::from_parameters`].
    pub fn where_it_fits(
        spec: &TransformerModel,
        parameters: &[f32],
        device: &Device,
    ) -> Result<(LanguageModel, Option<String>)> {
        LanguageModel::on_or_beside(spec, parameters, gpu::accelerator(device).ok())
    }

    fn on_or_beside(
        spec: &TransformerModel,
        parameters: &[f32],
        accelerator: Option<Arc<dyn Accelerator>>,
    ) -> Result<(LanguageModel, Option<String>)> {
        let Some(accelerator) = accelerator else { return Ok((LanguageModel::on(spec, parameters, None)?, None)) };
        let on_gpu = LanguageModel::on(spec, parameters, Some(accelerator));
        // Keys, values and buffers of a text take memory as well.
        let tried =
            on_gpu.and_then(|model| model.logits_after(&vec![0; model.context.min(TOKENS_AT_ONCE)]).map(|_| model));
        match tried {
            Ok(model) => Ok((model, None)),
            Err(error) => Ok((LanguageModel::on(spec, parameters, None)?, Some(error.to_string()))),
        }
    }

    fn on(
        spec: &TransformerModel,
        parameters: &[f32],
        accelerator: Option<Arc<dyn Accelerator>>,
    ) -> Result<LanguageModel> {
        let model = Transformer::new(spec);
        assert_eq!(parameters.len(), model.layout().parameters(), "one value per parameter");
        let parameters = match accelerator {
            Some(device) => Parameters::Gpu(GpuReader::new(device, spec, parameters)?),
            None => Parameters::Host(parameters.to_vec()),
        };
        Ok(LanguageModel { context: spec.context as usize, model, parameters, ends: Vec::new() })
    }

    /// The same, whose texts end before each of these tokens: see [`crate::pretrained::end_tokens`].
    pub fn ending_at(self, tokens: Vec<u32>) -> LanguageModel {
        LanguageModel { ends: tokens, ..self }
    }

    /// How well it predicts `windows` (see [`crate::Corpus::validation`]).
    ///
    /// # Errors
    /// When the device fails.
    pub fn evaluate(&self, windows: &[Window], batch_sequences: usize) -> Result<Evaluation> {
        match &self.parameters {
            Parameters::Gpu(reader) => reader.evaluate(windows.chunks(batch_sequences.max(1)).map(Batch::of)),
            Parameters::Host(parameters) => {
                // As training computes them: on the CPU more at once takes memory alone.
                let at_once = batch_sequences.min(TOKENS_AT_ONCE / self.context).max(1);
                let add = |sum: Evaluation, batch: Batch| Ok(sum.with(self.model.evaluate(parameters, &batch)?));
                windows.chunks(at_once).map(Batch::of).try_fold(Evaluation::default(), add)
            }
        }
    }

    /// The logits of the token after `tokens`, of which there are at least one and at most the context.
    ///
    /// # Errors
    /// When there are more, a token is not in the vocabulary, or the device fails.
    pub fn logits_after(&self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.begin()?(tokens)
    }

    /// Continues `prompt` token by token, up to a token that ends a text or without end: take as many as wanted. An empty prompt begins
    /// after a newline.
    ///
    /// The model sees at most its context. Once that is full, it goes on with the newer half of it: positions count from
    /// the first token seen, so dropping one alone would mean to read all others anew for each token.
    ///
    /// # Errors
    /// When the device has no memory for the keys and values of a whole context.
    pub fn generate(&self, prompt: &[u32], sampling: &Sampling) -> Result<Continuation<'_>> {
        let newline = [u32::from(b'\n')];
        let seen = if prompt.is_empty() { &newline } else { prompt };
        let tail = &seen[seen.len().saturating_sub(self.context)..];
        Ok(Continuation {
            model: self,
            read: self.begin()?,
            seen: tail.to_vec(),
            length: 0,
            chooser: Chooser::new(sampling),
            has_ended: false,
        })
    }

    /// A text of which nothing has been read.
    fn begin(&self) -> Result<Read<'_>> {
        Ok(match &self.parameters {
            Parameters::Gpu(reader) => Box::new(reader.begin()?),
            Parameters::Host(parameters) => {
                let mut decoder = Decoder::new(self.context);
                Box::new(move |tokens| self.model.read(parameters, tokens, &mut decoder))
            }
        })
    }
}

/// Reads on in a text, and gives the logits of the next token.
type Read<'a> = Box<dyn FnMut(&[u32]) -> Result<Vec<f32>> + Send + 'a>;

/// A text, made as it is read: without end where no token ends one.
pub struct Continuation<'a> {
    model: &'a LanguageModel,
    read: Read<'a>,
    /// At most the context.
    seen: Vec<u32>,
    /// How many of these have been read.
    length: usize,
    chooser: Chooser,
    has_ended: bool,
}

impl Iterator for Continuation<'_> {
    type Item = Result<u32>;

    fn next(&mut self) -> Option<Result<u32>> {
        if self.has_ended {
            return None;
        }
        let token = self.advance();
        self.has_ended = token.as_ref().is_ok_and(|token| self.model.ends.contains(token));
        (!self.has_ended).then_some(token)
    }
}

impl Continuation<'_> {
    fn advance(&mut self) -> Result<u32> {
        let context = self.model.context;
        if self.seen.len() > context {
            self.seen.drain(..self.seen.len() - context / 2);
            (self.read, self.length) = (self.model.begin()?, 0);
        }
        let logits = (self.read)(&self.seen[self.length..])?;
        self.length = self.seen.len();
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
    use murmur_protocol::manifest::AttentionBias;

    use super::*;
    use crate::data::TokenBatch;
    use crate::model::tensors_of;

    fn spec() -> TransformerModel {
        TransformerModel { layers: 2, width: 16, heads: 4, feed_forward: 24, context: 24, ..Default::default() }
    }

    fn language_model(spec: &TransformerModel) -> Result<LanguageModel> {
        LanguageModel::from_parameters(spec, &Transformer::new(spec).initial_parameters(1), &Device::Cpu)
    }

    fn bytes(text: &[u8]) -> Vec<u32> {
        text.iter().map(|byte| u32::from(*byte)).collect()
    }

    fn distance(left: &[f32], right: &[f32]) -> f32 {
        left.iter().zip(right).fold(0.0, |largest, (left, right)| largest.max((left - right).abs()))
    }

    #[test]
    fn the_cache_changes_no_logits() -> Result<()> {
        let qwen = TransformerModel { head_width: 6, head_norm: true, attention_bias: AttentionBias::All, ..spec() };
        let smol = TransformerModel { key_value_heads: 2, layers_without_rope: vec![0], tied_head: true, ..spec() };
        let bias = TransformerModel { attention_bias: AttentionBias::Qkv, ..spec() };
        for spec in [spec(), smol, qwen, bias] {
            let reference = Transformer::new(&spec);
            let (mut parameters, text) = (reference.initial_parameters(1), bytes(b"once upon a time in a m"));
            // Biases of zero and scales of one would hide a mistake.
            let alike = parameters.iter_mut().enumerate().filter(|(_, value)| **value == 0.0 || **value == 1.0);
            alike.for_each(|(index, value)| *value += (index % 7) as f32 / 20.0);
            let model = LanguageModel::from_parameters(&spec, &parameters, &Device::Cpu)?;
            let mut read_on = model.begin()?;
            let mut read = 0;
            for next in [5, 6, 7, 15, 16, text.len()] {
                let logits = read_on(&text[read..next])?;
                read = next;
                let batch = TokenBatch { inputs: text[..read].to_vec(), targets: text[..read].to_vec(), sequences: 1 };
                let expected =
                    reference.logits(&tensors_of(reference.layout(), &parameters)?, &Batch::Tokens(batch))?;
                let expected = expected.get(read - 1)?.to_vec1()?;
                assert!(distance(&logits, &expected) < 1e-5, "{spec:?} {read}");
            }
        }
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
    fn a_text_ends_at_its_end_token() -> Result<()> {
        let model = language_model(&spec())?;
        let sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 1 };
        let expected: Vec<u32> = model.generate(&bytes(b"once"), &sampling)?.take(60).collect::<Result<_>>()?;
        let folder = tempfile::tempdir()?;
        let model = expected.iter().try_fold(model, |model, end| {
            let text = format!("{{\"eos_token_id\": [{end}, 9999]}}");
            std::fs::write(folder.path().join("generation_config.json"), text)?;
            let model = model.ending_at(crate::pretrained::end_tokens(folder.path()).expect("two tokens"));
            let mut text = model.generate(&bytes(b"once"), &sampling)?;
            let found: Vec<u32> = text.by_ref().take(60).collect::<Result<_>>()?;
            let length = expected.iter().position(|token| token == end).expect("one of them");
            assert_eq!(found, expected[..length]);
            assert!(text.next().is_none(), "it has ended for good");
            drop(text);
            Ok::<_, candle_core::Error>(model)
        })?;
        assert_eq!(model.ending_at(Vec::new()).generate(&bytes(b"once"), &sampling)?.take(60).count(), 60);
        Ok(())
    }

    /// A GPU that has no room for the weights, and one that has room for these and not for a text beside them.
    #[test]
    fn a_model_that_is_too_large_for_a_gpu_is_read_on_the_cpu() -> Result<()> {
        let spec = spec();
        let parameters = Transformer::new(&spec).initial_parameters(1);
        let on_cpu = language_model(&spec)?.logits_after(&bytes(b"once"))?;
        for (room, fits) in [(parameters.len(), false), (4 * parameters.len() + 1000, false), (64 << 20, true)] {
            let Some(device) = gpu::emulated::Emulated::with_room(room) else { return Ok(()) };
            let (model, why) = LanguageModel::on_or_beside(&spec, &parameters, Some(device))?;
            assert_eq!(
                (why.is_none(), matches!(model.parameters, Parameters::Gpu(_))),
                (fits, fits),
                "{room}: {why:?}"
            );
            assert!(distance(&model.logits_after(&bytes(b"once"))?, &on_cpu) < 1e-5, "{room}");
        }
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
