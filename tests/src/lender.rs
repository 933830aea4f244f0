//! One helper under test: `murmur lend` in a process of its own.

use std::net::TcpListener;
use std::path::Path;
use std::process::ExitStatus;

use crate::Daemon;

/// A running helper. Dropping it kills the process.
pub struct Helper(Daemon);

impl Helper {
    /// Starts `murmur lend` on a port of its own that stays free when it is gone, so that it can come back to it. It lends 1 GB where
    /// `more` says nothing else.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn spawn(program: &str, directory: &Path, port: u16, more: &[&str]) -> Helper {
        let mut command = crate::murmur(program);
        let memory: &[&str] = if more.contains(&"--memory") { &[] } else { &["--memory", "1GB"] };
        command.args(["lend", "--device", "cpu", "--listen", &format!("/ip4/127.0.0.1/tcp/{port}")]);
        command.args(memory).args(more);
        Helper(Daemon::spawn_as(command, directory))
    }

    /// A port that is free now.
    ///
    /// # Panics
    /// When there is none.
    pub fn free_port() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.local_addr().expect("bound").port()
    }

    /// Waits until it listens, and gives its line.
    pub fn line(&self) -> String {
        self.0.ready_value("/line")
    }

    /// Waits until it has written this to stderr.
    pub fn wait_for(&self, text: &str) {
        self.0.wait_for_warning(text);
    }

    /// What it has written to stderr so far.
    pub fn told(&self) -> String {
        self.0.errors()
    }

    /// kill -9.
    pub fn kill(self) {
        self.0.kill();
    }

    /// Ctrl-C, and its end.
    ///
    /// # Panics
    /// When it does not end in time.
    pub fn interrupt(self) -> ExitStatus {
        self.0.signal("INT");
        self.0.wait_for_end().status
    }
}
