//! Giving the model to joiners, a few chunks at a time.
//!
//! Joiners are sent a copy of the state, or of what they ask for where it is large, made at a step boundary and kept for a while:
//! a boundary may be a second away, and one that comes back for the next chunks should not wait for it again. Chunks travel in
//! parts that take about two seconds each on the joiner's line.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::bounds::*;
use crate::effect::{TrainerOrder, TransferId};
use crate::event::TrainingReport;
use crate::fragments::Holding;
use crate::message::{Chunks, Message, TransferHeader};
use crate::misbehaviour::Misbehaviour;
use crate::notice::Notice;
use crate::outbox::{Outbox, Purpose};
use crate::part::Selection;
use crate::peer::PeerId;
use crate::time::Time;
use crate::{Payload, Snapshot};

use super::chunking::Chunking;
use super::part_size::PartSize;

/// The sub-machine of a node that gives its model to joiners.
#[derive(Debug)]
pub(crate) struct Giving {
    chunking: Chunking,
    /// Of the model's layout.
    digest: [u8; 32],
    /// Joiners being served; at most [`STATE_TRANSFERS_MAX`].
    joiners: BTreeMap<PeerId, Given>,
    /// The last copy; kept for [`STATE_COPY_KEPT`] where nobody is served.
    copy: Option<Copy>,
    /// Values of the state of which the trainer has been asked for a copy.
    copying: Option<Range<usize>>,
    /// As many as are copied at once.
    copy_values: usize,
}

/// Some of the state, or all, at one step boundary.
#[derive(Clone, Debug)]
struct Copy {
    state: Payload,
    /// Which values of it.
    values: Range<usize>,
    /// Swarm progress, in steps.
    progress: f64,
    taken_at: Time,
    /// Own steps at that boundary.
    steps: u64,
}

impl Copy {
    /// Whether it is near enough to the model after so many own steps.
    fn is_fresh(&self, now: Time, steps: u64) -> bool {
        now < self.taken_at + STATE_COPY_KEPT && steps <= self.steps + STATE_COPY_STEPS
    }

    fn has(&self, values: &Range<usize>) -> bool {
        self.values.start <= values.start && values.end <= self.values.end
    }

    /// Those bytes; `None` where the trainer has handed over too little.
    fn bytes_of(&self, values: &Range<usize>) -> Option<Payload> {
        let place = |value: usize| Some(4 * value.checked_sub(self.values.start)?);
        self.state.slice(place(values.start)?..place(values.end)?)
    }
}

#[derive(Debug)]
struct Given {
    request: u64,
    /// Asked for.
    chunks: Chunks,
    /// Chunks that are still to be sent.
    unsent: Range<u32>,
    /// What they are of; `None` while they are to be of a new copy.
    source: Option<Copy>,
    /// Whether a part did not get through: nothing follows it.
    has_failed: bool,
    sent: Sent,
}

/// What is on its way to one joiner.
#[derive(Debug, Default)]
struct Sent {
    /// The oldest first, with its length in chunks, and when it was ordered; at most [`STATE_PARTS_SENT_MAX`].
    parts: VecDeque<(TransferId, f64, Time)>,
    /// When the last one was confirmed.
    confirmed_at: Time,
    /// How many chunks the next part has.
    size: PartSize,
}

impl Given {
    fn is_waiting(&self) -> bool {
        self.source.is_none() && !self.unsent.is_empty()
    }
}

impl Giving {
    /// `digest`: of the model's layout.
    pub(crate) fn new(chunking: Chunking, digest: [u8; 32]) -> Giving {
        let (joiners, copy_values) = (BTreeMap::new(), STATE_COPY_VALUES);
        Giving { chunking, digest, joiners, copy: None, copying: None, copy_values }
    }

    pub(crate) fn is_busy_with(&self, peer: PeerId) -> bool {
        self.joiners.contains_key(&peer)
    }

    /// `steps`: own steps so far; `None` where there is no model to give.
    ///
    /// A node that does not hold them refuses.
    ///
    /// # Errors
    /// When there are no such chunks, or too many are asked for.
    pub(crate) fn on_request(
        &mut self,
        now: Time,
        peer: PeerId,
        (request, chunks): (u64, Chunks),
        steps: Option<u64>,
        out: &mut Outbox,
    ) -> Result<(), Misbehaviour> {
        if !self.chunking.has(chunks) || chunks.count > STATE_CHUNKS_MAX {
            return Err(Misbehaviour::OutOfRange("chunks".into()));
        }
        if let Some(given) = self.joiners.get_mut(&peer).filter(|given| given.request == request) {
            // Repeated while it is being served, or somebody else sends the rest.
            given.unsent.end = given.unsent.end.min(chunks.first + chunks.count).max(given.unsent.start);
            self.free_place(peer, false, out);
            return Ok(());
        }
        let is_full = self.joiners.len() >= STATE_TRANSFERS_MAX && !self.joiners.contains_key(&peer);
        let Some(steps) = steps.filter(|_| !is_full && self.chunking.holds(chunks)) else {
            refuse(peer, request, out);
            return Ok(());
        };
        // What was asked for before and is not on its way yet, nobody waits for any more.
        let sent = self.joiners.remove(&peer).map(|given| given.sent).unwrap_or_default();
        let unsent = chunks.first..chunks.first + chunks.count;
        let values = self.chunking.span(unsent.clone());
        let source = self.copy.clone().filter(|copy| copy.is_fresh(now, steps) && copy.has(&values));
        self.joiners.insert(peer, Given { request, chunks, unsent, source, has_failed: false, sent });
        self.send_on(now, peer, out);
        self.free_place(peer, false, out);
        self.take_copy(out);
        Ok(())
    }

    pub(crate) fn on_snapshot(&mut self, now: Time, snapshot: &Snapshot, report: &TrainingReport, out: &mut Outbox) {
        let TrainingReport { progress, steps, .. } = *report;
        let Some(values) = self.copying.take() else { return };
        let copy = Copy { state: snapshot.to_payload(), values, progress, taken_at: now, steps };
        for peer in self.waiting() {
            let given = self.joiners.get_mut(&peer).expect("just listed");
            given.source = Some(&copy).filter(|copy| copy.has(&self.chunking.span(given.unsent.clone()))).cloned();
            self.send_on(now, peer, out);
            self.free_place(peer, false, out);
        }
        self.copy = Some(copy);
        self.take_copy(out);
    }

    /// The trainer could not make a copy; who waits for it asks again.
    pub(crate) fn on_snapshot_failed(&mut self) {
        self.copying = None;
        self.waiting().iter().for_each(|peer| self.give_up(*peer));
    }

    fn waiting(&self) -> Vec<PeerId> {
        self.joiners.iter().filter(|(_, given)| given.is_waiting()).map(|(peer, _)| *peer).collect()
    }

    pub(crate) fn on_transfer_ended(&mut self, now: Time, transfer: TransferId, finished: bool, out: &mut Outbox) {
        let place_of = |given: &Given| given.sent.parts.iter().position(|(other, ..)| *other == transfer);
        let found = self.joiners.iter_mut().find_map(|(peer, given)| Some((*peer, place_of(given)?, given)));
        let Some((peer, place, given)) = found else { return };
        if let Some((_, chunks, began)) = given.sent.parts.remove(place).filter(|_| finished) {
            // One after the other on the same line: this one had it since the one before was through.
            given.sent.size.on_confirmed(chunks, now - began.max(given.sent.confirmed_at));
            given.sent.confirmed_at = now;
        }
        if !finished && !given.is_waiting() {
            // The joiner is told when nothing is on its way any more, and asks elsewhere for all that is missing.
            given.unsent = 0..0;
            given.has_failed = true;
        }
        self.send_on(now, peer, out);
        self.free_place(peer, finished, out);
    }

    /// Somebody else may have the place of a joiner to whom nothing is on its way, nor to be sent. `has_arrived`: what was on its
    /// way last.
    fn free_place(&mut self, peer: PeerId, has_arrived: bool, out: &mut Outbox) {
        let Some(given) = self.joiners.get(&peer) else { return };
        if given.unsent.is_empty() && given.sent.parts.is_empty() {
            if given.has_failed {
                refuse(peer, given.request, out);
            } else if has_arrived {
                out.notice(Notice::StateSent { peer, chunks: given.chunks.count, of: self.chunking.held_count() });
            }
            self.joiners.remove(&peer);
        }
    }

    /// The joiner is gone.
    pub(crate) fn give_up(&mut self, peer: PeerId) {
        self.joiners.remove(&peer);
    }

    /// The node has another model now: what is still to be sent is of a new copy.
    pub(crate) fn on_model_replaced(&mut self, out: &mut Outbox) {
        self.copy = None;
        self.joiners.values_mut().for_each(|given| given.source = None);
        self.take_copy(out);
    }

    /// The node holds other fragments of the model now. Whoever is being served asks elsewhere for what is not on its way: it is
    /// told so, with what is on its way at last.
    pub(crate) fn on_holding_changed(&mut self, holding: Holding, out: &mut Outbox) {
        let all = 0..self.chunking.values();
        self.chunking.hold(holding);
        self.copy = None;
        // A copy of all that is under way is of what is held now, and one of some values is nobody's.
        let now = |copying| if copying == all { 0..self.chunking.values() } else { 0..0 };
        self.copying = self.copying.take().map(now);
        self.joiners.retain(|joiner, given| {
            (given.unsent, given.source, given.has_failed) = (0..0, None, true);
            let is_under_way = !given.sent.parts.is_empty();
            if !is_under_way {
                refuse(*joiner, given.request, out);
            }
            is_under_way
        });
    }

    /// Has what the first of those who wait asks for copied, and what follows, unless something is being copied.
    fn take_copy(&mut self, out: &mut Outbox) {
        let Some(given) = self.joiners.values().find(|given| given.is_waiting()).filter(|_| self.copying.is_none())
        else {
            return;
        };
        let (asked, all) = (self.chunking.span(given.unsent.clone()), self.chunking.values());
        let end = all.min(asked.end.max(asked.start + self.copy_values));
        let values = if all <= self.copy_values { 0..all } else { asked.start..end };
        let selection = match values == (0..all) {
            true => Selection::State,
            false => Selection::Values { first: values.start, end: values.end },
        };
        self.copying = Some(values);
        out.request(Purpose::StateSnapshot, |request| TrainerOrder::TakeSnapshot { request, selection });
    }

    /// When the copy is dropped, where nobody is being served.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.copy.as_ref().filter(|_| self.joiners.is_empty()).map(|copy| copy.taken_at + STATE_COPY_KEPT)
    }

    pub(crate) fn on_deadline(&mut self, now: Time) {
        if self.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.copy = None;
        }
    }

    fn send_on(&mut self, now: Time, peer: PeerId, out: &mut Outbox) {
        let Some(given) = self.joiners.get_mut(&peer) else { return };
        let Some(copy) = &given.source else { return };
        while given.sent.parts.len() < STATE_PARTS_SENT_MAX && !given.unsent.is_empty() {
            let count = given.sent.size.chunks().min(given.unsent.end - given.unsent.start);
            let chunk = given.unsent.start;
            given.unsent.start += count;
            let values = self.chunking.span(chunk..chunk + count);
            let Some(payload) = copy.bytes_of(&values) else {
                // A trainer that hands over too little has failed; the joiner asks elsewhere.
                (given.unsent, given.has_failed) = (0..0, true);
                break;
            };
            let (request, progress) = (given.request, copy.progress);
            let header = TransferHeader::State { request, chunk, progress, layout: self.digest };
            let length = self.chunking.length(values.len());
            given.sent.parts.push_back((out.transfer(peer, header, payload), length, now));
        }
    }
}

fn refuse(joiner: PeerId, request: u64, out: &mut Outbox) {
    let retry_after_ms = STATE_RETRY.as_millis() as u32;
    out.send(joiner, Message::RefuseState { request, retry_after_ms });
}

#[cfg(test)]
mod tests;
