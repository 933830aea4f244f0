//! A real terminal for tests: tmux, which wraps lines anew when it becomes narrower and keeps a history.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// For each thing that is waited for: eight daemons begin on two busy cores.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How often the terminal is looked at. The view is drawn four times a second.
const LOOK_PERIOD: Duration = Duration::from_millis(40);

/// A tmux server of its own, ended with the test.
pub struct Terminal {
    socket: String,
}

impl Terminal {
    /// Runs a command of the shell on it; `None`, and a line that says so, where there is no tmux.
    pub fn open(columns: usize, rows: usize, folder: &Path, command: &str) -> Option<Terminal> {
        let terminal = Terminal { socket: folder.join("tmux").display().to_string() };
        let (columns, rows) = (columns.to_string(), rows.to_string());
        // Linux gives each session a share of the processor, and daemons that train all of the time take this one's: it is to be
        // small, for the tests of the other session have deadlines.
        let command = format!("{{ echo 10 > /proc/self/autogroup; }} 2>/dev/null; {command}");
        let begin = ["-f", "/dev/null", "new-session", "-d", "-x", &columns, "-y", &rows, &command];
        let begun = terminal.tmux(&begin);
        if begun.is_none() {
            println!("skipped: there is no tmux");
        }
        begun.map(|_| terminal)
    }

    /// What a command of tmux says; `None` where there is none.
    ///
    /// # Panics
    /// When it fails.
    pub fn tmux(&self, arguments: &[&str]) -> Option<String> {
        let mut tmux = Command::new("tmux");
        let output = tmux.args(["-u", "-S", &self.socket]).args(arguments).env("LC_ALL", "C.UTF-8").output().ok()?;
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Presses keys, by tmux's names.
    pub fn press(&self, keys: &str) {
        self.tmux(&["send-keys", keys]);
    }

    /// Everything that is on the terminal or was, as a user would copy it.
    ///
    /// # Panics
    /// When tmux is gone.
    pub fn shown(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-S", "-"]).expect("tmux is there")
    }

    /// Waits until what is shown is like this, and gives it.
    ///
    /// # Panics
    /// When it is not within a minute.
    pub fn wait_for(&self, what: &str, holds: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let shown = self.shown();
            if holds(&shown) {
                return shown;
            }
            assert!(Instant::now() < deadline, "waited in vain for {what}:\n{shown}");
            std::thread::sleep(LOOK_PERIOD);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-S", &self.socket, "kill-server"]).output();
    }
}
