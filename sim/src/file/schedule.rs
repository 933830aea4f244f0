//! Who meets which fault, and when: from the sections of a file to incidents.
//!
//! A node is killed or leaves for good at most once, and nothing happens to one that has not begun; the first node is
//! never taken away, so that whoever comes back finds a model to copy.

mod departures;
mod disturbances;
mod holdings;

use std::time::Duration;

use super::ScenarioFile;
use super::dice::Dice;
use crate::scenario::{HostIndex, Incident, Scenario};
use departures::{churn, crashes, crowd, doubles, finish, leaves};
use disturbances::{
    bad_links, breaks, full_disks, hints, lost_addresses, outdated, partition, pauses, relays, rests, slowdowns,
};
use holdings::holding_changes;

/// A node that has just begun is left alone for so long: a process takes a moment before anything can happen to it.
const SETTLING_IN: Duration = Duration::from_secs(1);

/// A scenario in the making.
pub(super) struct Schedule {
    pub(super) scenario: Scenario,
    /// Whether nothing that happens can cut an exchange in two.
    pub(super) is_gentle: bool,
    faults_end: Duration,
    /// What healing must not undo.
    lasting: Vec<Incident>,
    /// Who is killed or leaves by a section of its own; churn leaves them alone.
    marked: Vec<bool>,
    /// Who is away at the end.
    gone: Vec<bool>,
}

impl Schedule {
    pub(super) fn new(scenario: Scenario, faults_end: Duration) -> Schedule {
        let count = scenario.nodes.len();
        Schedule {
            scenario,
            is_gentle: true,
            faults_end,
            lasting: Vec::new(),
            marked: vec![false; count],
            gone: vec![false; count],
        }
    }

    /// Who takes part at the end and deceives nobody, in order.
    pub(super) fn present(&self) -> Vec<HostIndex> {
        self.scenario.honest().filter(|host| !self.gone[*host]).collect()
    }

    fn count(&self) -> usize {
        self.scenario.nodes.len()
    }

    /// Adds an incident, where its time lies before the end of the faults.
    fn add(&mut self, time: Duration, incident: Incident) {
        if time < self.faults_end {
            self.scenario.incidents.push((time, incident));
        }
    }

    /// The same, but what would happen later happens at the end of the faults.
    fn add_or_at_end(&mut self, time: Duration, incident: Incident) {
        self.scenario.incidents.push((time.min(self.faults_end), incident));
    }

    /// The first moment from `time` on at which something may happen to the host.
    fn not_before_settled(&self, host: HostIndex, time: Duration) -> Duration {
        time.max(self.scenario.nodes[host].begins_at + SETTLING_IN)
    }

    /// All but the first that no section has taken away yet.
    fn unmarked(&self) -> Vec<HostIndex> {
        (1..self.count()).filter(|host| !self.marked[*host]).collect()
    }
}

/// Turns sections into incidents where they are there, by the functions of their names.
macro_rules! each {
    ($file:ident, $dice:ident, $schedule:ident, [$($section:ident),+]) => {
        $(if let Some(section) = &$file.$section {
            $section(section, $dice, $schedule);
        })+
    };
}

impl ScenarioFile {
    /// Turns every section of faults into incidents. Order matters: joiners come first, so that faults meet them too,
    /// and doubles last, for they are no nodes of their own.
    pub(super) fn schedule(&self, dice: &mut Dice, schedule: &mut Schedule) {
        if let Some(section) = &self.crowd {
            let addresses = dice.count("swarm.addresses", self.swarm.addresses);
            crowd(section, addresses, dice, schedule);
        }
        self.draw_machines(dice, &mut schedule.scenario);
        holding_changes(dice.count("swarm.holding_changes", self.swarm.holding_changes), dice, schedule);
        each!(self, dice, schedule, [crashes, leaves, churn, finish]);
        each!(self, dice, schedule, [pauses, slowdowns, full_disks, breaks, rests, relays, lost_addresses]);
        each!(self, dice, schedule, [outdated, hints, bad_links, partition, doubles]);
        if self.liars.as_ref().is_some_and(|section| section.gone_in_calm) {
            let liars = (0..schedule.count()).filter(|host| schedule.scenario.nodes[*host].lie.is_some());
            let gone: Vec<Incident> = liars.map(Incident::Crash).collect();
            gone.into_iter().for_each(|crash| schedule.add_or_at_end(schedule.faults_end, crash));
        }
    }
}
