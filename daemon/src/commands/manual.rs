//! `murmur completions` and `murmur man`: what shells and `man` know of the command line.

use std::path::Path;

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
    let written = std::fs::create_dir_all(directory).and_then(|()| write_pages(with_usage(command), directory));
    written.map_err(|error| {
        Failure::new(ExitCode::Files, format!("cannot write man pages into {}: {error}", directory.display()))
            .hint("choose a folder that this user may write to")
    })?;
    print_line(&directory.display().to_string());
    Ok(())
}

fn write_pages(command: clap::Command, directory: &Path) -> std::io::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_pages(below.clone(), directory)?;
    }
    let (page, mut text) = (clap_mangen::Man::new(command), Vec::new());
    page.render(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    // clap_mangen writes an empty date as nothing, so that what stands behind it would be the date.
    let title = text.lines().find(|line| line.starts_with(".TH ")).unwrap_or_default();
    let name = title.split(' ').nth(1).unwrap_or_default();
    let whole = format!(".TH {name} 1 \"\" \"murmur {}\" \"Murmuration\"", env!("CARGO_PKG_VERSION"));
    std::fs::write(directory.join(page.get_filename()), text.replacen(title, &whole, 1))
}

/// With the usage that `--help` shows, of this command and of those below it (a synopsis of all options would fill a page), and a
/// section for arguments.
fn with_usage(mut command: clap::Command) -> clap::Command {
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim().to_owned();
    // What has no dash is no option.
    let headed =
        |argument: clap::Arg| if argument.is_positional() { argument.help_heading("Arguments") } else { argument };
    command.override_usage(usage).mut_args(headed).mut_subcommands(with_usage)
}
