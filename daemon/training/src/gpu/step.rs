//! An optimizer's step of one tensor in a GPU's memory.

use candle_core::Result;
use murmur_protocol::manifest::OptimizerSpec;

use super::muon::{MuonMemory, Vectors};
use super::{AT_ONCE, Accelerator, Argument, Span, count, launch_for_each};
use crate::optimizer::{Rule, StepFactors};

/// What the steps of all tensors have in common.
pub(super) struct Stepping<'a> {
    pub(super) device: &'a dyn Accelerator,
    pub(super) spec: &'a OptimizerSpec,
    pub(super) factors: StepFactors,
    /// Where some matrices are stepped by it.
    pub(super) muon: Option<&'a MuonMemory>,
    /// Room for the sums of one tensor.
    pub(super) sums: Span,
}

/// Where a tensor lies, or a part of one that AdamW steps: it steps each value alone.
pub(super) struct Places {
    pub(super) values: Span,
    /// As products read them, where these are rounded.
    pub(super) rounded: Option<Span>,
    pub(super) gradient: Span,
    /// The first moment, or Muon's momentum.
    pub(super) first: Span,
    /// AdamW's.
    pub(super) second: Option<Span>,
    /// AdamW's, where the second moment is matched to the batch.
    pub(super) average: Option<Span>,
}

impl Stepping<'_> {
    /// A step by this rule, whose vectors are there.
    pub(super) fn step(&self, rule: &Rule, places: &Places) -> Result<()> {
        match (rule, places.second, self.muon) {
            (Rule::AdamW { decays, .. }, Some(second), _) => self.adamw(*decays, places, second),
            (Rule::Muon(shape), _, Some(memory)) => {
                let Places { values, gradient, first: momentum, .. } = *places;
                let vectors = Vectors { values, gradient, momentum };
                memory.step(self.device, &vectors, *shape, self.spec.muon_momentum, &self.factors, self.sums)?;
                let Some(rounded) = places.rounded else { return Ok(()) };
                let arguments = [values.into(), rounded.into(), count(values.values)];
                launch_for_each(self.device, "to_bf16", values.values, &arguments)
            }
            _ => unreachable!("what steps a tensor has the memory for it"),
        }
    }

    fn adamw(&self, decays: bool, places: &Places, second: Span) -> Result<()> {
        let (spec, factors, length) = (self.spec, self.factors.decaying(decays), places.values.values);
        let Places { values, gradient, first, .. } = *places;
        let (squared, unbias) = match places.average {
            Some(average) => {
                let decay = factors.average_decay;
                let scalars = [decay, (1.0 - decay) * factors.clip as f32];
                let arguments = [average.into(), gradient.into(), count(length)];
                let arguments: Vec<_> = arguments.into_iter().chain(scalars.map(Into::into)).collect();
                launch_for_each(self.device, "blend_gradients", length, &arguments)?;
                (average, f64::from(factors.unbias_average))
            }
            None => (gradient, factors.clip),
        };
        let new = [1.0 - spec.beta1, 1.0 - spec.beta2];
        let scalars = [factors.clip, unbias, spec.beta1, spec.beta2, new[0], new[1], factors.rate];
        let scalars = scalars.into_iter().chain([factors.keep, factors.unbias_second, spec.epsilon]);
        let vectors = [gradient, squared, first, second].map(Argument::from);
        let arguments: Vec<Argument> = ([values.into(), places.rounded.into()].into_iter().chain(vectors))
            .chain([count(length)])
            .chain(scalars.map(|value| Argument::Scalar(value as f32)))
            .collect();
        launch_for_each(self.device, "adamw", length.div_ceil(AT_ONCE), &arguments)
    }
}
