//! Synchronous runs: real daemons that average all at once, equal to one node with all their batches; members that come,
//! die and stand still.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use murmur::observe::report::NodeReport;
use murmur::observe::synchronous::SynchronousReport;
use murmur::store::{DataDirectory, load_latest};
use murmur_protocol::{PeerId, RunManifest};
use murmur_tests::{Daemon, TINY_RUN, run, succeeded, text, write_run};
use murmur_training::{Corpus, Device, Engine, EngineState};

use crate::MURMUR;

fn run_file(folder: &Path, steps: u64, synchronous: &str, gossip: &str) -> String {
    let run = TINY_RUN.replace("total_steps = 100000\n", &format!("total_steps = {steps}\n"));
    let run = run.replace("final_exchanges = 4\n", &format!("final_exchanges = 4\n{gossip}"));
    text(&write_run(folder, &format!("{run}[synchronous]\n{synchronous}"))).to_owned()
}

fn synchronous(report: &NodeReport) -> &SynchronousReport {
    report.synchronous.as_ref().expect("the run is synchronous")
}

/// Gives the node in `directory` an identity of its own, the same in every run: data is shared out by identity, and with some
/// batches a rounded bit grows to ten times what it is with others.
fn with_identity(directory: &Path, number: u8) {
    let key = libp2p::identity::Keypair::ed25519_from_bytes([number; 32]).expect("32 bytes are a secret");
    std::fs::create_dir(directory).expect("a new directory");
    let file = directory.join("identity.key");
    std::fs::write(&file, key.to_protobuf_encoding().expect("ed25519 can be encoded")).expect("written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("its owner may");
}

fn at_its_end(daemon: &Daemon) -> NodeReport {
    daemon.wait_for("the end of the run", |report| report.phase == "completed")
}

fn averages_with(report: &NodeReport, members: usize, all_reduces: u64) -> bool {
    let told = synchronous(report);
    told.members == members && told.all_reduces >= all_reduces
}

/// What a daemon that has ended has on its disk.
fn state(directory: &Path) -> EngineState {
    let (found, refused) = load_latest(&DataDirectory::open(directory).expect("it has ended").checkpoints_path());
    assert!(refused.is_empty());
    found.expect("a checkpoint").state
}

/// The run as one node would train it that has the batches of all.
fn one_node_with_all_batches(manifest: &RunManifest, nodes: &[PeerId]) -> Vec<f32> {
    let engine = |node: &PeerId| Engine::new(manifest, Corpus::grammar(), *node.as_bytes(), Device::Cpu).expect("room");
    let mut engines: Vec<Engine> = nodes.iter().map(engine).collect();
    for step in 0..manifest.schedule.total_steps {
        let gradients = engines.iter_mut().map(|engine| engine.gradient_of_next_batch().expect("on the CPU"));
        let gradients: Vec<_> = gradients.collect();
        let mut mean = gradients[0].clone();
        for (place, value) in mean.values.iter_mut().enumerate() {
            let sum: f64 = gradients.iter().map(|gradient| f64::from(gradient.values[place])).sum();
            *value = (sum / gradients.len() as f64) as f32;
        }
        for engine in &mut engines {
            engine.step_with(&mean, step as f64).expect("a finite gradient");
        }
    }
    engines[0].parameters().expect("on the CPU")
}

#[test]
fn four_daemons_train_as_one_node_with_all_their_batches_does() {
    let _turn = murmur_tests::turn::computes();
    let folder = tempfile::tempdir().expect("a temporary directory");
    let at = |number: usize| folder.path().join(number.to_string());
    let steps = 100;
    (0..4).for_each(|number| with_identity(&at(number), number as u8));
    let run = run_file(folder.path(), steps, "topology = \"ring\"\nmembers_min = 4\n", "");
    let mut daemons = vec![Daemon::spawn(MURMUR, &at(0), &["start", &run])];
    let ticket = daemons[0].ticket();
    daemons.extend((1..4).map(|number| Daemon::spawn(MURMUR, &at(number), &["join", &ticket])));
    // What is dropped and begun anew, with a replica copied from another member, skips no batch and takes none twice.
    daemons[2].wait_for("they average", |report| averages_with(report, 4, 2));
    daemons[2].signal("STOP");
    daemons[0].wait_for("too few are left to go on", |report| synchronous(report).members < 4);
    daemons[2].signal("CONT");
    let mut nodes = Vec::new();
    let ends: Vec<NodeReport> = daemons.iter().map(at_its_end).collect();
    for (daemon, last) in daemons.into_iter().zip(ends) {
        let told = synchronous(&last);
        assert_eq!((last.progress, last.steps, told.differed), (steps as f64, told.all_reduces, 0), "{last:?}");
        // A replica that was copied may be one step further.
        assert!((steps - told.copied..=steps).contains(&told.all_reduces), "{last:?}");
        assert!(told.seconds_waited > 0.0 && told.seconds_waited < last.seconds, "{told:?}");
        println!("{} begun anew, {} replicas copied", told.dropped, told.copied);
        nodes.push(last.peer.parse().expect("a peer id"));
        assert!(daemon.stop().status.success());
    }
    let states: Vec<EngineState> = (0..4).map(|number| state(&at(number))).collect();
    for other in &states[1..] {
        assert!(other.parameters == states[0].parameters, "one replica, bit for bit");
        assert!((&other.first_moment, &other.second_moment) == (&states[0].first_moment, &states[0].second_moment));
    }
    let manifest = DataDirectory::claimed_manifest(&at(0)).expect("its run");
    let expected = one_node_with_all_batches(&manifest, &nodes);
    let apart = expected.iter().zip(&states[0].parameters).map(|(one, other)| (one - other).abs());
    let furthest = apart.fold(0.0, f32::max);
    println!("{} parameters after {steps} steps, at most {furthest:e} apart", expected.len());
    assert!(furthest <= 1e-6, "{furthest:e}");
}

#[test]
fn members_that_come_die_and_stand_still_cost_a_deadline_and_replicas_stay_one() {
    let _turn = murmur_tests::turn::computes();
    let folder = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| folder.path().join(name);
    let run_path = run_file(folder.path(), 0, "topology = \"halving-doubling\"\n", "");
    let founder = Daemon::spawn(MURMUR, &at("founder"), &["start", &run_path]);
    let ticket = founder.ticket();
    founder.wait_for("it trains alone", |report| averages_with(report, 1, 3));
    let join = |name: &str| Daemon::spawn(MURMUR, &at(name), &["join", &ticket]);
    let (killed, stopped) = (join("killed"), join("stopped"));
    for daemon in [&founder, &killed, &stopped] {
        daemon.wait_for("three average", |report| averages_with(report, 3, 3));
    }
    let began = Instant::now();
    killed.kill();
    for daemon in [&founder, &stopped] {
        daemon.wait_for_notice("2 members average together (gone: ");
        let before = synchronous(&daemon.latest().expect("it reports")).all_reduces;
        daemon.wait_for("those left go on", |report| averages_with(report, 2, before + 5));
    }
    println!("five all-reduces {:.1} s after a kill", began.elapsed().as_secs_f64());
    let late = join("late");
    late.wait_for("it is taken in", |report| averages_with(report, 3, 5));
    let began = Instant::now();
    stopped.signal("STOP");
    let before = synchronous(&late.latest().expect("it reports")).all_reduces;
    for daemon in [&founder, &late] {
        daemon.wait_for("they go on without the one that stands still", |report| averages_with(report, 2, before + 5));
    }
    println!("five all-reduces {:.1} s after a member was stopped", began.elapsed().as_secs_f64());
    stopped.signal("CONT");
    for daemon in [&founder, &late, &stopped] {
        daemon.wait_for("it is taken in again", |report| averages_with(report, 3, before + 10));
    }
    let said = succeeded(&run(MURMUR, &["status", text(&at("founder"))]));
    assert!(said.contains("synchronous  3 members average together · ") && said.contains(" · waited "), "{said}");
    succeeded(&run(MURMUR, &["finish", text(&at("founder")), "--in", "1s"]));
    [&founder, &late, &stopped].into_iter().for_each(|daemon| drop(at_its_end(daemon)));
    for daemon in [founder, late, stopped] {
        let last = daemon.stop().report.expect("it has left in order");
        let told = synchronous(&last);
        assert!(told.seconds_waited < last.seconds, "{last:?}");
        println!("{} · {} begun anew · {:.0} s in all", told.all_reduces, told.dropped, last.seconds);
        println!("waited {:.1} s, at the deadline of {:.1} s", told.seconds_waited, told.deadline_seconds);
    }
    let states = ["founder", "late", "stopped"].map(|name| state(&at(name)));
    assert!(states.iter().all(|other| other.parameters == states[0].parameters), "one replica, bit for bit");
}

#[test]
fn models_that_are_averaged_every_few_steps_are_one_at_the_end_with_an_outer_optimizer() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| folder.path().join(name);
    // In 8 bits, and both leave at the end: neither may be left waiting for the other.
    let synchronous_section = "topology = \"star\"\nevery_steps = 5\nmembers_min = 2\nslice_bits = 8\n";
    let outer = "outer_learning_rate = 0.7\nouter_momentum = 0.6\n";
    let run = run_file(folder.path(), 40, synchronous_section, outer);
    let founder = Daemon::spawn(MURMUR, &at("founder"), &["start", &run, "--exit"]);
    let member = Daemon::spawn(MURMUR, &at("member"), &["join", &founder.ticket(), "--exit"]);
    for daemon in [founder, member] {
        let finished = daemon.wait_for_end();
        assert!(finished.status.success());
        let last = finished.report.expect("it has left in order");
        assert_eq!((last.steps, synchronous(&last).all_reduces), (40, 8), "{last:?}");
    }
    let [one, other] = ["founder", "member"].map(|name| state(&at(name)));
    assert!(one.parameters == other.parameters, "one model, bit for bit");
    assert!(one.outer_momentum.is_some() && one.outer_momentum == other.outer_momentum);
    assert!(one.first_moment != other.first_moment, "each has its own inner optimizer");
}

#[test]
fn members_that_choose_average_all_at_once_where_that_pays_and_in_pairs_where_one_is_slow() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| folder.path().join(name);
    // Steps beside which a message between processes is short, however busy the machine is.
    let chosen = run_file(folder.path(), 0, "topology = \"ring\"\nauto = true\n", "");
    let run = std::fs::read_to_string(&chosen).expect("it was written");
    std::fs::write(&chosen, run.replace("batch_sequences = 4\n", "batch_sequences = 1024\n")).expect("there is room");
    let patience = Duration::from_secs(120);
    let founder = Daemon::spawn(MURMUR, &at("founder"), &["start", &chosen]).with_patience(patience);
    let ticket = founder.ticket();
    let join = |name: &str, more: &[&str]| {
        Daemon::spawn(MURMUR, &at(name), &[&["join", &ticket], more].concat()).with_patience(patience)
    };
    let others = [join("one", &[]), join("other", &[])];
    let is_together = |report: &NodeReport| {
        report.synchronous.as_ref().is_some_and(|told| told.members == 3 && told.all_reduces >= 5)
    };
    for daemon in others.iter().chain([&founder]) {
        daemon.wait_for_notice("all average at once from now on: a step of all 3 should take ");
        daemon.wait_for("three average", is_together);
    }
    // A tenth of the speed of the others.
    let slow = join("slow", &["--training-percent", "2"]);
    for daemon in others.iter().chain([&founder, &slow]) {
        daemon.wait_for_notice("averages in pairs, so that nobody waits, from now on: a step of all ");
    }
    let before = founder.latest().expect("it reports").exchanges_completed;
    founder
        .wait_for("exchanges in pairs", |report| report.synchronous.is_none() && report.exchanges_completed > before);
}
