//! A member's part in a synchronous run: what it contributes to an all-reduce, what it makes of the sum, and the replica,
//! which is all that members have in common.
//!
//! Where gradients are averaged, a replica is the parameters and the optimizer's moments, and each step moves it. Where
//! models are averaged every H steps, it is the parameters at the last average and the outer momentum; own steps in between
//! move a model of this node alone, and the inner optimizer's moments stay its own (DiLoCo, Douillard et al., arXiv
//! 2311.08105).

use murmur_protocol::bulk::ChunkedValues;
use murmur_protocol::numerics::{mean, state_digest, weighed};
use murmur_protocol::{Payload, Snapshot};

use super::{BatchGradient, Engine, StepReport, TrainingError, check_finite};
use crate::local_progress::LocalProgress;
use crate::optimizer::Moments;
use crate::schedule::WarmUpAgain;

/// Digits of the optimizer's count of steps in a replica, of 16 bits each: a `f32` holds each exactly.
const COUNT_DIGITS: usize = 4;

impl Engine {
    /// [`state_digest`] of the replica's parameters: two members with one replica have one digest.
    ///
    /// # Errors
    /// When the device fails.
    pub fn replica_digest(&mut self) -> Result<u64, TrainingError> {
        self.keep_average()?;
        match &self.last_average {
            Some(average) => Ok(state_digest(average)),
            None => Ok(state_digest(&self.unless_others_lack(self.replica.parameters())?)),
        }
    }

    /// The replica, for another member.
    ///
    /// # Errors
    /// When the device fails.
    pub fn replica(&mut self) -> Result<Snapshot, TrainingError> {
        self.keep_average()?;
        if let Some(average) = &self.last_average {
            let momentum = self.outer.as_ref().map_or(&[][..], |outer| outer.momentum());
            return Ok(Snapshot::from([average, momentum].concat()));
        }
        let (moments, steps) = self.replica.moments()?;
        let digits: Vec<f32> = (0..COUNT_DIGITS).map(|digit| f32::from((steps >> (16 * digit)) as u16)).collect();
        let Moments { first, second, .. } = moments;
        let mut values = Vec::with_capacity(2 * first.len() + second.len() + COUNT_DIGITS);
        values.extend_from_slice(&self.replica.parameters()?);
        // Each copy goes once it is in its place: a replica is as large as the optimizer's state and the model.
        values.extend_from_slice(&first);
        drop(first);
        values.extend_from_slice(&second);
        drop(second);
        values.extend_from_slice(&digits);
        Ok(Snapshot::from(values))
    }

    /// Makes another member's replica this one's.
    ///
    /// # Errors
    /// When it is of another model or not finite; nothing has changed then.
    pub fn load_replica(&mut self, replica: &Payload) -> Result<(), TrainingError> {
        let parameters = self.layout().parameters();
        let seconds = self.replica.optimizer().seconds();
        let expected = match (self.averages_models(), &self.outer) {
            (true, None) => parameters,
            (true, Some(_)) => 2 * parameters,
            (false, _) => 2 * parameters + seconds + COUNT_DIGITS,
        };
        let actual = replica.len() / 4;
        if actual != expected {
            return Err(TrainingError::WrongLength { what: "a replica", expected, actual });
        }
        let chunks = std::slice::from_ref(replica);
        let values = ChunkedValues::new(chunks, expected).ok_or(TrainingError::NotFiniteValues("a replica"))?;
        self.stop_saving();
        let part = |start: usize, length: usize| {
            let mut part = vec![0.0; length];
            values.copy_to(start, &mut part);
            part
        };
        let model = part(0, parameters);
        self.replica.set_parameters(&model)?;
        self.local_progress = LocalProgress::new(&model);
        if !self.averages_models() {
            let mut moments = self.replica.optimizer().moments();
            moments.first = part(parameters, parameters);
            moments.second = part(2 * parameters, seconds);
            let digits = part(2 * parameters + seconds, COUNT_DIGITS);
            let steps = digits.iter().rev().fold(0, |steps, digit| steps << 16 | u64::from(*digit as u16));
            self.warm_up_again = WarmUpAgain::default();
            return self.replica.set_moments(moments, steps).map_err(TrainingError::from);
        }
        if let Some(outer) = &mut self.outer {
            outer.restore(model.clone(), part(parameters, parameters));
        }
        self.last_average = Some(model);
        // Moments that have seen nothing yet are to begin gently.
        if self.steps == 0 { self.reset_optimizer() } else { Ok(()) }
    }

    /// The gradient of the next batch as this member contributes it: of a table it is weighed by this member's rows, so that
    /// the mean over all members who are there is that over all their rows.
    ///
    /// # Errors
    /// When the device fails.
    pub fn contributed_gradient(&mut self) -> Result<BatchGradient, TrainingError> {
        let mut gradient = self.gradient_of_next_batch()?;
        gradient.values = self.weighed(gradient.values);
        Ok(gradient)
    }

    /// Where models are averaged, the one that own steps begin with is kept: to be called before the first of them.
    ///
    /// # Errors
    /// When the device fails.
    pub fn keep_average(&mut self) -> Result<(), TrainingError> {
        if self.averages_models() && self.last_average.is_none() {
            let average = match &self.outer {
                Some(outer) => outer.slow_weights().to_vec(),
                None => self.unless_others_lack(self.replica.parameters())?.into_owned(),
            };
            self.last_average = Some(average);
        }
        Ok(())
    }

    /// What this member contributes where models are averaged: its model; where slices are rounded, how far own steps have
    /// moved it from the last average, because that is small beside the model, and is rounded to what is small beside it. Of
    /// a table it is weighed by this member's rows (McMahan et al., arXiv 1602.05629).
    ///
    /// # Errors
    /// When the device fails.
    pub fn contributed_model(&mut self) -> Result<Vec<f32>, TrainingError> {
        self.keep_average()?;
        let mut values = self.unless_others_lack(self.replica.parameters())?.into_owned();
        if let Some(average) = self.last_average.as_ref().filter(|_| self.contributes_movement()) {
            values.iter_mut().zip(average).for_each(|(value, average)| *value -= average);
        }
        Ok(self.weighed(values))
    }

    /// A contribution with this member's weight, where members have weights.
    fn weighed(&self, values: Vec<f32>) -> Vec<f32> {
        let table = &self.manifest.table;
        match self.sampler.corpus().training_rows().filter(|_| table.weighs_members()) {
            Some(rows) => weighed(values, table.weight_of(rows) as f32),
            None => values,
        }
    }

    /// One step with the mean of several members' gradients, of which `sum` is the sum, at `progress` steps of the swarm.
    /// `tokens`: of this node's own batch.
    ///
    /// # Errors
    /// [`TrainingError::NotFinite`] when the step had to be skipped: then all members skip it.
    ///
    /// # Panics
    /// When the sum is of another model.
    pub fn step_with_sum(
        &mut self,
        sum: Snapshot,
        members: u32,
        (progress, tokens): (f64, usize),
    ) -> Result<StepReport, TrainingError> {
        // All members take the same step: that some began gently while they still exchanged in pairs counts for nothing.
        let learning_rate = self.learning_rate.at(progress);
        let mean = mean(sum, self.layout().parameters(), members);
        rayon::scope(|_| {
            self.replica.set_gradient(&mean)?;
            // The own loss decides nothing: all members are to do the same.
            self.advance(0.0, tokens, learning_rate)
        })
    }

    /// Takes up the mean of several members' models, of whose contributions `sum` is the sum, and takes the outer step where
    /// there is one.
    ///
    /// # Errors
    /// When the mean is not finite: then the model is the one of the last average again, at all members.
    ///
    /// # Panics
    /// When the sum is of another model.
    pub fn average_with_sum(&mut self, sum: Snapshot, members: u32) -> Result<(), TrainingError> {
        self.keep_average()?;
        let mut mean = mean(sum, self.layout().parameters(), members);
        if let Some(average) = self.last_average.as_ref().filter(|_| self.contributes_movement()) {
            mean.iter_mut().zip(average).for_each(|(value, before)| *value += before);
        }
        let verdict = check_finite("the mean of all models", &mean);
        let next = match (&verdict, &mut self.outer) {
            (Err(_), _) => self.last_average.clone().expect("kept where models are averaged"),
            (Ok(()), Some(outer)) => outer.advance(&mean).to_vec(),
            (Ok(()), None) => mean,
        };
        self.replica.set_parameters(&next)?;
        self.local_progress = LocalProgress::new(&next);
        self.last_average = Some(next);
        verdict
    }

    /// Whether the run averages models, and not gradients.
    fn averages_models(&self) -> bool {
        self.manifest.synchronous.is_on() && !self.manifest.synchronous.averages_gradients()
    }

    /// Whether a contribution is a movement, and not a model.
    fn contributes_movement(&self) -> bool {
        self.averages_models() && self.manifest.synchronous.codec().rounds()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use murmur_protocol::RunManifest;
    use murmur_protocol::collective::{Action, Slices};
    use murmur_protocol::manifest::{OptimizerKind, SynchronousSpec, Topology, TransformerModel};
    use murmur_protocol::numerics::{ReduceJob, ReduceStep, SliceCodec, reduce};

    use super::*;
    use crate::Corpus;

    fn manifest(every_steps: u32) -> RunManifest {
        let model =
            TransformerModel { layers: 1, width: 16, heads: 2, feed_forward: 24, context: 16, ..Default::default() };
        let synchronous = SynchronousSpec { topology: Topology::Ring, every_steps, ..SynchronousSpec::default() };
        RunManifest { model: model.into(), synchronous, ..RunManifest::default() }
    }

    fn engine(manifest: &RunManifest, node: u8) -> Engine {
        Engine::new(manifest, Corpus::grammar(), [node; 32], Device::Cpu).expect("room")
    }

    fn sum(vectors: &[Vec<f32>]) -> Snapshot {
        let add = |at: usize| vectors.iter().map(|vector| vector[at]).sum();
        Snapshot::from((0..vectors[0].len()).map(add).collect::<Vec<f32>>())
    }

    #[test]
    fn a_member_that_copies_a_replica_goes_on_with_the_same_bits() -> Result<(), TrainingError> {
        for kind in [OptimizerKind::AdamW, OptimizerKind::Muon] {
            let mut manifest = manifest(1);
            manifest.optimizer.kind = kind;
            let (mut one, mut other) = (engine(&manifest, 1), engine(&manifest, 2));
            for progress in 0..5 {
                let gradient = one.gradient_of_next_batch()?;
                one.step_with_sum(Snapshot::from(gradient.values), 1, (f64::from(progress), gradient.tokens))?;
            }
            assert_ne!(one.replica_digest()?, other.replica_digest()?);
            other.load_replica(&one.replica()?.to_payload())?;
            assert_eq!(one.replica_digest()?, other.replica_digest()?);
            for progress in 5..8 {
                let gradients = [one.gradient_of_next_batch()?.values, other.gradient_of_next_batch()?.values];
                one.step_with_sum(sum(&gradients), 2, (f64::from(progress), 1))?;
                other.step_with_sum(sum(&gradients), 2, (f64::from(progress), 1))?;
                assert_eq!(one.replica()?, other.replica()?, "{kind:?}");
            }
        }
        Ok(())
    }

    /// A joiner that came while members exchanged in pairs may be the first of those that average all at once.
    #[test]
    fn a_member_that_begins_gently_and_the_one_that_copies_it_take_the_same_steps() -> Result<(), TrainingError> {
        let mut manifest = manifest(1);
        manifest.schedule.warmup_steps = 20;
        let (mut joiner, mut other) = (engine(&manifest, 1), engine(&manifest, 2));
        let model = Snapshot::from(other.parameters()?).to_payload();
        joiner.load_state(&[model])?;
        joiner.step(100.0)?;
        assert!(joiner.warm_up_again.factor() < 1.0);
        other.load_replica(&joiner.replica()?.to_payload())?;
        for progress in [101.0, 102.0] {
            let gradients = [joiner.gradient_of_next_batch()?.values, other.gradient_of_next_batch()?.values];
            let reports = [&mut joiner, &mut other].map(|one| one.step_with_sum(sum(&gradients), 2, (progress, 1)));
            let [of_joiner, of_other] = reports;
            assert_eq!(of_joiner?.learning_rate, of_other?.learning_rate);
            assert_eq!(joiner.replica()?, other.replica()?);
        }
        Ok(())
    }

    #[test]
    fn a_member_saved_before_the_sum_is_there_contributes_the_same_again() -> Result<(), TrainingError> {
        let manifest = manifest(1);
        let (mut member, mut restarted) = (engine(&manifest, 1), engine(&manifest, 1));
        let first = member.contributed_gradient()?;
        member.step_with_sum(Snapshot::from(first.values), 1, (0.0, first.tokens))?;
        let pending = member.contributed_gradient()?;
        restarted.restore(member.save_before_batch()?)?;
        assert_eq!(restarted.contributed_gradient()?, pending);
        for one in [&mut member, &mut restarted] {
            one.step_with_sum(Snapshot::from(pending.values.clone()), 1, (1.0, pending.tokens))?;
        }
        assert_eq!(member.save()?, restarted.save()?);
        assert_eq!(member.contributed_gradient()?, restarted.contributed_gradient()?, "and then the next");
        Ok(())
    }

    #[test]
    fn models_that_are_averaged_are_one_and_the_mean_with_and_without_an_outer_step() -> Result<(), TrainingError> {
        for outer in [0.0, 0.7] {
            let mut manifest = manifest(3);
            manifest.gossip.outer_learning_rate = outer;
            let (mut one, mut other) = (engine(&manifest, 1), engine(&manifest, 2));
            for round in 0..3 {
                for step in 0..3 {
                    one.step(f64::from(3 * round + step))?;
                    other.step(f64::from(3 * round + step))?;
                }
                let models = [one.parameters()?, other.parameters()?];
                assert_ne!(models[0], models[1]);
                one.average_with_sum(sum(&models), 2)?;
                other.average_with_sum(sum(&models), 2)?;
                assert_eq!(one.replica()?, other.replica()?);
                let mean = mean(sum(&models), models[0].len(), 2);
                assert_eq!(one.parameters()? == mean, outer == 0.0);
            }
            let mut newcomer = engine(&manifest, 3);
            one.step(9.0)?;
            newcomer.load_replica(&one.replica()?.to_payload())?;
            assert_eq!(newcomer.replica_digest()?, other.replica_digest()?, "the average, and not what came after it");
        }
        Ok(())
    }

    /// An all-reduce between two members, one slice each, as their daemons carry it out.
    fn reduced_in_pairs(codec: SliceCodec, contributions: [Vec<f32>; 2], rests: &mut [Snapshot; 2]) -> [Snapshot; 2] {
        let length = contributions[0].len();
        let step = |step| reduce(ReduceJob { codec, step }).expect("values that fit");
        let mut place = 0;
        let mut members = contributions.map(|contribution| {
            let residual = std::mem::replace(&mut rests[place], Snapshot::from(Vec::new()));
            place += 1;
            step(ReduceStep::Begin { contribution: contribution.into(), residual }).accumulator
        });
        let lines = [(0, 0, Action::Add), (1, 1, Action::Add), (1, 0, Action::Replace), (0, 1, Action::Replace)];
        for (slice, from, action) in lines {
            let range = codec.elements(Slices { start: slice, end: slice + 1, of: 2 }, length);
            let written = step(ReduceStep::Write { accumulator: members[from].clone(), range: range.clone(), action });
            members[from] = written.accumulator;
            let (accumulator, received) = (members[1 - from].clone(), written.written.expect("slices"));
            members[1 - from] = step(ReduceStep::Absorb { accumulator, range, received, action }).accumulator;
        }
        *rests = members.clone().map(|member| member.residual);
        members.map(|member| member.sum)
    }

    /// Two members with rounded slices beside two that round nothing: one replica, and a model within the codec's bound.
    #[test]
    fn rounded_slices_leave_one_replica_near_the_one_without_rounding() -> Result<(), TrainingError> {
        for every_steps in [1, 3] {
            let mut ends = Vec::new();
            for slice_bits in [32, 16, 8] {
                let mut manifest = manifest(every_steps);
                manifest.synchronous.slice_bits = slice_bits;
                let codec = manifest.synchronous.codec();
                let mut members = [engine(&manifest, 1), engine(&manifest, 2)];
                let mut rests = [Snapshot::from(Vec::new()), Snapshot::from(Vec::new())];
                let begin = members[0].replica()?.to_payload();
                members[1].load_replica(&begin)?;
                for round in 0..12 {
                    let contribute = |member: &mut Engine| -> Result<Vec<f32>, TrainingError> {
                        if every_steps == 1 {
                            return Ok(member.gradient_of_next_batch()?.values);
                        }
                        member.keep_average()?;
                        for step in 0..every_steps {
                            member.step(f64::from(every_steps * round + step))?;
                        }
                        member.contributed_model()
                    };
                    let [one, other] = &mut members;
                    let contributions = [contribute(one)?, contribute(other)?];
                    let sums = reduced_in_pairs(codec, contributions, &mut rests);
                    for (member, sum) in members.iter_mut().zip(sums) {
                        match every_steps {
                            1 => drop(member.step_with_sum(sum, 2, (f64::from(round), 1))?),
                            _ => member.average_with_sum(sum, 2)?,
                        }
                    }
                    let [one, other] = &mut members;
                    assert_eq!(one.replica()?, other.replica()?, "{slice_bits} bits every {every_steps}");
                }
                ends.push(members[0].parameters()?);
            }
            let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>().sqrt();
            let first = engine(&manifest(every_steps), 1).parameters()?;
            let moved = norm(&mut ends[0].iter().zip(&first).map(|(one, other)| one - other));
            for (end, bound) in ends[1..].iter().zip([0.02, 0.1]) {
                let apart = norm(&mut ends[0].iter().zip(end).map(|(one, other)| one - other));
                assert!(apart > 0.0 && apart < bound * moved, "every {every_steps}: {apart} of {moved}");
            }
        }
        Ok(())
    }

    #[test]
    fn a_mean_that_is_no_number_moves_nobody() -> Result<(), TrainingError> {
        let mut gradients = engine(&manifest(1), 1);
        let before = gradients.replica()?;
        let odd = Snapshot::from(vec![f32::NAN; gradients.parameters()?.len()]);
        assert!(matches!(gradients.step_with_sum(odd.clone(), 2, (0.0, 1)), Err(TrainingError::NotFinite { .. })));
        assert_eq!(gradients.replica()?, before);
        let mut models = engine(&manifest(2), 1);
        let before = models.replica()?;
        models.step(0.0)?;
        assert!(models.average_with_sum(odd, 2).is_err());
        assert_eq!((models.replica()?, Snapshot::from(models.parameters()?)), (before.clone(), before));
        Ok(())
    }

    #[test]
    fn a_replica_of_another_kind_is_refused() -> Result<(), TrainingError> {
        let mut gradients = engine(&manifest(1), 1);
        let of_models = engine(&manifest(2), 1).replica()?.to_payload();
        assert!(matches!(gradients.load_replica(&of_models), Err(TrainingError::WrongLength { .. })));
        let mut odd = gradients.replica()?.into_values();
        odd[3] = f32::INFINITY;
        let odd = Snapshot::from(odd).to_payload();
        assert!(matches!(gradients.load_replica(&odd), Err(TrainingError::NotFiniteValues(_))));
        Ok(())
    }
}
