//! A GPU through NVIDIA's driver and cuBLAS.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::cublas::{CudaBlas, result::gemm_strided_batched_ex, sys};
use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DevicePtr, LaunchConfig, PinnedHostSlice, PushKernelArg, result,
    sys::CUevent_flags,
};
use candle_core::{Error, Result};

use super::copies;
use super::pool::{Locked, Pool};
use super::product::Operand;
use super::{Accelerator, Argument, Kind, Memory, Product, Span, Write, kernel_names, sizes};
use crate::replica::Transfer;

/// The kernels for any GPU of the capability that this was built for, or a later one.
const PTX: &str = include_str!(concat!(env!("OUT_DIR"), "/kernels.ptx"));

pub(crate) struct Cuda {
    context: Arc<CudaContext>,
    /// On which everything is computed.
    stream: Arc<CudaStream>,
    /// On which transfers go beside it.
    downloads: Arc<CudaStream>,
    uploads: Arc<CudaStream>,
    blas: CudaBlas,
    kernels: HashMap<String, CudaFunction>,
    pinned: Arc<Pool<PinnedHostSlice<f32>>>,
}

impl Cuda {
    /// The GPU of this number.
    pub(crate) fn open(number: usize) -> Result<Cuda> {
        let context = CudaContext::new(number).w()?;
        let [stream, downloads, uploads] =
            [context.new_stream().w()?, context.new_stream().w()?, context.new_stream().w()?];
        let module = context.load_module(PTX.into()).w()?;
        let kernel = |name: String| Ok((name.clone(), module.load_function(&name).w()?));
        Ok(Cuda {
            blas: CudaBlas::new(stream.clone()).w()?,
            kernels: kernel_names().map(kernel).collect::<Result<_>>()?,
            pinned: Arc::default(),
            context,
            stream,
            downloads,
            uploads,
        })
    }

    /// Memory whose content is arbitrary.
    fn allocate_raw(&self, kind: Kind, values: usize) -> Result<Memory> {
        // SAFETY: callers write before they read.
        let slice = unsafe { self.stream.alloc::<u8>((values * kind.size()).max(1)) }.w()?;
        let address = slice.device_ptr(&self.stream).0;
        Ok(Memory { span: Span { address, values, kind }, _owner: Box::new(slice) })
    }
}

impl Locked for PinnedHostSlice<f32> {
    fn length(&self) -> usize {
        self.len()
    }
}

/// Has `act` transfer by `stream` from or to so many values of page-locked memory, which has some content.
fn with_locked<R>(
    pool: &Pool<PinnedHostSlice<f32>>,
    values: usize,
    stream: &CudaStream,
    act: impl FnOnce(&mut [f32]) -> Result<R>,
) -> Result<R> {
    // SAFETY: its content is written before it is read. Not write-combined: the host reads it, too.
    let lock = || unsafe { stream.context().alloc_pinned_with_flags::<f32>(values, 0) }.ok();
    let act_on = |buffer: Option<&mut PinnedHostSlice<f32>>| match buffer {
        Some(buffer) => act(&mut buffer.as_mut_slice().w()?[..values]),
        // Some systems lock little memory; then the transfer is slow, and stops the computation.
        None => act(&mut vec![0.0; values]),
    };
    pool.with(values, lock, act_on, || stream.synchronize().w())
}

impl Accelerator for Cuda {
    fn allocate(&self, kind: Kind, values: usize) -> Result<Memory> {
        let memory = self.allocate_raw(kind, values)?;
        self.clear(memory.span)?;
        Ok(memory)
    }

    fn launch(&self, kernel: &str, blocks: usize, arguments: &[Argument]) -> Result<()> {
        if blocks == 0 {
            return Ok(());
        }
        self.context.bind_to_thread().w()?;
        let kernel = self.kernels.get(kernel).ok_or_else(|| Error::Msg(format!("no kernel {kernel}")))?;
        let mut launch = self.stream.launch_builder(kernel);
        for argument in arguments {
            match argument {
                Argument::Pointer(value) | Argument::Count(value) => launch.arg(value),
                Argument::Size(value) => launch.arg(value),
                Argument::Scalar(value) => launch.arg(value),
            };
        }
        let grid = u32::try_from(blocks).map_err(Error::wrap)?;
        let shape =
            LaunchConfig { grid_dim: (grid, 1, 1), block_dim: (sizes().threads as u32, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the caller's arguments are the kernel's.
        unsafe { launch.launch(shape) }.w()?;
        Ok(())
    }

    fn multiply(&self, product: &Product) -> Result<()> {
        self.context.bind_to_thread().w()?;
        let gemm = product.gemm();
        let operation = |is_transposed| {
            if is_transposed { sys::cublasOperation_t::CUBLAS_OP_T } else { sys::cublasOperation_t::CUBLAS_OP_N }
        };
        let kind = |operand: Operand| match operand.kind {
            Kind::Bf16 => sys::cudaDataType::CUDA_R_16BF,
            _ => sys::cudaDataType::CUDA_R_32F,
        };
        let (a, b, c) = (gemm.a, gemm.b, gemm.c);
        // SAFETY: `Product::gemm` has checked that the matrices lie within their spans.
        unsafe {
            gemm_strided_batched_ex(
                *self.blas.handle(),
                operation(gemm.a_is_transposed),
                operation(gemm.b_is_transposed),
                gemm.m,
                gemm.n,
                gemm.k,
                std::ptr::from_ref(&gemm.alpha).cast(),
                a.address as *const _,
                kind(a),
                a.leading_dimension,
                a.stride,
                b.address as *const _,
                kind(b),
                b.leading_dimension,
                b.stride,
                std::ptr::from_ref(&gemm.beta).cast(),
                c.address as *mut _,
                kind(c),
                c.leading_dimension,
                c.stride,
                gemm.batch,
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        }
        .w()
    }

    fn clear(&self, place: Span) -> Result<()> {
        self.context.bind_to_thread().w()?;
        // SAFETY: the caller's span is of this device's memory; this holds for the calls below as well.
        unsafe { result::memset_d8_async(place.address, 0, place.bytes(), self.stream.cu_stream()) }.w()
    }

    fn copy(&self, from: Span, to: Span) -> Result<()> {
        assert_eq!(from.bytes(), to.bytes());
        self.context.bind_to_thread().w()?;
        // SAFETY: see `clear`.
        unsafe { result::memcpy_dtod_async(to.address, from.address, from.bytes(), self.stream.cu_stream()) }.w()
    }

    fn upload(&self, values: &[u8], to: Span) -> Result<()> {
        assert!(values.len() <= to.bytes());
        self.context.bind_to_thread().w()?;
        // SAFETY: see `clear`. The driver may read until the stream has come to the end.
        unsafe { result::memcpy_htod_async(to.address, values, self.stream.cu_stream()) }.w()?;
        self.stream.synchronize().w()
    }

    fn download(&self, from: Span, to: &mut [u8]) -> Result<()> {
        assert_eq!(from.bytes(), to.len());
        self.context.bind_to_thread().w()?;
        // SAFETY: see `clear`.
        unsafe { result::memcpy_dtoh_async(to, from.address, self.stream.cu_stream()) }.w()?;
        self.stream.synchronize().w()
    }

    fn wait(&self) -> Result<()> {
        self.stream.synchronize().w()
    }

    fn begin_download(&self, from: Span) -> Result<Transfer<Vec<f32>>> {
        let copy = self.allocate_raw(Kind::F32, from.values)?;
        self.copy(from, copy.span)?;
        let copied = self.stream.record_event(None).w()?;
        let (stream, pinned) = (self.downloads.clone(), self.pinned.clone());
        Transfer::waiting(move || {
            let values = with_locked(&pinned, copy.span.values, &stream, |buffer| {
                stream.wait(&copied).w()?;
                // SAFETY: the copy lives until the transfer has ended.
                unsafe { result::memcpy_dtoh_async(buffer, copy.span.address, stream.cu_stream()) }.w()?;
                wait_asleep(&stream)?;
                Ok(copies::copied(buffer))
            })?;
            drop(copy);
            // What fails while memory is given back is reported by the next call, which may be that of a step.
            stream.context().check_err().w()?;
            Ok(values)
        })
    }

    fn begin_upload(&self, write: Write, values: usize, to: Arc<Memory>) -> Result<Transfer<Vec<f32>>> {
        assert!(values <= to.span.values);
        // Before this the memory is not there, or still read.
        let is_free = self.stream.record_event(None).w()?;
        let (stream, pinned) = (self.uploads.clone(), self.pinned.clone());
        Transfer::waiting(move || {
            let given = with_locked(&pinned, values, &stream, |buffer| {
                let given = write(buffer);
                stream.wait(&is_free).w()?;
                // SAFETY: `to` lives until the transfer has ended.
                unsafe { result::memcpy_htod_async(to.span.address, buffer, stream.cu_stream()) }.w()?;
                wait_asleep(&stream)?;
                Ok(given)
            })?;
            drop(to);
            stream.context().check_err().w()?;
            Ok(given)
        })
    }
}

/// Waits for what is queued now without spinning beside the thread that trains.
fn wait_asleep(stream: &CudaStream) -> Result<()> {
    stream.record_event(Some(CUevent_flags::CU_EVENT_BLOCKING_SYNC)).w()?.synchronize().w()
}
