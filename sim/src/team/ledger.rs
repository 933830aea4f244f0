//! What a simulated team did, held against what it should have done.

use std::collections::{BTreeMap, BTreeSet};

use murmur_protocol::team::{BatchOutcome, Direction, StepFactors, TeamMessage, Work, WorkKind};
use murmur_protocol::{PeerId, Time};

use super::arithmetic::{Layer, Whole, factors};
use super::stage::Stage;

/// A law of teams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TeamLaw {
    /// A microbatch counts once in a gradient, or not at all.
    CountsOnce,
    /// All stages step with a batch, or none does, but for those that were lost between the first and the last commit, which are
    /// counted. A dropped batch leaves parameters and moments as they were.
    AllOrNone,
    /// Stages hold activations of as many microbatches as they were told, and as few streams wait.
    Bounded,
    /// Every batch ends, and as soon as nothing disturbs them there are new ones.
    Ends,
    /// What is learned is what one learner with the whole model learns from the same batches, to the last bit.
    OneNode,
    /// Where nothing disturbs them, nobody is taken for lost.
    NobodyLost,
    /// No stream, state or parameter of another batch or cut is used.
    NothingOfBefore,
    /// A helper whose state could not be read gets nothing to do any more, for as long as its captain lives.
    UnfitGoes,
}

/// A law that was broken, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TeamViolation {
    /// The law.
    pub law: TeamLaw,
    /// How, for people.
    pub what: String,
}

/// Violations that are kept of each law: the first ones say most.
const VIOLATIONS_MAX: usize = 3;

/// Batches of which is remembered what they should compute.
const BATCHES_KEPT: usize = 64;

/// A batch may last so long: a wait may double a few times, and there are several stages.
const BATCH_SECONDS_MAX: u64 = 240;

/// What a batch should compute.
#[derive(Debug)]
struct Truth {
    layers: Vec<Layer>,
    whole: Whole,
    began: Time,
    ended: bool,
    /// What all stages stepped with.
    factors: Option<StepFactors>,
}

/// What happened to the model, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Learned {
    Step { data: u64, lanes: Vec<(u8, bool)>, learning_rate: f64 },
    Correction(u64),
}

/// All that is known of a run.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    truths: BTreeMap<u64, Truth>,
    /// For each batch that anybody stepped with: how often each layer was.
    steps: BTreeMap<u64, Vec<u32>>,
    outcomes: BTreeMap<u64, BatchOutcome>,
    /// Batches that were under way when the captain died, or at the end.
    orphans: Vec<u64>,
    pub(crate) learned: Vec<Learned>,
    pub(crate) violations: Vec<TeamViolation>,
    pub(crate) held_most: usize,
    /// Helpers whose states could not be read, or that were let go for good, in this life of the captain.
    pub(crate) unfit: BTreeSet<PeerId>,
}

impl Ledger {
    pub(crate) fn breaks(&mut self, law: TeamLaw, what: impl Into<String>) {
        if self.violations.iter().filter(|violation| violation.law == law).count() < VIOLATIONS_MAX {
            self.violations.push(TeamViolation { law, what: what.into() });
        }
    }

    /// The captain gives a helper something to do.
    pub(crate) fn check_given(&mut self, helper: PeerId, message: &TeamMessage) {
        let gives = matches!(message, TeamMessage::Assign(_) | TeamMessage::Begin { .. } | TeamMessage::Commit { .. });
        if gives && self.unfit.contains(&helper) {
            self.breaks(TeamLaw::UnfitGoes, format!("{helper} gets {message:?}"));
        }
    }

    /// A batch begins with these states on the machines that have them.
    pub(crate) fn begin(&mut self, now: Time, batch: u64, layers: Vec<Layer>, data: u64, lanes: &[(u8, bool)]) {
        let whole = Whole::compute(&layers, data, lanes);
        self.truths.insert(batch, Truth { layers, whole, began: now, ended: false, factors: None });
        while self.truths.len() > BATCHES_KEPT {
            self.truths.pop_first();
        }
    }

    pub(crate) fn knows(&self, batch: u64) -> bool {
        self.truths.contains_key(&batch)
    }

    /// A stream comes into a stage, in front of this layer for a forward, behind it for a backward.
    pub(crate) fn check_input(&mut self, who: &str, work: &Work, layer: usize, value: u64) {
        let Some(truth) = self.truths.get(&work.batch) else {
            return self.breaks(TeamLaw::NothingOfBefore, format!("{who} computes {work:?}, a batch long over"));
        };
        let of = match work.kind.direction() {
            Direction::Forward => &truth.whole.streams,
            Direction::Backward => &truth.whole.gradients,
        };
        if of[work.microbatch as usize][layer] != value {
            self.breaks(TeamLaw::NothingOfBefore, format!("{who} computes {work:?} from another stream"));
        }
    }

    pub(crate) fn check_held(&mut self, who: &str, stage: &Stage, work: &Work, in_flight: u32) {
        self.held_most = self.held_most.max(stage.held());
        if work.kind == WorkKind::Forward && stage.held() > in_flight as usize {
            let what = format!("{who} holds {} microbatches where {in_flight} are allowed: {work:?}", stage.held());
            self.breaks(TeamLaw::Bounded, what);
        }
    }

    pub(crate) fn check_bound(&mut self, who: &str, what: &str, count: usize, bound: usize) {
        if count > bound {
            self.breaks(TeamLaw::Bounded, format!("{who}: {count} {what} where {bound} are allowed"));
        }
    }

    /// A stage has computed all of a batch.
    pub(crate) fn check_sums(&mut self, who: &str, batch: u64, stage: &Stage) {
        let Some(truth) = self.truths.get(&batch) else { return };
        if truth.whole.sums[stage.range()] != stage.sums() {
            self.breaks(TeamLaw::CountsOnce, format!("{who} has another gradient of batch {batch}"));
        }
    }

    /// A stage steps: it had these layers before, and has those of the stage after.
    pub(crate) fn check_step(&mut self, who: &str, batch: u64, before: &[Layer], stage: &Stage, with: StepFactors) {
        let number = factors(with.gradient_norm, with.learning_rate, with.members);
        let range = stage.range();
        let Some(truth) = self.truths.get_mut(&batch) else {
            return self.breaks(TeamLaw::NothingOfBefore, format!("{who} steps with batch {batch}, long over"));
        };
        let (sums, layers) = (&truth.whole.sums[range.clone()], &truth.layers[range.clone()]);
        let expected: Vec<Layer> = layers.iter().zip(sums).map(|(layer, sum)| layer.stepped(*sum, number)).collect();
        let same_factors = *truth.factors.get_or_insert(with) == with;
        let (was_same, is_same, count) = (layers == before, expected == stage.layers, truth.layers.len());
        let has_stepped = stage.layers != before;
        let steps = self.steps.entry(batch).or_insert_with(|| vec![0; count]);
        range.for_each(|layer| steps[layer] += 1);
        if !was_same {
            self.breaks(
                TeamLaw::AllOrNone,
                format!("{who} changed between the beginning of batch {batch} and its step"),
            );
        }
        if !has_stepped {
            self.breaks(TeamLaw::AllOrNone, format!("{who} has not stepped with batch {batch} and says that it has"));
        } else if !is_same || !same_factors {
            self.breaks(TeamLaw::CountsOnce, format!("{who} stepped to something else with batch {batch}"));
        }
    }

    /// A stage has forgotten a batch.
    pub(crate) fn check_discard(&mut self, who: &str, batch: u64, stage: &Stage) {
        let Some(truth) = self.truths.get(&batch) else { return };
        if truth.layers[stage.range()] != stage.layers {
            self.breaks(TeamLaw::AllOrNone, format!("{who} is not as before batch {batch}, which was dropped"));
        }
        if stage.held() > 0 {
            self.breaks(TeamLaw::AllOrNone, format!("{who} has something left of batch {batch}, which was dropped"));
        }
    }

    pub(crate) fn end(&mut self, now: Time, batch: u64, outcome: BatchOutcome) {
        if let Some(truth) = self.truths.get_mut(&batch) {
            truth.ended = true;
            let lasted = now - truth.began;
            if lasted.as_secs() > BATCH_SECONDS_MAX {
                self.breaks(TeamLaw::Ends, format!("batch {batch} lasted {lasted:?}"));
            }
        }
        if self.outcomes.insert(batch, outcome).is_some() {
            self.breaks(TeamLaw::Ends, format!("batch {batch} ended twice"));
        }
    }

    /// The captain is gone, or the run is over, and with it whatever was under way.
    pub(crate) fn leave_under_way(&mut self) {
        let under_way = self.truths.iter().filter(|(_, truth)| !truth.ended);
        self.orphans.extend(under_way.map(|(batch, _)| *batch));
    }

    /// At the end: who stepped with what, where so many stages were counted as having missed a step.
    pub(crate) fn check_steps(&mut self, missed_max: u64) {
        let mut missed = 0;
        let mut broken = Vec::new();
        for (batch, outcome) in &self.outcomes {
            let steps = self.steps.get(batch).map_or(&[][..], |steps| steps);
            let is_stepped = *outcome == BatchOutcome::Stepped;
            if !is_stepped && steps.iter().any(|steps| *steps > 0) {
                broken.push(format!("some stepped with batch {batch}, which ended as {outcome:?}"));
            }
            if is_stepped {
                // Layers side by side that did not are one stage, or several: at least one.
                let absent = |layer: usize| steps.get(layer) == Some(&0);
                missed +=
                    (0..steps.len()).filter(|layer| absent(*layer) && (*layer == 0 || !absent(layer - 1))).count();
                if steps.iter().any(|steps| *steps > 1) {
                    broken.push(format!("some stepped more than once with batch {batch}"));
                }
            }
        }
        for (batch, _) in self.steps.iter().filter(|(batch, _)| !self.outcomes.contains_key(batch)) {
            if !self.orphans.contains(batch) {
                broken.push(format!("some stepped with batch {batch}, which never ended"));
            }
        }
        if missed as u64 > missed_max {
            broken.push(format!("{missed} stages missed a step where {missed_max} are counted"));
        }
        broken.into_iter().for_each(|what| self.breaks(TeamLaw::AllOrNone, what));
    }

    /// At the end: the model is that of one learner.
    pub(crate) fn check_one_node(&mut self, initial: Vec<Layer>, layers: &[Layer]) {
        let mut alone = initial;
        for learned in &self.learned {
            match learned {
                Learned::Correction(value) => alone.iter_mut().for_each(|layer| *layer = layer.corrected(*value)),
                Learned::Step { data, lanes, learning_rate } => {
                    let sums = Whole::compute(&alone, *data, lanes).sums;
                    let norm = super::arithmetic::norm(sums.iter().map(|sum| super::arithmetic::square(*sum)));
                    let number = factors(norm, *learning_rate, 1.0);
                    alone.iter_mut().zip(sums).for_each(|(layer, sum)| *layer = layer.stepped(sum, number));
                }
            }
        }
        let differ: Vec<usize> = (0..alone.len()).filter(|layer| alone[*layer] != layers[*layer]).collect();
        if !differ.is_empty() {
            let what = format!("layers {differ:?} are not those of one learner after {} changes", self.learned.len());
            self.breaks(TeamLaw::OneNode, what);
        }
    }
}
