//! Gossip, and the choice between it and a ring, in the swarm simulator: the daemon's own nodes, over the links and through the
//! faults of a comparison.

use std::time::Duration;

use murmur_protocol::Phase;

use super::outcome::{Activity, Counted, NodeAccount, Outcome, Point, Span};
use super::setting::{STRAGGLER, Setting};
use super::world::{POINTS, is_shown};
use super::{Fault, Method};
use crate::record::Record;
use crate::{Incident, Scenario, Swarm, TrainerSpec, WorkerSpec};

/// A run that takes longer than the slowest node would alone by this factor is ended: a straggler's share of a third at a
/// fourth of the speed, with room.
const TIME_FACTOR_MAX: f64 = 4.0;

/// Runs gossip; `None` where it is interrupted.
pub(super) fn run(setting: &Setting, is_interrupted: &dyn Fn() -> bool) -> Option<Outcome> {
    let scenario = scenario(setting);
    let mut swarm = Swarm::new(scenario, setting.seed);
    let mut watch = Watch::new(setting);
    // The first node begins, with the model that all begin with.
    swarm.run_until(Duration::ZERO);
    let first = swarm.record();
    let mut points = vec![point(setting, &first, Duration::ZERO)];
    // Where nodes are slow a point comes after the same steps, not after the same time.
    let period = setting.mean_step_time().mul_f64(setting.steps as f64 / POINTS as f64);
    let limit = setting.slowest_step_time().mul_f64(setting.steps as f64 * TIME_FACTOR_MAX);
    let (mut is_complete, mut trained_at, mut next_point, mut last) = (false, None, period, first);
    while watch.reached < limit && !is_complete {
        if is_interrupted() {
            return None;
        }
        let now = (watch.reached + setting.step_time / 4).min(next_point);
        swarm.run_until(now);
        watch.look(setting, &swarm, now);
        let running = (0..setting.nodes).filter(|node| swarm.is_running(*node));
        let phases: Vec<Phase> = running.filter_map(|node| swarm.status(node)).map(|status| status.phase).collect();
        // Their progress alone does not say it: who is done averages with others that are not, and goes no further.
        if phases.iter().all(|phase| matches!(phase, Phase::Settling | Phase::Completed)) {
            // The last exchanges belong to the run; the time for them has a bound.
            let trained_at = *trained_at.get_or_insert(now);
            is_complete = now - trained_at >= period || phases.iter().all(|phase| *phase == Phase::Completed);
        }
        if now == next_point || is_complete || now >= limit {
            last = swarm.record();
            points.push(point(setting, &last, now));
            next_point += if now == next_point { period } else { Duration::ZERO };
        }
    }
    Some(outcome(setting, last, points, watch, is_complete))
}

fn scenario(setting: &Setting) -> Scenario {
    let mut nodes = setting.plans();
    for (node, plan) in nodes.iter_mut().enumerate() {
        // As everywhere in the simulator nodes begin one after the other within a step.
        plan.begins_at = setting.step_time.mul_f64(node as f64 / setting.nodes as f64);
        plan.tokens_per_second = setting.tokens_per_step() as f64 / plan.step_time.as_secs_f64();
    }
    let last = setting.nodes - 1;
    let begins = setting.fault_at();
    let (gossip, synchronous) = setting.method.kind.of_daemons().expect("daemons gossip");
    let scenario = Scenario {
        gossip,
        synchronous,
        nodes,
        trainer: TrainerSpec::Transformer(setting.trainer.clone()),
        network: setting.links.network(),
        // As in the worlds of the other methods, arithmetic is a part of the step.
        worker: WorkerSpec { delay: (Duration::ZERO, Duration::from_micros(100)), ..WorkerSpec::default() },
        ..Scenario::calm(0)
    };
    match setting.fault {
        Fault::None => scenario,
        Fault::Kill => scenario.at(begins, Incident::Crash(last)),
        Fault::KillFirst => scenario.at(begins, Incident::Crash(0)),
        Fault::Straggler => scenario.at(begins, Incident::SlowTrainer(last, STRAGGLER)),
        Fault::Partition => scenario
            .at(begins, Incident::Split(setting.cut_off()))
            .at(begins + setting.partition_lasts(), Incident::Heal),
    }
}

/// What nodes send, looked at four times a step.
struct Watch {
    reached: Duration,
    sent: Vec<u64>,
    free_at: Vec<f64>,
    accounts: Vec<NodeAccount>,
    /// Whether each averages all at once, for how many seconds all together did, and how often they began or ended it.
    together: Vec<bool>,
    together_seconds: f64,
    changes: u64,
}

impl Watch {
    fn new(setting: &Setting) -> Watch {
        Watch {
            reached: Duration::ZERO,
            sent: vec![0; setting.nodes],
            free_at: vec![0.0; setting.nodes],
            accounts: vec![NodeAccount::default(); setting.nodes],
            together: vec![false; setting.nodes],
            together_seconds: 0.0,
            changes: 0,
        }
    }

    fn look(&mut self, setting: &Setting, swarm: &Swarm, now: Duration) {
        let from = self.reached.as_secs_f64();
        self.reached = now;
        for (node, traffic) in swarm.traffic().iter().enumerate() {
            let total = traffic.payload_bytes + traffic.control_bytes;
            let seconds = (total - self.sent[node]) as f64 / setting.links.up_bytes_per_second;
            let begins = from.max(self.free_at[node]);
            let account = &mut self.accounts[node];
            account.sent_bytes = total;
            account.sending += seconds;
            if total > self.sent[node] && is_shown(setting, begins, begins + seconds) {
                account.spans.push(Span { from: begins, to: begins + seconds, activity: Activity::Sending });
            }
            self.free_at[node] = begins + seconds;
            self.sent[node] = total;
            let (now, step) = (now.as_secs_f64(), setting.step_time_of(node).as_secs_f64());
            if swarm.is_running(node) {
                account.lived = now;
                let status = swarm.status(node);
                let is_training = status.as_ref().is_some_and(|status| status.phase == Phase::Training);
                account.training += if is_training { now - from } else { 0.0 };
                let is_together = status.is_some_and(|status| status.synchronous.is_some());
                self.changes += u64::from(std::mem::replace(&mut self.together[node], is_together) != is_together);
                self.together_seconds += if is_together { now - from } else { 0.0 };
                if is_training && is_shown(setting, from, now) && now - from < step {
                    account.spans.push(Span { from, to: now, activity: Activity::Computing });
                }
            }
        }
    }
}

fn point(setting: &Setting, record: &Record, at: Duration) -> Point {
    let active = || record.lives.iter().filter(|life| life.active);
    let sent = || record.traffic.iter().map(|traffic| traffic.payload_bytes + traffic.control_bytes);
    Point {
        seconds: at.as_secs_f64(),
        tokens: record.lives.iter().map(|life| life.steps).sum::<u64>() * setting.tokens_per_step(),
        busiest_bytes: sent().max().unwrap_or(0),
        all_bytes: sent().sum(),
        // Before their beginning there is no model: all begin with the same.
        loss: match active().count() {
            0 => record.first_loss,
            count => active().map(|life| life.loss).sum::<f64>() / count as f64,
        },
    }
}

fn outcome(setting: &Setting, record: Record, points: Vec<Point>, watch: Watch, is_complete: bool) -> Outcome {
    let mut nodes = watch.accounts.clone();
    for life in &record.lives {
        nodes[life.host].steps += life.steps;
        nodes[life.host].computing += life.trained.as_secs_f64();
    }
    let method: Method = setting.method;
    Outcome {
        method,
        learning_rate: setting.trainer.optimizer.learning_rate,
        seed: setting.seed,
        fault: setting.fault,
        points,
        counted: Counted {
            // Both partners of an exchange merge.
            rounds: record.exchanges.merges as f64 / setting.nodes as f64,
            missed: record.exchanges.one_sided.len() as u64,
            together: watch.together_seconds / setting.nodes as f64,
            changes: watch.changes as f64 / setting.nodes as f64,
            ..Counted::default()
        },
        nodes,
        is_complete,
        stands_still: false,
        violations: record.found.iter().map(|violation| violation.to_string()).collect(),
    }
}
