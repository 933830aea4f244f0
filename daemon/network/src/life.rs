//! Two live nodes with one identity: a copied data directory, a cloned machine, a backup that runs beside its original.
//!
//! Each process is one *life* of an identity: a random number, and when it began. Where a member has two connections to
//! one peer, it asks on both which life is there. Nearly always it is the same one, after a simultaneous dial, or one of
//! them does not answer, after a restart. Where two lives answer, two nodes run: the asker has the elder sign that it
//! lives while the younger does, and hands that to the younger, which ends.
//!
//! ```text
//! asker → NAME                        life →
//! asker → VOUCH the younger's life    signature of the elder →
//! asker → YIELD the elder's life, that signature
//! ```
//!
//! Only who holds the identity's key can sign, and nobody could have done so before the younger life drew its number: so
//! a peer can make no node end that has no living double, not by repeating what it once heard either.

pub(crate) mod asking;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bincode::{Decode, Encode};
use libp2p::identity::Keypair;
use murmur_protocol::{RunId, codec};
use tokio::sync::watch;

/// In front of what is signed, so that the signature says nothing anywhere else.
const SIGNED: &[u8] = b"murmur: this life of the identity goes on beside a younger one";

/// One process that runs as an identity. Ordered by age, the elder first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub(crate) struct Life {
    /// In microseconds since 1970 UTC, by that machine's clock.
    began: u64,
    /// Drawn when it began.
    number: u128,
}

#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
enum Question {
    /// Which life is this?
    Name,
    /// Sign that this life goes on beside that younger one.
    Vouch(Life),
    /// An elder life goes on, as it has signed. No answer.
    Yield { elder: Life, signature: Vec<u8> },
}

#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
enum Answer {
    Life(Life),
    Signature(Vec<u8>),
    /// That life is not younger.
    No,
}

/// Another live node with this node's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Double {
    /// When it began, by its machine's clock.
    pub began: SystemTime,
    /// Whether it is the elder, and proven to live: then this node must end.
    pub is_elder: bool,
}

/// This process as a life of its identity.
pub(crate) struct OwnLife {
    identity: Keypair,
    run: RunId,
    life: Life,
    double: watch::Sender<Option<Double>>,
}

impl OwnLife {
    /// A life that begins now.
    ///
    /// # Panics
    /// When the system gives no randomness.
    pub(crate) fn begin(identity: Keypair, run: RunId, double: watch::Sender<Option<Double>>) -> OwnLife {
        let mut number = [0; 16];
        getrandom::fill(&mut number).expect("the identity's key came from the same source");
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let life = Life { began: u64::try_from(began).unwrap_or(u64::MAX), number: u128::from_le_bytes(number) };
        OwnLife { identity, run, life, double }
    }

    fn signed_text(&self, elder: Life, younger: Life) -> Vec<u8> {
        [SIGNED, &codec::encode(&(self.run, elder, younger))].concat()
    }

    fn answer(&self, question: Question) -> Option<Answer> {
        match question {
            Question::Name => Some(Answer::Life(self.life)),
            Question::Vouch(younger) if self.life < younger => {
                // A peer's word alone, and it may say so of as many as it likes: the first is told, and no more.
                let told = Double { began: younger.began(), is_elder: false };
                self.double.send_if_modified(|double| double.is_none() && double.replace(told).is_none());
                let signature = self.identity.sign(&self.signed_text(self.life, younger));
                Some(signature.map_or(Answer::No, Answer::Signature))
            }
            Question::Vouch(_) => Some(Answer::No),
            Question::Yield { elder, signature } => {
                let text = self.signed_text(elder, self.life);
                if elder < self.life && self.identity.public().verify(&text, &signature) {
                    self.double.send_replace(Some(Double { began: elder.began(), is_elder: true }));
                }
                None
            }
        }
    }
}

impl Life {
    fn began(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.began)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two lives of one identity, the elder first, and what the younger is told.
    fn doubles() -> ([OwnLife; 2], watch::Receiver<Option<Double>>) {
        let (identity, (sender, double)) = (Keypair::generate_ed25519(), watch::channel(None));
        let run = murmur_protocol::RunManifest::default().run_id();
        let elder = OwnLife::begin(identity.clone(), run, watch::channel(None).0);
        let mut younger = OwnLife::begin(identity, run, sender);
        younger.life.began = elder.life.began + 1;
        ([elder, younger], double)
    }

    fn vouched(elder: &OwnLife, younger: Life) -> Vec<u8> {
        match elder.answer(Question::Vouch(younger)) {
            Some(Answer::Signature(signature)) => signature,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_younger_of_two_lives_yields_to_what_the_elder_has_signed() {
        let ([elder, younger], double) = doubles();
        let signature = vouched(&elder, younger.life);
        assert_eq!(younger.answer(Question::Yield { elder: elder.life, signature }), None);
        assert!(double.borrow().is_some_and(|double| double.is_elder));
        assert_eq!(younger.answer(Question::Vouch(elder.life)), Some(Answer::No), "it is not the elder");
    }

    #[test]
    fn nobody_yields_to_words_that_no_living_elder_has_signed_for_it() {
        let ([elder, younger], double) = doubles();
        let yields = |elder, signature| {
            younger.answer(Question::Yield { elder, signature });
            double.borrow().is_some()
        };
        // Heard once about another life of the same identity, and repeated.
        let mut earlier = younger.life;
        earlier.number ^= 1;
        assert!(!yields(elder.life, vouched(&elder, earlier)), "a signature for another life");
        let ([mut stranger, _], _) = doubles();
        stranger.life = elder.life;
        assert!(!yields(elder.life, vouched(&stranger, younger.life)), "another identity's signature");
        assert!(!yields(elder.life, vec![]));
        let signature = vouched(&elder, younger.life);
        let later = Life { began: younger.life.began + 5, ..elder.life };
        assert!(!yields(later, signature), "of other lives than were signed");
    }

    #[test]
    fn an_elder_is_told_once_however_many_younger_ones_are_named() {
        let (sender, mut double) = watch::channel(None);
        let run = murmur_protocol::RunManifest::default().run_id();
        let elder = OwnLife::begin(Keypair::generate_ed25519(), run, sender);
        for later in 1..100 {
            vouched(&elder, Life { began: elder.life.began + later, number: 0 });
        }
        assert!(double.borrow_and_update().is_some_and(|double| !double.is_elder));
        vouched(&elder, Life { began: elder.life.began + 100, number: 0 });
        assert!(!double.has_changed().expect("the sender lives"));
    }
}
