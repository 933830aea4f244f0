//! The same model in PyTorch: a process that takes steps when told to (`scripts/bench_pytorch.py`).

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use murmur_protocol::RunManifest;
use murmur_training::{Device, DeviceLocation, Precision};
use serde::Deserialize;

use crate::failure::{ExitCode, Failure};

const SCRIPT: &str = include_str!("../../../../scripts/bench_pytorch.py");

/// A folder for the script and its inputs, removed when dropped.
pub(super) struct Workplace(PathBuf);

impl Workplace {
    pub(super) fn new() -> std::io::Result<Workplace> {
        let folder = std::env::temp_dir().join(format!("murmur-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("bench_pytorch.py"), SCRIPT)?;
        Ok(Workplace(folder))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        // What is left behind is a few files in the folder for such.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running PyTorch with the model of a run.
pub(super) struct PyTorch {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// What some steps did.
#[derive(Debug, Deserialize)]
pub(super) struct Steps {
    pub(super) seconds: f64,
    pub(super) processor_seconds: f64,
    pub(super) losses: Vec<f64>,
    pub(super) peak_bytes: u64,
}

impl PyTorch {
    /// Starts it on that device in that precision; `more` goes to the script as it is.
    pub(super) fn start(
        python: &Path,
        workplace: &Workplace,
        manifest: &RunManifest,
        (device, precision): (&Device, Precision),
        threads: usize,
        more: &[String],
    ) -> anyhow::Result<PyTorch> {
        let mut command = Command::new(python);
        command.arg(workplace.path().join("bench_pytorch.py"));
        command.args(["--threads", &threads.to_string()]);
        if let DeviceLocation::Cuda { gpu_id } = device.location() {
            command.args(["--device", &format!("cuda:{gpu_id}")]);
            command.args(if precision == Precision::Bf16 { &["--bf16"][..] } else { &[] });
        }
        command.args(["--model", &serde_json::to_string(&manifest.model)?]);
        command.args(["--optimizer", &serde_json::to_string(&manifest.optimizer)?]).args(more);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| {
            Failure::new(ExitCode::Failure, format!("cannot start {}: {error}", python.display()))
                .hint("--python names a Python in which `import torch` works")
        })?;
        let orders = child.stdin.take().expect("it was piped");
        let answers = BufReader::new(child.stdout.take().expect("it was piped"));
        Ok(PyTorch { child, orders, answers })
    }

    /// Lets it take steps.
    pub(super) fn take_steps(&mut self, count: usize) -> anyhow::Result<Steps> {
        let ended = |reason: &str| {
            Failure::new(ExitCode::Failure, format!("PyTorch ended: {reason}"))
                .hint("its own message is above; --python names a Python in which `import torch` works")
        };
        writeln!(self.orders, "{count}").map_err(|error| ended(&error.to_string()))?;
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err(ended("it gave no answer").into());
        }
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for PyTorch {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
