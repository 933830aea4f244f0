//! One sentence: is it in order, and if not, what is the matter.

use murmur_protocol::manifest::RatioBand;

use super::{Scene, Tone};
use crate::console::figures::{counted, duration, percent};
use crate::observe::NodePicture;

/// Seconds without a record after which that is said: ten times as long as between two.
const STALE_SECONDS: f64 = 10.0;

/// Seconds without an exchange after which that is said, where there are members: rounds take seconds to minutes.
const QUIET_SECONDS: f64 = 300.0;

/// Where all members average at once: a share of the time in which a node waits above which that is said.
const WAITING_SHARE: f64 = 0.5;

/// What is the matter with a node, and how bad that is.
pub(super) fn verdict(scene: &Scene<'_>, node: &NodePicture) -> (Tone, String) {
    let origin = scene.origin();
    if let Some((reason, since)) = origin.and_then(|origin| origin.silent.as_ref()) {
        let seconds = (scene.now - since).max(0.0);
        return match &node.end {
            Some(_) => ended(node),
            None => (Tone::Bad, format!("it has not answered for {seconds:.0} s: {reason}")),
        };
    }
    if node.end.is_some() {
        return ended(node);
    }
    if origin.is_some_and(|origin| origin.is_over) {
        return (Tone::Doubtful, "the journal ends here; its daemon did not say that it ended".to_owned());
    }
    let age = scene.now - node.time;
    if age > STALE_SECONDS {
        return (Tone::Bad, format!("nothing new for {}", spoken(age)));
    }
    let Some(sample) = &node.sample else { return (Tone::Plain, "it has begun".to_owned()) };
    if let Some(reason) = &sample.resting {
        return (Tone::Doubtful, format!("trains alone for now: {reason}"));
    }
    let is_whole = sample.team.as_ref().is_none_or(|team| team.state == "training");
    match sample.phase.as_str() {
        "training" if !is_whole => return (Tone::Doubtful, sample.doing.clone()),
        "joining" => return (Tone::Doubtful, joining(sample.copied, &sample.doing)),
        "training" => {}
        _ => return (Tone::Good, sample.doing.clone()),
    }
    let members = counted(sample.peers, "member");
    if sample.peers == 0 {
        return (Tone::Doubtful, "trains alone: no member is connected".to_owned());
    }
    match sample.members {
        Some(0) => return (Tone::Doubtful, "stands still and seeks the others' agreement".to_owned()),
        Some(1) => return (Tone::Doubtful, "averages with nobody, though members are connected".to_owned()),
        Some(all) => {
            let others = counted(all - 1, "member");
            return match sample.boundary_share {
                share if share > WAITING_SHARE => (
                    Tone::Doubtful,
                    format!("averages all at once with {others}, and waits {} of the time", percent(share)),
                ),
                _ => (Tone::Good, format!("averages all at once with {others}, and has their model")),
            };
        }
        None => {}
    }
    let Some(ratio) = sample.ratio else {
        return (Tone::Plain, format!("trains with {members}; it is not known yet how far the models are apart"));
    };
    let band = node.run.ratio_band;
    if ratio > band.drifting {
        return (Tone::Bad, format!("trains with {members}, and the models drift apart (ratio {ratio:.2})"));
    }
    let newest = node.exchanges.iter().rev().find(|exchange| exchange.facts.result == "done");
    if let Some(age) = newest.map(|exchange| scene.now - exchange.time).filter(|age| *age > QUIET_SECONDS) {
        return (Tone::Doubtful, format!("trains with {members}; the last exchange was {} ago", spoken(age)));
    }
    if ratio > band.high {
        let together = format!("the models stay together (ratio {ratio:.2}, {})", healthy(band));
        return (Tone::Good, format!("trains with {members}; {together}"));
    }
    (Tone::Good, format!("trains with {members}, and the models agree (ratio {ratio:.2})"))
}

fn joining(copied: Option<f64>, doing: &str) -> String {
    match copied {
        Some(share) => format!("{doing} ({})", percent(share)),
        None => doing.to_owned(),
    }
}

fn ended(node: &NodePicture) -> (Tone, String) {
    match node.end.as_ref().and_then(|end| end.failure.as_ref()) {
        Some(failure) => (Tone::Bad, format!("ended: {failure}")),
        None => (Tone::Plain, "ended in order".to_owned()),
    }
}

/// The range of healthy ratios, such as `healthy 0.4–0.8`.
pub(super) fn healthy(band: RatioBand) -> String {
    format!("healthy {}–{}", band.low, band.high)
}

/// A time in seconds as people say it.
pub(super) fn spoken(seconds: f64) -> String {
    duration(std::time::Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dashboard_has_the_same_limits() {
        let script = include_str!("../../web/site/health.js");
        let of = |name: &str| -> f64 {
            let line = script.lines().find_map(|line| line.strip_prefix(&format!("export const {name} = ")));
            line.and_then(|value| value.trim_end_matches(';').parse().ok()).expect(name)
        };
        let theirs = ["STALE_SECONDS", "QUIET_SECONDS", "WAITING_SHARE"].map(of);
        assert_eq!(theirs, [STALE_SECONDS, QUIET_SECONDS, WAITING_SHARE]);
    }
}
