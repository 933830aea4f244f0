//! Compiles the GPU's kernels to PTX, with the feature `cuda`.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = "src/gpu/kernels.cu";
const INCLUDED: &str = "src/gpu/attention.cuh";

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-changed={INCLUDED}");
    println!("cargo::rerun-if-env-changed=CUDA_COMPUTE_CAP");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    let capability = capability();
    let target = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where")).join("kernels.ptx");
    let mut compiler = Command::new("nvcc");
    compiler.args(["--ptx", "-O3", "-std=c++17", &format!("--gpu-architecture=compute_{capability}"), "-o"]);
    let status = compiler.arg(&target).arg(SOURCE).status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("nvcc could not compile {SOURCE}: {status}"),
        Err(error) => panic!("nvcc could not be run ({error}): the feature cuda needs it on PATH"),
    }
}

/// As candle's own build chooses it.
fn capability() -> String {
    if let Ok(given) = env::var("CUDA_COMPUTE_CAP") {
        return given;
    }
    let asked = Command::new("nvidia-smi").args(["--query-gpu=compute_cap", "--format=csv,noheader"]).output();
    let told = asked.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    let first = told.as_deref().and_then(|text| text.lines().next()).map(|line| line.trim().replace('.', ""));
    first.filter(|text| !text.is_empty()).expect("set CUDA_COMPUTE_CAP where no GPU tells it: 90 for an H100")
}
