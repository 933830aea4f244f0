//! `mlflow.json`: what an MLflow server has of a node, so that another process goes on from there.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::observe::cursor::Cursor;
use crate::observe::journal;
use crate::store::write_private;
use crate::tracking::scalars::Thinning;

/// The file in a data directory.
pub(crate) const FILE: &str = "mlflow.json";

/// What a server has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Sent {
    /// The server's address, without a password.
    pub(super) server: String,
    /// The node's peer id: in a copied data directory with an identity of its own it is another one. Empty in older files.
    pub(super) node: String,
    /// The id of the experiment; empty: not known yet.
    pub(super) experiment_id: String,
    /// The id of the run, which the server has chosen; empty: none yet.
    pub(super) run_id: String,
    /// Where the run's files belong.
    pub(super) artifact_uri: String,
    /// Everything before this place of the journal is there.
    pub(super) journal: Cursor,
    /// Which samples are sent.
    pub(super) thinning: Thinning,
    /// The process that was told of last: when it began, in milliseconds since 1970.
    pub(super) session: i64,
    /// Processes that were told of.
    pub(super) sessions: u64,
    /// Own steps of the complete model that is still to be sent.
    pub(super) model_steps: Option<u64>,
    /// BLAKE3 of the model that was sent.
    pub(super) model_hash: Option<String>,
}

/// The numbers of a node's last records as its process begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastRecords {
    /// Of the last one in the journal.
    pub written: u64,
    /// Of the last one that was told, by all that the node keeps; no less than `written`. The next has a higher number.
    pub told: u64,
}

impl Sent {
    /// What a server has of this node, which has this data directory. A journal that has fewer records than were sent has lost its
    /// end, as in a power cut, or was begun anew: what it has is sent or gone, and it goes on with what comes next.
    pub(super) fn load(root: &Path, server: &str, node: &str, last: LastRecords) -> Sent {
        let read = std::fs::read(root.join(FILE)).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let is_of_node = |sent: &Sent| sent.node.is_empty() || sent.node == node;
        let sent = read.filter(|sent: &Sent| sent.server == server && is_of_node(sent));
        let mut sent = sent.unwrap_or_else(|| Sent { server: server.to_owned(), ..Sent::default() });
        if sent.journal.seq > last.written {
            let newest = journal::files(&root.join(journal::FOLDER)).last().map_or(0, |(number, _)| *number);
            let seq = sent.journal.seq.min(last.told);
            sent.journal = Cursor { seq, file: sent.journal.file.min(newest), offset: 0 };
        }
        Sent { node: node.to_owned(), ..sent }
    }

    /// Keeps it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn keep(&self, root: &Path) -> io::Result<()> {
        let bytes = serde_json::to_vec_pretty(self).expect("numbers and strings are serialisable");
        write_private(&root.join(FILE), &bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::observe::cursor;
    use crate::observe::hub::Hub;
    use crate::observe::journal::Journal;
    use crate::observe::record::{Body, EventFacts};

    #[test]
    fn another_server_another_node_and_another_journal_are_begun_anew() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let journal = Cursor { seq: 40, file: 2, offset: 300 };
        let begun = |server: &str| Sent { server: server.to_owned(), node: "n".to_owned(), ..Sent::default() };
        let at = |seq| LastRecords { written: seq, told: seq };
        let load = |server, seq| Sent::load(folder.path(), server, "n", at(seq));
        let sent = Sent { run_id: "r".to_owned(), journal, ..begun("http://a") };
        // As an older version has written it.
        Sent { node: String::new(), ..sent.clone() }.keep(folder.path()).expect("written");
        assert_eq!(load("http://a", 40), sent);
        sent.keep(folder.path()).expect("written");
        assert_eq!(load("http://a", 40), sent);
        let copied = Sent::load(folder.path(), "http://a", "m", at(40));
        assert_eq!(copied, Sent { node: "m".to_owned(), ..begun("http://a") }, "a copy has another identity");
        let anew = load("http://a", 0);
        assert_eq!((anew.run_id.as_str(), anew.journal), ("r", Cursor::default()), "all that it has is new");
        let other = begun("http://b");
        assert_eq!(load("http://b", 40), other);
        std::fs::write(folder.path().join(FILE), "{").expect("written");
        assert_eq!(load("http://b", 40), other, "a damaged file is none");
    }

    /// `mlflow.json` is brought to the disk at once, the journal some seconds later.
    #[test]
    fn a_journal_that_has_lost_its_end_goes_on_there_and_nothing_is_sent_again() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let root = folder.path();
        let write = |seq: u64, events: u64| {
            let (journal, written) = Journal::open(root, 1 << 30).expect("written");
            let hub = Hub::new("n", written.max(seq), Instant::now());
            let thread = journal.start(hub.sink(4096));
            for _ in 0..events {
                hub.tell(Body::Event(EventFacts::default()));
            }
            hub.close();
            thread.join().expect("it ends");
            written
        };
        write(0, 40);
        let file = root.join(journal::FOLDER).join("00000001.jsonl");
        let whole = std::fs::read(&file).expect("there");
        let journal = Cursor { seq: 40, file: 1, offset: whole.len() as u64 };
        let sent = Sent { node: "n".to_owned(), session: 7, sessions: 2, journal, ..Sent::default() };
        // Records 31 to 40 are lost. The process after the power cut begins at 31, or later where the node knows better.
        for (told, first) in [(30, 31), (35, 36), (60, 61)] {
            sent.keep(root).expect("written");
            let lines: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
            std::fs::write(&file, lines[..30].concat()).expect("written");
            // It has written more than was lost before anything of it is read.
            assert_eq!(write(told, 100), 30);
            let loaded = Sent::load(root, "", "n", LastRecords { written: 30, told });
            assert_eq!((loaded.session, loaded.sessions, loaded.journal.seq), (7, 2, told.min(40)));
            let (records, _) = cursor::after(&root.join(journal::FOLDER), &loaded.journal).expect("readable");
            let seqs: Vec<u64> = records.iter().map(|record| record.seq).collect();
            assert!(seqs.iter().copied().eq(first..first + 100), "told {told}: {seqs:?}");
        }
        // The newest file is gone, too.
        Sent { journal: Cursor { file: 2, offset: 900, ..journal }, ..sent }.keep(root).expect("written");
        let loaded = Sent::load(root, "", "n", LastRecords { written: 30, told: 30 });
        assert_eq!(loaded.journal, Cursor { seq: 30, file: 1, offset: 0 });
    }
}
