//! `--mlflow`: what real daemons send to a server that fails in every way, and to the real MLflow.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use murmur::observe::journal::{Reading, files_at};
use murmur::observe::{Body, Record};
use murmur::tracking::scalars::Thinning;
use murmur_tests::fake_mlflow::{Failure, FakeMlflow, Metric, Run, Store};
use murmur_tests::gaps::assert_never_waited_between;
use murmur_tests::{Daemon, Finished, TINY_RUN, at_once, text, wait_until, write_run};
use serde_json::{Value, json};

use super::python;
use crate::MURMUR;
use crate::place::Place;

/// The real server needs half a minute to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

fn lines_of(finished: &Finished) -> Vec<&str> {
    finished.errors.lines().filter(|line| !line.trim_start().starts_with("at ")).collect()
}

/// A port that was free a moment ago.
fn free_address() -> SocketAddr {
    std::net::TcpListener::bind(NOWHERE).and_then(|listener| listener.local_addr()).expect("a port")
}

/// What a server is to have of a node, by its journal.
fn told(root: &Path) -> BTreeMap<Metric, u64> {
    let mut thinning = Thinning::default();
    let mut session = 0;
    let mut metrics = BTreeMap::new();
    for Record { t, up, body, .. } in Reading::new(files_at(root).expect("a journal")) {
        match body {
            Body::Run(facts) if facts.session != session => {
                session = facts.session;
                thinning.begin();
            }
            Body::Sample(sample) => {
                for (name, value) in thinning.choose(up, &sample) {
                    metrics.insert((name.to_owned(), t, sample.steps as i64, value.to_bits()), 1);
                }
            }
            _ => {}
        }
    }
    metrics
}

fn only_run(store: &Store) -> &Run {
    assert_eq!((store.experiments.len(), store.runs.len()), (1, 1), "{store:?}");
    store.runs.values().next().expect("one")
}

#[test]
fn everything_is_there_once_whatever_fails() {
    let place = Place::new(TINY_RUN);
    let root = place.at("node");
    let (address, store) = (free_address(), Arc::new(Mutex::new(Store::default())));
    let url = format!("http://{address}/");
    let start =
        |name: &str| Daemon::spawn(MURMUR, &root, &["start", place.run_file(), "--mlflow", &url, "--name", name]);
    // Nobody is there at first.
    let daemon = start("one");
    daemon.wait_for_warning("training goes on");
    daemon.wait_for("steps", |report| report.steps > 0);
    let server = FakeMlflow::start(address, store.clone());
    wait_until("metrics", || server.store().runs.values().any(|run| run.metrics.len() > 20));
    daemon.wait_for_warning("MLflow answers again");

    server.store().failures = vec![Failure::Error, Failure::Lost, Failure::Slow, Failure::Lost];
    wait_until("failures", || server.store().failures.is_empty());
    // The server is killed, and started again.
    drop(server);
    let before = daemon.wait_for("a report", |_| true);
    daemon.wait_for("seconds alone", |report| report.seconds > before.seconds + 2.0 && report.steps > before.steps);
    let server = FakeMlflow::start(address, store.clone());
    let metrics = || store.lock().expect("no panic").runs.values().map(|run| run.metrics.len()).sum::<usize>();
    let count = metrics();
    wait_until("more metrics", || metrics() > count);
    // So is the daemon. The run goes on, although its owner has called it otherwise.
    daemon.kill();
    server.store().failures = vec![Failure::Lost];
    let daemon = start("two");
    wait_until("another process", || {
        server.store().runs.values().any(|run| run.tags.contains_key("restart.1.node.name"))
    });
    let finished = daemon.stop().in_order();

    let store = server.store();
    assert!(store.mistakes.is_empty(), "{:?}", store.mistakes);
    let run = only_run(&store);
    let expected = told(&root);
    assert!(expected.len() > 100, "{expected:?}");
    assert!(run.metrics.keys().eq(expected.keys()), "{} there, {} told", run.metrics.len(), expected.len());
    assert!(run.metrics.values().any(|count| *count > 1), "no answer was lost: the test tests nothing");
    assert_eq!((run.params["model.layers"].as_str(), run.params["node.name"].as_str()), ("1", "one"));
    assert_eq!((run.tags["restart.1.node.name"].as_str(), &run.info["run_name"]), ("two", &"one".into()));
    assert_eq!(run.info["status"], "KILLED");
    let warnings = lines_of(&finished).iter().filter(|line| line.starts_with("warning: MLflow")).count();
    assert!(warnings <= 1, "{}", finished.errors);
}

#[test]
fn a_complete_run_is_finished_there_and_its_model_is_the_checkpoint() {
    let place = Place::new(TINY_RUN);
    let root = place.at("node");
    let server = FakeMlflow::start(NOWHERE, Arc::default());
    server.store().refuses_params = true;
    let arguments = ["start", place.run_file(), "--mlflow", &server.url(), "--steps", "200", "--exit"];
    let finished = Daemon::spawn(MURMUR, &root, &arguments).wait_for_end().in_order();
    let store = server.store();
    let run = only_run(&store);
    assert_eq!(run.info["status"], "FINISHED", "{}", finished.errors);
    assert!(run.metrics.keys().eq(told(&root).keys()), "metrics are sent although parameters are refused");
    let said = finished.errors.lines().filter(|line| line.contains("does not take parameters")).count();
    assert!(run.params.is_empty() && said == 1, "{}", finished.errors);
    assert!(finished.errors.contains("the complete model is there"), "{}", finished.errors);
    let files: Vec<&String> = store.files.keys().collect();
    assert_eq!(files, ["0/run0/artifacts/model/model.safetensors"]);
    let model = fs::read(root.join("checkpoints/step-000000000200/model.safetensors")).expect("a checkpoint");
    assert!(store.files[files[0]] == model, "another model");
}

#[test]
fn a_model_that_cannot_be_stored_is_not_sent_again_at_once_but_when_the_node_is_started_again() {
    let place = Place::new(&TINY_RUN.replace("total_steps = 100000", "total_steps = 30"));
    let root = place.at("node");
    let server = FakeMlflow::start(NOWHERE, Arc::default());
    server.store().fails_files = true;
    let url = server.url();
    let arguments = ["start", place.run_file(), "--mlflow", &url];
    let daemon = Daemon::spawn(MURMUR, &root, &arguments);
    daemon.wait_for_warning("has not got the model: it has trouble of its own: 500");
    let before = daemon.wait_for("a report", |_| true);
    // Where it is tried again as metrics are, that is after one second and after three.
    daemon.wait_for("seconds", |report| report.seconds > before.seconds + 4.0);
    let finished = daemon.stop().in_order();
    assert_eq!(server.store().files_failed, 1, "{}", finished.errors);
    assert!(finished.errors.contains("starting this node again sends it"), "{}", finished.errors);
    // Of a run that is over there is no node any more.
    server.store().fails_files = false;
    let exit = [&arguments[..], &["--exit"]].concat();
    let finished = Daemon::spawn(MURMUR, &root, &exit).wait_for_end();
    assert!(finished.status.success() && finished.report.is_none(), "{}", finished.errors);
    assert_eq!(server.store().files.len(), 1, "{}", finished.errors);
}

/// The daemons' own lines go to their logs.
#[test]
fn a_local_swarm_says_where_its_runs_are_seen() {
    let place = Place::new(TINY_RUN);
    let server = FakeMlflow::start(NOWHERE, Arc::default());
    let mut command = murmur_tests::murmur(MURMUR);
    command.args(["local", place.run_file(), "-n", "2", "--steps", "30", "--mlflow", &server.url()]);
    command.arg("--directory").arg(place.at("swarm"));
    let output = murmur_tests::output_of(&mut command);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let url = server.url();
    let line = said.lines().find(|line| line.starts_with("MLflow has a run of each daemon in experiment "));
    assert!(line.is_some_and(|line| line.ends_with(&format!(" at {url}"))), "{said}");
    assert_eq!(server.store().runs.len(), 2, "{said}");
}

#[test]
fn wrong_addresses_are_named_in_a_line_with_a_hint_and_training_goes_on() {
    let place = Place::new(TINY_RUN);
    // The status page of a daemon answers 404 in its own way.
    let other = place.start("other", &[]);
    let no_mlflow = format!("http://{}", other.status_address());
    let silent = format!("http://me:secret@{}", free_address());
    let cases = [
        ("htp://127.0.0.1:5000", "is no address of an MLflow server", "http://127.0.0.1:5000"),
        (&no_mlflow, "is no MLflow: it answers 404", "tracking server"),
        (&silent, "does not answer", "does the server run?"),
    ];
    at_once(cases.into_iter().enumerate(), |(number, (url, what, hint))| {
        let root = place.at(format!("node-{number}"));
        let daemon = Daemon::spawn(MURMUR, &root, &["start", place.run_file(), "--mlflow", url]);
        daemon.wait_for_warning(hint);
        let steps = daemon.wait_for("a report", |_| true).steps;
        daemon.wait_for("steps", |report| report.steps > steps);
        let begin = Instant::now();
        let finished = daemon.stop();
        assert!(finished.status.success() && begin.elapsed() < Duration::from_secs(20), "{}", finished.errors);
        let said: Vec<&str> = finished.errors.lines().filter(|line| line.contains(what)).collect();
        assert_eq!(said.len(), 1, "{}", finished.errors);
        assert!(said[0].starts_with("warning: ") && said[0].ends_with("training goes on"), "{said:?}");
        assert!(!finished.errors.contains("secret"), "{}", finished.errors);
    });
}

#[test]
fn a_deleted_run_is_said_once_and_nothing_more_is_sent() {
    let place = Place::new(TINY_RUN);
    let server = FakeMlflow::start(NOWHERE, Arc::default());
    let root = place.at("node");
    let daemon = Daemon::spawn(MURMUR, &root, &["start", place.run_file(), "--mlflow", &server.url()]);
    wait_until("metrics", || server.store().runs.values().any(|run| !run.metrics.is_empty()));
    server.store().runs.clear();
    daemon.wait_for_warning("nothing more is sent");
    let requests = server.store().requests;
    let before = daemon.wait_for("a report", |_| true);
    // Longer than until the next look at the journal.
    daemon.wait_for("training", |report| report.steps > before.steps && report.seconds > before.seconds + 6.0);
    let finished = daemon.stop().in_order();
    assert_eq!(server.store().requests, requests);
    let said = finished.errors.lines().filter(|line| line.contains("has it no more")).count();
    assert!(said == 1 && finished.errors.contains("mlflow.json"), "{}", finished.errors);
}

#[test]
fn a_server_that_never_answers_holds_up_neither_training_nor_the_end() {
    let place = Place::new(TINY_RUN);
    // Connections wait for somebody who takes them.
    let silent = std::net::TcpListener::bind(NOWHERE).expect("a port");
    let url = format!("http://{}", silent.local_addr().expect("bound"));
    let root = place.at("node");
    let daemon = Daemon::spawn(MURMUR, &root, &["start", place.run_file(), "--mlflow", &url]);
    let before = daemon.wait_for("steps", |report| report.steps > 0);
    let after = daemon.wait_for("steps", |report| report.seconds > before.seconds + 3.0);
    assert_never_waited_between(&before, &after);
    let begin = Instant::now();
    let finished = daemon.with_patience(PATIENCE).stop();
    let took = begin.elapsed();
    // Twenty seconds, on a machine that does not stand still meanwhile.
    assert!(took < Duration::from_secs(120), "{took:?}: {}", finished.errors);
    assert!(finished.status.success(), "{:?} after {took:?}: {}", finished.status, finished.errors);
    assert!(finished.errors.contains("MLflow has not got everything"), "{}", finished.errors);
}

/// A real server with a database, ended with the value.
struct RealMlflow(Child);

impl Drop for RealMlflow {
    fn drop(&mut self) {
        // Its workers are in its process group.
        let _ = Command::new("kill").args(["-9", "--", &format!("-{}", self.0.id())]).status();
        let _ = self.0.wait();
    }
}

fn ask(url: &str, path: &str, body: Option<Value>) -> Option<Value> {
    let url = format!("{url}/api/2.0/mlflow/{path}");
    let answer = match body {
        Some(body) => ureq::post(&url).send_json(body),
        None => ureq::get(&url).call(),
    };
    answer.ok()?.body_mut().read_json().ok()
}

/// `None` where the package is not there.
fn real_mlflow(folder: &Path, address: SocketAddr) -> Option<RealMlflow> {
    use std::os::unix::process::CommandExt;
    let look = "import importlib.util as u, sys; sys.exit(not u.find_spec('mlflow'))";
    let known = Command::new(python()).args(["-c", look]).stderr(Stdio::null()).status();
    if !known.is_ok_and(|status| status.success()) {
        println!("skipped: {} has no mlflow", python());
        return None;
    }
    let log = fs::File::options().create(true).append(true).open(folder.join("server.log")).expect("written");
    let process = Command::new(python())
        .current_dir(folder)
        .args([
            "-m",
            "mlflow",
            "server",
            "--host",
            "127.0.0.1",
            "--port",
            &address.port().to_string(),
            "--workers",
            "1",
        ])
        .args(["--backend-store-uri", "sqlite:///mlflow.db", "--artifacts-destination", "files"])
        .env("MLFLOW_DISABLE_TELEMETRY", "true")
        .env("DO_NOT_TRACK", "true")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("one more"))
        .stderr(log)
        .spawn();
    Some(RealMlflow(process.expect("it was found")))
}

#[test]
fn the_real_mlflow_has_everything_once_although_it_was_killed() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let address = free_address();
    let url = format!("http://{address}");
    let is_up = || ureq::get(&format!("{url}/health")).call().is_ok();
    let Some(server) = real_mlflow(folder.path(), address) else { return };
    wait_until("the server", is_up);
    let run_file = write_run(folder.path(), TINY_RUN);
    let root = folder.path().join("node");
    let arguments = ["start", text(&run_file), "--mlflow", &url, "--name", "ä node"];
    let daemon = Daemon::spawn(MURMUR, &root, &arguments).with_patience(PATIENCE);
    daemon.wait_for_warning("mlflow      run ä node of experiment tiny");
    let sent = || fs::read_to_string(root.join("mlflow.json")).unwrap_or_default();
    let seq =
        || serde_json::from_str::<Value>(&sent()).ok().and_then(|sent| sent["journal"]["seq"].as_u64()).unwrap_or(0);
    wait_until("metrics", || seq() > 5);
    drop(server);
    daemon.wait_for_warning("training goes on");
    let server = real_mlflow(folder.path(), address);
    wait_until("the server", is_up);
    daemon.wait_for_warning("MLflow answers again");
    let before = seq();
    wait_until("more metrics", || seq() > before);
    daemon.kill();
    // The end of the run, with its model.
    let steps = ["--steps", "1", "--exit"];
    Daemon::spawn(MURMUR, &root, &[&arguments[..], &steps].concat()).wait_for_end().in_order();

    let experiment = ask(&url, "experiments/get-by-name?experiment_name=tiny", None).expect("an experiment");
    let id = experiment["experiment"]["experiment_id"].as_str().expect("an id").to_owned();
    let found = ask(&url, "runs/search", Some(json!({ "experiment_ids": [id] }))).expect("runs");
    assert_eq!(found["runs"].as_array().map(Vec::len), Some(1), "{found}");
    let run = &found["runs"][0];
    assert_eq!((&run["info"]["status"], &run["info"]["run_name"]), (&"FINISHED".into(), &"ä node".into()), "{run}");
    let run_id = run["info"]["run_id"].as_str().expect("an id");
    let expected = told(&root);
    let mut names: Vec<&String> = expected.keys().map(|(name, ..)| name).collect();
    names.dedup();
    for name in names {
        let path = format!("metrics/get-history?run_id={run_id}&metric_key={name}&max_results=20000");
        let history = ask(&url, &path, None).expect("a history");
        let mut there: Vec<(i64, i64, u64)> = history["metrics"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|metric| {
                let of = |name: &str| metric[name].as_i64().unwrap_or_default();
                (of("timestamp"), of("step"), metric["value"].as_f64().expect("a number").to_bits())
            })
            .collect();
        there.sort_unstable();
        let told =
            expected.keys().filter(|(other, ..)| other == name).map(|(_, time, step, value)| (*time, *step, *value));
        let mut told: Vec<(i64, i64, u64)> = told.collect();
        told.sort_unstable();
        assert_eq!(there, told, "{name}");
    }
    let params = run["data"]["params"].as_array().expect("parameters");
    assert!(params.contains(&json!({ "key": "model.layers", "value": "1" })), "{params:?}");
    let file = folder.path().join("files").join(&id).join(run_id).join("artifacts/model/model.safetensors");
    assert!(fs::metadata(&file).is_ok_and(|metadata| metadata.len() > 10_000), "{file:?}");
    drop(server);
}
