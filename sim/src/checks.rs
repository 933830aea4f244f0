//! What must hold of every run, whatever the network and the hosts did to it. Each check is headed by the law that it holds
//! a run to, fails with the first violation, and has a forged record that it must refuse.
//!
//! Checks of single exchanges run while the swarm does, and leave what they find in [`Record::found`]; the others look
//! at a record. [`safety`] holds at any time, [`liveness`] after a calm phase that was long enough.

mod calm;
mod conduct;
mod exchanges;
mod limits;
mod mean;
mod one_replica;
mod training;
mod violation;

pub use calm::{clear_of_liars, completed, converged, everybody_exchanges, nobody_isolated};
pub use conduct::nobody_accused;
pub(crate) use conduct::{Answer, Answers, LeftAlone, only_held, replied_once};
pub use exchanges::{antisymmetric, exactly_once, pair_distance, step_bounded, toward_partner};
pub(crate) use exchanges::{landed_once, merged_once};
pub use limits::{bounded, bounded_views, can_be_remembered_too_long, forgotten, links_last};
pub use mean::{crash_shift, mean_preserved, nothing_one_sided};
pub(crate) use one_replica::{OneReplica, SumTaken};
pub use training::{local_alone, loop_gain, repeatable, training_never_waits};
pub use violation::Violation;

use crate::record::Record;

/// Checks everything that holds at any time of any run: the first violation of each check.
pub fn safety(record: &Record, parameters: usize) -> Vec<Violation> {
    let verdicts = [
        mean_preserved(record),
        crash_shift(record),
        training_never_waits(record),
        loop_gain(record),
        bounded_views(record),
        forgotten(record),
        bounded(record, parameters),
        nobody_accused(record),
        links_last(record),
    ];
    let mut found: Vec<Violation> = Vec::new();
    for violation in record.found.iter().cloned().chain(verdicts.into_iter().filter_map(Result::err)) {
        if found.iter().all(|known| known.check != violation.check) {
            found.push(violation);
        }
    }
    found
}

/// Checks what a calm phase brings about: `present` honest nodes take part, no model further than `disagreement_max`
/// from their mean, nobody without a connection, everybody still exchanging until the calm phase's end, and nobody gone
/// astray; where the founder has ended the run, it is over for everybody. Among liars there is no one model to converge to: an infinite `disagreement_max` asks for the rest.
pub fn liveness(record: &Record, present: usize, disagreement_max: f64) -> Vec<Violation> {
    let verdicts = [
        converged(record, present, disagreement_max),
        nobody_isolated(record),
        everybody_exchanges(record),
        clear_of_liars(record),
        completed(record),
    ];
    verdicts.into_iter().filter_map(Result::err).collect()
}

/// The first violation of a check that runs along.
fn first_found(record: &Record, check: &str) -> Result<(), Violation> {
    record.found.iter().find(|violation| violation.check == check).cloned().map_or(Ok(()), Err)
}

#[cfg(test)]
pub(crate) mod forged {
    //! Parts of records that never happened.

    use std::time::Duration;

    use murmur_protocol::bulk::Codes;
    use murmur_protocol::numerics::CodeWidth;
    use murmur_protocol::{Correction, Snapshot, Time};

    use crate::record::{ExchangeRecord, LifeRecord, MergeRecord, Record, Side};

    /// One side of an exchange of a model of two parameters that moves it by `codes`.
    pub(crate) fn merge(exchange: u64, side: Side, codes: [i8; 2]) -> (MergeRecord, Correction) {
        let length = codes.iter().map(|code| f64::from(*code).powi(2)).sum::<f64>().sqrt();
        let merge = MergeRecord {
            exchange,
            host: usize::from(side == Side::Responder),
            partner: Some(usize::from(side == Side::Starter)),
            life: u64::from(side == Side::Responder),
            side,
            at: Time::ZERO,
            age: Duration::ZERO,
            width: CodeWidth::Six,
            begins_reference: false,
            partner_share: 0.5,
            factor: 0.5,
            clip: 2.0 * length,
            distance: 2.0 * length,
            clip_scale: 1.0,
            masked_blocks: 0,
            length,
            landings: 0,
        };
        (merge, Correction::new(Codes::Narrow(codes.to_vec()), vec![1.0]))
    }

    /// An exchange of two models that meet in the middle at (1.5, 1): the corrections are given, the starter's first.
    pub(crate) fn exchange(codes: [[i8; 2]; 2]) -> ExchangeRecord {
        let (starter, to_starter) = merge(1, Side::Starter, codes[0]);
        let (responder, to_responder) = merge(1, Side::Responder, codes[1]);
        let snapshots = [Snapshot::from(vec![4.0, -1.0]), Snapshot::from(vec![-2.0, 3.0])];
        ExchangeRecord { starter, responder, corrections: [to_starter, to_responder], snapshots }
    }

    pub(crate) fn of_lives(lives: impl Into<Vec<LifeRecord>>) -> Record {
        Record { lives: lives.into(), ..Record::default() }
    }

    /// A life of ten steps of 100 ms that moved a model from zeros to `model`.
    pub(crate) fn life(host: usize, model: [f32; 2]) -> LifeRecord {
        LifeRecord {
            host,
            active: true,
            is_completed: false,
            is_honest: true,
            first_model: vec![0.0; 2],
            model: model.to_vec(),
            held: std::iter::once(0..2).collect(),
            loss: 0.1,
            unexplained: 0.0,
            rounding: 1e-6,
            steps: 10,
            progress: 10.0,
            step_time: Duration::from_millis(100),
            steps_expected: 10.0,
            interruptions: 0,
            corrections: 1,
            gain: 0.5,
            delay: Duration::from_millis(100),
            delay_rounds: 0.1,
            rounds: 1.0,
            trained: Duration::from_secs(1),
            exchanges: 1,
            connected: 1,
            last_exchange_ago: Duration::ZERO,
        }
    }
}
