//! A flat vector of weights in a GPU's memory, also as matrix products read it.

use candle_core::Result;

use super::{Accelerator, Kind, Memory, Span, bytes_of, count, launch_for_each};

/// What a transformer computes with: the same span twice where products read `f32`.
#[derive(Clone, Copy)]
pub(crate) struct Weights {
    pub(crate) exact: Span,
    pub(crate) for_products: Span,
}

/// The memory of [`Weights`].
pub(crate) struct WeightMemory {
    exact: Memory,
    /// Where products do not read `f32`.
    rounded: Option<Memory>,
}

impl WeightMemory {
    /// Zeros, to be read by products as `kind`.
    pub(crate) fn new(device: &dyn Accelerator, kind: Kind, values: usize) -> Result<WeightMemory> {
        let exact = device.allocate(Kind::F32, values)?;
        Ok(WeightMemory { exact, rounded: (kind != Kind::F32).then(|| device.allocate(kind, values)).transpose()? })
    }

    pub(crate) fn exact(&self) -> Span {
        self.exact.span()
    }

    pub(crate) fn weights(&self) -> Weights {
        let exact = self.exact();
        Weights { exact, for_products: self.rounded.as_ref().map_or(exact, Memory::span) }
    }

    pub(crate) fn upload(&self, device: &dyn Accelerator, values: &[f32]) -> Result<()> {
        device.upload(bytes_of(values), self.exact())?;
        self.round(device)
    }

    /// After the exact ones have changed.
    pub(crate) fn round(&self, device: &dyn Accelerator) -> Result<()> {
        let (exact, Some(rounded)) = (self.exact(), &self.rounded) else { return Ok(()) };
        let arguments = [exact.into(), rounded.span().into(), count(exact.values)];
        launch_for_each(device, "to_bf16", exact.values, &arguments)
    }
}
