//! All runs of a comparison: each method at each learning rate of one list, then its best one over seeds and faults.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::{Fault, Method, Outcome, Setting};

/// The learning rates that every method is tried at, the same for all of them. Muon's goes with AdamW's. An asynchronous server
/// takes steps of single nodes on older parameters, and is best at the small ones.
pub const LEARNING_RATES: [f64; 5] = [1e-3, 3e-3, 8e-3, 2e-2, 5e-2];

/// What is compared.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Model, data, nodes, steps, links and speeds of all runs; its method, fault, seed and learning rate are replaced.
    pub base: Setting,
    /// The methods that are compared, at least one, in the order of the report.
    pub methods: Vec<Method>,
    /// What goes wrong, each in a run of its own.
    pub faults: Vec<Fault>,
    /// Seeds without faults, from the base's seed on; at least 1.
    pub seeds: u64,
    /// The learning rates that are tried, at least one.
    pub learning_rates: Vec<f64>,
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Which method.
    pub method: Method,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Seed of model, data and network.
    pub seed: u64,
    /// What goes wrong.
    pub fault: Fault,
}

/// All outcomes, or of an interrupted comparison those that every method in it has.
#[derive(Clone, Debug)]
pub struct Results {
    /// What was compared.
    pub plan: Plan,
    /// Runs that the comparison would have had besides.
    pub left_out: usize,
    /// Every method at every learning rate, with the first seed and no fault.
    pub tuning: Vec<Outcome>,
    /// Every method at its best learning rate: over seeds, then through faults with the first seed.
    pub runs: Vec<Outcome>,
}

impl Plan {
    /// How many runs there are.
    pub fn count(&self) -> usize {
        self.methods.len() * (self.learning_rates.len() + self.seeds as usize - 1 + self.faults.len())
    }

    /// Runs everything on `threads` threads. Where `interruption` was raised, methods, seeds and faults are left out that have
    /// not come to their end, the last two for all methods; `None` where no method is left. `tell` hears after each run how many
    /// have ended, and which it was.
    pub fn run(
        &self,
        threads: usize,
        interruption: &AtomicBool,
        tell: &(dyn Fn(usize, &Job) + Sync),
    ) -> Option<Results> {
        let done = AtomicUsize::new(0);
        let seed = self.base.seed;
        let every =
            |method: &Method, rate: &f64| Job { method: *method, learning_rate: *rate, seed, fault: Fault::None };
        let tuning: Vec<Job> = self
            .methods
            .iter()
            .flat_map(|method| self.learning_rates.iter().map(move |rate| every(method, rate)))
            .collect();
        let mut tuning = self.run_all(&tuning, threads, interruption, &done, tell);
        let mut plan = self.clone();
        let tried = |method: &Method| tuning.iter().filter(|run| run.method == *method).count();
        plan.methods.retain(|method| tried(method) == self.learning_rates.len());
        if plan.methods.is_empty() {
            return None;
        }
        tuning.retain(|run| plan.methods.contains(&run.method));
        let mut runs: Vec<Outcome> =
            plan.methods.iter().filter_map(|method| best_of(&tuning, method).cloned()).collect();
        let best: Vec<Job> = runs.iter().map(|run| every(&run.method, &run.learning_rate)).collect();
        // All methods with one seed or fault before the next one: an interrupted comparison has it for all of them.
        let seeds = (1..self.seeds).flat_map(|more| best.iter().map(move |job| Job { seed: seed + more, ..*job }));
        let faults = self.faults.iter().flat_map(|fault| best.iter().map(move |job| Job { fault: *fault, ..*job }));
        let jobs: Vec<Job> = seeds.chain(faults).collect();
        runs.extend(self.run_all(&jobs, threads, interruption, &done, tell));
        let have_all = |seed: u64, fault: Fault| {
            runs.iter().filter(|run| run.seed == seed && run.fault == fault).count() == plan.methods.len()
        };
        plan.seeds = (0..self.seeds).take_while(|more| have_all(seed + more, Fault::None)).count() as u64;
        plan.faults.retain(|fault| have_all(seed, *fault));
        runs.retain(|run| match run.fault {
            Fault::None => run.seed < seed + plan.seeds,
            fault => plan.faults.contains(&fault),
        });
        Some(Results { left_out: self.count() - plan.count(), plan, tuning, runs })
    }

    /// The outcomes of these runs in their order, without those that were interrupted.
    fn run_all(
        &self,
        jobs: &[Job],
        threads: usize,
        interruption: &AtomicBool,
        done: &AtomicUsize,
        tell: &(dyn Fn(usize, &Job) + Sync),
    ) -> Vec<Outcome> {
        let next = AtomicUsize::new(0);
        // A slot for each job: the order of the outcomes is that of the jobs, whoever runs them.
        let slots: Vec<Mutex<Option<Outcome>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
        let is_interrupted = || interruption.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            for _ in 0..threads.clamp(1, jobs.len().max(1)) {
                scope.spawn(|| {
                    while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if is_interrupted() {
                            return;
                        }
                        let place = jobs.iter().position(|other| std::ptr::eq(other, job)).expect("one of the jobs");
                        let outcome = self.setting(job).run(&is_interrupted);
                        let has_ended = outcome.is_some();
                        *slots[place].lock().expect("nobody panics with it") = outcome;
                        if has_ended {
                            tell(done.fetch_add(1, Ordering::Relaxed) + 1, job);
                        }
                    }
                });
            }
        });
        slots.into_iter().filter_map(|slot| slot.into_inner().expect("nobody panics with it")).collect()
    }

    /// The setting of one run.
    pub fn setting(&self, job: &Job) -> Setting {
        let mut setting = Setting { method: job.method, fault: job.fault, seed: job.seed, ..self.base.clone() };
        setting.trainer.optimizer = setting.trainer.optimizer.at_rate(job.learning_rate);
        setting
    }
}

impl Results {
    /// Runs of a method without a fault, over seeds.
    pub fn of(&self, method: &Method) -> Vec<&Outcome> {
        self.with(method, Fault::None)
    }

    /// Runs of a method through a fault.
    pub fn with(&self, method: &Method, fault: Fault) -> Vec<&Outcome> {
        self.runs.iter().filter(|run| run.method == *method && run.fault == fault).collect()
    }

    /// Laws that did not hold, with the run.
    pub fn violations(&self) -> Vec<String> {
        let runs = self
            .tuning
            .iter()
            .chain(self.runs.iter().filter(|run| run.fault != Fault::None || run.seed != self.plan.base.seed));
        let named = runs.flat_map(|run| {
            let name =
                format!("{} at {}, seed {}, fault {}", run.method.name, run.learning_rate, run.seed, run.fault.name());
            run.violations.iter().map(move |what| format!("{name}: {what}"))
        });
        named.collect()
    }
}

/// The run with the least loss at its end; of a method that never ended well, the first.
fn best_of<'a>(tuning: &'a [Outcome], method: &Method) -> Option<&'a Outcome> {
    let loss = |run: &Outcome| if run.end().loss.is_finite() { run.end().loss } else { f64::INFINITY };
    tuning.iter().filter(|run| run.method == *method).min_by(|one, other| loss(one).total_cmp(&loss(other)))
}
