//! Coming by a model, and giving it to others who join.
//!
//! A joiner never trains from a cold start in a running swarm: it asks connected peers until they have sent all chunks of
//! the parameters, has others look at the result, and says so when nobody can help.

mod chunking;
mod copying;
mod giving;
mod missing;
mod part_size;

use crate::Payload;
use crate::bounds::*;
use crate::effect::{Effect, Notice};
use crate::event::Misbehaviour;
use crate::exchange::is_progress_odd;
use crate::layout::ModelLayout;
use crate::message::{Message, TransferHeader};
use crate::outbox::{Outbox, Purpose};
use crate::peer::PeerId;
use crate::random::{Generator, RngExt, stream};
use crate::reputation::Reputation;
use crate::time::Time;

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
    /// Who sent the model that is being loaded, and its progress.
    loading: Option<(Vec<PeerId>, f64)>,
    /// When to ask the next ones.
    ask_at: Time,
    next_notice: Time,
    next_request: u64,
    checking: Option<Check>,
    /// Donors whose model was far from others', and until when they are not asked again; at most [`DONORS_MAX`].
    doubted: Vec<(PeerId, Time)>,
}

/// A copied model under check.
#[derive(Debug)]
struct Check {
    donors: Vec<PeerId>,
    /// Checks tried, answered or not.
    tries: u32,
    /// Who found it far from its own model: a liar may be among them, as among donors.
    objectors: Vec<PeerId>,
}

/// What became of a whole copy.
#[derive(Debug)]
pub(crate) enum Loaded {
    /// It is the node's model now.
    Taken { donors: Vec<PeerId>, progress: f64 },
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
            chunking,
            copying: Copying::new(chunking),
            has_one_donor: false,
            expected_progress: None,
            loading: None,
            ask_at: now,
            next_notice: now + WAITING_NOTICE_PERIOD,
            next_request: first_number,
            checking: None,
            doubted: Vec::new(),
        }
    }

    pub(crate) fn next_deadline(&self) -> Time {
        let next_try = if self.copying.has_open() { self.ask_at } else { Time::MAX };
        next_try.min(self.copying.next_deadline()).min(self.next_notice)
    }

    pub(crate) fn is_busy_with(&self, peer: PeerId) -> bool {
        self.copying.is_busy_with(peer)
    }

    pub(crate) fn status(&self) -> CopyStatus {
        let (chunks, of) = self.copying.chunks();
        CopyStatus { chunks, of, donors: self.copying.asked().iter().map(|asked| asked.peer).collect() }
    }

    /// Asks as many donors as it may. Called whenever time has passed or a peer has connected.
    pub(crate) fn proceed(&mut self, now: Time, connected: &[PeerId], reputation: &Reputation, out: &mut Outbox) {
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

    fn ask(&mut self, now: Time, connected: &[PeerId], reputation: &Reputation, out: &mut Outbox) {
        self.doubted.retain(|(_, until)| now < *until);
        let is_doubted = |peer: &PeerId| self.doubted.iter().any(|(doubted, _)| doubted == peer);
        let mut donors: Vec<PeerId> = connected.iter().copied().filter(|peer| !is_doubted(peer)).collect();
        reputation.retain_believable(&mut donors);
        // Others must be left to compare the copy with.
        let donors_max = if self.has_one_donor { 1 } else { (donors.len() / 2).clamp(1, STATE_DONORS_MAX) };
        donors.retain(|peer| !self.copying.is_busy_with(*peer));
        while !donors.is_empty() {
            let room = donors_max.saturating_sub(self.copying.asked().len());
            // One more than usual may do the work of somebody who is late.
            if room == 0 && (self.copying.asked().len() > donors_max || !self.copying.is_anybody_late(now)) {
                return;
            }
            let Some(Share { chunks, taken_from }) = self.copying.next_share(now, room.min(donors.len())) else { return };
            if let Some((slow, request, chunks)) = taken_from {
                out.send(slow, Message::RequestState { request, chunks });
            }
            let peer = donors.swap_remove(self.random.random_range(0..donors.len()));
            let request = self.next_request;
            self.next_request += 1;
            self.copying.ask(now, peer, request, chunks);
            out.send(peer, Message::RequestState { request, chunks });
        }
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
        peer: PeerId,
        header: &TransferHeader,
        payload: Payload,
        layout: &ModelLayout,
        out: &mut Outbox,
    ) -> Result<(), Misbehaviour> {
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
        if self.is_unexpected(*progress) && self.doubt_donor(now, peer) {
            self.copying.drop_requests(|asked| asked.peer == peer);
            self.ask_at = now;
            return Ok(());
        }
        if self.copying.take(now, (peer, *request), *chunk..chunk + count, &payload, *progress) {
            self.ask_at = now;
        }
        if let Some((chunks, progress, donors)) = self.copying.whole() {
            self.loading = Some((donors, progress));
            self.copying = Copying::new(self.chunking);
            out.request(Purpose::StateLoad, |request| Effect::LoadState { request, chunks, progress });
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
        let (donors, progress) = self.loading.take()?;
        self.ask_at = now + STATE_RETRY;
        if accepted {
            return Some(Loaded::Taken { donors, progress });
        }
        self.has_one_donor = donors.len() > 1;
        Some(Loaded::Unfit { donor: donors.first().copied().filter(|_| donors.len() == 1) })
    }

    /// The model of `donors` is to be compared with another peer's.
    pub(crate) fn begin_check(&mut self, donors: Vec<PeerId>) {
        self.checking = Some(Check { donors, tries: 0, objectors: Vec::new() });
    }

    /// Whether a copied model waits for a check.
    pub(crate) fn is_checking(&self) -> bool {
        self.checking.is_some()
    }

    /// Who of `peers` may check the copied model: neither a donor nor who has objected. Nobody after too many tries or
    /// objections.
    pub(crate) fn checkers(&self, mut peers: Vec<PeerId>) -> Vec<PeerId> {
        let is_open = |check: &&Check| check.tries < SPOT_CHECKS_MAX && check.objectors.len() < OBJECTIONS_MAX;
        match self.checking.as_ref().filter(is_open) {
            None => peers.clear(),
            Some(check) => peers.retain(|peer| !check.donors.contains(peer) && !check.objectors.contains(peer)),
        }
        peers
    }

    /// A check has begun.
    pub(crate) fn count_check(&mut self) {
        if let Some(check) = &mut self.checking {
            check.tries += 1;
        }
    }

    /// `checker` finds the model under check far from its own. Whether one of the two is alone with its model only a
    /// third can tell, so the first objection brings another check.
    pub(crate) fn object(&mut self, checker: PeerId) {
        if let Some(check) = &mut self.checking {
            check.objectors.push(checker);
        }
    }

    /// No more checks: returns the donors, where more have objected than not, and the model is to be copied again.
    pub(crate) fn doubt(&mut self, now: Time) -> Option<Vec<PeerId>> {
        let check = self.checking.as_ref().filter(|check| !check.objectors.is_empty())?;
        if check.donors.len() == 1 && self.doubted.len() as u32 + 1 >= DONORS_MAX {
            return None;
        }
        let donors = self.checking.take().map(|check| check.donors).unwrap_or_default();
        self.has_one_donor = true;
        if let [donor] = donors[..] {
            self.doubt_donor(now, donor);
        }
        self.ask_at = now;
        Some(donors)
    }

    /// Asks `donor` no more for a while. False after too many: then it is rather the expectation that is wrong.
    fn doubt_donor(&mut self, now: Time, donor: PeerId) -> bool {
        let has_room = self.doubted.len() < DONORS_MAX as usize;
        if has_room {
            self.doubted.push((donor, now + DOUBT_PERIOD));
        }
        has_room
    }

    /// The copied model is believed.
    pub(crate) fn end_check(&mut self) {
        self.checking = None;
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
    if !(progress.is_finite() && progress >= 0.0) {
        return Err(Misbehaviour::OutOfRange("progress"));
    }
    Ok(())
}
