//! What nodes live through: processes and trainers that halt, full disks, bad ways, a network that falls apart.

use std::time::Duration;

use murmur_protocol::Event;
use murmur_protocol::message::KnownPeer;
use murmur_protocol::random::RngExt;

use super::Schedule;
use crate::file::dice::{Dice, between, share_of, take, time_between};
use crate::file::{
    BadLinksSection, BreaksSection, HintsSection, OnceSection, PartitionSection, PausesSection, SlowdownsSection,
    SpellSection,
};
use crate::host::{address_of, identity};
use crate::network::LinkSpec;
use crate::scenario::{HostIndex, Incident};

pub(super) fn pauses(section: &PausesSection, dice: &mut Dice, schedule: &mut Schedule) {
    let count = share_of(schedule.count(), dice.amount("pauses.share", section.share));
    let mut random = dice.stream("pauses");
    for host in take(&mut random, (0..schedule.count()).collect(), count) {
        let time = schedule.not_before_settled(host, time_between(&mut random, section.at_seconds));
        let duration = time_between(&mut random, section.seconds);
        schedule.is_gentle = false;
        schedule.add(time, Incident::Pause(host, duration));
    }
}

pub(super) fn slowdowns(section: &SlowdownsSection, dice: &mut Dice, schedule: &mut Schedule) {
    let count = share_of(schedule.count(), dice.amount("slowdowns.share", section.share));
    let mut random = dice.stream("slowdowns");
    for host in take(&mut random, (0..schedule.count()).collect(), count) {
        let time = schedule.not_before_settled(host, time_between(&mut random, section.at_seconds));
        let duration = time_between(&mut random, section.seconds);
        schedule.add(time, Incident::SlowTrainer(host, between(&mut random, section.factor)));
        schedule.add_or_at_end(time + duration, Incident::SlowTrainer(host, 1.0));
    }
}

pub(super) fn full_disks(section: &SpellSection, dice: &mut Dice, schedule: &mut Schedule) {
    spell(section, ["full_disks.share", "full disks"], dice, schedule, |host| {
        [Incident::DiskFull(host), Incident::DiskFreed(host)]
    });
}

pub(super) fn outdated(section: &OnceSection, dice: &mut Dice, schedule: &mut Schedule) {
    let count = share_of(schedule.count(), dice.amount("outdated.share", section.share));
    let mut random = dice.stream("outdated");
    for host in take(&mut random, (0..schedule.count()).collect(), count) {
        let time = schedule.not_before_settled(host, time_between(&mut random, section.at_seconds));
        // An exchange that is under way is not merged.
        schedule.is_gentle = false;
        schedule.add(time, Incident::Outdated(host));
    }
}

pub(super) fn rests(section: &SpellSection, dice: &mut Dice, schedule: &mut Schedule) {
    spell(section, ["rests.share", "rests"], dice, schedule, |host| {
        [Event::RestBegan, Event::RestEnded].map(|event| Incident::Tell(host, Box::new(event)))
    });
}

pub(super) fn lost_addresses(section: &SpellSection, dice: &mut Dice, schedule: &mut Schedule) {
    spell(section, ["lost_addresses.share", "lost addresses"], dice, schedule, |host| {
        let address = address_of(host);
        let lost = Event::AddressLost { address: address.clone() };
        [lost, Event::AddressFound { address }].map(|event| Incident::Tell(host, Box::new(event)))
    });
}

/// What begins and ends for some nodes, once each; it is over when the faults are. `share` is the key of their share,
/// `stream` names the dice.
fn spell(
    section: &SpellSection,
    [share, stream]: [&str; 2],
    dice: &mut Dice,
    schedule: &mut Schedule,
    both_ends: impl Fn(HostIndex) -> [Incident; 2],
) {
    let count = share_of(schedule.count(), dice.amount(share, section.share));
    let mut random = dice.stream(stream);
    for host in take(&mut random, (0..schedule.count()).collect(), count) {
        let time = schedule.not_before_settled(host, time_between(&mut random, section.at_seconds));
        let duration = time_between(&mut random, section.seconds);
        let [begin, end] = both_ends(host);
        schedule.add(time, begin);
        schedule.add_or_at_end(time + duration, end);
    }
}

pub(super) fn breaks(section: &BreaksSection, dice: &mut Dice, schedule: &mut Schedule) {
    let rate = dice.amount("breaks.per_node_and_minute", section.per_node_and_minute);
    let seconds = schedule.faults_end.as_secs_f64();
    let mut random = dice.stream("breaks");
    let count = schedule.count();
    for _ in 0..(rate * count as f64 * seconds / 60.0).round() as usize {
        let time = Duration::from_secs_f64(seconds * random.random::<f64>());
        let one = random.random_range(0..count);
        let other = (one + random.random_range(1..count)) % count;
        schedule.is_gentle = false;
        schedule.add(time, Incident::Break(one, other));
    }
}

pub(super) fn relays(section: &SpellSection, dice: &mut Dice, schedule: &mut Schedule) {
    let share = dice.amount("relays.share", section.share);
    let mut random = dice.stream("relays");
    let pairs: Vec<(HostIndex, HostIndex)> = pairs(schedule.count()).filter(|(one, other)| one < other).collect();
    schedule.is_gentle = false;
    for number in take(&mut random, (0..pairs.len()).collect(), share_of(pairs.len(), share)) {
        let time = time_between(&mut random, section.at_seconds);
        let duration = time_between(&mut random, section.seconds);
        let ends = pairs[number];
        schedule.add(time, Incident::PathBecomes { ends, is_direct: false });
        schedule.add_or_at_end(time + duration, Incident::PathBecomes { ends, is_direct: true });
    }
}

pub(super) fn hints(section: &HintsSection, dice: &mut Dice, schedule: &mut Schedule) {
    let rate = dice.amount("hints.per_node_and_minute", section.per_node_and_minute);
    let wrong_share = dice.amount("hints.wrong_share", section.wrong_share);
    let seconds = schedule.faults_end.as_secs_f64();
    let mut random = dice.stream("hints");
    let count = schedule.count();
    for _ in 0..(rate * count as f64 * seconds / 60.0).round() as usize {
        let time = Duration::from_secs_f64(seconds * random.random::<f64>());
        let of = random.random_range(0..count);
        // The identities of a wrong hint are those of hosts that there are not; the address is somebody's.
        let owner = if random.random::<f64>() < wrong_share { count + of } else { of };
        let peer = identity(dice.seed(), owner, 0);
        let peers = vec![KnownPeer { peer, addresses: vec![address_of(of)] }];
        let host = random.random_range(0..count);
        schedule.add(time, Incident::Tell(host, Box::new(Event::PeersFound { peers })));
    }
}

pub(super) fn bad_links(section: &BadLinksSection, dice: &mut Dice, schedule: &mut Schedule) {
    let share = dice.amount("bad_links.share", section.share);
    let mut random = dice.stream("bad links");
    let pairs: Vec<(HostIndex, HostIndex)> = pairs(schedule.count()).collect();
    let count = share_of(pairs.len(), share);
    schedule.is_gentle = false;
    for number in take(&mut random, (0..pairs.len()).collect(), count) {
        let (from, to) = pairs[number];
        let delay = time_between(&mut random, section.delay_seconds);
        let spec = LinkSpec {
            loss: between(&mut random, section.loss),
            ..LinkSpec::slow(delay, between(&mut random, section.bytes_per_second))
        };
        let bad = Incident::LinkBecomes(from, to, spec);
        schedule.lasting.push(bad.clone());
        schedule.add(Duration::ZERO, bad);
    }
}

pub(super) fn partition(section: &PartitionSection, dice: &mut Dice, schedule: &mut Schedule) {
    let groups = dice.count("partition.groups", section.groups);
    let time = Duration::from_secs_f64(dice.amount("partition.at_seconds", section.at_seconds));
    let duration = Duration::from_secs_f64(dice.amount("partition.seconds", section.seconds));
    let one_way_chance = dice.amount("partition.one_way_chance", section.one_way_chance);
    let mut random = dice.stream("partition");
    let order = take(&mut random, (0..schedule.count()).collect(), schedule.count());
    schedule.is_gentle = false;
    if groups == 2 {
        let half: Vec<HostIndex> = order.iter().step_by(2).copied().collect();
        let one_way = random.random::<f64>() < one_way_chance;
        schedule.add(time, if one_way { Incident::SplitOneWay(half) } else { Incident::Split(half) });
    } else {
        for (one, other) in pairs(order.len()).filter(|(one, other)| one % groups != other % groups) {
            schedule.add(time, Incident::LinkBecomes(order[one], order[other], LinkSpec::dead()));
        }
    }
    if time + duration < schedule.faults_end {
        schedule.add(time + duration, Incident::Heal);
        // Healing makes all ways whole; those that were bad before stay so.
        let lasting = schedule.lasting.clone();
        lasting.into_iter().for_each(|incident| schedule.add(time + duration, incident));
    }
}

fn pairs(count: usize) -> impl Iterator<Item = (HostIndex, HostIndex)> {
    (0..count).flat_map(move |from| (0..count).filter(move |to| *to != from).map(move |to| (from, to)))
}
