//! One helper under test: `murmur lend` in a process of its own.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

/// No single condition takes longer than this, on two busy cores either.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running helper. Dropping it kills the process.
pub struct Helper {
    process: Child,
    stdin: Option<ChildStdin>,
    heard: Arc<(Mutex<Heard>, Condvar)>,
}

#[derive(Default)]
struct Heard {
    line: Option<String>,
    errors: String,
    ended: bool,
}

impl Helper {
    /// Starts `murmur lend` on a port of its own that stays free when it is gone, so that it can come back to it. It lends 1 GB where
    /// `more` says nothing else.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn spawn(program: &str, directory: &Path, port: u16, more: &[&str]) -> Helper {
        let mut command = crate::murmur(program);
        let listen = format!("/ip4/127.0.0.1/tcp/{port}");
        command.args(["lend", "--format", "json", "--until-stdin-closes", "--threads", "1", "--device", "cpu"]);
        let memory: &[&str] = if more.contains(&"--memory") { &[] } else { &["--memory", "1GB"] };
        command.args(["--listen", &listen]).args(memory).args(more).arg("--data-dir").arg(directory);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("the program starts");
        let heard = Arc::new((Mutex::new(Heard::default()), Condvar::new()));
        let stdout = process.stdout.take().expect("a pipe");
        let stderr = process.stderr.take().expect("a pipe");
        let for_lines = heard.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let object: Value = serde_json::from_str(&line).unwrap_or_default();
                if let Some(line) = object.pointer("/lending/line").and_then(Value::as_str) {
                    change(&for_lines, |heard| heard.line = Some(line.to_owned()));
                }
            }
            change(&for_lines, |heard| heard.ended = true);
        });
        let for_errors = heard.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                change(&for_errors, |heard| heard.errors += &format!("{line}\n"));
            }
        });
        Helper { stdin: process.stdin.take(), process, heard }
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
        self.wait("its line", |heard| heard.line.clone())
    }

    /// Waits until it has written this to stderr.
    pub fn wait_for(&self, text: &str) {
        self.wait(text, |heard| heard.errors.contains(text).then_some(()));
    }

    /// What it has written to stderr so far.
    ///
    /// # Panics
    /// When a reader has.
    pub fn told(&self) -> String {
        self.heard.0.lock().expect("no reader panics").errors.clone()
    }

    /// kill -9.
    pub fn kill(mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Ctrl-C, and its end.
    ///
    /// # Panics
    /// When it does not end in time.
    pub fn interrupt(mut self) -> ExitStatus {
        let id = self.process.id().to_string();
        let sent = Command::new("kill").args(["-INT", &id]).status().expect("kill is there");
        assert!(sent.success(), "it runs");
        self.wait("its end", |heard| heard.ended.then_some(()));
        drop(self.stdin.take());
        self.process.wait().expect("it was started")
    }

    fn wait<Found>(&self, what: &str, find: impl Fn(&Heard) -> Option<Found>) -> Found {
        let deadline = Instant::now() + PATIENCE;
        let (heard, news) = &*self.heard;
        let mut heard = heard.lock().expect("no reader panics");
        loop {
            if let Some(found) = find(&heard) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let is_over = left.is_zero() || (heard.ended && what != "its end");
            assert!(!is_over, "a helper waited in vain for: {what}\nerrors: {}", heard.errors);
            heard = news.wait_timeout(heard, left).expect("no reader panics").0;
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn change(heard: &(Mutex<Heard>, Condvar), change: impl FnOnce(&mut Heard)) {
    if let Ok(mut guard) = heard.0.lock() {
        change(&mut guard);
    }
    heard.1.notify_all();
}
