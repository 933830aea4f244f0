//! How the members of a run average at present, where they choose it themselves (`synchronous.auto`): in pairs, for which
//! nobody waits, or all at once, which learns more from each step (consensus control: Kong et al., ICML 2021).
//!
//! ```text
//! each member ──Costs──► all that it is connected to      what a step takes, what its line carries, whether models drift
//! the lowest of those that tell ──Scheme──► all           one decision for all, passed on by everybody
//! ```
//!
//! All at once is taken up where a step of all together is expected to take at most so many steps of one alone as it is
//! worth, and given up where it has turned out to take more. Both ways have a margin, and a choice that was
//! given up soon is tried again later and later. Members believe what others tell of themselves: such a run is for machines
//! that trust each other, as every synchronous run is.

use bincode::{Decode, Encode};

use crate::peer::PeerId;

/// Orders are numbered from 1 and stay below this.
const SERIAL_MAX: u64 = 1 << 62;

/// How members average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub enum Scheme {
    /// In pairs, while each trains by itself.
    #[default]
    Pairs,
    /// All at once: the gradients of each step, for which all wait.
    AllReduce,
}

/// What averaging costs a member, as it tells others.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode)]
pub struct Costs {
    /// Seconds of one of its steps, computing alone: above 0, at most 1e6.
    pub step_seconds: f32,
    /// Bytes a second that it can send, 0 where that is not known yet.
    pub uplink: f32,
    /// Seconds of the way to others and back, 0 where that is not known yet; at most 1e6.
    pub round_trip: f32,
    /// Whether its model drifts away from others' though it exchanges as often as it may.
    pub drifts: bool,
}

impl Costs {
    /// Whether the numbers are in their ranges.
    pub(crate) fn is_sound(&self) -> bool {
        let is_time = |seconds: f32| (0.0..=1e6).contains(&seconds);
        let knows_step = self.step_seconds > 0.0 && is_time(self.step_seconds);
        knows_step && is_time(self.round_trip) && (0.0..=1e15).contains(&self.uplink)
    }
}

/// What a member has decided for all, and why.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode)]
pub struct SchemeOrder {
    /// Of two orders the one with the larger number holds; of one number that of the larger id. Below 2^62.
    pub serial: u64,
    /// Who has decided.
    pub by: PeerId,
    /// What holds from now on.
    pub scheme: Scheme,
    /// What was compared.
    pub reason: Comparison,
}

/// A step of all together beside one alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Encode, Decode)]
pub struct Comparison {
    /// Members that were compared.
    pub members: u32,
    /// Seconds of a step of all: expected where it is to be taken up, measured where it is given up. Finite and not negative,
    /// as the other two.
    pub together: f32,
    /// Seconds of a step of one alone, their harmonic mean.
    pub alone: f32,
    /// So many steps alone is one of all worth.
    pub worth: f32,
}

impl SchemeOrder {
    /// Whether its numbers are in their ranges.
    pub(crate) fn is_sound(&self) -> bool {
        let Comparison { members: _, together, alone, worth } = self.reason;
        let is_amount = |amount: f32| amount.is_finite() && amount >= 0.0;
        self.serial < SERIAL_MAX && [together, alone, worth].into_iter().all(is_amount)
    }

    /// The larger one holds.
    pub(crate) fn key(&self) -> (u64, PeerId) {
        (self.serial, self.by)
    }
}

impl Comparison {
    /// Steps of one alone in the time of one of all.
    pub fn ratio(&self) -> f64 {
        f64::from(self.together) / f64::from(self.alone)
    }
}
