//! Machines that differ from the others for the whole run: slow ones, slow lines, wrong clocks, liars.

use super::ScenarioFile;
use super::dice::{Dice, between, share_of, take};
use crate::scenario::{Lie, NodePlan, Scenario};
use murmur_protocol::Holding;
use murmur_protocol::random::RngExt;

/// Honest hosts for each liar among those who hold a fragment: as many as the built-in scenarios have at least.
const HONEST_FOR_A_LIAR: usize = 9;

impl ScenarioFile {
    /// Makes some of the machines of a scenario what the file says.
    pub(super) fn draw_machines(&self, dice: &mut Dice, scenario: &mut Scenario) {
        let count = scenario.nodes.len();
        let everybody = || (0..count).collect();
        if let Some(section) = &self.stragglers {
            let slow = share_of(count, dice.amount("stragglers.share", section.share));
            let mut random = dice.stream("stragglers");
            for host in take(&mut random, everybody(), slow) {
                let factor = between(&mut random, section.factor);
                let plan = &mut scenario.nodes[host];
                plan.step_time = plan.step_time.mul_f64(factor);
                if section.declared {
                    plan.tokens_per_second /= factor;
                }
            }
        }
        if let Some(section) = &self.slow_lines {
            let slow = share_of(count, dice.amount("slow_lines.share", section.share));
            let mut random = dice.stream("slow lines");
            for host in take(&mut random, everybody(), slow) {
                scenario.nodes[host].uplink_bytes_per_second = between(&mut random, section.uplink_bytes_per_second);
                scenario.nodes[host].downlink_bytes_per_second =
                    between(&mut random, section.downlink_bytes_per_second);
            }
        }
        if let Some(section) = &self.clocks {
            let error = dice.amount("clocks.error", section.error);
            let mut random = dice.stream("clocks");
            for plan in &mut scenario.nodes {
                plan.clock_rate = 1.0 + error * random.random_range(-1.0..=1.0);
            }
        }
        if let Some(section) = &self.liars {
            let lying = share_of(count, dice.amount("liars.share", section.share));
            let mut random = dice.stream("liars");
            for host in take(&mut random, (1..count).collect(), lying) {
                let kind = section.kinds[random.random_range(0..section.kinds.len())];
                scenario.nodes[host].lie = Some(Lie::from(kind));
            }
        }
        outnumber_liars(scenario);
    }
}

/// Of each fragment liars hold a minority, as of the whole model: else all honest hosts hold it.
fn outnumber_liars(scenario: &mut Scenario) {
    let count = scenario.gossip.fragments;
    for fragment in 0..count {
        let (liars, honest): (Vec<&NodePlan>, Vec<&NodePlan>) =
            scenario.nodes.iter().filter(|plan| plan.holding.holds(fragment)).partition(|plan| plan.lie.is_some());
        if honest.len() < HONEST_FOR_A_LIAR * liars.len() {
            let lacks_it = |plan: &&mut NodePlan| plan.lie.is_none() && !plan.holding.holds(fragment);
            for plan in scenario.nodes.iter_mut().filter(lacks_it) {
                let held = plan.holding.fragments(count);
                plan.holding = Holding::of(held.chain(std::iter::once(fragment)));
            }
        }
    }
}
