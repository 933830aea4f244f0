//! The same model in PyTorch: a process that takes steps when told to (`scripts/bench_pytorch.py`).

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use murmur_protocol::RunManifest;
use murmur_training::{Device, DeviceLocation, Precision};
use serde::Deserialize;
use tempfile::TempDir;

use crate::failure::{ExitCode, Failure};
use crate::process::signal::hear_aside;

const SCRIPT: &str = include_str!("../../../../scripts/bench_pytorch.py");

/// A folder for the script and its inputs, removed when dropped. Nobody else can have made it before, or can write in it: what lies
/// there is run.
pub(super) struct Workplace(TempDir);

impl Workplace {
    pub(super) fn new() -> std::io::Result<Workplace> {
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
        let folder = builder.prefix("murmur-bench-").tempdir()?;
        std::fs::write(folder.path().join("bench_pytorch.py"), SCRIPT)?;
        Ok(Workplace(folder))
    }

    /// From now on Ctrl-C and SIGTERM remove it before they end this process, which drops nothing then.
    pub(super) fn remove_when_interrupted(&self) -> std::io::Result<()> {
        let folder = self.path().to_owned();
        hear_aside(async move |mut signals| {
            signals.first().await;
            let _ = std::fs::remove_dir_all(folder);
        })
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
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
    /// Starts it on that device, with autocast where the precision is bf16; `more` goes to the script as it is.
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
        }
        command.args(if precision == Precision::Bf16 { &["--bf16"][..] } else { &[] });
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
        self.order_steps(count)?;
        self.taken_steps()
    }

    /// Tells it to take steps, and returns at once.
    pub(super) fn order_steps(&mut self, count: usize) -> anyhow::Result<()> {
        Ok(writeln!(self.orders, "{count}").map_err(|error| ended(&error.to_string()))?)
    }

    /// What the ordered steps did.
    pub(super) fn taken_steps(&mut self) -> anyhow::Result<Steps> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err(ended("it gave no answer").into());
        }
        Ok(serde_json::from_str(&line)?)
    }
}

fn ended(reason: &str) -> Failure {
    Failure::new(ExitCode::Failure, format!("PyTorch ended: {reason}"))
        .hint("its own message is above; --python names a Python in which `import torch` works")
}

/// A way in which PyTorch computes the same steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) name: &'static str,
    pub(super) precision: Precision,
    /// For the script.
    pub(super) options: &'static [&'static str],
    /// Whether the others are measured where this one fails.
    pub(super) may_fail: bool,
}

impl Way {
    /// The ways worth measuring, so that the fastest is among them: on a GPU in the precision at hand, on a CPU in both;
    /// `forces_mkl` where MKL would leave AVX-512 unused by itself.
    pub(super) fn all(device: &Device, precision: Precision, forces_mkl: bool) -> Vec<Way> {
        let way = |name, precision, options| Way { name, precision, options, may_fail: false };
        let mut ways = vec![way("eager", precision, &[][..]), way("compiled", precision, &["--compile"])];
        if device.is_cpu() {
            ways.iter_mut().for_each(|way| way.precision = Precision::F32);
            ways.push(way("compiled, bf16", Precision::Bf16, &["--compile"]));
            if forces_mkl {
                let forced =
                    |name, precision| Way { may_fail: true, ..way(name, precision, &["--compile", "--force-mkl"]) };
                ways.push(forced("compiled, MKL forced", Precision::F32));
                ways.push(forced("compiled, bf16, MKL forced", Precision::Bf16));
            }
        } else {
            ways.push(way("compiled, CUDA graphs", precision, &["--compile", "--graphs"]));
            // They share the GPU's memory with each other.
            ways.iter_mut().for_each(|way| way.may_fail = true);
        }
        ways
    }
}

impl Drop for PyTorch {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_lies_in_a_new_folder_of_the_users_own_each_time() {
        let [one, other] = [(); 2].map(|()| Workplace::new().expect("a folder"));
        assert_ne!(one.path(), other.path(), "nobody knows it beforehand");
        assert_eq!(std::fs::read_to_string(one.path().join("bench_pytorch.py")).expect("written"), SCRIPT);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::metadata(one.path()).expect("there").permissions().mode();
            assert_eq!(mode & 0o077, 0, "{mode:o}");
        }
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists() && other.path().exists());
    }

    #[test]
    fn on_a_cpu_every_way_that_may_be_the_fastest_is_measured() {
        let names = |precision, forces_mkl| -> Vec<&str> {
            Way::all(&Device::Cpu, precision, forces_mkl).iter().map(|way| way.name).collect()
        };
        let own = ["eager", "compiled", "compiled, bf16"];
        assert_eq!(names(Precision::F32, false), own);
        assert_eq!(names(Precision::Bf16, false), own, "the fastest of both, whatever murmur computes in");
        let forced = ["compiled, MKL forced", "compiled, bf16, MKL forced"];
        assert_eq!(names(Precision::F32, true), [&own[..], &forced[..]].concat());
    }
}
