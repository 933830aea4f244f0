//! `murmur stop`: has a daemon leave in order, and waits until it has.

use std::path::Path;
use std::time::{Duration, Instant};

use super::client;
use crate::cli::StopOptions;
use crate::console::{note, print_line, quoted};
use crate::failure::{ExitCode, Failure};
use crate::observe::report::NodeReport;
use crate::process::suspended::is_suspended;
use crate::store::{RunningDaemon, is_in_use, newest_checkpoint};

/// How long it is waited. A guess: the last checkpoint of a large model takes minutes on a slow disk.
const TIMEOUT: Duration = Duration::from_secs(900);

/// How often it is looked whether it has ended.
const PERIOD: Duration = Duration::from_millis(50);

pub(super) fn run(options: &StopOptions) -> anyhow::Result<()> {
    let found = client::running(options.run.as_deref())?;
    if found.is_empty() {
        let failure = Failure::new(ExitCode::Network, "no daemon runs on this machine");
        return Err(failure.hint("for a folder elsewhere: murmur stop FOLDER").into());
    }
    // A run that is named is stopped whole, all nodes of a local swarm.
    if options.run.is_none() && found.len() > 1 {
        let folders: Vec<String> = found.iter().map(|(folder, _)| format!("murmur stop {}", quoted(folder))).collect();
        let failure = Failure::new(ExitCode::Settings, format!("{} daemons run on this machine", found.len()));
        return Err(failure.hint(format!("say which: {}", folders.join(", or "))).into());
    }
    for (folder, daemon) in &found {
        // A second signal would end it without its last checkpoint.
        let leaves = client::ask::<NodeReport>(daemon, "status").is_some_and(|report| report.is_leaving());
        if leaves {
            note(&format!("leaving     process {} in {} already", daemon.pid, folder.display()));
        } else {
            ask_to_leave(folder, daemon)?;
        }
    }
    let deadline = Instant::now() + TIMEOUT;
    for (folder, daemon) in &found {
        wait(folder, daemon, deadline)?;
        if daemon.was_cut_off(folder) {
            return Err(cut_off(folder).into());
        }
        print_line(&format!("stopped {}", folder.display()));
    }
    Ok(())
}

fn cut_off(folder: &Path) -> Failure {
    let newest = newest_checkpoint(&folder.join("checkpoints"));
    let since = newest
        .map_or("it has written no checkpoint".to_owned(), |path| format!("{} is its last checkpoint", path.display()));
    Failure::new(ExitCode::Files, format!("the daemon in {} has ended with an error: {since}", folder.display())).hint(
        format!("`murmur logs {}`, or the terminal that it ran in, may say why: is the disk full?", quoted(folder)),
    )
}

fn wait(folder: &Path, daemon: &RunningDaemon, deadline: Instant) -> Result<(), Failure> {
    let mut was_told = false;
    while is_in_use(folder) {
        // It hears of signals only when it goes on.
        if !was_told && is_suspended(daemon.pid) {
            was_told = true;
            let pid = daemon.pid;
            note(&format!("            process {pid} is there, but it is suspended and does not answer"));
            note(&format!("hint: `kill -CONT {pid}` lets it go on, and then it stops"));
        }
        if Instant::now() > deadline {
            let (folder_shown, pid, limit) = (folder.display(), daemon.pid, TIMEOUT.as_secs());
            let message = format!("the daemon in {folder_shown} (process {pid}) has not left within {limit} s");
            return Err(Failure::new(ExitCode::Failure, message).hint(format!(
                "`murmur logs {}` may say why; it may still write its last checkpoint. kill -9 {} ends it, and the checkpoint before stays",
                quoted(folder),
                daemon.pid
            )));
        }
        std::thread::sleep(PERIOD);
    }
    Ok(())
}

#[cfg(unix)]
fn ask_to_leave(folder: &Path, daemon: &RunningDaemon) -> Result<(), Failure> {
    use rustix::process::{Pid, Signal, kill_process};
    note(&format!("stopping    process {} in {}", daemon.pid, folder.display()));
    let pid = i32::try_from(daemon.pid).ok().and_then(Pid::from_raw);
    let sent = pid.ok_or(rustix::io::Errno::SRCH).and_then(|pid| kill_process(pid, Signal::TERM));
    match sent {
        // It has ended in between.
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => {
            Err(Failure::new(ExitCode::Failure, format!("process {} cannot be told to end: {error}", daemon.pid))
                .hint("it belongs to another user"))
        }
    }
}

#[cfg(not(unix))]
fn ask_to_leave(folder: &Path, _: &RunningDaemon) -> Result<(), Failure> {
    Err(Failure::new(ExitCode::Failure, format!("the daemon in {} cannot be told to end here", folder.display()))
        .hint("press Ctrl-C in its window"))
}

#[cfg(all(test, unix))]
mod tests {
    use std::process::Command;

    use murmur_protocol::RunManifest;

    use super::*;
    use crate::store::DataDirectory;

    #[test]
    fn a_daemon_elsewhere_is_not_stopped_by_the_number_of_a_process_here() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let directory = DataDirectory::open(folder.path()).expect("free");
        directory.claim(&RunManifest::default()).expect("unclaimed");
        std::fs::write(directory.identity_path(), "").expect("written");
        let this = RunningDaemon::this(None, String::new());
        if this.boot_id.is_none() {
            println!("skipped: the system does not tell which machine this is");
            return;
        }
        let mut child = Command::new("sleep").arg("600").spawn().expect("started");
        let there = RunningDaemon { pid: child.id(), boot_id: Some("another".to_owned()), ..this };
        let announcement = there.announcement(folder.path());
        announcement.write().expect("written");
        let options = StopOptions { run: Some(folder.path().to_owned()) };
        // Where it is told to end all the same, that is waited for until the lock is free.
        let stopping = std::thread::spawn(move || run(&options));
        while !stopping.is_finished() && child.try_wait().expect("ours").is_none() {
            std::thread::sleep(PERIOD);
        }
        drop(directory);
        assert!(child.try_wait().expect("ours").is_none(), "a process of the same number was ended");
        child.kill().expect("ended");
        child.wait().expect("ours");
        let refused = stopping.join().expect("no panic").expect_err("refused").to_string();
        assert!(refused.ends_with("runs on another machine or in another container"), "{refused}");
    }
}
