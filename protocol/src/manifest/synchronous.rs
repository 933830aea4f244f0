//! The part of a manifest about synchronous runs, in which all members average at once instead of in pairs.
//!
//! Runs that gossip are told without it, so that they keep the id that they had before there was such a thing.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{ManifestError, RunManifest, check};
use crate::bounds::synchronous_inbound_budget;
use crate::collective::{MEMBERS_MAX, Shape};
use crate::numerics::SliceCodec;

/// A member's weight behind a contribution, and what is held beyond its bytes, because that is counted in whole units.
const CONTRIBUTION_ADDEND: u64 = 32 * 1024;

/// Who sends what to whom in an all-reduce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    /// There is none: the run gossips.
    #[default]
    None,
    /// Slices go round a ring: each member sends 8 bytes a parameter, however many they are.
    Ring,
    /// Sums go up a binary tree and down again.
    Tree,
    /// All send to one member, which sends the sum back.
    Star,
    /// Pairs halve what they sum with each step: as many bytes as a ring, and fewer steps.
    HalvingDoubling,
}

impl Topology {
    /// Its schedule; `None` for a run that gossips.
    pub fn shape(self) -> Option<Shape> {
        match self {
            Topology::None => None,
            Topology::Ring => Some(Shape::Ring),
            Topology::Tree => Some(Shape::Tree),
            Topology::Star => Some(Shape::Star),
            Topology::HalvingDoubling => Some(Shape::HalvingDoubling),
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Topology::None => "none",
            Topology::Ring => "ring",
            Topology::Tree => "tree",
            Topology::Star => "star",
            Topology::HalvingDoubling => "halving-doubling",
        })
    }
}

/// Whether all members average at once, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SynchronousSpec {
    /// Who sends what to whom.
    pub topology: Topology,
    /// Whether all average at once only while that pays, and else in pairs, by gossip: the members measure it, and change
    /// together.
    pub auto: bool,
    /// Steps between two averages, 1 to 10,000. 1: the gradients of each step are averaged, so that all members together are
    /// one node with all their batches. More: the models are, with `gossip.outer_learning_rate` as DiLoCo does it.
    pub every_steps: u32,
    /// Members below which nobody trains, but waits for more, 1 to 64: with fewer the batch of all together is smaller.
    pub members_min: u32,
    /// Bits of a value on its way, 32, 16 or 8. 32: nothing is rounded. 16: bfloat16. 8: codes with a scale for each 256
    /// values. What rounding takes away from a contribution is added to the next one.
    pub slice_bits: u32,
}

impl Default for SynchronousSpec {
    fn default() -> Self {
        SynchronousSpec { topology: Topology::None, auto: false, every_steps: 1, members_min: 1, slice_bits: 32 }
    }
}

impl SynchronousSpec {
    /// Whether all average at once, always or at times.
    pub fn is_on(&self) -> bool {
        self.topology != Topology::None
    }

    /// Whether all average at once, always.
    pub fn is_fixed(&self) -> bool {
        self.is_on() && !self.auto
    }

    /// A run ends after a multiple of so many steps: where all always average at once, nobody stops in the middle of a round.
    pub fn steps_of_a_round(&self) -> u64 {
        if self.is_fixed() { u64::from(self.every_steps) } else { 1 }
    }

    /// Whether gradients are averaged, and not models.
    pub fn averages_gradients(&self) -> bool {
        self.every_steps == 1
    }

    /// How slices are written on their way.
    pub fn codec(&self) -> SliceCodec {
        match self.slice_bits {
            8 => SliceCodec::Int8,
            16 => SliceCodec::Bfloat16,
            _ => SliceCodec::Float32,
        }
    }

    /// Bytes of payloads that may be on their way in at once, for a model of so many parameters. The hub of a star takes the
    /// contributions of all others at once, and keeps them: where they do not all fit, each holds what others wait for.
    pub fn inbound_budget(&self, parameters: usize) -> u64 {
        let senders = if self.topology == Topology::Star { MEMBERS_MAX as u64 - 1 } else { 0 };
        synchronous_inbound_budget(parameters, senders * (self.codec().bytes(parameters) as u64 + CONTRIBUTION_ADDEND))
    }
}

pub(super) fn validate(manifest: &RunManifest) -> Result<(), ManifestError> {
    let RunManifest { synchronous, gossip, optimizer, .. } = manifest;
    let every = synchronous.every_steps;
    check("synchronous.every_steps", every, (1..=10_000).contains(&every), "1 to 10000")?;
    let least = synchronous.members_min;
    check("synchronous.members_min", least, (1..=MEMBERS_MAX as u32).contains(&least), "1 to 64")?;
    let bits = synchronous.slice_bits;
    check("synchronous.slice_bits", bits, matches!(bits, 8 | 16 | 32), "8, 16 or 32")?;
    let auto = synchronous.auto;
    check("synchronous.auto", auto, !auto || synchronous.is_on(), "false without a synchronous.topology")?;
    let rule = "false where models are averaged: synchronous.auto needs synchronous.every_steps = 1";
    check("synchronous.auto", auto, !auto || synchronous.averages_gradients(), rule)?;
    if !synchronous.is_on() {
        return Ok(());
    }
    let outer = gossip.outer_learning_rate;
    let rule = "0 where a synchronous run averages gradients: an outer step needs synchronous.every_steps above 1";
    check("gossip.outer_learning_rate", outer, outer == 0.0 || !synchronous.averages_gradients(), rule)?;
    let matches = optimizer.match_batch;
    check("optimizer.match_batch", matches, !matches, "false in a synchronous run, whose members' batches are one")
}

/// Whether a field has no line in the canonical text: all of a run that gossips, and what came later where it is at its
/// default.
pub(super) fn is_left_out(synchronous: &SynchronousSpec, section: &str, field: &str) -> bool {
    let is_default = match field {
        "slice_bits" => synchronous.slice_bits == SynchronousSpec::default().slice_bits,
        "auto" => !synchronous.auto,
        _ => false,
    };
    section == "synchronous" && (is_default || !synchronous.is_on())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_gossip_are_told_as_ever_and_synchronous_ones_read_back() {
        let mut manifest = RunManifest::default();
        let (text, id) = (manifest.canonical_text(), manifest.run_id());
        assert!(!text.contains("synchronous"), "{text}");
        let all = [Topology::Ring, Topology::Tree, Topology::Star, Topology::HalvingDoubling];
        for topology in all {
            manifest.synchronous =
                SynchronousSpec { topology, auto: false, every_steps: 20, members_min: 3, slice_bits: 32 };
            let text = manifest.canonical_text();
            let [every, least, topology] =
                ["every_steps = 20".to_owned(), "members_min = 3".to_owned(), format!("topology = \"{topology}\"")];
            let lines = format!("synchronous.{every}\nsynchronous.{least}\nsynchronous.{topology}\n");
            assert!(text.contains(&lines), "{text}");
            assert_eq!(RunManifest::from_text(&text), Ok(manifest.clone()));
            assert_ne!(manifest.run_id(), id);
            assert!(!text.contains("slice_bits"), "as before there was such a field: {text}");
            manifest.synchronous.slice_bits = 8;
            let rounded = manifest.canonical_text();
            assert!(rounded.contains("synchronous.slice_bits = 8\n"), "{rounded}");
            assert_eq!(RunManifest::from_text(&rounded), Ok(manifest.clone()));
        }
    }

    #[test]
    fn what_does_not_go_with_a_synchronous_run_is_refused_by_name() {
        let refused = |edit: fn(&mut RunManifest)| {
            let mut manifest = RunManifest::default();
            manifest.synchronous.topology = Topology::Ring;
            edit(&mut manifest);
            manifest.validate().expect_err("out of range").to_string()
        };
        assert!(refused(|run| run.synchronous.every_steps = 0).starts_with("synchronous.every_steps = 0"));
        assert!(refused(|run| run.synchronous.members_min = 65).starts_with("synchronous.members_min = 65"));
        assert!(refused(|run| run.synchronous.slice_bits = 4).starts_with("synchronous.slice_bits = 4"));
        let of_models = |run: &mut RunManifest| (run.synchronous.auto, run.synchronous.every_steps) = (true, 2);
        assert!(refused(of_models).ends_with("synchronous.auto needs synchronous.every_steps = 1"));
        let of_nothing =
            |run: &mut RunManifest| (run.synchronous.auto, run.synchronous.topology) = (true, Topology::None);
        assert!(refused(of_nothing).starts_with("synchronous.auto = true"));
        assert!(refused(|run| run.gossip.outer_learning_rate = 0.7).starts_with("gossip.outer_learning_rate = 0.7"));
        assert!(refused(|run| run.optimizer.match_batch = true).starts_with("optimizer.match_batch = true"));
        let synchronous = SynchronousSpec { topology: Topology::Tree, every_steps: 50, ..SynchronousSpec::default() };
        let mut diloco = RunManifest { synchronous, ..RunManifest::default() };
        diloco.gossip.outer_learning_rate = 0.7;
        assert_eq!(diloco.validate(), Ok(()));
    }
}
