//! `murmur report`: what came of a run, as one page, from journals alone.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::journals;
use crate::cli::ReportOptions;
use crate::console::output::StandardOutput;
use crate::console::{note, print_fitted};
use crate::failure::{ExitCode, Failure};
use crate::history::comparison::Compared;
use crate::history::{History, Measured, Names, Process, page};
use crate::observe::journal::Reading;
use crate::store::{COMPARISON_FILE, DataDirectory, Run, is_in_use, write_atomically};

/// How every page of ours begins.
const BEGINNING: &[u8] = b"<!doctype html>";

/// The output that is no file.
const STANDARD_OUTPUT: &str = "-";

/// A journal: where it is, and its files.
type Journal = (PathBuf, Vec<PathBuf>);

pub(super) fn run(options: &ReportOptions) -> anyhow::Result<()> {
    check_output(&options.output)?;
    let (text, verdict) = page_of(options)?;
    if options.output == Path::new(STANDARD_OUTPUT) {
        StandardOutput.write_all(text.as_bytes())?;
        note(&verdict);
        return Ok(());
    }
    // Whole or not at all, also where this is interrupted.
    let written = std::path::absolute(&options.output).and_then(|path| write_atomically(&path, text.as_bytes()));
    written.map_err(|error| unwritable(&options.output, &error))?;
    print_fitted(&verdict, 0);
    note(&format!("wrote {}: open it in a browser", options.output.display()));
    Ok(())
}

/// The page, and the sentence that it begins with.
///
/// # Errors
/// When there are no journals, or they are not of one run.
pub fn page_of(options: &ReportOptions) -> Result<(String, String), Failure> {
    let (history, measured) = read(journals_of(&options.what)?)?;
    let names = Names::new(&history, options.redact);
    let measured = Measured { command: command(options, &names), ..measured };
    Ok((page(&history, &names, &measured), names.verdict(&history)))
}

/// What is known before any work. Files of other people are not written over, nor what cannot be looked at.
fn check_output(output: &Path) -> Result<(), Failure> {
    if output == Path::new(STANDARD_OUTPUT) {
        return Ok(());
    }
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if output.is_dir() {
        let message = format!("{} is a folder", output.display());
        return Err(Failure::new(ExitCode::Files, message).hint("name a file, as in --output report.html"));
    }
    if !folder.is_dir() {
        let message = format!("there is no folder {}", folder.display());
        return Err(Failure::new(ExitCode::Files, message).hint("create it, or choose another place with --output"));
    }
    let refusal = |message: String| {
        let hint = "choose another file with --output; `--output -` writes the page to standard output";
        Err(Failure::new(ExitCode::Files, message).hint(hint))
    };
    match std::fs::metadata(output) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Ok(metadata) if !metadata.is_file() => return refusal(format!("{} is no file on a disk", output.display())),
        _ => {}
    }
    let mut beginning = Vec::new();
    let read = File::open(output).and_then(|file| file.take(BEGINNING.len() as u64).read_to_end(&mut beginning));
    match read {
        Err(error) => refusal(format!("{} is there and cannot be read: {error}", output.display())),
        Ok(_) if !beginning.is_empty() && beginning != BEGINNING => {
            refusal(format!("{} is there and is no report", output.display()))
        }
        Ok(_) => Ok(()),
    }
}

fn unwritable(output: &Path, error: &std::io::Error) -> Failure {
    Failure::new(ExitCode::Files, format!("cannot write {}: {error}", output.display()))
        .hint("choose another place with --output")
}

/// The journals that are meant: those of the run used last where nothing is said.
fn journals_of(what: &[PathBuf]) -> Result<Vec<Journal>, Failure> {
    if what.is_empty() {
        let found = Run::all_usual().into_iter().find_map(|run| Some((journals::at(&run.directory).ok()?, run)));
        let (journals, run) = found.ok_or_else(|| {
            let message = format!("no run in {} has a journal", DataDirectory::default_base().display());
            Failure::new(ExitCode::Files, message).hint(
                "`murmur local` and `murmur start` begin one; a data directory or a journal file elsewhere is given by its path",
            )
        })?;
        note(&format!("using       {}", run.directory.display()));
        return Ok(journals);
    }
    let mut all: Vec<Journal> = Vec::new();
    for word in what {
        let path = match journals::run_named(word) {
            Some(run) => run.directory,
            None if !word.exists() => {
                let message = format!("{} is no file or folder, and no run of this machine", word.display());
                return Err(Failure::new(ExitCode::Files, message)
                    .hint("`murmur list` shows the runs of this machine; journals are the files journal/*.jsonl"));
            }
            None => word.clone(),
        };
        all.extend(journals::at(&path)?);
    }
    Ok(all)
}

/// Reads them, one after the other.
fn read(journals: Vec<Journal>) -> Result<(History, Measured), Failure> {
    let mut history = History::default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let mut measured = Measured { now, ..Measured::default() };
    for (place, files) in journals {
        measured.against = measured.against.or_else(|| comparison(&place));
        let mut one = History::default();
        let mut reading = Reading::new(files);
        let mut records = 0;
        for record in &mut reading {
            one.apply(&record);
            records += 1;
        }
        let process = process_at(&place);
        one.nodes.values_mut().for_each(|node| node.process = process);
        measured.unreadable += reading.unreadable;
        measured.journals.push((place.display().to_string(), records));
        if let Some(node) = history.add(one) {
            let message = format!("{} is the journal of a node that was read before: {node}", place.display());
            return Err(Failure::new(ExitCode::CommandLine, message).hint("name each node's journal once"));
        }
    }
    let runs = history.runs();
    if runs.len() > 1 {
        let named: Vec<String> = runs.iter().map(|(id, name)| format!("{id} \u{201c}{name}\u{201d}")).collect();
        let message = format!("these journals are of different runs: {}", named.join(", "));
        return Err(Failure::new(ExitCode::CommandLine, message).hint("make a report of each"));
    }
    Ok((history, measured))
}

/// What `murmur local --against alone` has left beside a node's directory, where it has; or why that cannot be read.
fn comparison(place: &Path) -> Option<Result<Compared, String>> {
    match std::fs::read(place.parent()?.join(COMPARISON_FILE)) {
        Ok(text) => Some(serde_json::from_slice(&text).map_err(|error| error.to_string())),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => Some(Err(error.to_string())),
    }
}

/// What the data directory that a journal lies in says of its process: a killed one is known at once, and one whose machine has
/// slept is not taken for killed.
fn process_at(place: &Path) -> Process {
    let place = place.canonicalize().unwrap_or_else(|_| place.to_owned());
    // A data directory, its folder `journal`, or a file in that.
    match place.ancestors().take(3).find(|folder| folder.join("identity.key").is_file()) {
        Some(folder) if is_in_use(folder) => Process::Runs,
        Some(_) => Process::Gone,
        None => Process::Elsewhere,
    }
}

fn command(options: &ReportOptions, names: &Names) -> String {
    let mut words = vec!["murmur".to_owned(), "report".to_owned()];
    let place = |path: &Path| if options.redact { names.path(&path.display().to_string()) } else { quoted(path) };
    words.extend(options.what.iter().map(|path| place(path)));
    words.extend(["--output".to_owned(), place(&options.output)]);
    words.extend(options.redact.then(|| "--redact".to_owned()));
    words.join(" ")
}

/// As a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = text.chars().all(|letter| letter.is_alphanumeric() || "/._-~:".contains(letter));
    if is_plain && !text.is_empty() { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_is_none_only_where_there_is_no_file() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let node = folder.path().join("node-0");
        assert!(comparison(&node).is_none());
        let known = r#"{"together": 1.0, "alone": 2.0, "least": -1.0, "most": -1.0}"#;
        let text = |speed: &str| {
            format!(
                "{{\"seeds\": 1, \"nodes\": 2, \"target\": 2.0, \"at_equal_steps\": {known}, \"at_equal_time\": null, \
                 \"seconds_to_target\": {known}, \"tokens_per_second\": {speed}}}"
            )
        };
        let read = |text: &str| {
            std::fs::write(folder.path().join(COMPARISON_FILE), text).expect("written");
            comparison(&node).expect("there")
        };
        assert!(read(&text(known)).is_ok_and(|compared| compared.at_equal_steps.alone == 2.0));
        let unknown = known.replace("1.0, \"alone\"", "null, \"alone\"");
        assert!(read(&text(&unknown)).is_err_and(|reason| reason.contains("null")));
    }

    #[test]
    fn a_daemon_runs_as_long_as_it_has_its_lock_and_of_a_copy_nobody_knows() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (node, copy) = (folder.path().join("node"), folder.path().join("copy"));
        for folder in [&node, &copy] {
            std::fs::create_dir_all(folder.join("journal")).expect("created");
        }
        std::fs::write(node.join("identity.key"), "").expect("written");
        let lock = File::create(node.join("lock")).expect("created");
        lock.lock().expect("free");
        let journal = node.join("journal");
        assert_eq!([&node, &journal].map(|place| process_at(place)), [Process::Runs; 2]);
        lock.unlock().expect("held");
        assert_eq!([&node, &journal].map(|place| process_at(place)), [Process::Gone; 2]);
        assert_eq!(process_at(&copy.join("journal")), Process::Elsewhere);
    }

    #[test]
    fn only_a_page_of_ours_is_written_over() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("report.html");
        assert!(check_output(&path).is_ok() && check_output(Path::new("-")).is_ok());
        for (content, is_ours) in
            [("", true), ("<!doctype html>\n<title>", true), ("<!doctype", false), ("mine", false)]
        {
            std::fs::write(&path, content).expect("written");
            assert_eq!(check_output(&path).is_ok(), is_ours, "{content}");
        }
        if cfg!(unix) {
            let failure = check_output(Path::new("/dev/null")).expect_err("no file");
            assert!(failure.remedy().contains("--output -"), "{failure}");
        }
        // A file in the place of a folder: whatever is there cannot be looked at.
        assert!(check_output(&path.join("page.html")).is_err());
    }
}
