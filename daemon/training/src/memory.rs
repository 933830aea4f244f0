//! How much memory a run takes, by its sizes alone: to be known before anything is allocated.

mod offload;

use std::fmt;

use murmur_protocol::bounds::{LINKS_MAX, STATE_COPY_VALUES};
use murmur_protocol::manifest::{GossipKind, GossipSpec, ModelSpec, TransformerModel};
use murmur_protocol::{Fragment, Fragments, ModelLayout, RunManifest, TensorSpec};

use crate::data::ImageShape;
use crate::engine::options::{Precision, TrainingOptions};
use crate::engine::saving::bytes_in_pieces;
use crate::gpu;
use crate::model::lora::{lora_layout, lora_targets_length};
use crate::model::transformer::{held_layout, predicted_at_once, row_values, stage_layout};
use crate::model::{self, StageSpec, transformer_of};
use crate::ops::Kernels;
use crate::ops::base_weights::BLOCK;
use crate::ops::linear::{PANEL_ROWS_MIN, PANEL_VALUES};
use crate::optimizer::Optimizer;
use crate::replica::has_two_lanes;

pub use offload::OffloadEstimate;

/// Bytes of a value.
const VALUE: u64 = 4;

/// Rows of attention scores that a thread holds at a time, forward and backward.
const SCORE_ROWS: u64 = 2 * 64;

/// Values into which a thread's matrix products copy their factors: 2.5 MiB, measured.
const PACKED: u64 = 640 << 10;

/// Of a daemon whatever it trains, in bytes: its program, threads, and what the allocator and huge pages leave around pieces of
/// memory. Measured: 70 MB of daemons, 36 to 86 MB of programs with the engine alone.
const PROCESS: u64 = 75_000_000;

/// Where a stage predicts with the embedding's table and does not embed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    /// It has a copy: the embedding is on another device.
    Copied,
    /// It is held once, and counted with the embedding.
    Shared,
}

/// How a checkpoint is copied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Saved {
    /// All of it at once.
    Whole,
    /// Of a large model some tensors at a time.
    InPieces,
}

/// What training takes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// Of the model; with adapters, of the base as well.
    pub parameters: u64,
    /// Of the loss by these.
    pub gradient: u64,
    /// The optimizer's: two values for each parameter that AdamW steps, one for each that Muon does, one more for
    /// AdamW's where its second moment is matched to the batch, of 4 bytes or of most matrices of 1; and with the outer momentum on
    /// its two vectors.
    pub moments: u64,
    /// What the backward needs of the forward, by batch and context, and a step of Muon.
    pub activations: u64,
    /// For exchanges and for a checkpoint on its way to the disk; in the machine's memory in any case.
    pub copies: u64,
    /// What a process holds that trains nothing; in the machine's memory in any case.
    pub process: u64,
}

impl MemoryEstimate {
    /// For one device of a node of a run, computing as told with these kernels on so many threads.
    pub fn of(manifest: &RunManifest, options: &TrainingOptions, kernels: Kernels, threads: usize) -> MemoryEstimate {
        MemoryEstimate::of_part(manifest, options, (kernels, threads), None, Saved::InPieces)
    }

    /// The same where the checkpoint is copied at once: on a captain's GPU, or on several devices of which one is a GPU.
    pub fn saved_as_a_whole(
        manifest: &RunManifest,
        options: &TrainingOptions,
        kernels: Kernels,
        threads: usize,
    ) -> MemoryEstimate {
        MemoryEstimate::of_part(manifest, options, (kernels, threads), None, Saved::Whole)
    }

    /// As [`MemoryEstimate::of`] of one stage, which has so many microbatches under way at once.
    pub(crate) fn of_stage(
        manifest: &RunManifest,
        options: &TrainingOptions,
        (kernels, threads): (Kernels, usize),
        stage: &StageSpec,
        microbatches: usize,
        (table, saved): (Table, Saved),
    ) -> MemoryEstimate {
        let part = Some((stage, microbatches as u64, table));
        MemoryEstimate::of_part(manifest, options, (kernels, threads), part, saved)
    }

    fn of_part(
        manifest: &RunManifest,
        options: &TrainingOptions,
        (kernels, threads): (Kernels, usize),
        part: Option<(&StageSpec, u64, Table)>,
        saved: Saved,
    ) -> MemoryEstimate {
        let of_own = || match part {
            Some((stage, ..)) => stage_layout(transformer_of(manifest), stage),
            None => model::layout(&manifest.model),
        };
        // With the copy of a tied table.
        let of_base = || match part {
            Some((stage, _, Table::Copied)) => held_layout(transformer_of(manifest), stage),
            _ => of_own(),
        };
        let part = part.map(|(stage, passes, _)| (stage, passes));
        let of_trained = |base| if manifest.lora.is_on() { lora_layout(&base, &manifest.lora) } else { base };
        let layout = of_trained(of_own());
        let in_8_bits = options.keeps_8_bits(manifest, kernels == Kernels::Fused);
        let optimizer = Optimizer::new(&manifest.optimizer, &layout).with_moments(in_8_bits);
        let (trained, moments) =
            (layout.parameters() as u64, optimizer.own_lengths().bytes().div_ceil(VALUE as usize) as u64);
        let whole = of_base().parameters() as u64;
        let lora = manifest.lora.is_on();
        // Trained elsewhere: it has a gradient and no moments.
        let copied = if lora { 0 } else { whole - trained };
        // The frozen base, and what adapters are folded into it for, where they are.
        let targets = || lora_targets_length(&of_base(), &manifest.lora) as u64;
        let (beside, of_frozen) = match kernels {
            _ if !lora => (0, 0),
            Kernels::Fused => (stored_values(&of_base(), manifest.lora.base_bits), 0),
            Kernels::Cuda => {
                (gpu::frozen_bytes(&of_base(), options.precision.into(), &manifest.lora).div_ceil(4) as u64, 0)
            }
            Kernels::Composed => (whole + targets(), targets()),
        };
        let outer = if manifest.gossip.outer_learning_rate > 0.0 { 2 * trained } else { 0 };
        // A reference has two bytes a parameter.
        let links = if manifest.gossip.kind == GossipKind::Links { trained * LINKS_MAX as u64 / 2 } else { 0 };
        // A checkpoint on its way to the disk: parameters and moments, or those of some tensors.
        let goes_in_pieces = saved == Saved::InPieces && kernels == Kernels::Fused && !manifest.synchronous.is_on();
        let in_pieces = || bytes_in_pieces(&optimizer, (outer / trained.max(1)) as usize);
        let in_pieces = goes_in_pieces.then(in_pieces).flatten().map(|bytes| bytes as u64 / VALUE);
        let checkpoint = in_pieces.unwrap_or(trained + moments + outer);
        // Snapshots of an exchange that is begun and one that is answered; of both codes, the partner's and the correction, in the
        // first ones in 16 bits each; and what of the model is given to a joiner, one copy and the one before.
        let fragment = largest_fragment(&manifest.gossip, &layout);
        let given = 2 * trained.min(STATE_COPY_VALUES as u64);
        let in_pairs = 2 * fragment + 2 * (3 * fragment / 2) + given + links;
        let averages_gradients = manifest.synchronous.averages_gradients();
        // A contribution and the sum; where models are averaged, the last average.
        let kept = if averages_gradients { 2 * trained } else { 3 * trained };
        // The replica for a joiner, and a moment of a copy while it is made: more than slices on their way.
        let replica = 2 * trained + if averages_gradients { moments } else { outer };
        // What rounding has taken away: of the last operation, and of the one under way.
        let rests = if manifest.synchronous.codec().rounds() { 2 * trained } else { 0 };
        let at_once = kept + rests + replica;
        let copies = checkpoint
            + match (manifest.synchronous.is_on(), manifest.synchronous.auto) {
                (false, _) => in_pairs,
                (true, false) => at_once,
                // One after the other.
                (true, true) => in_pairs.max(at_once),
            };
        // A pipeline corrects a copy of all its parts, and brings a tied table and its gradient from one end to the other.
        let copies = if part.is_some() { copies + trained + copied } else { copies };
        let at_once = options.examples_at_once(&manifest.model, kernels) as u64;
        let sequences = u64::from(manifest.optimizer.batch_sequences).min(at_once);
        let on_gpu = kernels == Kernels::Cuda;
        let examples = manifest.optimizer.batch_sequences as usize;
        let has_lanes = manifest.model.reads_text() && kernels == Kernels::Fused && !options.recompute;
        let of_all = || of_trained(model::layout(&manifest.model)).parameters();
        let all_trained = if part.is_some() && has_lanes { of_all() } else { trained as usize };
        let lanes = if has_lanes && has_two_lanes(all_trained, examples, at_once as usize) { 2 } else { 1 };
        let activations = match &manifest.model {
            ModelSpec::Transformer(spec) if on_gpu => {
                let whole = StageSpec::whole(spec);
                let (stage, passes) = part.unwrap_or((&whole, 1));
                let part = (stage, passes as usize);
                let TrainingOptions { precision, recompute, .. } = *options;
                let rank = if lora { manifest.lora.rank as usize } else { 0 };
                gpu::activation_values(spec, part, sequences as usize, precision, (recompute, rank)) as u64
            }
            ModelSpec::Transformer(spec) => {
                let (batch, recompute) = ((sequences, lanes), options.recompute);
                transformer(spec, part, batch, recompute, kernels, threads as u64)
            }
            ModelSpec::Mlp(_) | ModelSpec::Cnn(_) => image_classifier(&manifest.model, sequences, kernels),
        };
        // Of a tied table that is trained, the rows of a batch's tokens once more.
        let embeds = part.is_none_or(|(stage, _)| stage.embeds);
        let rows_of_table = match (kernels, &manifest.model) {
            (Kernels::Fused | Kernels::Cuda, ModelSpec::Transformer(spec)) if spec.tied_head && embeds && !lora => {
                let tokens = examples as u64 * u64::from(spec.context);
                tokens.min(u64::from(spec.vocabulary)) * u64::from(spec.width)
            }
            _ => 0,
        };
        let is_decoded = lora && kernels == Kernels::Fused && manifest.lora.base_bits < 32;
        // Each thread keeps the place of what it has decoded, and any may compute a lane.
        let decoded = if is_decoded { lanes.max(threads as u64) * decoded_values(&of_base()) } else { 0 };
        let at_a_time = if kernels == Kernels::Fused { threads } else { 1 };
        let scratch = optimizer.scratch_values(at_a_time) as u64;
        // A GPU has the parameters in 16 bits as well, and a copy and a correction on their way; so has the machine's memory.
        let rounded = if on_gpu && options.precision == Precision::Bf16 { (trained + copied) / 2 } else { 0 };
        let under_way = if on_gpu { 2 * trained } else { 0 };
        let copies = copies + under_way;
        MemoryEstimate {
            parameters: VALUE * (trained + copied + beside + rounded + under_way),
            gradient: VALUE * (lanes * (trained + copied) + of_frozen),
            moments: VALUE * (moments + outer),
            activations: VALUE * (activations + scratch + decoded + rows_of_table),
            copies: VALUE * copies,
            process: PROCESS,
        }
    }

    /// What the device holds.
    pub fn on_device(&self) -> u64 {
        self.parameters + self.gradient + self.moments + self.activations
    }

    /// What the machine's memory holds in any case.
    pub fn on_machine(&self) -> u64 {
        self.copies + self.process
    }
}

impl fmt::Display for MemoryEstimate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = |bytes: u64| bytes.div_ceil(1_000_000);
        write!(
            formatter,
            "parameters {} MB, gradient {} MB, moments {} MB, activations {} MB, copies {} MB, process {} MB",
            megabytes(self.parameters),
            megabytes(self.gradient),
            megabytes(self.moments),
            megabytes(self.activations),
            megabytes(self.copies),
            megabytes(self.process)
        )
    }
}

/// Parameters of the largest fragment of a model.
fn largest_fragment(gossip: &GossipSpec, layout: &ModelLayout) -> u64 {
    let fragments = Fragments::of(gossip, layout);
    let count = fragments.count();
    let lengths = fragments.filled().map(|index| fragments.range(Fragment { index, count }).len());
    lengths.max().unwrap_or_default() as u64
}

/// Values of 32 bits that are as large as a base of this layout in so many: vectors stay as they are.
fn stored_values(base: &ModelLayout, bits: u32) -> u64 {
    let vectors: usize = base.tensors().iter().filter(|tensor| tensor.shape.len() < 2).map(TensorSpec::len).sum();
    let matrices = base.parameters() - vectors;
    let coded = match bits {
        8 => matrices.div_ceil(4) + matrices.div_ceil(2 * BLOCK),
        16 => matrices.div_ceil(2),
        _ => matrices,
    };
    (vectors + coded) as u64
}

/// Values that a thread holds of a base's matrix that was decoded, the largest one of this layout.
fn decoded_values(base: &ModelLayout) -> u64 {
    let panel = |tensor: &TensorSpec| match tensor.shape[..] {
        // Gate and up are multiplied with as one matrix.
        [outputs, inputs] => (PANEL_VALUES / inputs).max(PANEL_ROWS_MIN).min(2 * outputs) * inputs,
        _ => 0,
    };
    base.tensors().iter().map(panel).max().unwrap_or_default() as u64
}

/// Values of an image classifier's activations: what each layer reads and gives, and its gradient.
fn image_classifier(spec: &ModelSpec, images: u64, kernels: Kernels) -> u64 {
    let shape = ImageShape::of(spec);
    let (mut pixels, mut channels) = ((shape.height * shape.width) as u64, shape.channels as u64);
    if spec.inputs() > 0 {
        // Rows of a table instead.
        (pixels, channels) = (u64::from(spec.inputs()), 1);
    }
    let mut per_image = pixels * channels;
    let (convolutions, hidden): (&[u32], &[u32]) = match spec {
        ModelSpec::Transformer(_) => return 0,
        ModelSpec::Mlp(model) => (&[], &model.hidden),
        ModelSpec::Cnn(model) => (&model.convolutions, &model.hidden),
    };
    for outputs in convolutions {
        // Nine taps of each input for the product, and the output before pooling halves both sides.
        per_image += pixels * (9 * channels + 2 * u64::from(*outputs));
        (pixels, channels) = (pixels / 4, u64::from(*outputs));
    }
    per_image += pixels * channels + hidden.iter().map(|hidden| u64::from(*hidden)).sum::<u64>();
    let copies = if kernels == Kernels::Fused { 2 } else { 6 };
    copies * images * (per_image + u64::from(spec.classes()))
}

/// Values of a transformer's activations, or those of a stage that has so many microbatches under way.
fn transformer(
    spec: &TransformerModel,
    part: Option<(&StageSpec, u64)>,
    (sequences, lanes): (u64, u64),
    recompute: bool,
    kernels: Kernels,
    threads: u64,
) -> u64 {
    let whole = StageSpec::whole(spec);
    let (stage, under_way) = part.unwrap_or((&whole, 1));
    let (heads, context, vocabulary) = (u64::from(spec.heads), u64::from(spec.context), u64::from(spec.vocabulary));
    let rows = sequences * context;
    match kernels {
        Kernels::Fused => {
            // A stage computes one lane at a time.
            let (rows, lanes) = if part.is_some() { (rows / lanes, 1) } else { (rows, lanes) };
            let (streams, others) = row_values(spec, stage.layers.len(), under_way as usize, recompute);
            let at_once = predicted_at_once(spec.vocabulary as usize, (rows / lanes) as usize);
            let logits = lanes * vocabulary * at_once as u64;
            let logits = if stage.predicts { logits } else { 0 };
            rows * (streams + others) as u64 + logits + threads * (SCORE_ROWS * context + PACKED)
        }
        Kernels::Composed | Kernels::Cuda => {
            let (width, inner, layers) =
                (u64::from(spec.width), u64::from(spec.feed_forward), stage.layers.len() as u64);
            let (queries, keys) = (u64::from(spec.query_width()), u64::from(spec.key_width()));
            let (joint, raw) = (queries + 2 * keys, if spec.head_norm { queries + keys } else { 0 });
            // Every operation keeps its result and its gradient, attention tables of all pairs of positions: measured.
            let per_row = layers * (20 * width + 8 * queries + 5 * joint + 8 * raw + 10 * inner) + 10 * vocabulary;
            rows * per_row + layers * 8 * sequences * heads * context * context
        }
    }
}
