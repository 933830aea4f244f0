//! Standard output, and what happens when it cannot be written.
//!
//! A command ends as Unix tools do: quietly where nobody reads on (`murmur sample | head`), and with an error where what it
//! wrote is lost (`> /dev/full`). A daemon goes on training whatever becomes of its lines; it says once that they are lost,
//! and ends with that error.

use std::io::{self, Write};
use std::sync::OnceLock;

use crate::failure::{ExitCode, Failure, report};

/// What goes on without the output of this process, if anything does.
static GOES_ON: OnceLock<&str> = OnceLock::new();

/// Why lines of a process that goes on were lost.
static LOST: OnceLock<String> = OnceLock::new();

/// Standard output of this process. Its errors end the process, or are kept for the end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StandardOutput;

impl Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        io::stdout().lock().write_all(bytes).unwrap_or_else(|error| failed(&error));
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().lock().flush().unwrap_or_else(|error| failed(&error));
        Ok(())
    }
}

/// From now on the process goes on without its output: a daemon, which is there to train, or what writes files.
pub(crate) fn go_on_without_output(what: &'static str) {
    let _ = GOES_ON.set(what);
}

/// The failure with which a process ends that went on; nothing where all was written, or nobody read.
pub(crate) fn lost_output() -> Option<Failure> {
    LOST.get().map(|reason| failure(reason))
}

/// What follows when standard output cannot be written.
pub(crate) fn failed(error: &io::Error) {
    let is_closed = error.kind() == io::ErrorKind::BrokenPipe;
    if let Some(what) = GOES_ON.get() {
        if !is_closed && LOST.set(error.to_string()).is_ok() {
            super::note(&format!("warning: {}; {what} goes on", failure(&error.to_string())));
        }
        return;
    }
    let code = if is_closed { 0 } else { report(&failure(&error.to_string()).into()) };
    std::process::exit(code.into());
}

fn failure(reason: &str) -> Failure {
    Failure::new(ExitCode::Files, format!("cannot write to standard output: {reason}"))
        .hint("is the disk full, or the file of another user?")
}
