//! Real daemons for tests: each a process of its own, on loopback or on a host of its own ([`netns`]), driven through its
//! command line and heard through its JSON lines, and ended by process id whatever happens.

pub mod crowd;
mod daemon;
pub mod disk;
pub mod fake_mlflow;
pub mod fake_store;
pub mod fuzz;
pub mod gaps;
pub mod lender;
pub mod netns;
pub mod process;
pub mod siege;
pub mod slow_join;
pub mod swarm;
pub mod terminal;
pub mod turn;

pub use daemon::{Daemon, Finished};
pub use lender::Helper;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The most that a command which ends by itself takes, or a condition, on two busy cores.
const PATIENCE: Duration = Duration::from_secs(180);

/// Two and a half million parameters: a state of 10 MB in three parts, which takes 4 s over 20 Mbit/s. Little work a step.
pub const LARGE_RUN: &str = "\
[run]
name = \"large\"
[model]
layers = 3
width = 256
heads = 4
feed_forward = 768
context = 16
[optimizer]
batch_sequences = 1
[schedule]
total_steps = 100000
warmup_steps = 20
[data]
validation_sequences = 1
[gossip]
interval_steps = 50
interval_steps_min = 50
final_exchanges = 1
";

/// The run that most tests train: small enough that three daemons in the dev profile on two cores learn in seconds.
pub const TINY_RUN: &str = "\
[run]
name = \"tiny\"
[model]
layers = 1
width = 32
heads = 2
feed_forward = 64
context = 32
[optimizer]
batch_sequences = 4
[schedule]
total_steps = 100000
warmup_steps = 20
[data]
validation_sequences = 32
[gossip]
interval_steps = 10
final_exchanges = 4
";

/// Of the time, in percent, that daemons under test train: their steps take a millisecond, so without a limit each takes a
/// core for itself, and tests that run side by side wait for each other.
const TRAINING_PERCENT: &str = "25";

/// Whether this run takes its time: with `MURMUR_TEST_SCALE=nightly` what a push repeats a few times is repeated often.
pub fn is_nightly() -> bool {
    std::env::var("MURMUR_TEST_SCALE").is_ok_and(|scale| scale == "nightly")
}

/// A program under test with the settings of the developer's own environment taken away, and a locale of UTF-8. Only `MURMUR_LOG`
/// stays: what daemons write with it is shown when a test waits in vain.
pub fn murmur(program: &str) -> Command {
    let mut command = Command::new(if ignores_interrupts() { "/usr/bin/env" } else { program });
    if ignores_interrupts() {
        command.args(["--default-signal=INT", program]);
    }
    let is_setting = |name: &str| name.starts_with("MURMUR_") && name != "MURMUR_LOG";
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_setting(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    command.env("MURMUR_TRAINING_PERCENT", TRAINING_PERCENT).env("LC_ALL", "C.UTF-8");
    command
}

/// Whether this process ignores SIGINT, as one does in the background of a shell's script. What it starts would, too.
fn ignores_interrupts() -> bool {
    const SIGINT: u32 = 2;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (SIGINT - 1) & 1 == 1)
}

/// Runs a command that ends by itself.
///
/// # Panics
/// As [`output_of`].
pub fn run(program: &str, arguments: &[&str]) -> Output {
    output_of(murmur(program).args(arguments))
}

/// Runs a command that ends by itself, without input.
///
/// # Panics
/// When it cannot be started, or has not ended after three minutes, with what it has written.
pub fn output_of(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    end_of(command.spawn().expect("the program starts"))
}

/// Waits for the end of a command that ends by itself.
///
/// # Panics
/// As [`output_of`].
pub fn end_of(process: Child) -> Output {
    let id = process.id().to_string();
    let (ended, end) = mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        let is_late = end.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout);
        is_late && Command::new("kill").args(["-9", &id]).status().is_ok()
    });
    let output = process.wait_with_output().expect("it was started");
    drop(ended);
    assert!(!watch.join().expect("no panic"), "it does not end: {output:?}");
    output
}

/// The standard output of a command that succeeded.
///
/// # Panics
/// When it did not, with what it has written.
pub fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Does the same for each of these at once: for cases that wait most of the time.
///
/// # Panics
/// When one of them does.
pub fn at_once<Case: Send>(cases: impl IntoIterator<Item = Case>, check: impl Fn(Case) + Sync) {
    let check = &check;
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(move || check(case));
        }
    });
}

/// Waits until this holds.
///
/// # Panics
/// When it does not within three minutes.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A folder that goes with the test.
///
/// # Panics
/// When none can be made.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// A path as an argument of a command line.
///
/// # Panics
/// When it is no UTF-8.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Writes a run file into `directory`.
///
/// # Panics
/// When the directory cannot be written.
pub fn write_run(directory: &Path, content: &str) -> PathBuf {
    let path = directory.join("run.toml");
    std::fs::write(&path, content).expect("a temporary directory can be written");
    path
}
