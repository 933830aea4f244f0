//! The founder of a simulated run: a key that can finish it.

use std::convert::Infallible;
use std::fmt;

use ed25519_dalek::{Signer, SigningKey};
use murmur_protocol::random::{RngExt, stream};
use murmur_protocol::{Ending, FinishOrder, PeerId, RunEnd, RunId, Time};

/// All simulated runs have this id: orders of another run are made in the core's own tests.
const RUN: RunId = RunId([1; 32]);

/// Holds the founder's key. It is no host's identity: the founder may be gone.
pub(super) struct Founder(SigningKey);

impl Founder {
    pub(super) fn new(seed: u64) -> Founder {
        let mut dice = stream(seed, "simulated founder", &[]);
        Founder(SigningKey::from_bytes(&dice.random()))
    }

    /// What nodes know of the end of a run without a set length.
    pub(super) fn end(&self) -> RunEnd {
        let founder = PeerId::from_public_key(self.0.verifying_key().to_bytes());
        RunEnd { run: RUN, founder: Some(founder), total_steps: None, order: None }
    }

    /// An order; a later one replaces an earlier one.
    pub(super) fn order(&self, now: Time, ending: Ending) -> FinishOrder {
        let sign = |bytes: &[u8]| Ok::<_, Infallible>(self.0.sign(bytes).to_bytes());
        let Ok(order) = FinishOrder::sign(RUN, now.since_start().as_micros() as u64, ending, sign);
        order
    }
}

impl fmt::Debug for Founder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Founder({:?})", self.end().founder)
    }
}
