//! The end of a run without a set length, or before its length: the founder asks the whole swarm for the final decay of
//! the learning rate.
//!
//! A run whose manifest names its founder can be finished by whoever holds the founder's key. The order names two places
//! on the scale of swarm progress: where the learning rate begins to fall, and where the run is complete. It is signed
//! with ed25519 (RFC 8032) over the run's id, so that no other node can make one, and none can be carried into another
//! run. Each node keeps the newest order that it has heard, hands it to all peers, and repeats it to those that connect
//! or shuffle later: a lost message, a partition or a late joiner delays it and no more. A later order replaces an
//! earlier one; an earlier one that is repeated changes nothing.

use bincode::{Decode, Encode};
use ed25519_dalek::{Signature, VerifyingKey};
use serde::{Deserialize, Serialize};

use crate::manifest::{RunId, RunManifest};
use crate::misbehaviour::Misbehaviour;
use crate::peer::PeerId;

/// What the signature is of begins with this, so that no other signature of the same key can be passed off as one.
const DOMAIN: &[u8] = b"murmuration 2026 finish order\0";

/// The most steps that an order may name, as for `schedule.total_steps`.
const STEPS_MAX: f64 = 1e9;

/// Where the learning rate begins to fall and where the run is complete, in steps of swarm progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Ending {
    /// The learning rate falls from here on.
    pub from: f64,
    /// The run is complete here; at least `from`, at most 1e9.
    pub until: f64,
}

impl Ending {
    fn is_sound(self) -> bool {
        (0.0..=STEPS_MAX).contains(&self.from) && (self.from..=STEPS_MAX).contains(&self.until)
    }
}

/// The founder's signed order to finish a run.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct FinishOrder {
    /// Of two orders of one run the one with the larger number holds. The daemon takes the microseconds since 1970.
    pub serial: u64,
    /// What is ordered.
    pub ending: Ending,
    /// ed25519, by the founder's key.
    pub signature: [u8; 64],
}

impl FinishOrder {
    /// An order whose signature `sign` makes with the founder's key, of the bytes that it is given.
    ///
    /// # Errors
    /// What `sign` returns as one.
    pub fn sign<Error>(
        run: RunId,
        serial: u64,
        ending: Ending,
        sign: impl FnOnce(&[u8]) -> Result<[u8; 64], Error>,
    ) -> Result<FinishOrder, Error> {
        Ok(FinishOrder { serial, ending, signature: sign(&signed_bytes(run, serial, ending))? })
    }

    /// Whether the founder of this run has signed it, and it makes sense.
    pub fn is_valid(&self, run: RunId, founder: PeerId) -> bool {
        let Ok(key) = VerifyingKey::from_bytes(founder.as_bytes()) else { return false };
        let bytes = signed_bytes(run, self.serial, self.ending);
        self.ending.is_sound() && key.verify_strict(&bytes, &Signature::from_bytes(&self.signature)).is_ok()
    }
}

fn signed_bytes(run: RunId, serial: u64, ending: Ending) -> Vec<u8> {
    [DOMAIN, &run.0, &serial.to_le_bytes(), &ending.from.to_le_bytes(), &ending.until.to_le_bytes()].concat()
}

/// What a node knows of its run's end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunEnd {
    /// The run's id.
    pub run: RunId,
    /// Who may finish it; `None` where nobody can.
    pub founder: Option<PeerId>,
    /// Swarm progress at which the run is complete by its manifest, in steps: whole rounds where all average at once. `None` without a
    /// set length.
    pub total_steps: Option<f64>,
    /// The newest order of the founder.
    pub order: Option<FinishOrder>,
}

/// What came of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It holds from now on.
    Newer,
    /// It was known.
    Known,
    /// A newer one holds.
    Older,
}

impl RunEnd {
    /// As the manifest says, without an order.
    pub fn of(manifest: &RunManifest) -> RunEnd {
        let total_steps = manifest.schedule.total_steps.next_multiple_of(manifest.synchronous.steps_of_a_round());
        RunEnd {
            run: manifest.run_id(),
            founder: manifest.run.founder.parse().ok(),
            total_steps: (total_steps > 0).then_some(total_steps as f64),
            order: None,
        }
    }

    /// Swarm progress at which the run is complete, in steps; `None` while no end is set. An order replaces the length of
    /// the manifest.
    pub fn at(&self) -> Option<f64> {
        self.order.as_ref().map(|order| order.ending.until).or(self.total_steps)
    }

    /// Takes an order in, whoever brought it.
    ///
    /// # Errors
    /// When the founder has not signed it.
    pub(crate) fn hear(&mut self, order: &FinishOrder) -> Result<Heard, Misbehaviour> {
        let known = self.order.as_ref().map(|known| known.serial);
        if self.order.as_ref() == Some(order) {
            return Ok(Heard::Known);
        }
        if !self.founder.is_some_and(|founder| order.is_valid(self.run, founder)) {
            return Err(Misbehaviour::Forged);
        }
        if known.is_some_and(|known| known >= order.serial) {
            return Ok(Heard::Older);
        }
        self.order = Some(order.clone());
        Ok(Heard::Newer)
    }
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::{Signer, SigningKey};

    use super::*;

    const RUN: RunId = RunId([7; 32]);

    fn founder() -> SigningKey {
        SigningKey::from_bytes(&[3; 32])
    }

    fn order_of(key: &SigningKey, run: RunId, serial: u64, ending: Ending) -> FinishOrder {
        let sign = |bytes: &[u8]| Ok::<_, std::convert::Infallible>(key.sign(bytes).to_bytes());
        FinishOrder::sign(run, serial, ending, sign).expect("signed")
    }

    fn end() -> RunEnd {
        let founder = PeerId::from_public_key(founder().verifying_key().to_bytes());
        RunEnd { run: RUN, founder: Some(founder), ..RunEnd::default() }
    }

    const ENDING: Ending = Ending { from: 100.0, until: 150.0 };

    #[test]
    fn the_founders_order_holds_and_a_later_one_replaces_it() {
        let mut end = end();
        assert_eq!(end.at(), None);
        let first = order_of(&founder(), RUN, 1, ENDING);
        assert_eq!(end.hear(&first), Ok(Heard::Newer));
        assert_eq!((end.at(), end.hear(&first)), (Some(150.0), Ok(Heard::Known)));
        let second = order_of(&founder(), RUN, 2, Ending { until: 300.0, ..ENDING });
        assert_eq!((end.hear(&second), end.at()), (Ok(Heard::Newer), Some(300.0)));
        assert_eq!((end.hear(&first), end.at()), (Ok(Heard::Older), Some(300.0)), "a replay changes nothing");
    }

    #[test]
    fn where_all_average_at_once_a_run_ends_with_a_whole_round() {
        let mut manifest = RunManifest::default();
        manifest.schedule.total_steps = 33;
        assert_eq!(RunEnd::of(&manifest).at(), Some(33.0));
        (manifest.synchronous.topology, manifest.synchronous.every_steps) = (crate::manifest::Topology::Ring, 10);
        assert_eq!(RunEnd::of(&manifest).at(), Some(40.0));
        manifest.synchronous.auto = true;
        assert_eq!(RunEnd::of(&manifest).at(), Some(33.0), "in pairs nobody waits for a round");
    }

    #[test]
    fn orders_that_the_founder_has_not_signed_are_refused() {
        let mut end = end();
        let good = order_of(&founder(), RUN, 1, ENDING);
        let stranger = order_of(&SigningKey::from_bytes(&[4; 32]), RUN, 1, ENDING);
        let of_another_run = order_of(&founder(), RunId([8; 32]), 1, ENDING);
        let later = FinishOrder { serial: 2, ..good.clone() };
        let longer = FinishOrder { ending: Ending { until: 151.0, ..ENDING }, ..good.clone() };
        for forged in [stranger, of_another_run, later, longer] {
            assert_eq!(end.hear(&forged), Err(Misbehaviour::Forged), "{forged:?}");
        }
        assert_eq!(end.order, None);
        assert_eq!(RunEnd { founder: None, ..end }.hear(&good), Err(Misbehaviour::Forged), "nobody may finish it");
    }

    #[test]
    fn an_order_that_makes_no_sense_is_refused_even_from_the_founder() {
        for (from, until) in [(10.0, 9.0), (f64::NAN, 9.0), (-1.0, 9.0), (1.0, f64::INFINITY), (1.0, 2e9)] {
            let order = order_of(&founder(), RUN, 1, Ending { from, until });
            assert_eq!(end().hear(&order), Err(Misbehaviour::Forged), "{from} {until}");
        }
    }
}
