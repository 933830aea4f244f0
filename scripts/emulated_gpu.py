#!/usr/bin/env python3
"""Runs a CUDA build of murmur where there is no GPU, to test it: slowly, but through every call that a GPU would get.

    python3 scripts/emulated_gpu.py target/cuda/release/murmur start run.toml --device cuda:0 --steps 20

Compiles stand-ins for NVIDIA's driver, cuBLAS and cuRAND from the kernels and the emulator in daemon/training/src/gpu, and
runs the command with them. They know what training a transformer with our own kernels calls; other calls end the program, and
other kernels (candle's: image models, the plain products of murmur bench) are missing. EMULATED_GPU_TRANSFER_MS=500 makes every transfer to or from page-locked memory take half a second more.
Needs Linux, a C++ compiler, and a binary of scripts/build_cuda.py.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

GPU = Path(__file__).resolve().parent.parent / "daemon/training/src/gpu"

# What is queued is done at once, so that streams and events have nothing to do. Handles are any pointers that are not null.
DRIVER = r"""
#include <map>
#include <mutex>
#include <string>
#include <unistd.h>
#include <dlfcn.h>

typedef int Result;
typedef void *Handle;
static int something;
static std::mutex running;
typedef void (*Kernel)(unsigned, unsigned, void **);
static const size_t MEMORY = (size_t)4 << 30;

static Result give(Handle *place) { *place = &something; return 0; }
static Result allocate(void **place, size_t bytes) {
    *place = aligned_alloc(64, (bytes + 127) / 64 * 64);
    memset(*place, 0xA5, bytes);
    return *place ? 0 : 2;
}

// Page-locked memory by its address.
static std::map<char *, size_t> locked;
static std::mutex locking;
static void transfer(void *to, const void *from, size_t bytes, const void *host) {
    static const char *slowly = getenv("EMULATED_GPU_TRANSFER_MS");
    bool is_locked;
    {
        std::lock_guard<std::mutex> guard(locking);
        auto after = locked.upper_bound((char *)host);
        is_locked = after != locked.begin() && (--after)->first + after->second > (char *)host;
    }
    if (slowly && is_locked) usleep(1000 * atoi(slowly));
    memcpy(to, from, bytes);
}

extern "C" {
Result cuInit(unsigned) { return 0; }
Result cuDriverGetVersion(int *version) { *version = 13000; return 0; }
Result cuDeviceGetCount(int *count) { *count = 1; return 0; }
Result cuDeviceGet(int *device, int number) { *device = number; return number == 0 ? 0 : 101; }
Result cuDeviceGetAttribute(int *value, int, int) { *value = 1; return 0; }
Result cuDevicePrimaryCtxRetain(Handle *context, int) { return give(context); }
Result cuDevicePrimaryCtxRelease_v2(int) { return 0; }
Result cuCtxSetCurrent(Handle) { return 0; }
Result cuCtxGetCurrent(Handle *context) { return give(context); }
Result cuCtxSynchronize() { return 0; }
Result cuStreamCreate(Handle *stream, unsigned) { return give(stream); }
Result cuStreamDestroy_v2(Handle) { return 0; }
Result cuStreamSynchronize(Handle) { return 0; }
Result cuStreamWaitEvent(Handle, Handle, unsigned) { return 0; }
Result cuEventCreate(Handle *event, unsigned) { return give(event); }
Result cuEventDestroy_v2(Handle) { return 0; }
Result cuEventRecord(Handle, Handle) { return 0; }
Result cuEventSynchronize(Handle) { return 0; }
Result cuEventQuery(Handle) { return 0; }
Result cuMemGetInfo_v2(size_t *free, size_t *total) { *free = *total = MEMORY; return 0; }
Result cuMemAllocAsync(void **place, size_t bytes, Handle) { return allocate(place, bytes); }
Result cuMemFreeAsync(void *place, Handle) { free(place); return 0; }
Result cuMemHostAlloc(void **place, size_t bytes, unsigned) {
    std::lock_guard<std::mutex> guard(locking);
    Result result = allocate(place, bytes);
    locked[(char *)*place] = bytes;
    return result;
}
Result cuMemFreeHost(void *place) {
    std::lock_guard<std::mutex> guard(locking);
    locked.erase((char *)place);
    free(place);
    return 0;
}
Result cuMemsetD8Async(void *place, unsigned char value, size_t bytes, Handle) { memset(place, value, bytes); return 0; }
Result cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t bytes, Handle) { transfer(to, from, bytes, from); return 0; }
Result cuMemcpyDtoHAsync_v2(void *to, const void *from, size_t bytes, Handle) { transfer(to, from, bytes, to); return 0; }
Result cuMemcpyDtoDAsync_v2(void *to, const void *from, size_t bytes, Handle) { memcpy(to, from, bytes); return 0; }
Result cuModuleLoadData(Handle *module, const void *) { return give(module); }
Result cuModuleUnload(Handle) { return 0; }
Result cuModuleGetFunction(Handle *function, Handle, const char *name) {
    *function = dlsym(RTLD_DEFAULT, (std::string("emulate_") + name).c_str());
    if (!*function) fprintf(stderr, "the emulated GPU has no kernel %s\n", name);
    return *function ? 0 : 500;
}
Result cuLaunchKernel(Handle function, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned, unsigned,
                      unsigned, Handle, void **arguments, void **) {
    std::lock_guard<std::mutex> guard(running);
    if (y != 1 || z != 1) return 1;
    ((Kernel)function)(blocks, threads, arguments);
    return 0;
}
Result cuGetErrorName(Result, const char **name) { *name = "an error of the emulated GPU"; return 0; }
Result cuGetErrorString(Result, const char **name) { *name = "an error of the emulated GPU"; return 0; }

Result cublasCreate_v2(Handle *handle) { return give(handle); }
Result cublasDestroy_v2(Handle) { return 0; }
Result cublasSetStream_v2(Handle, Handle) { return 0; }
// Kinds of CUDA: 0 is float, 14 is bfloat16; operations: 0 is none, 1 is a transposition.
Result cublasGemmStridedBatchedEx(Handle, int a_operation, int b_operation, int m, int n, int k, const float *alpha,
                                  char *a, int a_kind, int lda, long long a_stride, char *b, int b_kind, int ldb,
                                  long long b_stride, const float *beta, char *c, int c_kind, int ldc,
                                  long long c_stride, int batch, int, int) {
    bool known = (a_kind == 0 || a_kind == 14) && a_kind == b_kind && (c_kind == 0 || c_kind == 14);
    if (!known || m <= 0 || n <= 0 || k <= 0 || lda < (a_operation ? k : m) || ldb < (b_operation ? n : k) || ldc < m) {
        return 7;
    }
    Operand operands[] = {{a_operation, a_kind == 14, a, lda, (long)a_stride},
                          {b_operation, b_kind == 14, b, ldb, (long)b_stride},
                          {0, c_kind == 14, c, ldc, (long)c_stride}};
    emulate_gemm(operands, operands + 1, operands + 2, m, n, k, *alpha, *beta, batch);
    return 0;
}

Result curandCreateGenerator(Handle *generator, int) { return give(generator); }
Result curandDestroyGenerator(Handle) { return 0; }
Result curandSetPseudoRandomGeneratorSeed(Handle, unsigned long long) { return 0; }
Result curandSetStream(Handle, Handle) { return 0; }
}
"""

# As in scripts/build_cuda.py.
LIBRARIES = ["libcuda.so.1", "libcublas.so.13", "libcurand.so.10"]


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ["-h", "--help"]:
        sys.exit(__doc__)
    for tool in ["c++", sys.argv[1]]:
        if not shutil.which(tool):
            sys.exit(f"emulated_gpu.py: no program {tool}")
    kernels, attention = [(GPU / name).read_text() for name in ["kernels.cu", "attention.cuh"]]
    names = re.findall(r'extern "C" __global__ void (\w+)\(', kernels)
    names = [name for name in names if not name.endswith("_")]
    names += [name + kind for name in re.findall(r"void (\w+_)##T\(", kernels) for kind in ["float", "bf16"]]
    widths = re.findall(r"^ATTEND\((\d+),", attention, re.MULTILINE)
    names += [name + width for name in re.findall(r" (\w+_)##WIDTH\(", attention) for width in widths]
    source = "#define MURMUR_EMULATED\n" + (GPU / "emulator.h").read_text() + kernels
    source += "".join(f"EMULATE({name})\n" for name in names) + DRIVER
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gpu.cpp"
        file.write_text(source)
        first = Path(folder) / LIBRARIES[0]
        subprocess.run(["c++", "-std=c++17", "-O2", "-shared", "-fPIC", f"-I{GPU}", "-o", first, file, "-ldl"], check=True)
        for other in LIBRARIES[1:]:
            (Path(folder) / other).symlink_to(first)
        # The driver looks a kernel up in the whole program.
        environment = dict(os.environ, LD_LIBRARY_PATH=folder, LD_PRELOAD=str(first))
        sys.exit(subprocess.run(sys.argv[1:], env=environment).returncode)


if __name__ == "__main__":
    main()
