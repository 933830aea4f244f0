//! A run as a story: every incident of the plan and every notice of a node, one aligned line each, in order of time.

use std::collections::BTreeMap;
use std::time::Duration;

use murmur_protocol::bounds::FRAGMENTS_MAX;
use murmur_protocol::{Notice, PeerId};

use crate::file::Plan;
use crate::scenario::{Disk, Incident};
use crate::{HostIndex, Swarm};

/// A line for every change of state that is kept; the first one says how many are not.
pub fn changes(plan: &Plan, swarm: &Swarm) -> Vec<String> {
    let history = swarm.history();
    let machines = plan.scenario.nodes.iter().enumerate().filter_map(|(host, node)| {
        node.lie.map(|lie| (Duration::ZERO, (Some(host), format!("! deceives the others: {lie:?}"))))
    });
    let incidents = machines.chain(told_in_order(&plan.scenario.incidents));
    let notices = history.notices.iter();
    let notices = notices.map(|(time, host, notice)| (time.since_start(), noticed(swarm, *host, notice)));
    let mut lines: Vec<(Duration, (Option<HostIndex>, String))> = incidents.chain(notices).collect();
    lines.sort_by_key(|(time, _)| *time);
    let dropped = (history.notices_dropped > 0).then(|| {
        format!("the first {} changes that nodes told are left out: they are too many", history.notices_dropped)
    });
    dropped.into_iter().chain(lines.iter().map(|(time, (host, text))| line(*time, *host, text))).collect()
}

fn line(time: Duration, host: Option<HostIndex>, text: &str) -> String {
    let host = host.map_or("      swarm".to_owned(), |host| format!("node {host:>6}"));
    format!("{:>10.3} s  {host}  {text}", time.as_secs_f64())
}

/// Ways between hosts change by the hundreds, so those of one moment are told together.
fn told_in_order(incidents: &[(Duration, Incident)]) -> Vec<(Duration, (Option<HostIndex>, String))> {
    let is_way = |incident: &Incident| matches!(incident, Incident::LinkBecomes(..));
    let mut ways: BTreeMap<Duration, usize> = BTreeMap::new();
    for (time, _) in incidents.iter().filter(|(_, incident)| is_way(incident)) {
        *ways.entry(*time).or_default() += 1;
    }
    let others = incidents.iter().filter(|(_, incident)| !is_way(incident));
    let mut told: Vec<_> = others.map(|(time, incident)| (*time, told(incident))).collect();
    let many = |(time, count)| (time, (None, format!("! {count} ways from one host to another change")));
    told.extend(ways.into_iter().map(many));
    told
}

fn told(incident: &Incident) -> (Option<HostIndex>, String) {
    match incident {
        Incident::Crash(host) => (Some(*host), "! is killed".to_owned()),
        Incident::Restart { host, same_identity, disk } => {
            let who = if *same_identity { "" } else { " as a stranger" };
            let disk = if *disk == Disk::Kept { "its last checkpoint" } else { "an empty disk" };
            (Some(*host), format!("! starts anew{who} with {disk}"))
        }
        Incident::Leave(host) => (Some(*host), "! is asked to leave".to_owned()),
        Incident::Pause(host, duration) => (Some(*host), format!("! stands still for {:.3} s", duration.as_secs_f64())),
        Incident::SlowTrainer(host, factor) => (Some(*host), format!("! trains at 1/{factor:.1} of its speed")),
        Incident::DiskFull(host) => (Some(*host), "! has a full disk".to_owned()),
        Incident::DiskFreed(host) => (Some(*host), "! has room on its disk again".to_owned()),
        Incident::PathBecomes { ends: (one, other), is_direct } => {
            let path = if *is_direct { "directly" } else { "through a relay" };
            (Some(*one), format!("! reaches node {other} {path}"))
        }
        Incident::LinkBecomes(from, to, _) => (Some(*from), format!("! has another way to node {to}")),
        Incident::Break(one, other) => (Some(*one), format!("! loses its connection to node {other}")),
        Incident::Split(hosts) => (None, format!("! {} are cut off from the others", nodes(hosts))),
        Incident::SplitOneWay(hosts) => (None, format!("! {} hear nothing of the others", nodes(hosts))),
        Incident::Heal => (None, "! the network is whole again".to_owned()),
        Incident::NetworkBecomes(_) => (None, "! the network changes".to_owned()),
        Incident::StopLearning => (None, "! learning ends: calm from here on".to_owned()),
        Incident::StopReporting => (None, "! no exchange begins from here on".to_owned()),
        Incident::Finish { at, steps } => (Some(*at), format!("! finishes the run in {steps:.0} steps")),
        Incident::Outdated(host) => (Some(*host), "! goes back to the model that it began with".to_owned()),
        Incident::Holds(host, holding) => {
            let held: Vec<String> = holding.fragments(FRAGMENTS_MAX).map(|fragment| fragment.to_string()).collect();
            let what =
                if holding.is_all() { "the whole model".to_owned() } else { format!("fragments {}", held.join(", ")) };
            (Some(*host), format!("! holds {what} from here on"))
        }
        Incident::Tell(host, event) => (Some(*host), format!("! is told {event:?}")),
    }
}

fn nodes(hosts: &[HostIndex]) -> String {
    let mut sorted = hosts.to_vec();
    sorted.sort_unstable();
    let names: Vec<String> = sorted.iter().map(ToString::to_string).collect();
    format!("nodes {}", names.join(", "))
}

fn noticed(swarm: &Swarm, host: HostIndex, notice: &Notice) -> (Option<HostIndex>, String) {
    let name = |peer: &PeerId| match swarm.host_of(*peer) {
        Some(host) => format!("node {host}"),
        None => format!("somebody unknown ({})", peer.short()),
    };
    let names = |peers: &[PeerId]| peers.iter().map(&name).collect::<Vec<_>>().join(" and ");
    let text = match notice {
        Notice::PeerJoined(peer) => format!("connected to {}", name(peer)),
        Notice::PeerLeft { peer, announced: true } => format!("{} has left", name(peer)),
        Notice::PeerLeft { peer, announced: false } => format!("lost {}", name(peer)),
        Notice::StateReceived { donors, progress } => {
            format!("took over the model of {} at step {progress:.0}", names(donors))
        }
        Notice::StateSent { peer, chunks, of } if chunks == of => format!("gave the model to {}", name(peer)),
        Notice::StateSent { peer, chunks, of } => {
            format!("gave {chunks} of {of} chunks of the model to {}", name(peer))
        }
        Notice::ExchangeCompleted { partner, part: _, distance, clip_scale, masked_blocks, coarse } => {
            let coarse = if *coarse { ", 16 bits" } else { "" };
            let clipped = if *clip_scale < 1.0 { format!(", clipped to {clip_scale:.3}") } else { String::new() };
            let masked = match masked_blocks {
                0 => String::new(),
                count => format!(", {count} blocks left out"),
            };
            format!("averaged with {} (distance {distance:.5}{coarse}{clipped}{masked})", name(partner))
        }
        Notice::StateUnchecked { donors, why, is_copied_again } => {
            let then = if *is_copied_again { "copies another one" } else { "believes it" };
            format!("model of {} not checked ({why:?}): {then}", names(donors))
        }
        Notice::PeerBanned { peer, duration } => format!("bans {} for {:.0} s", name(peer), duration.as_secs_f64()),
        Notice::Reunited { partner, away, distance, .. } => {
            format!("reunited with {} after {:.0} s (distance {distance:.5})", name(partner), away.as_secs_f64())
        }
        Notice::BudgetTooSmall { interval_steps, ratio } => {
            format!("cannot exchange more often than every {interval_steps:.1} steps (ratio {ratio:.2})")
        }
        Notice::ExchangeFailed { partner, failure } => format!("exchange with {} failed: {failure:?}", name(partner)),
        Notice::IdentityDoubled { peer } => format!("two nodes are {}", name(peer)),
        Notice::PeerMisbehaved { peer, misbehaviour } => format!("{} {misbehaviour}", name(peer)),
        Notice::PeerRefused { peer, refusal } => format!("{} {refusal}", name(peer)),
        Notice::TurnedAway { peer, others } => format!("{} has no place, and names {others} others", name(peer)),
        other => format!("{other:?}"),
    };
    (Some(host), text)
}
