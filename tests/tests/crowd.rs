//! A flash crowd of real daemons on one machine: more of them than anybody gives the model to at once.

use std::time::Duration;

use murmur_tests::TINY_RUN;
use murmur_tests::crowd::watch_crowd;

use crate::MURMUR;

/// Within which every joiner must train and average, counted from its own start: the promise is a minute.
const LIMIT: Duration = Duration::from_secs(60);

/// How many join, three a second: `MURMUR_TEST_SCALE=nightly` makes it thirty. Either is several times as many as get the model
/// at once.
fn joiners() -> usize {
    if murmur_tests::is_nightly() { 30 } else { 15 }
}

#[test]
fn a_crowd_that_joins_within_seconds_all_trains_within_a_minute() {
    let _turn = murmur_tests::turn::computes();
    let joiners = joiners();
    let crowd = watch_crowd(MURMUR, TINY_RUN, joiners, Duration::from_secs(joiners as u64 / 3), LIMIT);
    let latest = |seconds: &[f64]| seconds.iter().copied().fold(0.0, f64::max);
    println!(
        "started over {:.1} s; all trained after {:.1} s and averaged after {:.1} s; peers {:?}",
        crowd.started_over,
        latest(&crowd.trains_after),
        latest(&crowd.averages_after),
        crowd.peers
    );
    let limit = LIMIT.as_secs_f64();
    assert!(latest(&crowd.trains_after) < limit && latest(&crowd.averages_after) < limit, "{crowd:?}");
    assert!(crowd.peers.iter().all(|peers| *peers >= 4), "nobody is left aside, the founder neither: {crowd:?}");
}
