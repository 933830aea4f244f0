//! What a scenario file must not say: values out of range, sections that contradict each other, absurd sizes.

use std::ops::RangeInclusive;

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::{GossipSpec, ManifestError};

use super::draw::at_interval;
use super::drawn::Numbers;
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

/// Of something that is to happen: in the file's plan, in the swarm's copy of it, in its queue.
const INCIDENT_BYTES: f64 = 500.0;

/// A value that makes no sense.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{key} = {value}: {rule}")]
pub struct Mistake {
    /// `section.key`.
    pub key: String,
    /// What it is.
    pub value: String,
    /// What it may be.
    pub rule: String,
}

pub(super) type Checked = Result<(), Mistake>;

/// What a number may be.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    low: f64,
    high: f64,
    /// Whether it is a moment that comes before the end of the faults.
    is_in_time: bool,
}

pub(super) const SHARE: Limits = within(0.0, 1.0);

/// When a fault begins.
pub(super) const IN_TIME: Limits = Limits { is_in_time: true, ..within(0.0, 1e6) };

pub(super) const fn within(low: f64, high: f64) -> Limits {
    Limits { low, high, is_in_time: false }
}

impl Limits {
    /// Also refuses NaN, which compares false. Faults end after `faults`.
    pub(super) fn check(self, section: &str, key: &str, value: impl Numbers, faults: Drawn<f64>) -> Checked {
        let key = format!("{section}.{key}");
        let Limits { low, high, is_in_time } = self;
        if !value.ends().iter().all(|end| (low..=high).contains(end)) {
            return Err(mistake(&key, value, format!("it takes {low} to {high}")));
        }
        if is_in_time && value.ends()[1] >= faults.from {
            let rule = format!("faults end at phases.faults_seconds = {faults}; let it happen before");
            return Err(mistake(&key, value, rule));
        }
        Ok(())
    }
}

/// Checks every key of these sections by itself, of the optional ones where they are there.
macro_rules! check_each {
    ($file:ident, [$($section:ident),+], optional [$($optional:ident),+]) => {
        let time = $file.phases.faults_seconds;
        $($file.$section.check(stringify!($section), time)?;)+
        $(if let Some(section) = &$file.$optional {
            section.check(stringify!($optional), time)?;
        })+
    };
}

impl ScenarioFile {
    /// Checks every value, whatever a seed may draw.
    ///
    /// # Errors
    /// The first mistake.
    pub fn validate(&self) -> Checked {
        check_each! {
            self, [swarm, trainer, gossip, phases, checks, network, lines, worker, drivers],
            optional [
                crashes, leaves, churn, crowd, finish, pauses, breaks, slowdowns, full_disks, rests, relays,
                lost_addresses, outdated, doubles, hints, bad_links, partition, stragglers, slow_lines, clocks, liars
            ]
        }
        self.validate_swarm()?;
        self.validate_transformer()?;
        self.validate_gossip()?;
        self.validate_faults()
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
        (PROCESS_BYTES + models + nodes * rounds * EXCHANGE_BYTES + self.incidents(nodes) * INCIDENT_BYTES) as u64
    }

    /// The most incidents of kinds that may come by the thousands.
    fn incidents(&self, nodes: f64) -> f64 {
        let breaks = self.breaks.as_ref().map_or(0.0, |section| section.per_node_and_minute.to);
        let hints = self.hints.as_ref().map_or(0.0, |section| section.per_node_and_minute.to);
        let bad = self.bad_links.as_ref().map_or(0.0, |section| 2.0 * section.share.to);
        let relayed = self.relays.as_ref().map_or(0.0, |section| section.share.to);
        let parted = self.partition.as_ref().is_some_and(|section| section.groups.to > 2);
        let of_pairs = bad + relayed + f64::from(u8::from(parted));
        (breaks + hints) * nodes * self.phases.faults_seconds.to / 60.0 + of_pairs * nodes * nodes
    }

    fn validate_swarm(&self) -> Checked {
        let (swarm, time) = (&self.swarm, self.phases.faults_seconds);
        if swarm.partial_share.to > 0.0 && self.trainer.kind == TrainerKind::Transformer {
            let rule = "it is 0 for the transformer, which is trained as a whole".to_owned();
            return Err(mistake("swarm.partial_share", swarm.partial_share.to, rule));
        }
        if swarm.late_share.to > 0.0 {
            IN_TIME.check("swarm", "late_seconds", swarm.late_seconds, time)?;
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
                Err(Mistake { key: field.to_owned(), value, rule: format!("it takes {rule}") })
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
            manifest.gossip = at_interval(end(steps) as u32);
            (manifest.gossip.bits, manifest.gossip.momentum_bits) = (bits, momentum_bits);
            manifest.gossip.fragments = end(fragments) as u16;
            manifest.gossip.gamma = end(section.gamma);
            manifest.gossip.step_fraction = end(section.step_fraction);
            manifest.gossip.clip_factor = end(section.clip_factor);
            manifest.gossip.outer_learning_rate = end(section.outer_learning_rate);
            manifest.gossip.outer_momentum = end(section.outer_momentum);
            if let Err(ManifestError::OutOfRange { field, value, rule }) = manifest.validate() {
                return Err(Mistake { key: field.to_owned(), value, rule: format!("it takes {rule}") });
            }
        }
        Ok(())
    }

    /// What keys of a fault must not be together.
    fn validate_faults(&self) -> Checked {
        self.validate_ends()?;
        if let Some(crowd) = &self.crowd {
            let last = Drawn::fixed(crowd.at_seconds.to + crowd.within_seconds.to);
            IN_TIME.check("crowd", "within_seconds", last, self.phases.faults_seconds)?;
        }
        if let Some(partition) = &self.partition {
            if partition.groups.to > self.swarm.nodes.from {
                let rule = format!("swarm.nodes = {} may be fewer than the groups", self.swarm.nodes);
                return Err(mistake("partition.groups", partition.groups, rule));
            }
            if partition.one_way_chance.to > 0.0 && partition.groups.to > 2 {
                let rule = "one way is for two groups: set partition.groups = 2".to_owned();
                return Err(mistake("partition.one_way_chance", partition.one_way_chance, rule));
            }
        }
        if let Some(liars) = &self.liars {
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

    /// What goes on beyond the faults is over early enough for the checks: everybody is to come together after it.
    fn validate_ends(&self) -> Checked {
        let (faults, calm) = (self.phases.faults_seconds.from, self.phases.calm_seconds.from);
        if let Some(pauses) = &self.pauses
            && pauses.at_seconds.to + pauses.seconds.to > faults + calm / 2.0
        {
            let rule = format!("nodes go on before half of phases.calm_seconds = {} is over", self.phases.calm_seconds);
            return Err(mistake("pauses.seconds", pauses.seconds, rule));
        }
        if let Some(finish) = &self.finish
            && finish.at_seconds.to + finish.steps.to * self.swarm.step_seconds.to > faults + calm
        {
            let rule = format!("a run that takes {} s is over by then", faults + calm);
            return Err(mistake("finish.steps", finish.steps, rule));
        }
        Ok(())
    }
}

fn mistake(key: &str, value: impl ToString, rule: String) -> Mistake {
    Mistake { key: key.to_owned(), value: value.to_string(), rule }
}
