//! `murmur sim` as its users meet it: through the binary, with right and wrong input, and with Ctrl-C in the middle.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Output, Stdio};

use murmur_tests::{TINY_RUN, folder, murmur, run, write_run};

use crate::MURMUR;

/// Six nodes for twenty seconds: a fraction of a second of real time.
const SMALL: &str = "[swarm]\nnodes = [4, 6]\nparameters = 20\n[phases]\nfaults_seconds = 10\ncalm_seconds = 40\n";

/// No swarm agrees to the last bit.
const IMPOSSIBLE: &str = "[checks]\ndisagreement_max = 1e-300\n";

fn file(folder: &Path, content: &str) -> String {
    let path = folder.join("mine.toml");
    std::fs::write(&path, content).expect("written");
    path.to_str().expect("UTF-8").to_owned()
}

fn simulate(arguments: &[&str]) -> Output {
    run(MURMUR, &[&["sim"], arguments].concat())
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Exit code and message of a command that must fail.
fn failure(arguments: &[&str]) -> (i32, String) {
    let output = simulate(arguments);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!message.contains("panicked"), "{message}");
    (output.status.code().expect("it ended by itself"), message)
}

/// The same for a scenario file of this content.
fn refused(content: &str) -> String {
    let folder = folder();
    let path = file(folder.path(), content);
    let (code, message) = failure(&["run", &path, "--seed", "1"]);
    assert_eq!(code, 3, "{message}");
    message.replace(&folder.path().display().to_string(), "…")
}

#[test]
fn a_run_passes_its_checks_and_writes_results_plots_and_a_summary() {
    let folder = folder();
    let path = file(folder.path(), SMALL);
    let output_folder = folder.path().join("new/results");
    let output = simulate(&["run", &path, "--seeds", "3..6", "--output", output_folder.to_str().expect("UTF-8")]);
    assert!(output.status.success(), "{output:?}");
    let text = stdout(&output);
    assert_eq!(text.matches("checks hold").count(), 3, "{text}");
    assert!(text.contains("converged                 3     0"), "{text}");
    for plot in ["loss.svg", "disagreement.svg", "traffic.svg", "members.svg"] {
        let svg = std::fs::read_to_string(output_folder.join(plot)).expect("written");
        assert!(svg.starts_with("<svg") && svg.contains("simulated seconds") && !svg.contains("NaN"), "{plot}");
    }
    let results = std::fs::read_to_string(output_folder.join("results.json")).expect("written");
    let results: serde_json::Value = serde_json::from_str(&results).expect("JSON");
    assert_eq!(results["seeds"].as_array().map(Vec::len), Some(3));
    assert!(output_folder.join("summary.txt").exists());
    let page = std::fs::read_to_string(output_folder.join("index.html")).expect("written");
    assert!(page.contains("All 3 seeds hold their checks.") && page.contains("phase of faults</title>"), "{page}");
    assert!(page.contains(&format!("<code>murmur sim run {path} --seeds 3..6</code>")), "{page}");
    let series = std::fs::read_to_string(output_folder.join("series.csv")).expect("written");
    let seeds = results["seeds"].as_array().into_iter().flatten();
    let points: usize = seeds.filter_map(|seed| seed["series"].as_array()).map(Vec::len).sum();
    assert_eq!(series.lines().count(), 1 + points);
}

#[test]
fn values_that_are_set_are_run_in_every_combination_and_a_seed_of_one_again() {
    let folder = folder();
    let path = file(folder.path(), &format!("{SMALL}{IMPOSSIBLE}"));
    let output_folder = folder.path().join("sweep");
    let to = output_folder.to_str().expect("UTF-8");
    let set = ["--set", "gossip.gamma=0.3,[0.4, 0.5]", "--set", "swarm.nodes=4"];
    let output = simulate(&[&["run", &path, "--seeds", "0..2", "--output", to], &set[..]].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = stdout(&output);
    assert!(text.contains("gossip.gamma=0.3 swarm.nodes=4\n") && text.contains("gossip.gamma  seeds  fail"), "{text}");
    let page = std::fs::read_to_string(output_folder.join("index.html")).expect("written");
    let again = format!("murmur sim run {path} --seeds 0..2 --set 'gossip.gamma=0.3,[0.4, 0.5]' --set swarm.nodes=4");
    assert!(page.contains("In 2 of 2 combinations a seed fails a check.") && page.contains(&again), "{page}");
    let below = output_folder.join("02-gossip.gamma=_0.4__0.5__swarm.nodes=4");
    let results = std::fs::read_to_string(below.join("results.json")).expect("written");
    let results: serde_json::Value = serde_json::from_str(&results).expect("JSON");
    assert_eq!(results["settings"][0], serde_json::json!(["gossip.gamma", "[0.4, 0.5]"]));
    let table = std::fs::read_to_string(output_folder.join("sweep.csv")).expect("written");
    assert_eq!(table.lines().count(), 1 + 2 * 2, "{table}");

    let replay = format!("murmur sim replay {path} --seed 1 --set 'gossip.gamma=[0.4, 0.5]' --set swarm.nodes=4");
    assert!(text.contains(&replay), "{text}");
    let replayed =
        simulate(&["replay", &path, "--seed", "1", "--set", "gossip.gamma=[0.4, 0.5]", "--set", "swarm.nodes=4"]);
    let drawn = stdout(&replayed).lines().any(|line| line.starts_with("drawn   gossip.gamma = 0.4"));
    assert!(drawn, "{}", stdout(&replayed));

    let refused = |set: &str| failure(&["run", &path, "--set", set]);
    let (code, message) = refused("gossip.gama=1");
    assert!(code == 3 && message.contains("--set:1: unknown key `gama`") && message.contains("`gamma`"), "{message}");
    let (code, message) = refused("gossip.gamma=7");
    assert!(code == 3 && message.contains("--set: gossip.gamma = 7 is out of range"), "{message}");
    assert_eq!(refused("gossip.gamma").0, 2);
    assert_eq!(failure(&["replay", &path, "1", "--set", "swarm.nodes=4,5"]).0, 2);
}

#[test]
fn json_has_one_object_a_line_and_nothing_else() {
    let folder = folder();
    let path = file(folder.path(), SMALL);
    let output = simulate(&["run", &path, "--seeds", "0..2", "--format", "json"]);
    let lines: Vec<serde_json::Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert_eq!(lines[1]["seed"]["seed"], 1);
    assert!(lines[1]["seed"]["verdicts"].as_array().is_some_and(|verdicts| verdicts.len() > 5));
    assert_eq!(lines[2]["finished"]["seeds_failed"], serde_json::json!([]));
}

#[test]
fn a_seed_that_fails_names_its_replay_and_the_replay_shows_why() {
    let folder = folder();
    let path = file(folder.path(), &format!("{SMALL}{IMPOSSIBLE}"));
    let output = simulate(&["run", &path, "--seeds", "0..2", "--nodes", "5"]);
    assert_eq!(output.status.code(), Some(1));
    let replay = format!("murmur sim replay {path} --seed 1 --nodes 5");
    assert!(stdout(&output).contains(&replay), "{}", stdout(&output));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("error: 2 of 2 seeds fail a check"), "{message}");
    let arguments: Vec<&str> = replay.split(' ').skip(2).collect();
    let replayed = simulate(&arguments);
    assert_eq!(replayed.status.code(), Some(1));
    let text = stdout(&replayed);
    assert!(text.contains("averaged with node"), "{text}");
    assert!(text.contains("FAILS   converged: a model is"), "{text}");
    assert!(text.contains("holds   exactly once"), "{text}");
}

#[test]
fn a_replay_takes_its_seed_in_every_shape_and_shows_what_was_drawn() {
    let folder = folder();
    let path = file(folder.path(), SMALL);
    let by_option = stdout(&simulate(&["replay", &path, "--seed", "4"]));
    assert!(by_option.starts_with("drawn   swarm.nodes = "), "{by_option}");
    let timeless = |text: &str| text.lines().filter(|line| !line.contains(" s")).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(timeless(&by_option), timeless(&stdout(&simulate(&["replay", &path, "4"]))));
    let (code, message) = failure(&["replay", &path]);
    assert_eq!(code, 3);
    assert!(message.contains("which seed"), "{message}");
}

#[test]
fn one_seed_is_one_run() {
    let folder = folder();
    let path = file(folder.path(), SMALL);
    let output = simulate(&["check-determinism", &path, "--seed", "2"]);
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).contains("two runs, the same"), "{}", stdout(&output));
}

#[test]
fn a_comparison_shows_ratios_to_the_first_of_scenarios_and_results() {
    let folder = folder();
    let path = file(folder.path(), SMALL);
    let results = folder.path().join("results");
    let results = results.to_str().expect("UTF-8");
    assert!(simulate(&["run", &path, "--seeds", "0..2", "--output", results]).status.success());
    let output = simulate(&["compare", results, &path, "--seeds", "0..2"]);
    assert!(output.status.success(), "{output:?}");
    let loss = stdout(&output).lines().find(|line| line.starts_with("loss, mean")).map(str::to_owned);
    assert!(loss.as_ref().is_some_and(|line| line.ends_with("×1.000")), "{loss:?}");
    let says_seeds_differ = |output: &Output| String::from_utf8_lossy(&output.stderr).contains("of different seeds");
    assert!(!says_seeds_differ(&output), "{output:?}");
    assert!(says_seeds_differ(&simulate(&["compare", results, &path, "--seeds", "0..1"])));
}

/// A pipe that is closed ends neither the work nor what it is to write.
#[test]
fn what_a_replay_or_a_comparison_is_to_write_is_written_though_nobody_reads_on() {
    let folder = folder();
    let path = file(folder.path(), SMALL);
    let output = folder.path().join("output");
    let output = output.to_str().expect("UTF-8");
    for (arguments, written) in [
        (&["replay", &path, "--seed", "1", "--output", output][..], "index.html"),
        (&["compare", &path, &path, "--seeds", "0..2", "--output", output], "comparison.json"),
    ] {
        let mut child = murmur(MURMUR).arg("sim").args(arguments).stdout(Stdio::piped()).spawn().expect("it starts");
        drop(child.stdout.take());
        assert!(child.wait().expect("it ends").success(), "{arguments:?}");
        assert!(folder.path().join("output").join(written).exists(), "{written}");
    }
}

#[test]
fn a_comparison_of_runs_that_fail_a_check_fails() {
    let folder = folder();
    let path = file(folder.path(), &format!("{SMALL}{IMPOSSIBLE}"));
    let (code, message) = failure(&["compare", "calm", &path, "--nodes", "2", "--seeds", "0..2"]);
    assert!(code == 1 && message.contains("2 seeds of these runs failed a check"), "{code}: {message}");
    assert!(message.contains("hint: murmur sim replay"), "{message}");
}

#[test]
fn every_built_in_scenario_is_listed_and_shown() {
    let list = stdout(&simulate(&["list"]));
    assert_eq!(list.lines().count(), 9, "{list}");
    assert!(stdout(&simulate(&["show", "churn"])).contains("every_rounds = 5"));
}

#[test]
fn wrong_scenarios_are_refused_with_place_and_remedy() {
    let unknown = refused("[network]\nlos = 0.1\n");
    let expected = "error: …/mine.toml:2: unknown key `los`\n  2 | los = 0.1\n    | ^^^\nhint: did you mean `loss`?\n";
    assert_eq!(unknown, expected);
    for nothing in ["", "# to do\n"] {
        let message = refused(nothing);
        assert!(message.starts_with("error: …/mine.toml is no scenario: it sets nothing\nhint: "), "{message}");
    }
    let word = refused("[swarm]\nnodes = \"many\"\n");
    assert!(word.contains("…/mine.toml:2: swarm.nodes") && word.contains("murmur sim show everything"), "{word}");
    let backwards = refused("[swarm]\nnodes = [64, 16]\n");
    assert!(
        backwards.contains("…/mine.toml:2: swarm.nodes: the range [64, 16] is the wrong way round; write [16, 64]"),
        "{backwards}"
    );
    let share = refused("[crashes]\n\nshare = 1.2\n");
    assert_eq!(share, "error: …/mine.toml:3: crashes.share = 1.2 is out of range\nhint: it takes 0 to 1\n");
    let groups = refused("[swarm]\nnodes = 4\n[partition]\ngroups = 5\n");
    assert!(groups.contains("mine.toml:4: partition.groups = 5"), "{groups}");
    assert!(groups.contains("hint: swarm.nodes = 4"), "{groups}");
    let late = refused("[pauses]\nat_seconds = 90\n");
    assert!(late.contains("faults end at phases.faults_seconds = 60"), "{late}");
    let huge = refused("[swarm]\nnodes = 4000\nparameters = 50_000_000\n");
    assert!(huge.contains("of memory; the most is 8.00 GB") && huge.contains("hint: lower swarm.nodes"), "{huge}");
}

#[test]
fn wrong_arguments_are_refused_before_any_work() {
    let (code, message) = failure(&["run", "chrun"]);
    assert_eq!((code, message.as_str()), (3, "error: there is no scenario `chrun`\nhint: did you mean `churn`?\n"));
    let (code, message) = failure(&["run", "absent.toml"]);
    assert_eq!(code, 3);
    assert!(message.contains("cannot read the scenario file absent.toml"), "{message}");
    for range in ["5..5", "7..3"] {
        let (code, message) = failure(&["run", "calm", "--seeds", range]);
        assert_eq!(code, 2);
        assert!(message.contains("there is no seed in it"), "{message}");
    }
    for nodes in ["0", "1", "4097"] {
        let (code, message) = failure(&["run", "calm", "--nodes", nodes]);
        assert_eq!(code, 2);
        assert!(message.contains("--nodes <N>': it takes a whole number from 2 to 4096"), "{message}");
    }
    // No seed comes after it, so that no range has it.
    for arguments in [&["run", "calm", "--seed"][..], &["replay", "calm"]] {
        let (code, message) = failure(&[arguments, &["18446744073709551615"]].concat());
        assert!(code != 0 && message.contains("0 to 18446744073709551614"), "{code}: {message}");
    }
    let (code, message) = failure(&["run", "calm", "--set", "gossip.kind=pair"]);
    assert!(code == 3 && message.contains("pair") && !message.contains("list"), "{message}");
    let (code, message) = failure(&["run", "calm", "--set", "swarm.nodes=1"]);
    assert_eq!(
        (code, message.as_str()),
        (3, "error: --set: swarm.nodes = 1 is out of range\nhint: it takes 2 to 4096\n")
    );
    let folder = folder();
    let taken = file(folder.path(), "");
    let (code, message) = failure(&["run", "calm", "--output", &taken]);
    assert_eq!(code, 5);
    assert!(message.contains("cannot write") && message.contains("--output"), "{message}");
    let (code, message) = failure(&["compare", "calm", folder.path().to_str().expect("UTF-8")]);
    assert_eq!(code, 5, "{message}");
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_writes_what_it_has_and_exits_130() {
    let folder = folder();
    let path = file(folder.path(), SMALL);
    let results = folder.path().join("results");
    let mut child = murmur(MURMUR)
        .args(["sim", "run", &path, "--seeds", "0..100000", "--format", "json", "--output"])
        .arg(&results)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    // The first seed has ended: the run is under way.
    lines.next().expect("a line").expect("UTF-8");
    let interrupt = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(interrupt.is_ok_and(|status| status.success()));
    let last = lines.map_while(Result::ok).last().expect("more lines");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("error: interrupted: "), "{message}");
    let last: serde_json::Value = serde_json::from_str(&last).expect("JSON");
    assert_eq!(last["finished"]["interrupted"], true);
    let written = std::fs::read_to_string(results.join("results.json")).expect("written");
    let written: serde_json::Value = serde_json::from_str(&written).expect("JSON");
    let ended = written["seeds"].as_array().map_or(0, Vec::len);
    assert!(ended >= 1 && written["interrupted"] == true, "{ended}");
}

/// The second combination would take as long as anybody waits.
#[cfg(unix)]
#[test]
fn a_combination_that_is_interrupted_before_a_seed_has_ended_is_no_row() {
    let folder = folder();
    let (path, results) = (file(folder.path(), SMALL), folder.path().join("results"));
    let set = "phases.calm_seconds=40,100000";
    let mut child = murmur(MURMUR)
        .args(["sim", "run", &path, "--seeds", "0..1", "--set", set, "--output"])
        .arg(&results)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
    lines.by_ref().find(|line| line.ends_with("=100000")).expect("the second one begins");
    let interrupt = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(interrupt.is_ok_and(|status| status.success()));
    let shown: Vec<String> = lines.collect();
    let output = child.wait_with_output().expect("it ends");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(130) && message.contains("in combination 2 of 2"), "{message}");
    assert!(!shown.iter().any(|line| line.contains("no number") || line.contains("NaN")), "{shown:?}");
    let page = std::fs::read_to_string(results.join("index.html")).expect("written");
    assert!(page.contains("Interrupted: ") && !page.contains("NaN"), "{page}");
}

/// Where nobody reads on, `head` for example, the files that were asked for are written all the same.
#[cfg(unix)]
#[test]
fn files_are_written_without_a_reader_of_the_output() {
    let folder = folder();
    let (path, run_file) = (file(folder.path(), SMALL), write_run(folder.path(), TINY_RUN));
    let run_file = run_file.to_str().expect("UTF-8");
    let swept = ["sim", "run", &path, "--seeds", "0..4"];
    let compared = ["compare", run_file, "--nodes", "2", "--seeds", "1", "--steps", "4", "--methods", "ring,alone"];
    for (arguments, written) in [(&swept[..], "results.json"), (&compared, "report.html")] {
        let results = folder.path().join(written);
        let mut child = murmur(MURMUR)
            .args(arguments)
            .arg("--output")
            .arg(&results)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        drop(child.stdout.take());
        let status = child.wait().expect("it ends");
        assert!(status.success() && results.join(written).exists(), "{arguments:?}: {status}");
    }
}

/// `murmur compare` of three nodes on links that cost nothing. Of a tiny model: what is computed is not looked at.
fn compare(folder: &Path, methods: &str, more: &[&str]) -> Output {
    let run_file = write_run(folder, TINY_RUN);
    let output_folder = folder.join("results");
    let [run_file, output_folder] = [&run_file, &output_folder].map(|path| path.to_str().expect("UTF-8"));
    let always = ["compare", run_file, "--nodes", "3", "--seeds", "1", "--links", "lan", "--output", output_folder];
    run(MURMUR, &[&always[..], &["--methods", methods], more].concat())
}

#[test]
fn a_comparison_writes_a_page_that_needs_nothing_else() {
    let folder = folder();
    let output_folder = folder.path().join("results");
    let output = compare(folder.path(), "ring,gossip", &["--steps", "6", "--faults", "kill"]);
    assert!(output.status.success(), "{output:?}");
    let text = stdout(&output);
    assert!(text.starts_with("On lan links with 3 nodes ") && text.contains("busiest node"), "{text}");
    let page = std::fs::read_to_string(output_folder.join("report.html")).expect("written");
    for part in ["prefers-color-scheme: dark", "<svg", "What was simulated", "--nodes 3 --steps 6", "In this run: "] {
        assert!(page.contains(part), "{part} is missing");
    }
    for part in ["<script", "NaN", "inf ", "src=", "href=\"http"] {
        assert!(!page.contains(part), "{part} is there");
    }
    let curves = std::fs::read_to_string(output_folder.join("curves.csv")).expect("written");
    assert!(curves.lines().count() > 20 && curves.lines().all(|line| line.split(',').count() == 9), "{curves}");
    assert!(output_folder.join("summary.txt").exists());
}

#[test]
fn a_comparison_of_what_there_is_not_ends_in_one_line_with_a_hint() {
    let folder = folder();
    let links = file(folder.path(), "up_mbit = 10\ndown_mbit = 0\nlatency_ms = 3\n");
    let book = folder.path().join("book.txt");
    std::fs::write(&book, "Once upon a time\n").expect("written");
    let (book, of_links) = (book.to_str().expect("UTF-8"), "a file of links holds up_mbit = 10, down_mbit = 50, ");
    let cases: [(&[&str], i32, &str, &str); 11] = [
        (&["--faults", "none,kill"], 2, "`none` and a fault", "leave `none` out"),
        (&["--methods", "rign"], 2, "there is no method `rign`", "did you mean `ring`?"),
        (&["--faults", "kil"], 2, "there is no fault `kil`", "did you mean `kill`?"),
        (&["--links", "moon"], 3, "there are no links `moon`", "lan, home or world"),
        (&["--links", &links], 3, ":2: down_mbit = 0 is out of range", "it takes 0.01 to 1000000"),
        (&["--links", book], 3, "book.txt:1: ", of_links),
        (&["--speeds", "1,1,0.5", "--nodes", "2"], 2, "--speeds has 3 speeds, for 2 nodes", "repeated"),
        (&["--steps", "9223372036854775807"], 2, "--steps", "1 to 1000000000"),
        (&["--data", book], 5, "book.txt: ", "a longer text"),
        (&["--data", "/nowhere/book.txt"], 5, "/nowhere/book.txt", "plain text"),
        (&["/nowhere/run.toml"], 3, "/nowhere/run.toml", "hint: "),
    ];
    for (arguments, code, message, hint) in cases {
        let output = run(MURMUR, &[&["compare"], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(message) && said.contains(hint) && !said.contains("panicked"), "{arguments:?}: {said}");
    }
}

#[test]
fn every_method_is_explained_on_a_terminal() {
    let text = stdout(&run(MURMUR, &["compare", "--list"]));
    for method in
        ["gossip", "ring", "star", "tree", "halving-doubling", "ps-async", "diloco", "noloco", "ad-psgd", "alone"]
    {
        assert!(text.lines().any(|line| line.starts_with(&format!("{method} "))), "{method} is missing");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[cfg(unix)]
#[test]
fn a_comparison_that_is_interrupted_at_once_says_that_nothing_was_written_and_exits_130() {
    let folder = folder();
    let output = folder.path().join("comparison");
    let mut child = murmur(MURMUR)
        .args(["compare", "--steps", "100000", "--output"])
        .arg(&output)
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    // What it is about to do: it listens for signals from then on, or ends at once.
    lines.next().expect("a line").expect("UTF-8");
    let interrupt = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(interrupt.is_ok_and(|status| status.success()));
    let said: Vec<String> = lines.map_while(Result::ok).collect();
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert!(said.iter().any(|line| line.starts_with("error: ") && line.ends_with("nothing was written")), "{said:?}");
    assert!(said.iter().any(|line| line.starts_with("hint: fewer --methods")), "{said:?}");
    assert!(!output.exists());
}
