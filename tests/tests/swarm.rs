//! Real daemons on loopback learn together, and go on learning whatever happens to one of them.

use std::time::Duration;

use murmur_protocol::Ticket;
#[cfg(target_os = "linux")]
use murmur_tests::disk::SmallDisk;
use murmur_tests::gaps::assert_never_waited;
use murmur_tests::{Daemon, TINY_RUN, folder, run, succeeded, write_run};

use crate::MURMUR;
use crate::place::Place;

/// A founder and `others` that join it by its ticket.
fn swarm(folder: &tempfile::TempDir, others: usize) -> Vec<Daemon> {
    let run_file = write_run(folder.path(), TINY_RUN);
    let founder = start(folder, "node-0", &["start", run_file.to_str().expect("UTF-8")]);
    let ticket = founder.ticket();
    let mut daemons = vec![founder];
    for number in 1..=others {
        daemons.push(start(folder, &format!("node-{number}"), &["join", &ticket]));
    }
    daemons
}

fn start(folder: &tempfile::TempDir, name: &str, arguments: &[&str]) -> Daemon {
    Daemon::spawn(MURMUR, &folder.path().join(name), arguments)
}

#[test]
fn three_daemons_learn_and_agree() {
    let _turn = murmur_tests::turn::computes();
    let place = Place::new(&TINY_RUN.replace("total_steps = 100000", "total_steps = 800"));
    let founder = place.start("node-0", &[]);
    let ticket = founder.ticket();
    let mut daemons = vec![founder];
    daemons.extend(["node-1", "node-2"].map(|name| place.spawn(name, &["join", &ticket])));
    for daemon in &daemons {
        daemon.wait_for("two peers", |report| report.peers == 2);
    }
    // All have done their last exchanges before the first one leaves.
    for daemon in &daemons {
        let last = daemon.wait_for("the end of the run", |report| report.phase == "completed");
        assert!(last.exchanges_completed >= 4, "at least the final exchanges of the run file: {last:?}");
    }
    let losses: Vec<f64> = daemons
        .into_iter()
        .map(|daemon| {
            let finished = daemon.stop().in_order();
            let report = finished.report.expect("it left in order");
            assert_eq!((report.misbehaviours, report.exchanges_failed), (0, 0));
            assert_never_waited(&report);
            report.validation_loss.expect("evaluated at the end")
        })
        .collect();
    let mean = losses.iter().sum::<f64>() / 3.0;
    let worst = losses.iter().copied().fold(0.0, f64::max);
    assert!(mean < 0.35 * 256f64.ln(), "they have learned: {losses:?}");
    assert!(worst <= 1.02 * mean, "they agree: {losses:?}");
}

#[test]
fn a_late_joiner_takes_over_the_model_before_it_trains() {
    let folder = folder();
    let daemons = swarm(&folder, 1);
    let seasoned = daemons[0].wait_for("300 steps", |report| report.steps >= 300);
    let cold = 256f64.ln();
    let late = start(&folder, "late", &["join", "--bootstrap", &daemons[0].address()]);
    late.wait_for_notice("took over the model of");
    let first = late.wait_for("its first steps", |report| report.steps > 0);
    let loss = first.loss.expect("it has stepped");
    let others = seasoned.loss.expect("it has stepped");
    assert!(loss < others + 0.2 * (cold - others), "{loss} at first, the others {others}");
    assert!(first.progress > 250.0, "its progress is the swarm's: {}", first.progress);
    late.wait_for("exchanges", |report| report.exchanges_completed >= 5);
}

#[test]
fn a_killed_daemon_does_not_disturb_the_others() {
    let folder = folder();
    let mut daemons = swarm(&folder, 2);
    for daemon in &daemons {
        daemon.wait_for("two peers and an exchange", |report| report.peers == 2 && report.exchanges_completed >= 1);
    }
    daemons.pop().expect("three").kill();
    for daemon in &daemons {
        let after = daemon.wait_for("the loss of a peer", |report| report.peers == 1);
        let later = daemon.wait_for("training and averaging go on", |report| {
            report.steps > after.steps + 100 && report.exchanges_completed > after.exchanges_completed + 10
        });
        assert_eq!(later.phase, "training");
    }
    // The founder is a member like any other.
    daemons.swap_remove(0).kill();
    let alone = daemons[0].wait_for("the loss of the founder", |report| report.peers == 0);
    daemons[0].wait_for("training goes on alone", |report| report.steps > alone.steps + 100);
}

#[test]
fn a_restarted_daemon_resumes() {
    let folder = folder();
    let daemons = swarm(&folder, 1);
    let ticket = daemons[0].ticket();
    daemons[1].wait_for("100 steps and an exchange", |report| report.steps >= 100 && report.exchanges_completed > 0);
    let mut daemons = daemons.into_iter();
    let founder = daemons.next().expect("two");
    let finished = daemons.next().expect("two").stop().in_order();
    let before = finished.report.expect("it left in order");
    let again = start(&folder, "node-1", &["join", &ticket]);
    let after = again.wait_for("a step", |report| report.steps > before.steps);
    assert_eq!(after.peer, before.peer, "the identity is kept");
    assert!(after.steps < before.steps + 1000, "it goes on from {} at {}", before.steps, after.steps);
    again.wait_for("an exchange", |report| report.exchanges_completed > 0);
    founder.wait_for("its peer is back", |report| report.peers == 1);
}

#[test]
fn a_daemon_resumes_from_its_directory_when_nobody_else_is_left() {
    let folder = folder();
    let mut daemons = swarm(&folder, 1);
    daemons[1].wait_for("100 steps", |report| report.steps >= 100);
    let joined = daemons.pop().expect("two");
    daemons.pop().expect("one").kill();
    let before = joined.stop().report.expect("it left in order");
    let again = start(&folder, "node-1", &["start"]);
    let after = again.wait_for("a step", |report| report.steps > before.steps);
    assert_eq!((after.peer, after.run), (before.peer, before.run));
}

#[test]
fn a_member_comes_back_by_its_old_ticket_when_the_founder_is_gone() {
    let folder = folder();
    let mut daemons = swarm(&folder, 2);
    for daemon in &daemons {
        daemon.wait_for("two peers and an exchange", |report| report.peers == 2 && report.exchanges_completed > 0);
    }
    let ticket = daemons[0].ticket();
    let (last, middle) = (daemons.pop().expect("three"), daemons.pop().expect("two"));
    let before = middle.stop().report.expect("it left in order");
    daemons.pop().expect("one").kill();
    let again = start(&folder, "node-1", &["join", &ticket]);
    let after = again.wait_for("a peer and an exchange", |report| report.peers == 1 && report.exchanges_completed > 0);
    assert_eq!(after.peer, before.peer);
    last.wait_for("a peer", |report| report.peers == 1);
}

#[test]
fn a_damaged_checkpoint_is_refused_and_the_previous_one_used() {
    let place = Place::new(TINY_RUN);
    let arguments = ["start", place.run_file()];
    for _ in 0..2 {
        let daemon = place.spawn("node", &arguments);
        daemon.wait_for("a step", |report| report.loss.is_some());
        daemon.stop();
    }
    let checkpoints = place.at("node/checkpoints");
    let mut found: Vec<_> =
        std::fs::read_dir(&checkpoints).expect("there").flatten().map(|entry| entry.path()).collect();
    found.sort();
    let newest = found.pop().expect("two checkpoints").join("model.safetensors");
    let mut bytes = std::fs::read(&newest).expect("there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&newest, bytes).expect("written");
    let daemon = place.spawn("node", &arguments);
    daemon.wait_for("a step", |report| report.steps > 0);
    let finished = daemon.stop();
    assert!(finished.errors.contains("warning: checkpoint refused"), "{}", finished.errors);
    assert!(finished.errors.contains("hint: the one before it is used"), "{}", finished.errors);
    assert!(finished.status.success());
}

/// Needs the right to mount a small file system.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_costs_checkpoints_and_nothing_else() {
    let Some(disk) = SmallDisk::mount(4 << 20) else { return };
    let place = Place::new(TINY_RUN);
    let settings = place.at("node.toml");
    std::fs::write(&settings, "[checkpoint]\nevery_seconds = 3\n").expect("a temporary directory can be written");
    let (run_file, settings) = (place.run_file(), settings.to_str().expect("UTF-8"));
    let daemon = Daemon::spawn(MURMUR, &disk.path().join("node"), &["start", run_file, "--node", settings]);
    let checkpoints = || -> Vec<_> {
        let entries = std::fs::read_dir(disk.path().join("node/checkpoints")).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().expect("UTF-8"));
        // What is being written begins with a dot.
        let mut names: Vec<_> = names.filter(|name| name.starts_with("step-")).collect();
        names.sort();
        names
    };
    // The next one is seconds away, so that none gives room back that it leaves.
    daemon.wait_for("a second checkpoint", |_| checkpoints().len() == 2);
    let kept = checkpoints();
    disk.fill();
    daemon.wait_for_warning("warning: cannot write a checkpoint");
    let before = daemon.latest().expect("it reported");
    daemon.wait_for("training goes on", |report| report.steps > before.steps + 100);
    assert_eq!(checkpoints(), kept);
    disk.empty();
    daemon.wait_for("a new checkpoint", |_| checkpoints().last() > kept.last());
    let finished = daemon.stop().in_order();
    assert!(
        finished.errors.contains("No space left on device") && finished.errors.contains("hint: "),
        "{}",
        finished.errors
    );
}

#[test]
fn a_foreign_run_is_refused_with_the_fields_that_differ() {
    let folder = folder();
    let ours = swarm(&folder, 0).pop().expect("one");
    let other = TINY_RUN.replace("layers = 1", "layers = 2");
    std::fs::create_dir(folder.path().join("other")).expect("created");
    let run_file = write_run(&folder.path().join("other"), &other);
    let address = ours.address();
    let stranger = start(&folder, "stranger", &["start", run_file.to_str().expect("UTF-8"), "--bootstrap", &address]);
    let notice = stranger.wait_for_notice("another run");
    assert!(notice.contains("model.layers: 2 here, 1 there"), "{notice}");
    let notice = ours.wait_for_notice("another run");
    assert!(notice.contains("model.layers: 1 here, 2 there"), "{notice}");
    assert_eq!(ours.wait_for("a report", |_| true).peers, 0);

    // A ticket that names the stranger's run, but leads to ours.
    let mut ticket: Ticket = ours.ticket().parse().expect("a ticket");
    ticket.run = stranger.ticket().parse::<Ticket>().expect("a ticket").run;
    // At loopback alone there is no network that would be searched for members of that run.
    let output = run(MURMUR, &["join", &ticket.to_string(), "--listen", "/ip4/127.0.0.1/tcp/0"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{errors}");
    assert!(errors.contains("another run") && errors.contains("hint: ask for a fresh ticket"), "{errors}");
}

#[test]
fn a_run_ends_by_itself_with_a_checkpoint_that_generates() {
    let place = Place::new(&TINY_RUN.replace("total_steps = 100000", "total_steps = 300"));
    // The founder stays: alone it might be done before the joiner has come.
    let founder = place.start("node-0", &[]);
    let joiner = place.spawn("node-1", &["join", &founder.ticket(), "--exit"]);
    let finished = joiner.wait_for_end().in_order();
    assert!(finished.report.expect("it left in order").validation_loss.is_some());
    founder.wait_for("the end of the run", |report| report.phase == "completed");
    let directory = place.at("node-1");
    let output = run(MURMUR, &["sample", directory.to_str().expect("UTF-8"), "--bytes", "50", "--prompt", "Once"]);
    assert!(output.status.success());
    assert!(output.stdout.starts_with(b"Once") && output.stdout.len() == 55, "{:?}", output.stdout);
    let output = run(MURMUR, &["eval", directory.to_str().expect("UTF-8"), "--format", "json"]);
    let evaluation: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let (loss, floor) = (evaluation["loss"].as_f64(), evaluation["floor"].as_f64());
    assert!(loss > floor && floor > Some(0.0), "{evaluation}");
}

#[test]
fn two_workers_of_one_node_train_on_tokens_that_sample_writes_as_text() {
    let folder = folder();
    let letters: String = ('a'..='z').zip(1..).map(|(letter, id)| format!(", \"{letter}\": {id}")).collect();
    let tokenizer = format!(
        "{{\"version\": \"1.0\", \"pre_tokenizer\": {{\"type\": \"Whitespace\"}}, \"model\": {{\"type\": \
         \"WordLevel\", \"vocab\": {{\"?\": 0{letters}}}, \"unk_token\": \"?\"}}}}"
    );
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    std::fs::write(path("tokenizer.json"), tokenizer).expect("written");
    std::fs::write(path("text.txt"), "a b c d ".repeat(2000)).expect("written");
    let run_text = TINY_RUN
        .replace("[model]", "[model]\nvocabulary = 27")
        .replace("[data]", "[data]\nsource = \"files\"")
        .replace("total_steps = 100000", "total_steps = 60");
    let run_file = write_run(folder.path(), &run_text);
    let (run_path, text, tokens) = (run_file.to_str().expect("UTF-8"), path("text.txt"), path("tokenizer.json"));
    let arguments = ["start", run_path, "--exit", "--device", "cpu,cpu", "--data", &text, "--tokenizer", &tokens];
    start(&folder, "node-0", &arguments).wait_for_end().in_order();
    let directory = path("node-0");
    let output = run(MURMUR, &["sample", &directory]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && errors.contains("hint: give it with --tokenizer FILE"), "{errors}");
    let sample =
        ["sample", &directory, "--tokenizer", &tokens, "--prompt", "a b", "--tokens", "4", "--temperature", "0"];
    let output = run(MURMUR, &sample);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "a b c d a b\n");
}

#[test]
fn status_tells_how_a_daemon_does() {
    let folder = folder();
    let daemon = swarm(&folder, 0).pop().expect("one");
    daemon.wait_for("a step", |report| report.steps > 0);
    let text = succeeded(&run(MURMUR, &["status", "--address", &daemon.status_address()]));
    assert!(text.contains("phase        training"), "{text}");
    let output = run(MURMUR, &["status", "--address", &daemon.status_address(), "--format", "json"]);
    let report: murmur::observe::report::NodeReport = serde_json::from_slice(&output.stdout).expect("a report");
    assert_eq!(report.phase, "training");
}

/// Two daemons on one machine by mistake.
#[test]
fn a_second_daemon_on_the_same_ports_says_which_is_taken() {
    let folder = folder();
    let daemon = swarm(&folder, 0).pop().expect("one");
    let address = daemon.address();
    let taken = address.split("/p2p/").next().expect("an address");
    let status = daemon.status_address();
    let second = folder.path().join("second");
    let start = ["start", "--data-dir", second.to_str().expect("UTF-8"), "--until-stdin-closes"];
    for (ports, thing) in [
        (["--listen", taken, "--status-address", "off"], taken),
        (["--listen", "/ip4/127.0.0.1/tcp/0", "--status-address", &status], status.as_str()),
    ] {
        let output = run(MURMUR, &[&start[..], &ports[..]].concat());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(4), "{errors}");
        assert!(errors.contains("error: ") && errors.contains(thing) && errors.contains("hint: "), "{errors}");
    }
    daemon.wait_for("the first one trains on", |report| report.steps > 0);
}

/// SIGTERM, as service managers send it.
#[cfg(unix)]
#[test]
fn a_terminated_daemon_leaves_in_order() {
    let folder = folder();
    let daemons = swarm(&folder, 1);
    daemons[0].wait_for("a peer", |report| report.peers == 1);
    let mut daemons = daemons.into_iter();
    let (founder, joiner) = (daemons.next().expect("two"), daemons.next().expect("two"));
    let id = joiner.process_id().to_string();
    let sent = std::process::Command::new("kill").args(["-TERM", &id]).status().expect("kill is there");
    assert!(sent.success());
    let begin = std::time::Instant::now();
    let finished = joiner.wait_for_end();
    assert!(begin.elapsed() < Duration::from_secs(30));
    assert!(finished.status.success(), "{}", finished.errors);
    assert!(finished.report.is_some());
    founder.wait_for_notice("has left");
}
