//! A daemon in the background (`--detach`).
//!
//! The process that was typed starts itself once more, in a session of its own, and waits until that is ready. Until
//! then the new one writes to the same terminal, and ends when the first one ends; from then on it writes to `log/` in
//! its data directory. There the log is cut into files of bounded size.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::{is_at, signal};
use crate::console::{note, print_line, quoted, screen};
use crate::failure::{ExitCode, Failure};

/// Set for the process in the background.
pub const IN_BACKGROUND: &str = "MURMUR_IN_BACKGROUND";

/// Earlier files of a log that are kept.
pub const ROTATED: u32 = 3;

/// A log file of this size, in bytes, is put aside: days of a daemon that warns of nothing.
const LOG_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// How often the size is looked at.
const ROTATION_PERIOD: Duration = Duration::from_secs(5);

/// What the process in the background prints last on the standard output of the first one.
#[derive(Serialize, Deserialize)]
struct GoesOn {
    in_background: u32,
    data_directory: PathBuf,
}

/// Of the process in the background: gets the line that the first one has handed on, where it has.
static HANDED_ON: Mutex<Option<Receiver<String>>> = Mutex::new(None);

/// Set once nobody waits for the process in the background.
static IS_DETACHED: AtomicBool = AtomicBool::new(false);

/// The log in a data directory.
pub fn log_path(root: &Path) -> PathBuf {
    root.join("log").join("daemon.log")
}

/// The first process: starts the one in the background with the same command line, and returns once that is ready. Ends
/// this process with the other's exit code where that ends before. `line`: what that one would read from standard input.
///
/// # Errors
/// When it cannot be started.
pub fn launch(line: Option<&str>) -> anyhow::Result<()> {
    if !cfg!(unix) {
        let failure = Failure::new(ExitCode::Settings, "this system has no way to go on in the background");
        return Err(failure.hint("leave --detach out").into());
    }
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .env(IN_BACKGROUND, "true")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a process in the background")?;
    if let Some(line) = line {
        // One that has ended by now says why itself.
        let _ = writeln!(child.stdin.as_mut().context("the pipe that was asked for")?, "{line}");
    }
    let lines = BufReader::new(child.stdout.take().context("the pipe that was asked for")?).lines();
    for line in lines.map_while(Result::ok) {
        let Ok(GoesOn { in_background, data_directory }) = serde_json::from_str(&line) else {
            print_line(&line);
            continue;
        };
        let folder = quoted(&data_directory);
        note(&format!("background  process {in_background}, which goes on without this terminal"));
        note(&format!("            murmur logs -f {folder}"));
        note(&format!("            murmur stop {folder}"));
        return Ok(());
    }
    let status = child.wait().context("the process that was started")?;
    std::process::exit(status.code().unwrap_or(ExitCode::Failure as i32));
}

/// The process in the background: in a session of its own, so that the end of the terminal is not its end.
///
/// # Errors
/// When the system refuses.
pub fn begin() -> anyhow::Result<()> {
    #[cfg(unix)]
    if let Err(error) = rustix::process::setsid()
        && error != rustix::io::Errno::PERM
    {
        return Err(error).context("cannot begin a session of its own");
    }
    let (line_to, line) = channel();
    *HANDED_ON.lock().unwrap_or_else(PoisonError::into_inner) = Some(line);
    // Standard input ends with the first process.
    std::thread::spawn(move || {
        let (mut input, mut line) = (io::stdin().lock(), String::new());
        if input.read_line(&mut line).is_ok_and(|length| length > 0) {
            let _ = line_to.send(line);
        }
        while input.read(&mut [0; 64]).is_ok_and(|length| length > 0) {}
        if !IS_DETACHED.load(Ordering::SeqCst) {
            std::process::exit(ExitCode::Interrupted as i32);
        }
    });
    Ok(())
}

/// The line of standard input that the first process has handed on to this one; `None` in any other process.
pub fn handed_on() -> Option<String> {
    let line = HANDED_ON.lock().unwrap_or_else(PoisonError::into_inner).take()?;
    line.recv().ok()
}

/// The process in the background, once it is ready: lets the first one go, and writes to its log from now on.
///
/// # Errors
/// When the log cannot be written.
pub fn detach(root: &Path) -> Result<(), Failure> {
    let path = log_path(root);
    let unwritable = |error: io::Error| {
        Failure::new(ExitCode::Files, format!("cannot write the log {}: {error}", path.display()))
            .hint("is the disk full? may this user write there?")
    };
    let folder = root.join("log");
    if folder.is_file() {
        // Earlier versions wrote a file of that name.
        std::fs::rename(&folder, root.join("log.old")).map_err(unwritable)?;
    }
    std::fs::create_dir_all(&folder).map_err(unwritable)?;
    let mut log = open(&path).map_err(unwritable)?;
    signal::ignore_hangups();
    IS_DETACHED.store(true, Ordering::SeqCst);
    let goes_on = GoesOn { in_background: std::process::id(), data_directory: root.to_owned() };
    print_line(&serde_json::to_string(&goes_on).expect("a number and a path are serialisable"));
    screen::leave_terminal();
    write_to(&log).map_err(unwritable)?;
    note(&format!("murmur {} begins, process {}", env!("CARGO_PKG_VERSION"), std::process::id()));
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(ROTATION_PERIOD);
            if let Err(error) = rotate(&mut log, &path, LOG_BYTES_MAX) {
                tracing::warn!("cannot put the log aside: {error}");
            }
        }
    });
    Ok(())
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    // A ticket in it may hold the secret of a closed run.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Puts a log aside that has grown beyond `bytes_max`, and goes on in a new one.
fn rotate(log: &mut File, path: &Path, bytes_max: u64) -> io::Result<()> {
    if put_aside(log, path, bytes_max)? {
        *log = open(path)?;
        write_to(log)?;
    }
    Ok(())
}

/// Whether another file is to be written from now on.
fn put_aside(log: &File, path: &Path, bytes_max: u64) -> io::Result<bool> {
    // Somebody has put it aside or deleted it: what is written now is seen by nobody.
    if !is_at(log, path) || !path.exists() {
        return Ok(true);
    }
    if log.metadata()?.len() < bytes_max {
        return Ok(false);
    }
    let earlier = |number: u32| path.with_extension(format!("log.{number}"));
    for number in (1..ROTATED).rev() {
        let _ = std::fs::rename(earlier(number), earlier(number + 1));
    }
    std::fs::rename(path, earlier(1))?;
    Ok(true)
}

/// Standard output and standard error, whoever writes to them.
#[cfg(unix)]
fn write_to(log: &File) -> io::Result<()> {
    rustix::stdio::dup2_stdout(log)?;
    rustix::stdio::dup2_stderr(log)?;
    Ok(())
}

#[cfg(not(unix))]
fn write_to(_: &File) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_cut_into_files_and_the_oldest_go() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("daemon.log");
        for text in ["one", "two", "three", "four", "five"] {
            std::fs::write(&path, text).expect("written");
            assert!(put_aside(&open(&path).expect("there"), &path, 3).expect("renamed"), "{text}");
        }
        std::fs::write(&path, "6").expect("written");
        let log = open(&path).expect("there");
        assert!(!put_aside(&log, &path, 3).expect("short"));
        let kept = |number: u32| std::fs::read_to_string(path.with_extension(format!("log.{number}"))).ok();
        assert_eq!(
            [1, 2, 3, 4].map(kept),
            [Some("five"), Some("four"), Some("three"), None].map(|it| it.map(str::to_owned))
        );
        // By other programs: moved, then made anew under the same name.
        std::fs::rename(&path, folder.path().join("moved.log")).expect("renamed");
        assert!(put_aside(&log, &path, 3).expect("begun again"));
        std::fs::write(&path, "").expect("written");
        assert!(put_aside(&log, &path, 3).expect("begun again"));
    }
}
