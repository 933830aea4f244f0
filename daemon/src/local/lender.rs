//! A helper of a local team: `murmur lend` as a process of this machine, for the first daemon, which is the team's captain.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use murmur_protocol::RunManifest;
use murmur_protocol::team::Wire;
use murmur_training::TrainingOptions;
use murmur_training::ops::Kernels;
use murmur_training::team::captain_needs;
use serde_json::Value;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, BufReader, Lines};
use tokio::process::ChildStdin;

use super::child::own_program;
use crate::failure::{ExitCode, Failure};

/// A helper measures itself and listens within this.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// It is let go by its captain before, so it has nothing to wait for.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A running helper. Dropping it kills the process.
pub(super) struct Lender {
    /// With which the captain takes it, once it listens.
    pub(super) line: String,
    log: PathBuf,
    process: tokio::process::Child,
    /// Closing it asks the helper to leave.
    stdin: Option<ChildStdin>,
}

impl Lender {
    /// Starts a helper, which does not listen yet.
    ///
    /// # Errors
    /// When its folder or the system refuses.
    pub(super) fn start(directory: &Path, threads: usize) -> anyhow::Result<Lender> {
        let (mut command, log) = own_program(directory)?;
        command.args(["lend", "--format", "json", "--until-stdin-closes", "--listen", "/ip4/127.0.0.1/tcp/0"]);
        command.args(["--threads", &threads.to_string(), "--data-dir"]).arg(directory);
        let mut process = command.spawn().context("cannot start a helper")?;
        let stdin = process.stdin.take();
        Ok(Lender { line: String::new(), log, process, stdin })
    }

    /// Waits until it listens.
    ///
    /// # Errors
    /// With its own reason when it does not.
    pub(super) async fn listen(&mut self) -> anyhow::Result<()> {
        let stdout = self.process.stdout.take().context("the pipe that was asked for")?;
        let line = tokio::time::timeout(READY_TIMEOUT, line(BufReader::new(stdout).lines())).await.ok().flatten();
        self.line = line.ok_or_else(|| no_helper(&self.log))?;
        Ok(())
    }

    /// Ends it at once: for one that nobody has given anything.
    pub(super) async fn kill(mut self) {
        let _ = tokio::time::timeout(END_TIMEOUT, self.process.kill()).await;
    }

    /// Lets it end in order, or the hard way.
    pub(super) async fn end(mut self) {
        drop(self.stdin.take());
        if tokio::time::timeout(END_TIMEOUT, self.process.wait()).await.is_err() {
            self.kill().await;
        }
    }
}

/// What it says once it listens; `None` where it ends before.
async fn line(mut lines: Lines<impl AsyncBufRead + Unpin>) -> Option<String> {
    while let Ok(Some(text)) = lines.next_line().await {
        let object: Value = serde_json::from_str(&text).unwrap_or_default();
        if let Some(line) = object.pointer("/lending/line").and_then(Value::as_str) {
            return Some(line.to_owned());
        }
    }
    None
}

/// Its own reason and remedy.
fn no_helper(log: &Path) -> Failure {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let said = |prefix: &str| text.lines().find_map(|line| line.strip_prefix(prefix)).map(str::to_owned);
    let reason = said("error: ").unwrap_or_else(|| "it gives no reason".to_owned());
    let hint = said("hint: ").unwrap_or_else(|| format!("its log is {}", log.display()));
    Failure::new(ExitCode::Failure, format!("a helper did not start: {reason}")).hint(hint)
}

/// Settings of a captain that has room for its share of the layers and no more, so that its helpers have something to do: on one
/// machine the fastest cut would be none.
pub(super) fn captain_settings(manifest: &RunManifest, helpers: usize, threads: usize) -> String {
    // Of a model that is not cut: the captain says so.
    let Some(model) = manifest.model.transformer() else { return String::new() };
    let (least, layer) = captain_needs(manifest, &TrainingOptions::default(), (Wire::Codes8, threads, Kernels::Fused));
    let own = u64::from(model.layers) / (helpers as u64 + 1);
    let bytes = least + own * layer + layer / 2;
    format!("[training]\nmemory_gigabytes = {:.6}\n", bytes as f64 / 1e9)
}
