//! Low-rank adapters beside a frozen transformer in a GPU's memory, as `model/transformer/weights.rs` has them on the CPU: the
//! base is held once, in the kind in which products read it, and has no gradient.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Result;
use murmur_protocol::ModelLayout;
use murmur_protocol::layout::TensorSpec;
use murmur_protocol::manifest::LoraSpec;

use super::{Accelerator, Kind, Matrix, Memory, Span, bytes_of, count, launch_for_each};
use crate::model::adapter_places::AdapterPlaces;
use crate::model::lora::adapter_places;

/// A frozen base, and where adapters lie beside it.
pub(crate) struct Frozen {
    places: Vec<AdapterPlaces>,
    scale: f32,
    /// All weights, flat in the order of the base's layout.
    for_products: Memory,
    /// Those that are not for products, where these are rounded: where each lies in the base, and its memory.
    exact: Vec<(Range<usize>, Memory)>,
}

/// Whether it is read in 32 bits, not by products: vectors, and the table of the embedding.
fn is_read_exactly(tensor: &TensorSpec) -> bool {
    tensor.shape.len() < 2 || tensor.name == "model.embed_tokens.weight"
}

/// Bytes that a base of this layout takes.
pub(crate) fn frozen_bytes(base: &ModelLayout, kind: Kind) -> usize {
    let exact = base.tensors().iter().filter(|tensor| kind != Kind::F32 && is_read_exactly(tensor));
    base.parameters() * kind.size() + exact.map(|tensor| tensor.len() * Kind::F32.size()).sum::<usize>()
}

impl Frozen {
    /// The base of this layout with these weights, which products read as `kind`.
    pub(crate) fn new(
        device: &dyn Accelerator,
        base: &ModelLayout,
        weights: &[f32],
        spec: &LoraSpec,
        kind: Kind,
    ) -> Result<Arc<Frozen>> {
        let for_products = device.allocate(kind, weights.len())?;
        let mut exact = Vec::new();
        if kind == Kind::F32 {
            device.upload(bytes_of(weights), for_products.span())?;
        } else {
            let largest = base.tensors().iter().map(TensorSpec::len).max().unwrap_or(0);
            let passing = device.allocate(Kind::F32, largest)?;
            for tensor in base.tensors() {
                let (values, place) = (&weights[tensor.range()], for_products.span().part(tensor.range()));
                device.upload(bytes_of(values), passing.span())?;
                let arguments = [passing.span().into(), place.into(), count(values.len())];
                launch_for_each(device, "to_bf16", values.len(), &arguments)?;
                if is_read_exactly(tensor) {
                    let memory = device.allocate(Kind::F32, values.len())?;
                    device.upload(bytes_of(values), memory.span())?;
                    exact.push((tensor.range(), memory));
                }
            }
            device.wait()?;
        }
        let (places, scale) = (adapter_places(base, spec), spec.scale() as f32);
        Ok(Arc::new(Frozen { places, scale, for_products, exact }))
    }

    pub(super) fn for_products(&self) -> Span {
        self.for_products.span()
    }

    /// In 32 bits.
    ///
    /// # Panics
    /// When it is no tensor, or one that only products read.
    pub(super) fn exact(&self, place: &Range<usize>) -> Span {
        if self.for_products().kind == Kind::F32 {
            return self.for_products().part(place.clone());
        }
        let index = self.exact.binary_search_by_key(&place.start, |(range, _)| range.start);
        let (range, memory) = &self.exact[index.expect("a tensor that is read exactly")];
        assert_eq!(range, place);
        memory.span()
    }

    /// Those of the matrices in a place of the base.
    pub(super) fn adapters_in(&self, place: &Range<usize>) -> &[AdapterPlaces] {
        AdapterPlaces::within(&self.places, place)
    }

    /// Of every adapter.
    pub(super) fn rank(&self) -> usize {
        self.places.iter().map(AdapterPlaces::rank).max().unwrap_or(0)
    }

    pub(super) fn scale(&self) -> f32 {
        self.scale
    }
}

impl AdapterPlaces {
    /// (B `[outputs, rank]`, A `[rank, inputs]`) in a flat vector of what is trained.
    pub(super) fn matrices(&self, vector: Span) -> (Matrix, Matrix) {
        let (up, down) = (vector.part(self.up.range()), vector.part(self.down.range()));
        (Matrix::new(up, self.rank()), Matrix::new(down, self.inputs()))
    }
}
