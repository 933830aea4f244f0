//! Writes what a node is told and decides to a file, on a thread of its own: `--record-core`.
//!
//! The engine never waits for the disk. Where that is too slow, or the file has reached its size, the recording ends and says so.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use murmur_protocol::replay::{Ending, Recording, Told};
use murmur_protocol::{Config, ModelLayout, PeerId, RunManifest, Time};

use crate::console::note;

/// Events that wait for the disk: some seconds of a busy node, a few megabytes at most.
const WAITING_MAX: usize = 4096;

/// A file of this size is full: a day or more of a node, by a guess of 200 bytes an event and ten events a second.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// What is written reaches the file at least so often, so that a process that is killed leaves almost everything.
const FLUSH_PERIOD: Duration = Duration::from_millis(500);

/// A recording in the making.
#[derive(Debug)]
pub struct Recorder {
    recording: Recording,
    pieces: SyncSender<Vec<u8>>,
    /// What is written after all pieces.
    last: SyncSender<Vec<u8>>,
    thread: JoinHandle<io::Result<()>>,
    path: PathBuf,
    bytes: u64,
    bytes_max: u64,
}

impl Recorder {
    /// Begins the file, which only its owner may read, with all that makes the node: its configuration, its id, the layout of
    /// its model and its seed.
    ///
    /// # Errors
    /// When it cannot be written, or is there already.
    pub fn begin(
        path: &Path,
        manifest: &RunManifest,
        config: &Config,
        node: (PeerId, &ModelLayout, u64),
    ) -> io::Result<Recorder> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path)?;
        let (me, layout, seed) = node;
        let made = (me, layout, seed, Time::ZERO);
        let (recording, bytes) = Recording::begin(env!("CARGO_PKG_VERSION"), manifest, config, made);
        file.write_all(&bytes)?;
        let (pieces, waiting) = sync_channel(WAITING_MAX);
        let (last, ending) = sync_channel(1);
        let work = move || write(file, &waiting, &ending);
        let thread = std::thread::Builder::new().name("recorder".to_owned()).spawn(work)?;
        let (path, bytes, bytes_max) = (path.to_owned(), bytes.len() as u64, FILE_BYTES_MAX);
        Ok(Recorder { recording, pieces, last, thread, path, bytes, bytes_max })
    }

    /// Records an event, or the node's making. None where the recording has ended.
    pub(super) fn event(
        mut self,
        now: Time,
        told: Option<Told>,
        effects: Vec<u32>,
        deadline: Option<Time>,
    ) -> Option<Recorder> {
        let mut before = self.recording.clone();
        let piece = self.recording.event(now, told, effects, deadline);
        self.bytes += piece.len() as u64;
        let path = self.path.display();
        if self.bytes > self.bytes_max {
            note(&format!("warning: the recording {path} is as large as it may be: it ends, training goes on"));
            let _ = self.last.try_send(before.end(Ending::Full));
            return None;
        }
        match self.pieces.try_send(piece) {
            Ok(()) => return Some(self),
            Err(TrySendError::Full(_)) => {
                note(&format!("warning: the disk is too slow for the recording {path}: it ends, training goes on"));
                let _ = self.last.try_send(before.end(Ending::Overtaken));
            }
            Err(TrySendError::Disconnected(_)) => {
                let error = self.thread.join().ok().and_then(Result::err);
                let reason = error.map_or_else(String::new, |error| format!(": {error}"));
                note(&format!("warning: cannot write the recording {path}{reason}; it ends, training goes on"));
            }
        }
        None
    }

    /// Ends the recording in order, and waits until it is written.
    pub fn end(mut self) {
        let _ = self.last.try_send(self.recording.end(Ending::Whole));
        drop(self.pieces);
        let written = self.thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread has ended")));
        if let Err(error) = written {
            note(&format!("warning: cannot write the recording {}: {error}", self.path.display()));
        }
    }
}

fn write(file: File, waiting: &Receiver<Vec<u8>>, ending: &Receiver<Vec<u8>>) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    let mut flushed = Instant::now();
    loop {
        match waiting.recv_timeout(FLUSH_PERIOD) {
            Ok(piece) => file.write_all(&piece)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if flushed.elapsed() >= FLUSH_PERIOD {
            file.flush()?;
            flushed = Instant::now();
        }
    }
    if let Ok(last) = ending.try_recv() {
        file.write_all(&last)?;
    }
    file.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use murmur_protocol::replay::check;
    use murmur_protocol::{Event, replay};

    fn begin(folder: &Path) -> (Recorder, murmur_protocol::Node, PathBuf) {
        let path = folder.join("core");
        let manifest = RunManifest::default();
        let config = Config::founder(&manifest);
        let layout = std::sync::Arc::new(ModelLayout::new([("weight".to_owned(), vec![300])]));
        let me = PeerId::from_public_key([1; 32]);
        let recorder = Recorder::begin(&path, &manifest, &config, (me, &layout, 5)).expect("a new file");
        let node = murmur_protocol::Node::new(config, me, layout, 5, Time::ZERO);
        (recorder, node, path)
    }

    /// Records so many deadlines; whether it still records, and how the file says that it ended.
    fn record(recorder: Recorder, mut node: murmur_protocol::Node, path: &Path, events: u64) -> replay::Checked {
        let mut recorder = Some(recorder);
        let mut now = Time::ZERO;
        for number in 0..=events {
            let event = (number > 0).then_some(Event::TimePassed);
            let told = event.as_ref().map(replay::told);
            if let Some(event) = event {
                now = node.next_deadline().map_or(now, |deadline| deadline.max(now));
                node.handle(now, event);
            }
            let digests = std::iter::from_fn(|| node.poll_effect()).map(|effect| replay::digest(&effect)).collect();
            recorder = recorder.and_then(|recorder| recorder.event(now, told, digests, node.next_deadline()));
        }
        match recorder {
            Some(recorder) => recorder.end(),
            None => {
                // Its thread ends by itself.
                let deadline = Instant::now() + Duration::from_secs(20);
                let ending =
                    || check(&std::fs::read(path).expect("there"), env!("CARGO_PKG_VERSION")).map(|it| it.ending);
                while ending() == Ok(Ending::BrokenOff) {
                    assert!(Instant::now() < deadline, "its end is not written");
                    std::thread::yield_now();
                }
            }
        }
        check(&std::fs::read(path).expect("there"), env!("CARGO_PKG_VERSION")).expect("sound")
    }

    #[test]
    fn a_recording_is_whole_or_says_why_it_is_not() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (recorder, node, path) = begin(folder.path());
        let whole = record(recorder, node, &path, 50);
        assert_eq!((whole.events, whole.ending, whole.difference), (50, Ending::Whole, None));
        assert!(
            Recorder::begin(
                &path,
                &RunManifest::default(),
                &Config::founder(&RunManifest::default()),
                (PeerId::from_public_key([1; 32]), &ModelLayout::new([]), 5)
            )
            .is_err(),
            "it is not written over"
        );
        std::fs::remove_file(&path).expect("there");
        let (mut recorder, node, path) = begin(folder.path());
        recorder.bytes_max = recorder.bytes + 300;
        let full = record(recorder, node, &path, 50);
        assert!(full.ending == Ending::Full && full.events < 50 && full.difference.is_none(), "{full:?}");
    }

    #[test]
    fn an_engine_that_is_faster_than_the_disk_goes_on_without_a_recording() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (mut recorder, node, path) = begin(folder.path());
        // A disk that takes nothing until the recorder is gone.
        let (pieces, waiting) = sync_channel(3);
        let (last, ending) = sync_channel(1);
        let gone = std::sync::Arc::new(());
        let held = gone.clone();
        let file = OpenOptions::new().append(true).open(&path).expect("there");
        (recorder.pieces, recorder.last) = (pieces, last);
        recorder.thread = std::thread::spawn(move || {
            while std::sync::Arc::strong_count(&held) > 1 {
                std::thread::yield_now();
            }
            write(file, &waiting, &ending)
        });
        let mut node = node;
        let mut recorder = Some(recorder);
        for number in 0..10 {
            let told = (number > 0).then(|| replay::told(&Event::TimePassed));
            if number > 0 {
                node.handle(Time::ZERO, Event::TimePassed);
            }
            let digests = std::iter::from_fn(|| node.poll_effect()).map(|effect| replay::digest(&effect)).collect();
            recorder = recorder.and_then(|it| it.event(Time::ZERO, told, digests, node.next_deadline()));
        }
        assert!(recorder.is_none(), "three pieces wait, and the fourth ends it");
        drop(gone);
        let deadline = Instant::now() + Duration::from_secs(20);
        let checked = || check(&std::fs::read(&path).expect("there"), env!("CARGO_PKG_VERSION")).expect("sound");
        while checked().ending == Ending::BrokenOff {
            assert!(Instant::now() < deadline, "its end is not written");
            std::thread::yield_now();
        }
        assert_eq!((checked().ending, checked().events, checked().difference), (Ending::Overtaken, 2, None));
    }
}
