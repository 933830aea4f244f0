//! Which machine gets which layers: a pure function of measured speeds, memory and links.
//!
//! **How long a batch takes.** Of K microbatches each passes all stages and all hops forward and back, which takes one of them the
//! path's time P. They follow each other at the pace of the slowest resource B: a machine's processor (the captain has one for both of
//! its stages), a machine's link in one direction, which carries two streams a microbatch for each helper, at the captain those of all
//! helpers. A stage holds so many microbatches f at most, so that another one follows after P / f at the earliest. In all
//! `P + (K − 1) max(B, P / f)`: with like stages and no hops that is (K + S − 1) t, the bubble of (S − 1) / (K + S − 1).
//!
//! The captain's layers are all in its last stage, where one microbatch is held; its first stage is the embedding alone.

use std::ops::Range;

use super::arrange::{Costs, Order, arrange};
use super::bounds::{GAIN_MIN, HELPERS_MAX, IN_FLIGHT_MAX};
use super::layers::LayerRange;
use crate::peer::PeerId;

/// What a model's parts cost. Layers are alike.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelCosts {
    /// Number of layers.
    pub layers: u32,
    /// One layer.
    pub layer: LayerCosts,
    /// The embedding.
    pub embedding: LayerCosts,
    /// The last norm, the head and the loss.
    pub head: LayerCosts,
    /// Bytes of a stream on the wire, one way: of a microbatch.
    pub stream_bytes: u64,
    /// Bytes that a stage takes whatever its layers: buffers.
    pub stage_bytes: u64,
    /// Predicted tokens of a batch.
    pub batch_tokens: u64,
    /// Layers at which stages of helpers are to begin and end where that costs little; none where it does not matter.
    pub borders: Vec<u32>,
}

/// What a part of a model costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerCosts {
    /// Operations of forward and backward of a microbatch.
    pub operations: f64,
    /// Bytes in memory: parameters, gradient, moments, frozen base.
    pub bytes: u64,
    /// Bytes of activations for each microbatch that is held.
    pub held_bytes: u64,
    /// Bytes that the captain keeps of it where another machine has it: its state, and what of that is on its way at any time.
    pub kept_bytes: u64,
    /// Bytes of it that are on their way at a helper which has it: all of its layers at once.
    pub copied_bytes: u64,
    /// Bytes that travel where the part goes to another machine: training state, and the base where it is not there.
    pub moved_bytes: u64,
}

/// A machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Bytes for stages.
    pub memory_bytes: u64,
    /// Operations a second that it reaches.
    pub operations_per_second: f64,
    /// Its link.
    pub link: Link,
}

/// The way between a machine and the captain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bytes a second that it sends; infinite where nothing limits it.
    pub up: f64,
    /// Bytes a second that it receives.
    pub down: f64,
    /// Seconds from one end to the other.
    pub latency: f64,
}

/// A cut of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// In the order of the model. The first and the last one are the captain's; where there is one alone, it is the whole model.
    pub stages: Vec<CutStage>,
    /// Predicted tokens a second.
    pub tokens_per_second: f64,
}

/// A stage of a cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutStage {
    /// Whose; `None` where it is the captain's.
    pub helper: Option<PeerId>,
    /// Its layers; of the captain's stages there may be none.
    pub layers: LayerRange,
    /// Whether it has the embedding and reads the data: the first one.
    pub embeds: bool,
    /// Whether it has the head and the losses: the last one.
    pub predicts: bool,
    /// Microbatches whose activations it holds, at most.
    pub in_flight: u32,
}

impl Cut {
    /// The stages of helpers, with their numbers.
    pub fn of_helpers(&self) -> impl Iterator<Item = (usize, PeerId, &CutStage)> {
        self.stages.iter().enumerate().filter_map(|(number, stage)| Some((number, stage.helper?, stage)))
    }

    /// Numbers of the captain's stages.
    pub fn of_captain(&self) -> impl Iterator<Item = usize> {
        (0..self.stages.len()).filter(|number| self.stages[*number].helper.is_none())
    }

    /// Whether a helper has a stage.
    pub fn has(&self, helper: PeerId) -> bool {
        self.of_helpers().any(|(_, member, _)| member == helper)
    }

    /// The numbers of all layers of a stage.
    pub fn layers(&self, stage: usize) -> Range<u32> {
        self.stages[stage].layers.numbers()
    }
}

/// For how many stages a hop between two of them counts, at most: twice two streams on two links that are as slow as the slowest
/// resource, and latencies.
const HOP_STAGES_MAX: u32 = 3;

/// The share of its speed that a team gives for stages that end at [`ModelCosts::borders`]. A guess: what is exchanged then need not
/// pass the captain's link, which its formula does not reckon with.
const BORDERS_WORTH: f64 = 0.1;

/// The cut with the most tokens a second over some of these helpers, in any order; at most [`HELPERS_MAX`] are looked at. A batch
/// has so many microbatches. One whose stages end at the model's borders is taken where it is at most a tenth slower; none over helpers
/// where the captain alone is as fast but for [`GAIN_MIN`].
///
/// # Errors
/// Where none fits: the bytes that one more helper would have to have, at least.
pub fn best(model: &ModelCosts, captain: &Place, helpers: &[(PeerId, Place)], microbatches: u32) -> Result<Cut, u64> {
    // Fewer helpers, and less that is held, where more gain nothing.
    let alone = alone(model, captain, microbatches);
    let least = alone.as_ref().map_or(0.0, |alone| alone.tokens_per_second * (1.0 + GAIN_MIN));
    let team = best_team(model, captain, helpers, microbatches).filter(|team| team.tokens_per_second > least);
    team.or(alone).ok_or_else(|| missing_bytes(model, captain, &helpers[..helpers.len().min(HELPERS_MAX)]))
}

fn faster(one: Cut, other: Cut) -> Cut {
    if other.tokens_per_second > one.tokens_per_second { other } else { one }
}

/// The same among cuts in which a helper has layers, though the captain alone be faster; `None` where none fits.
pub fn best_team(model: &ModelCosts, captain: &Place, helpers: &[(PeerId, Place)], microbatches: u32) -> Option<Cut> {
    let helpers = &helpers[..helpers.len().min(HELPERS_MAX)];
    let best = |at_borders| {
        let counts = 1..=helpers.len().min(model.layers as usize);
        let tried = counts.flat_map(|count| (1..=HOP_STAGES_MAX).map(move |hop_stages| (count, hop_stages)));
        let found = tried.filter_map(|(count, hop_stages)| {
            Team { model, captain, helpers, microbatches, count, hop_stages, at_borders }.best()
        });
        found.reduce(faster)
    };
    let fastest = best(false)?;
    let is_worth = |cut: &Cut| cut.tokens_per_second >= (1.0 - BORDERS_WORTH) * fastest.tokens_per_second;
    let at_borders = if model.borders.is_empty() { None } else { best(true) };
    Some(at_borders.filter(is_worth).unwrap_or(fastest))
}

/// Bytes that a cut takes on each machine: the captain's first, then those of helpers in the order of their stages.
pub fn bytes_of(model: &ModelCosts, cut: &Cut) -> Vec<u64> {
    let own: u32 = cut.of_captain().map(|stage| cut.stages[stage].layers.len()).sum();
    let of_helpers = cut.of_helpers().map(|(_, _, stage)| helper_bytes(model, stage.layers.len(), stage.in_flight));
    [captain_bytes(model, own, cut.stages[0].in_flight)].into_iter().chain(of_helpers).collect()
}

/// The whole model at the captain, where it fits.
pub fn alone(model: &ModelCosts, captain: &Place, microbatches: u32) -> Option<Cut> {
    let layers = LayerRange { first: 0, end: model.layers };
    let stage = CutStage { helper: None, layers, embeds: true, predicts: true, in_flight: 1 };
    let bytes = captain_bytes(model, model.layers, 1);
    let mut cut = Cut { stages: vec![stage], tokens_per_second: 0.0 };
    cut.tokens_per_second = tokens_per_second(model, captain, &cut, &[], microbatches);
    (bytes <= captain.memory_bytes).then_some(cut)
}

/// Predicted tokens a second of a cut whose helpers, in the order of their stages, are such machines.
pub fn tokens_per_second(model: &ModelCosts, captain: &Place, cut: &Cut, helpers: &[Place], microbatches: u32) -> f64 {
    let own: u32 = cut.of_captain().map(|stage| cut.stages[stage].layers.len()).sum();
    let costs = cut
        .of_helpers()
        .zip(helpers)
        .map(|((_, _, stage), place)| helper_costs(model, captain, place, stage.layers.len()));
    let own = Costs::of(captain_seconds(model, captain, own));
    let costs = costs.fold(own, Costs::and).and(captain_link(model, captain, helpers.len()));
    model.batch_tokens as f64 / batch_seconds(costs, cut.stages[0].in_flight, microbatches)
}

fn batch_seconds(costs: Costs, in_flight: u32, microbatches: u32) -> f64 {
    // Alone, one microbatch after the other is all there is.
    let between = costs.slowest.max(costs.total / f64::from(in_flight.max(1)));
    costs.total + f64::from(microbatches.max(1) - 1) * between
}

/// Of the captain's processor for a microbatch, with so many layers.
fn captain_seconds(model: &ModelCosts, captain: &Place, layers: u32) -> f64 {
    let ends = model.embedding.operations + model.head.operations;
    (ends + f64::from(layers) * model.layer.operations) / captain.operations_per_second
}

/// Of the captain's link, which bounds the pace; the way of each stream counts where its helper's does.
fn captain_link(model: &ModelCosts, captain: &Place, helpers: usize) -> Costs {
    let bytes = 2.0 * model.stream_bytes as f64 * helpers as f64;
    Costs { slowest: bytes / captain.link.up.min(captain.link.down), total: 0.0 }
}

/// Of a helper for a microbatch: its processor, and its link, which two streams pass in each direction.
fn helper_costs(model: &ModelCosts, captain: &Place, helper: &Place, layers: u32) -> Costs {
    let seconds = f64::from(layers) * model.layer.operations / helper.operations_per_second;
    let bytes = model.stream_bytes as f64;
    let (there, back) = (bytes / captain.link.up.min(helper.link.down), bytes / helper.link.up.min(captain.link.down));
    let latency = captain.link.latency + helper.link.latency;
    Costs { slowest: seconds.max(2.0 * there).max(2.0 * back), total: seconds + 2.0 * (there + back) + 4.0 * latency }
}

/// What the captain takes, with so many layers in the last one of its stages: for those, for what it keeps of the others, and for the
/// state of one of them that is on its way.
fn captain_bytes(model: &ModelCosts, layers: u32, in_flight: u32) -> u64 {
    let lent = u64::from(model.layers.saturating_sub(layers));
    let of_lent = (lent + u64::from(lent > 0)) * model.layer.kept_bytes;
    let of_layers = u64::from(layers) * (model.layer.bytes + model.layer.held_bytes);
    let of_ends = model.embedding.bytes + model.head.bytes + model.head.held_bytes;
    model.stage_bytes + of_layers + of_lent + of_ends + u64::from(in_flight) * model.embedding.held_bytes
}

/// What a helper takes, the state of one of its layers that is on its way among it.
fn helper_bytes(model: &ModelCosts, layers: u32, in_flight: u32) -> u64 {
    let LayerCosts { bytes, held_bytes, kept_bytes, copied_bytes, .. } = model.layer;
    model.stage_bytes + u64::from(layers) * (bytes + copied_bytes + u64::from(in_flight) * held_bytes) + kept_bytes
}

/// A search among the cuts over exactly so many helpers.
struct Team<'a> {
    model: &'a ModelCosts,
    captain: &'a Place,
    helpers: &'a [(PeerId, Place)],
    microbatches: u32,
    count: usize,
    hop_stages: u32,
    /// Whether stages of helpers begin and end at the model's borders alone.
    at_borders: bool,
}

impl Team<'_> {
    /// Microbatches that a stage holds which so many follow. Each counts for one, and so do the hops to it, as often as is tried.
    fn in_flight(&self, following: usize) -> u32 {
        let held = 1 + following as u32 * (1 + self.hop_stages);
        held.min(self.microbatches).clamp(1, IN_FLIGHT_MAX)
    }

    fn best(&self) -> Option<Cut> {
        let Team { model, captain, helpers, count, .. } = *self;
        let may_end_at = |layer: u32| !self.at_borders || model.borders.contains(&layer);
        let cost = |number: usize, place: usize, layers: Range<u32>| {
            if !may_end_at(layers.start) || !may_end_at(layers.end) {
                return None;
            }
            let (layers, place) = (layers.end - layers.start, &helpers[place].1);
            let fits = helper_bytes(model, layers, self.in_flight(count - number)) <= place.memory_bytes;
            fits.then(|| helper_costs(model, captain, place, layers))
        };
        let arrangements = arrange(model.layers, helpers.len(), count, Order::Any, cost);
        let in_flight = self.in_flight(count + 1);
        let (mut least, mut best) = (f64::INFINITY, None);
        for end in (count as u32..=model.layers).rev() {
            let own = model.layers - end;
            if captain_bytes(model, own, in_flight) > captain.memory_bytes {
                continue;
            }
            let own = Costs::of(captain_seconds(model, captain, own)).and(captain_link(model, captain, count));
            let measure = |costs: Costs| batch_seconds(costs.and(own), in_flight, self.microbatches);
            if let Some((seconds, stages)) = arrangements.best(end, measure)
                && seconds < least
            {
                (least, best) = (seconds, Some((end, stages)));
            }
        }
        let (end, stages) = best?;
        let of_helper = |(number, (place, layers)): (usize, (usize, Range<u32>))| CutStage {
            helper: Some(helpers[place].0),
            layers: LayerRange { first: layers.start, end: layers.end },
            embeds: false,
            predicts: false,
            in_flight: self.in_flight(count - number),
        };
        let own = |first, end, embeds| {
            let in_flight = if embeds { in_flight } else { 1 };
            CutStage { helper: None, layers: LayerRange { first, end }, embeds, predicts: !embeds, in_flight }
        };
        let inner = stages.into_iter().enumerate().map(of_helper);
        let stages = [own(0, 0, true)].into_iter().chain(inner).chain([own(end, model.layers, false)]).collect();
        Some(Cut { stages, tokens_per_second: model.batch_tokens as f64 / least })
    }
}

/// What one more helper would have to have, at least, with the layers that fit nowhere.
fn missing_bytes(model: &ModelCosts, captain: &Place, helpers: &[(PeerId, Place)]) -> u64 {
    let held = |following: usize| 1 + 2 * following as u32;
    let most = |fits: &dyn Fn(u32) -> bool| (0..=model.layers).rev().find(|layers| fits(*layers)).unwrap_or(0);
    let at_captain = most(&|layers| captain_bytes(model, layers, held(helpers.len() + 2)) <= captain.memory_bytes);
    let at_helpers =
        helpers.iter().map(|(_, place)| most(&|layers| helper_bytes(model, layers, held(1)) <= place.memory_bytes));
    let left = model.layers.saturating_sub(at_captain + at_helpers.sum::<u32>()).max(1);
    helper_bytes(model, left, held(1))
}

#[cfg(test)]
mod tests;
