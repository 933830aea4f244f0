//! The kernels on the CPU, compiled with the system's C++ compiler, and matrix products as BLAS defines them.

use std::collections::HashMap;
use std::ffi::{c_int, c_long, c_uint, c_void};
use std::fmt::Write as _;
use std::process::Command;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use candle_core::{Error, Result};
use libloading::Library;

use super::{Accelerator, Argument, Kind, Memory, Product, Span, Write, kernel_names, sizes};
use crate::gpu::product::Operand;
use crate::replica::Transfer;

/// Bytes behind each tensor that nobody may write.
const GUARD: usize = 64;
const UNTOUCHED: u8 = 0xA5;

/// What memory is filled with that is about to be overwritten: no number.
const LOST: u8 = 0xFF;

type Kernel = unsafe extern "C" fn(c_uint, c_uint, *mut *mut c_void);

type GemmInC = unsafe extern "C" fn(
    *const OperandInC,
    *const OperandInC,
    *const OperandInC,
    c_long,
    c_long,
    c_long,
    f32,
    f32,
    c_long,
);

struct Kernels {
    _library: Library,
    gemm: GemmInC,
    from_last: unsafe extern "C" fn(c_int),
    by_name: HashMap<String, Kernel>,
    /// The emulator runs one kernel at a time.
    running: Mutex<()>,
}

/// `None` where there is no C++ compiler, or no Linux, of whose coroutines the emulator makes a block's threads.
fn kernels() -> Option<&'static Kernels> {
    static COMPILED: OnceLock<Option<Kernels>> = OnceLock::new();
    COMPILED.get_or_init(compile).as_ref()
}

fn compile() -> Option<Kernels> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    Command::new("c++").arg("--version").output().ok()?;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut source =
        concat!("#define MURMUR_EMULATED\n", include_str!("emulator.h"), include_str!("kernels.cu")).to_owned();
    for name in kernel_names() {
        writeln!(source, "EMULATE({name})").expect("a string takes it");
    }
    let (file, library) = (folder.path().join("kernels.cpp"), folder.path().join("kernels.so"));
    let attention = include_str!("attention.cuh");
    std::fs::write(folder.path().join("attention.cuh"), attention).expect("a file in a temporary folder");
    std::fs::write(&file, source).expect("a file in a temporary folder");
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-O1", "-shared", "-fPIC", "-o"]);
    let compiled = compiler.arg(&library).arg(&file).output().expect("a C++ compiler that has just told its version");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    // SAFETY: loading it runs no code.
    let library = unsafe { Library::new(&library) }.expect("a library that has just been made");
    let kernel = |name: String| {
        // SAFETY: `EMULATE` gives it this type.
        let kernel = unsafe { *library.get::<Kernel>(format!("emulate_{name}")).expect("every kernel") };
        (name, kernel)
    };
    let by_name = kernel_names().map(kernel).collect();
    // SAFETY: `emulator.h` has it with this type.
    let gemm = unsafe { *library.get::<GemmInC>("emulate_gemm").expect("the product") };
    // SAFETY: as above.
    let from_last = unsafe { *library.get("emulate_from_last").expect("the order") };
    Some(Kernels { _library: library, gemm, from_last, by_name, running: Mutex::new(()) })
}

/// A GPU on the CPU.
pub(crate) struct Emulated {
    kernels: &'static Kernels,
    /// Bytes allocated so far.
    allocated: AtomicUsize,
    held: Arc<Held>,
    ways: Ways,
    /// Kernels launched so far.
    launches: AtomicU64,
}

/// What is otherwise than usual.
#[derive(Clone, Copy, Default)]
struct Ways {
    /// A kernel that does nothing.
    broken: &'static str,
    /// Whether blocks come in one order or in the other, as it happens.
    in_any_order: bool,
    /// How long each download stays under way, at least.
    download: Duration,
    /// Bytes that there is room for, where it is little.
    room: Option<usize>,
}

impl Emulated {
    /// `None`, with a line that says so, where the kernels cannot run.
    pub(crate) fn open() -> Option<Arc<Emulated>> {
        Emulated::that(Ways::default())
    }

    /// One whose blocks come in another order each time.
    pub(crate) fn in_any_order() -> Option<Arc<Emulated>> {
        Emulated::that(Ways { in_any_order: true, ..Ways::default() })
    }

    /// One with so many bytes of memory.
    pub(crate) fn with_room(bytes: usize) -> Option<Arc<Emulated>> {
        Emulated::that(Ways { room: Some(bytes), ..Ways::default() })
    }

    /// One whose downloads stay under way so long.
    pub(crate) fn slow(download: Duration) -> Option<Arc<Emulated>> {
        Emulated::that(Ways { download, ..Ways::default() })
    }

    /// One whose kernel of this name does nothing.
    pub(crate) fn without(broken: &'static str) -> Option<Arc<Emulated>> {
        Emulated::that(Ways { broken, ..Ways::default() })
    }

    fn that(ways: Ways) -> Option<Arc<Emulated>> {
        match kernels() {
            Some(kernels) => Some(Arc::new(Emulated {
                kernels,
                allocated: AtomicUsize::default(),
                held: Arc::default(),
                ways,
                launches: AtomicU64::default(),
            })),
            None => {
                println!("skipped: the GPU's kernels need Linux and a C++ compiler to run on the CPU");
                None
            }
        }
    }

    /// Bytes allocated so far.
    pub(crate) fn allocated(&self) -> usize {
        self.allocated.load(Ordering::Relaxed)
    }

    /// The most bytes that were held at once.
    pub(crate) fn peak(&self) -> usize {
        self.held.peak.load(Ordering::Relaxed)
    }
}

/// Bytes that have not been given back.
#[derive(Default)]
struct Held {
    now: AtomicUsize,
    peak: AtomicUsize,
}

/// Checks when it is dropped that nobody wrote behind it.
struct Guarded {
    words: Vec<u64>,
    bytes: usize,
    held: Arc<Held>,
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.held.now.fetch_sub(self.bytes, Ordering::Relaxed);
        // SAFETY: the words' own memory.
        let all: &[u8] = unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), 8 * self.words.len()) };
        let untouched = all[self.bytes..].iter().all(|byte| *byte == UNTOUCHED);
        assert!(untouched || std::thread::panicking(), "a kernel wrote behind a tensor of {} bytes", self.bytes);
    }
}

/// Half of the numbers, in no order that launches of a step have as well.
fn is_odd_one(number: u64) -> bool {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 63 == 1
}

fn bytes<'a>(span: Span) -> &'a mut [u8] {
    // SAFETY: spans are of memory that lives, and only one call at a time uses it.
    unsafe { std::slice::from_raw_parts_mut(span.address as *mut u8, span.bytes()) }
}

impl Accelerator for Emulated {
    fn allocate(&self, kind: Kind, values: usize) -> Result<Memory> {
        let bytes = values * kind.size();
        if self.ways.room.is_some_and(|room| self.held.now.load(Ordering::Relaxed) + bytes > room) {
            return Err(Error::Msg("out of memory".to_owned()));
        }
        self.allocated.fetch_add(bytes, Ordering::Relaxed);
        let now = self.held.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.held.peak.fetch_max(now, Ordering::Relaxed);
        let mut words = vec![u64::from_ne_bytes([UNTOUCHED; 8]); (bytes + GUARD).div_ceil(8)];
        let address = words.as_mut_ptr() as u64;
        let memory = Memory {
            span: Span { address, values, kind },
            _owner: Box::new(Guarded { words, bytes, held: self.held.clone() }),
        };
        self.clear(memory.span)?;
        Ok(memory)
    }

    fn launch(&self, kernel: &str, blocks: usize, arguments: &[Argument]) -> Result<()> {
        if kernel == self.ways.broken || blocks == 0 {
            return Ok(());
        }
        let kernel = self.kernels.by_name.get(kernel).ok_or_else(|| Error::Msg(format!("no kernel {kernel}")))?;
        let mut values: Vec<u64> = Vec::new();
        for argument in arguments {
            values.push(match *argument {
                Argument::Pointer(value) | Argument::Count(value) => value,
                Argument::Size(value) => u64::from(value),
                Argument::Scalar(value) => u64::from(value.to_bits()),
            });
        }
        // Small values come first in their eight bytes on the machines that this runs on.
        let mut places: Vec<*mut c_void> = values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        let _running = self.kernels.running.lock().expect("no kernel panics");
        let launches = self.launches.fetch_add(1, Ordering::Relaxed);
        let from_last = self.ways.in_any_order && is_odd_one(launches);
        // SAFETY: nothing else runs, and the caller's arguments are the kernel's.
        unsafe { (self.kernels.from_last)(c_int::from(from_last)) };
        // SAFETY: see above.
        unsafe { kernel(blocks as c_uint, sizes().threads as c_uint, places.as_mut_ptr()) };
        Ok(())
    }

    fn multiply(&self, product: &Product) -> Result<()> {
        let gemm = product.gemm();
        assert_eq!(gemm.a.kind, gemm.b.kind);
        let [a, b, c] = [(gemm.a, gemm.a_is_transposed), (gemm.b, gemm.b_is_transposed), (gemm.c, false)].map(in_c);
        let [m, n, k, batch] = [gemm.m, gemm.n, gemm.k, gemm.batch].map(c_long::from);
        // SAFETY: `Product::gemm` has checked that the matrices lie within their spans.
        unsafe { (self.kernels.gemm)(&a, &b, &c, m, n, k, gemm.alpha, gemm.beta, batch) };
        Ok(())
    }

    fn clear(&self, place: Span) -> Result<()> {
        bytes(place).fill(0);
        Ok(())
    }

    fn copy(&self, from: Span, to: Span) -> Result<()> {
        bytes(to).copy_from_slice(bytes(from));
        Ok(())
    }

    fn upload(&self, values: &[u8], to: Span) -> Result<()> {
        bytes(to)[..values.len()].copy_from_slice(values);
        Ok(())
    }

    fn download(&self, from: Span, to: &mut [u8]) -> Result<()> {
        to.copy_from_slice(bytes(from));
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        Ok(())
    }

    fn begin_download(&self, from: Span) -> Result<Transfer<Vec<f32>>> {
        let copy = self.allocate(Kind::F32, from.values)?;
        self.copy(from, copy.span)?;
        let pause = self.ways.download;
        Transfer::waiting(move || {
            std::thread::sleep(pause);
            let mut values = vec![0.0_f32; copy.span.values];
            super::bytes_of_mut(&mut values).copy_from_slice(bytes(copy.span));
            drop(copy);
            Ok(values)
        })
    }

    /// What the memory held is lost at once, what comes is there later.
    fn begin_upload(&self, write: Write, values: usize, to: Arc<Memory>) -> Result<Transfer<Vec<f32>>> {
        let place = to.span.first(values);
        bytes(place).fill(LOST);
        Transfer::waiting(move || {
            let mut buffer = vec![0.0; values];
            let given = write(&mut buffer);
            bytes(place).copy_from_slice(super::bytes_of(&buffer));
            drop(to);
            Ok(given)
        })
    }
}

/// `Operand` of `emulator.h`.
#[repr(C)]
struct OperandInC {
    transposed: c_int,
    is_bf16: c_int,
    address: u64,
    leading_dimension: c_long,
    stride: c_long,
}

fn in_c((operand, is_transposed): (Operand, bool)) -> OperandInC {
    OperandInC {
        transposed: c_int::from(is_transposed),
        is_bf16: c_int::from(operand.kind == Kind::Bf16),
        address: operand.address,
        leading_dimension: operand.leading_dimension.into(),
        stride: operand.stride,
    }
}
