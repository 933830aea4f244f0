//! A flash crowd of real daemons on one machine: more of them than anybody gives the model to at once.

use std::time::Duration;

use murmur_tests::TINY_RUN;
use murmur_tests::crowd::watch_crowd;

use crate::MURMUR;

/// Within which every joiner must train and average, counted from its own start: the promise is a minute.
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn thirty_that_join_within_ten_seconds_all_train_within_a_minute() {
    let crowd = watch_crowd(MURMUR, TINY_RUN, 30, Duration::from_secs(10), LIMIT);
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
