//! `murmur compare --real`: real daemons beside the simulated nodes, on hosts of their own where there are some, through faults; and
//! nothing left behind.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use murmur_tests::{TINY_RUN, at_once, folder, murmur, output_of, succeeded, write_run};

use crate::MURMUR;

/// After the wish to end, or the end of their parent, daemons take no longer to leave.
const LEAVING_MAX: Duration = Duration::from_secs(60);

/// From Ctrl-C to the end of a comparison, on a busy machine: daemons that have just begun leave in seconds.
const ENDING_MAX: Duration = Duration::from_secs(30);

/// What says that there are no hosts here.
const LOOPBACK: &str = "They are connected over loopback";

/// `murmur compare --real` of three nodes with a tiny model, on links of 8 Mbit/s up.
fn compare(folder: &Path, arguments: &str) -> Command {
    let run_file = write_run(folder, TINY_RUN);
    let links = folder.join("links.toml");
    std::fs::write(&links, "up_mbit = 8\ndown_mbit = 20\nlatency_ms = 1\n").expect("written");
    let mut command = murmur(MURMUR);
    command.arg("compare").arg(run_file).args(["--real", "--nodes", "3", "--seeds", "1", "--links"]).arg(links);
    command.arg("--output").arg(folder.join("results")).args(arguments.split_whitespace());
    command
}

/// Whether daemons had hosts of their own; else a line says why they had none.
fn has_hosts(text: &str) -> bool {
    let reason = text.lines().find_map(|line| Some(&line[line.find(LOOPBACK)?..]));
    // Past the harness, which keeps what passing tests print.
    reason
        .inspect(|reason| drop(std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("skipped: {reason}\n"))));
    reason.is_none()
}

/// The cells of a method's row in the table that this line is above.
fn row(text: &str, above: &str, method: &str) -> Vec<String> {
    let table = text.split_once(above).unwrap_or_else(|| panic!("no table of {above}: {text}")).1;
    let line = table.lines().find(|line| line.starts_with(&format!("{method} "))).unwrap_or_else(|| panic!("{text}"));
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
}

fn number(cell: &str) -> f64 {
    cell.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{cell:?} is no number"))
}

const REAL: &str = "the same by 3 real daemons on this machine";
const FAULTS: &str = "because of a fault, real and simulated";

#[test]
fn real_daemons_train_beside_the_simulated_nodes_on_links_that_carry_no_more_than_theirs() {
    let folder = folder();
    let more = "--methods ring,noloco,alone --steps 32 --step-seconds 0.05 --faults kill";
    let text = succeeded(&output_of(&mut compare(folder.path(), more)));
    let (ring, alone) = (row(&text, REAL, "ring"), row(&text, REAL, "alone"));
    assert!(!text.split_once(REAL).expect("a table").1.contains("noloco") && number(&alone[3]) == 0.0, "{text}");
    // Batches of three learn more than those of one. On a busy machine some steps are of two, which began without the third.
    assert!(number(&ring[1]) < number(&alone[1]), "{text}");
    let (per_second, bytes) = (number(ring.last().expect("cells")), number(&ring[3]));
    assert!(ring[3].ends_with(" MB"), "{text}");
    // Steps have the pace of the simulated ones.
    assert!(number(alone.last().expect("cells")) < 20.5 && per_second < 20.5, "{text}");
    // Without the one that is killed the others go on.
    let faults = row(&text, FAULTS, "ring");
    assert!(faults.len() == 3 && !faults.iter().any(|cell| cell.starts_with("unfinished")), "{text}");
    if has_hosts(&text) {
        let megabits = 8.0 * bytes * per_second / 32.0;
        println!("the ring's busiest uplink carried {megabits:.2} of 8 Mbit/s");
        assert!(megabits < 8.8, "{megabits} Mbit/s over an uplink of 8: {text}");
        assert!(text.contains("8 Mbit/s up and 20 Mbit/s down (tc tbf). Latency and loss of the links are not made."));
    }
    for swarm in ["ring/node-2", "ring-kill/node-2", "alone/node-2"] {
        assert!(
            folder.path().join("results/real").join(swarm).is_dir(),
            "each swarm has a folder that murmur report reads"
        );
    }
    let page = std::fs::read_to_string(folder.path().join("results/report.html")).expect("written");
    assert!(page.contains("id=\"real\"") && page.contains("--real") && page.contains("<th>kill</th>"), "{page}");
}

#[test]
fn real_daemons_become_slow_or_are_cut_off_for_a_while_and_come_to_the_end() {
    let folder = folder();
    let more = "--methods gossip --steps 32 --step-seconds 0.1 --faults straggler,partition";
    let output = output_of(&mut compare(folder.path(), more));
    let text = succeeded(&output);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if has_hosts(&text) {
        let cut = said.find("cut off from the others: node 2").unwrap_or_else(|| panic!("{said}"));
        assert!(said[cut..].contains("all nodes reach each other again"), "{said}");
    }
    let faults = row(&text, FAULTS, "gossip");
    // No network of loopback can be cut.
    assert_eq!(faults.len(), if has_hosts(&text) { 5 } else { 3 }, "{text}");
    assert!(!faults.iter().any(|cell| cell.starts_with("unfinished")), "{text}");
}

#[test]
fn where_there_are_no_hosts_one_line_says_why_and_daemons_meet_over_loopback() {
    let folder = folder();
    let mut command = compare(folder.path(), "--methods ring --steps 6 --step-seconds 0.05 --faults none");
    // Neither ip nor tc is found.
    let text = succeeded(&output_of(command.env("PATH", "/nowhere")));
    assert!(text.contains(LOOPBACK), "{text}");
    assert_eq!(row(&text, REAL, "ring").len(), 8, "{text}");
}

/// It took most of the time, and is worth as much without them.
#[test]
fn what_was_simulated_is_told_where_real_daemons_cannot_be_trained() {
    let folder = folder();
    let results = folder.path().join("results");
    // A folder of this command's, where no swarm can have a place.
    std::fs::create_dir(&results).expect("made");
    std::fs::write(results.join(".murmur-output"), "").expect("written");
    std::fs::write(results.join("real"), "").expect("written");
    let output = output_of(&mut compare(folder.path(), "--methods ring --steps 6 --step-seconds 0.05 --faults none"));
    let (text, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("error: cannot write in ") && !said.contains("interrupted"), "{said}");
    assert!(text.contains(" with 3 nodes ring reached a loss of ") && !text.contains(REAL), "{text}");
    for file in ["report.html", "table.csv", "curves.csv", "summary.txt"] {
        assert!(results.join(file).is_file(), "{file} is missing");
    }
}

/// Whether Ctrl-C comes before a swarm's first daemon is ready or later, it ends with the code of an interruption and what there is.
#[cfg(unix)]
#[test]
fn ctrl_c_as_the_real_daemons_begin_is_no_failure_of_theirs() {
    let folder = folder();
    let mut command = compare(folder.path(), "--methods ring --steps 40 --step-seconds 1 --faults none");
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(process.stderr.take().expect("piped")).lines();
    assert!(lines.any(|line| line.expect("UTF-8").starts_with("real swarm 1 of")), "it goes on");
    wait_until("the first daemon", || !children(process.id()).is_empty());
    let said = interrupted(process, lines, folder.path());
    assert!(said.contains("error: interrupted: this is a part of the comparison"), "{said}");
}

/// Nothing is written where not one method was tried.
#[cfg(unix)]
#[test]
fn ctrl_c_ends_the_simulated_part_of_a_comparison_within_seconds() {
    let folder = folder();
    let mut command = compare(folder.path(), "--methods ring,gossip --steps 1000000 --step-seconds 0.05 --faults none");
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(process.stderr.take().expect("piped")).lines();
    assert!(lines.any(|line| line.expect("UTF-8").contains(" of 3 simulated nodes, 1,000,000 steps each")));
    let said = interrupted(process, lines, folder.path());
    let expected = "error: interrupted before one method had been tried at all learning rates: nothing was written";
    assert!(said.contains(expected), "{said}");
    assert!(!folder.path().join("results/report.html").exists());
}

/// Sends Ctrl-C to a comparison, which then ends soon with its code and leaves no process behind. What it says at the end.
#[cfg(unix)]
fn interrupted(mut process: Child, lines: std::io::Lines<BufReader<ChildStderr>>, folder: &Path) -> String {
    let id = process.id().to_string();
    let begin = Instant::now();
    assert!(Command::new("kill").args(["-INT", &id]).status().is_ok_and(|status| status.success()));
    let said: Vec<String> = lines.map_while(Result::ok).collect();
    let mut told = String::new();
    process.stdout.take().expect("piped").read_to_string(&mut told).expect("UTF-8");
    let (status, said) = (process.wait().expect("it ends"), said.join("\n"));
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(begin.elapsed() < ENDING_MAX, "it took {:?}: {said}", begin.elapsed());
    assert!(!told.contains(REAL), "a table without rows: {told}");
    let is_of_it = |process: &PathBuf| {
        let line = std::fs::read_to_string(process.join("cmdline"));
        line.is_ok_and(|line| line.contains(&*folder.to_string_lossy()))
    };
    let left: Vec<PathBuf> = processes().into_iter().filter(is_of_it).collect();
    assert!(left.is_empty(), "{left:?}");
    said
}

/// The network namespaces that a process holds or is in.
fn namespaces(process: &Path) -> BTreeSet<PathBuf> {
    let held = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let held = held.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let own = std::fs::read_link(process.join("ns/net"));
    held.chain(own).filter(|link| link.to_string_lossy().starts_with("net:[")).collect()
}

fn processes() -> Vec<PathBuf> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    all.filter(|path| path.join("ns").is_dir()).collect()
}

fn parent(process: &Path) -> Option<u32> {
    let stat = std::fs::read_to_string(process.join("stat")).ok()?;
    // Behind the name in brackets: the state, then the parent.
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Processes that this one has started.
fn children(process: u32) -> Vec<PathBuf> {
    processes().into_iter().filter(|path| parent(path) == Some(process)).collect()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + LEAVING_MAX;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A comparison whose real daemons run, with all that it has said.
fn with_daemons(folder: &Path) -> (Child, std::io::Lines<BufReader<ChildStderr>>, String) {
    let mut command = compare(folder, "--methods ring --steps 40 --step-seconds 1 --faults none");
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(process.stderr.take().expect("piped")).lines();
    let mut said = String::new();
    while !said.contains("real swarm 1 of") {
        said += &(lines.next().expect("it goes on").expect("UTF-8") + "\n");
    }
    wait_until("three daemons", || children(process.id()).len() == 3);
    (process, lines, said)
}

#[test]
fn neither_ctrl_c_nor_a_kill_leaves_a_daemon_a_namespace_or_a_link_behind() {
    if !cfg!(target_os = "linux") {
        return;
    }
    at_once(["-INT", "-KILL"], |signal| {
        let folder = folder();
        let (mut process, lines, said) = with_daemons(folder.path());
        let own = namespaces(Path::new("/proc/self"));
        let murmur = PathBuf::from(format!("/proc/{}", process.id()));
        let daemons = children(process.id());
        let made: BTreeSet<PathBuf> = namespaces(&murmur).difference(&own).cloned().collect();
        let holds = |process: &PathBuf| !namespaces(process).is_disjoint(&made);
        let holders: BTreeSet<PathBuf> = processes().into_iter().filter(holds).collect();
        if has_hosts(&said) {
            // One each, and that of the bridge; links are in them and nowhere else.
            assert_eq!(made.len(), 4, "{made:?}");
            let places: BTreeSet<PathBuf> = daemons.iter().flat_map(|daemon| namespaces(daemon)).collect();
            assert!(places.len() == 3 && places.is_subset(&made), "{places:?} of {made:?}");
            assert!(holders.len() == 4 && holders.contains(&murmur), "nobody else holds them: {holders:?}");
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("readable");
            assert!(!made.iter().any(|namespace| mounts.contains(&*namespace.to_string_lossy())), "they have no names");
        }
        let id = process.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().is_ok_and(|status| status.success()));
        let reading = std::thread::spawn(move || drop(lines.map_while(Result::ok).collect::<Vec<_>>()));
        let mut told = String::new();
        process.stdout.take().expect("piped").read_to_string(&mut told).expect("UTF-8");
        let status = process.wait().expect("it ends");
        reading.join().expect("no panic");
        if signal == "-INT" {
            assert_eq!(status.code(), Some(130));
            assert!(told.contains("On ") && !told.contains(REAL), "a table without rows: {told}");
        }
        let is_alive = |daemon: &PathBuf| {
            std::fs::read_to_string(daemon.join("cmdline")).is_ok_and(|line| line.contains("--pace"))
        };
        wait_until("the end of its daemons", || !daemons.iter().any(is_alive));
        // The kernel gives their numbers to others, which have parents.
        let is_left = |process: &PathBuf| holds(process) && (holders.contains(process) || parent(process) == Some(1));
        wait_until("the end of its namespaces", || !processes().iter().any(is_left));
    });
}
