#!/usr/bin/env python3
"""Builds murmur for NVIDIA GPUs on a machine that need not have one.

    python3 scripts/build_cuda.py --compute-cap 90          # H100; 80: A100, 86: RTX 30, 89: RTX 40, 120: RTX 50

Fetches NVIDIA's compiler and libraries from PyPI (about 600 MB, once), lays them out as a toolkit, builds with the feature
`cuda` and strips the binary. Needs Linux on x86-64, Python 3.9 or later with pip, a C++ compiler, and cargo. The machine that
runs the binary needs NVIDIA's driver (580 or later), libcublas 13 and libcurand 10.
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
    for library in list((toolkit / "lib").glob("*.so.*")):
        plain = library.with_name(library.name.split(".so.")[0] + ".so")
        if not plain.exists():
            plain.symlink_to(library.name)
    make_driver_stub(toolkit)
    shutil.rmtree(wheels)
    (toolkit / "complete").touch()


def make_driver_stub(toolkit):
    """The driver's library comes with the driver; to link against it, its names are enough."""
    header = (toolkit / "include/cuda.h").read_text()
    names = sorted(set(re.findall(r"\bcu[A-Z]\w*", header)))
    source = toolkit / "lib/stub.c"
    source.write_text("".join(f"void {name}(void) {{}}\n" for name in names))
    stub = ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(toolkit / "lib/libcuda.so"), str(source)]
    subprocess.run(stub, check=True)


def build(target, toolkit, compute_cap):
    environment = dict(
        os.environ,
        PATH=f"{toolkit / 'bin'}:{os.environ['PATH']}",
        CUDA_HOME=str(toolkit),
        CUDA_PATH=str(toolkit),
        CUDA_COMPUTE_CAP=str(compute_cap),
        LIBRARY_PATH=str(toolkit / "lib"),
        CARGO_TARGET_DIR=str(target),
    )
    subprocess.run(["cargo", "build", "--release", "--features", "cuda"], env=environment, check=True)
    binary = target / "release/murmur"
    subprocess.run(["strip", str(binary)], check=True)
    print(f"{binary}: {binary.stat().st_size / 1e6:.0f} MB, for GPUs of compute capability {compute_cap / 10:.1f}")
    print(f"where the libraries are not installed: LD_LIBRARY_PATH={toolkit / 'lib'} {binary} doctor")


if __name__ == "__main__":
    main()
