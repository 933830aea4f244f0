//! The dashboard of a real daemon: its routes by HTTP, and the page itself in a real browser where there is one.
//!
//! `MURMUR_TEST_PLAYWRIGHT` names a folder with `node_modules/playwright-core`; Chromium and node are found on the path.

mod shape;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use murmur_tests::{Daemon, TINY_RUN, write_run};
use serde_json::Value;

use crate::MURMUR;
use crate::place::Place;
use shape::Shapes;

/// For each thing that is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the browser may take for everything, on two busy cores.
const BROWSER_MAX: Duration = Duration::from_secs(480);

/// A name that would do something where it became markup; 32 bytes are the most.
const HOSTILE_NAME: &str = "<img src=x onerror=alert(1)>";

/// An answer: its status, its head in lower case, and its body.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

/// Asks as a browser does, with these headers beside `Host`.
fn ask(address: &str, path: &str, headers: &str) -> Answer {
    let host = if headers.contains("Host:") { String::new() } else { format!("Host: {address}\r\n") };
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\n{host}{headers}Connection: close\r\n\r\n").expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

fn json(address: &str, path: &str) -> Value {
    let answer = ask(address, path, "");
    serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{path}: {error}: {}", answer.body))
}

fn owner(daemon: &Daemon) -> String {
    let text = std::fs::read_to_string(daemon.directory.join("daemon.json")).expect("announced");
    let announced: Value = serde_json::from_str(&text).expect("JSON");
    format!("Authorization: Bearer {}\r\n", announced["token"].as_str().expect("a token"))
}

/// So many daemons of one closed run, in folders as `murmur local` has them. The second has the hostile name.
fn swarm(folder: &Path, nodes: usize) -> Vec<Daemon> {
    // It is not to end while somebody looks.
    let run_file = write_run(folder, &TINY_RUN.replace("total_steps = 100000", "total_steps = 10000000"));
    let start = ["start", run_file.to_str().expect("UTF-8"), "--closed", "--name", "attic"];
    let mut daemons = vec![Daemon::spawn(MURMUR, &folder.join("node-0"), &start)];
    let ticket = daemons[0].ticket();
    for (number, name) in (1..nodes).zip([HOSTILE_NAME, "cellar", "garden"]) {
        let join = ["join", &ticket, "--name", name];
        daemons.push(Daemon::spawn(MURMUR, &folder.join(format!("node-{number}")), &join));
    }
    daemons
}

/// Waits until an answer is as it should be.
fn wait_for(address: &str, path: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = json(address, path);
        if holds(&answer) {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}: {answer}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn every_answer_has_the_shape_that_the_openapi_file_says() {
    let _turn = murmur_tests::turn::computes();
    let folder = tempfile::tempdir().expect("a temporary directory");
    let daemons = swarm(folder.path(), 2);
    let address = daemons[0].status_address();
    let has_exchanged = |summary: &Value| {
        let member = &summary["peers"][0];
        summary["sample"]["ratio"].is_f64() && member["last"].is_object() && member["rate"].is_number()
    };
    wait_for(&address, "/api/v1/summary", "an exchange", has_exchanged);
    let shapes = Shapes::new(json(&address, "/api/v1/openapi.json"));
    let checked = [
        ("/api/v1/summary", "/api/v1/summary"),
        ("/api/v1/series", "/api/v1/series?metrics=loss,ratio,sent_per_second&window=0"),
        ("/api/v1/traffic", "/api/v1/traffic"),
        ("/api/v1/swarm", "/api/v1/swarm"),
        ("/api/v1/run", "/api/v1/run"),
        ("/api/v1/ticket", "/api/v1/ticket"),
        ("/api/v1/status", "/api/v1/status"),
        ("/api/v1/picture", "/api/v1/picture"),
        ("/healthz", "/healthz"),
        ("/readyz", "/readyz"),
    ];
    for (path, request) in checked {
        let answer = ask(&address, request, &owner(&daemons[0]));
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let body: Value = serde_json::from_str(&answer.body).expect("JSON");
        shapes.check(path, "200", &body);
    }
    let records = ask(&address, "/api/v1/records?after=0", "").body;
    assert!(records.lines().count() > 10, "{records}");
    for line in records.lines() {
        shapes.check_record(&serde_json::from_str(line).expect("JSON"));
    }
    let refused = [
        ("/api/v1/ticket", "/api/v1/ticket", "401"),
        ("/api/v1/series", "/api/v1/series?metrics=weather", "400"),
        ("/api/v1/series", "/api/v1/series?metrics=loss&window=x", "400"),
        ("/api/v1/records", "/api/v1/records?after=x", "400"),
    ];
    for (path, request, status) in refused {
        let answer = ask(&address, request, "");
        assert_eq!(answer.status.to_string(), status, "{request}: {}", answer.body);
        shapes.check(path, status, &serde_json::from_str(&answer.body).expect("JSON"));
    }
    let told: Vec<&str> = checked.iter().map(|(path, _)| *path).chain(["/api/v1/records", "/api/v1/stream"]).collect();
    for path in shapes.paths() {
        assert!(told.contains(&path.as_str()), "nothing asks for {path}");
    }
    // What members are told of is what they have: the two nodes know each other's exchanges.
    let graph = wait_for(&address, "/api/v1/swarm", "both nodes", |graph| {
        graph["whole"] == true && graph["nodes"].as_array().is_some_and(|nodes| nodes.len() == 2)
    });
    let (one, other) = (&graph["nodes"][0], &graph["nodes"][1]);
    assert_eq!(one["edges"][0]["partner"], other["peer"]);
    assert_eq!(other["edges"][0]["partner"], one["peer"]);
}

#[test]
fn answers_say_what_a_browser_may_do_and_other_names_hear_nothing() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let daemon = swarm(folder.path(), 1).remove(0);
    let address = daemon.status_address();
    let index = ask(&address, "/", "");
    assert!(index.status == 200 && index.head.contains("text/html"), "{}", index.head);
    let files: Vec<&str> = index.body.split('"').filter(|part| part.starts_with("/assets/")).collect();
    assert!(files.len() >= 3, "{files:?}");
    for path in files.iter().chain(&["/", "/favicon.ico", "/api/v1/summary", "/status", "/nothing", "/assets/../x"]) {
        let answer = ask(&address, path, "");
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
             img-src 'self' data:; ",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-",
        ] {
            assert!(answer.head.contains(header), "{path}: {header} is not in {}", answer.head);
        }
        assert!(!answer.head.contains("unsafe") && !answer.head.contains("access-control"), "{path}: {}", answer.head);
        let strange = ask(&address, path, "Host: evil.example\r\n");
        assert!(strange.status == 403 && !strange.body.contains("html"), "{path}: {}", strange.status);
        let foreign = ask(&address, path, "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: cors\r\n");
        assert_eq!(foreign.status, 403, "{path}");
    }
    let script = ask(&address, "/assets/main.js", "");
    assert!(script.head.contains("text/javascript"), "{}", script.head);
    let tag = script.head.lines().find_map(|line| line.strip_prefix("etag: ")).expect("a tag");
    let again = ask(&address, "/assets/main.js", &format!("If-None-Match: {tag}\r\n"));
    assert_eq!((again.status, again.body.as_str()), (304, ""));
}

#[test]
fn the_ticket_of_a_closed_run_is_told_to_its_owner_alone() {
    let place = Place::new(TINY_RUN);
    let arguments = ["start", place.run_file(), "--closed"];
    let daemon = place.spawn("node", &arguments);
    let address = daemon.status_address();
    for headers in ["", "Authorization: Bearer 00\r\n"] {
        let answer = ask(&address, "/api/v1/ticket", headers);
        assert_eq!(answer.status, 401);
        assert!(!answer.body.contains("murmur1"), "{}", answer.body);
    }
    let answer = ask(&address, "/api/v1/ticket", &owner(&daemon));
    let told: Value = serde_json::from_str(&answer.body).expect("JSON");
    assert_eq!(told["closed"], true);
    assert!(told["qr"]["path"].as_str().is_some_and(|path| path.len() > 1000), "{told}");
    let secret = std::fs::read_to_string(place.at("node/membership.secret")).expect("a secret");
    let ticket = told["ticket"].as_str().expect("a ticket");
    let parsed: murmur_protocol::Ticket = ticket.parse().expect("a sound one");
    assert_eq!(parsed.secret.expect("it holds the secret").to_text(), secret.trim());
    for page in ["/api/v1/run", "/api/v1/summary", "/api/v1/status", "/api/v1/picture", "/ticket"] {
        let body = ask(&address, page, "").body;
        assert!(!body.contains(secret.trim()) && !body.contains(ticket), "{page}");
    }
    let run = ask(&address, "/api/v1/run", "").body;
    assert!(run.contains("…/node"), "it tells where the checkpoints lie, without the folder: {run}");
    assert!(!run.contains(place.path().to_str().expect("UTF-8")), "it names a folder of its owner: {run}");
}

#[test]
fn a_stream_that_was_cut_goes_on_where_its_reader_was() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let daemon = swarm(folder.path(), 1).remove(0);
    let address = daemon.status_address();
    let read = |header: &str, events: usize| -> Vec<u64> {
        let mut stream = TcpStream::connect(&address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        write!(stream, "GET /api/v1/stream HTTP/1.1\r\nHost: {address}\r\n{header}\r\n").expect("sent");
        let mut text = String::new();
        let ids = |text: &str| -> Vec<u64> {
            text.split("\n\n").filter(|event| event.contains("data:")).filter_map(id_of).collect()
        };
        while ids(&text).len() < events {
            let mut bytes = [0; 4096];
            let length = stream.read(&mut bytes).expect("more within the time");
            assert!(length > 0, "it has ended: {text}");
            text.push_str(&String::from_utf8_lossy(&bytes[..length]));
        }
        ids(&text)
    };
    let first = read("", 3);
    let last = *first.last().expect("some");
    let then = read(&format!("Last-Event-ID: {last}\r\n"), 2);
    assert_eq!(then[..2], [last + 1, last + 2]);
    let ready = ask(&address, "/readyz", "");
    assert_eq!((ready.status, ask(&address, "/healthz", "").status), (200, 200), "{}", ready.body);
}

fn id_of(event: &str) -> Option<u64> {
    event.lines().find_map(|line| line.strip_prefix("id: "))?.trim().parse().ok()
}

#[test]
fn a_node_without_a_model_is_alive_and_not_ready() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let founder = Daemon::spawn(
        MURMUR,
        &folder.path().join("node-0"),
        &["start", write_run(folder.path(), TINY_RUN).to_str().expect("UTF-8")],
    );
    let bootstrap = founder.address();
    let joiner = Daemon::spawn(MURMUR, &folder.path().join("node-1"), &["join", "--bootstrap", &bootstrap]);
    let address = joiner.status_address();
    let probe = ask(&address, "/readyz", "");
    let phase = json(&address, "/healthz")["phase"].as_str().expect("a word").to_owned();
    assert!(probe.status == 503 || phase == "training", "{} while {phase}", probe.status);
    wait_for(&address, "/readyz", "a model", |probe| probe["ok"] == true && probe["phase"] == "training");
    assert_eq!(ask(&address, "/readyz", "").status, 200);
}

#[test]
fn the_scripts_of_the_page_do_what_their_tests_say() {
    let Ok(node) = Command::new("node").arg("--version").output() else {
        println!("skipped: there is no node");
        return;
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tests = Command::new("node");
    tests.arg(root.join("scripts/site.mjs")).arg(root.join("../daemon/src/web/site"));
    let output = tests.output().expect("node is there");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let version = String::from_utf8_lossy(&node.stdout);
    assert!(output.status.success() && said.matches("ok  ").count() == 7, "{version}{said}");
}

#[test]
fn a_live_swarm_is_seen_in_a_real_browser() {
    let Some(modules) = std::env::var_os("MURMUR_TEST_PLAYWRIGHT") else {
        println!("skipped: MURMUR_TEST_PLAYWRIGHT names no folder with node_modules/playwright-core");
        return;
    };
    for program in ["node", "chromium"] {
        if Command::new(program).arg("--version").output().is_err() {
            println!("skipped: there is no {program}");
            return;
        }
    }
    let folder = tempfile::tempdir().expect("a temporary directory");
    let daemons = swarm(folder.path(), 4);
    for daemon in &daemons {
        // They are to be looked at, and the browser draws by itself here: it goes first.
        let id = daemon.process_id().to_string();
        let _ = Command::new("renice").args(["-n", "15", "-p", &id]).output();
    }
    let address = daemons[0].status_address();
    wait_for(&address, "/api/v1/summary", "three members and an exchange", |summary| {
        summary["sample"]["peers"] == 3 && summary["sample"]["ratio"].is_f64()
    });
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/dashboard.cjs");
    let errors = folder.path().join("browser.log");
    let mut browser = Command::new("node")
        .arg(script)
        .args([address.as_str(), HOSTILE_NAME])
        .env("MURMUR_TEST_PLAYWRIGHT", modules)
        .env("MURMUR_TEST_TOKEN", owner(&daemons[0]).trim().trim_start_matches("Authorization: Bearer "))
        .stdout(std::fs::File::create(&errors).expect("a file"))
        .stderr(std::fs::File::options().append(true).open(&errors).expect("a file"))
        .spawn()
        .expect("node is there");
    let deadline = Instant::now() + BROWSER_MAX;
    let status = loop {
        if let Some(status) = browser.try_wait().expect("a child") {
            break status;
        }
        if Instant::now() > deadline {
            let _ = browser.kill();
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    let said = std::fs::read_to_string(&errors).unwrap_or_default();
    assert!(status.success(), "{said}");
    println!("{said}");
}
