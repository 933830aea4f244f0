//! Transformers on NVIDIA GPUs: flat vectors and a hand-written backward as on the CPU, with kernels of our own
//! (`kernels.cu`) and cuBLAS's matrix products. Nothing records a graph, and steps after the first allocate nothing.
//!
//! [`Accelerator`] is all that is asked of a device. `cuda` is a GPU; in tests `emulated` runs the same kernels on the CPU,
//! so that they, their launches and the arithmetic around them are tested on machines without a GPU.

#![cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "compiled without GPUs as well, so that it stays whole"))]

mod adapters;
mod check;
mod coded;
mod copies;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
pub(crate) mod emulated;
mod muon;
mod offload;
mod packed;
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a real GPU has page-locked memory"))]
mod pool;
mod product;
mod reader;
mod replica;
mod rows;
mod sizes;
mod step;
mod transformer;
mod weights;

#[cfg(test)]
pub(crate) mod tests;

#[cfg(feature = "cuda")]
use std::collections::BTreeMap;
use std::sync::Arc;
#[cfg(feature = "cuda")]
use std::sync::Mutex;

#[cfg(feature = "cuda")]
use candle_core::DeviceLocation;
use candle_core::{Device, Result};

use crate::engine::options::Precision;
use crate::replica::Transfer;

pub(crate) use adapters::{Frozen, frozen_bytes};
pub(crate) use offload::{BaseInTurns, DeviceValues, Offloaded, passing_base_bytes, passing_values};
pub(crate) use product::{Matrix, Product};
pub(crate) use reader::GpuReader;
pub(crate) use replica::{Base, GpuReplica, GpuStage, Trained};
pub(crate) use sizes::sizes;
pub(crate) use transformer::activation_values;

/// Values that a thread of `decode` and `adamw` takes, as in `kernels.cu`.
const AT_ONCE: usize = 4;

/// Blocks of a sum over a whole vector, at most.
const SUM_BLOCKS: usize = 512;

/// Rows of a block that goes back through a norm: `NORM_ROWS` of the kernels for each warp.
fn norm_strip() -> usize {
    4 * sizes().threads / 32
}

/// Transfers that have page-locked memory at once: an exchange's copy and addition, and of a model that is offloaded weights that come,
/// a gradient that goes, a stream that comes and one that goes.
pub(crate) const BUFFERS_UNDER_WAY: usize = 6;

/// Columns of a head that one thread sums where heads are normalised: `HEAD_COLUMNS` of the kernels.
const HEAD_COLUMNS: usize = 4;

/// What a tensor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    F32,
    Bf16,
    F64,
    U32,
    I8,
}

impl From<Precision> for Kind {
    fn from(precision: Precision) -> Kind {
        match precision {
            Precision::F32 => Kind::F32,
            Precision::Bf16 => Kind::Bf16,
        }
    }
}

impl Kind {
    /// In bytes.
    pub(crate) fn size(self) -> usize {
        match self {
            Kind::I8 => 1,
            Kind::Bf16 => 2,
            Kind::F32 | Kind::U32 => 4,
            Kind::F64 => 8,
        }
    }
}

/// Values in the memory of a device, which somebody else keeps: a pointer with a length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    address: u64,
    values: usize,
    kind: Kind,
}

impl Span {
    /// A part of it.
    ///
    /// # Panics
    /// When it is not within.
    pub(crate) fn part(self, range: std::ops::Range<usize>) -> Span {
        assert!(range.start <= range.end && range.end <= self.values, "{range:?} of {} values", self.values);
        let address = self.address + (range.start * self.kind.size()) as u64;
        Span { address, values: range.len(), ..self }
    }

    /// Its first values.
    pub(crate) fn first(self, values: usize) -> Span {
        self.part(0..values)
    }

    /// So many values of another kind, from this byte on.
    ///
    /// # Panics
    /// When they are not within.
    fn viewed(self, first: usize, kind: Kind, values: usize) -> Span {
        assert!(first + values * kind.size() <= self.bytes(), "{values} values from byte {first} of {}", self.bytes());
        Span { address: self.address + first as u64, values, kind }
    }

    fn bytes(self) -> usize {
        self.values * self.kind.size()
    }
}

/// Memory of a device, given back when this is dropped.
pub(crate) struct Memory {
    span: Span,
    _owner: Box<dyn Send + Sync>,
}

impl Memory {
    /// All of it.
    pub(crate) fn span(&self) -> Span {
        self.span
    }
}

/// One argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument {
    Pointer(u64),
    /// `unsigned`.
    Size(u32),
    /// `size_t`.
    Count(u64),
    /// `float`.
    Scalar(f32),
}

impl From<Span> for Argument {
    fn from(span: Span) -> Argument {
        Argument::Pointer(span.address)
    }
}

/// A null pointer where there is nothing.
impl From<Option<Span>> for Argument {
    fn from(span: Option<Span>) -> Argument {
        span.map_or(Argument::Pointer(0), Argument::from)
    }
}

impl From<f32> for Argument {
    fn from(value: f32) -> Argument {
        Argument::Scalar(value)
    }
}

/// For `unsigned`: sizes of one dimension.
fn size(value: usize) -> Argument {
    Argument::Size(u32::try_from(value).expect("no dimension has 2³² values"))
}

/// For `size_t`.
fn count(value: usize) -> Argument {
    Argument::Count(value as u64)
}

/// The kernels of `kernels.cu`, those of `float` and `bf16` without their ending.
const KERNELS: [&str; 14] = [
    "embed",
    "embed_coded",
    "embed_backward",
    "sum_values",
    "sum_squares",
    "to_bf16",
    "add",
    "blend_gradients",
    "adamw",
    "muon_look_ahead",
    "muon_norm",
    "muon_normalise",
    "muon_polynomial",
    "muon_step",
];
/// The kernels of `attention.cuh`, with the width of a head as their ending.
const ATTENTION_KERNELS: [&str; 3] = ["attend", "attend_backward_queries", "attend_backward_keys"];
const ATTENTION_WIDTHS: [usize; 3] = [32, 64, 128];
const KERNELS_OF_A_KIND: [&str; 15] = [
    "decode",
    "rms_norm",
    "add_and_norm",
    "rms_norm_backward",
    "add_bias",
    "bias_backward",
    "head_norm",
    "head_norm_backward",
    "turn_heads",
    "move_heads",
    "causal_softmax",
    "causal_softmax_backward",
    "swiglu",
    "swiglu_backward",
    "cross_entropy",
];

/// Names of all kernels.
fn kernel_names() -> impl Iterator<Item = String> {
    let of_a_kind = KERNELS_OF_A_KIND.iter().flat_map(|name| ["float", "bf16"].map(|kind| format!("{name}_{kind}")));
    let of_a_width = ATTENTION_KERNELS.iter().flat_map(|name| ATTENTION_WIDTHS.map(|width| format!("{name}_{width}")));
    KERNELS.iter().map(|name| (*name).to_owned()).chain(of_a_kind).chain(of_a_width)
}

/// A kernel's name for values of this kind.
fn of_kind(name: &str, kind: Kind) -> String {
    format!("{name}_{}", if kind == Kind::Bf16 { "bf16" } else { "float" })
}

/// What a device must do. Calls are queued in order and return at once, but for those that bring values to the host. Spans
/// must be of this device's memory and alive, and arguments those of the kernel.
pub(crate) trait Accelerator: Send + Sync {
    /// Zeros.
    fn allocate(&self, kind: Kind, values: usize) -> Result<Memory>;

    /// Runs a kernel in so many blocks of [`Sizes::threads`](sizes::Sizes) threads.
    fn launch(&self, kernel: &str, blocks: usize, arguments: &[Argument]) -> Result<()>;

    fn multiply(&self, product: &Product) -> Result<()>;

    fn clear(&self, place: Span) -> Result<()>;

    fn copy(&self, from: Span, to: Span) -> Result<()>;

    /// Returns once `values` have been read.
    fn upload(&self, values: &[u8], to: Span) -> Result<()>;

    /// Waits for all that is queued.
    fn download(&self, from: Span, to: &mut [u8]) -> Result<()>;

    /// Waits for all that is queued.
    fn wait(&self) -> Result<()>;

    /// Begins a copy of `f32` values as they are here in the queue. It is under way while what is queued next is computed.
    fn begin_download(&self, from: Span) -> Result<Transfer<Vec<f32>>>;

    /// Has `write` fill so many values of page-locked memory, and begins to copy them to the beginning of memory that what is
    /// queued from now on leaves alone, while that is computed. Gives what `write` gave.
    fn begin_upload(&self, write: Write, values: usize, to: Arc<Memory>) -> Result<Transfer<Vec<f32>>>;
}

/// Fills memory that is to be copied, and gives values that are wanted again once they have arrived.
pub(crate) type Write = Box<dyn FnOnce(&mut [f32]) -> Vec<f32> + Send>;

/// A GPU, opened and checked once.
///
/// # Errors
/// Why it cannot run these kernels.
#[cfg(feature = "cuda")]
pub(crate) fn accelerator(device: &Device) -> std::result::Result<Arc<dyn Accelerator>, String> {
    let DeviceLocation::Cuda { gpu_id: number } = device.location() else {
        return Err("it is no NVIDIA GPU".to_owned());
    };
    type Opened = std::result::Result<Arc<dyn Accelerator>, String>;
    static OPENED: Mutex<BTreeMap<usize, Opened>> = Mutex::new(BTreeMap::new());
    let open = || {
        let device: Arc<dyn Accelerator> = Arc::new(cuda::Cuda::open(number).map_err(|error| error.to_string())?);
        check::check(&device).map(|()| device)
    };
    OPENED.lock().expect("nobody panics with a device").entry(number).or_insert_with(open).clone()
}

/// As above: there is none.
#[cfg(not(feature = "cuda"))]
pub(crate) fn accelerator(_device: &Device) -> std::result::Result<Arc<dyn Accelerator>, String> {
    Err("this binary was built without CUDA".to_owned())
}

/// Runs a kernel with one thread for each of `values`.
fn launch_for_each(device: &dyn Accelerator, kernel: &str, values: usize, arguments: &[Argument]) -> Result<()> {
    device.launch(kernel, values.div_ceil(sizes().threads), arguments)
}

/// The sum that one of the kernels `sum_values` and `sum_squares` makes of `values`; `place` has room for [`SUM_BLOCKS`].
fn sum(device: &dyn Accelerator, kernel: &str, values: Span, place: Span) -> Result<f64> {
    Ok(sums(device, kernel, &[values], place)?[0])
}

/// As [`sum`] of each of several; `place` has room for [`SUM_BLOCKS`] each. They are read at once.
fn sums(device: &dyn Accelerator, kernel: &str, vectors: &[Span], place: Span) -> Result<Vec<f64>> {
    let (mut used, mut lengths) = (0, Vec::new());
    for values in vectors {
        let blocks = values.values.div_ceil(sizes().threads).clamp(1, SUM_BLOCKS);
        let partial_sums = place.part(used..used + blocks);
        let arguments = [(*values).into(), partial_sums.into(), count(values.values), size(blocks)];
        device.launch(kernel, blocks, &arguments)?;
        used += blocks;
        lengths.push(blocks);
    }
    let mut partial_sums = vec![0.0_f64; used];
    device.download(place.first(used), bytes_of_mut(&mut partial_sums))?;
    let mut rest = &partial_sums[..];
    let mut next = |length| {
        let (sums, others) = rest.split_at(length);
        rest = others;
        sums.iter().sum()
    };
    Ok(lengths.into_iter().map(&mut next).collect())
}

/// Numbers whose every pattern of bits is one.
trait Number: Copy {}
impl Number for f32 {}
impl Number for f64 {}
impl Number for u32 {}
impl Number for u16 {}
impl Number for i8 {}

fn bytes_of<N: Number>(values: &[N]) -> &[u8] {
    // SAFETY: the same memory, numbers have no padding, and bytes need no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), std::mem::size_of_val(values)) }
}

fn bytes_of_mut<N: Number>(values: &mut [N]) -> &mut [u8] {
    // SAFETY: as above, and any bytes are numbers.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), std::mem::size_of_val(values)) }
}
