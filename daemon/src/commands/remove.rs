//! `murmur remove`: deletes a run of this machine.

use std::io::{BufRead, IsTerminal, Write};

use super::client;
use crate::cli::RemoveOptions;
use crate::console::{human_bytes, note, print_line};
use crate::failure::{ExitCode, Failure};
use crate::store::{Run, bytes_in, left_by_a_start, remove};

pub(super) fn run(options: &RemoveOptions) -> anyhow::Result<()> {
    // Several may have one name in their run files: what is deleted is named as `murmur list` shows it.
    let run = Run::in_folder(&options.run).or_else(|| left_by_a_start(&options.run));
    let run = run.ok_or_else(|| client::no_run(&options.run))?;
    if run.is_in_use() {
        return Err(in_use(&run).into());
    }
    if !options.yes && !agreed(&run)? {
        note("nothing is removed");
        return Ok(());
    }
    let removed = remove(&run).map_err(|error| match error.kind() {
        std::io::ErrorKind::WouldBlock => in_use(&run),
        _ => Failure::new(ExitCode::Files, format!("cannot remove all of {}: {error}", run.directory.display()))
            .hint("may this user write there?"),
    })?;
    if removed.left > 0 {
        note(&format!("files that murmur has not written stay in {}", run.directory.display()));
    }
    print_line(&format!("removed {}, {} freed", run.directory.display(), human_bytes(removed.bytes)));
    Ok(())
}

fn in_use(run: &Run) -> Failure {
    Failure::new(ExitCode::Files, format!("a daemon uses {}", run.directory.display()))
        .hint(format!("murmur stop {}", crate::console::quoted(&run.directory)))
}

fn agreed(run: &Run) -> Result<bool, Failure> {
    let what = format!("{} ({})", run.directory.display(), human_bytes(bytes_in(&run.directory)));
    if !std::io::stdin().is_terminal() {
        let failure = Failure::new(ExitCode::Failure, format!("{what} would be removed, and nobody can be asked"));
        return Err(failure.hint("--yes removes it without asking"));
    }
    eprint!("Remove {what}, with its identity and checkpoints? [y/N] ");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
