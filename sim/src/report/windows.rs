//! What a seed's plan lets go wrong for a while: from when to when, and for how many nodes.

use std::collections::BTreeSet;
use std::time::Duration;

use murmur_protocol::Event;
use serde::{Deserialize, Serialize};

use crate::HostIndex;
use crate::file::Plan;
use crate::scenario::Incident;

/// A stretch of a run in which something is wrong.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// What is wrong.
    pub what: String,
    /// Since when, in simulated seconds.
    pub from_seconds: f64,
    /// Until when; the same moment for a node that is gone for good.
    pub to_seconds: f64,
    /// How many nodes it is about.
    pub nodes: usize,
}

/// The network's splits: shown over the whole height of a chart.
pub(super) const SPLIT: &str = "the network is split";
const KILLED: &str = "killed, back later";
const KILLED_FOR_GOOD: &str = "killed for good";
const LEFT: &str = "leaves";
const PAUSED: &str = "stands still";
const SLOW: &str = "slower than planned";
const RESTS: &str = "leaves the network alone";
const NO_ROOM: &str = "no room on the disk";
const RELAYED: &str = "reached through a relay alone";
const NO_ADDRESS: &str = "cannot be reached at its address";
const JOIN: &str = "nodes join";
const BREAKS: &str = "connections break, one here and there";

/// What a plan lets go wrong, and who joins, in order of its beginning. Connections that break for a moment are one window, and
/// so are all that join.
pub fn windows(plan: &Plan) -> Vec<Window> {
    let incidents = &plan.scenario.incidents;
    let mut windows: Vec<Window> = Vec::new();
    for (index, (time, incident)) in incidents.iter().enumerate() {
        let until = |ends: &dyn Fn(&Incident) -> bool| {
            let later = incidents.iter().enumerate().filter(|(other, (at, _))| (*at, *other) > (*time, index));
            later.filter(|(_, (_, other))| ends(other)).map(|(_, (at, _))| *at).min()
        };
        let healed = || until(&|other| matches!(other, Incident::Heal)).unwrap_or(plan.faults_end);
        let window = match incident {
            Incident::Split(hosts) | Incident::SplitOneWay(hosts) => (SPLIT, healed(), hosts.len()),
            // Three groups and more are made of ways that let nothing through; those of one moment are one window.
            Incident::LinkBecomes(_, _, link) if link.is_dead => {
                let begin = time.as_secs_f64();
                if windows.iter().any(|window| window.what == SPLIT && window.from_seconds == begin) {
                    continue;
                }
                (SPLIT, healed(), hosts_cut_off(plan, *time))
            }
            Incident::Crash(host) => {
                let is_back = |other: &Incident| matches!(other, Incident::Restart { host: back, .. } if back == host);
                until(&is_back).map_or((KILLED_FOR_GOOD, *time, 1), |back| (KILLED, back, 1))
            }
            Incident::Leave(_) => (LEFT, *time, 1),
            Incident::Pause(_, duration) => (PAUSED, *time + *duration, 1),
            Incident::SlowTrainer(host, factor) if *factor != 1.0 => {
                let changes = |other: &Incident| matches!(other, Incident::SlowTrainer(other, _) if other == host);
                (SLOW, until(&changes).unwrap_or(plan.end), 1)
            }
            Incident::DiskFull(host) => {
                let is_freed = |other: &Incident| matches!(other, Incident::DiskFreed(freed) if freed == host);
                (NO_ROOM, until(&is_freed).unwrap_or(plan.end), 1)
            }
            Incident::PathBecomes { ends, is_direct: false } => {
                let is_back = |other: &Incident| matches!(other, Incident::PathBecomes { ends: back, is_direct: true } if back == ends);
                (RELAYED, until(&is_back).unwrap_or(plan.end), 2)
            }
            Incident::Tell(host, event) => {
                let told = |other: &Incident, is_end: fn(&Event) -> bool| matches!(other, Incident::Tell(to, event) if to == host && is_end(event));
                let (what, is_end): (&str, fn(&Event) -> bool) = match **event {
                    Event::RestBegan => (RESTS, |event| matches!(event, Event::RestEnded)),
                    Event::AddressLost { .. } => (NO_ADDRESS, |event| matches!(event, Event::AddressFound { .. })),
                    _ => continue,
                };
                (what, until(&|other| told(other, is_end)).unwrap_or(plan.end), 1)
            }
            _ => continue,
        };
        let (what, end, nodes) = window;
        let (from_seconds, to_seconds) = (time.as_secs_f64(), end.as_secs_f64());
        windows.push(Window { what: what.to_owned(), from_seconds, to_seconds, nodes });
    }
    windows.extend(breaks(plan));
    windows.extend(joins(plan));
    windows.sort_by(|one, other| one.from_seconds.total_cmp(&other.from_seconds));
    windows
}

/// From the first break to the last one.
fn breaks(plan: &Plan) -> Option<Window> {
    let breaks = plan.scenario.incidents.iter().filter_map(|(time, incident)| match incident {
        Incident::Break(one, other) => Some((*time, [*one, *other])),
        _ => None,
    });
    let (times, pairs): (Vec<Duration>, Vec<[HostIndex; 2]>) = breaks.unzip();
    let nodes = pairs.into_iter().flatten().collect::<BTreeSet<HostIndex>>().len();
    spanning(BREAKS, &times, nodes)
}

/// From the first that joins a swarm that runs to the last one.
fn joins(plan: &Plan) -> Option<Window> {
    let times: Vec<Duration> =
        plan.scenario.nodes.iter().map(|node| node.begins_at).filter(|time| !time.is_zero()).collect();
    spanning(JOIN, &times, times.len())
}

fn spanning(what: &str, times: &[Duration], nodes: usize) -> Option<Window> {
    let (first, last) = (times.iter().min()?, times.iter().max()?);
    let (from_seconds, to_seconds) = (first.as_secs_f64(), last.as_secs_f64());
    Some(Window { what: what.to_owned(), from_seconds, to_seconds, nodes })
}

fn hosts_cut_off(plan: &Plan, moment: Duration) -> usize {
    let of_that_moment = plan.scenario.incidents.iter().filter(|(time, _)| *time == moment);
    let ways = of_that_moment.filter_map(|(_, incident)| match incident {
        Incident::LinkBecomes(from, to, link) if link.is_dead => Some([*from, *to]),
        _ => None,
    });
    ways.flatten().collect::<BTreeSet<HostIndex>>().len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::ScenarioFile;
    use crate::network::LinkSpec;
    use crate::scenario::{Disk, NodePlan};

    #[test]
    fn windows_end_with_what_ends_them_and_a_moment_is_one() {
        let mut plan = ScenarioFile::default().draw(0);
        let at = Duration::from_secs;
        plan.scenario.incidents = vec![
            (at(9), Incident::Crash(3)),
            (at(2), Incident::LinkBecomes(0, 1, LinkSpec::dead())),
            (at(2), Incident::LinkBecomes(1, 2, LinkSpec::dead())),
            (at(5), Incident::Heal),
            (at(4), Incident::Crash(1)),
            (at(7), Incident::Restart { host: 2, same_identity: true, disk: Disk::Kept }),
            (at(8), Incident::Restart { host: 1, same_identity: true, disk: Disk::Kept }),
            (at(10), Incident::Pause(4, at(3))),
            (at(11), Incident::Tell(2, Box::new(Event::RestBegan))),
            (at(12), Incident::Break(1, 2)),
            (at(13), Incident::PathBecomes { ends: (0, 3), is_direct: false }),
            (at(14), Incident::Tell(2, Box::new(Event::RestEnded))),
            (at(15), Incident::PathBecomes { ends: (0, 3), is_direct: true }),
            (at(16), Incident::Break(2, 3)),
        ];
        for second in [20, 18, 19] {
            plan.scenario.nodes.push(NodePlan::joiner(at(second), Vec::new()));
        }
        let told: Vec<_> = windows(&plan)
            .into_iter()
            .map(|window| (window.what, window.from_seconds, window.to_seconds, window.nodes))
            .collect();
        let expected = [
            (SPLIT, 2.0, 5.0, 3),
            (KILLED, 4.0, 8.0, 1),
            (KILLED_FOR_GOOD, 9.0, 9.0, 1),
            (PAUSED, 10.0, 13.0, 1),
            (RESTS, 11.0, 14.0, 1),
            (BREAKS, 12.0, 16.0, 3),
            (RELAYED, 13.0, 15.0, 2),
            (JOIN, 18.0, 20.0, 3),
        ];
        assert_eq!(told, expected.map(|(what, from, to, nodes)| (what.to_owned(), from, to, nodes)));
    }
}
