//! `murmur local`: real daemons as children, one merged view, a summary, and nothing left behind.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use murmur_tests::{TINY_RUN, at_once, end_of, murmur, output_of, succeeded, wait_until};
use serde_json::Value;

use crate::MURMUR;
use crate::place::Place;

/// `murmur local` whose daemons train all of the time.
fn local() -> Command {
    let mut command = murmur(MURMUR);
    command.arg("local").env_remove("MURMUR_TRAINING_PERCENT");
    command
}

#[test]
fn local_daemons_take_their_share_of_the_time_and_what_they_do_not_take_is_told() {
    let _turn = murmur_tests::turn::computes();
    let place = Place::new(TINY_RUN);
    let speed = |name: &str, settings: &[(&str, &str)]| {
        let mut command = local();
        command.args(["-n", "1", "--steps", "200", "--format", "json", "--directory"]).arg(place.at(name));
        let output = output_of(command.arg(place.run_file()).envs(settings.iter().copied()));
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let last =
            String::from_utf8_lossy(&output.stdout).lines().last().and_then(|line| serde_json::from_str(line).ok());
        let summary: Value = last.unwrap_or_else(|| panic!("no summary: {errors}"));
        (summary["summary"]["nodes"][0]["tokens_per_second"].as_f64().expect("a number"), errors)
    };
    let (whole, said) = speed("whole", &[]);
    assert!(!said.contains("does not hold"), "{said}");
    let (share, said) = speed("share", &[("MURMUR_TRAINING_PERCENT", "10"), ("MURMUR_UPLOAD_MBIT", "5")]);
    assert!(share < 0.4 * whole, "a tenth of the time: {share} of {whole} tokens a second");
    assert!(said.contains("MURMUR_UPLOAD_MBIT in the environment does not hold for these daemons"), "{said}");
}

#[test]
fn a_local_swarm_ends_with_a_summary_of_every_node() {
    let _turn = murmur_tests::turn::computes();
    let place = Place::new(TINY_RUN);
    let mut command = local();
    command.args(["-n", "3", "--steps", "1500", "--format", "json", "--directory"]);
    let output = output_of(command.arg(place.at("swarm")).arg(place.run_file()));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let lines: Vec<Value> = String::from_utf8(output.stdout)
        .expect("UTF-8")
        .lines()
        .map(|line| serde_json::from_str(line).expect("one object a line"))
        .collect();
    let summary = &lines.last().expect("lines")["summary"];
    let nodes = summary["nodes"].as_array().expect("an array");
    assert_eq!(nodes.len(), 3, "{summary}");
    for node in nodes {
        assert_eq!(node["steps"], 1500, "{node}");
        assert!(node["validation_loss"].as_f64() < Some(4.0), "{node}");
        assert!(node["exchanges_completed"].as_u64() > Some(20), "{node}");
        assert!(node["bytes_sent"].as_u64() > Some(0) && node["bytes_received"].as_u64() > Some(0), "{node}");
        let number = |name: &str| node[name].as_f64().expect("a measured number");
        assert!(number("seconds_at_boundaries") < 0.25 * number("seconds_in_training"), "training waits: {node}");
        assert!(number("longest_gap_seconds") < 3.0 && number("median_step_seconds") > 0.0, "{node}");
        assert!(node["peer"].as_str().expect("a peer id").starts_with("12D3KooW"), "{node}");
    }
    assert!(summary["disagreement"].as_f64() > Some(0.0), "{summary}");
    assert!(summary["seconds"].as_f64() > Some(0.0), "{summary}");
    // A tiny model: framing, references and final exchanges weigh more than on a real one, where it is 0.14 to 0.2.
    let bytes = summary["bytes_per_parameter_per_exchange"].as_f64().expect("a number");
    assert!((0.13..0.8).contains(&bytes), "{summary}");
}

#[test]
fn a_local_swarm_that_is_finished_says_so_instead_of_a_table() {
    let place = Place::new(TINY_RUN);
    let again = || {
        let mut command = local();
        command.args(["-n", "2", "--steps", "50", "--directory"]).arg(place.at("swarm")).arg(place.run_file());
        let output = output_of(&mut command);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        (String::from_utf8_lossy(&output.stdout).into_owned(), errors)
    };
    let (table, said) = again();
    assert!(table.contains("own steps") && said.contains("\n  murmur report "), "{table}{said}");
    let (table, said) = again();
    assert!(table.is_empty(), "nothing was trained: {table}");
    assert!(said.contains("complete    this run is finished: own 50") && said.contains("validation loss "), "{said}");
    assert!(said.contains("  murmur sample ") && !said.contains("tokens/s"), "{said}");
}

/// What the captain's newest report says of its team, and all of the lines.
fn teams(output: &[u8]) -> Vec<Value> {
    let lines = String::from_utf8_lossy(output).into_owned();
    let objects = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    objects.filter_map(|line| line.pointer("/line/status/team").cloned()).collect()
}

#[test]
fn a_local_team_is_a_captain_and_its_helpers_and_all_end_with_it() {
    let place = Place::new(&TINY_RUN.replace("layers = 1", "layers = 3"));
    let swarm = place.at("swarm");
    let mut command = local();
    command.args(["--helper", "2", "--steps", "60", "--format", "json", "--directory"]);
    let output = output_of(command.arg(&swarm).arg(place.run_file()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let teams = teams(&output.stdout);
    let with_cut = teams.iter().rev().find(|team| team["cut"].is_string()).expect("a report with a cut");
    assert!(with_cut["cut"].as_str().is_some_and(|cut| cut.contains(" on ")), "{with_cut}");
    let last = String::from_utf8_lossy(&output.stdout).lines().last().map(str::to_owned).expect("lines");
    let summary: Value = serde_json::from_str(&last).expect("JSON");
    let nodes = summary["summary"]["nodes"].as_array().expect("an array");
    assert!(nodes.len() == 1 && nodes[0]["steps"] == 60, "one captain: {summary}");
    for helper in ["helper-0", "helper-1"] {
        let log = std::fs::read_to_string(swarm.join(helper).join("log/daemon.log")).unwrap_or_default();
        assert!(log.contains("ended"), "{helper} has not ended in order: {log}");
    }
}

#[test]
fn ctrl_c_ends_a_local_team_with_all_of_its_processes_whenever_it_comes() {
    let _turn = murmur_tests::turn::computes();
    at_once([false, true], ends_at_ctrl_c);
}

/// While its helper begins, or once it trains.
fn ends_at_ctrl_c(trains: bool) {
    let place = Place::new(&TINY_RUN.replace("layers = 1", "layers = 3"));
    let swarm = place.at("swarm");
    let mut command = local();
    command.args(["--helper", "1", "--steps", "1000000", "--format", "json", "--directory"]);
    command.arg(&swarm).arg(place.run_file()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().expect("it starts");
    let mut lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
    let helper_log = swarm.join("helper-0/log/daemon.log");
    if trains {
        let has_steps = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap_or_default();
            line.pointer("/line/status/steps").and_then(Value::as_u64) > Some(5)
        };
        assert!(lines.any(|line| has_steps(&line.expect("UTF-8"))), "it takes steps");
    } else {
        wait_until("a helper", || helper_log.exists());
    }
    let sent = Command::new("kill").args(["-INT", &process.id().to_string()]).status().expect("kill is there");
    assert!(sent.success());
    // It writes until it ends.
    let rest = std::thread::spawn(move || lines.map_while(Result::ok).last());
    let output = end_of(process);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {errors}", output.status);
    let last = rest.join().expect("read").unwrap_or_default();
    if trains {
        assert!(last.contains("\"summary\""), "{last}");
        let log = std::fs::read_to_string(&helper_log).unwrap_or_default();
        assert!(log.trim_end().ends_with("ended"), "the helper ends in order: {log}");
    } else {
        assert!(errors.trim_end().ends_with("Ctrl-C: no daemon had begun, and its helpers have ended"), "{errors}");
        assert!(!swarm.exists(), "nothing has begun there");
    }
    assert_eq!(processes_with(&swarm), Vec::<String>::new());
}

/// What was started with a path, and lives; nothing where the system does not tell.
fn processes_with(path: &Path) -> Vec<String> {
    let path = path.to_str().expect("UTF-8");
    let folders = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let commands = folders.filter_map(|folder| std::fs::read_to_string(folder.path().join("cmdline")).ok());
    commands.filter(|command| command.contains(path)).collect()
}

const SIDE: u32 = 10;

/// Bright squares of four sizes, which are their classes, at nine places.
fn pixel(image: u32, row: u32, column: u32) -> u8 {
    let (size, down, right) = (2 + class(image) as u32 * 2, image / 4 % 3, image / 12 % 3);
    let inside = (down..down + size).contains(&row) && (right..right + size).contains(&column);
    if inside { 255 } else { (image * 31 + row * 17 + column * 7) as u8 % 60 }
}

fn class(image: u32) -> u8 {
    (image % 4) as u8
}

fn write_idx(folder: &Path, count: u32) -> [PathBuf; 2] {
    let paths = ["squares-images.idx", "squares-labels.idx"].map(|name| folder.join(name));
    let header = |dimensions: &[u32]| {
        let sizes = dimensions.iter().flat_map(|size| size.to_be_bytes());
        [0, 0, 8, dimensions.len() as u8].into_iter().chain(sizes).collect::<Vec<u8>>()
    };
    let mut images = header(&[count, SIDE, SIDE]);
    for image in 0..count {
        images.extend((0..SIDE * SIDE).map(|place| pixel(image, place / SIDE, place % SIDE)));
    }
    let labels = (0..count).map(class);
    std::fs::write(&paths[0], images).expect("written");
    std::fs::write(&paths[1], header(&[count]).into_iter().chain(labels).collect::<Vec<u8>>()).expect("written");
    paths
}

/// A PNG each in the sub-folder of its class, three times as large as the model reads.
fn write_folders(folder: &Path, count: u32) -> PathBuf {
    let root = folder.join("squares");
    for image in 0..count {
        let class = root.join(format!("size-{}", class(image)));
        std::fs::create_dir_all(&class).expect("created");
        let drawn = image::GrayImage::from_fn(3 * SIDE, 3 * SIDE, |column, row| {
            image::Luma([pixel(image, row / 3, column / 3)])
        });
        drawn.save(class.join(format!("{image}.png"))).expect("written");
    }
    root
}

fn squares(total_steps: u32, data: &str) -> String {
    format!(
        "[run]\nname = \"squares\"\n[model]\nkind = \"cnn\"\nimage_height = 10\nimage_width = 10\nclasses = 4\n\
         convolutions = [4]\nhidden = [16]\n[optimizer]\nlearning_rate = 0.01\nbatch_sequences = 16\n\
         [schedule]\ntotal_steps = {total_steps}\nwarmup_steps = 10\n\
         [data]\nvalidation_fraction = 0.25\nvalidation_sequences = 50\n{data}"
    )
}

/// In a folder of its own each time: other data is another run, which a folder of the first would refuse.
fn train_two(folder: &Path, run_file: &str, data: &[PathBuf]) -> std::process::Output {
    let _ = std::fs::remove_dir_all(folder.join("swarm"));
    let mut command = local();
    command.args(["-n", "2", "--format", "json", "--directory"]).arg(folder.join("swarm"));
    output_of(command.arg(run_file).arg("--data").args(data))
}

fn assert_both_classify(output: std::process::Output) {
    let lines = succeeded(&output);
    let last: Value = serde_json::from_str(lines.lines().last().expect("lines")).expect("JSON");
    let nodes = last["summary"]["nodes"].as_array().expect("an array");
    assert_eq!(nodes.len(), 2, "{last}");
    assert!(nodes.iter().all(|node| node["accuracy"].as_f64() > Some(0.95)), "{last}");
}

/// Neither node reads as much of one class as of another.
#[test]
fn a_swarm_learns_from_folders_of_images_of_which_its_nodes_see_unlike_shares() {
    let place = Place::new(&squares(600, "source = \"image-folders\"\nlabel_skew = 10.0\n"));
    let root = write_folders(place.path(), 200);
    assert_both_classify(train_two(place.path(), place.run_file(), std::slice::from_ref(&root)));

    std::fs::write(root.join("size-2/broken.png"), "no image").expect("written");
    let output = train_two(place.path(), place.run_file(), &[root]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("broken.png"), "{errors}");
}

#[test]
fn a_swarm_learns_to_classify_images_and_says_how_well() {
    let place = Place::new(&squares(300, "source = \"idx\"\n"));
    let paths = write_idx(place.path(), 200);
    assert_both_classify(train_two(place.path(), place.run_file(), &paths));

    let labels = std::fs::read(&paths[1]).expect("there");
    std::fs::write(&paths[1], &labels[..labels.len() - 1]).expect("written");
    let output = train_two(place.path(), place.run_file(), &paths);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{errors}");
    let told = "squares-labels.idx is not a whole IDX file: 199 bytes of values, but its header [200] says 200";
    assert!(errors.contains(told) && errors.contains("hint: fetch the file again"), "{errors}");
}

/// Even a killed parent leaves no daemons behind: their standard input ends with it.
#[cfg(unix)]
#[test]
fn no_daemon_outlives_its_parent() {
    let place = Place::new(TINY_RUN);
    let mut parent = local()
        .args(["-n", "2", "--format", "json", "--directory"])
        .arg(place.at("swarm"))
        .arg(place.run_file())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let lines = std::io::BufRead::lines(std::io::BufReader::new(parent.stdout.take().expect("a pipe")));
    let both_train = |line: &str| line.contains("\"node\":1") && line.contains("\"phase\":\"training\"");
    let found = lines.map_while(Result::ok).any(|line| both_train(&line));
    assert!(found, "the second daemon trains");
    parent.kill().expect("it runs");
    parent.wait().expect("it ends");
    // The lock of a data directory is free again once its daemon is gone.
    for node in ["node-0", "node-1"] {
        let lock = std::fs::File::open(place.at("swarm").join(node).join("lock")).expect("there");
        wait_until(&format!("the end of {node}"), || lock.try_lock().is_ok());
    }
}

#[test]
fn a_comparison_tells_the_speeds_that_the_tables_of_its_runs_tell() {
    let _turn = murmur_tests::turn::computes();
    let place = Place::new(&TINY_RUN.replace("100000", "120"));
    let directory = place.at("swarms").display().to_string();
    let arguments = [place.run_file(), "-n", "2", "--threads", "1", "--against", "alone", "--directory", &directory];
    let output = output_of(local().args(arguments).args(["--format", "json"]));
    let said = String::from_utf8_lossy(&output.stdout);
    let objects: Vec<Value> = said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let tables: Vec<f64> = objects
        .iter()
        .filter_map(|object| object["summary"]["nodes"].as_array())
        .map(|nodes| nodes.iter().filter_map(|node| node["tokens_per_second"].as_f64()).sum())
        .collect();
    assert_eq!(tables.len(), 6, "three seeds, of both kinds: {}", String::from_utf8_lossy(&output.stderr));
    let compared = objects.iter().find_map(|object| object.get("against_alone")).expect("a comparison");
    for (first, kind) in ["together", "alone"].into_iter().enumerate() {
        let mean = tables.iter().skip(first).step_by(2).sum::<f64>() / 3.0;
        let told = compared["tokens_per_second"][kind].as_f64().expect("a number");
        assert!(mean > 0.0 && (told / mean - 1.0).abs() < 1e-9, "{kind}: {told}, and {mean} in the tables");
    }
}
