//! Closed runs: who has the secret gets in, and nobody else, whatever they ask for.

use std::path::Path;

use super::*;

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
