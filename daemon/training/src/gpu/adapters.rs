//! Low-rank adapters on a transformer in a GPU's memory, as `model/lora.rs` has them on the CPU: folded into the frozen weights
//! before these are computed with, and their gradient taken out of that of the weights.

use std::sync::Arc;

use candle_core::Result;
use murmur_protocol::ModelLayout;
use murmur_protocol::manifest::LoraSpec;

use super::weights::{WeightMemory, Weights};
use super::{Accelerator, Kind, Matrix, Memory, Product, Span, bytes_of};
use crate::model::adapter_places::AdapterPlaces;
use crate::model::lora::adapter_places;

pub(crate) struct Adapters {
    device: Arc<dyn Accelerator>,
    places: Vec<AdapterPlaces>,
    scale: f32,
    /// The adapted matrices of the base, one after the other.
    frozen: Memory,
    /// All weights of the base, the adapted ones with what their adapters last added.
    folded: WeightMemory,
    gradient: Memory,
}

impl Adapters {
    /// For the base of this layout with these weights.
    pub(crate) fn new(
        device: Arc<dyn Accelerator>,
        base: &ModelLayout,
        weights: &[f32],
        spec: &LoraSpec,
        kind: Kind,
    ) -> Result<Adapters> {
        let places = adapter_places(base, spec);
        let targets: Vec<f32> = places.iter().flat_map(|place| &weights[place.target.range()]).copied().collect();
        let frozen = device.allocate(Kind::F32, targets.len())?;
        let folded = WeightMemory::new(&*device, kind, weights.len())?;
        device.upload(bytes_of(&targets), frozen.span())?;
        folded.upload(&*device, weights)?;
        Ok(Adapters {
            places,
            scale: spec.scale() as f32,
            frozen,
            folded,
            gradient: device.allocate(Kind::F32, weights.len())?,
            device,
        })
    }

    /// What the transformer computes with.
    pub(crate) fn weights(&self) -> Weights {
        self.folded.weights()
    }

    /// Where the transformer adds its gradient.
    pub(crate) fn gradient(&self) -> Span {
        self.gradient.span()
    }

    /// Writes `W + s·B·A` for every target; the gradient begins at zero.
    pub(crate) fn fold(&self, parameters: Span) -> Result<()> {
        let mut first = 0;
        for place in &self.places {
            let (target, values) = (self.folded.exact().part(place.target.range()), place.target.len());
            self.device.copy(self.frozen.span().part(first..first + values), target)?;
            first += values;
            let [outputs, inputs] = place.shape();
            let (up, down) = place.matrices(parameters);
            let product = Product::new(up, down, Matrix::new(target, inputs), [outputs, inputs, place.rank()]);
            self.device.multiply(&product.scaled(self.scale).adds())?;
        }
        self.folded.round(&*self.device)?;
        self.device.clear(self.gradient.span())
    }

    /// Writes the adapters' gradient: `dB = s·G·Aᵀ`, `dA = s·Bᵀ·G`.
    pub(crate) fn unfold(&self, parameters: Span, gradient: Span) -> Result<()> {
        for place in &self.places {
            let ([outputs, inputs], rank) = (place.shape(), place.rank());
            let of_target = Matrix::new(self.gradient.span().part(place.target.range()), inputs);
            let ((up, down), (to_up, to_down)) = (place.matrices(parameters), place.matrices(gradient));
            let product = Product::new(of_target, down.transposed(), to_up, [outputs, rank, inputs]);
            self.device.multiply(&product.scaled(self.scale))?;
            let product = Product::new(up.transposed(), of_target, to_down, [rank, inputs, outputs]);
            self.device.multiply(&product.scaled(self.scale))?;
        }
        Ok(())
    }
}

impl AdapterPlaces {
    /// `[outputs, inputs]`.
    fn shape(&self) -> [usize; 2] {
        [self.target.shape[0], self.target.shape[1]]
    }

    /// (B `[outputs, rank]`, A `[rank, inputs]`) in a flat vector of what is trained.
    fn matrices(&self, vector: Span) -> (Matrix, Matrix) {
        let (up, down) = (vector.part(self.up.range()), vector.part(self.down.range()));
        (Matrix::new(up, self.rank()), Matrix::new(down, self.shape()[1]))
    }
}
