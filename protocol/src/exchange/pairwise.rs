//! Pairwise averaging as one part of the node: the exchange that it starts, those that it answers, what they have taught.
//!
//! Facts come in, orders go out by the outbox, and [`Pairwise::next_deadline`] says when time alone matters. The node
//! decides whom to ask and when nothing is to be exchanged; how an exchange goes is decided here.

mod probing;

use std::collections::BTreeMap;
use std::f64::consts::SQRT_2;
use std::time::Duration;

use super::averaging::{Averaging, LINK_INFLUENCE_MIN};
use super::last_merges::LastMerges;
use super::outcome::{Ended, Outcome, Way};
use super::responder::{Admission, Responder};
use super::starter::Starter;
use super::turns::Turns;
use crate::bulk::Payload;
use crate::config::Config;
use crate::effect::{TrainerOrder, TransferId};
use crate::event::TrainingReport;
use crate::fragments::{Fragments, Holding};
use crate::manifest::GossipKind;
use crate::message::{Accept, Propose, Reject, RejectReason, TransferHeader};
use crate::misbehaviour::Misbehaviour;
use crate::notice::Notice;
use crate::outbox::{Outbox, Purpose, Reply};
use crate::part::{Part, Vector};
use crate::peer::PeerId;
use crate::reputation::Reputation;
use crate::scheme::Costs;
use crate::status::Status;
use crate::time::Time;

/// At most one exchange of our own, a few of others, and what all of them have taught.
#[derive(Debug)]
pub(crate) struct Pairwise {
    me: PeerId,
    averaging: Averaging,
    starter: Starter,
    responder: Responder,
    /// Whose exchange has moved the model here last, and which fragment, until somebody asks. None from before the end of training.
    answered: Option<(PeerId, u16)>,
}

/// What is wrong with a reply of trainer or worker.
#[derive(Debug)]
pub(crate) enum Unfit {
    /// The bytes of this partner were.
    Partner(PeerId, Misbehaviour),
    /// It answers another order than it says.
    Reply,
}

impl Pairwise {
    pub(crate) fn new(config: &Config, me: PeerId, seed: u64, fragments: &Fragments) -> Pairwise {
        let parameters = fragments.parameters();
        let turns = Turns::new(fragments, config.holding);
        let (gossip, upload_cap) = ((config.gossip.clone(), turns), config.upload_bytes_per_second);
        Pairwise {
            me,
            averaging: Averaging::new(gossip, parameters, config.training, upload_cap),
            starter: Starter::new(me, seed, config.first_number),
            responder: Responder::new(parameters),
            answered: None,
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let near_end = self.averaging.step_time.near_end_at;
        [self.starter.next_deadline(), self.responder.next_deadline(), near_end].into_iter().flatten().min()
    }

    pub(crate) fn on_deadline(&mut self, now: Time, out: &mut Outbox) {
        self.starter.on_deadline(now, &mut self.averaging, out);
        self.responder.on_deadline(now, &mut self.averaging, out);
        self.averaging.step_time.near_end_at.take_if(|at| *at <= now);
    }

    /// Whether an exchange with this peer may still need its connection.
    pub(crate) fn is_busy_with(&self, peer: PeerId) -> bool {
        self.starter.is_busy_with(peer) || self.responder.may_need(peer)
    }

    /// Whether no exchange of our own is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.starter.is_idle()
    }

    /// Whether nothing is under way, of our own or of others.
    pub(crate) fn is_done(&self) -> bool {
        self.starter.is_idle() && self.responder.under_way() == 0 && !self.responder.is_replying()
    }

    /// How training goes, as told last.
    pub(crate) fn training(&self) -> &TrainingReport {
        &self.averaging.training
    }

    pub(crate) fn on_report(&mut self, now: Time, report: TrainingReport) {
        self.averaging.on_report(now, report);
    }

    /// A peer is back that was out of reach for `away`.
    pub(crate) fn on_return(&mut self, now: Time, peer: PeerId, away: Duration) {
        self.averaging.on_return(now, peer, away);
    }

    /// How long a peer must have been out of reach for its model to have gone its own way.
    pub(crate) fn apart_after(&self) -> Duration {
        self.averaging.apart_after()
    }

    /// So many bytes were sent in this time.
    pub(crate) fn on_sent(&mut self, bytes: usize, taken: Duration) {
        self.averaging.cadence.on_sent(bytes, taken);
    }

    /// Answers a proposal.
    pub(crate) fn on_propose(
        &mut self,
        now: Time,
        peer: PeerId,
        propose: &Propose,
        mut admission: Admission,
        reputation: &Reputation,
        out: &mut Outbox,
    ) {
        let goes_first = || self.starter.goes_first(self.me, peer).then_some(RejectReason::Busy);
        admission.refuse = admission.refuse.or_else(goes_first);
        self.averaging.on_takes_part(now, peer);
        self.responder.on_propose(now, peer, propose, admission, (&mut self.averaging, reputation), out);
    }

    /// This node was not there for so long.
    pub(crate) fn on_absence(&mut self, absence: Duration) {
        self.responder.on_absence(absence);
    }

    /// Who has kept others waiting, and had to give way to a proposal, once.
    pub(crate) fn take_stalled(&mut self) -> Option<PeerId> {
        self.responder.take_stalled()
    }

    /// # Errors
    /// When the terms are out of range, or others than before.
    pub(crate) fn on_accept(
        &mut self,
        now: Time,
        peer: PeerId,
        accept: &Accept,
        out: &mut Outbox,
    ) -> Result<(), Misbehaviour> {
        self.averaging.on_takes_part(now, peer);
        self.starter.on_accept(now, peer, accept, &mut self.averaging, out)
    }

    /// Returns how long the partner wants to be left alone.
    pub(crate) fn on_reject(&mut self, now: Time, peer: PeerId, reject: &Reject, out: &mut Outbox) -> Option<Duration> {
        if reject.reason == RejectReason::Resting {
            self.averaging.on_rest(now, peer);
        }
        self.starter.on_reject(now, peer, reject, &mut self.averaging, out)
    }

    /// Bulk of an exchange; a joiner's state is none.
    pub(crate) fn on_transfer(
        &mut self,
        now: Time,
        peer: PeerId,
        (header, payload): (&TransferHeader, Payload),
        out: &mut Outbox,
    ) {
        match *header {
            TransferHeader::Scales { exchange } => self.responder.on_scales(peer, exchange, payload, out),
            TransferHeader::ProposalCodes { exchange } => {
                self.responder.on_codes(now, (peer, exchange), payload, &self.averaging, out);
            }
            TransferHeader::ReplyCodes { exchange } => {
                self.starter.on_reply(peer, exchange, payload, &self.averaging, out);
            }
            TransferHeader::Merged { exchange, digest } => {
                self.starter.on_partner_merged(peer, exchange, digest, &self.averaging, out);
            }
            TransferHeader::State { .. } | TransferHeader::Slices(_) | TransferHeader::Replica { .. } => {}
        }
    }

    pub(crate) fn on_transfer_ended(&mut self, now: Time, transfer: TransferId, finished: bool, out: &mut Outbox) {
        self.starter.on_transfer_ended(transfer, finished);
        self.responder.on_transfer_ended(now, (transfer, finished), &self.averaging, out);
    }

    /// What trainer or worker reply to an order of an exchange, given `waited` ago.
    pub(crate) fn on_reply(
        &mut self,
        now: Time,
        (purpose, waited): (Purpose, Duration),
        reply: Reply,
        reputation: &mut Reputation,
        out: &mut Outbox,
    ) -> Result<(), Unfit> {
        if matches!(reply, Reply::Codes(_) | Reply::Merge(_)) {
            self.averaging.cadence.on_work(waited);
        }
        let averaging = &mut self.averaging;
        match (purpose, reply) {
            (Purpose::StarterSnapshot(number), Reply::Snapshot(snapshot, report)) => {
                self.starter.on_snapshot(number, snapshot, &report, averaging, out);
                Ok(())
            }
            (Purpose::StarterCodes(number), Reply::Codes(result)) => {
                self.starter.on_encoded(number, result, out);
                Ok(())
            }
            (Purpose::StarterMerge(number), Reply::Merge(result)) => self
                .starter
                .on_merged(now, number, result, (averaging, reputation), out)
                .map_err(|(peer, what)| Unfit::Partner(peer, what)),
            (Purpose::ResponderSnapshot(peer, number), Reply::Snapshot(snapshot, report)) => {
                self.responder.on_snapshot(now, (peer, number), (snapshot, &report), averaging, out);
                Ok(())
            }
            (Purpose::ResponderCodes(peer, number), Reply::Codes(result)) => self
                .responder
                .on_encoded(now, (peer, number), result, averaging, out)
                .map_err(|what| Unfit::Partner(peer, what)),
            (Purpose::ResponderMerge(peer, number), Reply::Merge(result)) => {
                let merged = self.responder.on_merged(peer, number, result, (averaging, reputation), out);
                if let Some(fragment) = merged.map_err(|what| Unfit::Partner(peer, what))? {
                    self.answered = Some((peer, fragment));
                }
                Ok(())
            }
            (Purpose::Correction { part: _, snapshot_steps }, Reply::Applied(report)) => {
                let steps = report.steps.saturating_sub(snapshot_steps);
                averaging.gain.on_applied(steps, averaging.cadence.interval());
                Ok(())
            }
            (purpose, Reply::Failed) => {
                self.on_request_failed(purpose, out);
                Ok(())
            }
            _ => Err(Unfit::Reply),
        }
    }

    /// A driver's queue was full.
    fn on_request_failed(&mut self, purpose: Purpose, out: &mut Outbox) {
        let averaging = &mut self.averaging;
        match purpose {
            Purpose::StarterSnapshot(number) | Purpose::StarterCodes(number) | Purpose::StarterMerge(number) => {
                self.starter.on_overload(number, averaging, out);
            }
            Purpose::ResponderSnapshot(peer, number)
            | Purpose::ResponderCodes(peer, number)
            | Purpose::ResponderMerge(peer, number) => self.responder.on_overload(peer, number, averaging, out),
            // Counted by the driver; one-sided, like a crash at this moment.
            Purpose::Correction { .. } | Purpose::StateSnapshot | Purpose::StateLoad => {}
            Purpose::Contribution(_) | Purpose::Reduction | Purpose::ReplicaCopy(_) | Purpose::ReplicaLoad(_) => {}
        }
    }

    /// No more bytes come from this peer, or go to it.
    pub(crate) fn on_partner_lost(&mut self, peer: PeerId, out: &mut Outbox) {
        self.averaging.links.on_partner_lost(peer);
        self.starter.on_partner_lost(peer, &mut self.averaging, out);
        self.responder.on_partner_lost(peer, &mut self.averaging, out);
    }

    /// The model is another one.
    pub(crate) fn on_model_replaced(&mut self, out: &mut Outbox) {
        self.averaging.links.forget_all();
        self.starter.on_model_replaced(&mut self.averaging, out);
        self.responder.on_model_replaced(&mut self.averaging, out);
    }

    /// This node holds other fragments of the model now; returns whether some are new.
    pub(crate) fn on_holding_changed(&mut self, holding: Holding, out: &mut Outbox) -> bool {
        let has_new = self.averaging.hold(holding);
        self.starter.on_holding_changed(&mut self.averaging, out);
        self.responder.on_holding_changed(&mut self.averaging, out);
        has_new
    }

    /// Members average in pairs again, after they did all at once, from one model. A step takes this long.
    pub(crate) fn on_return_to_pairs(&mut self, step_seconds: Option<f64>, out: &mut Outbox) {
        self.on_model_replaced(out);
        self.averaging.set_step_seconds(step_seconds.unwrap_or_default());
        self.schedule();
    }

    /// What averaging costs this node; `None` before it is known how long a step takes. `step_seconds`: where it is known
    /// better than from reports.
    pub(crate) fn costs(&self, step_seconds: Option<f64>) -> Option<Costs> {
        let Averaging { cadence, .. } = &self.averaging;
        let step_seconds = step_seconds.unwrap_or(self.averaging.step_seconds());
        (step_seconds > 0.0).then(|| Costs {
            step_seconds: step_seconds as f32,
            uplink: cadence.sends_at_most().unwrap_or_default() as f32,
            round_trip: cadence.round_trip_seconds().unwrap_or_default() as f32,
            drifts: cadence.is_limited(),
        })
    }

    /// Own training is over: only final exchanges are still to come.
    pub(crate) fn on_training_over(&mut self) {
        self.answered = None;
        self.averaging.on_training_over();
    }

    /// This node trains: the next round is due an interval from now.
    pub(crate) fn schedule(&mut self) {
        self.averaging.links.wake();
        self.starter.schedule(self.averaging.training.steps, self.averaging.round_steps());
    }

    /// Begins a round whatever the interval says: when the last steps are to be shared.
    pub(crate) fn begin_round(&mut self) {
        self.starter.schedule(self.averaging.training.steps, 1.0);
    }

    /// Ends a round where it is over and begins the next; `false` where none is due. `members`: as how many the
    /// others count.
    pub(crate) fn begin_due_round(&mut self, now: Time, members: impl Fn() -> f64, out: &mut Outbox) -> bool {
        // The partner keeps a place for this node from the proposal on, and there is nothing to send before the end of the step.
        let is_due = self.starter.is_due(self.averaging.training.steps);
        if !is_due || !self.averaging.step_time.is_near_end(now, crate::bounds::PROPOSED_BEFORE_STEP_ENDS) {
            return false;
        }
        if self.averaging.gossip.outer_learning_rate > 0.0 {
            out.push(TrainerOrder::AdvanceOuter);
        }
        if let Some(members) = self.averaging.member_count.on_round(members()) {
            out.push(TrainerOrder::MatchBatch { members });
        }
        self.averaging.on_round();
        self.averaging.gain.on_round(self.averaging.turns.held_count());
        self.averaging.links.on_round(self.starter.round().0);
        self.schedule();
        true
    }

    /// Proposes an exchange of a fragment that is wanted to one of `partners` with whom none is under way.
    /// Links are for models that move: signs bring models near one another quickly and together slowly. So exchanges are
    /// on the grid where they are the last ones (`is_last`), and where own training moves the model no more.
    pub(crate) fn start(
        &mut self,
        now: Time,
        (mut partners, is_last): (Vec<(PeerId, Holding)>, bool),
        is_wanted: impl Fn(u16) -> bool,
        reputation: &Reputation,
        out: &mut Outbox,
    ) {
        partners.retain(|(peer, _)| !self.responder.is_busy_with(*peer));
        let has_partner = |fragment| is_wanted(fragment) && partners.iter().any(|(_, holding)| holding.holds(fragment));
        let (round, has_asked) = self.starter.round();
        let Some(part) = self.averaging.turns.take(round, has_partner) else { return };
        let fragment = part.fragment.index;
        partners.retain(|(_, holding)| holding.holds(fragment));
        self.starter.pass_over_silent(now, &mut partners);
        let mut way = Way::Grid;
        if self.averaging.gossip.kind == GossipKind::Links && self.averaging.has_moved && !is_last {
            let is_believed = |peer| reputation.influence(peer) >= LINK_INFLUENCE_MIN;
            partners = self.averaging.links.choose(partners, (fragment, !has_asked), is_believed);
            way = Way::Link;
        }
        self.starter.start(now, (part, way), (&self.averaging, reputation), &partners, out);
    }

    /// Which fragment the last exchange of another member has moved here, where it was this one's and nobody has asked since.
    pub(crate) fn take_answered(&mut self, peer: PeerId) -> Option<u16> {
        self.answered.take().filter(|(answered, _)| *answered == peer).map(|(_, fragment)| fragment)
    }

    /// What became of the last exchange of our own, once.
    pub(crate) fn take_ended(&mut self) -> Option<Ended> {
        self.starter.take_ended()
    }

    /// Learns from an exchange of our own: how often to exchange. Where the run averages its momentum as well, and
    /// `goes_on`, that follows with the same partner.
    pub(crate) fn conclude(
        &mut self,
        now: Time,
        ended: &Ended,
        goes_on: bool,
        reputation: &Reputation,
        out: &mut Outbox,
    ) {
        let Ended { partner, holding, part, outcome } = *ended;
        match outcome {
            Outcome::Merged { steps } if part.vector == Vector::Model => {
                let averaging = &mut self.averaging;
                let step_seconds = averaging.step_seconds();
                if averaging.cadence.on_exchange(steps, step_seconds) {
                    let ratio = averaging.cadence.ratio().unwrap_or_default();
                    out.notice(Notice::BudgetTooSmall { interval_steps: averaging.cadence.interval(), ratio });
                }
                if averaging.averages_momentum() && goes_on && reputation.is_trusted(partner) {
                    let momentum = Part { vector: Vector::Momentum, ..part };
                    self.starter.start(
                        now,
                        (momentum, Way::Grid),
                        (&self.averaging, reputation),
                        &[(partner, holding)],
                        out,
                    );
                }
            }
            Outcome::Unanswered | Outcome::BrokenOff => self.averaging.cadence.on_failure(),
            Outcome::Merged { .. } | Outcome::Rejected | Outcome::KeptWaiting | Outcome::Probed(_) => {}
        }
    }

    /// What partners have said of that counts no more.
    pub(crate) fn forget_outlier(&mut self) {
        self.averaging.forget_outlier();
    }

    /// What partners declared as the swarm's progress that hardly let this node's model in any more; `None` for one that is no
    /// outlier. `others`: how many members of the swarm this node knows of.
    pub(crate) fn progress_missed(&self, others: impl Fn() -> usize) -> Option<f64> {
        self.averaging.progress_missed(others)
    }

    /// The model was copied: its weight begins small. `clip`: what a second peer lets in, where one was asked.
    pub(crate) fn begin_ramp(&mut self, clip: Option<f64>) {
        self.averaging.begin_ramp(clip);
    }

    /// Models of a run that is over and no further apart than this are one: a Euclidean norm. 0: not known.
    pub(crate) fn settled_distance(&self) -> f64 {
        self.averaging.settled_distance()
    }

    /// Partners with whom a reference is kept, of the fragment that has most.
    pub(crate) fn link_count(&self) -> usize {
        let counts = self.averaging.turns.held().iter().map(|fragment| self.averaging.links.count_of(*fragment));
        counts.max().unwrap_or_default()
    }

    /// Whether a node that holds this much holds something that this one does.
    pub(crate) fn shares(&self, holding: Holding) -> bool {
        self.fragments().iter().any(|fragment| holding.holds(*fragment))
    }

    /// Which share of the model's fragments a node holds that holds this much.
    pub(crate) fn share_of(&self, holding: Holding) -> f64 {
        self.averaging.turns.share_of(holding)
    }

    /// In how many fragments the model is cut.
    pub(crate) fn fragment_count(&self) -> u16 {
        self.averaging.turns.count()
    }

    /// Those that this node holds.
    pub(crate) fn fragments(&self) -> &[u16] {
        self.averaging.turns.held()
    }

    /// Steps between own exchanges at present.
    pub(crate) fn interval_steps(&self) -> f64 {
        self.averaging.cadence.interval()
    }

    /// Own exchanges at the end of a run: so many of each fragment. What was not exchanged is as training left it.
    pub(crate) fn final_exchanges(&self) -> BTreeMap<u16, u32> {
        let count = self.averaging.gossip.final_exchanges;
        self.fragments().iter().map(|fragment| (*fragment, count)).filter(|_| count > 0).collect()
    }

    /// What the last exchanges of those fragments of the model say that others hold, where one was merged since the last call.
    pub(crate) fn take_last_merges(&mut self, is_held: impl Fn(u16) -> bool) -> Option<LastMerges> {
        self.averaging.take_last_merges(is_held)
    }

    pub(crate) fn last_merge_of(&self, part: Part) -> Option<LastMerges> {
        self.averaging.last_merge_of(part)
    }

    /// Fills in what exchanges have to say of the node.
    pub(crate) fn describe(&self, status: &mut Status) {
        let Averaging { training, counters, last_distance, cadence, gain, timeout, links, .. } = &self.averaging;
        status.training = *training;
        status.exchanges = counters.clone();
        status.disagreement = last_distance.map(|distance| distance / SQRT_2);
        status.interval_steps = cadence.interval();
        status.disagreement_ratio = cadence.ratio();
        status.uplink_bytes_per_second = cadence.uplink_bytes_per_second();
        status.links = links.count();
        status.gamma = gain.gamma();
        status.delay_rounds = gain.delay();
        status.loop_gain = gain.gain();
        status.exchange_deadline = timeout.limit();
    }
}
