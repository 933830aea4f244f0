//! A swarm at one moment, as a point of a plot.

use std::ops::Range;
use std::time::Duration;

/// A few numbers of the whole swarm.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// When, since the beginning.
    pub at: Duration,
    /// Hosts whose process runs.
    pub running: usize,
    /// Honest ones among them that have a model.
    pub with_model: usize,
    /// Mean of the trainers' objective over those.
    pub loss: f64,
    /// The worst of them.
    pub worst_loss: f64,
    /// Root of the mean squared Euclidean distance of their models from the mean.
    pub disagreement: f64,
    /// The largest of these distances.
    pub worst_disagreement: f64,
    /// Mean swarm progress of those, in steps.
    pub progress: f64,
    /// Steps of all trainers since the beginning.
    pub steps: u64,
    /// Connections, each counted at both of its ends.
    pub connected: usize,
    /// Running hosts without any connection.
    pub isolated: usize,
    /// Exchanges since the beginning that ended well, counted on both sides.
    pub exchanges_completed: u64,
    /// Sides of exchanges that began and gave up, since the beginning.
    pub failed_sides: u64,
    /// What all hosts have sent since the beginning.
    pub traffic: Traffic,
}

/// What a host has sent. Copies that the network makes or loses do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Control messages.
    pub control_messages: u64,
    /// Their encoded bytes, without framing.
    pub control_bytes: u64,
    /// Payloads.
    pub payloads: u64,
    /// Their bytes.
    pub payload_bytes: u64,
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        self.control_messages += other.control_messages;
        self.control_bytes += other.control_bytes;
        self.payloads += other.payloads;
        self.payload_bytes += other.payload_bytes;
    }
}

/// How far models lie from their mean.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spread {
    /// Root of the mean squared distance.
    pub(crate) rms: f64,
    /// The largest distance.
    pub(crate) worst: f64,
}

impl Spread {
    /// Each of the models with what of it counts: a parameter's mean is that of those who hold it.
    pub(crate) fn of(models: &[(&[f32], &[Range<usize>])]) -> Spread {
        let Some((first, _)) = models.first() else { return Spread::default() };
        let mut mean = vec![0.0f64; first.len()];
        let mut holders = vec![0u32; first.len()];
        for (model, held) in models {
            for range in *held {
                let values = mean[range.clone()].iter_mut().zip(&model[range.clone()]);
                values.for_each(|(mean, value)| *mean += f64::from(*value));
                holders[range.clone()].iter_mut().for_each(|holders| *holders += 1);
            }
        }
        mean.iter_mut().zip(&holders).for_each(|(mean, holders)| *mean /= f64::from(*holders));
        let squared = |(model, held): &(&[f32], &[Range<usize>])| {
            let values = held.iter().flat_map(|range| model[range.clone()].iter().zip(&mean[range.clone()]));
            values.map(|(value, mean)| (f64::from(*value) - mean).powi(2)).sum::<f64>()
        };
        let (sum, worst) = models.iter().map(squared).fold((0.0, 0.0), |(sum, worst), squared| {
            // Not `f64::max`, which hides a model that is not finite.
            (sum + squared, if squared > worst || squared.is_nan() { squared } else { worst })
        });
        Spread { rms: (sum / models.len() as f64).sqrt(), worst: worst.sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_about_the_mean() {
        let models: [&[f32]; 3] = [&[0.0, 1.0], &[0.0, 1.0], &[3.0, 1.0]];
        let whole = std::slice::from_ref(&(0..2));
        let spread = Spread::of(&models.map(|model| (model, whole)));
        assert!((spread.rms - 2f64.sqrt()).abs() < 1e-12 && (spread.worst - 2.0).abs() < 1e-12, "{spread:?}");
    }

    #[test]
    fn what_a_model_does_not_hold_is_not_looked_at() {
        let models: [&[f32]; 3] = [&[0.0, 1.0], &[4.0, f32::NAN], &[f32::NAN, 1.0]];
        let held = [0..2, 0..1, 1..2];
        let parts = models.into_iter().zip(&held).map(|(model, held)| (model, std::slice::from_ref(held)));
        let spread = Spread::of(&parts.collect::<Vec<_>>());
        assert!((spread.worst - 2.0).abs() < 1e-12 && (spread.rms - (8f64 / 3.0).sqrt()).abs() < 1e-12, "{spread:?}");
    }
}
