#!/usr/bin/env python3
"""Builds murmur for NVIDIA GPUs on a machine that need not have one.

    python3 scripts/build_cuda.py --compute-cap 90          # H100; 80: A100, 86: RTX 30, 89: RTX 40, 120: RTX 50

Fetches NVIDIA's compiler and libraries from PyPI (about 600 MB, once), lays them out as a toolkit, builds with the feature
`cuda` and strips the binary. Needs Linux on x86-64, Python 3.9 or later with pip, a C++ compiler, and cargo.

The binary starts on every machine: it opens NVIDIA's libraries when it first needs them, and trains on the CPU where they
are missing. To use a GPU it needs the driver (580 or later), libcublas 13 and libcurand 10.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

PACKAGES = [
    "nvidia-cuda-nvcc==13.0.*",
    "nvidia-cuda-crt==13.0.*",
    "nvidia-nvvm==13.0.*",
    "nvidia-cuda-runtime==13.0.*",
    "nvidia-cuda-cccl==13.0.*",
    "nvidia-cuda-nvrtc==13.0.*",
    "nvidia-cublas==13.0.*",
    "nvidia-curand==10.4.0.*",
]


DRIVER = "libcuda.so.1"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compute-cap", required=True, type=int, metavar="N", help="of the GPU, without its dot")
    parser.add_argument("--target-dir", type=Path, default=Path("target/cuda"), help="where toolkit and build go")
    options = parser.parse_args()
    os.chdir(Path(__file__).resolve().parent.parent)
    missing = what_is_missing()
    if missing:
        sys.exit("build_cuda.py: missing: " + ", ".join(missing))
    target = options.target_dir.resolve()
    toolkit = target / "toolkit"
    if not (toolkit / "complete").exists():
        lay_out(toolkit, target / "wheels")
    build(target, toolkit, options.compute_cap)


def what_is_missing():
    missing = []
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        missing.append("Linux on x86-64")
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode != 0:
        missing.append("pip (python3-pip)")
    missing += [f"{tool} ({package})" for tool, package in [("c++", "g++"), ("cargo", "rustup.rs")] if not shutil.which(tool)]
    return missing


def lay_out(toolkit, wheels):
    """Packages keep everything in nvidia/cu13; builds look for bin, include, lib64 and nvvm side by side."""
    download = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(wheels)]
    subprocess.run(download + PACKAGES, check=True)
    shutil.rmtree(toolkit, ignore_errors=True)
    toolkit.mkdir(parents=True)
    root = "nvidia/cu13/"
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if not member.filename.startswith(root) or member.is_dir():
                    continue
                place = toolkit / member.filename[len(root):]
                place.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, open(place, "wb") as copy:
                    shutil.copyfileobj(source, copy)
    for folder in ["bin", "nvvm/bin"]:
        for program in (toolkit / folder).iterdir():
            program.chmod(0o755)
    (toolkit / "lib64").symlink_to("lib")
    # The driver's own library comes with the driver; its header has the names.
    header = (toolkit / "include/cuda.h").read_text()
    make_loader(toolkit / "lib", "cuda", DRIVER, sorted(set(re.findall(r"\bcu[A-Z]\w*", header))))
    for library in ["cublas", "cublasLt", "curand", "nvrtc"]:
        real = real_name(toolkit, library)
        list_names = ["nm", "-D", "--defined-only", str(toolkit / "lib" / real)]
        listed = subprocess.run(list_names, check=True, capture_output=True, text=True).stdout
        make_loader(toolkit / "lib", library, real, sorted(set(re.findall(r" [TW] (\w+)", listed))))
    (toolkit / "lib/libcudart.a").symlink_to("libcudart_static.a")
    shutil.rmtree(wheels)
    (toolkit / "complete").touch()


def real_name(toolkit, library):
    """With its version, which names its interface."""
    [real] = (toolkit / "lib").glob(f"lib{library}.so.*")
    return real.name


def make_loader(folder, library, file, names):
    """A static library in the place of a shared one: each function opens the real one when it is first called.

    A call jumps through the function's slot. At first that leads to code that keeps the arguments, has the slot filled, and
    jumps on.
    """
    functions = "".join(
        f".globl {name}\n.type {name}, @function\n{name}: jmp *{library}_slots+{8 * index}(%rip)\n"
        f"{library}_first_{index}: pushq ${index}\njmp {library}_first\n"
        for index, name in enumerate(names)
    )
    slots = "".join(f".quad {library}_first_{index}\n" for index in range(len(names)))
    integers = ["rax", "rdi", "rsi", "rdx", "rcx", "r8", "r9"]
    # The index lies below the return address: with seven registers and 136 bytes the stack is aligned to 16 again.
    keep = "".join(f"pushq %{name}\n" for name in integers) + "subq $136, %rsp\n"
    keep += "".join(f"movups %xmm{number}, {16 * number}(%rsp)\n" for number in range(8))
    restore = "".join(f"movups {16 * number}(%rsp), %xmm{number}\n" for number in range(8))
    restore += "addq $136, %rsp\n" + "".join(f"popq %{name}\n" for name in reversed(integers))
    assembly = (
        f".data\n.balign 8\n{library}_slots:\n{slots}.text\n{functions}"
        f"{library}_first:\n{keep}movq 192(%rsp), %rdi\nleaq {library}_slots(%rip), %rsi\ncall {library}_open\n"
        f"movq %rax, %r11\n{restore}addq $8, %rsp\njmp *%r11\n"
    )
    quoted = ", ".join(f'"{name}"' for name in names)
    source = folder / f"{library}.c"
    source.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n#include <stdlib.h>\n"
        f"static const char *const names[] = {{{quoted}}};\n"
        f"__attribute__((visibility(\"hidden\"))) void *{library}_open(unsigned long index, void **slots) {{\n"
        f'    void *opened = dlopen("{file}", RTLD_NOW | RTLD_GLOBAL);\n'
        "    void *function = opened ? dlsym(opened, names[index]) : NULL;\n"
        '    if (!function) { fprintf(stderr, "error: %s\\n", dlerror()); abort(); }\n'
        "    return slots[index] = function;\n}\n"
        + "__asm__(" + "\n".join(f'"{line}\\n"' for line in assembly.splitlines()) + ");\n"
    )
    compiled = source.with_suffix(".o")
    subprocess.run(["cc", "-c", "-O1", "-fPIC", "-o", str(compiled), str(source)], check=True)
    subprocess.run(["ar", "rcs", str(folder / f"lib{library}.a"), str(compiled)], check=True)


def build(target, toolkit, compute_cap):
    environment = dict(
        os.environ,
        PATH=f"{toolkit / 'bin'}:{os.environ['PATH']}",
        CUDA_HOME=str(toolkit),
        CUDA_PATH=str(toolkit),
        CUDA_COMPUTE_CAP=str(compute_cap),
        LIBRARY_PATH=str(toolkit / "lib"),
        CARGO_TARGET_DIR=str(target),
        MURMUR_CUDA_LIBRARIES=" ".join([DRIVER, *(real_name(toolkit, name) for name in ["cublas", "curand"])]),
    )
    subprocess.run(["cargo", "build", "--release", "--features", "cuda"], env=environment, check=True)
    binary = target / "release/murmur"
    subprocess.run(["strip", str(binary)], check=True)
    print(f"{binary}: {binary.stat().st_size / 1e6:.0f} MB, for GPUs of compute capability {compute_cap / 10:.1f}")
    print(f"where libcublas or libcurand are not installed: LD_LIBRARY_PATH={toolkit / 'lib'} {binary} doctor")


if __name__ == "__main__":
    main()
