//! `mlflow.json`: what an MLflow server has of a node, so that another process goes on from there.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::observe::cursor::Cursor;
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

impl Sent {
    /// What a server has of this node, which has this data directory. `seq` is the number of the journal's last record: a journal
    /// that has fewer than were sent is another one, and sent from its beginning.
    pub(super) fn load(root: &Path, server: &str, node: &str, seq: u64) -> Sent {
        let read = std::fs::read(root.join(FILE)).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let is_of_node = |sent: &Sent| sent.node.is_empty() || sent.node == node;
        let sent = read.filter(|sent: &Sent| sent.server == server && is_of_node(sent));
        let mut sent = sent.unwrap_or_else(|| Sent { server: server.to_owned(), ..Sent::default() });
        if sent.journal.seq > seq {
            let Sent { server, experiment_id, run_id, artifact_uri, .. } = sent;
            sent = Sent { server, experiment_id, run_id, artifact_uri, ..Sent::default() };
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
    use super::*;

    #[test]
    fn another_server_another_node_and_another_journal_are_begun_anew() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let journal = Cursor { seq: 40, file: 2, offset: 300 };
        let begun = |server: &str| Sent { server: server.to_owned(), node: "n".to_owned(), ..Sent::default() };
        let load = |server, seq| Sent::load(folder.path(), server, "n", seq);
        let sent = Sent { run_id: "r".to_owned(), journal, ..begun("http://a") };
        // As an older version has written it.
        Sent { node: String::new(), ..sent.clone() }.keep(folder.path()).expect("written");
        assert_eq!(load("http://a", 40), sent);
        sent.keep(folder.path()).expect("written");
        assert_eq!(load("http://a", 40), sent);
        let copied = Sent::load(folder.path(), "http://a", "m", 40);
        assert_eq!(copied, Sent { node: "m".to_owned(), ..begun("http://a") }, "a copy has another identity");
        let shorter = load("http://a", 39);
        assert_eq!((shorter.run_id.as_str(), shorter.journal), ("r", Cursor::default()));
        let other = begun("http://b");
        assert_eq!(load("http://b", 40), other);
        std::fs::write(folder.path().join(FILE), "{").expect("written");
        assert_eq!(load("http://b", 40), other, "a damaged file is none");
    }
}
