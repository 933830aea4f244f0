//! `blocked.json`: peers that the owner has shut out with `murmur block` while the daemon ran.

use std::collections::BTreeSet;
use std::path::Path;

use murmur_protocol::PeerId;

use super::write_atomically;

const FILE: &str = "blocked.json";

/// Keeps the list in a data directory.
///
/// # Errors
/// When it cannot be written.
pub fn keep_blocked(root: &Path, blocked: &BTreeSet<PeerId>) -> std::io::Result<()> {
    let peers: Vec<String> = blocked.iter().map(PeerId::to_string).collect();
    write_atomically(&root.join(FILE), &serde_json::to_vec_pretty(&peers).expect("a list of strings"))
}

/// The list that a data directory holds. One that cannot be read is said to be so: its peers would be let in again.
pub fn known_blocked(root: &Path) -> BTreeSet<PeerId> {
    let Ok(bytes) = std::fs::read(root.join(FILE)) else { return BTreeSet::new() };
    let read = |bytes: &[u8]| -> Option<BTreeSet<PeerId>> {
        let peers: Vec<String> = serde_json::from_slice(bytes).ok()?;
        peers.iter().map(|peer| peer.parse().ok()).collect()
    };
    read(&bytes).unwrap_or_else(|| {
        tracing::warn!("the list of blocked peers in {FILE} cannot be read, and nobody in it is blocked");
        BTreeSet::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_survives_a_restart_and_a_damaged_one_blocks_nobody() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        assert!(known_blocked(folder.path()).is_empty());
        let blocked = BTreeSet::from([1, 2].map(|key| PeerId::from_public_key([key; 32])));
        keep_blocked(folder.path(), &blocked).expect("written");
        assert_eq!(known_blocked(folder.path()), blocked);
        std::fs::write(folder.path().join(FILE), "[\"12D3\"]").expect("written");
        assert!(known_blocked(folder.path()).is_empty());
    }
}
