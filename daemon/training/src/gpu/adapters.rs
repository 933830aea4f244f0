//! Low-rank adapters beside a frozen transformer in a GPU's memory, as `model/lora.rs` has them on the CPU: the
//! base is held once, in the kind in which products read it or in 8 bits, and has no gradient.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Result;
use murmur_protocol::ModelLayout;
use murmur_protocol::manifest::LoraSpec;

use super::coded::{Coded, panel_values};
use super::packed::{Packed, blocks, is_coded, matrices};
use super::{Accelerator, Kind, Matrix, Memory, Span};
use crate::model::lora::{AdapterPlaces, adapter_places};
use crate::ops::base_weights::{BLOCK, BaseWeights};

/// A frozen base, and where adapters lie beside it.
pub(crate) struct Frozen {
    places: Vec<AdapterPlaces>,
    scale: f32,
    held: Held,
    /// What is read in 32 bits and is not held so: where each tensor lies in the base, and where it is.
    exact: Vec<(Range<usize>, Span)>,
    _memory: Arc<Memory>,
}

/// What products read.
pub(super) enum Held {
    /// All weights, flat in the order of the base's layout.
    Flat(Span),
    Coded(Coded),
}

/// Values of the panel in which a base is decoded.
pub(super) fn panel_of(base: &ModelLayout, spec: &LoraSpec) -> usize {
    if is_coded(spec) { panel_values(base) } else { 0 }
}

/// Bytes that a base of this layout takes, read by products as `kind`.
pub(crate) fn frozen_bytes(base: &ModelLayout, kind: Kind, spec: &LoraSpec) -> usize {
    Packed::new(base, kind, spec).words() * Kind::F32.size() + panel_of(base, spec) * kind.size()
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
        let packed = Packed::new(base, kind, spec);
        let memory = Arc::new(device.allocate(Kind::F32, packed.words())?);
        let mut bytes = Vec::new();
        for part in packed.parts() {
            let place = part.place();
            bytes.resize(place.len(), 0);
            part.fill(weights, part.start(), &mut bytes);
            device.upload(&bytes, memory.span().viewed(place.start, Kind::I8, place.len()))?;
        }
        device.wait()?;
        let panel = Arc::new(device.allocate(kind, panel_of(base, spec))?);
        Ok(Arc::new(Frozen::in_memory(base, spec, &packed, (kind, memory, panel))))
    }

    /// A base that is in this memory while it is used, as it is packed, with a panel to decode it in.
    pub(super) fn in_memory(
        base: &ModelLayout,
        spec: &LoraSpec,
        packed: &Packed,
        (kind, memory, panel): (Kind, Arc<Memory>, Arc<Memory>),
    ) -> Frozen {
        let viewed = |first, kind, values| memory.span().viewed(first, kind, values);
        let held = match packed.scales {
            Some(scales) => {
                let blocks = matrices(base).map(blocks).sum::<usize>();
                let codes = viewed(packed.for_products, Kind::I8, blocks * BLOCK);
                Held::Coded(Coded::new(base, (codes, viewed(scales, Kind::Bf16, blocks)), panel))
            }
            None => Held::Flat(viewed(packed.for_products, kind, base.parameters())),
        };
        let exact = packed.exact().map(|(range, first)| (range.clone(), viewed(first, Kind::F32, range.len())));
        Frozen {
            places: adapter_places(base, spec),
            scale: spec.scale() as f32,
            held,
            exact: exact.collect(),
            _memory: memory,
        }
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
            && flat.kind == Kind::F32
        {
            return flat.part(place.clone());
        }
        let index = self.exact.binary_search_by_key(&place.start, |(range, _)| range.start);
        let (range, span) = &self.exact[index.expect("a tensor that is read exactly")];
        assert_eq!(range, place);
        *span
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
