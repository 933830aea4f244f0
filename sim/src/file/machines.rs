//! Machines that differ from the others for the whole run: slow ones, slow lines, wrong clocks, liars.

use super::ScenarioFile;
use super::dice::{Dice, between, share_of, take};
use crate::scenario::{HostIndex, NodePlan, Scenario};
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
                let lie = section.kinds[random.random_range(0..section.kinds.len())];
                scenario.nodes[host].lie = Some(lie);
            }
        }
        outnumber_liars(scenario);
    }
}

/// Of each fragment liars hold a minority, as of the whole model: else all honest hosts hold it.
fn outnumber_liars(scenario: &mut Scenario) {
    let count = scenario.fragments().count();
    for fragment in 0..count {
        if !outnumbers_liars(&scenario.nodes, fragment) {
            let lacks_it = |plan: &&mut NodePlan| plan.lie.is_none() && !plan.holding.holds(fragment);
            for plan in scenario.nodes.iter_mut().filter(lacks_it) {
                let held = plan.holding.fragments(count);
                plan.holding = Holding::of(held.chain(std::iter::once(fragment)));
            }
        }
    }
}

/// Whether enough honest hosts hold a fragment.
fn outnumbers_liars(nodes: &[NodePlan], fragment: u16) -> bool {
    let (liars, honest): (Vec<&NodePlan>, Vec<&NodePlan>) =
        nodes.iter().filter(|plan| plan.holding.holds(fragment)).partition(|plan| plan.lie.is_some());
    honest.len() >= HONEST_FOR_A_LIAR * liars.len()
}

/// A host is to hold other fragments than before: `wanted`, but that an honest one gives none up, and a liar takes none, of which
/// liars would then hold too much. `None` where nothing changes. `count`: of all fragments.
pub(super) fn next_holding(nodes: &mut [NodePlan], host: HostIndex, wanted: Holding, count: u16) -> Option<Holding> {
    let before = nodes[host].holding;
    nodes[host].holding = wanted;
    let is_honest = nodes[host].lie.is_none();
    let may_change = |fragment| outnumbers_liars(nodes, fragment) || wanted.holds(fragment) == is_honest;
    let held = |fragment: &u16| if may_change(*fragment) { wanted.holds(*fragment) } else { before.holds(*fragment) };
    let held: Vec<u16> = (0..count).filter(held).collect();
    let next = if held.is_empty() { before } else { Holding::of(held) };
    nodes[host].holding = next;
    (next != before).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Lie;

    #[test]
    fn a_change_leaves_liars_a_minority_of_each_fragment() {
        let mut nodes = vec![NodePlan::founder(vec![]); HONEST_FOR_A_LIAR + 1];
        (nodes[1].lie, nodes[1].holding, nodes[2].holding) = (Some(Lie::Noise), Holding::of([0]), Holding::of([0, 1]));
        let second = Some(Holding::of([1]));
        assert_eq!(next_holding(&mut nodes, 2, Holding::of([1]), 2), None, "one too few would be honest");
        assert_eq!(next_holding(&mut nodes, 1, Holding::of([1]), 2), second, "what a liar leaves all others may leave");
        assert_eq!(next_holding(&mut nodes, 2, Holding::of([0]), 2), None, "now they are needed there");
        nodes[3].holding = Holding::of([0]);
        assert_eq!(next_holding(&mut nodes, 1, Holding::of([0, 1]), 2), Some(Holding::of([0, 1])));
        nodes[1].holding = Holding::of([0]);
        assert_eq!(next_holding(&mut nodes, 1, Holding::of([1]), 2), None, "a liar does not come where too few are");
        assert_eq!(next_holding(&mut nodes, 3, Holding::of([1]), 2), Some(Holding::of([0, 1])), "who comes is welcome");
    }
}
