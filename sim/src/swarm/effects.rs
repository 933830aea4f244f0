//! Carrying out what a node orders.

use std::time::Duration;

use murmur_protocol::numerics::{self, CodeWidth, MergeRole};
use murmur_protocol::random::RngExt;
use murmur_protocol::{Address, Effect, Event, Notice, Payload, PeerId, TransferHeader, TransferId};

use super::Swarm;
use crate::happening::Happening;
use crate::host::{Merging, host_at};
use crate::network::TransferFate;
use crate::record::{Accusation, MergeRecord, Side};
use crate::scenario::HostIndex;
use crate::trainer::Order;

/// A dial that nothing answers fails after this, as in the daemon's network driver.
const UNREACHABLE_AFTER: Duration = Duration::from_secs(10);

impl Swarm {
    /// Carries out all effects of one event; a correction among them belongs to `merged`.
    pub(super) fn drain(&mut self, index: HostIndex, merged: Option<Merging>) {
        let now = self.queue.now();
        let mut count = 0;
        while let Some(effect) = self.hosts[index].as_mut().and_then(|host| host.node.poll_effect()) {
            self.trace.write(now, index, '>', &effect);
            count += 1;
            self.carry_out(index, effect, merged.as_ref());
        }
        let peaks = &mut self.history.peaks;
        peaks.effects = peaks.effects.max(count);
        let Some(host) = self.hosts[index].as_mut() else { return };
        host.measure(peaks);
        if let Some(deadline) = host.node.next_deadline()
            && (deadline != host.wake.1 || deadline <= now)
        {
            host.wake = (host.wake.0 + 1, deadline);
            let woken = Happening::Woken { host: index, life: host.life, wake: host.wake.0 };
            self.queue.push(deadline, woken);
        }
    }

    fn carry_out(&mut self, index: HostIndex, effect: Effect, merged: Option<&Merging>) {
        let host = self.hosts[index].as_mut().expect("an order comes from a running node");
        host.note_request(&effect);
        match effect {
            Effect::Dial { peer, addresses } => self.dial(index, peer, addresses),
            Effect::Disconnect { peer } => {
                let links = host.links.iter().copied();
                let to_peer = links.filter(|link| self.network.links[link].other_peer(index) == peer);
                to_peer.collect::<Vec<_>>().into_iter().for_each(|link| self.break_link(link));
            }
            Effect::Send { peer, message } => {
                let Some(link) = self.link_to(index, peer) else { return };
                let to = self.network.links[&link].other_end(index);
                for delay in self.network.message_delays() {
                    let arrival = (self.queue.now() + delay).max(self.network.links[&link].opens_at(to));
                    self.queue.push(arrival, Happening::MessageArrived { link, to, message: message.clone() });
                }
                self.wear(link);
            }
            Effect::StartTransfer { transfer, peer, header, payload } => {
                self.start_transfer(index, transfer, peer, header, payload);
            }
            Effect::TakeSnapshot { request, selection } => self.order(index, Order::Snapshot(request, selection)),
            Effect::Encode { request, snapshot, mut job } => {
                if self.scenario.worker.full_precision {
                    job.steps = None;
                }
                let payload = numerics::encode(&snapshot, &job);
                self.reply_from_worker(index, Event::Encoded { request, payload }, Event::RequestFailed { request });
            }
            Effect::Merge { request, snapshot, mut job } => {
                if self.scenario.worker.full_precision {
                    job.width = CodeWidth::Wide;
                }
                let result = numerics::merge(&snapshot, &job);
                if let Ok(result) = &result {
                    let side = if job.role == MergeRole::Responder { Side::Responder } else { Side::Starter };
                    let factor = 2.0 * job.gamma * job.partner_share();
                    let clipped_distance = result.clip_scale * result.distance;
                    host.merging.insert(request, Merging { exchange: job.nonce, side, factor, clipped_distance });
                }
                self.reply_from_worker(index, Event::Merged { request, result }, Event::RequestFailed { request });
            }
            Effect::ApplyCorrection { request, part, correction, progress_shift } => {
                let merge = merged.filter(|_| self.keeps_merges).map(|merging| {
                    self.history.merges.push(MergeRecord {
                        exchange: merging.exchange,
                        host: index,
                        life: host.life,
                        side: merging.side,
                        at: self.queue.now(),
                        correction: correction.clone(),
                        factor: merging.factor,
                        clipped_distance: merging.clipped_distance,
                        landed: false,
                    });
                    self.history.merges.len() - 1
                });
                self.order(index, Order::Correction { request, part, correction, progress_shift, merge });
            }
            Effect::LoadState { request, payload, progress } => {
                self.order(index, Order::State { request, payload, progress });
            }
            Effect::AdvanceOuter => self.order(index, Order::AdvanceOuter),
            Effect::BeginTraining => self.begin_steps(index),
            Effect::EndTraining => {
                host.end_training(self.queue.now());
                self.set_idle_boundary(index);
            }
            Effect::Notice(notice) => self.note(index, notice),
            Effect::CompleteRun => {}
            Effect::Stop => self.stop(index),
        }
    }

    fn order(&mut self, index: HostIndex, order: Order) {
        let host = self.hosts[index].as_mut().expect("an order comes from a running node");
        host.trainer.order(order);
        self.set_idle_boundary(index);
    }

    fn reply_from_worker(&mut self, index: HostIndex, done: Event, overloaded: Event) {
        let worker = &self.scenario.worker;
        let is_full = self.worker_dice.random::<f64>() < worker.overload;
        let (shortest, longest) = worker.delay;
        let delay = shortest + longest.saturating_sub(shortest).mul_f64(self.worker_dice.random::<f64>());
        self.reply(index, delay, if is_full { overloaded } else { done });
    }

    /// Tells the present life of a host after `delay`.
    pub(super) fn reply(&mut self, index: HostIndex, delay: Duration, event: Event) {
        let Some(life) = self.hosts[index].as_ref().map(|host| host.life) else { return };
        self.queue.push(self.queue.now() + delay, Happening::Told { host: index, life, event });
    }

    fn dial(&mut self, index: HostIndex, expected: Option<PeerId>, addresses: Vec<Address>) {
        let target = addresses.first().and_then(host_at).filter(|target| *target < self.hosts.len());
        let Some(target) = target else {
            let reason = "no such address".to_owned();
            self.reply(index, Duration::ZERO, Event::DialFailed { peer: expected, addresses, reason });
            return;
        };
        if !self.network.can_reach(index, target) || self.network.dial_fails() {
            let reason = "no answer".to_owned();
            self.reply(index, UNREACHABLE_AFTER, Event::DialFailed { peer: expected, addresses, reason });
            return;
        }
        let life = self.hosts[index].as_ref().expect("it dials").life;
        let arrival = self.queue.now() + self.network.latency();
        self.queue.push(arrival, Happening::DialArrived { dialler: index, life, target, expected, addresses });
    }

    fn start_transfer(
        &mut self,
        index: HostIndex,
        transfer: TransferId,
        peer: PeerId,
        header: TransferHeader,
        payload: Payload,
    ) {
        let now = self.queue.now();
        let Some(link) = self.link_to(index, peer) else {
            let reason = "not connected".to_owned();
            self.reply(index, Duration::ZERO, Event::TransferFailed { transfer, reason });
            return;
        };
        self.history.payload_bytes += payload.len() as u64;
        let peaks = &mut self.history.peaks;
        peaks.payload_bytes = peaks.payload_bytes.max(payload.len());
        let is_state = matches!(header, TransferHeader::State { .. });
        let host = self.hosts[index].as_mut().expect("it sends");
        host.transfers.insert(transfer, (link, is_state));
        let life = host.life;
        let to = self.network.links[&link].other_end(index);
        match self.network.transfer_fate(now, index, payload.len()) {
            TransferFate::Arrives { after, confirmed } => {
                let from = (index, life);
                let arrival = (now + after).max(self.network.links[&link].opens_at(to));
                let arrived = Happening::TransferArrived { link, to, from, transfer, header, payload, confirmed };
                self.queue.push(arrival, arrived);
            }
            TransferFate::BreaksOff { after } => {
                let ended = Happening::TransferEnded { host: index, life, transfer, finished: false };
                self.queue.push(now + after, ended);
            }
        }
        self.wear(link);
    }

    fn note(&mut self, index: HostIndex, notice: Notice) {
        let at = self.queue.now();
        if let Notice::PeerMisbehaved { misbehaviour, .. } = &notice {
            self.history.accusations.push(Accusation { at, by: index, misbehaviour: misbehaviour.clone() });
        }
        self.history.notices.push((at, index, notice));
    }
}
