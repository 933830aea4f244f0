//! A flash crowd: thirty daemons that join within ten seconds.

use std::time::Duration;

use murmur_tests::crowd::watch_crowd;
use murmur_tests::{LARGE_RUN, TINY_RUN};
use serde_json::{Value, json};

const JOINERS: usize = 30;
const SPREAD: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(120);

/// How long each takes until it trains, and until it averages, with a model of no size and with one of 10 MB.
pub(crate) fn measure(murmur: &str) -> Option<Value> {
    let [tiny, large] = [TINY_RUN, LARGE_RUN].map(|run| {
        let crowd = watch_crowd(murmur, run, JOINERS, SPREAD, LIMIT);
        json!({
            "started_over_seconds": crowd.started_over,
            "seconds_until_training": spread(&crowd.trains_after),
            "seconds_until_averaging": spread(&crowd.averages_after),
            "peers_in_the_end": crowd.peers,
        })
    });
    Some(json!({ "joiners": JOINERS, "tiny": tiny, "10 MB": large }))
}

/// Least, median and most; `null` where somebody never got there.
fn spread(seconds: &[f64]) -> Value {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let median = f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
    json!({ "least": sorted[0], "median": median, "most": sorted[sorted.len() - 1] })
}
