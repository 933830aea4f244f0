//! Nodes that hold other fragments of the model than before: as a team's captain does when its helper becomes a node of its own.

use std::time::Duration;

use super::Schedule;
use crate::file::dice::{Dice, some_fragments};
use crate::file::machines::next_holding;
use crate::scenario::{HostIndex, Incident};
use murmur_protocol::Holding;
use murmur_protocol::random::RngExt;

/// So many changes for each node that holds some fragments alone, while there are faults.
pub(super) fn holding_changes(count: usize, dice: &Dice, schedule: &mut Schedule) {
    let fragments = schedule.scenario.fragments();
    let mut random = dice.stream("holding changes");
    let mut changes: Vec<(Duration, HostIndex, Holding)> = Vec::new();
    let partial = |host: &HostIndex| !schedule.scenario.nodes[*host].holding.is_all();
    for host in (0..schedule.count()).filter(partial) {
        let from = schedule.not_before_settled(host, Duration::ZERO);
        for _ in 0..count {
            let time = from + schedule.faults_end.saturating_sub(from).mul_f64(random.random::<f64>());
            changes.push((time, host, some_fragments(&mut random, &fragments)));
        }
    }
    changes.sort_by_key(|(time, host, _)| (*time, *host));
    // What each holds at the time of a change.
    let mut nodes = schedule.scenario.nodes.clone();
    for (time, host, wanted) in changes {
        if let Some(holding) = next_holding(&mut nodes, host, wanted, fragments.count()) {
            schedule.is_gentle = false;
            schedule.add(time, Incident::Holds(host, holding));
        }
    }
}
