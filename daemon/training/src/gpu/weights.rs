//! A flat vector of weights in a GPU's memory, also as matrix products read it; and what a transformer computes with.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Result;

use super::adapters::{Frozen, Held};
use super::coded::Coded;
use super::{Accelerator, Kind, Matrix, Memory, Span, bytes_of, count, launch_for_each};
use crate::model::lora::AdapterPlaces;

/// What a transformer computes with: trained weights, or a frozen base with adapters beside it. Places are those of the model's
/// layout.
#[derive(Clone)]
pub(crate) struct Weights {
    /// Of what is trained, in 32 bits and as products read it: the same span twice where that is in 32 bits.
    exact: Span,
    for_products: Span,
    base: Option<Arc<Frozen>>,
}

/// One adapter beside a part of a matrix.
pub(super) struct Adapter<'a> {
    pub(super) places: &'a AdapterPlaces,
    pub(super) scale: f32,
    /// B `[outputs, rank]` and A `[rank, inputs]`.
    pub(super) up: Matrix,
    pub(super) down: Matrix,
}

impl Weights {
    /// With adapters that are trained beside this base.
    pub(crate) fn beside(self, base: Arc<Frozen>) -> Weights {
        Weights { base: Some(base), ..self }
    }

    /// A part of what is trained.
    pub(super) fn part(&self, range: &Range<usize>) -> Weights {
        let [exact, for_products] = [self.exact, self.for_products].map(|span| span.part(range.clone()));
        Weights { exact, for_products, base: self.base.clone() }
    }

    /// In 32 bits.
    pub(super) fn exact(&self, place: &Range<usize>) -> Span {
        self.base.as_ref().map_or_else(|| self.exact.part(place.clone()), |base| base.exact(place))
    }

    /// Has a weight with so many columns multiplied by, panel after panel: `multiply` gets the numbers of its rows, and these rows
    /// as products read them.
    pub(super) fn by_panels(
        &self,
        device: &dyn Accelerator,
        place: &Range<usize>,
        columns: usize,
        mut multiply: impl FnMut(Range<usize>, Matrix) -> Result<()>,
    ) -> Result<()> {
        let rows = place.len() / columns;
        let flat = match self.base.as_ref().map(|base| base.held()) {
            None => self.for_products,
            Some(Held::Flat(flat)) => *flat,
            Some(Held::Coded(coded)) => {
                let at_once = coded.panel_rows(columns);
                return (0..rows).step_by(at_once).try_for_each(|first| {
                    let end = rows.min(first + at_once);
                    let panel = place.start + first * columns..place.start + end * columns;
                    multiply(first..end, coded.decode(device, &panel, columns)?)
                });
            }
        };
        multiply(0..rows, Matrix::new(flat.part(place.clone()), columns))
    }

    /// The table of the embedding, where it is coded.
    pub(super) fn coded(&self) -> Option<&Coded> {
        match self.base.as_ref()?.held() {
            Held::Flat(_) => None,
            Held::Coded(coded) => Some(coded),
        }
    }

    /// Of the matrices in a place.
    pub(super) fn adapters_in(&self, place: &Range<usize>) -> impl Iterator<Item = Adapter<'_>> {
        let base =
            self.base.iter().flat_map(|base| base.adapters_in(place).iter().map(|places| (places, base.scale())));
        base.map(|(places, scale)| {
            let (up, down) = places.matrices(self.for_products);
            Adapter { places, scale, up, down }
        })
    }
}

/// Where a transformer adds its gradient.
#[derive(Clone, Copy)]
pub(crate) struct Gradient {
    /// Flat in the order of what is trained.
    values: Span,
    is_of_adapters: bool,
    /// Whether nothing is added to it after this microbatch: see [`crate::model::Task::is_last`].
    pub(super) is_last: bool,
}

impl Gradient {
    pub(crate) fn new(values: Span, is_of_adapters: bool, is_last: bool) -> Gradient {
        Gradient { values, is_of_adapters, is_last }
    }

    /// Of weights at a place of the model's layout; `None` where these are frozen.
    pub(super) fn of(&self, place: &Range<usize>) -> Option<Span> {
        (!self.is_of_adapters).then(|| self.values.part(place.clone()))
    }

    /// Of an adapter's B and A.
    pub(super) fn of_adapter(&self, places: &AdapterPlaces) -> (Matrix, Matrix) {
        places.matrices(self.values)
    }
}

/// The memory of what is trained.
pub(crate) struct WeightMemory {
    exact: Arc<Memory>,
    /// Where products do not read `f32`.
    rounded: Option<Memory>,
}

impl WeightMemory {
    /// Zeros, to be read by products as `kind`.
    pub(crate) fn new(device: &dyn Accelerator, kind: Kind, values: usize) -> Result<WeightMemory> {
        let exact = Arc::new(device.allocate(Kind::F32, values)?);
        Ok(WeightMemory { exact, rounded: (kind != Kind::F32).then(|| device.allocate(kind, values)).transpose()? })
    }

    pub(crate) fn exact(&self) -> Span {
        self.exact.span()
    }

    /// The exact ones, to be filled.
    pub(crate) fn place(&self) -> Arc<Memory> {
        self.exact.clone()
    }

    pub(crate) fn weights(&self) -> Weights {
        let exact = self.exact();
        Weights { exact, for_products: self.rounded.as_ref().map_or(exact, Memory::span), base: None }
    }

    /// From the value of this number on.
    pub(crate) fn upload(&self, device: &dyn Accelerator, first: usize, values: &[f32]) -> Result<()> {
        let range = first..first + values.len();
        device.upload(bytes_of(values), self.exact().part(range.clone()))?;
        self.round(device, &range)
    }

    /// Some of those that products read, where these are rounded.
    pub(crate) fn rounded(&self, range: &Range<usize>) -> Option<Span> {
        self.rounded.as_ref().map(|rounded| rounded.span().part(range.clone()))
    }

    /// After some exact ones have changed.
    pub(crate) fn round(&self, device: &dyn Accelerator, range: &Range<usize>) -> Result<()> {
        let (exact, Some(rounded)) = (self.exact().part(range.clone()), self.rounded(range)) else { return Ok(()) };
        let arguments = [exact.into(), rounded.into(), count(exact.values)];
        launch_for_each(device, "to_bf16", exact.values, &arguments)
    }
}
