//! What taking part will send: told before a node begins, from the time that this machine takes for a step.
//!
//! Of a day an upper bound: nodes exchange as often as the run allows only where link, processor and caps bear it. Of a whole run
//! that is shorter about what is sent: what its beginning and its end cost weighs most there, and depends on the members that come.

use murmur_protocol::RunManifest;
use murmur_protocol::bounds::{LINKS_MAX, state_bytes};
use murmur_protocol::manifest::GossipKind;
use murmur_protocol::numerics::{CodeWidth, codes_bytes, round_bytes, scales_bytes};
use murmur_training::trained_layout;

use crate::console::{human_bytes, note};
use crate::doctor::measure_briefly;
use crate::limits::expected_traffic::ExpectedTraffic;
use crate::limits::quiet_hours::QuietHours;
use crate::settings::{LimitsSettings, NodeSettings};
use crate::setup::arrangement::Arrangement;

const DAY_SECONDS: f64 = 86_400.0;

/// What a member of an all-reduce sends for a parameter at most, but for the one in the middle of a star: each value once to
/// be summed and once to be copied, as 32-bit floats.
pub(crate) const ALL_REDUCE_BYTES: usize = 8;

/// Tells people what this node will send, before it begins. Returns the same for programs; `None` where a step takes too long to
/// be tried.
pub(crate) fn tell(
    manifest: &RunManifest,
    settings: &NodeSettings,
    arrangement: &Arrangement,
) -> Option<ExpectedTraffic> {
    let measured = measure_briefly(manifest, arrangement, settings);
    let expected =
        measured.map(|(step, parameters)| (sent(manifest, settings, parameters, step.as_secs_f64()), parameters));
    let told = match expected {
        Some((sent, parameters)) => match sent {
            Sent::InWholeRun(bytes) => format!(
                "about {} sent in the whole run, and {} to each member that copies the model from here",
                human_bytes(bytes as u64),
                human_bytes(state_bytes(parameters) as u64)
            ),
            Sent::InDay(bytes) => describe(bytes, manifest.synchronous.is_on(), &settings.limits),
        },
        None => describe_exchange(manifest),
    };
    note(&format!("traffic     {told}"));
    expected.map(|(sent, _)| sent.into())
}

impl From<Sent> for ExpectedTraffic {
    fn from(sent: Sent) -> ExpectedTraffic {
        match sent {
            Sent::InWholeRun(bytes) => ExpectedTraffic { whole_run_bytes: Some(bytes as u64), day_bytes_max: None },
            Sent::InDay(bytes) => ExpectedTraffic { whole_run_bytes: None, day_bytes_max: Some(bytes as u64) },
        }
    }
}

/// Bytes that exchanges send, within the owner's caps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Sent {
    /// About, from the first step to the last or to the end of the stay: they take less than a day.
    InWholeRun(f64),
    /// At most, at this machine's pace.
    InDay(f64),
}

/// What a machine whose step takes so long sends.
pub(crate) fn sent(manifest: &RunManifest, settings: &NodeSettings, parameters: usize, step_seconds: f64) -> Sent {
    let bytes = bytes_sent_a_step(manifest, parameters);
    let steps = [manifest.schedule.total_steps, settings.training.steps].into_iter().filter(|steps| *steps > 0);
    let in_whole_run = steps.min().map(|steps| steps as f64 * bytes + bytes_sent_once(manifest, parameters));
    // The stay's limit counts what is received as well, which is about as much.
    let stay = Some(settings.stay.max_gigabytes * 1e9 / 2.0).filter(|bytes| *bytes > 0.0);
    let in_whole_run = [in_whole_run, stay].into_iter().flatten().reduce(f64::min);
    let at_pace = bytes * awake_seconds(&settings.limits) / step_seconds;
    let in_day = caps_a_day(&settings.limits).into_iter().flatten().fold(at_pace, f64::min);
    match in_whole_run.filter(|in_whole_run| *in_whole_run < in_day) {
        Some(bytes) => Sent::InWholeRun(bytes),
        None => Sent::InDay(in_day),
    }
}

/// Seconds of a day that are no quiet hours.
fn awake_seconds(limits: &LimitsSettings) -> f64 {
    let quiet = QuietHours::parse(&limits.quiet_hours).flatten();
    DAY_SECONDS - quiet.map_or(0.0, |quiet| 60.0 * f64::from(quiet.minutes()))
}

/// Bytes that the owner's caps let it send in a day: that of the uplink, and that of all traffic.
fn caps_a_day(limits: &LimitsSettings) -> [Option<f64>; 2] {
    let upload = limits.caps().upload.map(|rate| rate as f64 * awake_seconds(limits));
    // The budget counts what is received as well, which is about as much.
    let daily = (limits.daily_gigabytes > 0.0).then_some(limits.daily_gigabytes * 1e9 / 2.0);
    [upload, daily]
}

/// What the first exchanges, before anybody knows how far apart the models are, and the last ones send beside those on the way.
fn bytes_sent_once(manifest: &RunManifest, parameters: usize) -> f64 {
    if manifest.synchronous.is_on() {
        return 0.0;
    }
    let gossip = &manifest.gossip;
    let scales = scales_bytes(parameters);
    let first = match gossip.kind {
        // A new reference has a byte for each value.
        GossipKind::Links => LINKS_MAX * (scales + parameters),
        GossipKind::Pairs => scales + 2 * codes_bytes(parameters, CodeWidth::Sixteen),
    };
    let width = CodeWidth::from_bits(gossip.bits).unwrap_or(CodeWidth::Eight);
    let last = gossip.final_exchanges as usize * (scales + 2 * codes_bytes(parameters, width));
    (first + last) as f64
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

/// A day's bytes in words, with the flags that set the owner's caps.
fn describe(bytes_a_day: f64, is_synchronous: bool, limits: &LimitsSettings) -> String {
    let [upload, daily] = caps_a_day(limits);
    let pace = format!("up to {} sent a day at this machine's pace", human_bytes(bytes_a_day as u64));
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
    use crate::settings::TrainingSettings;

    #[test]
    fn a_day_of_exchanges_is_counted_at_the_shortest_interval_of_the_run() {
        let mut manifest = RunManifest::default();
        let rounds = DAY_SECONDS / (0.4 * f64::from(manifest.gossip.interval_steps_min));
        // The own exchange, and one that is answered: a bit or a byte a parameter each.
        for (kind, expected) in [(GossipKind::Links, 0.25e6 * rounds), (GossipKind::Pairs, 2e6 * rounds)] {
            manifest.gossip.kind = kind;
            let bytes = a_day(&manifest, &NodeSettings::default());
            assert!(bytes > expected && bytes < 1.07 * expected, "{kind}: {bytes}");
        }
    }

    fn a_day(manifest: &RunManifest, settings: &NodeSettings) -> f64 {
        match sent(manifest, settings, 1_000_000, 0.4) {
            Sent::InDay(bytes) => bytes,
            whole => panic!("{whole:?}"),
        }
    }

    #[test]
    fn a_run_that_is_over_within_a_day_sends_no_day_of_exchanges() {
        let mut manifest = RunManifest::default();
        let settings = NodeSettings::default();
        let day = a_day(&manifest, &settings);
        manifest.schedule.total_steps = 2_160; // a hundredth of a day's 216,000
        let Sent::InWholeRun(bytes) = sent(&manifest, &settings, 1_000_000, 0.4) else { panic!("it is short") };
        // Five new references, and four exchanges with all of the values at the end.
        let once = bytes - day / 100.0;
        assert!((13e6..14e6).contains(&once), "{once} beside {day} a day");
        manifest.schedule.total_steps = 1_000_000;
        assert_eq!(a_day(&manifest, &settings), day);
        let own = TrainingSettings { steps: 2_160, ..TrainingSettings::default() };
        let stays_short = NodeSettings { training: own, ..NodeSettings::default() };
        assert_eq!(sent(&manifest, &stays_short, 1_000_000, 0.4), Sent::InWholeRun(bytes), "this node's own last step");
    }

    #[test]
    fn quiet_hours_and_the_limit_of_a_stay_are_heeded() {
        let manifest = RunManifest::default();
        let free = a_day(&manifest, &NodeSettings::default());
        let limits = LimitsSettings { quiet_hours: "22:00-04:00".to_owned(), ..LimitsSettings::default() };
        let quiet = a_day(&manifest, &NodeSettings { limits, ..NodeSettings::default() });
        assert!((quiet / free - 0.75).abs() < 1e-9, "{quiet} of {free}");
        let mut short = NodeSettings::default();
        short.stay.max_gigabytes = 0.5;
        assert_eq!(sent(&manifest, &short, 1_000_000, 0.4), Sent::InWholeRun(0.25e9));
        short.stay.max_gigabytes = 1e5;
        assert_eq!(a_day(&manifest, &short), free, "it is not reached in a day");
    }

    #[test]
    fn a_day_of_all_reduces_is_as_long_as_slices_are_written() {
        let mut manifest = RunManifest::default();
        manifest.synchronous.topology = Topology::Ring;
        let operations = DAY_SECONDS / 0.4;
        for (slice_bits, bytes) in [(32, 8e6), (16, 4e6), (8, 2e6)] {
            manifest.synchronous.slice_bits = slice_bits;
            let told = a_day(&manifest, &NodeSettings::default());
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
        let capped = |limits: LimitsSettings| {
            let settings = NodeSettings { limits, ..NodeSettings::default() };
            describe(a_day(&RunManifest::default(), &settings), false, &settings.limits)
        };
        let upload = capped(LimitsSettings { upload_mbit: 0.2, ..limits.clone() });
        assert!(upload.starts_with("up to 2.16 GB sent a day") && upload.contains("--upload-mbit"), "{upload}");
        let daily = capped(LimitsSettings { daily_gigabytes: 4.0, ..limits });
        assert!(daily.starts_with("up to 2.00 GB sent a day") && daily.contains("--daily-gigabytes"), "{daily}");
    }
}
