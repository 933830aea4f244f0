//! The live view on a real terminal.

use std::path::Path;
use std::time::{Duration, Instant};

use murmur_tests::terminal::Terminal;
use murmur_tests::{TINY_RUN, wait_until, write_run};

use crate::MURMUR;
use crate::place::Place;

/// Waits until the view has been drawn some times more, and gives what is shown then.
fn wait_for_drawings(terminal: &Terminal, what: &str) -> String {
    let mut last = terminal.wait_for(what, |shown| shown.contains(" % ") && tables(shown) > 0);
    for _ in 0..6 {
        last = terminal.wait_for(what, |shown| *shown != last);
    }
    last
}

/// Titles of the table: one for each drawing that was not drawn over.
fn tables(shown: &str) -> usize {
    shown.lines().filter(|line| line.starts_with("node ") && line.contains("own")).count()
}

#[test]
fn the_view_does_not_pile_up_with_more_daemons_than_rows_nor_when_the_terminal_changes() {
    let place = Place::new(TINY_RUN);
    let swarm = place.at("swarm");
    let command = format!("{MURMUR} local -n 8 --threads 1 --directory {} {}; cat", swarm.display(), place.run_file());
    let Some(terminal) = Terminal::open(80, 8, place.path(), &command) else { return };
    let shown = wait_for_drawings(&terminal, "the view");
    assert!(tables(&shown) == 1 && shown.contains(" more, "), "{shown}");
    // tmux wraps what is there before it tells that it is narrower, so that some of one table may stay; no more with time.
    for (columns, rows, most) in [("80", "40", 1), ("50", "40", 2), ("120", "40", 2), ("120", "8", 3)] {
        terminal.tmux(&["resize-window", "-x", columns, "-y", rows]);
        let shown = wait_for_drawings(&terminal, "the view after a change");
        let tables = tables(&shown);
        assert!((1..=most).contains(&tables), "{tables} tables at {columns}×{rows}: {shown}");
    }
    terminal.press("C-c");
    terminal.wait_for("the summary", |shown| shown.contains("mean validation loss"));
}

/// What a command writes to a terminal of 80×24 with these variables set, byte for byte, until it has written `last`; `None`
/// without tmux. Its arguments may name files in the folder that they are given.
fn written(variables: &str, arguments: impl Fn(&Path) -> String, last: &str) -> Option<String> {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| folder.path().join(name).display().to_string();
    // It begins when its terminal is recorded.
    let wait = format!("until [ -e {} ]; do sleep 0.1; done", at("go"));
    let command = format!("{wait}; {variables} {MURMUR} {}; cat", arguments(folder.path()));
    let terminal = Terminal::open(80, 24, folder.path(), &command)?;
    terminal.tmux(&["pipe-pane", &format!("cat > {}", at("written"))]);
    std::fs::write(at("go"), "").expect("a temporary directory can be written");
    terminal.wait_for(last, |shown| shown.contains(last));
    // What is shown comes through the pipe a moment later.
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let written = String::from_utf8_lossy(&std::fs::read(at("written")).expect("tmux writes it")).into_owned();
        if written.contains(last) || Instant::now() > end {
            return Some(written);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_terminal_that_moves_no_cursor_gets_plain_lines() {
    let local = |folder: &Path| {
        let run_file = write_run(folder, &TINY_RUN.replace("100000", "100"));
        let swarm = folder.join("swarm");
        format!("local -n 2 --threads 1 --directory {} {}", swarm.display(), run_file.display())
    };
    let [usual, plain] = ["TERM=screen", "TERM=dumb"]
        .map(|terminal| std::thread::spawn(move || written(terminal, local, "mean validation loss")));
    let Some(usual) = usual.join().expect("no panic") else { return };
    assert!(usual.contains('\u{1b}'), "the view moves the cursor: {usual:?}");
    let plain = plain.join().expect("no panic").expect("tmux is there");
    assert!(!plain.contains('\u{1b}') && plain.contains(" % · "), "{plain:?}");
}

#[test]
fn the_log_of_a_daemon_that_was_started_on_a_terminal_is_plain_lines() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let run_file = write_run(folder.path(), TINY_RUN);
    std::fs::write(at("node.toml"), "[network]\nmdns = false\nkademlia = false\nnat = false\n").expect("written");
    let own = "--listen /ip4/127.0.0.1/tcp/0 --status-address off --threads 1 --steps 400 --exit";
    let start = format!("start -d {} --node {} --data-dir {} {own}", run_file.display(), at("node.toml"), at("node"));
    // In the environment of the other tests it pauses between steps: the view would be drawn for seconds.
    let command = format!("TERM=screen MURMUR_TRAINING_PERCENT=5 {MURMUR} {start}; cat");
    let Some(terminal) = Terminal::open(80, 24, folder.path(), &command) else { return };
    terminal.wait_for("the terminal back", |shown| shown.contains("murmur stop "));
    let log = folder.path().join("node/log/daemon.log");
    let read = || std::fs::read_to_string(&log).unwrap_or_default();
    wait_until("its end", || read().contains("left        "));
    let log = read();
    assert!(!log.contains('\u{1b}'), "{log:?}");
}

#[test]
fn what_an_interrupted_comparison_says_stands_in_lines_of_its_own() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let output = folder.path().join("compare").display().to_string();
    let command = format!("TERM=screen {MURMUR} compare --jobs 1 --nodes 2 --steps 40 --output {output}; cat");
    let Some(terminal) = Terminal::open(50, 24, folder.path(), &command) else { return };
    terminal.wait_for("how far it is", |shown| shown.contains(" runs \u{b7} "));
    terminal.press("C-c");
    let shown = terminal.wait_for("what is said", |shown| shown.contains("at once"));
    let lines: Vec<&str> = shown.lines().map(str::trim_end).collect();
    let said = lines.iter().position(|line| line.starts_with("interrupted: ending what is under way;"));
    let said = said.unwrap_or_else(|| panic!("no line of its own: {shown}"));
    assert!(lines[said + 1].ends_with("at once") && lines[said + 1].starts_with("  "), "cut between words: {shown}");
    assert!(!shown.contains("^C"), "{shown}");
}

/// How the refusal ends, behind its last word that has a colour: what is written is searched for it, colours and all.
const REFUSED: &str = "'.";

#[test]
fn there_are_colours_but_for_those_who_decline_them() {
    let refused = |_: &Path| "start --port 0".to_owned();
    let Some(usual) = written("TERM=screen", refused, REFUSED) else { return };
    assert!(usual.contains("\u{1b}[31m") || usual.contains("\u{1b}[1m"), "{usual:?}");
    let declined = written("TERM=screen NO_COLOR=1", refused, REFUSED).expect("tmux is there");
    assert!(!declined.contains('\u{1b}'), "{declined:?}");
}
