//! Coming by a model, and giving it to others who join.
//!
//! A joiner never trains from a cold start in a running swarm: it asks one connected peer after the other until one
//! sends its parameters, and says so when nobody can.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bounds::*;
use crate::effect::{Effect, Notice, TransferId};
use crate::event::Misbehaviour;
use crate::layout::ModelLayout;
use crate::manifest::GossipSpec;
use crate::message::{Message, TransferHeader};
use crate::outbox::{Outbox, Purpose};
use crate::part::Selection;
use crate::peer::PeerId;
use crate::random::{Generator, RngExt, stream};
use crate::reputation::Reputation;
use crate::time::Time;
use crate::{Payload, Snapshot};

/// The sub-machine of a node without a model.
#[derive(Debug)]
pub(crate) struct Joining {
    random: Generator,
    /// See [`state_timeout`].
    timeout: Duration,
    /// See [`state_bytes`].
    state_bytes: usize,
    asked: Option<Asked>,
    /// When to ask the next one.
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
    donor: PeerId,
    /// Checks tried, answered or not.
    tries: u32,
    /// Who found it far from its own model: a liar may be among them, as among donors.
    objectors: Vec<PeerId>,
}

#[derive(Debug)]
struct Asked {
    peer: PeerId,
    request: u64,
    deadline: Time,
    repeat_at: Time,
    /// Progress of the model that is being loaded.
    loading: Option<f64>,
}

impl Joining {
    pub(crate) fn new(me: PeerId, seed: u64, parameters: usize, gossip: &GossipSpec, now: Time) -> Joining {
        Joining {
            random: stream(seed, "joining", &[me.as_bytes()]),
            timeout: state_timeout(parameters, gossip),
            state_bytes: state_bytes(parameters, gossip),
            asked: None,
            ask_at: now,
            next_notice: now + WAITING_NOTICE_PERIOD,
            next_request: 0,
            checking: None,
            doubted: Vec::new(),
        }
    }

    pub(crate) fn next_deadline(&self) -> Time {
        let next_try = self.asked.as_ref().map_or(self.ask_at, |asked| asked.deadline.min(asked.repeat_at));
        next_try.min(self.next_notice)
    }

    pub(crate) fn is_busy_with(&self, peer: PeerId) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.peer == peer)
    }

    /// Asks somebody if nobody is being asked. Called whenever time has passed or a peer has connected.
    pub(crate) fn proceed(&mut self, now: Time, connected: &[PeerId], reputation: &Reputation, out: &mut Outbox) {
        if self.checking.is_some() {
            self.next_notice = self.next_notice.max(now + WAITING_NOTICE_PERIOD);
            self.ask_at = self.ask_at.max(now + STATE_RETRY);
            return;
        }
        if self.next_notice <= now {
            self.next_notice = now + WAITING_NOTICE_PERIOD;
            out.notice(Notice::WaitingForState);
        }
        if self.asked.as_ref().is_some_and(|asked| asked.deadline <= now) {
            self.asked = None;
        }
        if let Some(asked) = &mut self.asked {
            if asked.repeat_at <= now {
                asked.repeat_at = now + STATE_REPEAT_PERIOD;
                if asked.loading.is_none() {
                    out.send(asked.peer, Message::RequestState { request: asked.request });
                }
            }
            return;
        }
        // `ask_at` also paces the deadline of a joiner that knows nobody yet.
        if self.ask_at <= now {
            self.ask_at = now + STATE_RETRY;
            self.doubted.retain(|(_, until)| now < *until);
            let is_doubted = |peer: &PeerId| self.doubted.iter().any(|(doubted, _)| doubted == peer);
            let mut donors: Vec<PeerId> = connected.iter().copied().filter(|peer| !is_doubted(peer)).collect();
            reputation.retain_believable(&mut donors);
            if !donors.is_empty() {
                let peer = donors[self.random.random_range(0..donors.len())];
                let request = self.next_request;
                self.next_request += 1;
                let (deadline, repeat_at) = (now + self.timeout, now + STATE_REPEAT_PERIOD);
                self.asked = Some(Asked { peer, request, deadline, repeat_at, loading: None });
                out.send(peer, Message::RequestState { request });
            }
        }
    }

    pub(crate) fn on_refusal(&mut self, now: Time, peer: PeerId, request: u64) {
        let is_refused = |asked: &mut Asked| asked.peer == peer && asked.request == request && asked.loading.is_none();
        if self.asked.take_if(is_refused).is_some() {
            self.ask_at = now + STATE_RETRY;
        }
    }

    pub(crate) fn on_partner_lost(&mut self, now: Time, peer: PeerId) {
        if self.asked.take_if(|asked| asked.peer == peer && asked.loading.is_none()).is_some() {
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
        let TransferHeader::State { request, progress, layout: digest } = header else {
            return Ok(());
        };
        let is_asked = |asked: &&mut Asked| asked.peer == peer && asked.request == *request && asked.loading.is_none();
        let Some(asked) = self.asked.as_mut().filter(is_asked) else {
            // Late, or for a request that was never made.
            return if *request < self.next_request { Ok(()) } else { Err(Misbehaviour::Unsolicited) };
        };
        let verdict = judge_state(*progress, digest, &payload, layout, self.state_bytes);
        if verdict.is_err() {
            self.asked = None;
            self.ask_at = now + STATE_RETRY;
            return verdict;
        }
        let progress = *progress;
        asked.loading = Some(progress);
        out.request(Purpose::StateLoad, |request| Effect::LoadState { request, payload, progress });
        Ok(())
    }

    /// Returns whose model was loaded, and its progress; or who sent one that is not finite.
    pub(crate) fn on_loaded(&mut self, now: Time, accepted: bool) -> Option<Result<(PeerId, f64), PeerId>> {
        let asked = self.asked.take()?;
        let progress = asked.loading?;
        self.ask_at = now + STATE_RETRY;
        Some(if accepted { Ok((asked.peer, progress)) } else { Err(asked.peer) })
    }

    /// The model of `donor` is to be compared with a second peer's.
    pub(crate) fn begin_check(&mut self, donor: PeerId) {
        self.checking = Some(Check { donor, tries: 0, objectors: Vec::new() });
    }

    /// Whether a copied model waits for a check.
    pub(crate) fn is_checking(&self) -> bool {
        self.checking.is_some()
    }

    /// Who of `peers` may check the copied model: neither the donor nor who has objected. Nobody after too many tries or
    /// objections.
    pub(crate) fn checkers(&self, mut peers: Vec<PeerId>) -> Vec<PeerId> {
        let is_open = |check: &&Check| check.tries < SPOT_CHECKS_MAX && check.objectors.len() < OBJECTIONS_MAX;
        match self.checking.as_ref().filter(is_open) {
            None => peers.clear(),
            Some(check) => peers.retain(|peer| *peer != check.donor && !check.objectors.contains(peer)),
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

    /// No more checks: returns the donor, where more have objected than not, and another one is to be asked.
    pub(crate) fn doubt(&mut self, now: Time) -> Option<PeerId> {
        let donor = self.checking.as_ref().filter(|check| !check.objectors.is_empty())?.donor;
        if self.doubted.len() as u32 + 1 >= DONORS_MAX {
            return None;
        }
        self.checking = None;
        self.doubted.push((donor, now + DOUBT_PERIOD));
        self.ask_at = now;
        Some(donor)
    }

    /// The copied model is believed.
    pub(crate) fn end_check(&mut self) {
        self.checking = None;
    }
}

fn judge_state(
    progress: f64,
    digest: &[u8; 32],
    payload: &Payload,
    layout: &ModelLayout,
    state_bytes: usize,
) -> Result<(), Misbehaviour> {
    if digest != layout.digest() {
        return Err(Misbehaviour::WrongLayout);
    }
    let expected = state_bytes as u64;
    if payload.len() as u64 != expected {
        return Err(Misbehaviour::WrongLength { expected, actual: payload.len() as u64 });
    }
    if !(progress.is_finite() && progress >= 0.0) {
        return Err(Misbehaviour::OutOfRange("progress"));
    }
    Ok(())
}

/// The sub-machine of a node that gives its model to joiners.
#[derive(Debug, Default)]
pub(crate) struct Giving {
    /// Joiners being served; at most [`STATE_TRANSFERS_MAX`].
    joiners: BTreeMap<PeerId, Given>,
}

#[derive(Debug)]
struct Given {
    request: u64,
    /// Once it has begun.
    transfer: Option<TransferId>,
}

impl Giving {
    pub(crate) fn is_busy_with(&self, peer: PeerId) -> bool {
        self.joiners.contains_key(&peer)
    }

    /// `has_model`: whether there is anything to give.
    pub(crate) fn on_request(&mut self, peer: PeerId, request: u64, has_model: bool, out: &mut Outbox) {
        if self.joiners.get(&peer).is_some_and(|given| given.request == request) {
            return; // repeated while it is being served
        }
        if !has_model || self.joiners.contains_key(&peer) || self.joiners.len() >= STATE_TRANSFERS_MAX {
            let retry_after_ms = STATE_RETRY.as_millis() as u32;
            out.send(peer, Message::RefuseState { request, retry_after_ms });
            return;
        }
        self.joiners.insert(peer, Given { request, transfer: None });
        out.request(Purpose::StateSnapshot(peer, request), |request| Effect::TakeSnapshot {
            request,
            selection: Selection::State,
        });
    }

    pub(crate) fn on_snapshot(
        &mut self,
        peer: PeerId,
        request: u64,
        snapshot: &Snapshot,
        progress: f64,
        layout: &ModelLayout,
        out: &mut Outbox,
    ) {
        if let Some(given) = self.joiners.get_mut(&peer).filter(|given| given.request == request) {
            let header = TransferHeader::State { request, progress, layout: *layout.digest() };
            given.transfer = Some(out.transfer(peer, header, snapshot.to_payload()));
        }
    }

    pub(crate) fn on_transfer_ended(&mut self, transfer: TransferId, finished: bool, out: &mut Outbox) {
        let joiner = self.joiners.iter().find(|(_, given)| given.transfer == Some(transfer)).map(|(peer, _)| *peer);
        if let Some(peer) = joiner {
            self.joiners.remove(&peer);
            if finished {
                out.notice(Notice::StateSent(peer));
            }
        }
    }

    /// The joiner is gone, or the trainer could not take its snapshot.
    pub(crate) fn give_up(&mut self, peer: PeerId) {
        self.joiners.remove(&peer);
    }
}
