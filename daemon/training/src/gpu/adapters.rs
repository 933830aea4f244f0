//! Low-rank adapters beside a frozen transformer in a GPU's memory, as `model/lora.rs` has them on the CPU: the
//! base is held once, in the kind in which products read it or in 8 bits, and has no gradient.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Result;
use murmur_protocol::ModelLayout;
use murmur_protocol::layout::TensorSpec;
use murmur_protocol::manifest::LoraSpec;

use super::coded::{Coded, coded_bytes};
use super::{Accelerator, Kind, Matrix, Memory, Span, bytes_of, count, launch_for_each};
use crate::model::lora::{AdapterPlaces, adapter_places};
use crate::ops::base_weights::BaseWeights;

/// A frozen base, and where adapters lie beside it.
pub(crate) struct Frozen {
    places: Vec<AdapterPlaces>,
    scale: f32,
    held: Held,
    /// What is read in 32 bits and is not held so: where each tensor lies in the base, and its memory.
    exact: Vec<(Range<usize>, Memory)>,
}

/// What products read.
pub(super) enum Held {
    /// All weights, flat in the order of the base's layout.
    Flat(Memory),
    Coded(Coded),
}

/// Whether a tensor is read in 32 bits, not by products: a vector, and the table of the embedding where it is not coded.
fn is_read_exactly(tensor: &TensorSpec, is_coded: bool) -> bool {
    tensor.shape.len() < 2 || (tensor.name == "model.embed_tokens.weight" && !is_coded)
}

fn is_coded(spec: &LoraSpec) -> bool {
    spec.base_bits == 8
}

/// Bytes that a base of this layout takes, read by products as `kind`.
pub(crate) fn frozen_bytes(base: &ModelLayout, kind: Kind, spec: &LoraSpec) -> usize {
    let exact = base.tensors().iter().filter(|tensor| is_read_exactly(tensor, is_coded(spec)));
    let exact = exact.map(|tensor| tensor.len() * Kind::F32.size()).sum::<usize>();
    match kind {
        _ if is_coded(spec) => coded_bytes(base, kind) + exact,
        Kind::F32 => base.parameters() * kind.size(),
        _ => base.parameters() * kind.size() + exact,
    }
}

impl Frozen {
    /// The base of this layout with these weights, which are in the bits of `spec`, and which products read as `kind`.
    pub(crate) fn new(
        device: &dyn Accelerator,
        base: &ModelLayout,
        weights: &BaseWeights,
        spec: &LoraSpec,
        kind: Kind,
    ) -> Result<Arc<Frozen>> {
        let values = |tensor: &TensorSpec| {
            let mut values = vec![0.0; tensor.len()];
            weights.read(tensor.offset, &mut values);
            values
        };
        let held = if is_coded(spec) {
            Held::Coded(Coded::new(device, base, weights, kind)?)
        } else {
            let flat = device.allocate(kind, base.parameters())?;
            let largest = base.tensors().iter().map(TensorSpec::len).max().unwrap_or(0);
            let passing = (kind != Kind::F32).then(|| device.allocate(Kind::F32, largest)).transpose()?;
            for tensor in base.tensors() {
                let (values, place) = (values(tensor), flat.span().part(tensor.range()));
                let Some(passing) = &passing else {
                    device.upload(bytes_of(&values), place)?;
                    continue;
                };
                device.upload(bytes_of(&values), passing.span())?;
                let arguments = [passing.span().into(), place.into(), count(values.len())];
                launch_for_each(device, "to_bf16", values.len(), &arguments)?;
            }
            Held::Flat(flat)
        };
        let mut exact = Vec::new();
        if is_coded(spec) || kind != Kind::F32 {
            for tensor in base.tensors().iter().filter(|tensor| is_read_exactly(tensor, is_coded(spec))) {
                let memory = device.allocate(Kind::F32, tensor.len())?;
                device.upload(bytes_of(&values(tensor)), memory.span())?;
                exact.push((tensor.range(), memory));
            }
        }
        device.wait()?;
        let (places, scale) = (adapter_places(base, spec), spec.scale() as f32);
        Ok(Arc::new(Frozen { places, scale, held, exact }))
    }

    pub(super) fn held(&self) -> &Held {
        &self.held
    }

    /// In 32 bits.
    ///
    /// # Panics
    /// When it is no tensor, or one that only products read.
    pub(super) fn exact(&self, place: &Range<usize>) -> Span {
        if let Held::Flat(flat) = &self.held
            && flat.span().kind == Kind::F32
        {
            return flat.span().part(place.clone());
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
