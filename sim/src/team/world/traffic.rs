//! Connections that are made and lost, and what goes over them: once, twice, late, or as nonsense.

use std::time::Duration;

use murmur_protocol::PeerId;
use murmur_protocol::random::{Generator, RngExt};
use murmur_protocol::team::{CaptainEvent, Frame, HelperEvent, Packet, StateHeader, TeamMessage};

use super::{Happening, World, peer};
use crate::team::links::Way;

/// How long one end does not know that a connection is gone, at most.
const NOTICED_WITHIN: f64 = 0.5;

impl World<'_> {
    pub(super) fn connect(&mut self, helper: usize) {
        let now = self.queue.now();
        let is_there = self.owner.machine.is_some() && self.lenders[helper].machine.is_some();
        if !is_there || self.links.connection(helper).is_some() {
            return;
        }
        self.links.connect(helper);
        let soon = now + self.links.latency(helper);
        let (captain, life) = (PeerId::from_public_key([0; 32]), self.lenders[helper].life);
        self.queue.push(soon, Happening::Helper(helper, life, Box::new(HelperEvent::CaptainConnected { captain })));
        self.tell_captain(CaptainEvent::HelperConnected { helper: peer(helper) });
    }

    /// A connection is gone; both ends hear of it, and it is made anew.
    pub(super) fn disconnect(&mut self, helper: usize, away: Duration) {
        let now = self.queue.now();
        if let Some(connection) = self.links.connection(helper) {
            self.links.disconnect(helper);
            for way in [Way::ToCaptain, Way::ToHelper] {
                let noticed = Duration::from_secs_f64(self.dice.random_range(0.0..NOTICED_WITHIN));
                self.queue.push(now + noticed.min(away), Happening::Closes(helper, way, connection));
            }
        }
        self.queue.push(now + away, Happening::Connects(helper));
    }

    pub(super) fn close(&mut self, helper: usize, way: Way, connection: u64) {
        // Where there is a newer one, that has told it.
        if self.links.connection(helper).is_some_and(|newer| newer != connection) {
            return;
        }
        let (captain, life) = (PeerId::from_public_key([0; 32]), self.lenders[helper].life);
        match way {
            Way::ToCaptain => self.tell_captain(CaptainEvent::HelperDisconnected { helper: peer(helper) }),
            Way::ToHelper => {
                let event = Box::new(HelperEvent::CaptainDisconnected { captain });
                self.queue.push(self.queue.now(), Happening::Helper(helper, life, event));
            }
        }
    }

    pub(super) fn deliver(&mut self, helper: usize, way: Way, packet: Packet) {
        let (captain, life) = (PeerId::from_public_key([0; 32]), self.lenders[helper].life);
        match way {
            Way::ToCaptain => {
                let helper = peer(helper);
                self.tell_captain(match packet {
                    Packet::Message(message) => CaptainEvent::MessageArrived { helper, message },
                    Packet::Frame(frame) => {
                        let is_long = frame.stream.payload.len() == 8 * frame.stream.rows as usize;
                        CaptainEvent::FrameArrived { helper, frame, size: is_long.then_some(1.0) }
                    }
                    Packet::State(header, payload) => CaptainEvent::StateArrived { helper, header, payload },
                });
            }
            Way::ToHelper => {
                let event = match packet {
                    Packet::Message(message) => HelperEvent::MessageArrived { captain, message },
                    Packet::Frame(frame) => HelperEvent::FrameArrived { captain, frame },
                    Packet::State(header, payload) => HelperEvent::StateArrived { captain, header, payload },
                };
                // A helper that is paused gets it later.
                self.queue.push(self.queue.now(), Happening::Helper(helper, life, Box::new(event)));
            }
        }
    }

    pub(super) fn send(&mut self, helper: usize, way: Way, packet: Packet) {
        if self.is_hostile() {
            if self.dice.random_range(0..1000) < self.plan.nonsense {
                let nonsense = self.nonsense(way, &packet);
                self.send_once(helper, way, nonsense);
            }
            if self.dice.random_range(0..1000) < self.plan.repeats {
                let number = self.dice.random_range(0..1000);
                if let Some(again) = self.links.remembered(helper, way, number) {
                    self.send_once(helper, way, again);
                }
            }
        }
        if self.is_hostile() && self.dice.random_range(0..1000) < self.plan.repeats {
            self.send_once(helper, way, packet.clone());
        }
        self.send_once(helper, way, packet);
    }

    fn send_once(&mut self, helper: usize, way: Way, packet: Packet) {
        let Some(connection) = self.links.connection(helper) else { return };
        let is_late = self.is_hostile() && self.plan.shuffle > Duration::ZERO;
        let late = is_late.then(|| self.plan.shuffle.mul_f64(self.dice.random_range(0.0..1.0)));
        if let Some(arrives) = self.links.send(self.queue.now(), helper, way, &packet, late) {
            self.queue.push(arrives, Happening::Arrives(helper, way, connection, Box::new(packet)));
        }
    }

    /// What nobody sends: of another batch or epoch, out of range, or of the wrong kind.
    fn nonsense(&mut self, way: Way, like: &Packet) -> Packet {
        let far = |number: u64, dice: &mut Generator| number.wrapping_sub(dice.random_range(1..1 << 20));
        let (epoch, batch) = match like {
            Packet::Frame(frame) => (frame.epoch, frame.batch),
            _ => (self.owner.epoch, self.owner.epoch + 1),
        };
        let (odd_epoch, odd_batch) = (far(epoch, &mut self.dice), far(batch, &mut self.dice));
        match (self.dice.random_range(0..8), like) {
            (0, Packet::Frame(frame)) => Packet::Frame(Frame { epoch: odd_epoch, ..frame.clone() }),
            (1, Packet::Frame(frame)) => Packet::Frame(Frame { batch: odd_batch, ..frame.clone() }),
            (2, Packet::Frame(frame)) => Packet::Frame(Frame { microbatch: frame.microbatch + 500, ..frame.clone() }),
            (3, Packet::State(header, payload)) => {
                let header = StateHeader { request: odd_batch, epoch: odd_epoch, ..*header };
                Packet::State(header, payload.clone())
            }
            (4, _) => Packet::Message(TeamMessage::Drop { epoch: odd_epoch, batch }),
            (5, _) => Packet::Message(TeamMessage::Done { epoch, batch: odd_batch }),
            (6, _) if way == Way::ToCaptain => {
                let squares = vec![-1.0; 3];
                Packet::Message(TeamMessage::Sums { epoch, batch, squares, busy_nanos: 5 })
            }
            _ => Packet::Message(TeamMessage::Ready { epoch: odd_epoch }),
        }
    }
}
