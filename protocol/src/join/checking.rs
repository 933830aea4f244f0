//! Whether a copied model is that of the swarm: before it is trained on, other members compare it with theirs.
//!
//! A check is an exchange that moves nothing. Each fragment of the model is checked once, so that no donor can hide a part
//! where nobody looks. One objection brings another check, two drop the copy. Who declines because it is busy is asked
//! again; where checks are not answered the copy is made once more from others, and believed with a notice after that.

use std::time::Duration;

use crate::bounds::*;
use crate::peer::PeerId;
use crate::time::Time;

/// Why a copied model is not checked, or not further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unchecked {
    /// No other member has a model to compare it with.
    NobodyElse,
    /// Members that were asked did not answer in time.
    Unanswered,
    /// Members objected, as they did to the copies before.
    Disputed,
}

/// A copied model under check.
#[derive(Debug)]
pub(super) struct Check {
    pub(super) donors: Vec<PeerId>,
    since: Time,
    /// Fragments that another member has found near its own.
    near: u16,
    /// The smallest limit that those have set.
    clip: Option<f64>,
    /// Checks without an answer.
    unanswered: u32,
    /// Who found it far from its own model: a liar may be among them, as among donors.
    objectors: Vec<PeerId>,
    /// Who has no model, or exchanges nothing for now.
    unable: Vec<PeerId>,
}

impl Check {
    pub(super) fn new(now: Time, donors: Vec<PeerId>) -> Check {
        let (objectors, unable) = (Vec::new(), Vec::new());
        Check { donors, since: now, near: 0, clip: None, unanswered: 0, objectors, unable }
    }

    /// The fragment to check now.
    pub(super) fn fragment(&self) -> u16 {
        self.near
    }

    /// Keeps those who may check the copy, be it that they have done so already.
    pub(super) fn retain_able(&self, peers: &mut Vec<PeerId>) {
        let is_out =
            |peer: &PeerId| [&self.donors, &self.objectors, &self.unable].iter().any(|list| list.contains(peer));
        peers.retain(|peer| !is_out(peer));
    }

    /// Whether no more members are asked.
    pub(super) fn is_over(&self) -> bool {
        self.unanswered >= CHECKS_UNANSWERED_MAX || self.objectors.len() >= OBJECTIONS_MAX
    }

    pub(super) fn on_unanswered(&mut self) {
        self.unanswered += 1;
    }

    /// A member is busy. Where that goes on for as long as `timeout`, it is no answer.
    pub(super) fn on_declined(&mut self, now: Time, timeout: Duration) {
        if now - self.since >= timeout {
            self.unanswered = CHECKS_UNANSWERED_MAX;
        }
    }

    pub(super) fn on_unable(&mut self, peer: PeerId) {
        if self.unable.len() < CONNECTIONS_MAX && !self.unable.contains(&peer) {
            self.unable.push(peer);
        }
    }

    /// Whether one of the two is alone with its model only a third can tell, so the first objection brings another check.
    pub(super) fn on_objection(&mut self, checker: PeerId) {
        self.objectors.push(checker);
    }

    /// A fragment is near that of a member that lets in `clip`. Returns the smallest limit so far, once that was the last
    /// of `fragments`.
    pub(super) fn on_near(&mut self, fragment: u16, clip: f64, fragments: u16) -> Option<f64> {
        if fragment != self.near {
            return None;
        }
        self.near += 1;
        let smallest = self.clip.map_or(clip, |least| least.min(clip));
        self.clip = Some(smallest);
        (self.near >= fragments).then_some(smallest)
    }

    /// Why it is over, or there is nobody to ask.
    pub(super) fn why(&self) -> Unchecked {
        match self.unanswered {
            _ if !self.objectors.is_empty() => Unchecked::Disputed,
            0 => Unchecked::NobodyElse,
            _ => Unchecked::Unanswered,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fragment_is_looked_at_before_a_copy_is_believed() {
        let mut check = Check::new(Time::ZERO, Vec::new());
        for fragment in 0..3 {
            assert_eq!(check.fragment(), fragment);
            assert_eq!(check.on_near(fragment, 5.0 - f64::from(fragment), 4), None);
            assert_eq!(check.on_near(fragment, 0.1, 4), None, "the same one again is no news");
        }
        assert_eq!(check.on_near(3, 9.0, 4), Some(3.0), "the smallest limit of those that count");
    }
}
