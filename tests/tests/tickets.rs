//! Who gets in and who does not: closed runs, fresh tickets, and every kind of wrong ticket or address, each named with
//! its remedy and nothing left behind.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use murmur_protocol::{Secret, Ticket};
use murmur_tests::gaps::assert_never_waited;
use murmur_tests::{Daemon, TINY_RUN, at_once, end_of, folder, murmur, output_of, run, succeeded, text, write_run};

use crate::MURMUR;
use crate::place::Place;

fn founder(folder: &tempfile::TempDir, more: &[&str]) -> Daemon {
    let run_file = write_run(folder.path(), TINY_RUN);
    let mut arguments = vec!["start", run_file.to_str().expect("UTF-8")];
    arguments.extend(more);
    Daemon::spawn(MURMUR, &folder.path().join("founder"), &arguments)
}

/// A `join` that must fail: its exit code and message. Nothing may be left of it.
fn refused(folder: &tempfile::TempDir, arguments: &[&str]) -> (i32, String) {
    let data = folder.path().join("refused");
    let mut all = vec!["join"];
    all.extend(arguments);
    all.extend(["--data-dir", data.to_str().expect("UTF-8"), "--listen", "/ip4/127.0.0.1/tcp/0"]);
    all.extend(["--status-address", "off"]);
    let output = run(MURMUR, &all);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!message.contains("panicked"), "{message}");
    assert!(!data.exists(), "something was written: {message}");
    (output.status.code().expect("it ended by itself"), message)
}

fn ticket_of(daemon: &Daemon) -> Ticket {
    daemon.ticket().parse().expect("a ticket")
}

/// Everybody on a machine can read a unit and the arguments of a process.
#[test]
fn a_service_joins_a_closed_run_without_its_secret_among_the_arguments() {
    let folder = folder();
    let founder = founder(&folder, &["--closed"]);
    let node = folder.path().join("node");
    let directory = node.to_str().expect("UTF-8");
    let output = run(MURMUR, &["service", "--ticket", &founder.ticket(), "--data-dir", directory]);
    assert!(output.status.success(), "{output:?}");
    let unit = String::from_utf8(output.stdout).expect("text");
    let command = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    assert!(words[1].parse::<Ticket>().expect("a ticket").secret.is_none(), "{unit}");
    let secret = ticket_of(&founder).secret.expect("closed").to_text();
    assert!(!unit.contains(&secret), "{unit}");
    let data_dir = words.iter().position(|word| *word == "--data-dir").expect("whole paths");
    let arguments = [&words[..data_dir], &words[data_dir + 2..]].concat();
    let joined = Daemon::spawn(MURMUR, &node, &arguments);
    joined.wait_for("an exchange", |report| report.exchanges_completed > 0);
}

#[test]
fn a_closed_run_takes_in_ticket_holders_and_refuses_strangers() {
    let folder = folder();
    let founder = founder(&folder, &["--closed"]);
    let ticket = ticket_of(&founder);
    assert!(ticket.secret.is_some());
    let address = founder.address();

    let (code, message) = refused(&folder, &["--bootstrap", &address]);
    assert_eq!(code, 4);
    assert!(message.contains("takes part in a closed run: join with a ticket"), "{message}");
    assert!(message.contains("hint: ask a member for a ticket"), "{message}");
    assert!(!message.contains(&ticket.run.to_string()), "the run was told: {message}");

    let open = Ticket { secret: None, ..ticket.clone() };
    let (code, message) = refused(&folder, &[&open.to_string()]);
    assert_eq!(code, 4);
    assert!(message.contains("closed run"), "{message}");

    let wrong = Ticket { secret: Some(Secret::from_bytes([1; 32])), ..ticket.clone() };
    let (code, message) = refused(&folder, &[&wrong.to_string()]);
    assert_eq!(code, 4);
    assert!(message.contains("has another membership secret than this node"), "{message}");
    assert!(message.contains("hint: ask a member for a ticket"), "{message}");
    founder.wait_for_notice("is of another run, or has no ticket of this closed one");
    assert_eq!(founder.wait_for("a report", |_| true).peers, 0);

    let member = folder.path().join("member");
    let joined = Daemon::spawn(MURMUR, &member, &["join", &ticket.to_string()]);
    joined.wait_for("an exchange", |report| report.exchanges_completed > 0);
    let before = joined.stop().report.expect("it left in order");

    // It is a member still, by its data directory alone.
    let again = Daemon::spawn(MURMUR, &member, &["start"]);
    let after = again.wait_for("an exchange", |report| report.peers == 1 && report.exchanges_completed > 0);
    assert_eq!(after.peer, before.peer);
    assert!(ticket_of(&again).secret == ticket.secret, "its tickets are as good");
    again.stop();
    let again = Daemon::spawn(MURMUR, &member, &["join", "--bootstrap", &address]);
    again.wait_for("a peer", |report| report.peers == 1);
    is_private(&member.join("membership.secret"));
    is_private(&founder.directory.join("membership.secret"));
}

/// A secret of its own would part it from all others for good.
#[test]
fn who_joins_an_open_run_as_a_closed_one_is_refused() {
    let folder = folder();
    let founder = founder(&folder, &[]);
    let (code, message) = refused(&folder, &[&founder.ticket(), "--closed"]);
    assert!(code == 3 && message.contains("this run is open: --closed would part this node from it"), "{message}");
}

/// A ticket is asked for in another folder than that in which the daemon was started.
#[test]
fn a_ticket_of_a_closed_run_with_a_relative_folder_is_had_from_anywhere() {
    let folder = folder();
    let run_file = write_run(folder.path(), TINY_RUN);
    let mut start = murmur(MURMUR);
    start.args(["start", text(&run_file), "--closed"]).current_dir(folder.path());
    let daemon = Daemon::spawn_with(start, Path::new("node"));
    let address = daemon.status_address();
    let mut ask = murmur(MURMUR);
    ask.args(["ticket", "--address", &address]).current_dir("/");
    let line = succeeded(&output_of(&mut ask));
    assert!(line.trim().strip_prefix("murmur join ").is_some_and(|ticket| ticket.parse::<Ticket>().is_ok()), "{line}");
}

#[cfg(unix)]
fn is_private(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(path).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{}", path.display());
}

#[cfg(not(unix))]
fn is_private(_: &Path) {}

#[test]
fn a_fresh_ticket_comes_from_a_running_daemon_and_another_machine_joins_with_it() {
    for more in [&[] as &[&str], &["--closed"]] {
        let folder = folder();
        let founder = founder(&folder, more);
        let status = founder.status_address();
        let line = succeeded(&run(MURMUR, &["ticket", "--address", &status]));
        let ticket = line.trim().strip_prefix("murmur join ").expect("the line to type").to_owned();
        let output = run(MURMUR, &["ticket", "--address", &status, "--format", "json"]);
        let object: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!((object["ticket"].as_str(), object["join"].as_str()), (Some(&*ticket), Some(line.trim())));
        assert_eq!(object["closed"], !more.is_empty());
        let page: String = page(&status);
        assert!(more.is_empty() || !page.contains(&ticket), "the page gives no secret to other users: {page}");
        let joined = Daemon::spawn(MURMUR, &folder.path().join("joined"), &["join", &ticket]);
        joined.wait_for("a peer", |report| report.peers == 1);
    }
}

#[test]
fn an_identity_is_told_with_its_addresses_while_the_node_runs_and_without_them_afterwards() {
    let folder = folder();
    let founder = founder(&folder, &[]);
    let (peer, status, directory) =
        (ticket_of(&founder).peer.to_string(), founder.status_address(), founder.directory.clone());
    let directory = directory.to_str().expect("UTF-8");
    let id = |arguments: &[&str]| -> serde_json::Value {
        let output = run(MURMUR, &[&["id", "--format", "json"], arguments].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
    };
    for arguments in [&["--address", &*status] as &[&str], &[directory], &["--data-dir", directory]] {
        let told = id(arguments);
        assert_eq!((told["peer"].as_str(), told["addresses"][0].as_str()), (Some(&*peer), Some(&*founder.address())));
    }
    founder.stop();
    let told = id(&[directory]);
    assert_eq!((told["peer"].as_str(), told["addresses"].as_array().map(Vec::len)), (Some(&*peer), Some(0)));
    let missing = folder.path().join("missing");
    let output = run(MURMUR, &["id", missing.to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(5));
    assert!(!missing.exists(), "no identity is made up");
}

/// The ticket page as any program on this machine sees it.
fn page(address: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(b"GET /ticket HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("written");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

#[test]
fn a_ticket_where_no_daemon_answers_is_an_error_with_a_remedy() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let silent = server(b"SSH-2.0-something\r\n");
    let other = format!("127.0.0.1:{}", silent.port);
    for (address, problem) in [(free.to_string(), "no daemon answers at"), (other, "something answers at")] {
        let output = run(MURMUR, &["ticket", "--address", &address]);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(4), "{message}");
        assert!(message.starts_with(&format!("error: {problem} {address}")), "{message}");
        assert!(message.contains("hint: a running daemon prints its status address"), "{message}");
    }
}

#[test]
fn damaged_tickets_are_refused_before_anything_is_dialed_or_written() {
    let folder = folder();
    let founder = founder(&folder, &[]);
    let ticket = founder.ticket();
    let truncated = &ticket[..ticket.len() - 9];
    let swapped = format!("{}zz{}", &ticket[..20], &ticket[22..]);
    for damaged in [truncated, &swapped, "murmur1", &format!("{ticket}x")] {
        let (code, message) = refused(&folder, &[damaged]);
        assert_eq!(code, 3, "{message}");
        assert!(message.starts_with("error: the ticket is damaged"), "{message}");
        assert!(message.contains("hint: "), "{message}");
    }
}

#[test]
fn a_member_whose_manifest_is_not_that_of_the_ticket_is_refused() {
    let folder = folder();
    let founder = founder(&folder, &[]);
    let mut ticket = ticket_of(&founder);
    ticket.run.0[0] ^= 1;
    let (code, message) = refused(&folder, &[&ticket.to_string()]);
    assert_eq!(code, 4);
    assert!(message.contains("takes part in another run") && message.contains("in the ticket"), "{message}");
    assert!(message.contains("hint: ask for a fresh ticket"), "{message}");
}

/// A program that speaks something else, and counts who calls.
struct Server {
    port: u16,
    calls: Arc<AtomicUsize>,
}

/// Says `greeting` to whoever connects, then echoes.
fn server(greeting: &'static [u8]) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            counted.fetch_add(1, Ordering::Relaxed);
            std::thread::spawn(move || echo(stream, greeting));
        }
    });
    Server { port, calls }
}

fn echo(mut stream: TcpStream, greeting: &[u8]) {
    let mut buffer = [0; 1024];
    if stream.write_all(greeting).is_err() {
        return;
    }
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
}

#[test]
fn an_address_where_another_program_answers_is_named() {
    at_once([b"" as &'static [u8], b"HTTP/1.1 400 Bad Request\r\n\r\n"], |greeting| {
        let (folder, server) = (folder(), server(greeting));
        let address = format!("/ip4/127.0.0.1/tcp/{}", server.port);
        let (code, message) = refused(&folder, &["--bootstrap", &address]);
        assert_eq!(code, 4, "{message}");
        assert!(message.contains(&address) && message.contains("hint: "), "{message}");
        let calls = server.calls.load(Ordering::Relaxed);
        assert!((1..=2).contains(&calls), "asked once, and once more for what it is: {calls}");
    });
}

#[test]
fn an_address_that_never_works_is_dialed_ever_more_seldom() {
    let folder = folder();
    let server = server(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let address = format!("/ip4/127.0.0.1/tcp/{}", server.port);
    // A node that does not know its run yet needs an answer; this one has founded it.
    let first = founder(&folder, &[]);
    first.wait_for("a step", |report| report.steps > 0);
    assert!(first.stop().status.success());
    let daemon = founder(&folder, &["--bootstrap", &address]);
    daemon.wait_for("twenty seconds", |report| report.seconds >= 20.0);
    let calls = server.calls.load(Ordering::Relaxed);
    assert!((1..=8).contains(&calls), "{calls} dials in 20 s");
}

/// As on a machine that swaps, or has just woken.
#[test]
fn a_member_that_stands_still_for_some_seconds_is_asked_again() {
    let folder = folder();
    let founder = founder(&folder, &[]);
    let ticket = founder.ticket();
    founder.signal("STOP");
    let member = Daemon::spawn(MURMUR, &folder.path().join("member"), &["join", &ticket]);
    member.wait_for_warning("something takes connections there and says nothing");
    founder.signal("CONT");
    member.wait_for("a peer", |report| report.peers == 1);
}

#[test]
fn a_blocked_peer_is_refused_on_both_sides() {
    let folder = folder();
    let founder = founder(&folder, &[]);
    let member = Daemon::spawn(MURMUR, &folder.path().join("member"), &["join", &founder.ticket()]);
    let peer = member.wait_for("a peer", |report| report.peers == 1).peer;
    drop(member);
    let address = founder.address();
    founder.stop();
    let run_file = folder.path().join("run.toml");
    let arguments = ["start", run_file.to_str().expect("UTF-8"), "--block", &peer];
    let founder = Daemon::spawn(MURMUR, &folder.path().join("founder"), &arguments);
    assert_ne!(founder.address(), address, "any free port");
    let member = Daemon::spawn(MURMUR, &folder.path().join("member"), &["join", &founder.ticket()]);
    member.wait_for_notice("does not admit this node");
    founder.wait_for_notice("is not admitted here");
    assert_eq!(founder.wait_for("a report", |_| true).peers, 0);
}

#[test]
fn who_is_blocked_while_the_daemon_runs_stays_out_until_it_is_unblocked() {
    let folder = folder();
    let own = folder.path().join("founder");
    let first = founder(&folder, &[]);
    let typed = |command: &str, peer: &str| succeeded(&run(MURMUR, &[command, peer, "--run", text(&own)]));
    let join = |ticket: &str| Daemon::spawn(MURMUR, &folder.path().join("member"), &["join", ticket]);
    let member = join(&first.ticket());
    let peer = member.wait_for("a peer", |report| report.peers == 1).peer;
    assert!(typed("block", &peer[peer.len() - 8..]).contains(&peer));
    first.wait_for("nobody", |report| report.peers == 0);
    member.wait_for("nobody", |report| report.peers == 0);
    drop(member);
    first.stop();
    let second = founder(&folder, &[]);
    let member = join(&second.ticket());
    member.wait_for_notice("does not admit this node");
    assert_eq!(second.wait_for("a report", |_| true).peers, 0);
    assert_eq!(typed("unblock", &peer).trim(), "blocked      nobody");
    second.wait_for("the member", |report| report.peers == 1);
}

#[test]
fn whom_the_ticket_s_member_does_not_admit_finds_another_in_the_table_of_the_run() {
    let folder = folder();
    // Two members of which one admits only the other; in a run without lists they would be anybody.
    let other = founder(&folder, &[]);
    let admitted = other.wait_for("a report", |_| true).peer;
    let ticket = other.ticket();
    let strict = Daemon::spawn(MURMUR, &folder.path().join("strict"), &["join", &ticket, "--allow", &admitted]);
    strict.wait_for("an exchange", |report| report.exchanges_completed > 0);
    // Printed at its start, its ticket names nobody else.
    let newcomer = Daemon::spawn(MURMUR, &folder.path().join("newcomer"), &["join", &strict.ticket()]);
    newcomer.wait_for("an exchange", |report| report.exchanges_completed > 0);
    let said = newcomer.stop().errors;
    assert!(said.contains("does not admit this node") && said.contains("found       a member"), "{said}");
}

#[test]
fn a_member_in_quiet_hours_trains_alone_and_says_so() {
    let folder = folder();
    let founder = founder(&folder, &[]);
    let ticket = founder.ticket();
    let quiet = folder.path().join("quiet");
    // It has a model of its own first.
    let joined = Daemon::spawn(MURMUR, &quiet, &["join", &ticket]);
    joined.wait_for("an exchange", |report| report.exchanges_completed > 0);
    joined.stop();
    let resting = Daemon::spawn(MURMUR, &quiet, &["join", &ticket, "--quiet-hours", "00:00-24:00"]);
    let begun = resting.wait_for("a peer and rest", |report| report.peers == 1 && report.resting.is_some());
    assert_eq!(begun.resting.as_deref(), Some("quiet hours until 00:00 UTC"));
    let later = resting.wait_for("training", |report| report.steps > begun.steps + 100);
    assert!(later.exchanges_completed <= begun.exchanges_completed + 1, "one may have been under way: {later:?}");
    let text = succeeded(&run(MURMUR, &["status", "--address", &resting.status_address()]));
    assert!(text.contains("resting      quiet hours until 00:00 UTC"), "{text}");
}

#[test]
fn a_used_up_budget_is_remembered_over_a_restart() {
    let folder = folder();
    let founder = founder(&folder, &[]);
    let ticket = founder.ticket();
    let frugal = folder.path().join("frugal");
    // A model of this run and some exchanges take more.
    let arguments = ["join", &ticket, "--daily-gigabytes", "0.0005"];
    let joined = Daemon::spawn(MURMUR, &frugal, &arguments);
    let rested = joined.wait_for("the end of the budget", |report| report.resting.is_some());
    assert!(rested.bytes_today >= 500_000, "{rested:?}");
    joined.wait_for("training goes on", |report| report.steps > rested.steps + 100);
    joined.stop();
    let again = Daemon::spawn(MURMUR, &frugal, &arguments);
    let again = again.wait_for("rest", |report| report.resting.is_some());
    assert_eq!(again.resting.as_deref(), Some("daily budget used up until 00:00 UTC"));
    assert!(again.bytes_received < 100_000, "nothing large was asked for: {again:?}");
}

#[test]
fn two_members_on_capped_links_exchange_and_train() {
    let folder = folder();
    let caps = ["--upload-mbit", "0.4", "--download-mbit", "0.4"];
    let founder = founder(&folder, &caps);
    let ticket = founder.ticket();
    let mut arguments = vec!["join", &*ticket];
    arguments.extend(caps);
    let joined = Daemon::spawn(MURMUR, &folder.path().join("joined"), &arguments);
    let begun = joined.wait_for("an exchange", |report| report.exchanges_completed >= 1);
    let later = joined.wait_for("more of both", |report| {
        report.exchanges_completed >= begun.exchanges_completed + 5 && report.steps > begun.steps + 100
    });
    assert_never_waited(&later);
    let speed = later.bytes_sent as f64 / later.seconds;
    assert!(speed < 1.1 * 50_000.0, "{speed} bytes a second");
}

/// For people, so without `--format json`.
#[test]
fn what_a_node_will_send_in_a_day_is_told_before_it_begins_with_the_flags_that_cap_it() {
    let folder = folder();
    let endless = write_run(folder.path(), &TINY_RUN.replace("total_steps = 100000", "total_steps = 0"));
    let told = |name: &str, caps: &[&str]| {
        let mut command = murmur(MURMUR);
        command.arg("start").arg(&endless).arg("--data-dir").arg(folder.path().join(name)).args(caps);
        command.args(["--listen", "/ip4/127.0.0.1/tcp/0", "--status-address", "off", "--until-stdin-closes"]);
        let output = output_of(&mut command);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let (before, _) = errors.split_once("Others join with:").unwrap_or_else(|| panic!("it begins: {errors}"));
        before.lines().find(|line| line.starts_with("traffic ")).unwrap_or_else(|| panic!("{errors}")).to_owned()
    };
    let free = told("free", &[]);
    assert!(free.contains(" sent a day at this machine's pace") && free.contains("--upload-mbit"), "{free}");
    // A fifth of a megabit a second is 2.16 GB a day, less than any machine's pace would make of this run.
    let capped = told("capped", &["--upload-mbit", "0.2"]);
    assert!(capped.contains("up to 2.16 GB sent a day") && capped.contains("with --upload-mbit"), "{capped}");
    // A run that is over sooner: a node's own steps end it as well.
    let short = told("short", &["--steps", "10"]);
    assert!(short.contains("about ") && short.contains(" kB sent in the whole run, and "), "{short}");
}

/// Arguments of a command can be read by everybody on a machine.
#[cfg(unix)]
#[test]
fn a_ticket_comes_from_standard_input_and_keys_are_their_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new(TINY_RUN);
    let directory = place.at("founder");
    let arguments = ["start", place.run_file(), "--closed"];
    Daemon::spawn(MURMUR, &directory, &arguments).wait_for("a step", |report| report.steps > 0);
    let keys = ["identity.key", "membership.secret"].map(|name| directory.join(name));
    for key in &keys {
        std::fs::set_permissions(key, PermissionsExt::from_mode(0o644)).expect("it is there");
    }
    let founder = Daemon::spawn(MURMUR, &directory, &["start"]);
    let ticket = founder.ticket();
    for key in &keys {
        founder.wait_for_warning(&format!("warning: {} could be read by others", key.display()));
        assert_eq!(std::fs::metadata(key).expect("there").permissions().mode() & 0o777, 0o600);
    }
    let join = |input: &str, more: &[&str]| {
        let file = place.at("ticket");
        std::fs::write(&file, input).expect("written");
        let mut command = murmur(MURMUR);
        command.args(["join", "-", "--listen", "/ip4/127.0.0.1/tcp/0", "--status-address", "off", "--data-dir"]);
        command.arg(place.at("member")).args(more).stdin(std::fs::File::open(&file).expect("there"));
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let output = end_of(command.spawn().expect("the program starts"));
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (code, said) = join(&format!("{ticket}\n"), &["--steps", "1", "--exit"]);
    assert!(code == Some(0) && said.contains("took over the model"), "{said}");
    let (code, said) = join("", &[]);
    assert!(code == Some(2) && said.contains("there is no ticket on standard input"), "{said}");
}

#[test]
fn who_joins_before_the_other_machine_is_ready_tries_again_and_says_so() {
    let folder = folder();
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
    let address = format!("/ip4/127.0.0.1/tcp/{port}");
    let early = Daemon::spawn(MURMUR, &folder.path().join("early"), &["join", "--bootstrap", &address]);
    early.wait_for_warning("nobody listens there (connection refused); trying again in 1 s");
    let founder = founder(&folder, &["--listen", &address]);
    early.wait_for("an exchange", |report| report.exchanges_completed > 0);
    assert!(early.stop().status.success() && founder.stop().status.success());
}
