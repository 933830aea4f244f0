//! From a file and a seed to a run.

use std::time::Duration;

use murmur_protocol::manifest::{GossipSpec, ModelSpec, ScheduleSpec};
use murmur_protocol::random::RngExt;
use murmur_protocol::{AddressRange, Fragments, Holding, Start};

use super::dice::{Dice, between, share_of, some_addresses, some_fragments, take, time_between};
use super::schedule::Schedule;
use super::{Drawn, ScenarioFile, TrainerKind};
use crate::network::{LatencySpec, NetworkSpec};
use crate::scenario::{DriverSpec, HostIndex, NodePlan, Scenario, WorkerSpec};
use crate::trainer::{QuadraticSpec, TrainerSpec, TransformerSpec};

/// After the last exchange has begun, so long until nothing is in flight any more; and so many steps where those take longer, for
/// trainers take corrections up between two of them.
const SILENCE: Duration = Duration::from_secs(25);
const STEPS_OF_SILENCE: u32 = 3;

/// A run, decided by its file and its seed alone.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// What happens.
    pub scenario: Scenario,
    /// What the file left open and the seed decided: key and value, in the file's order.
    pub drawn: Vec<(String, String)>,
    /// When faults and learning end.
    pub faults_end: Duration,
    /// When the last exchange may begin.
    pub averaging_ends: Duration,
    /// When the checks look.
    pub end: Duration,
    /// What they may ask.
    pub expectations: Expectations,
}

/// What may be asked of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectations {
    /// Who takes part at the end, in order; the honest alone.
    pub present: Vec<HostIndex>,
    /// No model is further than this from the mean, as a Euclidean distance.
    pub disagreement_max: f64,
    /// Nothing is lost and nobody dies, so that every exchange has two sides.
    pub lossless: bool,
}

impl ScenarioFile {
    /// The run of a seed. The file has passed [`validate`](Self::validate).
    pub fn draw(&self, seed: u64) -> Plan {
        let mut dice = Dice::new(seed);
        let gossip = self.draw_gossip(&mut dice);
        let parameters = dice.count("swarm.parameters", self.swarm.parameters);
        let nodes = self.draw_nodes(&mut dice, &Fragments::equal(parameters, gossip.fragments));
        let faults_end = Duration::from_secs_f64(dice.amount("phases.faults_seconds", self.phases.faults_seconds));
        let calm = Duration::from_secs_f64(dice.amount("phases.calm_seconds", self.phases.calm_seconds));
        let shortest = nodes.iter().map(|plan| plan.step_time).min().unwrap_or_default();
        let steps = (faults_end + calm + SILENCE).div_duration_f64(shortest).ceil() as u64;
        let scenario = Scenario {
            parameters,
            gossip,
            nodes,
            trainer: self.draw_trainer(&mut dice, steps),
            worker: WorkerSpec {
                delay: (
                    Duration::ZERO,
                    Duration::from_secs_f64(dice.amount("worker.delay_seconds_max", self.worker.delay_seconds_max)),
                ),
                overload: dice.amount("worker.overload", self.worker.overload),
                full_precision: false,
            },
            drivers: DriverSpec {
                refusal: dice.amount("drivers.refusal", self.drivers.refusal),
                full_queue: dice.amount("drivers.full_queue", self.drivers.full_queue),
            },
            state_chunk: dice.count("swarm.state_chunk", self.swarm.state_chunk),
            network: self.draw_network(&mut dice),
            ..Scenario::calm(0)
        };
        let is_lossless = is_lossless(&scenario);
        let disagreement_max = self.checks.disagreement_max * (scenario.layout().parameters() as f64).sqrt();
        let mut schedule = Schedule::new(scenario, faults_end);
        self.schedule(&mut dice, &mut schedule);
        let expectations = Expectations {
            present: schedule.present(),
            disagreement_max,
            lossless: is_lossless && schedule.is_gentle && self.liars.is_none(),
        };
        let averaging_ends = faults_end + calm;
        let longest = schedule.scenario.nodes.iter().map(|plan| plan.step_time).max().unwrap_or_default();
        Plan {
            seed,
            scenario: schedule.scenario.then_calm(faults_end, averaging_ends),
            drawn: dice.into_drawn(),
            faults_end,
            averaging_ends,
            end: averaging_ends + SILENCE.max(longest * STEPS_OF_SILENCE),
            expectations,
        }
    }

    /// `steps`: of the fastest node over the whole run.
    fn draw_trainer(&self, dice: &mut Dice, steps: u64) -> TrainerSpec {
        match self.trainer.kind {
            TrainerKind::Quadratic => TrainerSpec::Quadratic(QuadraticSpec {
                learning_rate: dice.amount("trainer.learning_rate", self.trainer.learning_rate) as f32,
                spread: dice.amount("trainer.spread", self.trainer.spread) as f32,
                noise: dice.amount("trainer.noise", self.trainer.noise) as f32,
            }),
            TrainerKind::Transformer => TrainerSpec::Transformer(self.transformer(steps)),
        }
    }

    /// The transformer; a schedule that the file leaves out goes on for longer than `steps`, so that nobody is complete
    /// before the run's end.
    pub(super) fn transformer(&self, steps: u64) -> TransformerSpec {
        let defaults = TransformerSpec::default();
        let total_steps = steps.saturating_mul(2);
        let warmup_steps = defaults.schedule.warmup_steps.min(steps / 10);
        let schedule = ScheduleSpec { total_steps, warmup_steps, ..defaults.schedule };
        TransformerSpec {
            model: self.model.as_ref().and_then(ModelSpec::transformer).cloned().unwrap_or(defaults.model),
            optimizer: self.optimizer.clone().unwrap_or(defaults.optimizer),
            schedule: self.schedule.clone().unwrap_or(schedule),
            validation_sequences: self.trainer.validation_sequences,
            ..TransformerSpec::default()
        }
    }

    fn draw_gossip(&self, dice: &mut Dice) -> GossipSpec {
        let section = &self.gossip;
        let steps = Drawn::between(section.interval_steps.from as usize, section.interval_steps.to as usize);
        let fragments = Drawn::between(section.fragments.from.into(), section.fragments.to.into());
        let kind = dice.choice("gossip.kind", &section.kind);
        let interval_steps = dice.count("gossip.interval_steps", steps) as u32;
        GossipSpec {
            kind,
            bits: dice.choice("gossip.bits", &section.bits),
            fragments: dice.count("gossip.fragments", fragments) as u16,
            gamma: dice.amount("gossip.gamma", section.gamma),
            step_fraction: dice.amount("gossip.step_fraction", section.step_fraction),
            clip_factor: dice.amount("gossip.clip_factor", section.clip_factor),
            outer_learning_rate: dice.amount("gossip.outer_learning_rate", section.outer_learning_rate),
            outer_momentum: dice.amount("gossip.outer_momentum", section.outer_momentum),
            momentum_bits: dice.choice("gossip.momentum_bits", &section.momentum_bits),
            ..at_interval(interval_steps)
        }
    }

    fn draw_network(&self, dice: &mut Dice) -> NetworkSpec {
        let section = &self.network;
        let mut seconds = |key: &str, drawn| Duration::from_secs_f64(dice.amount(key, drawn));
        let median = seconds("network.latency_seconds_median", section.latency_seconds_median);
        let held_back_max = seconds("network.held_back_seconds_max", section.held_back_seconds_max);
        let detection_max = seconds("network.detection_seconds_max", section.detection_seconds_max);
        let spread = dice.amount("network.latency_spread", section.latency_spread);
        NetworkSpec {
            latency: LatencySpec { median, spread },
            loss: dice.amount("network.loss", section.loss),
            duplication: dice.amount("network.duplication", section.duplication),
            reordering: dice.amount("network.reordering", section.reordering),
            held_back_max,
            transfer_failure: dice.amount("network.transfer_failure", section.transfer_failure),
            dial_failure: dice.amount("network.dial_failure", section.dial_failure),
            breakage: dice.amount("network.breakage", section.breakage),
            handshake_failure: dice.amount("network.handshake_failure", section.handshake_failure),
            detection: (Duration::ZERO, detection_max),
            fills_gaps: false,
        }
    }

    /// Founders and late nodes; the first is a founder that stays, so that there always is a model to copy.
    fn draw_nodes(&self, dice: &mut Dice, fragments: &Fragments) -> Vec<NodePlan> {
        let section = &self.swarm;
        let count = dice.count("swarm.nodes", section.nodes);
        let addresses = dice.count("swarm.addresses", section.addresses);
        let late_share = dice.amount("swarm.late_share", section.late_share);
        let late = take(&mut dice.stream("who is late"), (1..count).collect(), share_of(count, late_share));
        let mut step_dice = dice.stream("swarm.step_seconds");
        let mut late_dice = dice.stream("swarm.late_seconds");
        let mut address_dice = dice.stream("addresses");
        let mut line_dice = dice.stream("lines");
        let ranges = dice.count("swarm.ranges", section.ranges) as u64;
        let mut range_dice = dice.stream("who is in which range");
        let partial_share = dice.amount("swarm.partial_share", section.partial_share);
        let partial = take(&mut dice.stream("who holds what"), (1..count).collect(), share_of(count, partial_share));
        let mut holding_dice = dice.stream("holdings");
        let plan = |host: HostIndex| {
            let is_late = late.contains(&host);
            NodePlan {
                start: if is_late { Start::FromPeer } else { Start::WithModel },
                holding: if partial.contains(&host) {
                    some_fragments(&mut holding_dice, fragments)
                } else {
                    Holding::ALL
                },
                begins_at: if is_late { time_between(&mut late_dice, section.late_seconds) } else { Duration::ZERO },
                step_time: time_between(&mut step_dice, section.step_seconds),
                uplink_bytes_per_second: between(&mut line_dice, self.lines.uplink_bytes_per_second),
                downlink_bytes_per_second: between(&mut line_dice, self.lines.downlink_bytes_per_second),
                range: (ranges > 0).then(|| AddressRange(range_dice.random_range(0..ranges))),
                ..NodePlan::founder(some_addresses(&mut address_dice, host, count, addresses))
            }
        };
        (0..count).map(plan).collect()
    }
}

/// Exchanges that begin at this interval, which may lie beyond where a run's usually stays.
pub(super) fn at_interval(interval_steps: u32) -> GossipSpec {
    let usual = GossipSpec::default();
    GossipSpec {
        interval_steps,
        interval_steps_min: usual.interval_steps_min.min(interval_steps),
        interval_steps_max: usual.interval_steps_max.max(interval_steps),
        ..usual
    }
}

fn is_lossless(scenario: &Scenario) -> bool {
    let NetworkSpec { loss, transfer_failure, dial_failure, breakage, handshake_failure, .. } = &scenario.network;
    let network = [*loss, *transfer_failure, *dial_failure, *breakage, *handshake_failure];
    let hosts = [scenario.worker.overload, scenario.drivers.refusal, scenario.drivers.full_queue];
    network.iter().chain(&hosts).all(|share| *share == 0.0)
}
