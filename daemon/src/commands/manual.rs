//! `murmur completions` and `murmur man`: what shells and `man` know of the command line.

use crate::cli::{self, CompletionsOptions, ManOptions};
use crate::console::print_line;
use crate::failure::{ExitCode, Failure};

pub(super) fn completions(options: &CompletionsOptions) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(options.shell, &mut cli::command(), "murmur", &mut text);
    print_line(String::from_utf8(text)?.trim_end());
    Ok(())
}

pub(super) fn pages(options: &ManOptions) -> Result<(), Failure> {
    let directory = &options.directory;
    let mut command = cli::command().disable_help_subcommand(true);
    command.build();
    let written =
        std::fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(with_usage(command), directory));
    written.map_err(|error| {
        Failure::new(ExitCode::Files, format!("cannot write man pages into {}: {error}", directory.display()))
            .hint("choose a folder that this user may write to")
    })?;
    print_line(&directory.display().to_string());
    Ok(())
}

/// With the usage that `--help` shows, of this command and of those below it: a synopsis of all options would fill a page.
fn with_usage(mut command: clap::Command) -> clap::Command {
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim().to_owned();
    command.override_usage(usage).mut_subcommands(with_usage)
}
