//! A parameter server: the first node, or the first few with a shard each, hold the parameters and the optimizer; all
//! nodes are workers.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use murmur_protocol::Time;
use murmur_protocol::pairs::Place;
use murmur_protocol::server::{Server, ServerOrder};

use super::Kind;
use super::learner::Learner;
use super::outcome::Counted;
use super::setting::{Sabotage, Setting};
use super::world::{Machine, Parcel, World};

struct Shard {
    server: Server,
    /// Holds the parameters; only those of the shard are ever read.
    optimizer: Learner,
    gradients: BTreeMap<(Place, u64), Vec<f32>>,
    /// Of the schedule at the last step.
    progress: f64,
}

struct Worker {
    learner: Learner,
    parameters: Vec<f32>,
    /// Of the gradient that it computes, as each shard counts; they differ once a shard has given the worker up.
    ticks: Vec<u64>,
    /// Shards that have answered for them.
    answered: Vec<bool>,
    /// Gradients that all shards have answered.
    steps: u64,
    /// Gradients that have arrived at the first shard.
    pushed: u64,
    /// The tick of its last answer from the first shard, which is more than it has pushed once it was given up and is back.
    promised: u64,
    /// When the first shard heard of it or answered it last.
    heard: Time,
}

impl Worker {
    /// How far others may take it to be.
    fn place(&self) -> u64 {
        self.pushed.max(self.promised)
    }
}

/// Servers and workers.
pub(super) struct Servers {
    shards: Vec<Shard>,
    workers: Vec<Worker>,
    length: usize,
    bound: Option<u64>,
    /// A server waits for a worker at least so long.
    patience: Duration,
    violations: Vec<String>,
}

impl Servers {
    pub(super) fn new(setting: &Setting) -> Servers {
        let (bound, shards) = match setting.method.kind {
            Kind::Server { bound, shards } => (bound, shards.min(setting.nodes)),
            _ => (None, 1),
        };
        let kept = bound.filter(|_| setting.sabotage != Some(Sabotage::ForgetsTheBound));
        let members = setting.nodes as Place;
        let shard = |node| Shard {
            server: Server::new(members, kept, setting.timeouts()),
            optimizer: Learner::new(setting, node),
            gradients: BTreeMap::new(),
            progress: 0.0,
        };
        let worker = |node| {
            let learner = Learner::new(setting, node);
            Worker {
                parameters: learner.parameters(),
                learner,
                ticks: vec![0; shards],
                answered: vec![true; shards],
                steps: 0,
                pushed: 0,
                promised: 0,
                heard: Time::ZERO,
            }
        };
        let workers: Vec<Worker> = (0..setting.nodes).map(worker).collect();
        Servers {
            shards: (0..shards).map(shard).collect(),
            length: workers[0].parameters.len(),
            workers,
            bound,
            patience: setting.timeouts().floor,
            violations: Vec::new(),
        }
    }

    fn range(&self, shard: usize) -> Range<usize> {
        self.length * shard / self.shards.len()..self.length * (shard + 1) / self.shards.len()
    }

    fn drain(&mut self, world: &mut World, shard: usize) {
        let mut answered = Vec::new();
        let done = world.progress(&*self);
        while let Some(order) = self.shards[shard].server.poll_order() {
            let range = self.range(shard);
            let Shard { optimizer, gradients, progress, .. } = &mut self.shards[shard];
            match order {
                ServerOrder::Step { of, .. } => {
                    let mut mean = vec![0.0; self.length];
                    for name in &of {
                        let gradient = gradients.remove(name).expect("kept until it is used, and used once");
                        for (mean, value) in mean[range.clone()].iter_mut().zip(gradient) {
                            *mean += value / of.len() as f32;
                        }
                    }
                    // Of those that are left, as the run's end is.
                    *progress = done;
                    optimizer.step_with(mean, done);
                }
                ServerOrder::Answer { to, tick } => {
                    let values = optimizer.parameters()[range].to_vec();
                    if shard == 0 {
                        let worker = &mut self.workers[usize::from(to)];
                        (worker.promised, worker.heard) = (tick, world.now());
                        answered.push(usize::from(to));
                    }
                    world.send(shard, usize::from(to), Parcel::Parameters { shard, tick, values });
                }
            }
        }
        for node in answered {
            self.check(world.now(), node);
        }
    }

    /// The law of staleness for a worker that was answered, held by what workers do and not by what the server believes. Once the
    /// server has given somebody up, it holds against all that it cannot have given up since it heard of them: those that wait
    /// for an answer, and those that were not silent for as long as it waits at least.
    fn check(&mut self, now: Time, node: usize) {
        let Some(bound) = self.bound else { return };
        let given_up = self.shards[0].server.counts().given_up;
        let is_waited_for = |worker: &&Worker| {
            given_up == 0 || worker.pushed > worker.promised || now.saturating_since(worker.heard) < self.patience
        };
        let slowest = self.workers.iter().filter(is_waited_for).map(Worker::place).min();
        let ahead = self.workers[node].promised - slowest.unwrap_or(0).min(self.workers[node].promised);
        if ahead > bound {
            self.violations.push(format!("worker {node} is {ahead} ticks ahead, {given_up} given up"));
        }
    }
}

impl Machine for Servers {
    fn begin(&mut self, world: &mut World) {
        (0..self.workers.len()).for_each(|node| world.compute(node, 1));
    }

    fn computed(&mut self, world: &mut World, node: usize) {
        let worker = &mut self.workers[node];
        worker.learner.set_parameters(worker.parameters.clone());
        let gradient = worker.learner.gradient();
        let ticks = worker.ticks.clone();
        worker.answered.fill(false);
        for (shard, tick) in ticks.into_iter().enumerate() {
            let values = gradient[self.range(shard)].to_vec();
            world.send(node, shard, Parcel::Gradient { shard, tick, values });
        }
    }

    fn arrived(&mut self, world: &mut World, to: usize, from: usize, parcel: Parcel) {
        match parcel {
            Parcel::Gradient { shard, tick, values } => {
                let (now, name) = (world.now(), (from as Place, tick));
                let Shard { server, gradients, .. } = &mut self.shards[shard];
                // Of one that comes twice the first is kept.
                if server.pushed(now, from as Place, tick) {
                    gradients.insert(name, values);
                    if shard == 0 {
                        (self.workers[from].pushed, self.workers[from].heard) = (tick + 1, now);
                    }
                }
                self.drain(world, shard);
            }
            Parcel::Parameters { shard, tick, values } => {
                let range = self.range(shard);
                let worker = &mut self.workers[to];
                // One that comes twice is older than the tick that the worker computes.
                if worker.answered[shard] || tick <= worker.ticks[shard] {
                    return;
                }
                worker.parameters[range].copy_from_slice(&values);
                worker.answered[shard] = true;
                worker.ticks[shard] = tick;
                if worker.answered.iter().all(|answered| *answered) {
                    worker.steps += 1;
                    world.compute(to, 1);
                }
            }
            _ => {}
        }
    }

    fn looked(&mut self, world: &mut World, node: usize) {
        if let Some(shard) = self.shards.get_mut(node) {
            shard.server.time_passed(world.now());
            self.drain(world, node);
        }
    }

    fn next_deadline(&self, node: usize) -> Option<Time> {
        self.shards.get(node).and_then(|shard| shard.server.next_deadline())
    }

    fn progress(&self, node: usize) -> f64 {
        self.workers[node].steps as f64
    }

    /// What the servers hold.
    fn model(&self, _node: usize) -> Vec<f32> {
        let parts =
            (0..self.shards.len()).map(|shard| self.shards[shard].optimizer.parameters()[self.range(shard)].to_vec());
        parts.flatten().collect()
    }

    fn counted(&self) -> Counted {
        let counts = || self.shards.iter().map(|shard| shard.server.counts());
        let steps: u64 = counts().map(|one| one.steps).sum();
        Counted {
            rounds: self.workers.iter().map(|worker| worker.steps).sum::<u64>() as f64 / self.workers.len() as f64,
            staleness_mean: counts().map(|one| one.staleness_sum).sum::<u64>() as f64 / steps.max(1) as f64,
            staleness_max: counts().map(|one| one.staleness_max).max().unwrap_or(0),
            missed: counts().map(|one| one.given_up).sum(),
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
    use crate::compare::Fault;
    use crate::compare::tests::setting;
    use crate::compare::world;

    /// A schedule that follows the dead as well would end at a high rate, and a kill would seem to cost loss.
    #[test]
    fn the_learning_rate_comes_to_its_end_where_a_worker_is_killed() {
        for name in ["ps-stale", "ps-async"] {
            let setting = setting(name, Fault::Kill);
            let mut servers = Servers::new(&setting);
            let outcome = world::run(&setting, &mut servers, &|| false).expect("nobody interrupts");
            assert!(outcome.is_complete, "{name}");
            let end = servers.shards[0].progress;
            assert!(end >= setting.steps as f64 - 2.0, "{name}: {end} of {} steps", setting.steps);
        }
    }

    #[test]
    fn a_gradient_that_arrives_twice_is_used_once() {
        let mut setting = setting("ps-async", Fault::None);
        setting.method.kind = Kind::Server { bound: Some(0), shards: 1 };
        setting.links.loss = 0.2;
        let outcome = setting.run(&|| false).expect("nobody interrupts");
        assert!(outcome.is_complete && outcome.violations.is_empty(), "{:?}", outcome.violations);
    }

    #[test]
    fn the_bound_is_held_against_all_that_cannot_have_been_given_up() {
        let setting = setting("ps-stale", Fault::Kill);
        let mut servers = Servers::new(&setting);
        let at = |seconds| Time::from_start(Duration::from_secs_f64(seconds));
        for tick in 0..3 {
            servers.shards[0].server.pushed(at(0.1), 1, tick);
        }
        servers.shards[0].server.time_passed(at(60.0));
        assert_eq!(servers.shards[0].server.counts().given_up, 4, "all but the one that waits");
        let patience = setting.timeouts().floor.as_secs_f64();
        // Worker 1 is answered for tick 9; what it is ahead of worker 2 by what that one did.
        let mut ahead = |pushed, promised, silent| {
            (servers.workers[1].pushed, servers.workers[1].promised, servers.workers[1].heard) = (9, 9, at(60.0));
            let other = &mut servers.workers[2];
            (other.pushed, other.promised, other.heard) = (pushed, promised, at(60.0 - silent * patience));
            servers.check(at(60.0), 1);
            servers.violations.pop()
        };
        assert_eq!(ahead(7, 7, 0.5), None);
        assert_eq!(ahead(6, 6, 0.5).as_deref(), Some("worker 1 is 3 ticks ahead, 4 given up"));
        assert_eq!(ahead(6, 6, 1.5), None, "it may have been given up");
        assert_eq!(
            ahead(6, 5, 1.5).as_deref(),
            Some("worker 1 is 3 ticks ahead, 4 given up"),
            "it waits for an answer"
        );
        assert_eq!(ahead(2, 8, 0.5), None, "it was given up and is back");
    }
}
