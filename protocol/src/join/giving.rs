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
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::effect::{Effect, NetworkOrder};
    use crate::fragments::Fragments;

    fn chunking(values: usize, chunk: usize) -> Chunking {
        Chunking::new(&Fragments::equal(values, 1), Holding::ALL, chunk)
    }

    #[test]
    fn a_joiner_gets_the_rest_from_a_model_that_took_the_others_place() {
        let (mut giving, mut out) = (Giving::new(chunking(8, 2), [0; 32]), Outbox::default());
        let (joiner, now) = (PeerId::from_public_key([1; 32]), Time::ZERO);
        giving.on_request(now, joiner, (0, Chunks { first: 0, count: 4 }), Some(0), &mut out).expect("sound");
        giving.on_snapshot(now, &Snapshot::from(vec![0.0; 8]), &TrainingReport::default(), &mut out);
        giving.on_model_replaced(&mut out);
        while out.pop().is_some() {}
        giving.on_transfer_ended(now, TransferId(0), true, &mut out);
        assert!(out.is_empty() && giving.copying.is_some(), "a copy of the new model is awaited");
        giving.on_snapshot(now, &Snapshot::from(vec![1.0; 8]), &TrainingReport::default(), &mut out);
        assert!(matches!(out.pop(), Some(Effect::Network(NetworkOrder::StartTransfer { .. }))));
    }

    /// The share of its time for which a line carries chunks, where the first byte of a part arrives `way` after the part was
    /// ordered at the earliest, and a part is confirmed `wait` after its last one.
    fn share_of_the_line(way: Duration, wait: Duration) -> f64 {
        const CHUNKS: u32 = 400;
        let carry = |chunks: f64| Duration::from_secs_f64(chunks / 2.5); // 16 KiB each on 320 kbit/s
        let (mut giving, mut out) = (Giving::new(chunking(CHUNKS as usize, 1), [0; 32]), Outbox::default());
        let (joiner, mut now) = (PeerId::from_public_key([1; 32]), Time::ZERO);
        let chunks = Chunks { first: 0, count: CHUNKS };
        giving.on_request(now, joiner, (0, chunks), Some(0), &mut out).expect("sound");
        giving.on_snapshot(now, &Snapshot::from(vec![0.0; CHUNKS as usize]), &TrainingReport::default(), &mut out);
        let (mut free_at, mut confirmed) = (now, VecDeque::new());
        loop {
            while let Some(effect) = out.pop() {
                if let Effect::Network(NetworkOrder::StartTransfer { transfer, payload, .. }) = effect {
                    free_at = free_at.max(now + way) + carry(payload.len() as f64 / 4.0);
                    confirmed.push_back((free_at + wait, transfer));
                }
            }
            let Some((at, transfer)) = confirmed.pop_front() else { break };
            now = at;
            giving.on_transfer_ended(now, transfer, true, &mut out);
        }
        assert!(giving.joiners.is_empty(), "all was sent");
        carry(f64::from(CHUNKS)).as_secs_f64() / free_at.since_start().as_secs_f64()
    }

    /// Behind what is on its way a new stream is agreed on within a second or two where machines are busy: with two parts at a
    /// time the line was idle for more than half of its time, as parts became small where they took long.
    #[test]
    fn a_line_is_not_idle_although_streams_and_confirmations_wait_for_busy_machines() {
        let milliseconds = Duration::from_millis;
        let quick = share_of_the_line(milliseconds(100), milliseconds(50));
        let busy = share_of_the_line(milliseconds(2000), milliseconds(500));
        assert!(quick > 0.98 && busy > 0.95, "{quick} where nobody waits, {busy} on busy machines");
    }

    /// The last chunk of a state is short: taken for a whole one it made the next part, on a slow line, twice as long.
    #[test]
    fn a_short_chunk_tells_of_the_line_what_a_whole_one_tells() {
        let (mut giving, mut out) = (Giving::new(chunking(9, 4), [0; 32]), Outbox::default());
        let (joiner, now) = (PeerId::from_public_key([1; 32]), Time::ZERO);
        giving.on_request(now, joiner, (0, Chunks { first: 2, count: 1 }), Some(0), &mut out).expect("sound");
        giving.on_snapshot(now, &Snapshot::from(vec![0.0; 9]), &TrainingReport::default(), &mut out);
        giving.on_request(now, joiner, (1, Chunks { first: 0, count: 2 }), Some(0), &mut out).expect("sound");
        let parts = |out: &mut Outbox| {
            let started = |effect: &Effect| matches!(effect, Effect::Network(NetworkOrder::StartTransfer { .. }));
            std::iter::from_fn(|| out.pop()).filter(started).count()
        };
        assert_eq!(parts(&mut out), 3, "nothing is known of the line");
        giving.on_transfer_ended(now + Duration::from_millis(600), TransferId(0), true, &mut out);
        giving.on_request(now, joiner, (2, Chunks { first: 0, count: 2 }), Some(0), &mut out).expect("sound");
        assert_eq!(giving.joiners[&joiner].sent.size.chunks(), 1);
    }

    #[test]
    fn a_copy_that_nobody_wants_any_more_is_dropped() {
        let (mut giving, mut out) = (Giving::new(chunking(8, 4), [0; 32]), Outbox::default());
        let (joiner, now) = (PeerId::from_public_key([1; 32]), Time::ZERO);
        let chunks = Chunks { first: 0, count: 1 };
        giving.on_request(now, joiner, (0, chunks), Some(0), &mut out).expect("sound");
        giving.on_snapshot(now, &Snapshot::from(vec![0.0; 8]), &TrainingReport::default(), &mut out);
        giving.on_deadline(now + STATE_COPY_KEPT);
        assert!(giving.copy.is_some() && giving.next_deadline().is_none(), "it is being sent");
        giving.on_transfer_ended(now, TransferId(0), true, &mut out);
        giving.on_deadline(giving.next_deadline().expect("nobody is served"));
        assert!(giving.copy.is_none() && giving.next_deadline().is_none());
    }

    /// A joiner may ask for less and less, and the trainer may hand over too little.
    #[test]
    fn whom_nothing_is_to_be_sent_any_more_holds_no_place() {
        let (mut giving, mut out) = (Giving::new(chunking(16, 2), [0; 32]), Outbox::default());
        let (joiner, now) = (PeerId::from_public_key([1; 32]), Time::ZERO);
        let ask = |giving: &mut Giving, out: &mut Outbox, request, first, count| {
            giving.on_request(now, joiner, (request, Chunks { first, count }), Some(0), out).expect("sound");
        };
        ask(&mut giving, &mut out, 0, 5, 1);
        ask(&mut giving, &mut out, 0, 0, 1);
        assert!(!giving.is_busy_with(joiner), "nothing is left of what it waits for");
        ask(&mut giving, &mut out, 1, 0, 8);
        giving.on_snapshot(now, &Snapshot::from(vec![0.0; 16]), &TrainingReport::default(), &mut out);
        giving.on_model_replaced(&mut out);
        let sent = giving.joiners[&joiner].sent.parts.clone();
        sent.iter().for_each(|(transfer, ..)| giving.on_transfer_ended(now, *transfer, true, &mut out));
        assert!(giving.is_busy_with(joiner), "it waits for a copy of the new model");
        ask(&mut giving, &mut out, 1, 0, 1);
        assert!(!giving.is_busy_with(joiner), "somebody else sends the rest");
        let refusals = |out: &mut Outbox| {
            let told = |effect: &Effect| {
                matches!(effect, Effect::Network(NetworkOrder::Send { message: Message::RefuseState { .. }, .. }))
            };
            std::iter::from_fn(|| out.pop()).filter(told).count()
        };
        assert_eq!(refusals(&mut out), 0);
        ask(&mut giving, &mut out, 2, 5, 2);
        giving.on_snapshot(now, &Snapshot::from(vec![0.0; 4]), &TrainingReport::default(), &mut out);
        assert_eq!((giving.is_busy_with(joiner), refusals(&mut out)), (false, 1), "the copy is too short");
        ask(&mut giving, &mut out, 3, 5, 2);
        assert_eq!((giving.is_busy_with(joiner), refusals(&mut out)), (false, 1), "it still is");
    }

    /// Of a large state each joiner is sent a copy of what it asks for.
    #[test]
    fn of_a_large_state_as_much_is_copied_as_is_asked_for() {
        let (mut giving, mut out) = (Giving::new(chunking(16, 2), [0; 32]), Outbox::default());
        giving.copy_values = 6;
        let (joiner, other) = (PeerId::from_public_key([1; 32]), PeerId::from_public_key([2; 32]));
        let model: Vec<f32> = (0..16).map(|value| value as f32).collect();
        let now = Time::ZERO;
        let asked = |giving: &mut Giving, out: &mut Outbox, peer, request, first, count| {
            giving.on_request(now, peer, (request, Chunks { first, count }), Some(0), out).expect("sound");
        };
        let happened = |out: &mut Outbox| {
            let mut said = Vec::new();
            while let Some(effect) = out.pop() {
                match effect {
                    Effect::Trainer(TrainerOrder::TakeSnapshot { selection, .. }) => {
                        said.push(format!("{selection:?}"))
                    }
                    Effect::Network(NetworkOrder::StartTransfer { header, payload, .. }) => {
                        let TransferHeader::State { chunk, .. } = header else { panic!("{header:?}") };
                        let values = Snapshot::from_payload(&payload, payload.len() / 4).expect("finite");
                        assert_eq!(values.values()[0], 2.0 * chunk as f32, "the values are those of the chunks");
                        said.push(format!("{chunk}: {}", values.values().len()));
                    }
                    other => panic!("{other:?}"),
                }
            }
            said
        };
        let take = |giving: &mut Giving, out: &mut Outbox, values: Range<usize>| {
            giving.on_snapshot(now, &Snapshot::from(model[values].to_vec()), &TrainingReport::default(), out);
        };
        asked(&mut giving, &mut out, joiner, 0, 1, 1);
        asked(&mut giving, &mut out, other, 0, 6, 2);
        assert_eq!(happened(&mut out), ["Values { first: 2, end: 8 }"], "one at a time");
        take(&mut giving, &mut out, 2..8);
        assert_eq!(happened(&mut out), ["1: 2", "Values { first: 12, end: 16 }"], "the other one waits for its own");
        take(&mut giving, &mut out, 12..16);
        assert_eq!(happened(&mut out), ["6: 2", "7: 2"]);
        asked(&mut giving, &mut out, joiner, 1, 7, 1);
        assert_eq!(happened(&mut out), ["7: 2"], "the last copy has it");
        asked(&mut giving, &mut out, joiner, 2, 0, 8);
        assert_eq!(happened(&mut out), ["State"], "who asks for all is sent all");
        take(&mut giving, &mut out, 0..16);
        happened(&mut out);
        giving.joiners.clear();
        giving.on_model_replaced(&mut out);
        asked(&mut giving, &mut out, joiner, 3, 2, 1);
        assert_eq!(happened(&mut out), ["Values { first: 4, end: 10 }"]);
        giving.joiners.clear();
        giving.on_holding_changed(Holding::ALL, &mut out);
        asked(&mut giving, &mut out, joiner, 4, 2, 1);
        take(&mut giving, &mut out, 4..10);
        assert_eq!(
            happened(&mut out),
            ["Values { first: 4, end: 10 }"],
            "what was copied of another holding is nobody's"
        );
    }
}
