//! A model in pieces: contiguous runs of layers, each with flat vectors and a layout of its own, so that several devices
//! can hold one model. The whole model is the stage of all layers.

use std::ops::Range;

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::TransformerModel;

use super::Evaluation;

/// Which part of a transformer a stage is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageSpec {
    /// Its blocks, by their numbers in the whole model.
    pub layers: Range<u32>,
    /// Whether it reads tokens, with the embedding: the first one does. So may the last one, where the two are one: see
    /// [`StageSpec::is_parted`].
    pub embeds: bool,
    /// Whether it computes losses, with the last norm and the head: the last one does.
    pub predicts: bool,
}

impl StageSpec {
    /// All of the model.
    pub fn whole(spec: &TransformerModel) -> StageSpec {
        StageSpec { layers: 0..spec.layers, embeds: true, predicts: true }
    }

    /// Both ends of the model: the embedding, and from this layer on all others with the head.
    pub fn ends(spec: &TransformerModel, first: u32) -> StageSpec {
        StageSpec { layers: first..spec.layers, embeds: true, predicts: true }
    }

    /// Whether other stages are between its embedding and its layers. Such a stage has two forwards and two backwards: given no
    /// stream it embeds, given the gradient of what that gave it gives the embedding its own; else it is its layers. On one
    /// machine they have the parameters of both, so that a tied head reads the embedding's table.
    pub fn is_parted(&self) -> bool {
        self.embeds && self.layers.start > 0
    }

    /// Whether it predicts with the table of an embedding that another stage has (a tied head): with a copy of it.
    pub(crate) fn copies_table(&self, spec: &TransformerModel) -> bool {
        spec.tied_head && self.predicts && !self.embeds
    }

    /// The stages that begin at layer 0 and at each of `cuts`.
    ///
    /// # Panics
    /// When the cuts do not ascend, or lie outside of the model: that is a mistake of who cuts.
    pub fn cut(spec: &TransformerModel, cuts: &[u32]) -> Vec<StageSpec> {
        let firsts: Vec<u32> = std::iter::once(0).chain(cuts.iter().copied()).collect();
        let ends = cuts.iter().copied().chain([spec.layers]);
        let stage = |(first, end): (u32, u32)| {
            assert!(first < end && end <= spec.layers, "{cuts:?} of {} layers", spec.layers);
            StageSpec { layers: first..end, embeds: first == 0, predicts: end == spec.layers }
        };
        firsts.iter().copied().zip(ends).map(stage).collect()
    }
}

/// The transformer of a run whose model is cut into stages.
///
/// # Panics
/// When the model is of another kind: [`crate::why_not_cut`] says so before anything is cut.
pub(crate) fn transformer_of(manifest: &RunManifest) -> &TransformerModel {
    manifest.model.transformer().expect("only transformers are cut at their layers")
}

/// What a stage gives for a microbatch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Evaluated {
    /// The stream `[rows, width]` that the next one reads.
    Stream(Vec<f32>),
    /// The last one's answer.
    Evaluation(Evaluation),
}

/// What the backward of a microbatch gives beside the gradient of the weights.
#[derive(Debug, Default)]
pub(crate) struct BackwardOutput {
    /// The sum of the losses in nats, of a stage that predicts; else 0.
    pub loss: f64,
    /// The gradient of the stream that was read `[rows, width]`; none of a stage that reads tokens.
    pub to_input: Option<Vec<f32>>,
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::{AttentionBias, OptimizerKind, OptimizerSpec};

    use super::*;
    use crate::data::{Batch, TokenBatch};
    use crate::model::{Model, Task, Transformer, Write};
    use crate::ops::gradient_check::random_tokens;
    use crate::optimizer::{Moments, Optimizer, norm_of};

    /// What one stage has.
    struct Holder {
        model: Transformer,
        parameters: Vec<f32>,
        gradient: Vec<f32>,
        optimizer: Optimizer,
        moments: Moments,
    }

    fn holder(spec: &TransformerModel, stage: StageSpec, optimizer: &OptimizerSpec, recompute: bool) -> Holder {
        let mut model = Transformer::of_stage(spec, stage);
        model.set_recompute(recompute);
        let (parameters, optimizer) = (model.initial_parameters(1), Optimizer::new(optimizer, model.layout()));
        let moments = optimizer.moments();
        Holder { model, gradient: vec![f32::NAN; parameters.len()], parameters, optimizer, moments }
    }

    /// (parameters, the last gradient, norms and losses) of some steps of two microbatches, both forwards before both
    /// backwards where `overlaps`.
    fn trained(holders: &mut [Holder], batches: &[Batch], overlaps: bool) -> (Vec<f32>, Vec<f32>, Vec<f64>) {
        let mut numbers = Vec::new();
        for (steps, batch) in (1..).zip(batches) {
            let parts = [batch.part(0..2), batch.part(2..3)];
            let order = if overlaps {
                vec![(0, true), (1, true), (0, false), (1, false)]
            } else {
                vec![(0, true), (0, false), (1, true), (1, false)]
            };
            for (part, is_forward) in order {
                let tokens = parts[part].tokens().expect("tokens");
                let write = if part == 0 { Write::Replace } else { Write::Add };
                let task = Task::alone(1.0 / batch.predictions() as f32, write);
                let mut handed = None;
                if is_forward {
                    for Holder { model, parameters, .. } in &mut *holders {
                        handed = model.forward(parameters, tokens, handed, task.threads).expect("a forward");
                    }
                    assert!(handed.is_none());
                    continue;
                }
                for Holder { model, parameters, gradient, .. } in holders.iter_mut().rev() {
                    let output = model.backward(parameters, tokens, handed, &task, gradient).expect("a backward");
                    numbers.extend(model.stage.predicts.then_some(output.loss));
                    handed = output.to_input;
                }
                assert!(handed.is_none());
            }
            let squares = holders.iter().flat_map(|holder| holder.optimizer.squares(&holder.gradient));
            let norm = norm_of(&squares.collect::<Vec<_>>());
            numbers.push(norm);
            for Holder { parameters, gradient, optimizer, moments, .. } in &mut *holders {
                let factors = optimizer.factors(steps, norm, 0.01, &mut moments.average_weight);
                optimizer.step(factors, parameters, gradient, moments);
            }
        }
        let all = |values: fn(&Holder) -> &Vec<f32>| holders.iter().flat_map(values).copied().collect();
        (all(|holder| &holder.parameters), all(|holder| &holder.gradient), numbers)
    }

    /// The captain of a team, whose first forward embeds and whose second one is its layers, around a stage of another machine; or
    /// all of a model with a tied head on one: both with the same microbatches and orders.
    #[test]
    fn a_tied_table_has_the_same_bits_however_both_ends_are_interleaved() {
        let spec = TransformerModel {
            layers: 3,
            width: 16,
            heads: 2,
            feed_forward: 24,
            context: 12,
            tied_head: true,
            vocabulary: 40,
            ..Default::default()
        };
        let optimizer = OptimizerSpec::default();
        let tokens = |seed| random_tokens(12, 40, seed);
        let batches =
            [1, 2, 3].map(|seed| TokenBatch { inputs: tokens(seed), targets: tokens(seed + 9), sequences: 1 });
        let task = |number: usize| Task {
            is_last: number == 2,
            ..Task::alone(0.1, if number == 0 { Write::Replace } else { Write::Add })
        };
        let mut whole = holder(&spec, StageSpec::whole(&spec), &optimizer, false);
        for (number, batch) in batches.iter().enumerate() {
            let Holder { model, parameters, gradient, .. } = &mut whole;
            model.forward(parameters, batch, None, 1).expect("a forward");
            model.backward(parameters, batch, None, &task(number), gradient).expect("a backward");
        }
        // Numbers of microbatches whose losses come back, and of those whose gradient reaches the embedding, below zero.
        for order in [[1_i32, -1, 2, -2, 3, -3], [1, 2, 3, -1, -2, -3], [1, 2, -1, 3, -2, -3]] {
            let mut ends = holder(&spec, StageSpec::ends(&spec, 2), &optimizer, false);
            let mut other =
                holder(&spec, StageSpec { layers: 0..2, embeds: false, predicts: false }, &optimizer, false);
            let mut streams = Vec::new();
            // A batch that is given up leaves nothing.
            let given_up = Task { is_last: false, ..task(0) };
            let Holder { model, parameters, gradient, .. } = &mut ends;
            let stream = Some(vec![1.0; 12 * 16]);
            model.backward(parameters, &batches[1], stream, &given_up, gradient).expect("a backward");
            for batch in &batches {
                let Holder { model, parameters, .. } = &mut ends;
                let embedded = model.forward(parameters, batch, None, 1).expect("a forward");
                let middle = other.model.forward(&other.parameters, batch, embedded, 1).expect("a forward");
                assert!(model.forward(parameters, batch, middle, 1).expect("a forward").is_none());
            }
            for step in order {
                let number = step.unsigned_abs() as usize - 1;
                let (batch, task) = (&batches[number], task(number));
                let Holder { model, parameters, gradient, .. } = &mut ends;
                if step > 0 {
                    let output = model.backward(parameters, batch, None, &task, gradient).expect("a backward");
                    let Holder { model, parameters, gradient, .. } = &mut other;
                    let output = model.backward(parameters, batch, output.to_input, &task, gradient);
                    streams.push(output.expect("a backward").to_input);
                } else {
                    let stream = streams[number].take();
                    let output = model.backward(parameters, batch, stream, &task, gradient).expect("a backward");
                    assert_eq!((output.loss, output.to_input), (0.0, None));
                }
            }
            let (table, last) = ends.gradient.split_at(40 * 16);
            assert!([table, &other.gradient, last].concat() == whole.gradient, "{order:?}");
        }
    }

    #[test]
    fn any_cut_gives_the_same_bits_for_losses_gradients_norms_and_parameters() {
        let spec =
            TransformerModel { layers: 6, width: 16, heads: 2, feed_forward: 24, context: 12, ..Default::default() };
        let spec = TransformerModel { attention_bias: AttentionBias::All, head_norm: true, ..spec };
        let tokens = |seed| random_tokens(3 * 12, 256, seed);
        let batch = |seed| TokenBatch { inputs: tokens(seed), targets: tokens(seed + 50), sequences: 3 };
        let batches: Vec<Batch> = (0..4).map(|seed| Batch::Tokens(batch(seed))).collect();
        for kind in [OptimizerKind::AdamW, OptimizerKind::Muon] {
            // A norm that clips every step, so that one wrong bit of it is in every parameter.
            let optimizer = OptimizerSpec { kind, gradient_norm_max: 0.1, ..OptimizerSpec::default() };
            let run = |cuts: &[u32], recompute, overlaps| {
                let stages = StageSpec::cut(&spec, cuts).into_iter();
                let mut holders: Vec<_> = stages.map(|stage| holder(&spec, stage, &optimizer, recompute)).collect();
                trained(&mut holders, &batches, overlaps)
            };
            let expected = run(&[], false, false);
            assert!(expected.2.iter().all(|number| number.is_finite() && *number > 0.1));
            for cuts in [&[3][..], &[1, 5], &[1, 2, 3, 4, 5]] {
                for (recompute, overlaps) in [(false, false), (false, true), (true, true)] {
                    let found = run(cuts, recompute, overlaps);
                    assert!(found == expected, "{cuts:?} {recompute} {overlaps}: {:?} {:?}", found.2, expected.2);
                }
            }
        }
    }
}
