//! Laws of the mean of all models: nothing but local steps, and what one side of an exchange lost, moves it.

use std::collections::BTreeSet;

use murmur_protocol::Time;

use super::Violation;
use super::exchanges::SMALLEST;
use super::violation::ensure;
use crate::record::{MergeRecord, Record, Side};
use crate::scenario::HostIndex;

/// Rounding of a factor, a share and a step to `f32`, relative.
const ROUNDING: f64 = 1e-5;

/// Rounding of one correction's values, relative to the length of all of them.
const ROUNDING_OF_SUMS: f64 = f32::EPSILON as f64;

/// Law: invariant 2 of ten, "the mean is preserved": Σ w·θ changes only by local steps.
///
/// Every model moves by its own training and by the corrections that were ordered, once each, and by nothing else. And
/// each correction times its own side's share of the joint weight sums to zero over an exchange, so what remains of the
/// sum of all is that of one-sided ones, each at most as long as its correction.
pub fn mean_preserved(record: &Record) -> Result<(), Violation> {
    const CHECK: &str = "mean preserved";
    for life in &record.lives {
        ensure!(
            life.unexplained <= life.rounding,
            CHECK,
            "the model of host {} moved {:.3e} beyond training and corrections; rounding is {:.3e}",
            life.host,
            life.unexplained,
            life.rounding
        );
    }
    let totals = &record.exchanges;
    let shift = totals.weighted.iter().map(|value| value * value).sum::<f64>().sqrt();
    let one_sided: f64 =
        totals.one_sided.iter().map(|merge| (1.0 - merge.partner_share) * merge.length).sum::<f64>() * (1.0 + ROUNDING);
    let allowed = one_sided + ROUNDING_OF_SUMS * totals.way;
    ensure!(
        shift <= allowed,
        CHECK,
        "the weighted sum of all models moved by {shift:.3e}; explained are {allowed:.3e}"
    );
    Ok(())
}

/// Checks, for a network that loses nothing from `since` on, that both sides of the later exchanges among the honest
/// landed; of all but the share `allowed` of those that came about, 0 to 1, for replies that are late on a slow line.
pub fn nothing_one_sided(record: &Record, since: Time, allowed: f64) -> Result<(), Violation> {
    let liars: BTreeSet<_> = record.lives.iter().filter(|life| !life.is_honest).map(|life| life.host).collect();
    let is_honest = |host: &HostIndex| !liars.contains(host);
    let counts = |merge: &&MergeRecord| {
        merge.at >= since && is_honest(&merge.host) && merge.partner.as_ref().is_none_or(is_honest)
    };
    let one_sided: Vec<&MergeRecord> = record.exchanges.one_sided.iter().filter(counts).collect();
    let (count, pairs) = (one_sided.len(), record.exchanges.pairs_since(since));
    let Some(merge) = one_sided.first() else { return Ok(()) };
    let side = if merge.side == Side::Starter { "starter" } else { "responder" };
    let MergeRecord { exchange, host, at, .. } = merge;
    ensure!(
        count as f64 <= allowed * pairs as f64,
        "nothing one-sided",
        "{count} exchanges beside {pairs} whole ones moved only one side, as {exchange:x} its {side}, host {host} at {at:?}"
    );
    Ok(())
}

/// Law: invariant 6 of ten, "a crash at any event shifts the mean by at most γ‖d‖/N".
///
/// What a crash leaves behind is an exchange of which one side alone has moved, by no more than its share of the clipped
/// difference. (That nothing but one-sided exchanges shifts the mean is the law of [`mean_preserved`].)
pub fn crash_shift(record: &Record) -> Result<(), Violation> {
    for merge in &record.exchanges.one_sided {
        let MergeRecord { exchange, host, at, length, .. } = merge;
        let allowed = merge.factor * merge.clip_scale.min(1.0) * merge.distance * (1.0 + ROUNDING) + SMALLEST;
        ensure!(
            *length <= allowed,
            "crash shift",
            "exchange {exchange:x} at {at:?} moved host {host} alone by {length:.3e}; its share of the difference is {allowed:.3e}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::checks::forged::{life, merge};
    use crate::record::Totals;

    fn sound() -> Record {
        let lives = vec![life(0, [5.0, 1.0]), life(1, [2.0, 2.0])];
        let exchanges = Totals { merges: 2, pairs: 1, weighted: vec![0.0; 2], ..Totals::default() };
        Record { lives, exchanges, ..Record::default() }
    }

    #[test]
    fn an_overwritten_model_is_refused() {
        let mut record = sound();
        assert_eq!(mean_preserved(&record), Ok(()));
        assert_eq!(nothing_one_sided(&record, Time::ZERO, 0.0), Ok(()));
        record.lives[0].unexplained = 0.1;
        assert!(mean_preserved(&record).is_err());
        record.lives[0].unexplained = f64::NAN;
        assert!(mean_preserved(&record).is_err());
    }

    #[test]
    fn whole_exchanges_of_before_excuse_no_one_sided_ones() {
        let mut record = sound();
        let (mut one_sided, _) = merge(2, Side::Starter, [4, 0]);
        (one_sided.landings, one_sided.at) = (1, Time::from_start(Duration::from_secs(10)));
        record.exchanges.one_sided.push(one_sided);
        let since = Time::from_start(Duration::from_secs(5));
        (record.exchanges.pairs, record.exchanges.pairs_by_second) = (1000, vec![1000]);
        assert!(nothing_one_sided(&record, since, 0.01).is_err());
        record.exchanges.pairs_by_second = vec![0, 0, 0, 0, 0, 1000];
        assert_eq!(nothing_one_sided(&record, since, 0.01), Ok(()));
    }

    #[test]
    fn one_lost_side_explains_no_more_than_its_own_length() {
        let mut record = sound();
        let (mut one_sided, _) = merge(2, Side::Starter, [4, 0]);
        one_sided.landings = 1;
        record.exchanges.weighted = vec![2.0, 0.0];
        assert!(mean_preserved(&record).is_err(), "nothing explains it");
        record.exchanges.one_sided.push(one_sided);
        assert_eq!(mean_preserved(&record), Ok(()));
        assert!(nothing_one_sided(&record, Time::ZERO, 0.0).is_err());
        assert_eq!(nothing_one_sided(&record, Time::from_start(Duration::from_secs(1)), 0.0), Ok(()), "it was earlier");
        record.lives[0].is_honest = false;
        assert_eq!(nothing_one_sided(&record, Time::ZERO, 0.0), Ok(()), "a liar's");
        record.lives[0].is_honest = true;
        record.exchanges.weighted = vec![2.1, 0.0];
        assert!(mean_preserved(&record).is_err(), "moved by more than half of it");
    }

    #[test]
    fn a_side_that_moved_too_far_alone_is_refused() {
        let (mut one_sided, _) = merge(1, Side::Responder, [3, 4]);
        let mut record = Record::default();
        record.exchanges.one_sided.push(one_sided.clone());
        assert_eq!(crash_shift(&record), Ok(()));
        one_sided.length *= 1.01;
        record.exchanges.one_sided.push(one_sided);
        assert!(crash_shift(&record).is_err());
    }
}
