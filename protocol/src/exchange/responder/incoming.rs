//! An exchange that another member has started, from its proposal to the last word about it.

use std::time::Duration;

use super::super::averaging::{Averaging, Circumstances};
use super::super::outbound::Outbound;
use super::super::terms::Terms;
use super::super::timeout::TimeoutEstimator;
use crate::Payload;
use crate::bounds::CODES_WAIT_FACTOR;
use crate::effect::{TransferId, WorkerOrder};
use crate::fragments::Holding;
use crate::message::{Accept, ExchangeNumber, Message};
use crate::numerics::{Encoded, MergeRole, Reference};
use crate::outbox::{Outbox, Purpose};
use crate::peer::PeerId;
use crate::time::Time;

/// A reply is surely in time where there is time for so many: others may be on their way beside it. A guess.
const SURELY_TIMES: u32 = 4;

/// An exchange that another member has started.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) terms: Terms,
    /// Which fragments the starter holds.
    pub(super) holding: Holding,
    pub(super) accept: Accept,
    /// On a link: what both sides have, or once it has arrived the starter's new one.
    pub(super) reference: Option<Reference>,
    /// When it was accepted, as far as the starter's patience goes: an absence of this node's own is added.
    pub(super) since: Time,
    /// Until when the reply is to have arrived: the starter is to hear of the merge before it gives the exchange up.
    pub(super) reply_until: Time,
    /// When it is looked after next.
    pub(super) deadline: Time,
    /// The starter's codes, which may come at any time before the merge.
    pub(super) received: Option<Payload>,
    /// Our codes, once they are made; kept after the merge in case they get lost.
    pub(super) reply: Option<Outbound>,
    /// When those were made; an absence is added here too.
    pub(super) reply_began: Option<Time>,
    /// When those had arrived, or broke off, for the first time; an absence is added here too.
    pub(super) replied_at: Option<Time>,
    /// That we have merged.
    pub(super) news: Option<Outbound>,
    pub(super) stage: Stage,
}

/// How far it is.
#[derive(Debug)]
pub(super) enum Stage {
    /// Waits for the starter's scales.
    Expecting,
    /// Waits for the trainer; the starter's scales.
    TakingSnapshot(Payload),
    /// Waits for a worker.
    Encoding(Circumstances),
    /// Our codes, made with these scales, are on their way; waits for the starter's, and until ours have arrived.
    AwaitingCodes(Payload, Circumstances),
    /// Waits for a worker.
    Merging(Circumstances),
    /// Merged.
    Answered,
}

impl Incoming {
    pub(super) fn is_answered(&self) -> bool {
        matches!(self.stage, Stage::Answered)
    }

    /// Whether the starter's codes have not come: until then it may give the exchange up.
    pub(super) fn lacks_codes(&self) -> bool {
        self.received.is_none() && !matches!(self.stage, Stage::Merging(..) | Stage::Answered)
    }

    /// Whether trainer or worker have been ordered something. An exchange that is given up before they are done makes room
    /// for the next, and their queues are short.
    pub(super) fn is_at_work(&self) -> bool {
        matches!(self.stage, Stage::TakingSnapshot(_) | Stage::Encoding(_) | Stage::Merging(_))
    }

    /// Whether it only waits for the starter.
    pub(super) fn is_idle(&self) -> bool {
        match self.stage {
            Stage::Expecting => true,
            Stage::AwaitingCodes(..) => !self.sent().any(Outbound::is_on_its_way),
            _ => false,
        }
    }

    /// Until when it keeps its place, where it waits for the starter. How long a starter may take it says itself, and two that say
    /// nothing more, or break our codes off and ask for them again and again, would keep all others out.
    pub(super) fn keeps_place_until(&self, timeout: &TimeoutEstimator) -> Option<Time> {
        match (&self.stage, self.replied_at) {
            (Stage::Expecting, _) => Some(self.since + timeout.short_limit()),
            (Stage::AwaitingCodes(..), Some(replied_at)) => {
                // What is usual here says nothing of a slow line, and what has been until now does.
                let wait = (replied_at - self.since).saturating_mul(CODES_WAIT_FACTOR);
                Some(replied_at + wait.max(timeout.limit()))
            }
            // Ours are still on their way: who reads them slower than any line that exchanges are meant for gives way as well.
            (Stage::AwaitingCodes(..), None) => self.reply_began.map(|began| began + timeout.initial()),
            _ => None,
        }
    }

    /// This node was not there for so long.
    pub(super) fn on_absence(&mut self, absence: Duration) {
        self.since = self.since + absence;
        self.reply_began = self.reply_began.map(|at| at + absence);
        self.replied_at = self.replied_at.map(|at| at + absence);
    }

    /// A transfer has ended, perhaps one of ours.
    pub(super) fn on_transfer_ended(&mut self, now: Time, ended: TransferId, finished: bool) {
        self.sent_mut().for_each(|sent| sent.on_transfer_ended(ended, finished));
        if self.reply.as_ref().is_some_and(|reply| !reply.is_on_its_way()) {
            self.replied_at.get_or_insert(now);
        }
        self.forget_arrived();
    }

    /// Codes that have arrived and are merged are needed no more.
    pub(super) fn forget_arrived(&mut self) {
        if self.is_answered() {
            self.sent_mut().for_each(Outbound::forget_arrived);
        }
    }

    /// What the starter needs of us.
    pub(super) fn sent(&self) -> impl Iterator<Item = &Outbound> {
        self.reply.iter().chain(&self.news)
    }

    pub(super) fn sent_mut(&mut self) -> impl Iterator<Item = &mut Outbound> {
        self.reply.iter_mut().chain(&mut self.news)
    }

    /// Whether all that was sent has arrived.
    pub(super) fn has_arrived(&self) -> bool {
        self.sent().all(Outbound::has_arrived)
    }

    /// Merges once the starter's codes are here and ours are there, or will surely be in time. Where the starter would give the exchange up
    /// before it hears of the merge, behind what else is on its way out, nothing is merged: this side would move alone.
    pub(super) fn merge_once_complete(
        &mut self,
        now: Time,
        (peer, number): (PeerId, ExchangeNumber),
        averaging: &Averaging,
        out: &mut Outbox,
    ) {
        let (Stage::AwaitingCodes(scales, about), Some(reply)) = (&self.stage, &self.reply) else { return };
        let queue = averaging.cadence.sending_time(out.bytes_under_way());
        let is_in_time = |times: u32, queue: Duration| now + queue.saturating_mul(times) < self.reply_until;
        let is_heard = match reply.has_arrived() {
            true => is_in_time(1, queue.unwrap_or_default()),
            false => reply.is_on_its_way() && queue.is_some_and(|queue| is_in_time(SURELY_TIMES, queue)),
        };
        if !is_heard {
            return;
        }
        let Some(received) = self.received.take() else { return };
        let (scales, codes) = (scales.clone(), reply.payload().clone());
        let own = Encoded { scales, codes, reference: self.reference.take(), norm: about.norm };
        let grid = averaging.grid(self.terms.part);
        let job = self.terms.merge_job(MergeRole::Responder, about.parameters, own, received, grid);
        self.stage = Stage::Merging(*about);
        out.request(Purpose::ResponderMerge(peer, number), |request| WorkerOrder::Merge { request, job });
    }

    /// The starter asks once more: says and sends what may have been lost, of either side.
    pub(super) fn answer_again(&mut self, peer: PeerId, out: &mut Outbox) {
        if matches!(self.stage, Stage::Expecting) || self.lacks_codes() {
            out.send(peer, Message::Accept(self.accept.clone()));
        }
        self.sent_mut().for_each(|sent| sent.send_again(out));
    }
}
