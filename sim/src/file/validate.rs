//! What a scenario file must not say: values out of range, sections that contradict each other, absurd sizes.

use std::ops::RangeInclusive;

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::{GossipSpec, ManifestError};

use super::{Drawn, ScenarioFile, TrainerKind};
use crate::trainer::{TrainerSpec, TrainerSpecError};

/// What the runs of all threads together may take, as [`ScenarioFile::memory_bytes`] estimates it: the memory of a
/// common laptop, half of it left to others.
pub const MEMORY_BYTES_MAX: u64 = 8_000_000_000;

/// Nodes of a swarm: one alone has nobody to exchange with, and more take hours. The most is a guess.
pub const NODES: RangeInclusive<u64> = 2..=4096;

/// Steps of a schedule where only the model's size or ranges matter.
const DEFAULT_STEPS: u64 = 1000;

/// Of the process, before there is a node. This and what follows measured on calm swarms of 16 to 256 nodes with 20 to
/// 100,000 parameters, rounded up; a network that loses payloads holds more models for a while.
const PROCESS_BYTES: f64 = 30e6;

/// Of a node besides its model: views, caches, the messages under way.
const NODE_BYTES: f64 = 140e3;

/// Of a node for each parameter: model, optimum, movement in `f64`, snapshots, payloads under way.
const PARAMETER_BYTES: f64 = 60.0;

/// Of an exchange that is over: notices, names.
const EXCHANGE_BYTES: f64 = 1500.0;

/// A value that makes no sense.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{key} = {value}: {rule}")]
pub struct Mistake {
    /// `section.key`.
    pub key: &'static str,
    /// What it is.
    pub value: String,
    /// What it may be.
    pub rule: String,
}

type Checked = Result<(), Mistake>;

impl ScenarioFile {
    /// Checks every value, whatever a seed may draw.
    ///
    /// # Errors
    /// The first mistake.
    pub fn validate(&self) -> Checked {
        self.validate_swarm()?;
        self.validate_transformer()?;
        self.validate_gossip()?;
        self.validate_network()?;
        self.validate_machines()?;
        self.validate_departures()?;
        self.validate_disturbances()
    }

    /// Estimate of what the largest run that may be drawn takes.
    pub fn memory_bytes(&self) -> u64 {
        let crowd = self.crowd.as_ref().map_or(0.0, |section| section.share.to);
        let nodes = self.swarm.nodes.to as f64 * (1.0 + crowd);
        let parameters = match self.trainer.kind {
            TrainerKind::Quadratic => self.swarm.parameters.to as f64,
            TrainerKind::Transformer => {
                TrainerSpec::Transformer(self.transformer(DEFAULT_STEPS)).layout(0).parameters() as f64
            }
        };
        let seconds = self.phases.faults_seconds.to + self.phases.calm_seconds.to;
        let rounds = seconds / (self.swarm.step_seconds.from * f64::from(self.gossip.interval_steps.from));
        let models = nodes * (NODE_BYTES + PARAMETER_BYTES * parameters);
        (PROCESS_BYTES + models + nodes * rounds * EXCHANGE_BYTES) as u64
    }

    fn validate_swarm(&self) -> Checked {
        let (swarm, trainer, phases) = (&self.swarm, &self.trainer, &self.phases);
        counted("swarm.nodes", swarm.nodes, *NODES.start() as usize, *NODES.end() as usize)?;
        counted("swarm.parameters", swarm.parameters, 1, 100_000_000)?;
        within("swarm.step_seconds", swarm.step_seconds, 0.001, 3600.0)?;
        counted("swarm.state_chunk", swarm.state_chunk, 1, 100_000_000)?;
        counted("swarm.addresses", swarm.addresses, 1, 64)?;
        counted("swarm.ranges", swarm.ranges, 0, 4096)?;
        share("swarm.late_share", swarm.late_share)?;
        share("swarm.partial_share", swarm.partial_share)?;
        if swarm.partial_share.to > 0.0 && trainer.kind == TrainerKind::Transformer {
            let rule = "it is 0 for the transformer, which is trained as a whole".to_owned();
            return Err(mistake("swarm.partial_share", swarm.partial_share.to.to_string(), rule));
        }
        counted("swarm.holding_changes", swarm.holding_changes, 0, 1000)?;
        within("trainer.learning_rate", trainer.learning_rate, 1e-6, 1.0)?;
        within("trainer.spread", trainer.spread, 0.0, 1000.0)?;
        within("trainer.noise", trainer.noise, 0.0, 1000.0)?;
        within("phases.faults_seconds", phases.faults_seconds, 1.0, 1e6)?;
        within("phases.calm_seconds", phases.calm_seconds, 1.0, 1e6)?;
        within("checks.disagreement_max", Drawn::fixed(self.checks.disagreement_max), f64::MIN_POSITIVE, f64::MAX)?;
        if swarm.late_share.to > 0.0 {
            self.in_time("swarm.late_seconds", swarm.late_seconds)?;
        }
        Ok(())
    }

    /// A run file's rules; a section of the transformer without the transformer is a mistake.
    fn validate_transformer(&self) -> Checked {
        if self.trainer.kind == TrainerKind::Quadratic {
            let given = [("model", self.model.is_some()), ("optimizer", self.optimizer.is_some())];
            let given = given.into_iter().chain([("schedule", self.schedule.is_some())]).find(|(_, given)| *given);
            return given.map_or(Ok(()), |(section, _)| {
                let rule = format!("[{section}] is for the transformer: set trainer.kind = \"transformer\"");
                Err(mistake("trainer.kind", "quadratic", rule))
            });
        }
        if self.model.as_ref().is_some_and(|model| model.transformer().is_none()) {
            let rule = "[model] is of another kind: set model.kind = \"transformer\"".to_owned();
            return Err(mistake("trainer.kind", "transformer", rule));
        }
        match self.transformer(DEFAULT_STEPS).check(&GossipSpec::default(), self.swarm.nodes.to) {
            Ok(()) => Ok(()),
            Err(TrainerSpecError::Manifest(ManifestError::OutOfRange { field, value, rule })) => {
                Err(Mistake { key: field, value, rule: format!("it takes {rule}") })
            }
            Err(other) => Err(mistake("trainer.kind", "transformer", other.to_string())),
        }
    }

    /// A run file's rules, at both ends of each range.
    fn validate_gossip(&self) -> Checked {
        let (bits, momentum_bits) = (&self.gossip.bits, &self.gossip.momentum_bits);
        for (key, widths) in [("gossip.bits", bits), ("gossip.momentum_bits", momentum_bits)] {
            if widths.is_empty() {
                return Err(mistake(key, "[]", "it lists at least one width".to_owned()));
            }
        }
        if self.gossip.kind.is_empty() {
            return Err(mistake("gossip.kind", "[]", "it lists at least one kind".to_owned()));
        }
        let widths = bits.iter().flat_map(|bits| momentum_bits.iter().map(move |momentum| (*bits, *momentum)));
        for (bits, momentum_bits) in widths {
            self.validate_gossip_at(bits, momentum_bits)?;
        }
        Ok(())
    }

    fn validate_gossip_at(&self, bits: u8, momentum_bits: u8) -> Checked {
        for end in [|drawn: Drawn<f64>| drawn.from, |drawn: Drawn<f64>| drawn.to] {
            let section = &self.gossip;
            let steps = Drawn::between(section.interval_steps.from.into(), section.interval_steps.to.into());
            let mut manifest = RunManifest::default();
            let fragments = Drawn::between(section.fragments.from.into(), section.fragments.to.into());
            (manifest.gossip.bits, manifest.gossip.momentum_bits) = (bits, momentum_bits);
            manifest.gossip.interval_steps = end(steps) as u32;
            manifest.gossip.fragments = end(fragments) as u16;
            manifest.gossip.gamma = end(section.gamma);
            manifest.gossip.step_fraction = end(section.step_fraction);
            manifest.gossip.clip_factor = end(section.clip_factor);
            manifest.gossip.outer_learning_rate = end(section.outer_learning_rate);
            manifest.gossip.outer_momentum = end(section.outer_momentum);
            if let Err(ManifestError::OutOfRange { field, value, rule }) = manifest.validate() {
                return Err(Mistake { key: field, value, rule: format!("it takes {rule}") });
            }
        }
        Ok(())
    }

    fn validate_network(&self) -> Checked {
        let (network, lines, worker) = (&self.network, &self.lines, &self.worker);
        let hour = 3600.0;
        within("network.latency_seconds_median", network.latency_seconds_median, 0.0, hour)?;
        within("network.latency_spread", network.latency_spread, 0.0, 2.0)?;
        within("network.held_back_seconds_max", network.held_back_seconds_max, 0.0, hour)?;
        within("network.detection_seconds_max", network.detection_seconds_max, 0.0, hour)?;
        within("lines.uplink_bytes_per_second", lines.uplink_bytes_per_second, 1.0, 1e12)?;
        within("lines.downlink_bytes_per_second", lines.downlink_bytes_per_second, 1.0, 1e12)?;
        within("worker.delay_seconds_max", worker.delay_seconds_max, 0.0, hour)?;
        share("network.loss", network.loss)?;
        share("network.duplication", network.duplication)?;
        share("network.reordering", network.reordering)?;
        share("network.transfer_failure", network.transfer_failure)?;
        share("network.dial_failure", network.dial_failure)?;
        share("network.breakage", network.breakage)?;
        share("network.handshake_failure", network.handshake_failure)?;
        share("worker.overload", worker.overload)?;
        share("drivers.refusal", self.drivers.refusal)?;
        share("drivers.full_queue", self.drivers.full_queue)
    }

    fn validate_departures(&self) -> Checked {
        if let Some(crashes) = &self.crashes {
            share("crashes.share", crashes.share)?;
            share("crashes.back_share", crashes.back_share)?;
            share("crashes.stranger_share", crashes.stranger_share)?;
            share("crashes.lost_disk_share", crashes.lost_disk_share)?;
            within("crashes.back_after_seconds", crashes.back_after_seconds, 0.0, 1e6)?;
            self.in_time("crashes.at_seconds", crashes.at_seconds)?;
        }
        if let Some(leaves) = &self.leaves {
            share("leaves.share", leaves.share)?;
            self.in_time("leaves.at_seconds", leaves.at_seconds)?;
        }
        if let Some(churn) = &self.churn {
            share("churn.share", churn.share)?;
            within("churn.every_rounds", churn.every_rounds, 0.1, 1e6)?;
        }
        if let Some(crowd) = &self.crowd {
            within("crowd.share", crowd.share, 0.001, 100.0)?;
            self.in_time("crowd.at_seconds", crowd.at_seconds)?;
            let last = Drawn::fixed(crowd.at_seconds.to + crowd.within_seconds.to);
            within("crowd.within_seconds", crowd.within_seconds, 0.0, 1e6)?;
            self.in_time("crowd.within_seconds", last)?;
        }
        if let Some(finish) = &self.finish {
            share("finish.chance", finish.chance)?;
            within("finish.steps", finish.steps, 1.0, 1e6)?;
            self.in_time("finish.at_seconds", finish.at_seconds)?;
        }
        Ok(())
    }

    fn validate_disturbances(&self) -> Checked {
        if let Some(pauses) = &self.pauses {
            share("pauses.share", pauses.share)?;
            within("pauses.seconds", pauses.seconds, 0.0, 1e6)?;
            self.in_time("pauses.at_seconds", pauses.at_seconds)?;
        }
        if let Some(breaks) = &self.breaks {
            within("breaks.per_node_and_minute", breaks.per_node_and_minute, 0.0, 600.0)?;
        }
        if let Some(slowdowns) = &self.slowdowns {
            share("slowdowns.share", slowdowns.share)?;
            within("slowdowns.factor", slowdowns.factor, 1.0, 1000.0)?;
            within("slowdowns.seconds", slowdowns.seconds, 0.0, 1e6)?;
            self.in_time("slowdowns.at_seconds", slowdowns.at_seconds)?;
        }
        let spells = [
            (&self.full_disks, ["full_disks.share", "full_disks.seconds", "full_disks.at_seconds"]),
            (&self.rests, ["rests.share", "rests.seconds", "rests.at_seconds"]),
            (&self.relays, ["relays.share", "relays.seconds", "relays.at_seconds"]),
            (&self.lost_addresses, ["lost_addresses.share", "lost_addresses.seconds", "lost_addresses.at_seconds"]),
        ];
        for (spell, [of_share, of_seconds, of_time]) in spells {
            let Some(spell) = spell else { continue };
            share(of_share, spell.share)?;
            within(of_seconds, spell.seconds, 0.0, 1e6)?;
            self.in_time(of_time, spell.at_seconds)?;
        }
        if let Some(outdated) = &self.outdated {
            share("outdated.share", outdated.share)?;
            self.in_time("outdated.at_seconds", outdated.at_seconds)?;
        }
        if let Some(doubles) = &self.doubles {
            share("doubles.share", doubles.share)?;
            self.in_time("doubles.at_seconds", doubles.at_seconds)?;
        }
        if let Some(hints) = &self.hints {
            within("hints.per_node_and_minute", hints.per_node_and_minute, 0.0, 600.0)?;
            share("hints.wrong_share", hints.wrong_share)?;
        }
        if let Some(links) = &self.bad_links {
            share("bad_links.share", links.share)?;
            share("bad_links.loss", links.loss)?;
            within("bad_links.delay_seconds", links.delay_seconds, 0.0, 3600.0)?;
            within("bad_links.bytes_per_second", links.bytes_per_second, 1.0, 1e12)?;
        }
        if let Some(partition) = &self.partition {
            counted("partition.groups", partition.groups, 2, 4096)?;
            if partition.groups.to > self.swarm.nodes.from {
                let rule = format!("swarm.nodes = {} may be fewer than the groups", self.swarm.nodes);
                return Err(mistake("partition.groups", partition.groups, rule));
            }
            share("partition.one_way_chance", partition.one_way_chance)?;
            if partition.one_way_chance.to > 0.0 && partition.groups.to > 2 {
                let rule = "one way is for two groups: set partition.groups = 2".to_owned();
                return Err(mistake("partition.one_way_chance", partition.one_way_chance, rule));
            }
            within("partition.seconds", partition.seconds, 0.0, 1e6)?;
            self.in_time("partition.at_seconds", partition.at_seconds)?;
        }
        Ok(())
    }

    fn validate_machines(&self) -> Checked {
        if let Some(stragglers) = &self.stragglers {
            share("stragglers.share", stragglers.share)?;
            within("stragglers.factor", stragglers.factor, 1.0, 1000.0)?;
        }
        if let Some(lines) = &self.slow_lines {
            share("slow_lines.share", lines.share)?;
            within("slow_lines.uplink_bytes_per_second", lines.uplink_bytes_per_second, 1.0, 1e12)?;
            within("slow_lines.downlink_bytes_per_second", lines.downlink_bytes_per_second, 1.0, 1e12)?;
        }
        if let Some(clocks) = &self.clocks {
            within("clocks.error", clocks.error, 0.0, 0.5)?;
        }
        if let Some(liars) = &self.liars {
            share("liars.share", liars.share)?;
            if liars.share.to >= 1.0 {
                let rule = "somebody must be honest: below 1".to_owned();
                return Err(mistake("liars.share", liars.share, rule));
            }
            if liars.kinds.is_empty() {
                let rule = "name at least one lie, or leave the key out for all".to_owned();
                return Err(mistake("liars.kinds", "[]", rule));
            }
        }
        Ok(())
    }

    /// A fault begins before the faults end.
    fn in_time(&self, key: &'static str, time: Drawn<f64>) -> Checked {
        within(key, time, 0.0, 1e6)?;
        let end = self.phases.faults_seconds;
        if time.to < end.from {
            return Ok(());
        }
        Err(mistake(key, time, format!("faults end at phases.faults_seconds = {end}; let it happen before")))
    }
}

fn mistake(key: &'static str, value: impl ToString, rule: String) -> Mistake {
    Mistake { key, value: value.to_string(), rule }
}

fn share(key: &'static str, value: Drawn<f64>) -> Checked {
    within(key, value, 0.0, 1.0)
}

/// Also refuses NaN, which compares false.
fn within(key: &'static str, value: Drawn<f64>, low: f64, high: f64) -> Checked {
    let holds = (low..=high).contains(&value.from) && (low..=high).contains(&value.to);
    if holds { Ok(()) } else { Err(mistake(key, value, format!("it takes {low} to {high}"))) }
}

fn counted(key: &'static str, value: Drawn<usize>, low: usize, high: usize) -> Checked {
    let holds = (low..=high).contains(&value.from) && (low..=high).contains(&value.to);
    if holds { Ok(()) } else { Err(mistake(key, value, format!("it takes {low} to {high}"))) }
}
