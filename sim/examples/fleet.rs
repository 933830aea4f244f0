//! What machines that come and go for money learn: a fleet of which a share is taken back each hour, at short notice and replaced
//! by new ones, against the same fleet left in peace, at equal hours of machines. Both train a small transformer on the built-in
//! stories with the daemon's engine. An hour of a machine counts from the beginning of its process to its end, so copying a
//! model and the last exchange are paid for.
//!
//! `cargo run --release -p murmur-sim --example fleet -- --seeds 3`

use std::time::Duration;

use clap::Parser;
use murmur_protocol::manifest::{GossipSpec, OptimizerSpec, ScheduleSpec, TransformerModel};
use murmur_protocol::random::{RngExt, stream};
use murmur_sim::{Disk, Incident, Scenario, Sharing, Swarm, Text, TrainerSpec, TransformerSpec};

/// Addresses that a new machine is given.
const BOOTSTRAP: usize = 3;

/// How exactly hours of machines are made equal.
const LOOK_PERIOD: Duration = Duration::from_secs(2);

#[derive(Clone, Parser)]
struct Options {
    /// Runs of each kind.
    #[arg(long, default_value_t = 3)]
    seeds: u64,
    /// Machines at a time.
    #[arg(long, default_value_t = 10)]
    machines: usize,
    /// Hours of the fleet that is left in peace.
    #[arg(long, default_value_t = 2.0)]
    hours: f64,
    /// Share of the machines that is taken back each hour.
    #[arg(long, default_value_t = 0.2)]
    share: f64,
    /// Seconds from the notice until a machine is gone.
    #[arg(long, default_value_t = 30)]
    notice: u64,
    /// Seconds until another one is there instead.
    #[arg(long, default_value_t = 60)]
    replaced_after: u64,
    /// Seconds of a step.
    #[arg(long, default_value_t = 2.0)]
    step_seconds: f64,
    /// Machines are gone without notice.
    #[arg(long)]
    without_notice: bool,
}

impl Options {
    fn steps(&self) -> u64 {
        (3600.0 * self.hours / self.step_seconds) as u64
    }

    /// The fleet left in peace.
    fn calm(&self) -> Scenario {
        let model =
            TransformerModel { layers: 1, width: 32, heads: 2, feed_forward: 64, context: 32, ..Default::default() };
        // Neither fleet comes to the end of the run, whose last exchanges would make models better that have them.
        let total_steps = self.steps() * 5 / 4;
        let trainer = TransformerSpec {
            model,
            optimizer: OptimizerSpec { learning_rate: 0.01, batch_sequences: 4, ..OptimizerSpec::default() },
            schedule: ScheduleSpec { total_steps, warmup_steps: total_steps / 20, ..ScheduleSpec::default() },
            text: Text::Grammar,
            sharing: Sharing::Whole,
            validation_fraction: 0.05,
            validation_sequences: 256,
        };
        let mut scenario = Scenario {
            gossip: GossipSpec::default(),
            trainer: TrainerSpec::Transformer(trainer),
            leaving_max: Duration::from_secs(self.notice) * 2 / 3,
            ..Scenario::calm(self.machines)
        };
        for (index, plan) in scenario.nodes.iter_mut().enumerate() {
            plan.step_time = Duration::from_secs_f64(self.step_seconds);
            plan.bootstrap = (1..=BOOTSTRAP).map(|step| (index + step) % self.machines).collect();
        }
        scenario
    }

    /// The same, with machines taken back at times that a seed draws.
    fn preempted(&self, seed: u64) -> Scenario {
        let mut random = stream(seed, "notices", &[]);
        let mut scenario = self.calm();
        let (notice, away) = (Duration::from_secs(self.notice), Duration::from_secs(self.replaced_after));
        // Some go after the end of the fleet in peace, since this one takes longer for as many hours of machines.
        let each_hour = self.share * self.machines as f64;
        for number in 0..(each_hour * (self.hours + 1.0)).round() as u64 {
            let time = Duration::from_secs_f64(3600.0 / each_hour * (number as f64 + random.random::<f64>()));
            let host = random.random_range(0..self.machines);
            if !self.without_notice {
                scenario = scenario.at(time, Incident::Leave(host));
            }
            let anew = Incident::Restart { host, same_identity: false, disk: Disk::Lost };
            scenario = scenario.at(time + notice, Incident::Crash(host)).at(time + notice + away, anew);
        }
        scenario.incidents.sort_by_key(|(time, _)| *time);
        scenario
    }

    /// Runs a fleet for so many hours of machines.
    fn run(&self, scenario: Scenario, seed: u64) -> Outcome {
        let wanted = self.hours * self.machines as f64;
        let mut swarm = Swarm::new(scenario, seed).without_books();
        let (mut hours, mut time) = (0.0, Duration::ZERO);
        while hours < wanted {
            time += LOOK_PERIOD;
            swarm.run_until(time);
            let running = (0..self.machines).filter(|host| swarm.is_running(*host)).count();
            hours += running as f64 * LOOK_PERIOD.as_secs_f64() / 3600.0;
        }
        let (sample, deaths) = (swarm.sample(), swarm.record().lives.len() - self.machines);
        Outcome { loss: sample.loss, steps: sample.steps as f64 / hours, deaths }
    }
}

/// What came of a fleet.
struct Outcome {
    /// Mean loss of its machines on held-out stories, in nats a byte.
    loss: f64,
    /// Steps in an hour of a machine.
    steps: f64,
    deaths: usize,
}

fn main() {
    let options = Options::parse();
    println!(
        "{} machines, {} steps each in peace, a share of {} taken back each hour",
        options.machines,
        options.steps(),
        options.share
    );
    println!(
        "| seed | taken back | loss in peace | loss | difference | useful steps an hour |\n|---|---|---|---|---|---|"
    );
    let mut differences = Vec::new();
    for seed in 0..options.seeds {
        let calm = options.run(options.calm(), seed);
        let fleet = options.run(options.preempted(seed), seed);
        let difference = 100.0 * (fleet.loss / calm.loss - 1.0);
        differences.push(difference);
        let useful = 100.0 * fleet.steps / calm.steps;
        println!(
            "| {seed} | {} | {:.4} | {:.4} | {difference:+.2} % | {useful:.2} % |",
            fleet.deaths, calm.loss, fleet.loss
        );
    }
    let count = differences.len() as f64;
    let mean = differences.iter().sum::<f64>() / count;
    let spread = (differences.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0)).sqrt();
    println!("difference at equal hours of machines: {mean:+.2} % (standard deviation {spread:.2}) over {count} seeds");
}
