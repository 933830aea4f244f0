//! A run of pairwise modular gossip: the real nodes and numerics in the simulator, each with an engine.

use std::time::Duration;

use murmur_protocol::Holding;
use murmur_protocol::bounds::SETTLING_TIMEOUT;
use murmur_protocol::manifest::{FragmentCut, GossipKind, GossipSpec};

use super::{Conditions, Method, Outcome, Setting, tokens_per_step};
use crate::record::{LifeRecord, Record};
use crate::{
    Disk, Incident, LatencySpec, NetworkSpec, NodePlan, Objective, Scenario, Swarm, Text, TrainerSpec, WorkerSpec,
};

/// Time of a step at full speed. Long against the calm network's delays, as on a local network: an exchange takes the
/// two or three step boundaries that it needs, no more.
const STEP_TIME: Duration = Duration::from_secs(1);

/// Steps of the four kinds of nodes in the time of one step of the slowest, where speeds differ.
const UNEVEN_SPEEDS: [u32; 4] = [4, 4, 2, 1];

/// One in so many nodes is replaced at a time, rounded up.
const CHURN_SHARE: usize = 5;

/// Parts of a run, at whose ends nodes are replaced.
const CHURN_ROUNDS: u64 = 8;

/// Final exchanges of pairs; links need fewer, for their models are nearer to one another.
const LAST_OF_PAIRS: u32 = 10;

/// Runs the setting.
///
/// # Panics
/// When the setting is of another method.
pub fn run(setting: &Setting, text: &Text) -> Outcome {
    let Method::Gossip { kind, interval, outer_learning_rate, outer_momentum, full_precision, conditions } =
        setting.method
    else {
        panic!("a setting of gossip");
    };
    let speeds = speeds(setting, conditions);
    let trainer = setting.trainer(text, final_progress(&speeds));
    let objective = Objective::new(&TrainerSpec::Transformer(trainer.clone()), setting.seed);
    let scenario = Scenario {
        gossip: GossipSpec {
            kind,
            interval_steps: interval,
            interval_steps_min: interval,
            interval_steps_max: interval,
            outer_learning_rate,
            outer_momentum,
            final_exchanges: match kind {
                GossipKind::Links => GossipSpec::default().final_exchanges,
                GossipKind::Pairs => LAST_OF_PAIRS,
            },
            fragments: setting.fragments,
            cut: FragmentCut::Layers,
            ..GossipSpec::default()
        },
        nodes: with_teams(
            speeds.iter().enumerate().map(|(host, speed)| speed.plan(host, setting, conditions)),
            setting,
        ),
        trainer: TrainerSpec::Transformer(trainer.clone()),
        worker: WorkerSpec { full_precision, ..WorkerSpec::default() },
        network: network(conditions),
        incidents: if conditions == Conditions::Churn { churn(setting) } else { Vec::new() },
        ..Scenario::calm(0)
    };
    let training_ends = scenario.nodes.iter().zip(&speeds).map(|(plan, speed)| plan.begins_at + speed.time());
    let (first_end, last_end) = (training_ends.clone().min(), training_ends.max());
    let mut swarm = Swarm::new(scenario, setting.seed);
    swarm.run_until(first_end.unwrap_or_default());
    let before = swarm.record();
    let losses: Vec<f64> = models(&before, setting).iter().map(|model| objective.loss(model)).collect();
    drop(before);
    swarm.run_until(last_end.unwrap_or_default() + SETTLING_TIMEOUT);
    let record = swarm.record();
    let models = models(&record, setting);
    let nodes = setting.nodes as f64;
    Outcome {
        loss_before_settling: Some(losses.iter().sum::<f64>() / losses.len() as f64),
        bytes_per_parameter: record.payload_bytes() as f64 / nodes / setting.parameters as f64,
        exchanges: 0.5 * record.exchanges.merges as f64 / nodes,
        tokens: learners(&record, setting).map(|life| life.steps).sum::<u64>() * tokens_per_step(),
        ..setting.outcome(&trainer, &models)
    }
}

/// The nodes, the last of which get a helper each: hosts of their own, behind all nodes.
fn with_teams(nodes: impl Iterator<Item = NodePlan>, setting: &Setting) -> Vec<NodePlan> {
    let mut plans: Vec<NodePlan> = nodes.collect();
    let middle = setting.fragments / 2;
    for captain in setting.nodes - setting.teams..setting.nodes {
        let helper = NodePlan { holding: Holding::of([middle]), helps: Some(captain), ..plans[captain].clone() };
        let rest = (0..setting.fragments).filter(|fragment| *fragment != middle);
        plans[captain].holding = Holding::of(rest);
        plans.push(helper);
    }
    plans
}

/// The lives of nodes; those of teams' helpers are none.
fn learners<'a>(record: &'a Record, setting: &Setting) -> impl Iterator<Item = &'a LifeRecord> + use<'a> {
    let nodes = setting.nodes;
    record.lives.iter().filter(move |life| life.host < nodes)
}

fn models(record: &Record, setting: &Setting) -> Vec<Vec<f32>> {
    let active = learners(record, setting).filter(|life| life.active && life.is_honest);
    active.map(|life| life.model.clone()).collect()
}

/// One node's speed and share of the work.
struct NodeSpeed {
    step_time: Duration,
    steps: u64,
}

impl NodeSpeed {
    fn time(&self) -> Duration {
        self.step_time * self.steps as u32
    }

    /// Steps a second.
    fn rate(&self) -> f64 {
        1.0 / self.step_time.as_secs_f64()
    }

    /// Nodes begin one after the other within one step, so that their steps do not end in the same instant.
    fn plan(&self, host: usize, setting: &Setting, conditions: Conditions) -> NodePlan {
        NodePlan {
            begins_at: STEP_TIME * host as u32 / setting.nodes as u32,
            step_time: self.step_time,
            tokens_per_second: tokens_per_step() as f64 * self.rate(),
            // A newcomer's own steps say nothing: with churn the run ends for each at its swarm progress.
            steps_max: (conditions != Conditions::Churn).then_some(self.steps),
            ..NodePlan::founder(host.checked_sub(1).into_iter().collect())
        }
    }
}

/// Equal speeds, or those of [`UNEVEN_SPEEDS`] for as many steps in all (rounded down to a multiple of the nodes').
fn speeds(setting: &Setting, conditions: Conditions) -> Vec<NodeSpeed> {
    if conditions != Conditions::Uneven {
        return (0..setting.nodes).map(|_| NodeSpeed { step_time: STEP_TIME, steps: setting.steps }).collect();
    }
    let speeds: Vec<u32> = (0..setting.nodes).map(|host| UNEVEN_SPEEDS[host * 4 / setting.nodes]).collect();
    let total: u32 = speeds.iter().sum();
    let share = setting.nodes as f64 * setting.steps as f64 / f64::from(total);
    let speed = |speed: &u32| NodeSpeed {
        step_time: STEP_TIME * UNEVEN_SPEEDS[0] / *speed,
        steps: (share * f64::from(*speed)).round() as u64,
    };
    speeds.iter().map(speed).collect()
}

/// Where the swarm's progress stands when all nodes have done their steps: models are weighted by speed, and so is it.
fn final_progress(speeds: &[NodeSpeed]) -> u64 {
    let weights: f64 = speeds.iter().map(NodeSpeed::rate).sum();
    let weighted: f64 = speeds.iter().map(|speed| speed.rate() * speed.steps as f64).sum();
    (weighted / weights).round() as u64
}

fn network(conditions: Conditions) -> NetworkSpec {
    let calm = NetworkSpec::calm();
    let lossy = NetworkSpec { loss: 0.1, transfer_failure: 0.1, ..calm.clone() };
    match conditions {
        Conditions::Calm => calm,
        Conditions::Churn => lossy,
        Conditions::Uneven => {
            NetworkSpec { latency: LatencySpec { median: Duration::from_millis(200), ..calm.latency }, ..lossy }
        }
    }
}

/// Nodes that are killed and replaced, all but the first in turn.
fn churn(setting: &Setting) -> Vec<(Duration, Incident)> {
    let replaced = setting.nodes.div_ceil(CHURN_SHARE);
    let period = STEP_TIME * (setting.steps / CHURN_ROUNDS) as u32;
    let rounds = (1..CHURN_ROUNDS as usize).flat_map(|round| {
        (0..replaced).map(move |number| {
            let host = 1 + ((round - 1) * replaced + number) % (setting.nodes - 1);
            (period * round as u32, Incident::Restart { host, same_identity: false, disk: Disk::Lost })
        })
    });
    rounds.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Treatment;

    fn setting() -> Setting {
        Setting {
            method: Method::LocalOnly,
            text: String::new(),
            by_node: false,
            parameters: 1,
            nodes: 8,
            fragments: 1,
            teams: 0,
            steps: 400,
            learning_rate: 1.0,
            treatment: Treatment::default(),
            seed: 0,
        }
    }

    #[test]
    fn churn_replaces_all_but_the_first_in_turn() {
        let setting = setting();
        let incidents = churn(&setting);
        let replaced: Vec<(u64, usize)> = incidents
            .iter()
            .map(|(time, incident)| match incident {
                Incident::Restart { host, same_identity: false, disk: Disk::Lost } => (time.as_secs(), *host),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(replaced.len(), 14);
        assert_eq!(replaced[..4], [(50, 1), (50, 2), (100, 3), (100, 4)]);
        assert_eq!(replaced[12..], [(350, 6), (350, 7)]);
    }

    #[test]
    fn uneven_speeds_do_the_same_work() {
        let setting = setting();
        let uneven = speeds(&setting, Conditions::Uneven);
        let steps: Vec<u64> = uneven.iter().map(|speed| speed.steps).collect();
        assert_eq!(steps, [582, 582, 582, 582, 291, 291, 145, 145]);
        assert_eq!(steps.iter().sum::<u64>(), 3200);
        assert!(uneven.iter().all(|speed| speed.time() <= Duration::from_secs(582)));
        assert_eq!(final_progress(&uneven), 489);
        assert_eq!(final_progress(&speeds(&setting, Conditions::Calm)), 400);
    }
}
