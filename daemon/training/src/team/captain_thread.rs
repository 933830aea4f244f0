//! The thread that pumps a captain's state machine: it hears helpers and the trainer, and hands on what the machine orders.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use murmur_protocol::numerics::StreamCodec;
use murmur_protocol::team::bounds::HELPERS_KNOWN_MAX;
use murmur_protocol::team::{Captain, CaptainConfig, CaptainEffect, CaptainEvent, Packet, TeamNotice, TeamStatus};
use murmur_protocol::{PeerId, Time};

use super::wire::{Fact, Facts, Heard, TeamWire, Told, Word};

/// Orders that may wait for the trainer's thread: while it does something else, states of helpers and a new cut.
const ORDERS_MAX: usize = 256;

/// Without a deadline of the machine it is looked after this often, for nothing.
const IDLE: Duration = Duration::from_secs(3600);

/// What people see of a team: always the latest. Behind a lock that is held for a copy.
#[derive(Clone, Debug, Default)]
pub struct TeamView(Arc<Mutex<Shown>>);

#[derive(Clone, Debug, Default)]
struct Shown {
    status: Option<TeamStatus>,
    /// When that was.
    seen_at: Option<Instant>,
    /// Seconds in which the captain stood still within a batch, by the helper that it waited for.
    waits: Vec<(PeerId, f64)>,
    /// Seconds in which there was no batch to compute, since the team was not whole.
    seconds_without: f64,
}

impl TeamView {
    /// Where the team stands; `None` before training has begun.
    pub fn status(&self) -> Option<TeamStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).status.clone()
    }

    /// The helper that has had something to do for a batch or a copy for longest, and for how long.
    pub fn awaits(&self) -> Option<(PeerId, Duration)> {
        let shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (helper, before) = shown.status.as_ref()?.awaits?;
        Some((helper, before + shown.seen_at?.elapsed()))
    }

    /// Seconds in which the captain stood still in the middle of a batch, by the helper that it waited for.
    pub fn waits(&self) -> Vec<(PeerId, f64)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).waits.clone()
    }

    /// Seconds in which training stood still because the team was not whole.
    pub fn seconds_without(&self) -> f64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).seconds_without
    }

    pub(super) fn add_without(&self, time: Duration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).seconds_without += time.as_secs_f64();
    }

    pub(super) fn set_status(&self, status: TeamStatus) {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (shown.status, shown.seen_at) = (Some(status), Some(Instant::now()));
    }

    pub(super) fn add_wait(&self, helper: PeerId, wait: Duration) {
        let waits = &mut self.0.lock().unwrap_or_else(PoisonError::into_inner).waits;
        if let Some((_, seconds)) = waits.iter_mut().find(|(known, _)| *known == helper) {
            *seconds += wait.as_secs_f64();
        } else if waits.len() < HELPERS_KNOWN_MAX {
            waits.push((helper, wait.as_secs_f64()));
        }
    }
}

/// Where people hear of what happens in a team.
pub type OnNotice = Box<dyn FnMut(&TeamNotice) + Send>;

/// An order for the trainer's thread, and the helper whose word has led to it.
pub(super) struct Order {
    pub(super) effect: CaptainEffect,
    pub(super) after: Option<PeerId>,
}

/// A captain's thread, as the trainer's thread has it.
pub(super) struct CaptainThread {
    facts: Told,
    pub(super) orders: Receiver<Order>,
    thread: Option<JoinHandle<()>>,
}

impl CaptainThread {
    pub(super) fn start(
        config: CaptainConfig,
        (told, facts): (Told, Facts),
        wire: Box<dyn TeamWire>,
        view: TeamView,
        on_notice: OnNotice,
    ) -> CaptainThread {
        let (orders_to, orders) = sync_channel(ORDERS_MAX);
        let codec = StreamCodec::new(config.wire, config.width as usize);
        let clock = Instant::now();
        let captain = Captain::new(config, Time::ZERO);
        let pump = Pump { captain, clock, codec, wire, orders: orders_to, view, on_notice };
        let run = move || pump.run(&facts.0);
        let thread = std::thread::Builder::new().name("captain".to_owned()).spawn(run);
        CaptainThread { facts: told, orders, thread: Some(thread.expect("the system has a thread for the team")) }
    }

    /// Tells the machine something; it is lost only where the thread has ended.
    pub(super) fn tell(&self, event: CaptainEvent) {
        let _ = self.facts.0.send(Fact::Owner(Box::new(event)));
    }
}

impl Drop for CaptainThread {
    /// Lets helpers go.
    fn drop(&mut self) {
        // First, so that it does not wait for a place among orders that nobody takes.
        let (_, nothing) = sync_channel(1);
        self.orders = nothing;
        self.tell(CaptainEvent::EndWanted);
        let _ = self.facts.0.send(Fact::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Pump {
    captain: Captain,
    clock: Instant,
    codec: StreamCodec,
    wire: Box<dyn TeamWire>,
    orders: SyncSender<Order>,
    view: TeamView,
    on_notice: OnNotice,
}

impl Pump {
    fn run(mut self, facts: &Receiver<Fact>) {
        self.view.set_status(self.captain.status(self.now()));
        loop {
            let wait = self.captain.next_deadline().map_or(IDLE, |deadline| deadline - self.now());
            let (event, mut after) = match facts.recv_timeout(wait) {
                Ok(Fact::Heard(heard)) => self.event(heard),
                Ok(Fact::Owner(event)) => (*event, None),
                Err(RecvTimeoutError::Timeout) => (CaptainEvent::TimePassed, None),
                Ok(Fact::Order(..) | Fact::Apart) => continue,
                Ok(Fact::End | Fact::Leave) | Err(RecvTimeoutError::Disconnected) => return,
            };
            let now = self.now();
            self.captain.handle(now, event);
            // First, so that who gets an order sees what it follows from.
            self.view.set_status(self.captain.status(now));
            while let Some(effect) = self.captain.poll_effect() {
                after = Pump::cause(&effect, after);
                self.carry_out(effect, after);
            }
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.clock.elapsed()
    }

    fn event(&self, heard: Heard) -> (CaptainEvent, Option<PeerId>) {
        match heard {
            Heard::Connected(helper) => (CaptainEvent::HelperConnected { helper }, None),
            Heard::Disconnected(helper) => (CaptainEvent::HelperDisconnected { helper }, None),
            Heard::Said(helper, word) => {
                let event = match word {
                    Word::Packet(Packet::Message(message)) => CaptainEvent::MessageArrived { helper, message },
                    Word::Packet(Packet::Frame(frame)) => {
                        let size = self.codec.measure(frame.stream.payload.bytes(), frame.stream.rows as usize);
                        CaptainEvent::FrameArrived { helper, frame, size }
                    }
                    Word::Packet(Packet::State(header, payload)) => {
                        CaptainEvent::StateArrived { helper, header, payload }
                    }
                    // Whoever carries words answers those.
                    Word::Probe(..) | Word::Echo(_) => CaptainEvent::TimePassed,
                };
                (event, Some(helper))
            }
        }
    }

    /// Whose word an order follows from: of a helper that is taken for lost, its silence.
    fn cause(effect: &CaptainEffect, before: Option<PeerId>) -> Option<PeerId> {
        if let CaptainEffect::Notice(TeamNotice::HelperLost { helper, .. }) = effect { Some(*helper) } else { before }
    }

    fn carry_out(&mut self, effect: CaptainEffect, after: Option<PeerId>) {
        match effect {
            CaptainEffect::Send { helper, packet } => self.wire.send(helper, Word::Packet(packet)),
            CaptainEffect::Disconnect { helper } => self.wire.disconnect(helper),
            CaptainEffect::Dismiss { helper } => self.wire.dismiss(helper),
            CaptainEffect::Notice(notice) => (self.on_notice)(&notice),
            // Where the trainer is gone, nobody is told.
            effect => drop(self.orders.send(Order { effect, after })),
        }
    }
}
