//! Proving to know a closed run's secret without telling it.
//!
//! A proof is BLAKE3, keyed with a key derived from the secret, over who proves (dialer or listener), the run, both peer
//! ids and a fresh nonce of either side. So it holds for one connection between these two and in one direction only:
//! it can be neither played back later, nor passed on by somebody in the middle (the transport has authenticated both
//! peer ids), nor turned around. Who overhears one, or asks for one, learns nothing: the secret is 32 random bytes.

use bincode::{Decode, Encode};

use crate::manifest::RunId;
use crate::peer::PeerId;
use crate::secret::Secret;

/// Bytes of a nonce: enough that none ever comes twice.
pub const NONCE_BYTES: usize = 32;

/// What one side contributes to make a handshake unlike all others.
pub type Nonce = [u8; NONCE_BYTES];

/// Sets these keys apart from whatever else a secret may be used for.
const CONTEXT: &str = "murmuration 2026 membership proof of a closed run";

/// Shows that a peer knows the secret of a closed run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Proof([u8; 32]);

/// Who proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prover {
    /// The side that dialed.
    Dialer,
    /// The side that was dialed.
    Listener,
}

/// The two ends of one connection, and the nonces of one handshake on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parties {
    /// Who dialed, as the transport has authenticated it.
    pub dialer: PeerId,
    /// Who was dialed.
    pub listener: PeerId,
    /// Fresh from the dialer.
    pub dialer_nonce: Nonce,
    /// Fresh from the listener.
    pub listener_nonce: Nonce,
}

impl Proof {
    /// The proof of one side of a handshake for membership in `run`.
    pub fn new(secret: &Secret, run: RunId, parties: &Parties, prover: Prover) -> Proof {
        let key = blake3::derive_key(CONTEXT, secret.as_bytes());
        let mut hasher = blake3::Hasher::new_keyed(&key);
        // Fields of fixed lengths, so that no two handshakes have one text.
        hasher.update(match prover {
            Prover::Dialer => b"D",
            Prover::Listener => b"L",
        });
        hasher.update(&run.0);
        hasher.update(parties.dialer.as_bytes());
        hasher.update(parties.listener.as_bytes());
        hasher.update(&parties.dialer_nonce);
        hasher.update(&parties.listener_nonce);
        Proof(hasher.finalize().into())
    }

    /// Whether it is the proof of that side. Takes the same time whatever the difference.
    pub fn is_of(&self, secret: &Secret, run: RunId, parties: &Parties, prover: Prover) -> bool {
        let expected = Proof::new(secret, run, parties, prover);
        blake3::Hash::from_bytes(self.0) == blake3::Hash::from_bytes(expected.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parties() -> Parties {
        let [dialer, listener] = [1, 2].map(|key| PeerId::from_public_key([key; 32]));
        Parties { dialer, listener, dialer_nonce: [3; 32], listener_nonce: [4; 32] }
    }

    #[test]
    fn a_proof_holds_for_one_handshake_one_run_one_side_and_one_secret() {
        let (secret, run) = (Secret::from_bytes([5; 32]), RunId([6; 32]));
        let proof = Proof::new(&secret, run, &parties(), Prover::Dialer);
        assert!(proof.is_of(&secret, run, &parties(), Prover::Dialer));
        let swapped = Parties { dialer: parties().listener, listener: parties().dialer, ..parties() };
        let others = [
            swapped,
            Parties { dialer: PeerId::from_public_key([9; 32]), ..parties() },
            Parties { listener: PeerId::from_public_key([9; 32]), ..parties() },
            Parties { dialer_nonce: [9; 32], ..parties() },
            Parties { listener_nonce: [9; 32], ..parties() },
        ];
        for other in others {
            assert!(!proof.is_of(&secret, run, &other, Prover::Dialer), "{other:?}");
        }
        assert!(!proof.is_of(&secret, run, &parties(), Prover::Listener), "turned around");
        assert!(!proof.is_of(&secret, RunId([0; 32]), &parties(), Prover::Dialer), "of another run");
        assert!(!proof.is_of(&Secret::from_bytes([0; 32]), run, &parties(), Prover::Dialer), "of another secret");
    }
}
