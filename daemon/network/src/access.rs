//! Whom this node lets in: its owner's lists of peers, and what it knows of its run.

use std::collections::BTreeSet;

use murmur_protocol::PeerId;
use murmur_protocol::handshake::{Credentials, NONCE_BYTES, Nonce};
use tokio::sync::watch;

/// The owner's lists, by peer id. Checked before the handshake, whoever dialed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Where it is not empty, nobody else.
    pub allow: BTreeSet<PeerId>,
    /// None of these, allowed or not.
    pub block: BTreeSet<PeerId>,
}

impl Admission {
    /// Whether a peer may connect, or be connected to.
    pub fn admits(&self, peer: PeerId) -> bool {
        !self.block.contains(&peer) && (self.allow.is_empty() || self.allow.contains(&peer))
    }
}

/// Everything by which peers are told apart.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) credentials: Credentials,
    /// The owner may change it at any time.
    pub(crate) admission: watch::Receiver<Admission>,
}

impl Access {
    pub(crate) fn admits(&self, peer: PeerId) -> bool {
        self.admission.borrow().admits(peer)
    }
}

/// A fresh nonce for a handshake; `None` where the system gives no randomness, and so no handshake can be trusted.
pub(crate) fn fresh_nonce() -> Option<Nonce> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).ok().map(|()| nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_wins_over_an_allowance_and_an_empty_list_allows_all() {
        let [one, other, third] = [1, 2, 3].map(|key| PeerId::from_public_key([key; 32]));
        assert!(Admission::default().admits(one));
        let lists = Admission { allow: [one, other].into(), block: [other].into() };
        assert_eq!([one, other, third].map(|peer| lists.admits(peer)), [true, false, false]);
        let lists = Admission { allow: BTreeSet::new(), block: [other].into() };
        assert_eq!([one, other, third].map(|peer| lists.admits(peer)), [true, false, true]);
    }
}
