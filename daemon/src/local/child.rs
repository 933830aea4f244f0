//! One daemon as a child process: its lines, its last report, its end.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

use super::hosts::Hosts;
use crate::daemon::Ready;
use crate::failure::{ExitCode, Failure, to_write};
use crate::observe::report::NodeReport;
use crate::process::background::log_path;

/// Daemons of one machine are given each other's addresses: what finds and probes others would only cost traffic.
const SETTINGS: &str = "[network]\nmdns = false\nkademlia = false\nnat = false\n";

/// A killed process is gone within this.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// A child and what it has said so far.
pub(super) struct Child {
    pub(super) number: usize,
    pub(super) ready: Option<Ready>,
    /// The newest report.
    pub(super) report: Option<NodeReport>,
    /// The report at its clean end.
    pub(super) last: Option<NodeReport>,
    /// Whether it has said that it has come to the run's end, or has done all that it was to do of it. Who is stopped before, or
    /// cannot train, tells a report at its end as well.
    pub(super) is_completed: bool,
    pub(super) directory: PathBuf,
    pub(super) log: PathBuf,
    pub(super) is_stopping: bool,
    pub(super) has_ended: bool,
    process: tokio::process::Child,
    /// Closing it asks the daemon to leave.
    stdin: Option<ChildStdin>,
}

/// Something that a child said.
pub(super) struct Line {
    pub(super) child: usize,
    pub(super) said: Said,
}

pub(super) enum Said {
    Object(Value),
    /// Its standard output is closed.
    Ended,
}

impl Child {
    pub(super) fn spawn(
        number: usize,
        directory: &Path,
        (arguments, settings, helpers): (&[OsString], &str, &str),
        hosts: Option<&Hosts>,
        lines: mpsc::Sender<Line>,
    ) -> anyhow::Result<Child> {
        std::fs::create_dir_all(directory).map_err(|error| unwritable(directory, &error))?;
        let (mut command, log) = own_program(directory)?;
        let text = format!("{SETTINGS}{settings}");
        let settings = directory.join("node.toml");
        std::fs::write(&settings, text).map_err(|error| unwritable(&settings, &error))?;
        command.args(arguments).arg("--node").arg(&settings);
        if !helpers.is_empty() {
            command.env("MURMUR_HELPER", helpers);
        }
        if let Some(hosts) = hosts {
            hosts.place(number, &mut command);
        }
        let mut process = command.spawn().context("cannot start a daemon")?;
        let stdin = process.stdin.take();
        let stdout = process.stdout.take().context("the pipe that was asked for")?;
        tokio::spawn(read_lines(number, stdout, lines));
        Ok(Child {
            number,
            ready: None,
            report: None,
            last: None,
            is_completed: false,
            directory: directory.to_owned(),
            log,
            is_stopping: false,
            has_ended: false,
            process,
            stdin,
        })
    }

    pub(super) fn take_in(&mut self, said: Said) {
        let Said::Object(mut object) = said else {
            self.has_ended = true;
            return;
        };
        if let Some(report) = object.get_mut("status").map(Value::take) {
            self.report = serde_json::from_value(report).ok().or(self.report.take());
            self.is_completed |= self.report.as_ref().is_some_and(is_completed);
        } else if let Some(report) = object.get_mut("finished").map(Value::take) {
            self.last = serde_json::from_value(report).ok();
            self.report.clone_from(&self.last);
        } else if let Some(ready) = object.get_mut("ready").map(Value::take) {
            self.ready = serde_json::from_value(ready).ok();
        }
    }

    /// Whether nothing more is to be expected of it.
    pub(super) fn is_done(&self) -> bool {
        self.has_ended || self.report.as_ref().is_some_and(is_completed)
    }

    pub(super) fn stop(&mut self) {
        self.is_stopping = true;
        drop(self.stdin.take());
    }

    /// As by `kill -9`.
    pub(super) fn kill(&mut self) {
        self.is_stopping = true;
        // One that has ended by itself cannot be killed any more.
        let _ = self.process.start_kill();
    }

    /// With what it has ended; `None` where it runs still, or was killed.
    pub(super) async fn exit_code(&mut self) -> Option<i32> {
        tokio::time::timeout(END_TIMEOUT, self.process.wait()).await.ok()?.ok()?.code()
    }

    /// Makes sure that the process is gone.
    pub(super) async fn end(&mut self) {
        if self.has_ended && tokio::time::timeout(END_TIMEOUT, self.process.wait()).await.is_ok() {
            return;
        }
        let _ = tokio::time::timeout(END_TIMEOUT, self.process.kill()).await;
    }
}

fn is_completed(report: &NodeReport) -> bool {
    report.phase == "completed"
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(ExitCode::Files, format!("cannot write {}: {error}", path.display()))
        .hint(format!("{}, or choose another folder with --directory", to_write(error)))
}

/// This program, to be run with pipes to and from this process and the log of a data directory, and that log.
///
/// # Errors
/// When the log cannot be written.
pub(super) fn own_program(directory: &Path) -> anyhow::Result<(Command, PathBuf)> {
    let log = log_path(directory);
    std::fs::create_dir_all(log.parent().unwrap_or(directory)).map_err(|error| unwritable(&log, &error))?;
    let log_file = File::create(&log).map_err(|error| unwritable(&log, &error))?;
    let mut command = Command::new(std::env::current_exe().context("cannot find this program's own file")?);
    // Settings meant for a daemon of the user's own must not reach all of these: what holds for all is typed. What they log is no
    // such setting.
    let is_setting = |name: &str| name.starts_with("MURMUR_") && name != "MURMUR_LOG";
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_setting(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log_file).kill_on_drop(true);
    // A group of its own: Ctrl-C reaches this process alone, which then stops its daemons in order.
    #[cfg(unix)]
    command.process_group(0);
    Ok((command, log))
}

async fn read_lines(child: usize, stdout: ChildStdout, lines: mpsc::Sender<Line>) {
    let mut reader = BufReader::new(stdout).lines();
    while let Ok(Some(text)) = reader.next_line().await {
        if let Ok(object) = serde_json::from_str(&text)
            && lines.send(Line { child, said: Said::Object(object) }).await.is_err()
        {
            return;
        }
    }
    let _ = lines.send(Line { child, said: Said::Ended }).await;
}
