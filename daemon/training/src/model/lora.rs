//! Low-rank adapters on a frozen model (LoRA, Hu et al., arXiv 2106.09685).
//!
//! Each chosen matrix `W` `[outputs, inputs]` becomes `W + s·B·A` with `A` `[rank, inputs]`, `B` `[outputs, rank]` and `s =
//! alpha / rank`. Only `A` and `B` are parameters; `B` begins at zero, so training begins exactly at the base.
//!
//! The transformer computes with the base and the adapters beside it (`transformer/weights.rs`), so the base is held once and has
//! no gradient; so do a GPU's kernels (`gpu/adapters.rs`). Candle's operations fold the sum into one matrix.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use candle_core::{Device, Result, Tensor, bail};
use murmur_protocol::layout::{ModelLayout, TensorSpec};
use murmur_protocol::manifest::LoraSpec;

use super::adapter_places::AdapterPlaces;
use super::initial::initial_parameters;
use super::stage::{BackwardOutput, Evaluated, Staged};
use super::transformer::{Adapters, Transformer, Weights};
use super::{Evaluation, Model, Task};
use crate::data::{Batch, TokenBatch};
use crate::engine::options::Precision;
use crate::ops::base_weights::BaseWeights;

/// What PEFT puts in front of the base's names.
const PREFIX: &str = "base_model.model.";

/// A model that trains adapters on a frozen base.
pub struct Lora {
    base: Transformer,
    layout: Arc<ModelLayout>,
    frozen: Arc<Frozen>,
}

/// What all lanes of one model share.
struct Frozen {
    /// Of the base.
    weights: BaseWeights,
    /// In the order of the base's layout.
    places: Vec<AdapterPlaces>,
    scale: f32,
    /// The same weights on the device that last computed with tensors. Behind a lock only because computing does not borrow the
    /// model exclusively; never contended.
    uploaded: Mutex<Vec<Tensor>>,
}

/// The trained tensors of `spec` on a base of this layout: PEFT's names, so that its tools know them.
pub fn lora_layout(base: &ModelLayout, spec: &LoraSpec) -> ModelLayout {
    let rank = spec.rank as usize;
    ModelLayout::in_order(targets(base, spec).flat_map(|(_, target)| {
        let (outputs, inputs) = (target.shape[0], target.shape[1]);
        let (down, up) = adapter_names(target);
        [(down, vec![rank, inputs]), (up, vec![outputs, rank])]
    }))
}

/// The weights of the base with `adapters`, flat in the order of [`lora_layout`], merged into them.
///
/// # Panics
/// When the numbers of values are not those of the layouts.
pub fn merge(base: &ModelLayout, spec: &LoraSpec, weights: &[f32], adapters: &[f32]) -> Vec<f32> {
    let layout = lora_layout(base, spec);
    assert_eq!((weights.len(), adapters.len()), (base.parameters(), layout.parameters()), "one value per parameter");
    let mut merged = weights.to_vec();
    for places in adapter_places(base, spec) {
        places.fold(spec.scale() as f32, adapters, &mut merged);
    }
    merged
}

/// How many values the adapted matrices of the base have together.
pub(crate) fn lora_targets_length(base: &ModelLayout, spec: &LoraSpec) -> usize {
    targets(base, spec).map(|(_, target)| target.len()).sum()
}

fn targets<'a>(base: &'a ModelLayout, spec: &'a LoraSpec) -> impl Iterator<Item = (usize, &'a TensorSpec)> {
    let is_target = |tensor: &TensorSpec| {
        let layer = tensor.name.strip_suffix(".weight").and_then(|name| name.rsplit('.').next());
        tensor.shape.len() == 2 && layer.is_some_and(|layer| spec.targets.iter().any(|target| target == layer))
    };
    base.tensors().iter().enumerate().filter(move |(_, tensor)| is_target(tensor))
}

/// (A's name, B's name).
fn adapter_names(target: &TensorSpec) -> (String, String) {
    let layer = target.name.strip_suffix(".weight").unwrap_or(&target.name);
    (format!("{PREFIX}{layer}.lora_A.weight"), format!("{PREFIX}{layer}.lora_B.weight"))
}

/// Of all targets.
pub(crate) fn adapter_places(base: &ModelLayout, spec: &LoraSpec) -> Vec<AdapterPlaces> {
    let layout = lora_layout(base, spec);
    let place = |name: &str| layout.tensor(name).expect("the layout has both adapters of each target").clone();
    let places = |(index, target): (usize, &TensorSpec)| {
        let (down, up) = adapter_names(target);
        AdapterPlaces { target: target.clone(), index, down: place(&down), up: place(&up) }
    };
    targets(base, spec).map(places).collect()
}

/// The adapters to begin with, flat in the order of their `layout`.
pub(crate) fn initial_adapters(layout: &ModelLayout, seed: u64) -> Vec<f32> {
    // No adapter writes into the residual stream by itself, so depth does not matter.
    initial_parameters(layout, 1, seed)
}

impl Lora {
    /// Adapters for `base` with its frozen `weights`, flat in the order of what it computes with, held in the bits of `spec`.
    ///
    /// # Panics
    /// When the number of weights is not the base's.
    pub fn new(base: Transformer, weights: impl Into<BaseWeights>, spec: &LoraSpec) -> Lora {
        let weights = weights.into().in_bits(base.held_layout(), spec.base_bits);
        let layout = Arc::new(lora_layout(base.layout(), spec));
        let (places, scale) = (adapter_places(base.layout(), spec), spec.scale() as f32);
        Lora { base, layout, frozen: Arc::new(Frozen { weights, places, scale, uploaded: Mutex::default() }) }
    }

    /// The weights of the base on `device`, once.
    fn uploaded(&self, device: &Device) -> Result<Vec<Tensor>> {
        let mut uploaded = self.frozen.uploaded.lock().unwrap_or_else(PoisonError::into_inner);
        if !uploaded.first().is_some_and(|tensor| tensor.device().same_device(device)) {
            let upload = |tensor: &TensorSpec| {
                let mut values = vec![0.0; tensor.len()];
                self.frozen.weights.read(tensor.range().start, &mut values);
                Tensor::from_vec(values, tensor.shape.as_slice(), device)
            };
            *uploaded = self.base.layout().tensors().iter().map(upload).collect::<Result<_>>()?;
        }
        Ok(uploaded.clone())
    }

    fn named<'a>(&self, parameters: &'a [Tensor], tensor: &TensorSpec) -> &'a Tensor {
        &parameters[self.layout.position(&tensor.name).expect("the layout has every adapter")]
    }
}

impl Model for Lora {
    fn layout(&self) -> &Arc<ModelLayout> {
        &self.layout
    }

    fn initial_parameters(&self, seed: u64) -> Vec<f32> {
        initial_adapters(&self.layout, seed)
    }

    fn logits(&self, parameters: &[Tensor], batch: &Batch) -> Result<Tensor> {
        let device = parameters.first().map_or(&Device::Cpu, Tensor::device);
        let mut weights = self.uploaded(device)?;
        for places in &self.frozen.places {
            let (down, up) = (self.named(parameters, &places.down), self.named(parameters, &places.up));
            let added = (up.matmul(down)? * f64::from(self.frozen.scale))?;
            weights[places.index] = (&weights[places.index] + added)?;
        }
        self.base.logits(&weights, batch)
    }

    fn gradient(&mut self, parameters: &[f32], batch: &Batch, task: &Task, gradient: &mut [f32]) -> Result<f64> {
        let batch = batch.tokens()?;
        self.forward(parameters, batch, None, task.threads)?;
        Ok(self.backward(parameters, batch, None, task, gradient)?.loss)
    }

    fn another(&self) -> Option<Box<dyn Model>> {
        let lora = |base| Lora { base, layout: self.layout.clone(), frozen: self.frozen.clone() };
        self.base.beside().map(|base| Box::new(lora(base)) as Box<dyn Model>)
    }

    fn staged(&mut self) -> Option<&mut dyn Staged> {
        Some(self)
    }

    fn forward_time(&self) -> Option<Duration> {
        self.base.forward_time()
    }

    fn set_recompute(&mut self, recompute: bool) {
        self.base.set_recompute(recompute);
    }

    fn set_precision(&mut self, precision: Precision) {
        self.base.set_precision(precision);
    }

    fn evaluate(&self, parameters: &[f32], batch: &Batch) -> Result<Evaluation> {
        match self.base.evaluated(self.frozen.with(parameters), batch.tokens()?, None)? {
            Evaluated::Evaluation(evaluation) => Ok(evaluation),
            Evaluated::Stream(_) => bail!("this is one stage of a model: alone it evaluates nothing"),
        }
    }
}

impl Frozen {
    /// What the base computes with.
    fn with<'a>(&'a self, adapters: &'a [f32]) -> Weights<'a> {
        Weights::adapted(&self.weights, Adapters { places: &self.places, scale: self.scale, values: adapters })
    }
}

impl Staged for Lora {
    fn forward(
        &mut self,
        parameters: &[f32],
        batch: &TokenBatch,
        input: Option<Vec<f32>>,
        threads: usize,
    ) -> Result<Option<Vec<f32>>> {
        self.base.forward_with(self.frozen.with(parameters), batch, input, threads)
    }

    fn backward(
        &mut self,
        parameters: &[f32],
        batch: &TokenBatch,
        to_output: Option<Vec<f32>>,
        task: &Task,
        gradient: &mut [f32],
    ) -> Result<BackwardOutput> {
        self.base.backward_with(self.frozen.with(parameters), batch, to_output, task, gradient)
    }

    fn abandon(&mut self) {
        self.base.abandon();
    }

    fn evaluate_stage(&mut self, parameters: &[f32], batch: &TokenBatch, input: Option<Vec<f32>>) -> Result<Evaluated> {
        self.base.evaluated(self.frozen.with(parameters), batch, input)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Var;
    use murmur_protocol::manifest::TransformerModel;

    use super::*;
    use crate::model::Write;
    use crate::model::{Transformer, gradients_by_autograd, tensors_of};
    use crate::ops::gradient_check::{random_tokens, random_values};
    use crate::ops::product::{Matrix, MatrixMut, multiply};

    fn spec() -> TransformerModel {
        TransformerModel { layers: 2, width: 16, heads: 2, feed_forward: 24, context: 12, ..Default::default() }
    }

    fn lora_spec(targets: &[&str]) -> LoraSpec {
        let targets = targets.iter().map(|target| (*target).to_owned()).collect();
        LoraSpec { rank: 3, alpha: 6.0, targets, ..LoraSpec::default() }
    }

    fn model(targets: &[&str]) -> Lora {
        let base = Transformer::new(&spec());
        let weights = base.initial_parameters(1);
        Lora::new(base, weights, &lora_spec(targets))
    }

    fn batch() -> Batch {
        let tokens = |seed| random_tokens(3 * 12, 256, seed);
        Batch::Tokens(TokenBatch { inputs: tokens(1), targets: tokens(2), sequences: 3 })
    }

    #[test]
    fn only_adapters_are_trained_under_the_names_of_peft() {
        let lora = model(&["q_proj", "down_proj"]);
        let names: Vec<&str> = lora.layout().tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names.len(), 8);
        assert_eq!(names[1], "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight");
        assert_eq!(names[2], "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight");
        assert_eq!(lora.layout().parameters(), 2 * (3 * (24 + 16) + 3 * (16 + 16)));
    }

    #[test]
    fn training_begins_exactly_at_the_base() -> Result<()> {
        let lora = model(&["q_proj", "v_proj"]);
        let base = Transformer::new(&spec());
        let found = lora.evaluate(&lora.initial_parameters(7), &batch())?;
        assert_eq!(found, base.evaluate(&base.initial_parameters(1), &batch())?);
        Ok(())
    }

    #[test]
    fn every_adapter_receives_the_gradient_of_autograd_on_bases_of_any_bits() -> Result<()> {
        let losses = [8, 16, 32].map(compare_with_autograd).into_iter().collect::<Result<Vec<f64>>>()?;
        // Three unlike bases, and nearly the same model.
        assert!(losses[0] != losses[2] && losses[1] != losses[2], "{losses:?}");
        assert!(losses.iter().all(|loss| (loss - losses[2]).abs() < 1e-2 * losses[2]), "{losses:?}");
        Ok(())
    }

    fn compare_with_autograd(base_bits: u32) -> Result<f64> {
        let base = Transformer::new(&spec());
        let weights = base.initial_parameters(1);
        let targets = ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"];
        let mut lora = Lora::new(base, weights, &LoraSpec { base_bits, ..lora_spec(&targets) });
        // B not at zero, or A would have no gradient.
        let parameters: Vec<f32> =
            random_values(lora.layout().parameters(), 5).into_iter().map(|value| 0.2 * value).collect();
        let mut gradient = vec![f32::NAN; parameters.len()];
        let share = 1.0 / 36.0;
        let loss = lora.gradient(&parameters, &batch(), &Task::alone(share, Write::Replace), &mut gradient)? / 36.0;
        let variables =
            tensors_of(lora.layout(), &parameters)?.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
        let (expected_loss, expected) = gradients_by_autograd(&lora, &variables, &batch())?;
        assert!((loss - f64::from(expected_loss.to_scalar::<f32>()?)).abs() < 1e-5);
        for (tensor, expected) in lora.layout().tensors().iter().zip(expected) {
            let (actual, expected) = (&gradient[tensor.range()], expected.flatten_all()?.to_vec1::<f32>()?);
            let largest = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            let pairs = actual.iter().zip(&expected);
            let error = pairs.fold(0.0_f32, |largest, (left, right)| largest.max((left - right).abs()));
            assert!(largest > 0.0 && error < 1e-4 * largest, "{}: {error} of {largest}", tensor.name);
        }
        let mut twice = gradient.clone();
        lora.gradient(&parameters, &batch(), &Task::alone(share, Write::Add), &mut twice)?;
        assert!(twice.iter().zip(&gradient).all(|(twice, once)| (twice - 2.0 * once).abs() < 1e-6));
        Ok(loss)
    }

    /// The gradient `G` of the merged matrices gives that of both adapters: `dB = s·G·Aᵀ`, `dA = s·Bᵀ·G`.
    #[test]
    fn adapters_receive_the_gradient_that_follows_from_that_of_merged_weights() -> Result<()> {
        use murmur_protocol::manifest::{AttentionBias, LORA_TARGETS};
        let plain = TransformerModel { key_value_heads: 1, tied_head: true, ..spec() };
        let everything = TransformerModel { head_norm: true, attention_bias: AttentionBias::All, ..plain.clone() };
        for (spec, targets, recompute) in [
            (plain, &["k_proj", "up_proj"][..], false),
            (everything.clone(), &LORA_TARGETS, false),
            (everything, &LORA_TARGETS, true),
        ] {
            let (mut base, lora_spec) = (Transformer::new(&spec), lora_spec(targets));
            let weights = base.initial_parameters(1);
            let mut lora = Lora::new(Transformer::new(&spec), weights.clone(), &lora_spec);
            lora.set_recompute(recompute);
            let parameters: Vec<f32> =
                random_values(lora.layout().parameters(), 5).into_iter().map(|value| 0.2 * value).collect();
            let merged = merge(base.layout(), &lora_spec, &weights, &parameters);
            let (mut of_merged, mut gradient) = (vec![f32::NAN; merged.len()], vec![f32::NAN; parameters.len()]);
            let task = Task::alone(1.0 / 36.0, Write::Replace);
            let expected_loss = base.gradient(&merged, &batch(), &task, &mut of_merged)?;
            let loss = lora.gradient(&parameters, &batch(), &task, &mut gradient)?;
            assert!((loss - expected_loss).abs() < 1e-5 * expected_loss, "{loss} {expected_loss}");
            let scale = lora_spec.scale() as f32;
            for places in adapter_places(base.layout(), &lora_spec) {
                let (rank, inputs, outputs) = (places.rank(), places.inputs(), places.outputs());
                let of_target = Matrix::dense(&of_merged[places.target.range()], outputs, inputs);
                let down = Matrix::dense(&parameters[places.down.range()], rank, inputs);
                let up = Matrix::dense(&parameters[places.up.range()], outputs, rank);
                let (mut to_down, mut to_up) = (vec![0.0; rank * inputs], vec![0.0; outputs * rank]);
                let place = MatrixMut::dense(&mut to_down, rank, inputs);
                multiply(place, Write::Replace, scale, up.transposed(), of_target);
                let place = MatrixMut::dense(&mut to_up, outputs, rank);
                multiply(place, Write::Replace, scale, of_target, down.transposed());
                for (tensor, expected) in [(&places.down, to_down), (&places.up, to_up)] {
                    let largest = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
                    let pairs = gradient[tensor.range()].iter().zip(&expected);
                    let error = pairs.fold(0.0_f32, |largest, (left, right)| largest.max((left - right).abs()));
                    assert!(largest > 0.0 && error < 1e-5 * largest, "{}: {error} of {largest}", tensor.name);
                }
            }
        }
        Ok(())
    }

    #[test]
    fn merged_weights_compute_the_same() -> Result<()> {
        let lora = model(&["k_proj", "up_proj"]);
        let parameters = random_values(lora.layout().parameters(), 5);
        let base = Transformer::new(&spec());
        let spec = lora_spec(&["k_proj", "up_proj"]);
        let merged = merge(base.layout(), &spec, &base.initial_parameters(1), &parameters);
        let (beside, folded) = (lora.evaluate(&parameters, &batch())?, base.evaluate(&merged, &batch())?);
        // Sums in another order.
        assert!((beside.loss() - folded.loss()).abs() < 1e-5, "{beside:?} {folded:?}");
        assert!((beside.loss() - base.evaluate(&base.initial_parameters(1), &batch())?.loss()).abs() > 1e-2);
        Ok(())
    }
}
