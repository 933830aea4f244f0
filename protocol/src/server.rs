//! The parameter server: workers push gradients and pull parameters; a bound on staleness says who waits.
//!
//! With a bound of 0 it is synchronous: the gradients of one clock tick are one step. With a bound of s (stale synchronous
//! parallel, Ho et al. 2013) a worker goes on as long as it is at most s ticks ahead of the slowest one. Without a bound
//! (Downpour, Dean et al. 2012) nobody waits. A [`Server`] is the decisions of one shard, without I/O and without vectors:
//! its owner holds the parameters. A worker that is silent for longer than a learned deadline is not waited for, until it
//! pushes again.

use std::collections::{BTreeMap, VecDeque};

use crate::Time;
use crate::collective::{SLACK, Timeouts};
use crate::exchange::TimeoutEstimator;
use crate::pairs::Place;

/// Waits in vain double the deadline so often at most.
const DOUBLINGS_MAX: u32 = 2;

/// What a server's owner is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerOrder {
    /// One step of the optimizer with the mean of these gradients. They are used up.
    Step {
        /// Who pushed, and at which tick of the worker.
        of: Vec<(Place, u64)>,
        /// How many steps the oldest of the gradients is behind: steps that were taken since its worker pulled.
        staleness: u64,
    },
    /// Send the parameters as they are now.
    Answer {
        /// The member that receives it.
        to: Place,
        /// The worker's next tick.
        tick: u64,
    },
}

/// A worker as the server sees it.
#[derive(Clone, Debug)]
struct Worker {
    /// The tick of its next gradient.
    tick: u64,
    /// Steps taken when it pulled last.
    pulled_at: u64,
    heard: Time,
    /// It has pushed and waits for parameters.
    waits: bool,
    /// It is waited for by others.
    counts: bool,
    /// How long it takes from an answer to its next push.
    timeout: TimeoutEstimator,
}

/// What a server went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounts {
    /// Steps of the optimizer.
    pub steps: u64,
    /// Gradients used.
    pub gradients: u64,
    /// Sum of the staleness of all steps.
    pub staleness_sum: u64,
    /// The largest staleness.
    pub staleness_max: u64,
    /// Workers that were given up.
    pub given_up: u64,
    /// Pushes that came twice or were not awaited.
    pub ignored: u64,
}

/// The decisions of one shard.
#[derive(Clone, Debug)]
pub struct Server {
    bound: Option<u64>,
    workers: BTreeMap<Place, Worker>,
    /// With a bound of 0: gradients of this tick that wait for the others'.
    gathered: Vec<(Place, u64)>,
    counts: ServerCounts,
    orders: VecDeque<ServerOrder>,
}

impl Server {
    /// A server of so many `workers`, numbered from 0, that all begin with its parameters. `bound`: how many ticks a worker may be ahead; `None` for
    /// as many as it likes.
    pub fn new(workers: Place, bound: Option<u64>, timeouts: Timeouts) -> Server {
        let timeout = TimeoutEstimator::new(timeouts.initial, timeouts.floor, DOUBLINGS_MAX);
        let worker = |place| {
            let timeout = timeout.clone();
            (place, Worker { tick: 0, pulled_at: 0, heard: Time::ZERO, waits: false, counts: true, timeout })
        };
        Server {
            bound,
            workers: (0..workers).map(worker).collect(),
            gathered: Vec::new(),
            counts: ServerCounts::default(),
            orders: VecDeque::new(),
        }
    }

    /// The next order, where there is one.
    pub fn poll_order(&mut self) -> Option<ServerOrder> {
        self.orders.pop_front()
    }

    /// What it went through.
    pub fn counts(&self) -> ServerCounts {
        self.counts
    }

    /// A gradient has arrived. Returns whether it is used; one that comes twice is not.
    pub fn pushed(&mut self, now: Time, from: Place, tick: u64) -> bool {
        let Some(worker) = self.workers.get_mut(&from).filter(|worker| worker.tick == tick && !worker.waits) else {
            self.counts.ignored += 1;
            return false;
        };
        worker.timeout.record(SLACK * now.saturating_since(worker.heard));
        (worker.tick, worker.waits, worker.heard) = (tick + 1, true, now);
        if self.bound == Some(0) {
            self.gathered.push((from, tick));
        } else {
            self.step(vec![(from, tick)]);
        }
        // One that was given up is taken back as if it had pushed with the slowest: nobody waits for what it has missed.
        if let Some(slowest) = self.slowest() {
            let worker = self.workers.get_mut(&from).expect("it has just pushed");
            if !worker.counts {
                worker.tick = worker.tick.max(slowest + 1);
            }
            worker.counts = true;
        }
        self.let_go(now);
        true
    }

    /// When [`time_passed`](Self::time_passed) is to be called at the latest; `None` while nobody waits.
    pub fn next_deadline(&self) -> Option<Time> {
        let late = &self.workers[&self.blocking()?];
        Some(late.heard + late.timeout.limit())
    }

    /// A deadline may be over: gives up the worker that the others wait for.
    pub fn time_passed(&mut self, now: Time) {
        while self.next_deadline().is_some_and(|deadline| deadline <= now) {
            let Some(late) = self.blocking() else { return };
            let late = self.workers.get_mut(&late).expect("one of the workers");
            late.timeout.record_in_vain();
            late.counts = false;
            self.counts.given_up += 1;
            self.let_go(now);
        }
    }

    /// The tick of the slowest worker that counts.
    fn slowest(&self) -> Option<u64> {
        self.workers.values().filter(|worker| worker.counts).map(|worker| worker.tick).min()
    }

    /// The worker that others wait for: of the slowest, the one whose deadline is next.
    fn blocking(&self) -> Option<Place> {
        let slowest = self.slowest()?;
        let is_anybody_waiting = self.workers.values().any(|worker| worker.waits);
        let late = self.workers.iter().filter(|(_, worker)| worker.counts && !worker.waits && worker.tick == slowest);
        late.min_by_key(|(_, worker)| worker.heard + worker.timeout.limit())
            .map(|(place, _)| *place)
            .filter(|_| is_anybody_waiting)
    }

    fn step(&mut self, of: Vec<(Place, u64)>) {
        let oldest = of.iter().map(|(place, _)| self.workers[place].pulled_at).min().unwrap_or(self.counts.steps);
        let staleness = self.counts.steps - oldest;
        self.counts.steps += 1;
        self.counts.gradients += of.len() as u64;
        self.counts.staleness_sum += staleness;
        self.counts.staleness_max = self.counts.staleness_max.max(staleness);
        self.orders.push_back(ServerOrder::Step { of, staleness });
    }

    /// Answers all that need not wait.
    fn let_go(&mut self, now: Time) {
        let slowest = self.slowest().unwrap_or(u64::MAX);
        if self.bound == Some(0) && !self.gathered.is_empty() {
            let is_everybody_here = self.workers.values().all(|worker| !worker.counts || worker.waits);
            if !is_everybody_here {
                return;
            }
            let mut of = std::mem::take(&mut self.gathered);
            of.sort_unstable();
            self.step(of);
        }
        let ahead = self.bound.unwrap_or(u64::MAX);
        for (place, worker) in &mut self.workers {
            if worker.waits && worker.tick <= slowest.saturating_add(ahead) {
                worker.waits = false;
                worker.pulled_at = self.counts.steps;
                worker.heard = now;
                self.orders.push_back(ServerOrder::Answer { to: *place, tick: worker.tick });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(milliseconds: u64) -> Time {
        Time::from_start(Duration::from_millis(milliseconds))
    }

    fn server(workers: usize, bound: Option<u64>) -> Server {
        let timeouts =
            Timeouts { initial: Duration::from_secs(5), floor: Duration::from_millis(500), ..Timeouts::default() };
        Server::new(workers as Place, bound, timeouts)
    }

    fn orders(server: &mut Server) -> Vec<ServerOrder> {
        std::iter::from_fn(|| server.poll_order()).collect()
    }

    /// Workers of unlike speeds push as soon as they are answered; returns how far the fastest was ahead at most of the
    /// slowest when it was answered, and each gradient that was used.
    fn run(mut server: Server, paces: &[u64], until: u64) -> (u64, Vec<(Place, u64)>, Server) {
        let mut due: BTreeMap<(u64, Place), u64> = BTreeMap::new();
        let mut ticks: Vec<u64> = vec![0; paces.len()];
        let (mut ahead, mut used) = (0, Vec::new());
        due.extend(paces.iter().enumerate().map(|(place, pace)| ((*pace, place as Place), 0)));
        while let Some(((time, place), tick)) = due.pop_first().filter(|((time, _), _)| *time <= until) {
            server.pushed(at(time), place, tick);
            assert!(!server.pushed(at(time), place, tick), "a push that comes twice is used once");
            ticks[usize::from(place)] = tick + 1;
            for order in orders(&mut server) {
                match order {
                    ServerOrder::Step { of, .. } => used.extend(of),
                    ServerOrder::Answer { to, tick } => {
                        ahead = ahead.max(tick - ticks.iter().min().copied().unwrap_or(tick));
                        due.insert((time + paces[usize::from(to)], to), tick);
                    }
                }
            }
        }
        (ahead, used, server)
    }

    #[test]
    fn nobody_is_further_ahead_than_the_bound_and_every_gradient_is_used_once() {
        for bound in [Some(0), Some(1), Some(3), None] {
            let (ahead, used, _) = run(server(4, bound), &[100, 130, 170, 900], 20_000);
            let mut unique = used.clone();
            unique.sort_unstable();
            unique.dedup();
            assert_eq!(unique.len(), used.len(), "{bound:?}");
            match bound {
                Some(bound) => assert_eq!(ahead, bound, "the fast ones go as far as they may"),
                None => assert!(ahead > 50, "{ahead}: the law would find a server without the bound"),
            }
        }
    }

    #[test]
    fn a_bound_of_zero_is_synchronous() {
        let (_, _, server) = run(server(4, Some(0)), &[100, 130, 170, 200], 20_000);
        let counts = server.counts();
        assert_eq!((counts.gradients, counts.staleness_max), (4 * counts.steps, 0), "{counts:?}");
    }

    #[test]
    fn a_worker_that_dies_is_waited_for_no_longer_than_the_deadline_and_may_come_back() {
        let mut server = server(2, Some(0));
        for tick in 0..20 {
            for place in [0, 1] {
                assert!(server.pushed(at(100 * (tick + 1)), place, tick));
            }
        }
        orders(&mut server);
        assert!(server.pushed(at(2100), 0, 20));
        assert_eq!(orders(&mut server), []);
        let deadline = server.next_deadline().expect("one is waited for");
        assert!((at(2400)..at(3200)).contains(&deadline), "{deadline:?}");
        server.time_passed(deadline);
        let expected = [ServerOrder::Step { of: vec![(0, 20)], staleness: 0 }, ServerOrder::Answer { to: 0, tick: 21 }];
        assert_eq!(orders(&mut server), expected);
        assert!(server.pushed(at(9000), 1, 20), "the late one");
        assert!(server.pushed(at(9100), 0, 21));
        assert_eq!(orders(&mut server).len(), 3, "both again");
    }
}
