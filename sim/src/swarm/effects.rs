//! Carrying out what a node orders.

use std::time::Duration;

use murmur_protocol::numerics::{self, CodeWidth, EncodeRole, MergeJob, MergeRole};
use murmur_protocol::random::RngExt;
use murmur_protocol::{
    Address, Correction, Effect, Event, Message, NetworkOrder, Notice, Part, Payload, PeerId, RequestId, Selection,
    TrainerOrder, TransferHeader, TransferId, WorkerOrder, codec,
};

use super::Swarm;
use super::sabotage::{Sabotage, ambient};
use super::training::length_of;
use crate::checks::{self, Answer};
use crate::happening::{DialArrived, Happening, TransferArrived};
use crate::host::{Landing, Merging, host_at};
use crate::liar::Old;
use crate::network::TransferFate;
use crate::record::{Accusation, MISSED_FOR, MergeRecord, Side};
use crate::scenario::HostIndex;
use crate::trainer::Order;

/// A dial that nothing answers fails after this, as in the daemon's network driver.
const UNREACHABLE_AFTER: Duration = Duration::from_secs(10);

/// The transfer of something repeated on a liar's own account, which no node asks about.
const REPEATED: TransferId = TransferId(u64::MAX);

impl Swarm {
    /// Carries out all effects of one event; a correction among them belongs to `merged`.
    pub(super) fn drain(&mut self, index: HostIndex, mut merged: Option<Merging>) {
        let now = self.queue.now();
        let mut count = 0;
        while let Some(effect) = self.hosts[index].as_mut().and_then(|host| host.node.poll_effect()) {
            self.trace.effect(now, index, &effect);
            count += 1;
            self.carry_out(index, effect, &mut merged);
        }
        let peaks = &mut self.history.peaks;
        peaks.effects = peaks.effects.max(count);
        let Some(host) = self.hosts[index].as_mut() else { return };
        host.measure(peaks);
        if let Some(deadline) = host.node.next_deadline()
            && (deadline != host.wake.1 || deadline <= host.clock.shows(now))
        {
            host.wake = (host.wake.0 + 1, deadline);
            let woken = Happening::Woken { host: index, life: host.life, wake: host.wake.0 };
            self.queue.push(host.clock.reaches(deadline), woken);
        }
    }

    fn carry_out(&mut self, index: HostIndex, effect: Effect, merged: &mut Option<Merging>) {
        let now = self.queue.now();
        let host = self.hosts[index].as_mut().expect("an order comes from a running node");
        host.note_request(&effect);
        let verdict = host.left_alone.order(index, host.clock.shows(now), &effect);
        self.history.find(verdict);
        match effect {
            Effect::Network(order) => self.order_network(index, order),
            Effect::Trainer(order) => self.order_trainer(index, order, merged),
            Effect::Worker(order) => self.order_worker(index, order),
            Effect::Notice(notice) => self.note(index, notice),
            Effect::Stop => self.stop(index),
        }
    }

    fn order_network(&mut self, index: HostIndex, order: NetworkOrder) {
        match order {
            NetworkOrder::Dial { peer, addresses } => self.dial(index, peer, addresses),
            NetworkOrder::Disconnect { peer } => {
                let host = self.hosts[index].as_ref().expect("an order comes from a running node");
                host.links_to(peer).collect::<Vec<_>>().into_iter().for_each(|link| self.break_link(link));
            }
            NetworkOrder::Send { peer, message } => self.send(index, peer, message),
            NetworkOrder::StartTransfer { transfer, peer, header, payload } => {
                self.start_transfer(index, transfer, peer, header, payload);
            }
        }
    }

    fn order_trainer(&mut self, index: HostIndex, order: TrainerOrder, merged: &mut Option<Merging>) {
        match order {
            TrainerOrder::TakeSnapshot { request, selection } => {
                if let Selection::Part(part) = selection {
                    self.history.find(checks::only_held(index, self.scenario.nodes[index].holding, part));
                }
                self.order(index, Order::Snapshot(request, selection));
            }
            TrainerOrder::ApplyCorrection { request, part, correction, progress_shift } => {
                self.history.find(checks::only_held(index, self.scenario.nodes[index].holding, part));
                let merge = merged.take().map(|merging| self.keep_landing(index, merging, part, &correction));
                self.order(index, Order::Correction { request, part, correction, progress_shift, merge });
            }
            TrainerOrder::LoadState { request, chunks, holding, progress } => {
                let held = self.fragments.held(holding).collect();
                self.order(index, Order::State { request, chunks, held, progress });
            }
            TrainerOrder::AdvanceOuter => self.order(index, Order::AdvanceOuter),
            TrainerOrder::MatchBatch { members } => {
                self.catch_up(index);
                if let Some(host) = self.hosts[index].as_mut() {
                    host.trainer.set_members(members);
                }
            }
            TrainerOrder::Average(scheme) => self.average(index, scheme),
            TrainerOrder::Begin => self.begin_steps(index),
            TrainerOrder::End => self.end_steps(index),
            TrainerOrder::Finish(order) => {
                self.catch_up(index);
                if let Some(host) = self.hosts[index].as_mut() {
                    host.trainer.finish(order.ending);
                }
                if !self.disks[index].is_full {
                    self.disks[index].finish = Some(order);
                }
            }
            TrainerOrder::Complete => {}
            TrainerOrder::Contribute { .. } | TrainerOrder::TakeUp { .. } | TrainerOrder::LoadReplica { .. } => {
                self.order_member(index, order);
            }
        }
    }

    /// Records a merge whose correction is ordered now; returns the number under which it is remembered until it lands.
    fn keep_landing(&mut self, index: HostIndex, mut merging: Merging, part: Part, correction: &Correction) -> usize {
        let now = self.queue.now();
        merging.record.at = now;
        merging.record.age = now - merging.taken_at;
        merging.record.length = length_of(correction);
        let record = &merging.record;
        let (exchange, factor) = ((record.exchange, record.side, record.life), record.factor);
        let (taken_at, snapshot) = (merging.taken_at, merging.snapshot.clone());
        let landing = Landing { exchange, part, correction: correction.clone(), snapshot, taken_at, factor };
        let host = self.hosts[index].as_mut().expect("an order comes from a running node");
        let number = host.keep_landing(landing);
        if self.has_books {
            let verdicts = self.ledger.ordered(merging.record, merging.snapshot, correction.clone());
            verdicts.into_iter().for_each(|verdict| self.history.find(verdict));
        }
        number
    }

    fn order_worker(&mut self, index: HostIndex, order: WorkerOrder) {
        match order {
            WorkerOrder::Encode { request, snapshot, mut job } => {
                if self.scenario.worker.full_precision {
                    job.width = CodeWidth::Sixteen;
                    if let EncodeRole::Starter { scales } = &mut job.role {
                        *scales = None;
                    }
                }
                let now = self.queue.now();
                let host = self.hosts[index].as_mut().expect("an order comes from a running node");
                let snapshot = host.liar.as_mut().map_or(snapshot.clone(), |liar| liar.shows(&snapshot));
                let result = numerics::encode(&snapshot, &job, &self.buffers);
                if let Some(declared) = host.declared_for(job.nonce) {
                    declared.encoded = Some((snapshot, now));
                }
                self.reply_from_worker(index, Event::Encoded { request, result }, request);
            }
            WorkerOrder::Merge { request, job } => self.merge(index, request, job),
            WorkerOrder::Reduce { request, job } => {
                let result = numerics::reduce(job);
                self.reply_from_worker(index, Event::Reduced { request, result }, request);
            }
        }
    }

    fn merge(&mut self, index: HostIndex, request: RequestId, mut job: MergeJob) {
        if self.scenario.worker.full_precision {
            job.width = CodeWidth::Sixteen;
        }
        let now = self.queue.now();
        let host = self.hosts[index].as_mut().expect("an order comes from a running node");
        if let Some(liar) = &mut host.liar {
            liar.learn(job.clip);
        }
        let mut result = numerics::merge(&job, &self.buffers);
        if let Ok(result) = &mut result {
            host.node.spoil(&job, result);
            let declared = host.declared_for(job.nonce).expect("it was encoded");
            let (partner, clip) = (declared.partner, declared.clip);
            let (snapshot, taken_at) = declared.encoded.take().expect("an exchange is merged once");
            let record = MergeRecord {
                exchange: job.nonce,
                host: index,
                partner,
                life: host.life,
                side: if job.role == MergeRole::Responder { Side::Responder } else { Side::Starter },
                at: now,
                age: Duration::ZERO,
                width: job.width,
                begins_reference: job.reference.is_some() && !job.own.scales.is_empty(),
                partner_share: job.partner_share(),
                factor: 2.0 * job.gamma * job.partner_share(),
                clip,
                distance: result.norm,
                clip_scale: result.clip_scale,
                masked_blocks: result.masked_blocks,
                length: 0.0,
                landings: 0,
            };
            host.merging.insert(request, Merging { record, snapshot, taken_at });
        }
        self.reply_from_worker(index, Event::Merged { request, result }, request);
    }

    fn reply_from_worker(&mut self, index: HostIndex, done: Event, request: RequestId) {
        let worker = &self.scenario.worker;
        let is_full = self.is_learning && worker.overload > 0.0 && self.worker_dice.random::<f64>() < worker.overload;
        let (shortest, longest) = worker.delay;
        let mut delay = shortest + longest.saturating_sub(shortest).mul_f64(self.worker_dice.random::<f64>());
        if self.sabotage == Some(Sabotage::AmbientRandomness) {
            delay += Duration::from_nanos(ambient());
        }
        self.reply(index, delay, if is_full { Event::RequestFailed { request } } else { done });
    }

    /// Tells the present life of a host after `delay`.
    pub(super) fn reply(&mut self, index: HostIndex, delay: Duration, event: Event) {
        let Some(life) = self.hosts[index].as_ref().map(|host| host.life) else { return };
        self.queue.push(self.queue.now() + delay, Happening::Told { host: index, life, event: Box::new(event) });
    }

    fn dial(&mut self, index: HostIndex, expected: Option<PeerId>, addresses: Vec<Address>) {
        let target = addresses.first().and_then(host_at).filter(|target| *target < self.hosts.len());
        let Some(target) = target else {
            let reason = "no such address".to_owned();
            self.reply(index, Duration::ZERO, Event::DialFailed { peer: expected, addresses, reason });
            return;
        };
        let stands_still = self.paused_until[target] > self.queue.now() + UNREACHABLE_AFTER;
        if stands_still || !self.network.can_reach(index, target) || self.network.dial_fails() {
            let reason = "no answer".to_owned();
            self.reply(index, UNREACHABLE_AFTER, Event::DialFailed { peer: expected, addresses, reason });
            return;
        }
        let life = self.hosts[index].as_ref().expect("it dials").life;
        let arrival = self.queue.now() + self.network.latency(index, target);
        let dial = DialArrived { dialer: (index, life), target, expected, addresses };
        self.queue.push(arrival, Happening::DialArrived(Box::new(dial)));
    }

    fn send(&mut self, index: HostIndex, peer: PeerId, message: Message) {
        let partner = match &message {
            Message::Propose(_) | Message::Accept(_) => self.host_behind(index, peer),
            _ => None,
        };
        let host = self.hosts[index].as_mut().expect("an order comes from a running node");
        match &message {
            Message::Propose(propose) => host.declare(propose.nonce, partner, f64::from(propose.standing.clip)),
            Message::Accept(accept) => {
                if let Some(exchange) = host.name_of(peer, accept.exchange) {
                    host.declare(exchange, partner, f64::from(accept.standing.clip));
                }
                let verdict = host.answers.give(Answer::Accept, peer, accept.exchange, digest_of(&message));
                self.history.find(verdict);
            }
            _ => {}
        }
        let (message, old) = match host.liar.as_mut() {
            None => (message, None),
            Some(liar) => {
                let message = liar.says(message);
                let old = liar.repeats(peer, Old::Words(message.clone()));
                (message, old)
            }
        };
        self.put_on_link(index, peer, message);
        self.repeat(index, old);
    }

    fn put_on_link(&mut self, index: HostIndex, peer: PeerId, message: Message) {
        let Some(link) = self.hosts[index].as_ref().and_then(|host| host.link_to(peer)) else { return };
        let traffic = &mut self.history.traffic[index];
        traffic.control_messages += 1;
        traffic.control_bytes += codec::encoded_length(&message) as u64;
        let Some(known) = self.network.link(link) else { return };
        let to = known.other_end(index);
        let opens_at = known.opens_at(to);
        let [first, second] = self.network.message_delays(index, to);
        for delay in [second, first].into_iter().flatten() {
            let arrived = Happening::MessageArrived { link, to, message: Box::new(message.clone()) };
            self.queue.push((self.queue.now() + delay).max(opens_at), arrived);
        }
        self.wear(link);
    }

    fn start_transfer(
        &mut self,
        index: HostIndex,
        transfer: TransferId,
        peer: PeerId,
        header: TransferHeader,
        payload: Payload,
    ) {
        let host = self.hosts[index].as_mut().expect("an order comes from a running node");
        if let TransferHeader::Merged { exchange, digest } = &header {
            let verdict = host.answers.give(Answer::Merged, peer, *exchange, *digest);
            self.history.find(verdict);
            if host.node.is(Sabotage::LosesReplies) {
                self.reply(index, Duration::from_millis(10), Event::TransferFinished { transfer });
                return;
            }
        }
        if host.liar.as_ref().is_some_and(|liar| liar.withholds(&header)) {
            self.reply(index, Duration::from_millis(10), Event::TransferFinished { transfer });
            return;
        }
        let to = host.link_to(peer).and_then(|link| self.network.link(link)).map(|link| link.other_end(index));
        let reason = if !to.is_some_and(|to| self.network.is_direct(index, to)) {
            Some("no direct connection")
        } else {
            self.draw_refusal(self.scenario.drivers.full_queue).map(|_| "the network's queue is full")
        };
        if let Some(reason) = reason {
            // As one that is broken off: where only a relay leads there, say.
            if let Some(to) = self.host_of(peer) {
                self.history.miss(index, to, self.queue.now() + MISSED_FOR);
            }
            self.reply(index, Duration::ZERO, Event::TransferFailed { transfer, reason: reason.to_owned() });
            return;
        }
        let peaks = &mut self.history.peaks;
        peaks.payload_bytes = peaks.payload_bytes.max(payload.len());
        let (header, payload, old) = match self.hosts[index].as_mut().and_then(|host| host.liar.as_mut()) {
            None => (header, payload, None),
            Some(liar) => {
                let (header, payload) = liar.sends(header, payload);
                let old = liar.repeats(peer, Old::Bulk(header.clone(), payload.clone()));
                (header, payload, old)
            }
        };
        self.put_bulk_on_link(index, transfer, peer, header, payload);
        self.repeat(index, old);
    }

    fn put_bulk_on_link(
        &mut self,
        index: HostIndex,
        transfer: TransferId,
        peer: PeerId,
        header: TransferHeader,
        payload: Payload,
    ) {
        let now = self.queue.now();
        let Some(host) = self.hosts[index].as_mut() else { return };
        let Some(link) = host.link_to(peer) else { return };
        let Some(known) = self.network.link(link) else { return };
        let (to, life) = (known.other_end(index), host.life);
        let opens_at = known.opens_at(to);
        if transfer != REPEATED {
            host.transfers.insert(transfer, (link, matches!(header, TransferHeader::State { .. })));
        }
        let traffic = &mut self.history.traffic[index];
        traffic.payloads += 1;
        traffic.payload_bytes += payload.len() as u64;
        match self.network.transfer_fate(now, index, to, payload.len()) {
            TransferFate::Arrives { after, confirmed } => {
                self.history.miss(index, to, now + after);
                let from = (index, life);
                let arrived = TransferArrived { link, to, from, transfer, header, payload, confirmed };
                self.queue.push((now + after).max(opens_at), Happening::TransferArrived(Box::new(arrived)));
            }
            TransferFate::BreaksOff { after } => {
                self.history.miss(index, to, now + MISSED_FOR);
                let ended = Happening::TransferEnded { host: index, life, transfer, finished: false };
                self.queue.push(now + after, ended);
            }
        }
        self.wear(link);
    }

    /// Sends again what a liar wants to repeat.
    fn repeat(&mut self, index: HostIndex, old: Option<(PeerId, Old)>) {
        match old {
            None => {}
            Some((peer, Old::Words(message))) => {
                if let Message::Propose(propose) = &message {
                    self.ledger.repeated(propose.nonce);
                }
                self.put_on_link(index, peer, message);
            }
            Some((peer, Old::Bulk(header, payload))) => {
                self.put_bulk_on_link(index, REPEATED, peer, header, payload);
            }
        }
    }

    fn note(&mut self, index: HostIndex, notice: Notice) {
        let at = self.queue.now();
        let Some(host) = self.hosts[index].as_mut() else { return };
        match &notice {
            Notice::ExchangeCompleted { .. } => {
                host.tally.exchanges += 1;
                host.tally.last_exchange = at;
                self.exchanges.0 += 1;
            }
            Notice::ExchangeFailed { failure, .. } => {
                self.exchanges.1 += u64::from(*failure != murmur_protocol::ExchangeFailure::Rejected);
            }
            Notice::PeerMisbehaved { peer, misbehaviour } => {
                let of = self.host_of(*peer);
                let is_honest = |host: HostIndex| self.scenario.nodes[host].lie.is_none();
                // Of two nodes that are one to others, neither is to blame for what both said, nor who answers one at the other.
                let is_double = self.hosts[index].as_ref().is_some_and(|host| self.is_doubled(host.peer));
                let is_among_honest =
                    is_honest(index) && of.is_none_or(is_honest) && !is_double && !self.is_doubled(*peer);
                let misbehaviour = misbehaviour.clone();
                self.history.accuse(Accusation { at, by: index, of, is_among_honest, misbehaviour });
                return;
            }
            Notice::MembersChanged { joined, left, .. } => {
                host.group.extend(joined);
                host.group.retain(|peer| !left.contains(peer));
            }
            _ => {}
        }
        self.history.note(at, index, notice);
    }
}

/// Of every word of a message.
fn digest_of(message: &Message) -> u64 {
    let hash = blake3::hash(&codec::encode(message));
    u64::from_le_bytes(std::array::from_fn(|index| hash.as_bytes()[index]))
}
