//! The state machine: routes facts to its parts and decides what the node as a whole does next.
//!
//! Policy that belongs to one part lives there ([`membership`](crate::membership), [`exchange`](crate::exchange),
//! [`join`](crate::join)); here is only what concerns several: the phase, whom a reply belongs to, when to start an
//! exchange, how to leave.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::Payload;
use crate::bounds::*;
use crate::config::{Config, Start};
use crate::effect::{Effect, TrainerOrder, TransferId};
use crate::event::Event;
use crate::exchange::{Admission, Pairwise, screen};
use crate::finish::RunEnd;
use crate::fragments::Fragments;
use crate::handshake::Refusal;
use crate::join::{Chunking, Giving, Joining};
use crate::layout::ModelLayout;
use crate::membership::Membership;
use crate::message::{Message, Propose, RejectReason, TransferHeader};
use crate::misbehaviour::Misbehaviour;
use crate::notice::Notice;
use crate::outbox::{Outbox, Reply};
use crate::peer::PeerId;
use crate::profile::MemberView;
use crate::reputation::Reputation;
use crate::scheme::Scheme;
use crate::status::{Counts, Phase, Status};
use crate::synchronous::Synchronous;
use crate::time::Time;
use choosing::Choosing;
use ending::Settlings;
use rejoining::Rejoining;

mod choosing;
mod ending;
mod life;
mod rejoining;
mod replies;

/// One member of a swarm, without I/O. See the [crate documentation](crate) for the contract.
#[derive(Debug)]
pub struct Node {
    me: PeerId,
    layout: Arc<ModelLayout>,
    phase: Phase,
    membership: Membership,
    pairwise: Pairwise,
    /// While all average at once: it takes the place of exchanges.
    synchronous: Option<Synchronous>,
    /// Where members choose whether they do.
    choosing: Option<Choosing>,
    reputation: Reputation,
    joining: Joining,
    giving: Giving,
    rejoining: Rejoining,
    end: RunEnd,
    /// The run's end before the newest order, while the trainer may not have heard that one.
    end_before: Option<f64>,
    /// Own exchanges still to be done after the last step, of each fragment that has some left.
    final_exchanges_left: BTreeMap<u16, u32>,
    /// Whether this node's training was over before the run's.
    ends_before_the_run: bool,
    settlings: Settlings,
    /// When settling or leaving ends whatever is still open, or settling begins again.
    phase_deadline: Option<Time>,
    leaving_max: Duration,
    /// Peers that misbehaved, at most [`VIEW_MAX`].
    misbehaviours: BTreeMap<PeerId, u64>,
    /// The last of each of those peers.
    offences: BTreeMap<PeerId, Misbehaviour>,
    /// The owner wants the network left alone.
    is_resting: bool,
    stale_replies: u64,
    outbox: Outbox,
}

impl Node {
    /// A node at the beginning of its life, with its first effects to drain. `seed` decides every random choice that
    /// it will ever make.
    pub fn new(config: Config, me: PeerId, layout: Arc<ModelLayout>, seed: u64, now: Time) -> Node {
        let parameters = layout.parameters();
        let fragments = Fragments::of(&config.gossip, &layout);
        let chunking = Chunking::new(&fragments, config.holding, config.state_chunk);
        let mut node = Node {
            me,
            phase: Phase::Joining,
            membership: Membership::new(&config, me, seed, now),
            pairwise: Pairwise::new(&config, me, seed, &fragments),
            synchronous: Synchronous::new(&config, me, parameters, now).filter(|_| config.synchronous.is_fixed()),
            choosing: Choosing::new(&config, &layout, now),
            reputation: Reputation::default(),
            joining: Joining::new(me, seed, chunking.clone(), config.first_number, now),
            giving: Giving::new(chunking, *layout.digest()),
            rejoining: Rejoining::default(),
            end: config.end,
            final_exchanges_left: BTreeMap::new(),
            end_before: None,
            ends_before_the_run: false,
            settlings: Settlings::default(),
            phase_deadline: None,
            leaving_max: config.leaving_max,
            misbehaviours: BTreeMap::new(),
            offences: BTreeMap::new(),
            is_resting: false,
            stale_replies: 0,
            outbox: Outbox::default(),
            layout,
        };
        if let Some(order) = node.end.order.clone() {
            node.outbox.push(TrainerOrder::Finish(order)); // heard in an earlier life
        }
        if node.synchronous.is_some() {
            node.outbox.push(TrainerOrder::Average(Scheme::AllReduce));
        }
        if config.start == Start::WithModel {
            node.begin_training();
        }
        node
    }

    /// Takes in one fact. Never fails: a bad peer becomes a notice and a count.
    ///
    /// # Panics
    /// When effects of an earlier event were not drained: that is a mistake in the driver.
    pub fn handle(&mut self, now: Time, event: Event) {
        assert!(self.outbox.is_empty(), "drain all effects before the next event");
        if self.phase == Phase::Left {
            return;
        }
        self.excuse_absence(now);
        self.outbox.begin(now);
        let speed = if self.phase == Phase::Training { self.pairwise.training().tokens_per_second } else { 0.0 };
        self.membership.on_speed(speed);
        self.dispatch(now, event);
        self.on_time(now);
    }

    /// The next order, in order; `None` when all are drained.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.outbox.pop()
    }

    /// When to call [`handle`](Self::handle) with [`Event::TimePassed`] if nothing else happens before.
    pub fn next_deadline(&self) -> Option<Time> {
        let copies =
            self.synchronous.is_none() && (self.phase == Phase::Joining || self.is_rejoining()) && !self.is_resting;
        let joining = copies.then(|| self.joining.next_deadline());
        let waits_for_partners = self.phase == Phase::Settling && self.pairwise.is_idle();
        let deadlines = [
            Some(self.membership.next_deadline()),
            self.pairwise.next_deadline(),
            joining,
            self.giving.next_deadline(),
            self.phase_deadline,
            self.synchronous.as_ref().and_then(Synchronous::next_deadline),
            self.choosing.as_ref().map(Choosing::next_deadline),
            self.membership.next_partner_at(self.outbox.now()).filter(|_| waits_for_partners),
        ];
        (self.phase != Phase::Left).then(|| deadlines.into_iter().flatten().min()).flatten()
    }

    /// A picture of the node now.
    pub fn status(&self) -> Status {
        let members = self.membership.members(self.outbox.now());
        let share = |(peer, view): (&PeerId, &MemberView)| (*peer, self.pairwise.share_of(view.profile.holding));
        let mut status = Status {
            phase: self.phase,
            shares: (self.pairwise.share_of(self.membership.own_holding()), members.iter().map(share).collect()),
            copying: (self.phase == Phase::Joining || self.is_rejoining()).then(|| self.joining.status()),
            end: self.end.clone(),
            connected: self.membership.connected().collect(),
            known: self.membership.known(),
            members,
            banned: self.membership.banned(self.outbox.now()),
            distrusted: self.reputation.distrusted().collect(),
            offences: self.offences.clone(),
            is_resting: self.is_resting,
            misbehaviours: self.misbehaviours.clone(),
            stale_replies: self.stale_replies,
            ..Status::of(self.me)
        };
        self.pairwise.describe(&mut status);
        if let Some(synchronous) = &self.synchronous {
            synchronous.describe(self.outbox.now(), &mut status);
        }
        status
    }

    /// How much the node holds now.
    pub fn counts(&self) -> Counts {
        Counts {
            phase: self.phase,
            connected: self.membership.connected().count(),
            known: self.membership.known_count(),
            links: self.pairwise.link_count(),
            misbehaving: self.misbehaviours.len(),
            interval_steps: self.pairwise.interval_steps(),
        }
    }

    fn dispatch(&mut self, now: Time, event: Event) {
        match event {
            Event::PeerConnected { peer, addresses } => {
                if self.membership.on_connected(now, peer, addresses, &mut self.outbox) {
                    self.on_present(now, peer);
                }
            }
            Event::PeerDisconnected { peer } => self.on_disconnected(now, peer),
            Event::DialFailed { peer, addresses, reason } => {
                self.membership.on_dial_failed(now, peer, &addresses, reason);
            }
            // Both sides dial at times, and one of the two connections comes to nothing.
            Event::HandshakeRefused { peer, refusal: Refusal::Silent } if self.membership.is_connected(peer) => {}
            Event::HandshakeRefused { peer, refusal } => {
                self.membership.on_dial_failed(now, Some(peer), &[], refusal.to_string());
                if matches!(refusal, Refusal::OtherRun { .. }) {
                    self.membership.on_foreign(now, peer);
                }
                self.outbox.notice(Notice::PeerRefused { peer, refusal });
            }
            Event::AddressFound { address } => self.membership.on_address_found(address),
            Event::AddressLost { address } => self.membership.on_address_lost(&address),
            Event::PeersFound { peers } => self.membership.on_found(now, &peers),
            Event::PathChanged { peer, is_direct } => self.on_path_changed(now, peer, is_direct),
            Event::RangeFound { peer, range } => self.membership.on_range_found(peer, range),
            Event::MessageReceived { peer, message } => self.on_message(now, peer, message),
            Event::TransferReceived { peer, header, payload } => self.on_transfer(now, peer, header, payload),
            Event::TransferFinished { transfer } => self.on_transfer_ended(now, transfer, true),
            Event::TransferFailed { transfer, reason: _ } => self.on_transfer_ended(now, transfer, false),
            Event::PeerMisbehaved { peer, misbehaviour } => self.on_misbehaviour(now, peer, misbehaviour),
            Event::IdentityDoubled { peer } => self.outbox.notice(Notice::IdentityDoubled { peer }),
            Event::StepsCompleted(report) => {
                self.end_before = None;
                self.pairwise.on_report(now, report);
            }
            Event::TrainingCompleted(report) => self.on_training_completed(now, report),
            Event::SnapshotTaken { request, snapshot, report } => {
                self.on_reply(now, request, Reply::Snapshot(snapshot, report));
            }
            Event::Encoded { request, result } => self.on_reply(now, request, Reply::Codes(result)),
            Event::Merged { request, result } => self.on_reply(now, request, Reply::Merge(result)),
            Event::CorrectionApplied { request, report } => self.on_reply(now, request, Reply::Applied(report)),
            Event::StateLoaded { request, accepted, report } => {
                self.on_reply(now, request, Reply::Loaded(accepted, report));
            }
            Event::RequestFailed { request } => self.on_reply(now, request, Reply::Failed),
            Event::TimePassed => {}
            Event::LeaveRequested => self.on_leave_requested(now),
            Event::FinishOrdered { order } => {
                // Nobody else is to blame for an order of this machine.
                let _ = self.on_finish(None, &order);
            }
            Event::Contributed { request, contribution, digest, report } => {
                self.on_reply(now, request, Reply::Contributed(contribution, digest, report));
            }
            Event::Reduced { request, result } => self.on_reply(now, request, Reply::Reduced(result)),
            Event::HoldingChanged { holding } => self.on_holding_changed(now, holding),
            Event::ModelOutdated => self.on_model_outdated(now),
            Event::RestBegan => self.on_rest(now, true),
            Event::RestEnded => self.on_rest(now, false),
        }
    }

    /// Something was heard of a peer. Returns whether it had been out of reach for so long that its model went its own way.
    fn on_sign_of_life(&mut self, now: Time, peer: PeerId) -> bool {
        let away = self.membership.take_return(peer, self.pairwise.apart_after());
        if let Some(away) = away {
            self.pairwise.on_return(now, peer, away);
        }
        away.is_some()
    }

    fn on_message(&mut self, now: Time, peer: PeerId, message: Message) {
        if !self.membership.is_connected(peer) {
            return;
        }
        let is_rejoining = self.is_rejoining();
        let is_back = match message {
            Message::Accept(_) | Message::Reject(_) | Message::RefuseState { .. } => {
                self.membership.on_answer(now, peer)
            }
            _ => self.membership.on_heard(now, peer),
        };
        if is_back {
            self.on_present(now, peer);
        }
        self.on_sign_of_life(now, peer);
        let is_busy = self.is_busy_with(peer);
        let out = &mut self.outbox;
        let verdict = match message {
            Message::Shuffle { peers, wants_reply } => {
                let verdict = self.membership.on_shuffle(now, peer, &peers, wants_reply, out);
                self.tell_finish(peer);
                self.tell_scheme(peer);
                verdict
            }
            Message::Finish(order) => self.on_finish(Some(peer), &order),
            Message::Prune { peers } => self.membership.on_prune(now, peer, &peers, is_busy, out),
            Message::Propose(propose) => self.on_propose(now, peer, &propose),
            Message::Accept(accept) => self.pairwise.on_accept(now, peer, &accept, out),
            Message::Reject(reject) => {
                use RejectReason::{Joining, Leaving, Resting};
                if matches!(reject.reason, Joining | Leaving | Resting) {
                    self.joining.on_unable(peer);
                }
                let answered = self.pairwise.on_reject(now, peer, &reject, out);
                // Over a slow line it comes when the proposal has been given up; it has no model all the same.
                let wait = Duration::from_millis(reject.retry_after_ms.into()).min(RETRY_AFTER_MAX);
                let late = (reject.reason == Joining).then_some(wait);
                if let Some(wait) = answered.or(late) {
                    self.membership.avoid(peer, now + wait);
                }
                Ok(())
            }
            Message::RequestState { request, chunks } => {
                // It has no model to exchange, nor to compare a copy with.
                self.membership.avoid(peer, now + JOINING_RETRY);
                self.joining.on_unable(peer);
                let is_sound = !matches!(self.phase, Phase::Joining | Phase::Leaving | Phase::Left);
                let has_model = is_sound && !is_rejoining && !self.is_resting;
                let steps = has_model.then_some(self.pairwise.training().steps);
                self.giving.on_request(now, (peer, self.membership.range(peer)), (request, chunks), steps, out)
            }
            Message::RefuseState { request, retry_after_ms: _ } => {
                self.joining.on_refusal(now, peer, request);
                Ok(())
            }
            Message::Leave => {
                self.membership.on_leave(now, peer);
                self.joining.on_unable(peer);
                if let Some(synchronous) = &mut self.synchronous {
                    synchronous.on_lost(now, peer, out);
                }
                Ok(())
            }
            Message::Synchronous(word) => match &mut self.synchronous {
                Some(synchronous) => synchronous.on_word(now, peer, word, out),
                None => self.on_nothing_of_all_reduces(),
            },
            Message::Costs(_) | Message::Scheme(_) => self.on_scheme_message(now, peer, &message),
        };
        self.judge(now, peer, verdict);
    }

    fn on_propose(&mut self, now: Time, peer: PeerId, propose: &Propose) -> Result<(), Misbehaviour> {
        screen(&propose.standing)?;
        if propose.standing.gamma > 0.0 {
            // It trains: a joiner that asked to be left alone has its model now.
            self.membership.avoid(peer, now);
        }
        let own = self.pairwise.training().tokens_per_second as f32;
        let weights = self.membership.clamp_weights(peer, propose.standing.weight, own);
        let refuse = match self.phase {
            Phase::Joining => Some(RejectReason::Joining),
            Phase::Leaving | Phase::Left => Some(RejectReason::Leaving),
            // Who proposes has not heard yet that all average at once.
            _ if self.choosing.is_some() && (self.synchronous.is_some() || self.is_gathering()) => {
                Some(RejectReason::Busy)
            }
            _ if self.synchronous.is_some() => Some(RejectReason::Unacceptable),
            _ if self.is_resting => Some(RejectReason::Resting),
            _ if self.is_rejoining() => Some(RejectReason::Joining),
            Phase::Training | Phase::Settling | Phase::Completed => None,
        };
        let holding = self.membership.holding(peer);
        let admission = Admission { refuse, joining_retry: self.joining.retry(now), weights, holding };
        self.pairwise.on_propose(now, peer, propose, admission, &self.reputation, &mut self.outbox);
        if let Some(stalled) = self.pairwise.take_stalled() {
            self.on_misbehaviour(now, stalled, Misbehaviour::Stalled);
        }
        Ok(())
    }

    fn on_transfer(&mut self, now: Time, peer: PeerId, header: TransferHeader, payload: Payload) {
        // Whatever is transferred follows a word of ours.
        self.membership.on_answer(now, peer);
        self.on_sign_of_life(now, peer);
        let verdict = match header {
            TransferHeader::State { .. } => {
                let donor = self.witness(peer);
                let out = &mut self.outbox;
                self.joining.on_state(now, donor, &header, payload, &self.layout, out)
            }
            TransferHeader::Slices(_) | TransferHeader::Replica { .. } => match &mut self.synchronous {
                Some(synchronous) => synchronous.on_transfer(now, peer, (&header, payload), &mut self.outbox),
                None => self.on_nothing_of_all_reduces(),
            },
            header => {
                self.pairwise.on_transfer(now, peer, (&header, payload), &mut self.outbox);
                Ok(())
            }
        };
        self.judge(now, peer, verdict);
    }

    /// Something of an all-reduce has come, and this node takes part in none: where members choose, it is early or late.
    fn on_nothing_of_all_reduces(&self) -> Result<(), Misbehaviour> {
        if self.choosing.is_some() { Ok(()) } else { Err(Misbehaviour::Unsolicited) }
    }

    /// Whether something is under way with a peer that a closed connection would break off.
    fn is_busy_with(&self, peer: PeerId) -> bool {
        let is_member = self.synchronous.as_ref().is_some_and(|synchronous| synchronous.is_busy_with(peer));
        is_member
            || self.pairwise.is_busy_with(peer)
            || self.joining.is_busy_with(peer)
            || self.giving.is_busy_with(peer)
    }

    fn on_transfer_ended(&mut self, now: Time, transfer: TransferId, finished: bool) {
        if let Some((bytes, taken)) = self.outbox.transfer_ended(transfer)
            && finished
        {
            self.pairwise.on_sent(bytes, taken);
        }
        self.pairwise.on_transfer_ended(now, transfer, finished, &mut self.outbox);
        self.giving.on_transfer_ended(now, transfer, finished, &mut self.outbox);
        if let Some(synchronous) = &mut self.synchronous {
            synchronous.on_transfer_ended(now, transfer, finished, &mut self.outbox);
        }
    }

    fn on_disconnected(&mut self, now: Time, peer: PeerId) {
        if self.membership.on_disconnected(now, peer, &mut self.outbox) {
            self.on_transfers_impossible(now, peer);
        }
    }

    fn on_path_changed(&mut self, now: Time, peer: PeerId, is_direct: bool) {
        self.membership.on_path_changed(now, peer, is_direct);
        if is_direct {
            self.on_reachable(now, peer);
        } else {
            self.on_transfers_impossible(now, peer);
        }
    }

    /// Transfers to this peer are possible, where it is connected.
    fn on_reachable(&mut self, now: Time, peer: PeerId) {
        if let Some(synchronous) = &mut self.synchronous
            && self.membership.directly_connected().any(|connected| connected == peer)
        {
            synchronous.on_reachable(now, [peer], &mut self.outbox);
        }
    }

    fn on_rest(&mut self, now: Time, begins: bool) {
        self.is_resting = begins;
        if begins {
            self.joining.begin_rest(&mut self.outbox);
        }
        match &mut self.synchronous {
            Some(synchronous) if begins => synchronous.begin_rest(),
            Some(synchronous) => synchronous.end_rest(now, &mut self.outbox),
            None if begins => {}
            None => self.settle_if_left(now),
        }
    }

    /// The peer is gone, or only a relay leads to it, which carries messages alone.
    fn on_transfers_impossible(&mut self, now: Time, peer: PeerId) {
        self.pairwise.on_partner_lost(peer, &mut self.outbox);
        self.joining.on_partner_lost(now, peer);
        self.giving.give_up(peer);
        self.on_costs_lost(peer);
        if let Some(synchronous) = &mut self.synchronous {
            synchronous.on_lost(now, peer, &mut self.outbox);
        }
    }

    fn judge(&mut self, now: Time, peer: PeerId, verdict: Result<(), Misbehaviour>) {
        if let Err(misbehaviour) = verdict {
            self.on_misbehaviour(now, peer, misbehaviour);
        }
    }

    fn on_misbehaviour(&mut self, now: Time, peer: PeerId, misbehaviour: Misbehaviour) {
        let is_full = self.misbehaviours.len() >= VIEW_MAX && !self.misbehaviours.contains_key(&peer);
        if is_full && let Some((forgotten, _)) = self.misbehaviours.pop_first() {
            self.offences.remove(&forgotten);
        }
        self.offences.insert(peer, misbehaviour.clone());
        *self.misbehaviours.entry(peer).or_default() += 1;
        let ban = self.reputation.on_misbehaviour(now, peer, &misbehaviour);
        self.outbox.notice(Notice::PeerMisbehaved { peer, misbehaviour });
        if let Some(duration) = ban {
            self.outbox.notice(Notice::PeerBanned { peer, duration });
            self.membership.ban(now, peer, now + duration, &mut self.outbox);
        }
    }
}
