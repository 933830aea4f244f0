//! What taking part will send: told before a node begins, from the time that this machine takes for a step.
//!
//! An upper bound: nodes exchange as often as the run allows only where link, processor and caps bear it.

use murmur_protocol::RunManifest;
use murmur_protocol::numerics::round_bytes;
use murmur_training::trained_layout;

use crate::console::{human_bytes, note};
use crate::doctor::measure_briefly;
use crate::settings::{LimitsSettings, NodeSettings};
use crate::setup::arrangement::Arrangement;

const DAY_SECONDS: f64 = 86_400.0;

/// What a member of an all-reduce sends for a parameter at most, but for the one in the middle of a star: each value once to
/// be summed and once to be copied, as 32-bit floats.
pub(crate) const ALL_REDUCE_BYTES: usize = 8;

/// Tells people what this node will send, before it begins.
pub(crate) fn tell(manifest: &RunManifest, settings: &NodeSettings, arrangement: &Arrangement) {
    let sent = match measure_briefly(manifest, arrangement, settings) {
        Some((step, parameters)) => {
            let bytes = bytes_sent_a_step(manifest, parameters);
            let steps = [manifest.schedule.total_steps, settings.training.steps].into_iter().filter(|steps| *steps > 0);
            let of_all = steps.min().map(|steps| steps as f64 * bytes);
            let of_a_day = bytes * DAY_SECONDS / step.as_secs_f64();
            match of_all.filter(|of_all| *of_all < of_a_day) {
                Some(of_all) => format!("up to {} sent in the whole run", human_bytes(of_all as u64)),
                None => describe(of_a_day, manifest.synchronous.is_on(), &settings.limits),
            }
        }
        None => describe_exchange(manifest),
    };
    note(&format!("traffic     {sent}"));
}

/// Bytes that exchanges of a run send in a day at most, from a machine whose step takes so long.
pub(crate) fn bytes_sent_a_day(manifest: &RunManifest, parameters: usize, step_seconds: f64) -> f64 {
    bytes_sent_a_step(manifest, parameters) * DAY_SECONDS / step_seconds
}

fn bytes_sent_a_step(manifest: &RunManifest, parameters: usize) -> f64 {
    let synchronous = &manifest.synchronous;
    if synchronous.is_on() {
        let share = synchronous.codec().bytes(parameters) as f64 / (4 * parameters.max(1)) as f64;
        return share * (ALL_REDUCE_BYTES * parameters) as f64 / f64::from(synchronous.every_steps);
    }
    let gossip = &manifest.gossip;
    let interval = gossip.interval_steps_min.min(gossip.interval_steps).max(1);
    round_bytes(parameters, gossip) as f64 / f64::from(interval)
}

/// A day's bytes in words, within the owner's caps, with the flags that set them.
fn describe(bytes_a_day: f64, is_synchronous: bool, limits: &LimitsSettings) -> String {
    let upload = limits.caps().upload.map(|rate| rate as f64 * DAY_SECONDS);
    // The budget counts what is received as well, which is about as much.
    let daily = (limits.daily_gigabytes > 0.0).then_some(limits.daily_gigabytes * 1e9 / 2.0);
    let bytes = [upload, daily].into_iter().flatten().fold(bytes_a_day, f64::min);
    let pace = format!("up to {} sent a day at this machine's pace", human_bytes(bytes as u64));
    // An all-reduce takes of the uplink what there is: all wait for it.
    let uplink = if is_synchronous { "" } else { ", a quarter of the uplink at most" };
    match (upload.is_some(), daily.is_some()) {
        (false, false) => format!("{pace}{uplink}; --upload-mbit and --daily-gigabytes cap it"),
        (true, false) => format!("{pace} and with --upload-mbit"),
        (false, true) => format!("{pace} and with --daily-gigabytes"),
        (true, true) => format!("{pace} and with the caps set"),
    }
}

/// Where a step takes too long to be tried: what an exchange sends.
fn describe_exchange(manifest: &RunManifest) -> String {
    let amount = human_bytes(round_bytes(trained_layout(manifest).parameters(), &manifest.gossip) as u64);
    format!(
        "{amount} sent every few steps, a quarter of the uplink at most; --upload-mbit and --daily-gigabytes cap it"
    )
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::{GossipKind, Topology};

    use super::*;

    #[test]
    fn a_day_of_exchanges_is_counted_at_the_shortest_interval_of_the_run() {
        let mut manifest = RunManifest::default();
        let rounds = DAY_SECONDS / (0.4 * f64::from(manifest.gossip.interval_steps_min));
        // The own exchange, and one that is answered: a bit or a byte a parameter each.
        for (kind, expected) in [(GossipKind::Links, 0.25e6 * rounds), (GossipKind::Pairs, 2e6 * rounds)] {
            manifest.gossip.kind = kind;
            let bytes = bytes_sent_a_day(&manifest, 1_000_000, 0.4);
            assert!(bytes > expected && bytes < 1.07 * expected, "{kind}: {bytes}");
        }
    }

    #[test]
    fn a_day_of_all_reduces_is_as_long_as_slices_are_written() {
        let mut manifest = RunManifest::default();
        manifest.synchronous.topology = Topology::Ring;
        let operations = DAY_SECONDS / 0.4;
        for (slice_bits, bytes) in [(32, 8e6), (16, 4e6), (8, 2e6)] {
            manifest.synchronous.slice_bits = slice_bits;
            let told = bytes_sent_a_day(&manifest, 1_000_000, 0.4);
            assert!((1.0..1.02).contains(&(told / (bytes * operations))), "{slice_bits} bits: {told}");
        }
    }

    #[test]
    fn caps_lower_what_is_told_and_are_named() {
        let limits = LimitsSettings::default();
        let free = describe(100e9, false, &limits);
        assert!(free.starts_with("up to 100.00 GB sent a day") && free.contains("--upload-mbit"), "{free}");
        let synchronous = describe(100e9, true, &limits);
        assert!(!synchronous.contains("quarter") && synchronous.contains("--upload-mbit"), "{synchronous}");
        let capped = describe(100e9, false, &LimitsSettings { upload_mbit: 1.0, ..limits.clone() });
        assert!(capped.starts_with("up to 10.80 GB sent a day") && capped.contains("--upload-mbit"), "{capped}");
        let daily = describe(100e9, false, &LimitsSettings { daily_gigabytes: 4.0, ..limits });
        assert!(daily.starts_with("up to 2.00 GB sent a day") && daily.contains("--daily-gigabytes"), "{daily}");
    }
}
