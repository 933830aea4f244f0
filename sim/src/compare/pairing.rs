//! Averaging in pairs at full precision, and training alone.
//!
//! NoLoCo (Kolehmainen et al., arXiv 2506.10911): after H local steps a node and its partner of the round exchange slow
//! weights φ and fast weights θ. With Δ = θ − φ and means over the pair, `δ ← αδ + β mean(Δ) − γ (φ − mean(φ))`, then
//! `φ ← φ + δ` and θ becomes φ. AD-PSGD (Lian et al. 2018, arXiv 1710.06952): a node that has finished a step, and has no
//! exchange under way, sends its model to a random other one; both move half way towards each other, and nobody waits.

use std::collections::BTreeMap;

use murmur_protocol::Time;
use murmur_protocol::pairs::Place;
use murmur_protocol::pairs::{Meeting, Met, matching};
use murmur_protocol::random::{Generator, RngExt, stream};

use super::learner::Learner;
use super::outcome::Counted;
use super::setting::Setting;
use super::world::{Machine, Parcel, World};
use super::{Kind, method};

/// Of NoLoCo's outer step: momentum α and rate β as in the paper; γ in the middle of what it allows for pairs, from α to
/// √(2 + α²).
const ALPHA: f32 = 0.5;
const BETA: f32 = 0.7;
const GAMMA: f32 = 1.0;

struct Member {
    learner: Learner,
    meeting: Meeting,
    steps: u64,
    /// Those that are in the model that it would hand out: of NoLoCo the ones before its last exchange.
    taken_up: u64,
    /// Steps of the living on average as the steps under way began, and of the schedule at its last step.
    began: f64,
    scheduled: f64,
    partner: Option<usize>,
    /// φ and δ of NoLoCo.
    slow: Vec<f32>,
    momentum: Vec<f32>,
    /// What came from the partner, by round: φ and θ, or its model twice.
    kept: BTreeMap<u64, (Vec<f32>, Vec<f32>)>,
    /// The own model as it was sent in the exchange under way.
    sent: Option<Vec<f32>>,
    /// Exchanges of others that this node has answered, by partner: the latest number.
    answered: BTreeMap<usize, u64>,
    dice: Generator,
    rounds: u64,
}

/// All nodes, and who meets whom.
pub(super) struct Pairing {
    kind: Kind,
    seed: u64,
    steps: u64,
    members: Vec<Member>,
    violations: Vec<String>,
}

impl Pairing {
    pub(super) fn new(setting: &Setting) -> Pairing {
        let timeouts = setting.timeouts();
        let member = |node: usize| {
            let learner = Learner::new(setting, node);
            let slow = learner.parameters();
            Member {
                meeting: Meeting::new(timeouts),
                steps: 0,
                taken_up: 0,
                began: 0.0,
                scheduled: 0.0,
                partner: None,
                momentum: vec![0.0; slow.len()],
                slow,
                learner,
                kept: BTreeMap::new(),
                sent: None,
                answered: BTreeMap::new(),
                dice: stream(setting.seed, "partners", &[&(node as u64).to_le_bytes()]),
                rounds: 0,
            }
        };
        Pairing {
            kind: setting.method.kind,
            seed: setting.seed,
            steps: setting.steps,
            members: (0..setting.nodes).map(member).collect(),
            violations: Vec::new(),
        }
    }

    /// Steps until the node looks up from its own work. A round of NoLoCo ends early with the steps of a run, where they are no
    /// multiple of its interval; nodes that are faster than the mean go on.
    fn stretch(&self, node: usize) -> u64 {
        let left = self.steps.checked_sub(self.members[node].steps).filter(|left| *left > 0);
        if self.kind == Kind::Noloco { method::INTERVAL.min(left.unwrap_or(u64::MAX)) } else { 1 }
    }

    /// NoLoCo: local steps are done; exchanges with the partner of the round, where there is one.
    fn begin_round(&mut self, world: &mut World, node: usize) {
        let round = self.members[node].meeting.round();
        let partner = matching(self.seed, round, self.members.len())[node].map(usize::from);
        let member = &mut self.members[node];
        member.partner = partner;
        if let Some(partner) = partner {
            let (slow, fast) = (member.slow.clone(), member.learner.parameters());
            world.send(node, partner, Parcel::Weights { round, slow, fast });
        } else {
            // Nobody to wait for.
            member.meeting.received(round);
        }
        let met = member.meeting.ready(world.now());
        self.end_round(world, node, round, met);
    }

    fn end_round(&mut self, world: &mut World, node: usize, round: u64, met: Option<Met>) {
        let Some(met) = met else { return };
        let member = &mut self.members[node];
        let partner = member.kept.remove(&round).filter(|_| met == Met::Both);
        let fast = member.learner.parameters();
        let own = (member.slow.clone(), fast);
        let (other_slow, other_fast) = partner.as_ref().unwrap_or(&own);
        for at in 0..member.slow.len() {
            let (slow, fast) = (own.0[at], own.1[at]);
            let mean_slow = 0.5 * (slow + other_slow[at]);
            let mean_progress = 0.5 * ((fast - slow) + (other_fast[at] - other_slow[at]));
            member.momentum[at] = ALPHA * member.momentum[at] + BETA * mean_progress - GAMMA * (slow - mean_slow);
            member.slow[at] = slow + member.momentum[at];
        }
        member.learner.set_parameters(member.slow.clone());
        member.kept.retain(|kept, _| *kept > round);
        member.rounds += u64::from(met == Met::Both);
        member.taken_up = member.steps;
        self.go_on(world, node);
    }

    /// AD-PSGD: sends the model to somebody where nothing is under way.
    fn begin_exchange(&mut self, world: &mut World, node: usize) {
        let count = self.members.len();
        let member = &mut self.members[node];
        if member.sent.is_some() || count < 2 {
            return;
        }
        let other = member.dice.random_range(0..count - 1);
        let partner = if other >= node { other + 1 } else { other };
        let (exchange, values) = (member.meeting.round(), member.learner.parameters());
        (member.partner, member.sent) = (Some(partner), Some(values.clone()));
        member.meeting.ready(world.now());
        world.send(node, partner, Parcel::Model { exchange, is_reply: false, values });
    }

    /// A model of another node: moves half way, and answers with the own one as it was before.
    fn answer(&mut self, world: &mut World, node: usize, from: usize, exchange: u64, theirs: &[f32]) {
        let member = &mut self.members[node];
        if member.answered.get(&from).is_some_and(|latest| exchange <= *latest) {
            member.meeting.ignored += 1;
            return;
        }
        member.answered.insert(from, exchange);
        let own = member.learner.parameters();
        let next = own.iter().zip(theirs).map(|(own, theirs)| own + 0.5 * (theirs - own)).collect();
        member.learner.set_parameters(next);
        world.send(node, from, Parcel::Model { exchange, is_reply: true, values: own });
    }

    fn end_exchange(&mut self, node: usize, met: Option<Met>, theirs: Option<&[f32]>) {
        let Some(met) = met else { return };
        let member = &mut self.members[node];
        let sent = member.sent.take();
        if let (Met::Both, Some(sent), Some(theirs)) = (met, sent, theirs) {
            let now = member.learner.parameters();
            let pairs = now.iter().zip(&sent).zip(theirs);
            let next = pairs.map(|((now, sent), theirs)| now + 0.5 * (theirs - sent)).collect();
            member.learner.set_parameters(next);
            member.rounds += 1;
        }
    }

    /// Nodes that meet go on until the run ends: it takes so many steps on average, and nobody stops at its own share of them. A
    /// node alone ends with its own.
    fn go_on(&mut self, world: &mut World, node: usize) {
        if self.kind == Kind::Alone && self.members[node].steps >= self.steps {
            world.ends_training(node);
            return;
        }
        self.members[node].began = self.pace(world, node);
        world.compute(node, self.stretch(node));
    }

    /// Where a node's learning rate stands: at the steps of the living on average, those under way in parts, as the run's end does.
    /// By its own, a slow node would end near the peak. A node alone has nobody else's.
    fn pace(&self, world: &World, node: usize) -> f64 {
        if self.kind == Kind::Alone {
            return self.members[node].steps as f64;
        }
        world.mean_of_living(|one| self.members[one].steps as f64 + world.steps_under_way(one))
    }
}

impl Machine for Pairing {
    fn begin(&mut self, world: &mut World) {
        (0..self.members.len()).for_each(|node| self.go_on(world, node));
    }

    fn computed(&mut self, world: &mut World, node: usize) {
        let stretch = self.stretch(node);
        self.members[node].steps += stretch;
        let now = self.pace(world, node);
        let member = &mut self.members[node];
        for step in 0..stretch {
            member.scheduled = member.began + (now - member.began) * step as f64 / stretch as f64;
            member.learner.step(member.scheduled);
        }
        if self.kind != Kind::Noloco {
            member.taken_up = member.steps;
        }
        match self.kind {
            Kind::Noloco => self.begin_round(world, node),
            Kind::AdPsgd => {
                self.begin_exchange(world, node);
                self.go_on(world, node);
            }
            _ => self.go_on(world, node),
        }
    }

    fn arrived(&mut self, world: &mut World, to: usize, from: usize, parcel: Parcel) {
        let now = world.now();
        match parcel {
            Parcel::Weights { round, slow, fast } => {
                let member = &mut self.members[to];
                if matching(self.seed, round, world.setting.nodes)[to] != Some(from as Place) {
                    self.violations.push(format!("node {to} heard from {from}, not its partner of round {round}"));
                } else if member.meeting.received(round) {
                    member.kept.insert(round, (slow, fast));
                    let round = member.meeting.round();
                    let met = member.meeting.try_end(now);
                    self.end_round(world, to, round, met);
                }
            }
            Parcel::Model { exchange, is_reply: false, values } => self.answer(world, to, from, exchange, &values),
            Parcel::Model { exchange, is_reply: true, values } => {
                let member = &mut self.members[to];
                if member.partner == Some(from) && member.meeting.received(exchange) {
                    let met = member.meeting.try_end(now);
                    self.end_exchange(to, met, Some(&values));
                }
            }
            _ => {}
        }
    }

    fn looked(&mut self, world: &mut World, node: usize) {
        let member = &mut self.members[node];
        let round = member.meeting.round();
        let met = member.meeting.try_end(world.now());
        match self.kind {
            Kind::Noloco => self.end_round(world, node, round, met),
            _ => self.end_exchange(node, met, None),
        }
    }

    fn next_deadline(&self, node: usize) -> Option<Time> {
        self.members[node].meeting.next_deadline()
    }

    fn progress(&self, node: usize) -> f64 {
        self.members[node].taken_up as f64
    }

    /// φ of NoLoCo, else θ.
    fn model(&self, node: usize) -> Vec<f32> {
        let member = &self.members[node];
        if self.kind == Kind::Noloco { member.slow.clone() } else { member.learner.parameters() }
    }

    fn counted(&self) -> Counted {
        let count = self.members.len() as f64;
        Counted {
            rounds: self.members.iter().map(|member| member.rounds).sum::<u64>() as f64 / count,
            missed: self.members.iter().map(|member| member.meeting.missed).sum(),
            ..Counted::default()
        }
    }

    fn violations(&self) -> Vec<String> {
        self.violations.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::tests::{set_steps, setting};
    use crate::compare::{Fault, world};

    /// Of each member: its steps, and where its learning rate stood at the last of them.
    fn ends(name: &str, speeds: &[f64]) -> (u64, Vec<(u64, f64)>) {
        let mut setting = setting(name, Fault::None);
        (setting.nodes, setting.speeds) = (4, speeds.to_vec());
        set_steps(&mut setting, 240);
        let mut pairing = Pairing::new(&setting);
        let outcome = world::run(&setting, &mut pairing, &|| false).expect("nobody interrupts");
        assert!(outcome.is_complete && outcome.violations.is_empty(), "{name}: {:?}", outcome.violations);
        (setting.steps, pairing.members.iter().map(|member| (member.steps, member.scheduled)).collect())
    }

    /// By its own steps a slow node would train at a high rate until the end, and what it hands out would be worse for it.
    #[test]
    fn the_learning_rate_of_slow_nodes_comes_to_its_end_with_the_run() {
        for name in ["ad-psgd", "noloco"] {
            let (steps, ends) = ends(name, &[1.0, 0.25]);
            // The last stretch of a slow node may be under way.
            let stretch = if name == "noloco" { 3.0 * method::INTERVAL as f64 } else { 6.0 };
            for (own, scheduled) in &ends {
                assert!(*scheduled >= steps as f64 - stretch, "{name}: {scheduled} of {steps} after {own} own steps");
            }
            assert!(ends[1].0 + 30 < steps, "{name}: {ends:?}");
        }
    }

    #[test]
    fn the_learning_rate_of_nodes_that_are_alike_follows_their_steps() {
        for name in ["ad-psgd", "noloco", "alone"] {
            for (own, scheduled) in ends(name, &[1.0]).1 {
                assert!((scheduled - (own - 1) as f64).abs() < 1.0, "{name}: {scheduled} at step {own}");
            }
        }
    }

    #[test]
    fn a_node_alone_follows_its_own_steps_to_the_end() {
        let (steps, ends) = ends("alone", &[1.0, 0.25]);
        assert!(ends.iter().all(|end| *end == (steps, (steps - 1) as f64)), "{ends:?}");
    }
}
