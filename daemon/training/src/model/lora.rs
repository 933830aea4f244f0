//! Low-rank adapters on a frozen model (LoRA, Hu et al., arXiv 2106.09685).
//!
//! Each chosen matrix `W` `[outputs, inputs]` becomes `W + s·B·A` with `A` `[rank, inputs]`, `B` `[outputs, rank]` and `s =
//! alpha / rank`. Only `A` and `B` are parameters; `B` begins at zero, so training begins exactly at the base.
//!
//! The sum is folded into one matrix before the model computes, and the gradient `G` of that matrix gives both: `dB =
//! s·G·Aᵀ`, `dA = s·Bᵀ·G`. So any model with its own backward is tuned by it at its full speed; a graph with two more
//! products a layer would save computing `G`, but run through autograd. The price is memory for `G`: four bytes for each
//! weight of the base.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use candle_core::{Device, Result, Tensor};
use murmur_protocol::layout::{ModelLayout, TensorSpec};
use murmur_protocol::manifest::LoraSpec;

use super::initial::initial_parameters;
use super::stage::{BackwardOutput, Evaluated, Staged};
use super::{Evaluation, Model, Task, Write};
use crate::data::{Batch, TokenBatch};
use crate::engine::options::Precision;
use crate::ops::product::{Matrix, MatrixMut, multiply};

/// What PEFT puts in front of the base's names.
const PREFIX: &str = "base_model.model.";

/// A model that trains adapters on a frozen base.
pub struct Lora {
    base: Box<dyn Model>,
    layout: Arc<ModelLayout>,
    adapters: Vec<Adapter>,
    scale: f32,
    /// Behind a lock only because evaluating does not borrow the model exclusively; never contended.
    folded: Mutex<Folded>,
}

/// Where one matrix of the base lies, and its adapters in the trained vector.
pub(crate) struct AdapterPlaces {
    /// In the base's layout.
    pub(crate) target: TensorSpec,
    /// Which tensor of the base's layout that is.
    index: usize,
    pub(crate) down: TensorSpec,
    pub(crate) up: TensorSpec,
}

/// One matrix of the base with its adapters.
struct Adapter {
    places: AdapterPlaces,
    /// The target's frozen values.
    frozen: Vec<f32>,
}

struct Folded {
    /// All weights of the base, the adapted ones with what their adapters last added.
    weights: Vec<f32>,
    /// The gradient of these; empty until the first step.
    gradient: Vec<f32>,
    /// The same weights on the device that last computed, the adapted ones as in the base.
    uploaded: Vec<Tensor>,
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
    for adapter in adapters_of(base, spec, weights) {
        adapter.fold(spec.scale() as f32, adapters, &mut merged);
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

fn adapters_of(base: &ModelLayout, spec: &LoraSpec, weights: &[f32]) -> Vec<Adapter> {
    let adapter = |places: AdapterPlaces| Adapter { frozen: weights[places.target.range()].to_vec(), places };
    adapter_places(base, spec).into_iter().map(adapter).collect()
}

/// The adapters to begin with, flat in the order of their `layout`.
pub(crate) fn initial_adapters(layout: &ModelLayout, seed: u64) -> Vec<f32> {
    // No adapter writes into the residual stream by itself, so depth does not matter.
    initial_parameters(layout, 1, seed)
}

impl Adapter {
    fn down<'a>(&self, adapters: &'a [f32]) -> Matrix<'a> {
        Matrix::dense(&adapters[self.places.down.range()], self.places.down.shape[0], self.places.down.shape[1])
    }

    fn up<'a>(&self, adapters: &'a [f32]) -> Matrix<'a> {
        Matrix::dense(&adapters[self.places.up.range()], self.places.up.shape[0], self.places.up.shape[1])
    }

    /// Writes `W + s·B·A` to the target's place among `weights`.
    fn fold(&self, scale: f32, adapters: &[f32], weights: &mut [f32]) {
        let place = &mut weights[self.places.target.range()];
        place.copy_from_slice(&self.frozen);
        let place = MatrixMut::dense(place, self.places.target.shape[0], self.places.target.shape[1]);
        multiply(place, Write::Add, scale, self.up(adapters), self.down(adapters));
    }

    /// From the gradient of all weights to that of these two adapters.
    fn unfold(&self, scale: f32, adapters: &[f32], of_weights: &[f32], write: Write, gradient: &mut [f32]) {
        let (outputs, inputs) = (self.places.target.shape[0], self.places.target.shape[1]);
        let of_target = Matrix::dense(&of_weights[self.places.target.range()], outputs, inputs);
        let rank = self.places.down.shape[0];
        let place = MatrixMut::dense(&mut gradient[self.places.up.range()], outputs, rank);
        multiply(place, write, scale, of_target, self.down(adapters).transposed());
        let place = MatrixMut::dense(&mut gradient[self.places.down.range()], rank, inputs);
        multiply(place, write, scale, self.up(adapters).transposed(), of_target);
    }
}

impl Lora {
    /// Adapters for `base` with its frozen `weights`, flat in the order of its layout.
    ///
    /// # Panics
    /// When the number of weights is not the base's.
    pub fn new(base: Box<dyn Model>, weights: Vec<f32>, spec: &LoraSpec) -> Lora {
        assert_eq!(weights.len(), base.layout().parameters(), "one value per parameter");
        let layout = lora_layout(base.layout(), spec);
        let adapters = adapters_of(base.layout(), spec, &weights);
        let folded = Mutex::new(Folded { weights, gradient: Vec::new(), uploaded: Vec::new() });
        Lora { layout: Arc::new(layout), scale: spec.scale() as f32, base, adapters, folded }
    }

    /// The weights of the base on `device`, once.
    fn uploaded(&self, device: &Device) -> Result<Vec<Tensor>> {
        let mut folded = self.folded.lock().unwrap_or_else(PoisonError::into_inner);
        if !folded.uploaded.first().is_some_and(|tensor| tensor.device().same_device(device)) {
            let layout = self.base.layout();
            let upload = |(index, tensor): (usize, &TensorSpec)| {
                let adapter = self.adapters.iter().find(|adapter| adapter.places.index == index);
                let values = adapter.map_or(&folded.weights[tensor.range()], |adapter| &adapter.frozen);
                Tensor::from_slice(values, tensor.shape.as_slice(), device)
            };
            folded.uploaded = layout.tensors().iter().enumerate().map(upload).collect::<Result<_>>()?;
        }
        Ok(folded.uploaded.clone())
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
        for adapter in &self.adapters {
            let (down, up) = (self.named(parameters, &adapter.places.down), self.named(parameters, &adapter.places.up));
            let added = (up.matmul(down)? * f64::from(self.scale))?;
            weights[adapter.places.index] = (&weights[adapter.places.index] + added)?;
        }
        self.base.logits(&weights, batch)
    }

    fn gradient(&mut self, parameters: &[f32], batch: &Batch, task: &Task, gradient: &mut [f32]) -> Result<f64> {
        let Folded { weights, gradient: of_weights, .. } =
            self.folded.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.adapters.iter().for_each(|adapter| adapter.fold(self.scale, parameters, weights));
        of_weights.resize(weights.len(), 0.0);
        let loss = self.base.gradient(weights, batch, &Task { write: Write::Replace, ..*task }, of_weights)?;
        for adapter in &self.adapters {
            adapter.unfold(self.scale, parameters, of_weights, task.write, gradient);
        }
        Ok(loss)
    }

    fn staged(&mut self) -> Option<&mut dyn Staged> {
        self.base.staged().is_some().then_some(self as &mut dyn Staged)
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
        let mut folded = self.folded.lock().unwrap_or_else(PoisonError::into_inner);
        self.adapters.iter().for_each(|adapter| adapter.fold(self.scale, parameters, &mut folded.weights));
        self.base.evaluate(&folded.weights, batch)
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
        let weights = &mut self.folded.get_mut().unwrap_or_else(PoisonError::into_inner).weights;
        self.adapters.iter().for_each(|adapter| adapter.fold(self.scale, parameters, weights));
        staged(&mut *self.base).forward(weights, batch, input, threads)
    }

    fn backward(
        &mut self,
        parameters: &[f32],
        batch: &TokenBatch,
        to_output: Option<Vec<f32>>,
        task: &Task,
        gradient: &mut [f32],
    ) -> Result<BackwardOutput> {
        // Still folded with the parameters of the forward.
        let Folded { weights, gradient: of_weights, .. } =
            self.folded.get_mut().unwrap_or_else(PoisonError::into_inner);
        of_weights.resize(weights.len(), 0.0);
        let of_base = Task { write: Write::Replace, ..*task };
        let output = staged(&mut *self.base).backward(weights, batch, to_output, &of_base, of_weights)?;
        for adapter in &self.adapters {
            adapter.unfold(self.scale, parameters, of_weights, task.write, gradient);
        }
        Ok(output)
    }

    fn abandon(&mut self) {
        staged(&mut *self.base).abandon();
    }

    fn evaluate_stage(&mut self, parameters: &[f32], batch: &TokenBatch, input: Option<Vec<f32>>) -> Result<Evaluated> {
        let weights = &mut self.folded.get_mut().unwrap_or_else(PoisonError::into_inner).weights;
        self.adapters.iter().for_each(|adapter| adapter.fold(self.scale, parameters, weights));
        staged(&mut *self.base).evaluate_stage(weights, batch, input)
    }
}

/// The base of adapters that are cut.
fn staged(base: &mut dyn Model) -> &mut dyn Staged {
    base.staged().expect("adapters are cut only where their base is")
}

#[cfg(test)]
mod tests {
    use candle_core::Var;
    use murmur_protocol::manifest::ModelSpec;

    use super::*;
    use crate::model::{Transformer, build, gradients_by_autograd, tensors_of};
    use crate::ops::gradient_check::{random_tokens, random_values};

    fn spec() -> ModelSpec {
        ModelSpec { layers: 2, width: 16, heads: 2, feed_forward: 24, context: 12, ..ModelSpec::default() }
    }

    fn lora_spec(targets: &[&str]) -> LoraSpec {
        LoraSpec { rank: 3, alpha: 6.0, targets: targets.iter().map(|target| (*target).to_owned()).collect() }
    }

    fn model(targets: &[&str]) -> Lora {
        let base = build(&spec());
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
    fn every_adapter_receives_the_gradient_of_autograd() -> Result<()> {
        let mut lora = model(&["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]);
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
        Ok(())
    }

    #[test]
    fn merged_weights_compute_the_same() -> Result<()> {
        let lora = model(&["k_proj", "up_proj"]);
        let parameters = random_values(lora.layout().parameters(), 5);
        let base = Transformer::new(&spec());
        let spec = lora_spec(&["k_proj", "up_proj"]);
        let merged = merge(base.layout(), &spec, &base.initial_parameters(1), &parameters);
        assert_eq!(lora.evaluate(&parameters, &batch())?, base.evaluate(&merged, &batch())?);
        assert_ne!(merged, base.initial_parameters(1));
        Ok(())
    }
}
