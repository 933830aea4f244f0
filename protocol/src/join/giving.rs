//! Giving the model to joiners, a few chunks at a time.
//!
//! Joiners are sent a copy of the state, or of what they ask for where it is large, made at a step boundary and kept for a while:
//! a boundary may be a second away, and one that comes back for the next chunks should not wait for it again. Chunks travel in
//! parts that take about two seconds each on the joiner's line.

use std::cmp::Reverse;
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
use crate::peer::{AddressRange, PeerId};
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
    /// Joiners being served, at most [`STATE_TRANSFERS_MAX`], and as many that have given way to others.
    joiners: BTreeMap<PeerId, Given>,
    /// The last copy; kept for [`STATE_COPY_KEPT`] where nobody is served.
    copy: Option<Copy>,
    /// Values of the state of which the trainer has been asked for a copy.
    copying: Option<Range<usize>>,
    /// As many as are copied at once.
    copy_values: usize,
    /// For whom some of a large state was copied in the last [`STATE_COPY_KEPT`].
    copied: BTreeMap<PeerId, Copied>,
}

/// What a joiner has of a copy of some of the state that was made for it.
#[derive(Debug)]
struct Copied {
    /// Until when no other is made for it.
    until: Time,
    /// Or until it has taken so many more chunks.
    untaken: f64,
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

    /// Those bytes; `None` where the trainer has handed over too little. `is_apart`: in memory of their own, so that they do not
    /// keep the copy.
    fn bytes_of(&self, values: &Range<usize>, is_apart: bool) -> Option<Payload> {
        let place = |value: usize| Some(4 * value.checked_sub(self.values.start)?);
        let bytes = self.state.slice(place(values.start)?..place(values.end)?)?;
        Some(if is_apart { bytes.bytes().to_vec().into() } else { bytes })
    }
}

#[derive(Debug)]
struct Given {
    request: u64,
    /// In which it is reached, where that is known.
    range: Option<AddressRange>,
    /// When it got its place.
    since: Time,
    /// Whether somebody else has it now: what is on its way still arrives.
    has_given_way: bool,
    /// The first that was asked for.
    first: u32,
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
        let (joiners, copied, copy_values) = (BTreeMap::new(), BTreeMap::new(), STATE_COPY_VALUES);
        Giving { chunking, digest, joiners, copy: None, copying: None, copy_values, copied }
    }

    pub(crate) fn is_busy_with(&self, peer: PeerId) -> bool {
        self.joiners.contains_key(&peer)
    }

    /// `range`: in which the peer is reached, where that is known. `steps`: own steps so far; `None` where there is no model to give.
    ///
    /// A node that does not hold them refuses.
    ///
    /// # Errors
    /// When there are no such chunks, or too many are asked for.
    pub(crate) fn on_request(
        &mut self,
        now: Time,
        (peer, range): (PeerId, Option<AddressRange>),
        (request, chunks): (u64, Chunks),
        steps: Option<u64>,
        out: &mut Outbox,
    ) -> Result<(), Misbehaviour> {
        if !self.chunking.has(chunks) || chunks.count > STATE_CHUNKS_MAX {
            return Err(Misbehaviour::OutOfRange("chunks".into()));
        }
        let is_served = |given: &&mut Given| given.request == request && !given.has_given_way;
        if let Some(given) = self.joiners.get_mut(&peer).filter(is_served) {
            // Repeated while it is being served, or somebody else sends the rest.
            given.unsent.end = given.unsent.end.min(chunks.first + chunks.count).max(given.unsent.start);
            self.free_place(peer, false, out);
            return Ok(());
        }
        let Some(steps) = steps.filter(|_| self.chunking.holds(chunks) && self.makes_room_for(now, (peer, range), out))
        else {
            refuse(peer, request, out);
            return Ok(());
        };
        // What was asked for before and is not on its way yet, nobody waits for any more.
        let before = self.joiners.remove(&peer);
        let since = before.as_ref().filter(|given| !given.has_given_way).map_or(now, |given| given.since);
        let sent = before.map(|given| given.sent).unwrap_or_default();
        let (first, unsent) = (chunks.first, chunks.first..chunks.first + chunks.count);
        let values = self.chunking.span(unsent.clone());
        let source = self.copy.clone().filter(|copy| copy.is_fresh(now, steps) && copy.has(&values));
        let (has_given_way, has_failed) = (false, false);
        let given = Given { request, range, since, has_given_way, first, unsent, source, has_failed, sent };
        self.joiners.insert(peer, given);
        self.send_on(now, peer, out);
        self.free_place(peer, false, out);
        self.take_copy(now, out);
        Ok(())
    }

    /// Whether there is a place for this peer. Where all are taken, one of the range of addresses that has more of them gives way, or
    /// of one that has as many and has had its turn: of those the slowest.
    fn makes_room_for(&mut self, now: Time, (peer, range): (PeerId, Option<AddressRange>), out: &mut Outbox) -> bool {
        let served = || self.joiners.iter().filter(|(_, given)| !given.has_given_way);
        if served().count() < STATE_TRANSFERS_MAX || served().any(|(joiner, _)| *joiner == peer) {
            return true;
        }
        if self.joiners.len() >= 2 * STATE_TRANSFERS_MAX && !self.joiners.contains_key(&peer) {
            return false;
        }
        // The newcomer counts as well: where it is one of many, its own range makes room.
        let places_of = |of| served().filter(|(_, given)| given.range == of).count() + usize::from(of == range);
        let places = places_of(range);
        let may_go = |given: &Given| {
            let places_of = places_of(given.range);
            places_of > places || (places_of == places && now - given.since >= STATE_TURN)
        };
        let candidates = served().filter(|(_, given)| may_go(given));
        let rank = |given: &Given| (Reverse(places_of(given.range)), given.sent.size.chunks(), given.since);
        let next = candidates.min_by_key(|(_, given)| rank(given)).map(|(joiner, _)| *joiner);
        let Some((joiner, given)) = next.and_then(|joiner| Some((joiner, self.joiners.get_mut(&joiner)?))) else {
            return false;
        };
        (given.unsent, given.source, given.has_given_way) = (0..0, None, true);
        refuse(joiner, given.request, out);
        self.free_place(joiner, false, out);
        true
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
        self.take_copy(now, out);
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
            if let Some(copied) = self.copied.get_mut(&peer) {
                copied.untaken -= chunks;
            }
        }
        if !finished && !given.is_waiting() {
            // The joiner is told when nothing is on its way any more, and asks elsewhere for all that is missing.
            given.unsent = 0..0;
            given.has_failed = true;
        }
        self.send_on(now, peer, out);
        self.free_place(peer, finished, out);
        self.take_copy(now, out);
    }

    /// Somebody else may have the place of a joiner to whom nothing is on its way, nor to be sent. `has_arrived`: what was on its
    /// way last.
    fn free_place(&mut self, peer: PeerId, has_arrived: bool, out: &mut Outbox) {
        let Some(given) = self.joiners.get(&peer) else { return };
        if given.unsent.is_empty() && given.sent.parts.is_empty() {
            if given.has_given_way {
                // It has been told so.
            } else if given.has_failed {
                refuse(peer, given.request, out);
            } else if has_arrived {
                let chunks = given.unsent.start - given.first;
                out.notice(Notice::StateSent { peer, chunks, of: self.chunking.held_count() });
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
        self.copied.clear();
        self.joiners.values_mut().for_each(|given| given.source = None);
        self.take_copy(out.now(), out);
    }

    /// The node holds other fragments of the model now. Whoever is being served asks elsewhere for what is not on its way: it is
    /// told so, with what is on its way at last.
    pub(crate) fn on_holding_changed(&mut self, holding: Holding, out: &mut Outbox) {
        let all = 0..self.chunking.values();
        self.chunking.hold(holding);
        self.copy = None;
        self.copied.clear();
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
    fn take_copy(&mut self, now: Time, out: &mut Outbox) {
        self.copied.retain(|_, copied| now < copied.until && copied.untaken > 0.0);
        let mut waiting =
            self.joiners.iter().filter(|(peer, given)| given.is_waiting() && !self.copied.contains_key(peer));
        let Some((peer, given)) = waiting.next().filter(|_| self.copying.is_none()) else { return };
        let (asked, all) = (self.chunking.span(given.unsent.clone()), self.chunking.values());
        let end = all.min(asked.end.max(asked.start + self.copy_values));
        let values = if all <= self.copy_values { 0..all } else { asked.start..end };
        let selection = match values == (0..all) {
            true => Selection::State,
            false => {
                // Who asks for chunks that are far apart would have training stand still for each of them.
                let untaken = self.chunking.length(values.len()) / 2.0;
                self.copied.insert(*peer, Copied { until: now + STATE_COPY_KEPT, untaken });
                Selection::Values { first: values.start, end: values.end }
            }
        };
        self.copying = Some(values);
        out.request(Purpose::StateSnapshot, |request| TrainerOrder::TakeSnapshot { request, selection });
    }

    /// When the copy is dropped, where nobody is being served, or the next one may be made for somebody who waits.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let dropped_at =
            self.copy.as_ref().filter(|_| self.joiners.is_empty()).map(|copy| copy.taken_at + STATE_COPY_KEPT);
        let waiting = self.joiners.iter().filter(|(_, given)| given.is_waiting() && self.copying.is_none());
        let copied_at = waiting.filter_map(|(peer, _)| self.copied.get(peer)).map(|copied| copied.until);
        copied_at.chain(dropped_at).min()
    }

    pub(crate) fn on_deadline(&mut self, now: Time, out: &mut Outbox) {
        if self.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.copy.take_if(|copy| self.joiners.is_empty() && copy.taken_at + STATE_COPY_KEPT <= now);
            self.take_copy(now, out);
        }
    }

    fn send_on(&mut self, now: Time, peer: PeerId, out: &mut Outbox) {
        let Some(given) = self.joiners.get_mut(&peer) else { return };
        let Some(copy) = &given.source else { return };
        let is_apart = copy.values.len() < self.chunking.values();
        while given.sent.parts.len() < STATE_PARTS_SENT_MAX && !given.unsent.is_empty() {
            let count = given.sent.size.chunks().min(given.unsent.end - given.unsent.start);
            let chunk = given.unsent.start;
            given.unsent.start += count;
            let values = self.chunking.span(chunk..chunk + count);
            let Some(payload) = copy.bytes_of(&values, is_apart) else {
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
