//! `murmur watch`: what the words after it mean, before the screen is taken over.

use std::io::IsTerminal;
use std::path::Path;

use super::client::{self, Client};
use super::journals;
use crate::cli::WatchOptions;
use crate::console::{screen, wants_ascii};
use crate::failure::{ExitCode, Failure};
use crate::observe::report::NodeReport;
use crate::store::{Run, RunningDaemon};
use crate::watch::{self, Options, Source};

pub(super) fn run(options: &WatchOptions) -> anyhow::Result<()> {
    let sources = match options.what.as_slice() {
        [] => running()?,
        what => what.iter().map(|word| sources(word)).collect::<Result<Vec<_>, _>>()?.concat(),
    };
    if !std::io::stdout().is_terminal() || !screen::knows_moves() {
        let message = "`murmur watch` draws on a terminal that can move its cursor, and this is none";
        let hint = match sources.first() {
            Some(Source::Daemon(address)) => {
                format!(
                    "`murmur status` prints once; `curl http://{address}/api/v1/records` prints what happens as JSON"
                )
            }
            _ => "a journal is text, a line of JSON for each record: `tail`, `jq` and pandas read it".to_owned(),
        };
        return Err(Failure::new(ExitCode::CommandLine, message).hint(hint).into());
    }
    let options = Options {
        speed: options.speed,
        is_ascii: options.ascii || wants_ascii(),
        has_colours: !screen::declines_colours(),
    };
    Ok(watch::run(sources, options)?)
}

/// The daemons of this machine, the one that started last first.
fn running() -> Result<Vec<Source>, Failure> {
    let found = client::running(None)?;
    if found.is_empty() {
        // One whose directory is not known here may still answer where daemons usually do.
        let client = Client::find(None, None)?;
        return match client.get::<NodeReport>("status") {
            Ok(_) => Ok(vec![Source::Daemon(client.address)]),
            Err(_) => Err(Failure::new(ExitCode::Network, "no daemon runs on this machine").hint(
                "`murmur start` begins one; `murmur watch` also takes an address, a data directory or a journal file",
            )),
        };
    }
    let sources = daemons(found.into_iter().map(|(_, daemon)| daemon));
    if sources.is_empty() {
        return Err(Failure::new(ExitCode::Network, "no daemon on this machine has a status page")
            .hint("start one without --status-address off"));
    }
    Ok(sources)
}

fn daemons(daemons: impl Iterator<Item = RunningDaemon>) -> Vec<Source> {
    daemons.filter_map(|daemon| Some(Source::Daemon(daemon.address_here()?.to_owned()))).collect()
}

/// What one word means: a file, a folder, an address, or the name of a run.
fn sources(word: &str) -> Result<Vec<Source>, Failure> {
    let path = Path::new(word);
    let named = journals::run_named(path);
    if path.exists() && named.is_none() {
        let live = Run::open(path).map_or_else(Vec::new, |run| daemons(run.daemons().into_iter().map(|(_, it)| it)));
        return if live.is_empty() { journals(path) } else { Ok(live) };
    }
    let is_address = word.starts_with("http://") || (word.contains(':') && !word.contains('/'));
    if is_address {
        let client = Client::find(Some(word), None)?;
        client.get::<NodeReport>("status")?;
        return Ok(vec![Source::Daemon(client.address)]);
    }
    let Some(run) = named else {
        let message = format!("{word:?} is no address, no file or folder, and no run of this machine");
        return Err(Failure::new(ExitCode::Files, message)
            .hint("an address is like 127.0.0.1:4780; `murmur list` shows the runs of this machine"));
    };
    let live = daemons(run.daemons().into_iter().map(|(_, daemon)| daemon));
    if live.is_empty() { journals(&run.directory) } else { Ok(live) }
}

/// The journals at a path: a file, a data directory, or the folder of a swarm of `murmur local`.
fn journals(path: &Path) -> Result<Vec<Source>, Failure> {
    let found = journals::at(path)?;
    Ok(found.into_iter().map(|(place, files)| Source::Journal(place.display().to_string(), files)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_watched_is_answered_with_what_can() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let file = folder.path().join("notes.txt");
        std::fs::write(&file, "nothing of ours\n").expect("written");
        let failure = |word: &str| sources(word).expect_err("nothing to watch");
        let file = failure(file.to_str().expect("UTF-8"));
        assert!(file.to_string().contains("is no journal") && file.remedy().contains("journal/*.jsonl"), "{file}");
        let empty = failure(folder.path().to_str().expect("UTF-8"));
        assert!(empty.to_string().contains("there is no journal in it"), "{empty}");
        let nobody = failure("127.0.0.1:1");
        assert!(nobody.to_string().contains("no daemon answers at 127.0.0.1:1"), "{nobody}");
        let nothing = failure("no-such-run");
        assert!(
            nothing.to_string().contains("no run of this machine") && nothing.remedy().contains("4780"),
            "{nothing}"
        );
    }
}
