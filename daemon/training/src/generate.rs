//! Using a trained model: text from a prompt, and its loss on held-out data.

use candle_core::{Device, Result, Tensor};
use murmur_protocol::manifest::ModelSpec;
use murmur_protocol::random::{Generator, RngExt, stream};

use crate::data::{Batch, TokenBatch, Window};
use crate::model::{Evaluation, Model, Transformer, evaluate_composed};

/// A model that only reads: from a checkpoint or a snapshot.
pub struct LanguageModel {
    model: Transformer,
    parameters: Parameters,
    context: usize,
}

/// Where the model is computed.
enum Parameters {
    /// On the CPU, flat.
    Host(Vec<f32>),
    /// On a device, in the order of the model's layout.
    Device(Vec<Tensor>),
}

/// What a generated text follows from.
#[derive(Clone, Debug)]
pub struct Sampling {
    /// 0 always takes the likeliest byte; 1 draws from the model's distribution; above 1 is wilder.
    pub temperature: f64,
    /// Equal seeds give equal texts.
    pub seed: u64,
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
        let parameters = if device.is_cpu() {
            Parameters::Host(parameters.to_vec())
        } else {
            Parameters::Device(model.layout().tensors().iter().map(tensor).collect::<Result<_>>()?)
        };
        Ok(LanguageModel { model, parameters, context: spec.context as usize })
    }

    /// Mean loss over `windows` (see [`crate::Corpus::validation`]), in nats per byte.
    ///
    /// # Errors
    /// When the device fails.
    pub fn evaluate(&self, windows: &[Window], batch_sequences: usize) -> Result<f64> {
        let mut evaluation = Evaluation::default();
        for windows in windows.chunks(batch_sequences.max(1)) {
            let batch = Batch::of(windows);
            evaluation = evaluation.with(match &self.parameters {
                Parameters::Host(parameters) => self.model.evaluate(parameters, &batch)?,
                Parameters::Device(parameters) => evaluate_composed(&self.model, parameters, &batch)?,
            });
        }
        Ok(evaluation.loss())
    }

    /// Continues `prompt` byte by byte, without end: take as many as wanted. An empty prompt begins after a newline.
    /// The model sees the last `context` bytes.
    pub fn generate(&self, prompt: &[u8], sampling: &Sampling) -> Continuation<'_> {
        let seen = if prompt.is_empty() { b"\n" } else { prompt };
        let tail = &seen[seen.len().saturating_sub(self.context)..];
        Continuation {
            language_model: self,
            seen: tail.to_vec(),
            temperature: sampling.temperature,
            generator: stream(sampling.seed, "generation", &[]),
        }
    }
}

/// An endless text, made as it is read.
pub struct Continuation<'a> {
    language_model: &'a LanguageModel,
    seen: Vec<u8>,
    temperature: f64,
    generator: Generator,
}

impl Iterator for Continuation<'_> {
    type Item = Result<u8>;

    fn next(&mut self) -> Option<Result<u8>> {
        let byte = self.last_logits().map(|logits| self.choose(&logits));
        if let Ok(byte) = byte {
            if self.seen.len() == self.language_model.context {
                self.seen.remove(0);
            }
            self.seen.push(byte);
        }
        Some(byte)
    }
}

impl Continuation<'_> {
    fn last_logits(&self) -> Result<Vec<f32>> {
        let LanguageModel { model, parameters, .. } = self.language_model;
        let inputs: Vec<u32> = self.seen.iter().map(|byte| u32::from(*byte)).collect();
        match parameters {
            Parameters::Host(parameters) => model.next_token_logits(parameters, &inputs),
            Parameters::Device(parameters) => {
                let last = inputs.len() - 1;
                let batch = Batch::Tokens(TokenBatch { targets: inputs.clone(), inputs, sequences: 1 });
                model.logits(parameters, &batch)?.narrow(0, last, 1)?.flatten_all()?.to_vec1()
            }
        }
    }

    fn choose(&mut self, logits: &[f32]) -> u8 {
        let likeliest = (0..logits.len()).fold(0, |best, next| if logits[next] > logits[best] { next } else { best });
        let chosen = if self.temperature > 0.0 {
            let maximum = f64::from(logits[likeliest]);
            let weight = |logit: &f32| ((f64::from(*logit) - maximum) / self.temperature).exp();
            let weights: Vec<f64> = logits.iter().map(weight).collect();
            let mut rest = self.generator.random::<f64>() * weights.iter().sum::<f64>();
            let drawn = weights.iter().position(|weight| {
                rest -= weight;
                rest < 0.0
            });
            drawn.unwrap_or(likeliest)
        } else {
            likeliest
        };
        u8::try_from(chosen).expect("the vocabulary is at most the bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn language_model() -> Result<LanguageModel> {
        let spec = ModelSpec { layers: 1, width: 8, heads: 2, feed_forward: 8, context: 8, ..ModelSpec::default() };
        let parameters = Transformer::new(&spec).initial_parameters(1);
        LanguageModel::from_parameters(&spec, &parameters, &Device::Cpu)
    }

    #[test]
    fn a_text_follows_from_its_seed_and_outgrows_the_context() -> Result<()> {
        let model = language_model()?;
        let text = |temperature: f64, seed: u64| -> Result<Vec<u8>> {
            model.generate(b"once", &Sampling { temperature, seed }).take(20).collect()
        };
        assert_eq!(text(1.0, 1)?, text(1.0, 1)?);
        assert_ne!(text(1.0, 1)?, text(1.0, 2)?);
        assert_eq!(text(0.0, 1)?, text(0.0, 2)?);
        Ok(())
    }

    #[test]
    fn an_empty_or_long_prompt_is_fine() -> Result<()> {
        let model = language_model()?;
        for prompt in [&b""[..], &[b'x'; 100]] {
            let text: Vec<u8> =
                model.generate(prompt, &Sampling { temperature: 1.0, seed: 1 }).take(3).collect::<Result<_>>()?;
            assert_eq!(text.len(), 3);
        }
        Ok(())
    }
}
