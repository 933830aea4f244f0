//! What a daemon does when a checkpoint is damaged, is another version's or has no room, when nobody reads its output, when `timeout` ends it, when it is suspended, and when its owner's quiet
//! hours keep it from joining.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use murmur::store::{Checkpoint, bytes_in, load_latest};
use murmur_tests::disk::SmallDisk;
use murmur_tests::{Daemon, TINY_RUN, murmur, output_of};

use crate::MURMUR;
use crate::place::Place;

/// Flips a bit of every checkpoint's model.
fn damage(directory: &Path) {
    let folders = std::fs::read_dir(directory.join("checkpoints")).expect("there").flatten();
    let models: Vec<_> = folders.map(|folder| folder.path().join("model.safetensors")).collect();
    assert!(!models.is_empty(), "there is a checkpoint");
    for model in models {
        let mut bytes = std::fs::read(&model).expect("there");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&model, bytes).expect("written");
    }
}

#[test]
fn a_node_alone_with_a_damaged_checkpoint_stops_with_the_choice_and_begins_anew_only_when_told() {
    let place = Place::new(TINY_RUN);
    let node = place.at("node");
    let start = |more: &[&str]| Daemon::spawn(MURMUR, &node, &[&["start", place.run_file()], more].concat());
    let daemon = start(&[]);
    let before = daemon.wait_for("1,000 steps", |report| report.steps >= 1000);
    daemon.stop();
    damage(&node);
    // Asking twice changes nothing.
    for _ in 0..2 {
        let refused = start(&[]).wait_for_end();
        assert_eq!(refused.status.code(), Some(5), "{}", refused.errors);
        for said in [
            "warning: checkpoint refused: ",
            "model.safetensors is damaged",
            &format!("error: no checkpoint in {} can be used", node.join("checkpoints").display()),
            "hint: restore that folder from a backup; or join the run's other members with `murmur join TICKET --data-dir",
            "with --begin-anew",
        ] {
            assert!(refused.errors.contains(said), "{said}: {}", refused.errors);
        }
    }
    let daemon = start(&["--begin-anew"]);
    let anew = daemon.wait_for("a step", |report| report.steps > 0);
    assert!(anew.steps < before.steps, "{anew:?}");
    daemon.wait_for_warning("hint: there is no other one; the run begins anew at step 0");
    assert!(daemon.stop().status.success());
    let kept = std::fs::read_dir(node.join("checkpoints")).expect("there").flatten();
    assert!(kept.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("refused-step-")));
}

#[test]
fn a_member_with_a_damaged_checkpoint_copies_the_model_anew() {
    let place = Place::new(TINY_RUN);
    let founder = place.start("founder", &[]);
    let member = place.spawn("member", &["join", &founder.ticket()]);
    member.wait_for("an exchange", |report| report.exchanges_completed > 0);
    member.stop();
    damage(&place.at("member"));
    let seasoned = founder.wait_for("300 steps", |report| report.steps >= 300);
    // By the peers that it remembers.
    let member = place.spawn("member", &["start"]);
    member.wait_for_warning("hint: there is no other one; the model is copied from a member");
    member.wait_for_notice("took over the model of");
    let first = member.wait_for("a step", |report| report.steps > 0);
    assert!(first.progress >= seasoned.progress - 5.0, "the swarm's progress: {first:?}");
}

/// To begin at step 0 under the run's name would be a fork of it.
#[test]
fn a_member_killed_before_its_first_checkpoint_comes_back_as_a_member() {
    let place = Place::new(TINY_RUN);
    let founder = place.start("founder", &[]);
    let settings = place.at("node.toml");
    std::fs::write(&settings, "[checkpoint]\nevery_seconds = 0\n").expect("written");
    let never = ["--node", settings.to_str().expect("UTF-8")];
    let member = place.spawn("member", &[&["join", &founder.ticket()], &never[..]].concat());
    member.wait_for("a step", |report| report.steps > 0);
    let seasoned = founder.wait_for("300 steps", |report| report.steps >= 300);
    member.kill();
    // By the peers that it remembers, and without them it waits for one.
    let member = place.spawn("member", &[&["start"], &never[..]].concat());
    member.wait_for_notice("took over the model of");
    let first = member.wait_for("a step", |report| report.steps > 0);
    assert!(first.progress >= seasoned.progress - 5.0, "the swarm's progress: {first:?}");
    member.kill();
    std::fs::remove_file(place.at("member").join("peers.json")).expect("it was written");
    assert!(founder.stop().status.success());
    let member = place.spawn("member", &[&["start"], &never[..]].concat());
    let waiting = member.wait_for("a report", |_| true);
    assert_eq!((waiting.phase.as_str(), waiting.steps), ("joining", 0), "{waiting:?}");
}

#[test]
fn joining_waits_for_the_end_of_the_quiet_hours_and_says_how_to_join_now() {
    let place = Place::new(TINY_RUN);
    let founder = place.start("founder", &[]);
    let ticket = founder.ticket();
    let hour = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() / 3600 % 24;
    let (from, to) = (format!("{:02}:00", (hour + 23) % 24), format!("{:02}:00", (hour + 2) % 24));
    let quiet = ["--time-zone", "UTC", "--quiet-hours", &format!("{from}-{to}")];
    let waiting = place.spawn("member", &[&["join", ticket.as_str()], &quiet[..]].concat());
    waiting.wait_for_warning(&format!("quiet hours until {to} UTC; joining waits until then"));
    waiting.wait_for_warning("hint: to join now, start again with --quiet-hours \"\"");
    let report = waiting.wait_for("a peer", |report| report.peers == 1);
    assert_eq!((report.phase.as_str(), report.steps), ("joining", 0));
    let finished = waiting.stop();
    assert!(!finished.errors.contains("training goes on"), "{}", finished.errors);
    assert!(finished.status.success(), "{}", finished.errors);

    let now = [&["join", ticket.as_str()], &quiet[..2], &["--quiet-hours", ""]].concat();
    let member = place.spawn("member", &now);
    member.wait_for("an exchange", |report| report.exchanges_completed > 0);
}

/// GNU `timeout` signals its child and then the child's whole group, the child among them: two signals at once.
#[test]
fn a_daemon_that_timeout_ends_leaves_in_order_and_keeps_its_last_checkpoint() {
    let place = Place::new(TINY_RUN);
    let end = |node: &Path| -> Option<Output> {
        Command::new("timeout").arg("--version").output().ok()?;
        // Before its first checkpoint of the regular ones, which comes 20 s after the start.
        let mut command = murmur("timeout");
        command.args(["15", MURMUR, "start"]).arg(place.run_file()).arg("--data-dir").arg(node);
        command.args(["--listen", "/ip4/127.0.0.1/tcp/0", "--status-address", "off", "--threads", "1"]);
        Some(output_of(&mut command))
    };
    let nodes: Vec<_> = (0..4).map(|index| place.at(format!("node-{index}"))).collect();
    let end = &end;
    std::thread::scope(|scope| {
        let ends: Vec<_> = nodes.iter().map(|node| scope.spawn(move || end(node))).collect();
        for (node, end) in nodes.iter().zip(ends) {
            let Some(output) = end.join().expect("no panic") else {
                eprintln!("skipped: there is no timeout");
                return;
            };
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(124), "{said}");
            let kept = std::fs::read_dir(node.join("checkpoints")).map_or(0, Iterator::count);
            assert!(kept > 0, "the last checkpoint is lost: {said}");
        }
    });
}

/// A script that reads the line that it is ready, and no more. The pipe has room for two reports.
#[cfg(target_os = "linux")]
#[test]
fn a_daemon_whose_output_nobody_reads_goes_on_and_ends_when_asked() {
    let place = Place::new(TINY_RUN);
    let node = place.at("node");
    let (_unread, mut output) = std::io::pipe().expect("a pipe");
    output.write_all(&[b'\n'; 14 * 4096]).expect("a pipe of sixteen pages");
    let mut command = murmur(MURMUR);
    command.arg("start").arg(place.run_file()).arg("--data-dir").arg(&node).args(["--format", "json"]);
    command.args(["--listen", "/ip4/127.0.0.1/tcp/0", "--status-address", "127.0.0.1:0"]);
    // It ends with this test, however that goes.
    command.arg("--until-stdin-closes").stdin(Stdio::piped()).stdout(output).stderr(Stdio::piped());
    let mut daemon = command.spawn().expect("it starts");
    let _stdin = daemon.stdin.take();
    let told = || -> Option<serde_json::Value> {
        let output = murmur_tests::run(MURMUR, &["status", node.to_str()?, "--format", "json"]);
        serde_json::from_slice(&output.stdout).ok()
    };
    let begin = Instant::now();
    let mut seen = Vec::new();
    // By then the pipe has been full for two seconds.
    while seen.last().and_then(serde_json::Value::as_f64).unwrap_or(0.0) < 4.0 {
        assert!(begin.elapsed() < Duration::from_secs(60), "its reports stand still at {:?} s", seen.last());
        seen.extend(told().map(|report| report["seconds"].clone()));
        std::thread::sleep(Duration::from_millis(200));
    }
    let pid = daemon.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill is there").success());
    murmur_tests::succeeded(&murmur_tests::end_of(daemon));
    assert!(std::fs::read_dir(node.join("checkpoints")).is_ok_and(|mut kept| kept.next().is_some()));
}

#[test]
fn a_checkpoint_of_a_newer_murmur_is_neither_passed_over_nor_put_aside() {
    let place = Place::new(TINY_RUN);
    let node = place.at("node");
    let start = |steps: &str| {
        let arguments = ["start", place.run_file(), "--steps", steps, "--exit"];
        Daemon::spawn(MURMUR, &node, &arguments).wait_for_end()
    };
    assert!(start("3").status.success() && start("6").status.success());
    let names = || {
        let folders = std::fs::read_dir(node.join("checkpoints")).expect("there").flatten();
        let mut names: Vec<String> = folders.map(|folder| folder.file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    };
    let before = names();
    assert_eq!(before.len(), 2, "{before:?}");
    let index = node.join("checkpoints").join(&before[1]).join("checkpoint.json");
    let newer = std::fs::read_to_string(&index).expect("there").replace("\"format\": 2", "\"format\": 99");
    std::fs::write(&index, newer).expect("written");
    let refused = start("9");
    assert_eq!(refused.status.code(), Some(5), "{}", refused.errors);
    assert!(refused.errors.contains("hint: update murmur"), "{}", refused.errors);
    assert_eq!(names(), before);
}

/// Needs the right to mount a small file system.
#[cfg(target_os = "linux")]
#[test]
fn a_disk_with_room_for_two_checkpoints_but_not_for_three_gets_new_ones() {
    let place = Place::new(TINY_RUN);
    let node = place.at("node");
    let arguments = ["start", place.run_file(), "--steps", "3", "--exit"];
    assert!(Daemon::spawn(MURMUR, &node, &arguments).wait_for_end().status.success());
    let written = node.join("checkpoints/step-000000000003");
    let mut checkpoint = Checkpoint::read(&written).expect("intact");
    let layout = murmur_training::trained_layout(&checkpoint.manifest);
    let Some(disk) = SmallDisk::mount(26 * bytes_in(&written) as usize / 10) else { return };
    for steps in 4..8 {
        checkpoint.state.counters.steps = steps;
        checkpoint.write(disk.path(), &layout, 2).expect("the oldest gives way");
    }
    let (newest, refused) = load_latest(disk.path());
    assert_eq!((newest.expect("one").state.counters.steps, refused.len()), (7, 0));
    assert_eq!(std::fs::read_dir(disk.path()).expect("there").count(), 2);
}

/// It hears of signals only when it goes on, which may be never.
#[cfg(target_os = "linux")]
#[test]
fn a_suspended_daemon_is_said_to_be_there_to_who_asks_and_to_who_stops_it() {
    let place = Place::new(TINY_RUN);
    let node = place.at("node");
    let daemon = Daemon::spawn(MURMUR, &node, &["start", place.run_file()]);
    daemon.wait_for("a step", |report| report.steps > 0);
    let (directory, pid) = (node.to_str().expect("UTF-8"), daemon.process_id());
    daemon.signal("STOP");
    let output = murmur_tests::run(MURMUR, &["status", directory]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{said}");
    let expected = format!("is there (process {pid}), but it is suspended and does not answer");
    assert!(said.contains(&expected) && said.contains(&format!("hint: `kill -CONT {pid}`")), "{said}");
    let mut stop = murmur(MURMUR);
    stop.args(["stop", directory]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut stop = stop.spawn().expect("it starts");
    let mut lines = BufReader::new(stop.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
    let told = format!("process {pid} is there, but it is suspended and does not answer");
    assert!(lines.any(|line| line.trim() == told), "{told}");
    daemon.signal("CONT");
    let output = murmur_tests::end_of(stop);
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).starts_with("stopped "), "{output:?}");
    assert!(daemon.wait_for_end().status.success());
}

/// They said nothing for a minute.
#[cfg(target_os = "linux")]
#[test]
fn who_has_a_suspended_daemon_change_something_reads_what_is_waited_for_and_it_is_done_once_it_goes_on() {
    let place = Place::new(TINY_RUN);
    let node = place.at("node");
    let daemon = Daemon::spawn(MURMUR, &node, &["start", place.run_file()]);
    daemon.wait_for("a step", |report| report.steps > 0);
    let (directory, pid) = (node.to_str().expect("UTF-8"), daemon.process_id());
    let peer = "12D3KooWPjceQrSwdWXPyLLeABRXmuqt69Rg3sBYbU1Nft9HyQ6X";
    for (typed, done) in
        [(&["block", peer, "--run", directory][..], "blocked "), (&["finish", directory], "finishing ")]
    {
        daemon.signal("STOP");
        let mut command = murmur(MURMUR);
        command.args(typed).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut command = command.spawn().expect("it starts");
        let lines = BufReader::new(command.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
        let said: Vec<String> = lines.take(2).collect();
        let told = format!("waiting     process {pid} is there, but it is suspended and does not answer; ");
        let is_told = said.len() == 2 && said[0].starts_with(&told);
        assert!(is_told && said[1].starts_with(&format!("hint: `kill -CONT {pid}` ")), "{typed:?}: {said:?}");
        daemon.signal("CONT");
        let output = murmur_tests::end_of(command);
        assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).starts_with(done), "{output:?}");
    }
    assert!(daemon.stop().status.success());
}

/// Needs the right to mount a small file system.
#[cfg(target_os = "linux")]
#[test]
fn a_daemon_is_found_by_a_file_that_is_written_again_and_who_stops_it_hears_of_a_lost_checkpoint() {
    let Some(disk) = SmallDisk::mount(4 << 20) else { return };
    let place = Place::new(TINY_RUN);
    let node = disk.path().join("node");
    let settings = place.at("node.toml");
    std::fs::write(&settings, "[checkpoint]\nevery_seconds = 1\n").expect("written");
    let arguments = ["start", place.run_file(), "--node", settings.to_str().expect("UTF-8")];
    let daemon = Daemon::spawn(MURMUR, &node, &arguments);
    let checkpoints = || std::fs::read_dir(node.join("checkpoints")).map_or(0, Iterator::count);
    daemon.wait_for("a checkpoint", |_| checkpoints() > 0);
    std::fs::remove_file(node.join("daemon.json")).expect("there");
    let is_found = || murmur_tests::run(MURMUR, &["status", node.to_str().expect("UTF-8")]).status.success();
    let begin = Instant::now();
    while !is_found() {
        assert!(begin.elapsed() < Duration::from_secs(60), "it writes daemon.json once it can");
        std::thread::sleep(Duration::from_millis(200));
    }
    // Also the room of those that go for new ones.
    let mut more =
        std::fs::OpenOptions::new().create(true).append(true).open(disk.path().join("more")).expect("created");
    let begin = Instant::now();
    while !daemon.errors().contains("warning: cannot write a checkpoint") {
        assert!(begin.elapsed() < Duration::from_secs(60), "{}", daemon.errors());
        while more.write_all(&[0; 4096]).is_ok() {}
        std::thread::sleep(Duration::from_millis(10));
    }
    let stopped = murmur_tests::run(MURMUR, &["stop", node.to_str().expect("UTF-8")]);
    let said = String::from_utf8_lossy(&stopped.stderr).into_owned();
    assert_eq!(stopped.status.code(), Some(5), "{said}");
    assert!(said.contains("has ended with an error: ") && said.contains("is its last checkpoint"), "{said}");
    assert_eq!(daemon.wait_for_end().status.code(), Some(5));
}

#[cfg(unix)]
#[test]
fn a_data_file_that_is_shortened_ends_a_daemon_with_a_word_and_not_by_a_signal() {
    let place = Place::new(&TINY_RUN.replace("[data]\n", "[data]\nsource = \"files\"\n"));
    let text = place.at("text.txt");
    std::fs::write(&text, "Once there was a fox. ".repeat(50_000)).expect("written");
    let daemon = place.start("node", &["--data", text.to_str().expect("UTF-8")]);
    daemon.wait_for("a step", |report| report.steps > 0);
    let file = std::fs::OpenOptions::new().write(true).open(&text).expect("there");
    file.set_len(4096).expect("shortened");
    let ended = daemon.wait_for_end();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.errors);
    assert!(ended.errors.contains("error: a file was shortened while it was read"), "{}", ended.errors);
}
