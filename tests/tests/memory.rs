//! What real daemons hold at most, against what is said before they begin.

use std::path::Path;
use std::time::Duration;

use murmur::observe::report::NodeReport;
use murmur_protocol::RunManifest;
use murmur_tests::{Daemon, TINY_RUN, write_run};
use murmur_training::ops::Kernels;
use murmur_training::{MemoryEstimate, TrainingOptions};

use crate::MURMUR;

/// 9.6 million parameters and little else: activations take a hundredth of all.
const LARGE: &str = "layers = 4\nwidth = 384\nheads = 4\nfeed_forward = 1536\ncontext = 16\n";

/// A checkpoint is written without pause, so that one falls together with every exchange.
const CHECKPOINTS: &str = "[checkpoint]\nevery_seconds = 1\n";

/// (what is estimated for a member of this run in bytes, the most that a founder and a joiner held), with moments in so many bits.
fn measured(folder: &Path, run: &str, moment_bits: u32, has_met: impl Fn(&NodeReport) -> bool) -> (u64, [u64; 2]) {
    std::fs::create_dir_all(folder).expect("a folder");
    let settings = folder.join("node.toml");
    std::fs::write(&settings, format!("[training]\nmoment_bits = {moment_bits}\n{CHECKPOINTS}")).expect("written");
    let path = write_run(folder, run);
    let settings = settings.to_str().expect("UTF-8");
    let spawn = |name: &str, what: [&str; 2]| {
        let what = [what[0], what[1], "--node", settings];
        Daemon::spawn(MURMUR, &folder.join(name), &what).with_patience(Duration::from_secs(120))
    };
    let founder = spawn("founder", ["start", path.to_str().expect("UTF-8")]);
    let joiner = spawn("joiner", ["join", &founder.ticket()]);
    let daemons = [founder, joiner];
    for daemon in &daemons {
        daemon.wait_for("the other one's model", &has_met);
    }
    let peaks = daemons.map(|daemon| daemon.stop().report.expect("it left in order").peak_memory_bytes);
    let manifest = RunManifest::from_text(&std::fs::read_to_string(path).expect("there")).expect("a run file");
    let options = TrainingOptions { moments_in_8_bits: moment_bits == 8, ..TrainingOptions::default() };
    let estimate = MemoryEstimate::of(&manifest, &options, Kernels::Fused, 1);
    (estimate.on_device() + estimate.on_machine(), peaks)
}

#[test]
fn daemons_hold_what_is_said_before_they_begin() {
    let _turn = murmur_tests::turn::computes();
    let folder = tempfile::tempdir().expect("a temporary directory");
    let tiny = TINY_RUN.replace("interval_steps = 10\n", "interval_steps = 2\nkind = \"pairs\"\n");
    let sizes = "layers = 1\nwidth = 32\nheads = 2\nfeed_forward = 64\ncontext = 32\n";
    assert!(tiny.contains(sizes));
    let large = tiny.replace(sizes, LARGE).replace("batch_sequences = 4\n", "batch_sequences = 1\n");
    let large = large.replace("validation_sequences = 32\n", "validation_sequences = 4\n");
    let has_exchanged = |report: &NodeReport| report.exchanges_completed > 3;
    let synchronous = format!("{large}[synchronous]\ntopology = \"ring\"\n");
    let has_averaged =
        |report: &NodeReport| report.synchronous.as_ref().is_some_and(|told| told.members == 2 && told.all_reduces > 3);
    let runs = [
        ("pairs", measured(&folder.path().join("pairs"), &large, 32, has_exchanged)),
        ("pairs, moments in 8 bits", measured(&folder.path().join("eight"), &large, 8, has_exchanged)),
        ("ring", measured(&folder.path().join("ring"), &synchronous, 32, has_averaged)),
    ];
    for (name, (estimate, peaks)) in runs {
        let most = peaks.into_iter().max().expect("two");
        if most == 0 {
            println!("skipped: this system does not tell what a process holds");
            return;
        }
        println!("{name}: {estimate} estimated, {peaks:?} held");
        // Less is held where not everything falls together that may.
        let ratio = estimate as f64 / most as f64;
        assert!((0.9..1.4).contains(&ratio), "{name}: {estimate} estimated, {peaks:?} held: {ratio:.3}");
    }
}
