//! `murmur logs`: what a daemon in the background has written.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::client;
use crate::cli::LogsOptions;
use crate::console::note;
use crate::console::output::StandardOutput;
use crate::failure::{ExitCode, Failure};
use crate::process::background::{ROTATED, log_path};
use crate::store::{Run, is_in_use};

/// How often it is looked for more.
const PERIOD: Duration = Duration::from_millis(200);

pub(super) fn run(options: &LogsOptions) -> anyhow::Result<()> {
    let node = node(options)?;
    let path = log_path(&node);
    let mut text: Vec<u8> = Vec::new();
    for number in (1..=ROTATED).rev() {
        text.extend(std::fs::read(path.with_extension(format!("log.{number}"))).unwrap_or_default());
    }
    let mut current = File::open(&path).map_err(|error| {
        let failure = Failure::new(ExitCode::Files, format!("cannot read {}: {error}", path.display()));
        failure.hint("only the user whose daemon wrote it may read it: run this as that user")
    })?;
    current.read_to_end(&mut text)?;
    if options.run.is_none() {
        note(&format!("using       {}", path.display()));
    }
    if text.is_empty() {
        note(&format!("{} is empty: its daemon has warned of nothing", path.display()));
    }
    let mut output = StandardOutput;
    output.write_all(last_lines(&text, options.lines))?;
    if !options.follow {
        return Ok(());
    }
    loop {
        let was_in_use = is_in_use(&node);
        let mut more = Vec::new();
        current.read_to_end(&mut more)?;
        if !more.is_empty() {
            output.write_all(&more)?;
            output.flush()?;
            continue;
        }
        if has_rotated(&mut current, &path) {
            current = File::open(&path)?;
            continue;
        }
        if !was_in_use {
            note("the daemon has ended");
            return Ok(());
        }
        std::thread::sleep(PERIOD);
    }
}

/// Whether the file under this name is another one by now: it is shorter than what has been read.
fn has_rotated(current: &mut File, path: &Path) -> bool {
    let read = current.stream_position().unwrap_or(0);
    std::fs::metadata(path).is_ok_and(|metadata| metadata.len() < read)
}

/// The data directory whose log is meant.
fn node(options: &LogsOptions) -> Result<PathBuf, Failure> {
    let written = |node: &PathBuf| std::fs::metadata(log_path(node)).and_then(|metadata| metadata.modified()).ok();
    let runs = match &options.run {
        Some(run) => vec![client::named(run)?],
        None => Run::all(),
    };
    // Where daemons run, the one that `murmur status` asks; else the one that has written last.
    let running = client::running(options.run.as_deref()).unwrap_or_default();
    if let Some((node, _)) = running.into_iter().find(|(node, _)| written(node).is_some()) {
        return Ok(node);
    }
    let nodes = runs.iter().flat_map(|run| &run.nodes);
    let latest: Option<(SystemTime, &PathBuf)> = nodes.filter_map(|node| Some((written(node)?, node))).max();
    latest.map(|(_, node)| node.clone()).ok_or_else(|| {
        let message = match runs.as_slice() {
            [run] if options.run.is_some() => format!("{} has no log", run.directory.display()),
            _ => "no run of this machine has a log".to_owned(),
        };
        Failure::new(ExitCode::Files, message)
            .hint("daemons in the background write one (`murmur start -d`); others write to their terminal")
    })
}

fn last_lines(text: &[u8], lines: usize) -> &[u8] {
    let complete = text.strip_suffix(b"\n").unwrap_or(text);
    if lines == 0 {
        return &[];
    }
    let ends = complete.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    ends.map(|(index, _)| index + 1).nth(lines - 1).map_or(text, |begin| &text[begin..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_shown_whole() {
        assert_eq!(last_lines(b"a\nb\nc\n", 2), b"b\nc\n");
        assert_eq!(last_lines(b"a\nb\nc", 1), b"c");
        assert_eq!(last_lines(b"a\nb\n", 9), b"a\nb\n");
        assert_eq!(last_lines(b"a\nb\n", 0), b"");
        assert_eq!(last_lines(b"", 3), b"");
    }
}
