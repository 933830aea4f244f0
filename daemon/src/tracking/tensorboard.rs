//! Writes what a node tells into event files, which TensorBoard draws while they grow.
//!
//! A node has a folder of its own, `<run>/<node>` below the one that its owner names, and each process a file in it. The step
//! axis is the node's own steps. A process that goes on from a checkpoint says from which step: TensorBoard then forgets the
//! later ones of the process before, and curves do not go back. It does so for all files of a folder (tensorboard#1519), so
//! nodes do not share one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use super::event_file::{Event, EventFile};
use super::scalars::Thinning;
use crate::console::figures::counted;
use crate::console::{note, short};
use crate::observe::hub::Told;
use crate::observe::record::{Body, Record, RunFacts};

/// The longest part of a folder's name that is a name, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Event files of one node.
#[derive(Debug)]
pub struct TensorBoard {
    file: EventFile,
    folder: PathBuf,
    /// The run, `section.key = value` on each line, shown as a text.
    run_file: String,
    thinning: Thinning,
    /// Events that could not be written since the last that could.
    lost: u64,
    /// Records that the hub has dropped because the disk was too slow for them.
    missed: u64,
    has_warned: bool,
}

impl TensorBoard {
    /// Begins a file for a process, below `directory`. `run_file` is shown beside the curves.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn create(directory: &Path, peer: &str, facts: &RunFacts, run_file: &str) -> io::Result<TensorBoard> {
        let folder = folder_of(directory, peer, facts);
        let file = EventFile::create(&folder, facts.session as f64 / 1000.0, short(peer))?;
        let run_file = run_file.to_owned();
        Ok(TensorBoard { file, folder, run_file, thinning: Thinning::default(), lost: 0, missed: 0, has_warned: false })
    }

    /// Where the node's files lie.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes what comes, on a thread of its own, until the hub closes.
    pub fn start(mut self, records: Receiver<Arc<Told>>) -> std::thread::JoinHandle<()> {
        let work = move || records.iter().for_each(|told| self.take(&told.record));
        std::thread::Builder::new().name("tensorboard".to_owned()).spawn(work).expect("the system gives a thread")
    }

    fn take(&mut self, record: &Record) {
        let time = record.t as f64 / 1000.0;
        match &record.body {
            Body::Run(facts) => {
                self.thinning.begin();
                self.write(&Event::session_start(time, facts.first_step));
                let about = Event::text(time, facts.first_step, "run", &described(facts, &record.node, &self.run_file));
                self.write(&about);
            }
            Body::Sample(sample) => {
                let chosen = self.thinning.choose(record.up, sample);
                if !chosen.is_empty() {
                    self.write(&Event::scalars(time, sample.steps, &chosen));
                }
            }
            Body::Missed(missed) if missed.of == "records" => {
                if self.missed == 0 {
                    let folder = self.folder.display();
                    note(&format!(
                        "warning: the disk of {folder} is slow: some points are not drawn; training goes on"
                    ));
                    note("hint: a folder on a disk of this machine is quicker than one on the network");
                }
                self.missed += missed.count;
            }
            Body::End(_) if self.missed > 0 => {
                note(&format!("            TensorBoard's files lack {}", counted(self.missed, "record")));
            }
            _ => {}
        }
    }

    /// Writes an event. Where that fails it is said once, counted, and the next is tried all the same.
    fn write(&mut self, event: &Event) {
        match self.file.write(event) {
            Ok(()) if self.lost > 0 => {
                note(&format!("            TensorBoard's files go on, without {}", counted(self.lost, "point")));
                self.lost = 0;
            }
            Ok(()) => {}
            Err(error) => {
                self.lost += 1;
                if !std::mem::replace(&mut self.has_warned, true) {
                    let path = self.file.path().display();
                    note(&format!("warning: cannot write {path}: {error}; training goes on"));
                    note("hint: is the disk full? later points are written once there is room");
                }
            }
        }
    }
}

/// The folder of a node. Names come from a run file, which may be another's, so nothing in them leads elsewhere.
fn folder_of(directory: &Path, peer: &str, facts: &RunFacts) -> PathBuf {
    let node = match &facts.name {
        Some(name) => format!("{}-{}", harmless(name), short(peer)),
        None => short(peer).to_owned(),
    };
    directory.join(harmless(&facts.run_name)).join(node)
}

/// A name as every file system takes it: letters, digits, `-`, `_` and `.`, which does not come first.
fn harmless(name: &str) -> String {
    let allowed = |letter: char| letter.is_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let replaced = name.trim().chars().map(|letter| if allowed(letter) { letter } else { '_' });
    let mut kept = String::new();
    for letter in replaced {
        let letter = if kept.is_empty() && letter == '.' { '_' } else { letter };
        if kept.len() + letter.len_utf8() > NAME_BYTES_MAX {
            break;
        }
        kept.push(letter);
    }
    if kept.is_empty() { "unnamed".to_owned() } else { kept }
}

/// A process and its run as Markdown. Indented by four spaces, a run file stays as it is.
fn described(facts: &RunFacts, node: &str, run_file: &str) -> String {
    let name = facts.name.as_deref().unwrap_or("-");
    let rows = [
        ("run", facts.run.clone()),
        ("node", node.to_owned()),
        ("name", name.replace('|', "\\|")),
        ("murmur", facts.version.clone()),
        ("device", facts.device.clone()),
        ("parameters", facts.parameters.to_string()),
        ("first step", facts.first_step.to_string()),
    ];
    let rows: String = rows.iter().map(|(key, value)| format!("| {key} | {value} |\n")).collect();
    let file: String = run_file.lines().map(|line| format!("    {line}\n")).collect();
    format!("| | |\n|---|---|\n{rows}\n{file}")
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::observe::Hub;
    use crate::observe::record::Sample;

    #[test]
    fn no_name_leads_out_of_the_folder() {
        let root = Path::new("logs");
        for name in ["..", "../../etc", "/etc/passwd", "a:b\\c", "", ".hidden", "\u{202e}x", &"ü".repeat(99)] {
            let facts = RunFacts { run_name: name.to_owned(), name: Some(name.to_owned()), ..RunFacts::default() };
            let folder = folder_of(root, "12D3KooWabcdefgh", &facts);
            let below: Vec<_> = folder.strip_prefix(root).expect("below").components().collect();
            assert_eq!(below.len(), 2, "{folder:?}");
            assert!(below.iter().all(|part| matches!(part, std::path::Component::Normal(_))), "{folder:?}");
            assert!(folder.to_string_lossy().len() < 180 && folder.ends_with(below[1]), "{folder:?}");
        }
        let facts = RunFacts { run_name: "stories".to_owned(), ..RunFacts::default() };
        assert_eq!(folder_of(root, "12D3KooWabcdefgh", &facts), Path::new("logs/stories/abcdefgh"));
    }

    #[test]
    fn what_a_node_tells_is_in_its_file_when_the_hub_has_closed() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let facts = RunFacts { run_name: "r".to_owned(), session: 1_700_000_000_000, ..RunFacts::default() };
        let sink = TensorBoard::create(folder.path(), "12D3KooWabcdefgh", &facts, "[model]").expect("written");
        let path = sink.file.path().to_owned();
        let hub = Hub::new("12D3KooWabcdefgh", 0, Instant::now());
        let thread = sink.start(hub.sink(16));
        hub.tell(Body::Run(facts));
        let sample = |steps| Box::new(Sample { steps, loss: Some(2.5), ..Sample::default() });
        (1..=3).for_each(|steps| hub.tell(Body::Sample(sample(steps))));
        hub.close();
        thread.join().expect("it ends");
        let bytes = std::fs::read(&path).expect("there");
        let found = |what: &[u8]| bytes.windows(what.len()).filter(|part| *part == what).count();
        // Tag, field 2 as a float, 2.5.
        assert_eq!(found(b"loss/train\x15\0\0\x20\x40"), 3);
        assert_eq!((found(b"brain.Event:2"), found(b"    [model]"), found(b"\x3a\x02\x08\x01")), (1, 1, 1));
    }
}
