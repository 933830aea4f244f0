//! Which machine gets which layers: a pure function of measured speeds, memory and links.

use std::ops::Range;

use super::message::LayerRange;
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
    /// The whole model at the captain.
    pub fn alone(layers: u32, tokens_per_second: f64) -> Cut {
        let layers = LayerRange { first: 0, end: layers };
        let stage = CutStage { helper: None, layers, embeds: true, predicts: true, in_flight: 1 };
        Cut { stages: vec![stage], tokens_per_second }
    }

    /// The stages of helpers, with their numbers.
    pub fn of_helpers(&self) -> impl Iterator<Item = (usize, PeerId, &CutStage)> {
        self.stages.iter().enumerate().filter_map(|(number, stage)| Some((number, stage.helper?, stage)))
    }

    /// Numbers of the captain's stages.
    pub fn of_captain(&self) -> impl Iterator<Item = usize> {
        (0..self.stages.len()).filter(|number| self.stages[*number].helper.is_none())
    }

    /// The numbers of all layers of a stage.
    pub fn layers(&self, stage: usize) -> Range<u32> {
        self.stages[stage].layers.numbers()
    }
}
