//! Plain slices out of candle's tensors on the CPU.
//!
//! Candle hands custom operations a storage and a layout; everything here insists on contiguous `f32` (or `u32`), which
//! the operations' public functions establish before they enter the graph.

use std::ops::{Deref, Range};

use candle_core::{CpuStorage, Layout, Result, Storage, StorageRef, Tensor, bail};

/// The values of a contiguous `f32` storage.
pub(crate) fn floats<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let range = contiguous_range(layout)?;
    Ok(&storage.as_slice::<f32>()?[range])
}

/// The values of a contiguous `u32` storage.
pub(crate) fn indices<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [u32]> {
    let range = contiguous_range(layout)?;
    Ok(&storage.as_slice::<u32>()?[range])
}

fn contiguous_range(layout: &Layout) -> Result<Range<usize>> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(start..end),
        None => bail!("a fused operation needs contiguous values, not {layout:?}"),
    }
}

/// A contiguous `f32` tensor on the CPU, open for reading.
pub(crate) struct Reading<'a> {
    storage: StorageRef<'a>,
    range: Range<usize>,
}

impl<'a> Reading<'a> {
    /// Opens `tensor`.
    pub(crate) fn of(tensor: &'a Tensor) -> Result<Reading<'a>> {
        let (storage, layout) = tensor.storage_and_layout();
        let range = contiguous_range(layout)?;
        match &*storage {
            Storage::Cpu(CpuStorage::F32(_)) => Ok(Reading { storage, range }),
            _ => bail!("a fused operation needs f32 values on the CPU"),
        }
    }
}

impl Deref for Reading<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &*self.storage {
            Storage::Cpu(CpuStorage::F32(values)) => &values[self.range.clone()],
            _ => unreachable!("checked when opened"),
        }
    }
}

/// A contiguous `u32` tensor on the CPU, copied out: token ids are few.
pub(crate) fn read_indices(tensor: &Tensor) -> Result<Vec<u32>> {
    tensor.flatten_all()?.to_vec1::<u32>()
}

/// `values` as a tensor of the shape of `like`.
pub(crate) fn shaped_like(values: Vec<f32>, like: &Tensor) -> Result<Tensor> {
    Tensor::from_vec(values, like.dims(), like.device())
}
