//! Nodes that come and go: crowds, crashes, leavers, churn; and runs that end.

use std::collections::BTreeSet;
use std::time::Duration;

use murmur_protocol::Start;
use murmur_protocol::random::RngExt;

use super::Schedule;
use crate::file::dice::{Dice, share_of, some_addresses, take, time_between};
use crate::file::{ChurnSection, CrashesSection, CrowdSection, FinishSection, OnceSection};
use crate::scenario::{Disk, HostIndex, Incident, NodePlan};

pub(super) fn crowd(section: &CrowdSection, addresses: usize, dice: &mut Dice, schedule: &mut Schedule) {
    let before = schedule.count();
    let joiners = share_of(before, dice.amount("crowd.share", section.share)).max(1);
    let first = dice.amount("crowd.at_seconds", section.at_seconds);
    let within = dice.amount("crowd.within_seconds", section.within_seconds);
    let mut random = dice.stream("crowd");
    for _ in 0..joiners {
        let begins_at = Duration::from_secs_f64(first + within * random.random::<f64>());
        // Their machines are like those that were there before; they know nobody of the crowd.
        let like = schedule.scenario.nodes[random.random_range(0..before)].clone();
        let bootstrap = some_addresses(&mut random, schedule.count(), before, addresses);
        schedule.scenario.nodes.push(NodePlan {
            step_time: like.step_time,
            uplink_bytes_per_second: like.uplink_bytes_per_second,
            downlink_bytes_per_second: like.downlink_bytes_per_second,
            range: like.range,
            ..NodePlan::joiner(begins_at, bootstrap)
        });
        schedule.marked.push(false);
        schedule.gone.push(false);
    }
}

pub(super) fn crashes(section: &CrashesSection, dice: &mut Dice, schedule: &mut Schedule) {
    let count = share_of(schedule.count(), dice.amount("crashes.share", section.share));
    let back_share = dice.amount("crashes.back_share", section.back_share);
    let stranger_share = dice.amount("crashes.stranger_share", section.stranger_share);
    let lost_disk_share = dice.amount("crashes.lost_disk_share", section.lost_disk_share);
    let mut random = dice.stream("crashes");
    for host in take(&mut random, schedule.unmarked(), count) {
        let time = schedule.not_before_settled(host, time_between(&mut random, section.at_seconds));
        let back = time + time_between(&mut random, section.back_after_seconds);
        let same_identity = random.random::<f64>() >= stranger_share;
        let disk = if random.random::<f64>() < lost_disk_share { Disk::Lost } else { Disk::Kept };
        // One that would come back after the end of the faults stays away.
        let comes_back = random.random::<f64>() < back_share && back < schedule.faults_end;
        if time >= schedule.faults_end {
            continue;
        }
        schedule.is_gentle = false;
        schedule.marked[host] = true;
        schedule.add(time, Incident::Crash(host));
        if comes_back {
            schedule.add(back, Incident::Restart { host, same_identity, disk });
        } else {
            schedule.gone[host] = true;
        }
    }
}

pub(super) fn leaves(section: &OnceSection, dice: &mut Dice, schedule: &mut Schedule) {
    let count = share_of(schedule.count(), dice.amount("leaves.share", section.share));
    let mut random = dice.stream("leaves");
    for host in take(&mut random, schedule.unmarked(), count) {
        let time = schedule.not_before_settled(host, time_between(&mut random, section.at_seconds));
        if time < schedule.faults_end {
            schedule.marked[host] = true;
            schedule.gone[host] = true;
            schedule.add(time, Incident::Leave(host));
        }
    }
}

pub(super) fn churn(section: &ChurnSection, dice: &mut Dice, schedule: &mut Schedule) {
    let share = dice.amount("churn.share", section.share);
    let rounds = dice.amount("churn.every_rounds", section.every_rounds);
    let plans = &schedule.scenario.nodes;
    let step_time = plans.iter().map(|plan| plan.step_time).sum::<Duration>() / plans.len() as u32;
    let period = step_time.mul_f64(rounds * f64::from(schedule.scenario.gossip.interval_steps));
    let mut random = dice.stream("churn");
    let mut time = period;
    while time < schedule.faults_end {
        let candidates = schedule.unmarked().into_iter();
        let candidates = candidates.filter(|host| schedule.not_before_settled(*host, time) == time).collect();
        for host in take(&mut random, candidates, share_of(schedule.count(), share)) {
            schedule.is_gentle = false;
            schedule.add(time, Incident::Restart { host, same_identity: false, disk: Disk::Lost });
        }
        time += period;
    }
}

pub(super) fn doubles(section: &OnceSection, dice: &mut Dice, schedule: &mut Schedule) {
    let count = share_of(schedule.count(), dice.amount("doubles.share", section.share));
    let mut random = dice.stream("doubles");
    let incidents = schedule.scenario.incidents.iter();
    let moved: BTreeSet<HostIndex> = incidents.filter_map(|(_, incident)| comes_or_goes(incident)).collect();
    let stay = schedule.present().into_iter().filter(|host| *host != 0 && !moved.contains(host)).collect();
    for host in take(&mut random, stay, count) {
        let begins_at = schedule.not_before_settled(host, time_between(&mut random, section.at_seconds));
        if begins_at >= schedule.faults_end {
            continue;
        }
        schedule.is_gentle = false;
        let double = schedule.count();
        let original = schedule.scenario.nodes[host].clone();
        schedule.scenario.nodes.push(NodePlan { start: Start::FromPeer, double_of: Some(host), begins_at, ..original });
        schedule.marked.push(true);
        schedule.gone.push(true);
        schedule.add_or_at_end(schedule.faults_end, Incident::Crash(double));
    }
}

/// Whose process this begins or ends.
fn comes_or_goes(incident: &Incident) -> Option<HostIndex> {
    match incident {
        Incident::Crash(host) | Incident::Leave(host) | Incident::Restart { host, .. } => Some(*host),
        _ => None,
    }
}

pub(super) fn finish(section: &FinishSection, dice: &mut Dice, schedule: &mut Schedule) {
    let chance = dice.amount("finish.chance", section.chance);
    let time = Duration::from_secs_f64(dice.amount("finish.at_seconds", section.at_seconds));
    let steps = dice.amount("finish.steps", section.steps);
    if dice.stream("finish").random::<f64>() < chance {
        schedule.add(time, Incident::Finish { at: 0, steps });
    }
}
