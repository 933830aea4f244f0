//! What real daemons hold at most, against what is said before they begin.

use std::path::Path;
use std::time::{Duration, Instant};

use murmur::observe::report::NodeReport;
use murmur_protocol::RunManifest;
use murmur_tests::{Daemon, TINY_RUN, write_run};
use murmur_training::ops::Kernels;
use murmur_training::{MemoryEstimate, TrainingOptions};

use crate::MURMUR;

/// 9.6 million parameters and little else: activations take a hundredth of all.
const LARGE: &str = "layers = 4\nwidth = 384\nheads = 4\nfeed_forward = 1536\ncontext = 16\n";

/// A founder makes its first checkpoint so long after it begins. One that falls together with an exchange takes more than is
/// estimated, for a moment (757 MB where 478 are estimated, with a checkpoint every second).
const FIRST_CHECKPOINT: Duration = Duration::from_secs(20);

/// (what is estimated for a member of this run in bytes, the most that a founder and a joiner held). The latter is `None` where
/// the machine was so slow that a checkpoint fell into it.
fn measured(folder: &Path, run: &str, has_met: impl Fn(&NodeReport) -> bool) -> (u64, Option<[u64; 2]>) {
    std::fs::create_dir_all(folder).expect("a folder");
    let begin = Instant::now();
    let path = write_run(folder, run);
    let spawn = |name: &str, what: [&str; 2]| {
        Daemon::spawn(MURMUR, &folder.join(name), &what).with_patience(Duration::from_secs(120))
    };
    let founder = spawn("founder", ["start", path.to_str().expect("UTF-8")]);
    let joiner = spawn("joiner", ["join", &founder.ticket()]);
    let daemons = [founder, joiner];
    for daemon in &daemons {
        daemon.wait_for("the other one's model", &has_met);
    }
    let is_before_checkpoint = begin.elapsed() < FIRST_CHECKPOINT;
    // Each writes one when it stops.
    let peaks = daemons.map(|daemon| daemon.stop().report.expect("it left in order").peak_memory_bytes);
    let manifest = RunManifest::from_text(&std::fs::read_to_string(path).expect("there")).expect("a run file");
    let estimate = MemoryEstimate::of(&manifest, &TrainingOptions::default(), Kernels::Fused, 1);
    (estimate.on_device() + estimate.copies, is_before_checkpoint.then_some(peaks))
}

#[test]
fn daemons_hold_what_is_said_before_they_begin() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let tiny = TINY_RUN.replace("interval_steps = 5\n", "interval_steps = 2\nkind = \"pairs\"\n");
    let sizes = "layers = 1\nwidth = 32\nheads = 2\nfeed_forward = 64\ncontext = 32\n";
    assert!(tiny.contains(sizes));
    let large = tiny.replace(sizes, LARGE).replace("batch_sequences = 4\n", "batch_sequences = 1\n");
    let large = large.replace("validation_sequences = 32\n", "validation_sequences = 4\n");
    let has_exchanged = |report: &NodeReport| report.exchanges_completed > 3;
    let (_, itself) = measured(&folder.path().join("tiny"), &tiny, has_exchanged);
    let Some(itself) = itself.and_then(|itself| itself.into_iter().max()) else {
        println!("skipped: on this machine two daemons take too long to exchange");
        return;
    };
    let synchronous = format!("{large}[synchronous]\ntopology = \"ring\"\n");
    let has_averaged =
        |report: &NodeReport| report.synchronous.as_ref().is_some_and(|told| told.members == 2 && told.all_reduces > 3);
    let gossiping = measured(&folder.path().join("pairs"), &large, has_exchanged);
    let waiting = measured(&folder.path().join("ring"), &synchronous, has_averaged);
    if itself == 0 {
        println!("skipped: this system does not tell what a process holds");
        return;
    }
    for (name, (estimate, peaks)) in [("pairs", gossiping), ("ring", waiting)] {
        let Some(peaks) = peaks else {
            println!("{name}: skipped, the machine is so slow that a checkpoint fell into it");
            continue;
        };
        let estimate = estimate + itself;
        println!("{name}: {estimate} estimated, {peaks:?} held, of these {itself} by the process itself");
        // Less is held where no checkpoint falls together with an exchange or a copy.
        let ratio = estimate as f64 / peaks.into_iter().max().expect("two") as f64;
        assert!(
            (0.9..1.4).contains(&ratio),
            "{name}: {estimate} estimated, {peaks:?} held, {itself} by the process: {ratio:.3}"
        );
    }
}
