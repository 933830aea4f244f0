//! What must hold of every run, whatever the network and the hosts did to it. One check per file, each with a forged
//! record that it must refuse.

mod bounded;
mod converged;
mod exactly_once;
mod mean_preserved;
mod nobody_accused;
mod training_never_waits;

use std::fmt;

pub use bounded::bounded;
pub use converged::converged;
pub use exactly_once::exactly_once;
pub use mean_preserved::{mean_preserved, nothing_one_sided};
pub use nobody_accused::nobody_accused;
pub use training_never_waits::training_never_waits;

/// Which check a run failed, and how.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{check}: {finding}")]
pub struct Violation {
    /// The check's name.
    pub check: &'static str,
    /// What it found, for people.
    pub finding: String,
}

impl Violation {
    fn new(check: &'static str, finding: impl fmt::Display) -> Violation {
        Violation { check, finding: finding.to_string() }
    }
}

#[cfg(test)]
mod forged {
    //! Parts of records that never happened.

    use std::time::Duration;

    use murmur_protocol::Time;
    use murmur_protocol::bulk::{Codes, Correction};

    use crate::record::{LifeRecord, MergeRecord, Side};

    /// One side of an exchange of a model of two parameters that moves it by `codes`.
    pub(super) fn merge(exchange: u64, side: Side, codes: [i8; 2]) -> MergeRecord {
        let length = codes.iter().map(|code| f64::from(*code).powi(2)).sum::<f64>().sqrt();
        MergeRecord {
            exchange,
            host: usize::from(side == Side::Responder),
            life: 0,
            side,
            at: Time::ZERO,
            correction: Correction::new(Codes::Narrow(codes.to_vec()), vec![1.0]),
            factor: 0.5,
            clipped_distance: 2.0 * length,
            landed: true,
        }
    }

    /// A life of ten steps of 100 ms that moved a model from zeros to `model` by `corrections`.
    pub(super) fn life(host: usize, model: [f32; 2], corrections: [f32; 2]) -> LifeRecord {
        let local = |index: usize| f64::from(model[index] - corrections[index]);
        LifeRecord {
            host,
            active: true,
            first_model: vec![0.0; 2],
            model: model.to_vec(),
            local_movement: vec![local(0), local(1)],
            steps: 10,
            step_time: Duration::from_millis(100),
            training_time: Duration::from_secs(1),
            interruptions: 0,
        }
    }
}
