//! Coming by a model, and giving it to others who join.
//!
//! A joiner never trains from a cold start in a running swarm: it asks connected peers until they have sent all chunks of
//! the parameters, has others look at the result, and says so when nobody can help.

mod checking;
mod chunking;
mod copying;
mod giving;
mod missing;
mod part_size;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::Payload;
use crate::bounds::*;
use crate::effect::TrainerOrder;
use crate::exchange::is_progress_odd;
use crate::fragments::Holding;
use crate::layout::ModelLayout;
use crate::message::{Message, TransferHeader};
use crate::misbehaviour::Misbehaviour;
use crate::notice::Notice;
use crate::outbox::{Outbox, Purpose};
use crate::peer::PeerId;
use crate::random::{Generator, RngExt, stream};
use crate::reputation::Reputation;
use crate::time::Time;

use checking::Check;
pub use checking::Unchecked;
pub(crate) use checking::Witness;
pub(crate) use chunking::Chunking;
use copying::{Copying, Share};
pub(crate) use giving::Giving;

/// The sub-machine of a node without a model.
#[derive(Debug)]
pub(crate) struct Joining {
    random: Generator,
    chunking: Chunking,
    copying: Copying,
    /// Whether the last copy was doubted, and nobody could say whose part of it was false: the next one has one donor.
    has_one_donor: bool,
    /// What several partners declared as the swarm's progress before the model was to be copied anew; a joiner knows none.
    expected_progress: Option<f64>,
    /// Who sent the model that is being loaded, its progress, and how long the copy took.
    loading: Option<(Vec<Witness>, f64, Duration)>,
    /// When to ask the next ones.
    ask_at: Time,
    next_notice: Time,
    next_request: u64,
    checking: Option<Check>,
    /// Whether checks of an earlier copy went unanswered, so that this one is the last.
    was_unanswered: bool,
    /// Donors whose model was far from others', and until when they are not asked again; at most [`DONORS_MAX`].
    doubted: Vec<(Witness, Time)>,
    /// Copies of single donors in a row that others found far from theirs.
    disputes: u32,
}

/// What became of a whole copy.
#[derive(Debug)]
pub(crate) enum Loaded {
    /// It is the node's model now.
    Taken { donors: Vec<Witness>, progress: f64, taken: Duration },
    /// It is not finite; whose fault that is, is known where it had one donor.
    Unfit { donor: Option<PeerId> },
}

/// How far a copy has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyStatus {
    /// Chunks that are there.
    pub chunks: usize,
    /// Chunks of the state.
    pub of: usize,
    /// Who is sending.
    pub donors: Vec<PeerId>,
}

impl Joining {
    pub(crate) fn new(me: PeerId, seed: u64, chunking: Chunking, first_number: u64, now: Time) -> Joining {
        Joining {
            random: stream(seed, "joining", &[me.as_bytes()]),
            copying: Copying::new(chunking.clone()),
            chunking,
            has_one_donor: false,
            expected_progress: None,
            loading: None,
            ask_at: now,
            next_notice: now + WAITING_NOTICE_PERIOD,
            next_request: first_number,
            checking: None,
            was_unanswered: false,
            doubted: Vec::new(),
            disputes: 0,
        }
    }

    /// The node holds other fragments of the model now: where it copies one, it begins anew.
    pub(crate) fn on_holding_changed(&mut self, now: Time, holding: Holding, out: &mut Outbox) {
        self.chunking.hold(holding);
        self.begin_anew(now, out);
    }

    /// What has come of a copy counts no more, nor does what donors still send.
    pub(crate) fn begin_anew(&mut self, now: Time, out: &mut Outbox) {
        self.call_off(out);
        self.copying = Copying::new(self.chunking.clone());
        (self.loading, self.checking, self.ask_at) = (None, None, now);
    }

    pub(crate) fn next_deadline(&self) -> Time {
        let next_try = if self.copying.has_open() { self.ask_at } else { Time::MAX };
        next_try.min(self.copying.next_deadline()).min(self.next_notice)
    }

    pub(crate) fn is_busy_with(&self, peer: PeerId) -> bool {
        self.copying.is_busy_with(peer)
    }

    /// Whether no donor has been asked, and no copy is being taken over or checked.
    pub(crate) fn is_idle(&self) -> bool {
        self.copying.asked().is_empty() && self.loading.is_none() && self.checking.is_none()
    }

    /// Whether a member that holds this much has some of what is missing.
    pub(crate) fn lacks(&self, holding: Holding) -> bool {
        self.copying.lacks(holding)
    }

    /// Chunks that are there, and chunks of the state.
    pub(crate) fn chunks(&self) -> (usize, usize) {
        self.copying.chunks()
    }

    pub(crate) fn status(&self) -> CopyStatus {
        let (chunks, of) = self.chunks();
        CopyStatus { chunks, of, donors: self.copying.asked().iter().map(|asked| asked.peer).collect() }
    }

    /// When who wants to exchange may ask again: after half of what the copy will still take.
    pub(crate) fn retry(&self, now: Time) -> Duration {
        (self.copying.time_left(now) / 2).clamp(JOINING_RETRY, RETRY_AFTER_MAX)
    }

    /// Asks as many donors as it may. Called whenever time has passed or a peer has connected.
    pub(crate) fn proceed(&mut self, now: Time, connected: &[Witness], reputation: &Reputation, out: &mut Outbox) {
        if self.checking.is_some() {
            self.next_notice = self.next_notice.max(now + WAITING_NOTICE_PERIOD);
            self.ask_at = self.ask_at.max(now + STATE_RETRY);
            return;
        }
        if self.next_notice <= now {
            self.next_notice = now + WAITING_NOTICE_PERIOD;
            if self.copying.asked().is_empty() {
                out.notice(Notice::WaitingForState);
            }
        }
        if self.loading.is_some() {
            self.ask_at = self.ask_at.max(now + STATE_RETRY);
            return;
        }
        if self.copying.give_up_stalled(now) {
            self.ask_at = now;
        }
        for (peer, request, chunks) in self.copying.repeat_due(now) {
            out.send(peer, Message::RequestState { request, chunks });
        }
        let is_late = self.copying.is_anybody_late(now);
        // `ask_at` also paces the deadline of a joiner that knows nobody yet.
        if self.ask_at <= now || is_late {
            self.ask_at = now + STATE_RETRY;
            self.ask(now, connected, reputation, out);
            self.copying.put_up_with_late(now);
        }
    }

    fn ask(&mut self, now: Time, connected: &[Witness], reputation: &Reputation, out: &mut Outbox) {
        self.doubted.retain(|(_, until)| now < *until);
        let mut donors = self.undoubted(connected);
        let mut believable: Vec<PeerId> = donors.iter().map(|donor| donor.peer).collect();
        reputation.retain_believable(&mut believable);
        donors.retain(|donor| believable.contains(&donor.peer));
        // Others must be left to compare the copy with.
        let donors_max = if self.has_one_donor { 1 } else { (donors.len() / 2).clamp(1, STATE_DONORS_MAX) };
        donors.retain(|donor| !self.copying.is_busy_with(donor.peer));
        while !donors.is_empty() {
            let room = donors_max.saturating_sub(self.copying.asked().len());
            // One more than usual may do the work of somebody who is late.
            if room == 0 && (self.copying.asked().len() > donors_max || !self.copying.is_anybody_late(now)) {
                return;
            }
            let holdings: Vec<Holding> = donors.iter().map(|donor| donor.holding).collect();
            let share = self.copying.next_share(now, &holdings, room.min(donors.len()));
            let Some(Share { chunks, taken_from }) = share else { return };
            if let Some((slow, request, chunks)) = taken_from {
                out.send(slow, Message::RequestState { request, chunks });
            }
            let able = donors.iter().enumerate().filter(|(_, donor)| self.copying.is_held(chunks, donor.holding));
            let able: Vec<usize> = able.map(|(place, _)| place).collect();
            let Witness { peer, .. } = donors.swap_remove(able[self.random.random_range(0..able.len())]);
            let request = self.next_request;
            self.next_request += 1;
            self.copying.ask(now, peer, request, chunks);
            out.send(peer, Message::RequestState { request, chunks });
        }
    }

    /// Whom to ask of `connected`: of ranges whose models nobody has doubted, where there are any.
    fn undoubted(&self, connected: &[Witness]) -> Vec<Witness> {
        let is_doubted = |member: &&Witness| self.doubted.iter().any(|(doubted, _)| doubted.peer == member.peer);
        let is_of_doubted = |member: &&Witness| {
            member.range.is_none() || self.doubted.iter().any(|(doubted, _)| doubted.range == member.range)
        };
        let undoubted: Vec<&Witness> = connected.iter().filter(|member| !is_doubted(member)).collect();
        let others: Vec<&Witness> = undoubted.iter().copied().filter(|member| !is_of_doubted(member)).collect();
        let is_narrowed = !self.doubted.is_empty() && !others.is_empty();
        (if is_narrowed { others } else { undoubted }).into_iter().copied().collect()
    }

    /// Somebody has connected whom nobody could ask before.
    pub(crate) fn on_connected(&mut self, now: Time) {
        if self.copying.asked().is_empty() && self.checking.is_none() && self.loading.is_none() {
            self.ask_at = now;
        }
    }

    pub(crate) fn on_refusal(&mut self, now: Time, peer: PeerId, request: u64) {
        if self.copying.drop_requests(|asked| asked.peer == peer && asked.request == request) {
            self.ask_at = now + STATE_RETRY;
        }
    }

    pub(crate) fn on_partner_lost(&mut self, now: Time, peer: PeerId) {
        if self.copying.drop_requests(|asked| asked.peer == peer) {
            self.ask_at = now;
        }
    }

    pub(crate) fn on_state(
        &mut self,
        now: Time,
        donor: Witness,
        header: &TransferHeader,
        payload: Payload,
        layout: &ModelLayout,
        out: &mut Outbox,
    ) -> Result<(), Misbehaviour> {
        let peer = donor.peer;
        let TransferHeader::State { request, chunk, progress, layout: digest } = header else {
            return Ok(());
        };
        let expected = self.copying.expects(peer, *request, *chunk, payload.len() / 4);
        let Some((count, values)) = expected.filter(|_| self.loading.is_none()) else {
            // Late, perhaps for a request of an earlier life; or for one that was never made.
            return if *request < self.next_request { Ok(()) } else { Err(Misbehaviour::Unsolicited) };
        };
        let verdict = judge_part(*progress, digest, &payload, layout, values);
        if verdict.is_err() {
            self.copying.drop_requests(|asked| asked.peer == peer);
            self.ask_at = now + STATE_RETRY;
            return verdict;
        }
        if self.is_unexpected(*progress) && self.doubt_donor(now, donor) {
            self.copying.drop_requests(|asked| asked.peer == peer);
            self.ask_at = now;
            return Ok(());
        }
        if self.copying.take(now, (donor, *request), *chunk..chunk + count, &payload, *progress) {
            self.ask_at = now;
        }
        if let Some((chunks, progress, donors)) = self.copying.whole() {
            self.loading = Some((donors, progress, self.copying.taken(now)));
            self.copying = Copying::new(self.chunking.clone());
            let holding = self.chunking.holding();
            out.request(Purpose::StateLoad, |request| TrainerOrder::LoadState { request, chunks, holding, progress });
        }
        Ok(())
    }

    /// The model is to be copied anew, from somebody of about this progress.
    pub(crate) fn expect_progress(&mut self, progress: Option<f64>) {
        self.expected_progress = progress;
    }

    fn is_unexpected(&self, progress: f64) -> bool {
        self.expected_progress.is_some_and(|expected| is_progress_odd(progress - expected, expected))
    }

    /// The trainer has taken the copied model over, or found it unfit.
    pub(crate) fn on_loaded(&mut self, now: Time, accepted: bool) -> Option<Loaded> {
        let (donors, progress, taken) = self.loading.take()?;
        self.ask_at = now + STATE_RETRY;
        if accepted {
            return Some(Loaded::Taken { donors, progress, taken });
        }
        self.has_one_donor = donors.len() > 1;
        Some(Loaded::Unfit { donor: donors.first().map(|donor| donor.peer).filter(|_| donors.len() == 1) })
    }

    /// These fragments of the model of `donors` are to be compared with those of others.
    pub(crate) fn begin_check(&mut self, donors: Vec<Witness>, fragments: Vec<u16>) {
        self.checking = Some(Check::new(donors, fragments));
    }

    /// Whether a copied model waits for a check.
    pub(crate) fn is_checking(&self) -> bool {
        self.checking.is_some()
    }

    /// The fragment that is to be checked next.
    pub(crate) fn fragment_to_check(&self) -> Option<u16> {
        self.checking.as_ref().and_then(Check::fragment)
    }

    /// Who of the connected `members` is to check the copied model next; nobody after too many objections, or checks without
    /// an answer.
    pub(crate) fn checkers(&self, members: &[Witness]) -> Vec<PeerId> {
        self.checking.as_ref().map(|check| check.checkers(members)).unwrap_or_default()
    }

    /// A check by `checker` came to nothing. `declined`: it was refused, and `timeout` is how long that is put up with.
    pub(crate) fn on_no_check(&mut self, now: Time, checker: PeerId, declined: bool, timeout: Duration) {
        match &mut self.checking {
            Some(check) if declined => check.on_declined(now, checker, timeout),
            Some(check) => check.on_unanswered(checker),
            None => {}
        }
    }

    /// `peer` has no model to compare the copy with.
    pub(crate) fn on_unable(&mut self, peer: PeerId) {
        if let Some(check) = &mut self.checking {
            check.on_unable(peer);
        }
    }

    /// `checker` finds the model under check far from its own.
    pub(crate) fn object(&mut self, checker: Witness) {
        if let Some(check) = &mut self.checking {
            check.on_objection(checker);
        }
    }

    /// A fragment of the model under check is near that of a member that lets in `clip`.
    pub(crate) fn on_near(&mut self, fragment: u16, clip: f64, checker: Witness) {
        if let Some(check) = &mut self.checking {
            check.on_near(fragment, clip, checker);
        }
    }

    /// The limit to begin with, once enough of the connected `members`, who hold the fragment to check, have found it near, and
    /// it was the last.
    pub(crate) fn agreement(&mut self, members: &[Witness]) -> Option<f64> {
        self.checking.as_mut()?.agreement(members)
    }

    /// Nobody else holds the fragment that is to be checked now: where it is not the only one it is believed, and the others are checked.
    /// Then, whether it is the first.
    pub(crate) fn leave_out_unheld(&mut self) -> Option<bool> {
        self.checking.as_mut()?.leave_out()
    }

    /// Who has sent some of the copy that is being checked.
    pub(crate) fn donors_under_check(&self) -> Option<Vec<PeerId>> {
        self.checking.as_ref().map(|check| check.donors.iter().map(|donor| donor.peer).collect())
    }

    /// Nobody else can be asked to check the copy. Returns its donors, why, and whether it is made again, from others where
    /// there are some; else it is to be believed.
    pub(crate) fn give_up_check(&mut self, now: Time, members: &[Witness]) -> Option<(Vec<PeerId>, Unchecked, bool)> {
        let check = self.checking.take()?;
        let why = check.why();
        let is_again = match why {
            Unchecked::NobodyElse => false,
            Unchecked::Unanswered => !self.was_unanswered && check.has_others(members),
            // Too many donors were doubted: then it is rather the others' models that are odd.
            // Those that were doubted before may have been forgotten: a copy takes a while.
            Unchecked::Disputed => check.donors.len() > 1 || self.disputes + 1 < DONORS_MAX,
        };
        if is_again {
            self.disputes += u32::from(why == Unchecked::Disputed && check.donors.len() == 1);
            self.was_unanswered |= why == Unchecked::Unanswered;
            self.has_one_donor = true;
            if let [donor] = check.donors[..] {
                self.doubt_donor(now, donor);
            }
            self.ask_at = now;
        }
        Some((check.donors.iter().map(|donor| donor.peer).collect(), why, is_again))
    }

    /// Asks `donor` no more for a while. False after too many: then it is rather the expectation that is wrong.
    fn doubt_donor(&mut self, now: Time, donor: Witness) -> bool {
        let has_room = self.doubted.len() < DONORS_MAX as usize;
        if has_room {
            self.doubted.push((donor, now + DOUBT_PERIOD));
        }
        has_room
    }

    /// Whether the trainer is taking a copy over.
    pub(crate) fn is_loading(&self) -> bool {
        self.loading.is_some()
    }

    /// Gives up the copy under way and the check of the last one. Not while one is being taken over.
    pub(crate) fn give_up(&mut self, out: &mut Outbox) {
        self.call_off(out);
        self.copying = Copying::new(self.chunking.clone());
        self.end_check();
    }

    /// The owner wants the network left alone; what is missing is asked for afterwards.
    pub(crate) fn begin_rest(&mut self, out: &mut Outbox) {
        self.call_off(out);
        self.copying.drop_requests(|_| true);
    }

    /// Tells donors that what is not on its way yet is not wanted any more: a request is cut to what it is repeated for, a chunk at
    /// the least.
    fn call_off(&self, out: &mut Outbox) {
        for (peer, request, chunks) in self.copying.least_of_requests() {
            out.send(peer, Message::RequestState { request, chunks });
        }
    }

    /// The copied model is believed.
    pub(crate) fn end_check(&mut self) {
        (self.checking, self.disputes) = (None, 0);
        self.was_unanswered = false;
        self.has_one_donor = false;
        self.expected_progress = None;
    }
}

fn judge_part(
    progress: f64,
    digest: &[u8; 32],
    payload: &Payload,
    layout: &ModelLayout,
    values: usize,
) -> Result<(), Misbehaviour> {
    if digest != layout.digest() {
        return Err(Misbehaviour::WrongLayout);
    }
    let expected = 4 * values as u64;
    if payload.len() as u64 != expected {
        return Err(Misbehaviour::WrongLength { expected, actual: payload.len() as u64 });
    }
    if !(0.0..=PROGRESS_MAX).contains(&progress) {
        return Err(Misbehaviour::OutOfRange("progress".into()));
    }
    Ok(())
}
