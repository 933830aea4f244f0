//! Hosts that deceive their peers.
//!
//! A liar's node runs the honest code, so that its words fit each other: the protocol's own digests cannot tell. What is
//! false is the model that it shows, consistently within an exchange, or single words on their way out.

use std::collections::VecDeque;

use murmur_protocol::bulk::Snapshot;
use murmur_protocol::random::{Generator, RngExt, stream};
use murmur_protocol::{Message, Misbehaviour, Payload, PeerId, TransferHeader};

use crate::scenario::{HostIndex, Lie};

/// A wrong norm is this many times the true one.
const NORM_FACTOR: f32 = 10.0;

/// Noise reaches this far, in each coordinate: several times what models of the quadratic hold.
const NOISE: f32 = 3.0;

/// A noisy model is given away as so many steps old: a check allows for what an old one lacks, and no honest pace is odd
/// within a thousand.
const CLAIMED_AGE: f64 = 900.0;

/// A stealthy shift is this share of the clip norm: below it, so that nothing is clipped.
const STEALTH_SHARE: f64 = 0.8;

/// Declared by those that forge their progress: just within the range of the wire format, which ends at 10⁹ steps.
const FORGED_PROGRESS: f64 = 9e8;
/// Far beyond any machine, and finite.
const FORGED_WEIGHT: f32 = 1e30;

/// Old words and payloads that a replaying host keeps.
const KEPT_MAX: usize = 32;

/// Share of its words after which a replaying host repeats something.
const REPLAY_SHARE: f64 = 0.3;

/// Share of its words that arrive as garbage, of a host that sends such.
const GARBAGE_SHARE: f64 = 0.05;

/// Share of the payloads in which a bit falls over, of a host whose memory fails.
const BIT_FLIP_SHARE: f64 = 0.3;

/// Something said before.
#[derive(Clone, Debug)]
pub(crate) enum Old {
    Words(Message),
    Bulk(TransferHeader, Payload),
}

/// One deceiving host.
#[derive(Debug)]
pub(crate) struct Liar {
    lie: Lie,
    random: Generator,
    /// Of length 1: where a stealthy shift points.
    direction: Vec<f32>,
    /// The last clip norm of an exchange.
    clip: f64,
    kept: VecDeque<(PeerId, Old)>,
}

impl Liar {
    pub(crate) fn new(lie: Lie, seed: u64, host: HostIndex, parameters: usize) -> Liar {
        let mut random = stream(seed, "simulated liar", &[&host.to_le_bytes()]);
        let mut direction: Vec<f32> = (0..parameters).map(|_| random.random_range(-1.0..1.0)).collect();
        let length = direction.iter().map(|value| value * value).sum::<f32>().sqrt();
        direction.iter_mut().for_each(|value| *value /= length);
        Liar { lie, random, direction, clip: 0.0, kept: VecDeque::new() }
    }

    /// What its exchanges are clipped to.
    pub(crate) fn learn(&mut self, clip: f64) {
        self.clip = clip;
    }

    /// What it says, instead of the truth.
    pub(crate) fn says(&self, mut message: Message) -> Message {
        if self.lie == Lie::ForgedProgress
            && let Message::Propose(murmur_protocol::message::Propose { standing, .. })
            | Message::Accept(murmur_protocol::message::Accept { standing, .. }) = &mut message
        {
            (standing.progress, standing.weight) = (FORGED_PROGRESS, FORGED_WEIGHT);
        }
        message
    }

    /// What it sends, instead of the truth. (Codes are false already where their model was.)
    pub(crate) fn sends(&mut self, mut header: TransferHeader, payload: Payload) -> (TransferHeader, Payload) {
        if self.lie == Lie::BitFlips {
            return (header, self.flips_a_bit(payload));
        }
        let TransferHeader::State { progress, .. } = &mut header else { return (header, payload) };
        if self.lie == Lie::ForgedProgress {
            *progress = FORGED_PROGRESS;
        }
        if self.lie == Lie::Noise {
            *progress = (*progress - CLAIMED_AGE).max(0.0);
        }
        let state = Snapshot::from_payload(&payload, payload.len() / 4);
        let payload = state.map_or(payload, |state| self.shows(&state).to_payload());
        (header, payload)
    }

    /// Whether it keeps this to itself, and believes to have sent it.
    pub(crate) fn withholds(&self, header: &TransferHeader) -> bool {
        let is_answer = matches!(header, TransferHeader::ReplyCodes { .. } | TransferHeader::Merged { .. });
        self.lie == Lie::Silent && is_answer
    }

    /// Now and then, what a driver says of its words instead of passing them on.
    pub(crate) fn garbles(&mut self) -> Option<Misbehaviour> {
        let is_garbage = self.lie == Lie::Garbage && self.random.random::<f64>() < GARBAGE_SHARE;
        is_garbage.then(|| Misbehaviour::Garbage("simulated".to_owned()))
    }

    fn flips_a_bit(&mut self, payload: Payload) -> Payload {
        if payload.is_empty() || self.random.random::<f64>() >= BIT_FLIP_SHARE {
            return payload;
        }
        let mut bytes = payload.bytes().to_vec();
        let at = self.random.random_range(0..bytes.len());
        bytes[at] ^= 1 << self.random.random_range(0..8);
        bytes.into()
    }

    /// Remembers what it has just sent; now and then returns something older to be sent again, and to whom.
    pub(crate) fn repeats(&mut self, peer: PeerId, sent: Old) -> Option<(PeerId, Old)> {
        if self.lie != Lie::Replay {
            return None;
        }
        let is_time = !self.kept.is_empty() && self.random.random::<f64>() < REPLAY_SHARE;
        let old = is_time.then(|| self.kept[self.random.random_range(0..self.kept.len())].clone());
        if self.kept.len() == KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back((peer, sent));
        let to_another = self.random.random::<bool>();
        old.map(|(to, old)| (if to_another { peer } else { to }, old))
    }

    /// The model that it shows, instead of the true one.
    pub(crate) fn shows(&mut self, truth: &Snapshot) -> Snapshot {
        let values = truth.values().iter().copied();
        let shift = (STEALTH_SHARE * self.clip) as f32;
        let falsified: Vec<f32> = match self.lie {
            Lie::WrongNorm => values.map(|value| NORM_FACTOR * value).collect(),
            Lie::SignFlip => values.map(|value| -value).collect(),
            Lie::Noise => values.map(|value| value + self.random.random_range(-NOISE..NOISE)).collect(),
            Lie::Stealth => values.zip(&self.direction).map(|(value, way)| value + shift * way).collect(),
            Lie::Replay | Lie::ForgedProgress | Lie::Garbage | Lie::BitFlips | Lie::Silent => return truth.clone(),
        };
        falsified.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stealthy_shift_stays_below_the_clip_norm() {
        let truth = Snapshot::from(vec![1.0; 100]);
        let mut liar = Liar::new(Lie::Stealth, 1, 0, 100);
        liar.learn(0.5);
        let shown = liar.shows(&truth);
        let squares = shown.values().iter().zip(truth.values()).map(|(one, other)| (one - other).powi(2));
        let length = squares.sum::<f32>().sqrt();
        assert!((0.35..0.45).contains(&length), "{length}");
    }
}
