//! The engine's whole state: taken over from peers, saved, and restored.

use std::ops::Range;

use murmur_protocol::bulk::ChunkedValues;
use murmur_protocol::manifest::OptimizerSpec;
use murmur_protocol::{ModelLayout, Payload};

use super::{Engine, TrainingError, check_finite, check_length};
use crate::data::DataPosition;
use crate::local_progress::LocalProgress;
use crate::optimizer::{CodedMoments, MomentLengths, Moments, Optimizer, Rule};
use crate::replica::Replica;
use crate::schedule::WarmUpAgain;

/// Everything that resuming needs, as plain values. All vectors are flat in the order of the layout,
/// and those without another length have one value per parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineState {
    /// θ.
    pub parameters: Vec<f32>,
    /// AdamW's running mean of the gradient, or Muon's momentum.
    pub first_moment: Vec<f32>,
    /// AdamW's running mean of the gradient's square, of the tensors that AdamW steps, in the order of the layout: see
    /// [`second_moments`](crate::optimizer::second_moments).
    pub second_moment: Vec<f32>,
    /// Where the second moment is matched to the batch.
    pub gradient_average: Option<GradientAverage>,
    /// The same three of the tensors whose moments are kept in 8 bits; then those above have the others' alone. Empty where all are
    /// in 32.
    pub coded_moments: CodedMoments,
    /// φ, with the outer momentum on.
    pub slow_weights: Option<Vec<f32>>,
    /// u, with the outer momentum on.
    pub outer_momentum: Option<Vec<f32>>,
    /// Steps and positions.
    pub counters: Counters,
}

impl EngineState {
    /// The same state with every vector in the order of `layout`, from that of its tensors' names.
    ///
    /// # Panics
    /// When the lengths are not those of the layout and the optimizer, all moments in 32 bits.
    pub fn from_order_of_names(self, layout: &ModelLayout, optimizer: &OptimizerSpec) -> EngineState {
        let (sorted, now) = (layout.by_name(), Optimizer::new(optimizer, layout));
        let before = Optimizer::new(optimizer, &sorted);
        let rule_before = |place: usize| {
            let name = &layout.tensors()[place].name;
            &before.tensors[sorted.position(name).expect("both have the same tensors")]
        };
        let of_all = |values: Vec<f32>| {
            assert_eq!(values.len(), layout.parameters(), "one value per parameter");
            (0..now.tensors.len()).flat_map(|place| values[rule_before(place).range.clone()].iter().copied()).collect()
        };
        let of_seconds = |values: Vec<f32>| {
            assert_eq!(values.len(), now.seconds(), "one value per parameter that AdamW steps");
            let ranges = (0..now.tensors.len()).filter_map(|place| match &rule_before(place).rule {
                Rule::AdamW { second, .. } => Some(second.clone()),
                Rule::Muon(_) => None,
            });
            ranges.flat_map(|range| values[range].iter().copied()).collect()
        };
        EngineState {
            parameters: of_all(self.parameters),
            first_moment: of_all(self.first_moment),
            second_moment: of_seconds(self.second_moment),
            gradient_average: (self.gradient_average)
                .map(|average| GradientAverage { values: of_seconds(average.values), ..average }),
            coded_moments: self.coded_moments,
            slow_weights: self.slow_weights.map(of_all),
            outer_momentum: self.outer_momentum.map(of_all),
            counters: self.counters,
        }
    }
}

/// The short average of gradients whose square AdamW's second moment averages: see
/// [`OptimizerSpec::match_batch`](murmur_protocol::manifest::OptimizerSpec::match_batch).
#[derive(Clone, Debug, PartialEq)]
pub struct GradientAverage {
    /// As many as second moments in 32 bits.
    pub values: Vec<f32>,
    /// How much of it is gradients rather than the zeros that it began with, 0 to 1.
    pub weight: f32,
}

/// The small part of an [`EngineState`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps that this engine has taken in all, skipped ones not counted.
    pub steps: u64,
    /// Steps since the optimizer's moments were zero.
    pub optimizer_steps: u64,
    /// Length of the ramp after a join, in own steps; 0: none.
    pub warm_up_again_steps: u64,
    /// Steps taken on that ramp.
    pub warm_up_again_taken: u64,
    /// Where the node is in its data.
    pub position: DataPosition,
}

impl Engine {
    /// Takes over a model from all chunks of peers' [`Selection::State`], or what of it is exchanged from here: replaces the parameters and
    /// the slow weights, forgets both momenta and warms up again.
    ///
    /// # Errors
    /// When the values are for another model or not finite; nothing has changed then.
    pub fn load_state(&mut self, chunks: &[Payload]) -> Result<(), TrainingError> {
        let held = self.held();
        let expected = held.iter().map(Range::len).sum();
        let actual = chunks.iter().map(Payload::len).sum::<usize>() / 4;
        if actual != expected {
            return Err(TrainingError::WrongLength { what: "a peer's state", expected, actual });
        }
        self.stop_saving();
        let state = ChunkedValues::new(chunks, expected).ok_or(TrainingError::NotFiniteValues("a peer's state"))?;
        self.replica.on_replaced();
        let local_progress = &mut self.local_progress;
        self.replica.edit_parameters(&mut |values| {
            let mut next = 0;
            for Range { start, end } in &held {
                state.copy_to(next, &mut values[*start..*end]);
                next += end - start;
            }
            *local_progress = LocalProgress::new(values);
        })?;
        if let Some(outer) = &mut self.outer {
            let mut slow_weights = vec![0.0; expected];
            state.copy_to(0, &mut slow_weights);
            outer.restart(slow_weights);
        }
        self.reset_optimizer()
    }

    /// Forgets the optimizer's moments and ramps the learning rate up over the next own steps.
    ///
    /// # Errors
    /// When the device fails.
    pub fn reset_optimizer(&mut self) -> Result<(), TrainingError> {
        // The old ones go before there are new ones.
        if let Some((_, moments, _)) = self.replica.resting_mut() {
            *moments = Moments::default();
        }
        let moments = self.replica.optimizer().moments();
        self.replica.set_moments(moments, 0)?;
        self.warm_up_again = WarmUpAgain::begin(&self.schedule);
        Ok(())
    }

    /// Everything that resuming needs.
    ///
    /// # Errors
    /// When the device fails.
    pub fn save(&mut self) -> Result<EngineState, TrainingError> {
        let (moments, optimizer_steps) = self.fetching(|replica| replica.moments())?;
        let counters = Counters { optimizer_steps, ..self.counters() };
        Ok(EngineState {
            parameters: self.parameters()?,
            first_moment: moments.first,
            second_moment: moments.second,
            gradient_average: (self.manifest.optimizer.match_batch)
                .then_some(GradientAverage { values: moments.average, weight: moments.average_weight }),
            coded_moments: moments.coded,
            slow_weights: self.outer.as_ref().map(|outer| outer.slow_weights().to_vec()),
            outer_momentum: self.outer.as_ref().map(|outer| outer.momentum().to_vec()),
            counters,
        })
    }

    /// Fetches what other machines have, for a state that [`Engine::begin_to_save`] hands over before the next step.
    ///
    /// # Errors
    /// When a machine is missing.
    pub fn gather(&mut self) -> Result<(), TrainingError> {
        self.fetching(|replica| replica.gather())
    }

    /// Parts that other machines exchange are fetched: what has moved those since the last time is not asked for.
    fn fetching<T>(
        &mut self,
        fetch: impl FnOnce(&mut dyn Replica) -> candle_core::Result<T>,
    ) -> Result<T, TrainingError> {
        let before = match self.holding().is_all() {
            true => None,
            false => Some(self.local_progress.sample(&self.replica.parameters()?)),
        };
        let fetched = fetch(&mut *self.replica);
        let fetched = self.unless_others_lack(fetched)?;
        if let Some(before) = before {
            self.local_progress.leave_out(&before, &self.replica.parameters()?);
        }
        Ok(fetched)
    }

    /// Where only another machine is missing, that is what is said.
    pub(super) fn unless_others_lack<T>(&self, read: candle_core::Result<T>) -> Result<T, TrainingError> {
        read.map_err(|error| self.replica.waits().map_or_else(|| error.into(), TrainingError::TeamWaits))
    }

    /// As they are now; of optimizer steps, 0 where they lie with the moments on another device.
    pub fn counters(&self) -> Counters {
        Counters {
            steps: self.steps,
            optimizer_steps: self.replica.steps_of_moments(),
            warm_up_again_steps: self.warm_up_again.steps,
            warm_up_again_taken: self.warm_up_again.taken,
            position: self.sampler.position(),
        }
    }

    /// Continues from a saved state, with the same bits as if it had never been interrupted (on the CPU).
    ///
    /// # Errors
    /// When the state is of another model or run, or not finite; nothing has changed then.
    pub fn restore(&mut self, state: EngineState) -> Result<(), TrainingError> {
        let EngineState { parameters, counters, slow_weights, outer_momentum, .. } = state;
        let average = state.gradient_average.unwrap_or(GradientAverage { values: Vec::new(), weight: 0.0 });
        let moments = Moments {
            first: state.first_moment,
            second: state.second_moment,
            average: average.values,
            average_weight: average.weight.clamp(0.0, 1.0),
            coded: state.coded_moments,
        };
        let outer = match (&self.outer, slow_weights, outer_momentum) {
            (None, None, None) => None,
            (Some(_), Some(slow_weights), Some(momentum)) => Some((slow_weights, momentum)),
            (None, _, _) => return Err(TrainingError::OtherOuterMomentum("has")),
            (Some(_), _, _) => return Err(TrainingError::OtherOuterMomentum("lacks")),
        };
        let (all, optimizer) = (self.layout().parameters(), self.replica.optimizer());
        let lengths = optimizer.lengths(!moments.coded.is_empty());
        let mut parts = vec![
            ("the saved model", &parameters, all),
            ("the saved first moment", &moments.first, lengths.first),
            ("the saved second moment", &moments.second, lengths.second),
            ("the saved average of gradients", &moments.average, lengths.average),
        ];
        if let Some((slow_weights, momentum)) = &outer {
            parts.extend([("the saved slow weights", slow_weights, all), ("the saved outer momentum", momentum, all)]);
        }
        for (what, values, expected) in parts {
            check_length(what, values.len(), expected)?;
            check_finite(what, values)?;
        }
        let coded = MomentLengths::of(&moments).coded.into_iter().zip(lengths.coded);
        coded
            .flat_map(|(found, expected)| found.into_iter().zip(expected))
            .try_for_each(|(actual, expected)| check_length("the saved codes of moments", actual, expected))?;
        if !moments.coded.is_finite() {
            return Err(TrainingError::NotFiniteValues("the saved codes of moments"));
        }
        let moments = optimizer.in_own_bits(moments);
        self.stop_saving();
        self.replica.set_parameters(&parameters)?;
        self.local_progress = LocalProgress::new(&parameters);
        self.replica.set_moments(moments, counters.optimizer_steps)?;
        if let (Some(place), Some((slow_weights, momentum))) = (&mut self.outer, outer) {
            place.restore(slow_weights, momentum);
        }
        self.warm_up_again = WarmUpAgain { steps: counters.warm_up_again_steps, taken: counters.warm_up_again_taken };
        self.sampler.seek(counters.position);
        self.steps = counters.steps;
        Ok(())
    }
}
