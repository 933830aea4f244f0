//! Low-rank adapters on a frozen model (LoRA, Hu et al., arXiv 2106.09685): which there are, where they lie, and what they compute.
//!
//! Each chosen matrix `W` `[outputs, inputs]` becomes `W + s·B·A` with `A` `[rank, inputs]`, `B` `[outputs, rank]` and `s =
//! alpha / rank`. Only `A` and `B` are parameters; `B` begins at zero, so training begins exactly at the base.
//!
//! An adapted layer is `y = x·Wᵀ + s·(x·Aᵀ)·Bᵀ`: the base is held once and stays as it is. Its backward needs `u = s·g·B` for the
//! gradient `g` of `y`: then `dx = g·W + u·A`, `dA = uᵀ·x` and `dB = s·gᵀ·(x·Aᵀ)`. The frozen `W` has no gradient, so a token costs
//! four operations a weight instead of six, and nothing as large as the base is held beside it. Candle's operations fold the sum
//! into one matrix. In a GPU's memory: `gpu/adapters.rs`.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{Device, Result, Tensor};
use murmur_protocol::layout::{ModelLayout, TensorSpec};
use murmur_protocol::manifest::LoraSpec;

use super::initial::initial_parameters;
use crate::ops::base_weights::BaseWeights;
use crate::ops::product::{Matrix, MatrixMut, Products, Write, multiply, multiply_in_parallel};

/// What PEFT puts in front of the base's names.
const PREFIX: &str = "base_model.model.";

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

/// Where one matrix of the base lies, and its adapters in the trained vector.
pub(crate) struct AdapterPlaces {
    /// In the base's layout.
    pub(crate) target: TensorSpec,
    /// Which tensor of the base's layout that is.
    index: usize,
    pub(crate) down: TensorSpec,
    pub(crate) up: TensorSpec,
}

impl AdapterPlaces {
    /// Of those of a base, which are sorted by their targets' places, those of the matrices that lie in `range`.
    pub(crate) fn within<'a>(all: &'a [AdapterPlaces], range: &Range<usize>) -> &'a [AdapterPlaces] {
        let before = |end: usize| all.partition_point(|places| places.target.range().start < end);
        &all[before(range.start)..before(range.end)]
    }

    pub(crate) fn rank(&self) -> usize {
        self.down.shape[0]
    }

    /// Of the adapted matrix.
    pub(crate) fn inputs(&self) -> usize {
        self.target.shape[1]
    }

    /// Of the adapted matrix.
    pub(crate) fn outputs(&self) -> usize {
        self.target.shape[0]
    }

    /// The first output of the adapted matrix, of those of the matrix in `range`, of which it is some rows.
    pub(crate) fn first_output(&self, range: &Range<usize>) -> usize {
        (self.target.range().start - range.start) / self.inputs()
    }

    /// (A `[rank, inputs]`, B `[outputs, rank]`) in a flat vector of what is trained.
    fn matrices_in<'a>(&self, adapters: &'a [f32]) -> (Matrix<'a>, Matrix<'a>) {
        let down = Matrix::dense(&adapters[self.down.range()], self.rank(), self.inputs());
        (down, Matrix::dense(&adapters[self.up.range()], self.outputs(), self.rank()))
    }

    /// Adds `s·B·A` to the target's place among `weights`.
    fn fold(&self, scale: f32, adapters: &[f32], weights: &mut [f32]) {
        let (down, up) = self.matrices_in(adapters);
        let place = MatrixMut::dense(&mut weights[self.target.range()], self.outputs(), self.inputs());
        multiply(place, Write::Add, scale, up, down);
    }
}

/// A base that is not trained, and where adapters lie beside it.
pub(crate) struct Frozen {
    layout: Arc<ModelLayout>,
    weights: BaseWeights,
    /// In the order of the base's layout.
    places: Vec<AdapterPlaces>,
    scale: f32,
    /// The same weights on the device that last computed with tensors. Behind a lock only because computing does not borrow the
    /// model exclusively; never contended.
    uploaded: Mutex<Vec<Tensor>>,
}

impl Frozen {
    /// The weights of a base, flat in the order of `layout`, held in the bits of `spec`. `own`: without what it has a copy of.
    ///
    /// # Panics
    /// When the number of weights is not the base's.
    pub(crate) fn new(
        (own, layout): (&ModelLayout, Arc<ModelLayout>),
        weights: BaseWeights,
        spec: &LoraSpec,
    ) -> Frozen {
        let (weights, places) = (weights.in_bits(&layout, spec.base_bits), adapter_places(own, spec));
        Frozen { layout, weights, places, scale: spec.scale() as f32, uploaded: Mutex::default() }
    }

    /// Of the base.
    pub(crate) fn layout(&self) -> &Arc<ModelLayout> {
        &self.layout
    }

    /// Flat, in that order.
    pub(crate) fn weights(&self) -> &BaseWeights {
        &self.weights
    }

    /// Adapters beside it.
    pub(crate) fn adapters<'a>(&'a self, values: &'a [f32]) -> Adapters<'a> {
        Adapters { places: &self.places, scale: self.scale, values }
    }

    /// Its tensors on `device`, with `adapters` in the order of `trained` folded into them.
    pub(crate) fn folded(&self, trained: &ModelLayout, adapters: &[Tensor], device: &Device) -> Result<Vec<Tensor>> {
        let mut weights = self.uploaded(device)?;
        let named =
            |tensor: &TensorSpec| &adapters[trained.position(&tensor.name).expect("the layout has every adapter")];
        for places in &self.places {
            let added = (named(&places.up).matmul(named(&places.down))? * f64::from(self.scale))?;
            weights[places.index] = (&weights[places.index] + added)?;
        }
        Ok(weights)
    }

    /// Its tensors on `device`, brought there once.
    fn uploaded(&self, device: &Device) -> Result<Vec<Tensor>> {
        let mut uploaded = self.uploaded.lock().unwrap_or_else(PoisonError::into_inner);
        if !uploaded.first().is_some_and(|tensor| tensor.device().same_device(device)) {
            let upload = |tensor: &TensorSpec| {
                let mut values = vec![0.0; tensor.len()];
                self.weights.read(tensor.range().start, &mut values);
                Tensor::from_vec(values, tensor.shape.as_slice(), device)
            };
            *uploaded = self.layout.tensors().iter().map(upload).collect::<Result<_>>()?;
        }
        Ok(uploaded.clone())
    }
}

/// What is trained beside a frozen base.
#[derive(Clone, Copy)]
pub(crate) struct Adapters<'a> {
    /// Sorted by their targets' places in the base.
    places: &'a [AdapterPlaces],
    /// The `s` above.
    scale: f32,
    /// Flat in the order of [`lora_layout`].
    values: &'a [f32],
}

/// The `u` of each adapter of a product, `[rows, rank]`.
#[derive(Default)]
pub(crate) struct LowRank(Vec<Vec<f32>>);

impl<'a> Adapters<'a> {
    /// Adds what those of the matrices that lie in `range` make of `input` `[rows, inputs]` to `output` `[rows, outputs]`.
    pub(crate) fn forward(
        self,
        products: Products,
        range: &Range<usize>,
        mut output: MatrixMut<'_>,
        input: Matrix<'_>,
    ) {
        for places in AdapterPlaces::within(self.places, range) {
            let (low, (_, up)) = (self.projected(products, places, input), self.matrices(places));
            let place = output.again().columns(places.first_output(range), places.outputs());
            let low = Matrix::dense(&low, input.height(), places.rank());
            multiply_in_parallel(products.exactly(), place, Write::Add, self.scale, low, up.transposed());
        }
    }

    /// Adds their part of the gradient of the input, from that of the output.
    pub(crate) fn to_input(
        self,
        products: Products,
        range: &Range<usize>,
        mut to_input: MatrixMut<'_>,
        gradient: Matrix<'_>,
    ) -> LowRank {
        let low_rank = AdapterPlaces::within(self.places, range).iter().map(|places| {
            let (down, up) = self.matrices(places);
            let gradient = gradient.columns(places.first_output(range), places.outputs());
            let mut low = vec![0.0; gradient.height() * places.rank()];
            let place = MatrixMut::dense(&mut low, gradient.height(), places.rank());
            multiply_in_parallel(products.exactly(), place, Write::Replace, self.scale, gradient, up);
            let low_matrix = Matrix::dense(&low, gradient.height(), places.rank());
            multiply_in_parallel(products.exactly(), to_input.again(), Write::Add, 1.0, low_matrix, down);
            low
        });
        LowRank(low_rank.collect())
    }

    /// Writes or adds their own gradient to `to_values`, from that of the output and what [`Adapters::to_input`] gave.
    pub(crate) fn backward(
        self,
        (products, write): (Products, Write),
        range: &Range<usize>,
        to_values: &mut [f32],
        gradient: Matrix<'_>,
        input: Matrix<'_>,
        LowRank(low_rank): LowRank,
    ) {
        for (places, low) in AdapterPlaces::within(self.places, range).iter().zip(low_rank) {
            let (rows, rank) = (input.height(), places.rank());
            let gradient = gradient.columns(places.first_output(range), places.outputs());
            let projected = self.projected(products, places, input);
            let projected = Matrix::dense(&projected, rows, rank);
            let to_up = MatrixMut::dense(&mut to_values[places.up.range()], places.outputs(), rank);
            multiply_in_parallel(products.exactly(), to_up, write, self.scale, gradient.transposed(), projected);
            let to_down = MatrixMut::dense(&mut to_values[places.down.range()], rank, places.inputs());
            let low = Matrix::dense(&low, rows, rank);
            multiply_in_parallel(products.exactly(), to_down, write, 1.0, low.transposed(), input);
        }
    }

    /// (A `[rank, inputs]`, B `[outputs, rank]`).
    fn matrices(self, places: &AdapterPlaces) -> (Matrix<'a>, Matrix<'a>) {
        places.matrices_in(self.values)
    }

    /// `x·Aᵀ`, `[rows, rank]`.
    fn projected(self, products: Products, places: &AdapterPlaces, input: Matrix<'_>) -> Vec<f32> {
        let mut low = vec![0.0; input.height() * places.rank()];
        let place = MatrixMut::dense(&mut low, input.height(), places.rank());
        let (down, _) = self.matrices(places);
        multiply_in_parallel(products.exactly(), place, Write::Replace, 1.0, input, down.transposed());
        low
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Var;
    use murmur_protocol::manifest::TransformerModel;

    use super::*;
    use crate::data::{Batch, TokenBatch};
    use crate::model::{Model as _, Task, Transformer, gradients_by_autograd, tensors_of};
    use crate::ops::gradient_check::{random_tokens, random_values};

    fn spec() -> TransformerModel {
        TransformerModel { layers: 2, width: 16, heads: 2, feed_forward: 24, context: 12, ..Default::default() }
    }

    fn lora_spec(targets: &[&str]) -> LoraSpec {
        let targets = targets.iter().map(|target| (*target).to_owned()).collect();
        LoraSpec { rank: 3, alpha: 6.0, targets, ..LoraSpec::default() }
    }

    fn model(targets: &[&str]) -> Transformer {
        let base = Transformer::new(&spec());
        let weights = base.initial_parameters(1);
        base.with_adapters(weights, &lora_spec(targets))
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
        let mut lora = base.with_adapters(weights, &LoraSpec { base_bits, ..lora_spec(&targets) });
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
            let mut lora = Transformer::new(&spec).with_adapters(weights.clone(), &lora_spec);
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
