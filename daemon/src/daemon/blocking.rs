//! What a daemon does for `murmur block` and `murmur unblock`: shuts peers out at once, and keeps the list.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use murmur_network::Admission;
use murmur_protocol::PeerId;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::observe::report::NodeReport;
use crate::settings::NetworkSettings;
use crate::store::{keep_blocked, known_blocked};

/// What `murmur block` and `murmur unblock` wish.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockWish {
    /// Peers to shut out: whole ids, or the last eight characters of a member's or a blocked peer's.
    pub block: Vec<String>,
    /// Peers to let in again.
    pub unblock: Vec<String>,
}

/// Who is shut out now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocked {
    /// By `network.block`, in the node's settings.
    pub by_settings: Vec<String>,
    /// By `murmur block`.
    pub by_command: Vec<String>,
}

/// Why nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum NotBlocked {
    /// Neither a peer id nor the end of one that is known.
    #[error("{0:?} is neither a peer id nor the last eight characters of a known one")]
    Unknown(String),
    /// A node cannot part from itself.
    #[error("that is this node itself")]
    Myself,
    /// It is let in already.
    #[error("{0} is not blocked")]
    LetIn(PeerId),
    /// What the settings say stands.
    #[error("the node's settings block {0}")]
    BySettings(PeerId),
    /// It would be forgotten by the next start.
    #[error("the list of blocked peers cannot be written: {0}")]
    Disk(#[from] std::io::Error),
}

impl NotBlocked {
    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            NotBlocked::Unknown(_) => "`murmur status` shows the ids of members, `murmur block` those of blocked peers",
            NotBlocked::LetIn(_) => "`murmur block` shows who is",
            NotBlocked::Myself => "`murmur stop` stops it",
            NotBlocked::BySettings(_) => "take it out of network.block in node.toml, or of --block, and start again",
            NotBlocked::Disk(_) => "is the disk full?",
        }
    }
}

/// Whom a node lets in: by its settings, without those whom its owner has blocked since.
pub(crate) fn admission(settings: &NetworkSettings, root: &Path) -> Admission {
    let mut admission = settings.admission();
    admission.block.extend(known_blocked(root));
    admission
}

/// Shuts peers out of a running node.
#[derive(Clone)]
pub struct Blocker {
    root: PathBuf,
    by_settings: BTreeSet<PeerId>,
    admission: watch::Sender<Admission>,
    reports: watch::Receiver<NodeReport>,
    /// Held by a change. The lock of `admission` is not, since the network looks there at every connection: a disk may hang.
    turn: Arc<Mutex<()>>,
}

impl Blocker {
    /// Of a node with this data directory and these settings. `admission` is the network's.
    pub fn new(
        root: &Path,
        settings: &NetworkSettings,
        admission: watch::Sender<Admission>,
        reports: watch::Receiver<NodeReport>,
    ) -> Blocker {
        let by_settings = settings.admission().block;
        Blocker { root: root.to_owned(), by_settings, admission, reports, turn: Arc::default() }
    }

    /// Carries out a wish, keeps the list, and says who is shut out then. It waits for the disk.
    ///
    /// # Errors
    /// Why nothing has changed.
    pub fn change(&self, wish: &BlockWish) -> Result<Blocked, NotBlocked> {
        self.change_and(wish, |blocked| keep_blocked(&self.root, blocked))
    }

    /// The same; `keep` keeps those who are blocked beside the settings.
    fn change_and(
        &self,
        wish: &BlockWish,
        keep: impl FnOnce(&BTreeSet<PeerId>) -> std::io::Result<()>,
    ) -> Result<Blocked, NotBlocked> {
        // One change at a time, on disk as well.
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, report) = (self.admission.borrow().block.clone(), self.reports.borrow().clone());
        let block = self.changed(wish, &before, &report)?;
        if block != before {
            keep(&(&block - &self.by_settings))?;
        }
        self.admission.send_modify(|admission| admission.block = block);
        Ok(self.blocked())
    }

    /// The list with a wish carried out.
    fn changed(
        &self,
        wish: &BlockWish,
        blocked: &BTreeSet<PeerId>,
        report: &NodeReport,
    ) -> Result<BTreeSet<PeerId>, NotBlocked> {
        let mut new = blocked.clone();
        for text in &wish.block {
            let peer = named(text, blocked, report)?;
            if peer.to_string() == report.peer {
                return Err(NotBlocked::Myself);
            }
            new.insert(peer);
        }
        for text in &wish.unblock {
            let peer = named(text, blocked, report)?;
            if self.by_settings.contains(&peer) {
                return Err(NotBlocked::BySettings(peer));
            }
            if !new.remove(&peer) {
                return Err(NotBlocked::LetIn(peer));
            }
        }
        Ok(new)
    }

    fn blocked(&self) -> Blocked {
        let texts = |peers: &BTreeSet<PeerId>| peers.iter().map(PeerId::to_string).collect();
        let by_command = &self.admission.borrow().block - &self.by_settings;
        Blocked { by_settings: texts(&self.by_settings), by_command: texts(&by_command) }
    }
}

/// The peer with this id, or the only known one whose id ends like this.
fn named(text: &str, blocked: &BTreeSet<PeerId>, report: &NodeReport) -> Result<PeerId, NotBlocked> {
    if let Ok(peer) = text.parse() {
        return Ok(peer);
    }
    let members = report.members.iter().filter_map(|member| member.peer.parse().ok());
    let known: BTreeSet<PeerId> = members.chain(blocked.iter().copied()).collect();
    let mut named = known.into_iter().filter(|peer| peer.short() == text);
    match (named.next(), named.next()) {
        (Some(peer), None) => Ok(peer),
        _ => Err(NotBlocked::Unknown(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::observe::report::MemberReport;

    fn peer(key: u8) -> PeerId {
        PeerId::from_public_key([key; 32])
    }

    fn wish(block: &[String], unblock: &[String]) -> BlockWish {
        BlockWish { block: block.to_vec(), unblock: unblock.to_vec() }
    }

    #[test]
    fn peers_are_named_in_full_or_by_their_end_and_the_list_is_kept() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let settings = NetworkSettings { block: vec![peer(1).to_string()], ..NetworkSettings::default() };
        let member = MemberReport { peer: peer(2).to_string(), ..MemberReport::default() };
        let report = NodeReport { peer: peer(0).to_string(), members: vec![member], ..NodeReport::default() };
        let (admission, view) = watch::channel(super::admission(&settings, folder.path()));
        let blocker = Blocker::new(folder.path(), &settings, admission, watch::channel(report).1);

        let blocked = blocker.change(&wish(&[peer(2).short(), peer(3).to_string()], &[])).expect("both are known");
        assert_eq!(blocked.by_settings, [peer(1).to_string()]);
        assert_eq!(view.borrow().block, [1, 2, 3].map(peer).into());
        assert_eq!(super::admission(&settings, folder.path()), *view.borrow(), "after a restart");
        let left = blocker.change(&wish(&[], &[peer(3).short()])).expect("blocked ones are known");
        assert_eq!(left.by_command, [peer(2).to_string()]);
        assert_eq!(known_blocked(folder.path()), [peer(2)].into());

        let refused = |wish| blocker.change(&wish).expect_err("refused");
        assert!(matches!(refused(wish(&[peer(0).to_string()], &[])), NotBlocked::Myself));
        assert!(matches!(refused(wish(&[], &[peer(1).to_string()])), NotBlocked::BySettings(_)));
        assert!(matches!(refused(wish(&[], &[peer(3).to_string()])), NotBlocked::LetIn(_)), "let in before");
        for unknown in ["", "12D3KooW", &peer(4).short()] {
            assert!(matches!(refused(wish(&[unknown.to_owned()], &[])), NotBlocked::Unknown(_)), "{unknown}");
        }
        assert_eq!(known_blocked(folder.path()), [peer(2)].into(), "nothing has changed");
    }

    #[test]
    fn a_disk_that_hangs_keeps_the_network_from_no_look_at_who_is_let_in() {
        let (admission, view) = watch::channel(Admission::default());
        let reports = watch::channel(NodeReport::default()).1;
        let blocker = Blocker::new("nowhere".as_ref(), &NetworkSettings::default(), admission, reports);
        let (looked, has_looked) = mpsc::channel();
        let changed = blocker.change_and(&wish(&[peer(1).to_string()], &[]), |kept| {
            assert_eq!(*kept, [peer(1)].into());
            let view = view.clone();
            std::thread::spawn(move || looked.send(view.borrow().block.len()));
            let seen = has_looked.recv_timeout(Duration::from_secs(20)).map_err(std::io::Error::other)?;
            assert_eq!(seen, 0, "nobody is shut out before it is kept");
            Ok(())
        });
        changed.expect("the network looks while the disk hangs");
        assert_eq!(view.borrow().block, [peer(1)].into());
    }
}
