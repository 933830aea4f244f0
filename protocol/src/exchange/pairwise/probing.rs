//! What exchanges that move nothing say of a copied model.

use std::time::Duration;

use super::Pairwise;
use crate::bounds::{AGED_SHARE, CHECKS_UNANSWERED_MAX, PROPOSED_BEFORE_STEP_ENDS, SPOT_CHECK_FACTOR};
use crate::exchange::outcome::{Probed, Way};
use crate::fragments::Holding;
use crate::outbox::Outbox;
use crate::peer::PeerId;
use crate::reputation::Reputation;
use crate::time::Time;

impl Pairwise {
    /// Asks one of `checkers` how far its model is from this one, in one fragment; `false` where nobody can be asked, or it is too
    /// early in a long step.
    pub(crate) fn probe(
        &mut self,
        now: Time,
        fragment: u16,
        checkers: &[(PeerId, Holding)],
        reputation: &Reputation,
        out: &mut Outbox,
    ) -> bool {
        // As with other exchanges: until the end of the step there is nothing to send, and the checker would keep a place.
        if !self.averaging.step_time.is_near_end(now, PROPOSED_BEFORE_STEP_ENDS) {
            return false;
        }
        let part = self.averaging.turns.part(fragment);
        self.starter.begin_anew();
        self.starter.start(now, (part, Way::Probe), (&self.averaging, reputation), checkers, out)
    }

    /// The model was copied in this time: a check, which brings half as many bytes, may take as long.
    pub(crate) fn on_copied(&mut self, taken: Duration) {
        self.averaging.timeout.allow_short(taken.min(self.averaging.timeout.ceiling()));
    }

    /// Whether a probe shows a model of this swarm.
    pub(crate) fn is_near(&self, probed: Probed) -> bool {
        let Probed { distance, norm, partner_clip, progress_difference } = probed;
        let near = SPOT_CHECK_FACTOR * partner_clip;
        // The donor's model has aged on its way. By how much it says itself, so that this must be plausible, and what is no
        // model of this run is not near at any age: it is at least its own length away.
        let rounds = progress_difference.abs() / self.averaging.cadence.interval();
        let allowed = near.max((near * (1.0 + rounds)).min(AGED_SHARE * norm));
        // The grid of a check comes from the copy itself and reaches 32 times its values, so a block beyond it is none of
        // this run's.
        let is_close = distance.is_some_and(|it| it <= allowed || partner_clip == 0.0);
        is_close && !self.averaging.is_progress_odd(progress_difference)
    }

    /// The clip norm to begin with, where enough members find the copied model near.
    pub(crate) fn believed_clip(&self, probed: Probed) -> f64 {
        probed.believed_clip(self.averaging.gossip.clip_factor)
    }

    /// How long unanswered probes are repeated.
    pub(crate) fn probe_timeout(&self) -> Duration {
        CHECKS_UNANSWERED_MAX * self.averaging.timeout.short_limit()
    }
}
