//! A team on a virtual clock: machines, processors, links and misfortunes around the very state machines of the daemon.

mod judgement;
mod misfortunes;
mod traffic;

use std::time::Duration;

use murmur_protocol::random::{Generator, RngExt, stream};
use murmur_protocol::team::{CaptainEffect, CaptainEvent, Frame, HelperEffect, HelperEvent, Packet, TeamMessage};
use murmur_protocol::{PeerId, Time};

use super::arithmetic::Layer;
use super::ledger::Ledger;
use super::lending::Lender;
use super::links::{Links, Way};
use super::owner::Owner;
use super::plan::{Carelessness, Fault, TeamPlan};
use crate::queue::Queue;

pub use judgement::TeamRun;

/// Until a helper that is told to go connects again.
const RECONNECTS_AFTER: Duration = Duration::from_millis(300);

/// Until a helper that is let go for good comes again all the same.
const TRIES_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Something ahead.
#[derive(Debug)]
enum Happening {
    /// To the captain of this life.
    Captain(u32, Box<CaptainEvent>),
    /// To a helper of this life.
    Helper(usize, u32, Box<HelperEvent>),
    /// A packet arrives that was sent over this connection.
    Arrives(usize, Way, u64, Box<Packet>),
    /// An end hears that this connection is gone.
    Closes(usize, Way, u64),
    Connects(usize),
    Fault(Fault),
    CaptainBegins,
    HelperBegins(usize),
}

/// A team and all around it.
struct World<'a> {
    plan: &'a TeamPlan,
    dice: Generator,
    queue: Queue<Happening>,
    owner: Owner,
    lenders: Vec<Lender>,
    links: Links,
    ledger: Ledger,
    events: u64,
    stepped_in_peace: u64,
    /// A stream of an earlier batch, to be sent again as if it were of this one.
    old_frame: Option<Frame>,
}

fn peer(helper: usize) -> PeerId {
    PeerId::from_public_key([helper as u8 + 1; 32])
}

fn number(helper: PeerId) -> usize {
    usize::from(helper.as_bytes()[0]) - 1
}

/// Runs a team to its end.
pub fn run(plan: &TeamPlan) -> TeamRun {
    let mut world = World::new(plan);
    world.live();
    world.judge()
}

impl World<'_> {
    fn new(plan: &TeamPlan) -> World<'_> {
        let mut queue = Queue::default();
        queue.push(Time::ZERO, Happening::CaptainBegins);
        (0..plan.helpers.len()).for_each(|helper| queue.push(Time::ZERO, Happening::HelperBegins(helper)));
        for (at, fault) in &plan.faults {
            queue.push(Time::from_start(*at), Happening::Fault(*fault));
        }
        let mut lenders: Vec<Lender> = (0..plan.helpers.len()).map(Lender::new).collect();
        if let Some((helper, mistake)) = plan.mistake {
            lenders[helper].mistake = Some(mistake);
        }
        World {
            plan,
            dice: stream(plan.seed, "team world", &[]),
            queue,
            owner: Owner::new(plan),
            lenders,
            links: Links::new(&plan.captain, &plan.helpers),
            ledger: Ledger::default(),
            events: 0,
            stepped_in_peace: 0,
            old_frame: None,
        }
    }

    fn is_hostile(&self) -> bool {
        self.queue.now() < Time::from_start(self.plan.hostile_for)
    }

    fn live(&mut self) {
        let end = Time::from_start(self.plan.lasts);
        while self.owner.stepped < self.plan.batches_max
            && let Some(happening) = self.queue.pop_until(end)
        {
            let is_new_life = matches!(happening, Happening::CaptainBegins);
            self.on(happening);
            if is_new_life {
                self.let_captain_want();
            }
            // Two dozen batches after the last misfortune say all there is to say.
            if !self.is_hostile() && self.stepped_in_peace >= 24 && self.plan.hostile_for > Duration::ZERO {
                break;
            }
        }
    }

    fn on(&mut self, happening: Happening) {
        let now = self.queue.now();
        match happening {
            Happening::Captain(life, event) => {
                if life == self.owner.life {
                    self.tell_captain(*event);
                }
            }
            Happening::Helper(helper, life, event) => {
                let lender = &self.lenders[helper];
                if life == lender.life && now < lender.paused_until {
                    self.queue.push(lender.paused_until, Happening::Helper(helper, life, event));
                } else if life == lender.life {
                    self.tell_helper(helper, *event);
                }
            }
            Happening::Arrives(helper, way, connection, packet) => {
                if self.links.connection(helper) == Some(connection) {
                    self.deliver(helper, way, *packet);
                }
            }
            Happening::Closes(helper, way, connection) => self.close(helper, way, connection),
            Happening::Connects(helper) => self.connect(helper),
            Happening::Fault(fault) => self.strike(fault),
            Happening::CaptainBegins => {
                self.owner.begin(now, self.plan, &mut self.ledger);
                self.wake_captain();
                (0..self.lenders.len()).for_each(|helper| self.connect(helper));
            }
            Happening::HelperBegins(helper) => {
                self.lenders[helper].begin(now, &self.plan.helpers[helper]);
                self.connect(helper);
            }
        }
    }

    fn tell_captain(&mut self, event: CaptainEvent) {
        let now = self.queue.now();
        let is_ending = self.count_down_captain();
        let Some(machine) = &mut self.owner.machine else { return };
        self.events += 1;
        machine.handle(now, event);
        let effects: Vec<_> = std::iter::from_fn(|| machine.poll_effect()).collect();
        let (waiting, under_way) = machine.waiting_and_under_way();
        let most = murmur_protocol::team::bounds::IN_FLIGHT_MAX as usize;
        self.ledger.check_bound("the captain", "streams wait", waiting, 2 * most);
        self.ledger.check_bound("the captain", "microbatches are under way", under_way, most);
        effects.into_iter().for_each(|effect| self.carry_out_captains(effect));
        self.wake_captain();
        if let Some(away) = is_ending {
            self.kill_captain(away);
        }
    }

    /// Whether the captain dies with this event, and for how long.
    fn count_down_captain(&mut self) -> Option<Duration> {
        if !self.is_hostile() {
            // One that waits for a helper has few events: it would die long after the calm has begun.
            return None;
        }
        let (events, away) = self.owner.dies_in.as_mut()?;
        match events.checked_sub(1) {
            Some(left) => {
                *events = left;
                None
            }
            None => Some(*away),
        }
    }

    fn carry_out_captains(&mut self, effect: CaptainEffect) {
        let now = self.queue.now();
        match effect {
            CaptainEffect::Send { helper, packet: Packet::Message(message) } => {
                self.ledger.check_given(helper, &message);
                let helper = number(helper);
                if let TeamMessage::Commit { epoch, batch, .. } = message
                    && helper == 0
                    && self.plan.carelessness == Some(Carelessness::AnswersForHelper)
                {
                    let message = TeamMessage::Done { epoch, batch };
                    return self.deliver_later(helper, Packet::Message(message));
                }
                self.send(helper, Way::ToHelper, Packet::Message(message));
            }
            CaptainEffect::Send { helper, packet: Packet::Frame(frame) } => self.send_frame(number(helper), frame),
            CaptainEffect::Send { helper, packet } => self.send(number(helper), Way::ToHelper, packet),
            CaptainEffect::Disconnect { helper } => self.disconnect(number(helper), RECONNECTS_AFTER),
            CaptainEffect::Dismiss { helper } => {
                self.ledger.unfit.insert(helper);
                // It tries again in vain.
                self.disconnect(number(helper), TRIES_AGAIN_AFTER);
            }
            CaptainEffect::BatchEnded { .. } | CaptainEffect::CopyEnded { .. } | CaptainEffect::WriteEnded { .. } => {
                let before = self.owner.stepped;
                self.owner.on_ended(now, &effect, self.plan, &mut self.ledger);
                if !self.is_hostile() {
                    self.stepped_in_peace += self.owner.stepped - before;
                }
                self.let_captain_want();
            }
            CaptainEffect::Notice(_) => {}
            order => {
                if let CaptainEffect::Compute { work, .. } = &order
                    && !self.ledger.knows(work.batch)
                {
                    let is_evaluation = work.kind == murmur_protocol::team::WorkKind::Evaluate;
                    let places = self.owner.places(is_evaluation, self.plan);
                    let layers = self.layers_in_use();
                    self.ledger.begin(now, work.batch, layers, self.owner.data, &places);
                }
                let done = self.owner.carry_out(order, &mut self.dice, self.plan, &mut self.ledger);
                if let Some((reply, cost)) = done {
                    let seconds = cost / self.plan.captain.speed * self.jitter();
                    let done = now.max(self.owner.busy_until) + Duration::from_secs_f64(seconds);
                    self.owner.busy_until = done;
                    let reply = match reply {
                        CaptainEvent::Computed { work, outcome, .. } => {
                            CaptainEvent::Computed { work, outcome, busy: Duration::from_secs_f64(seconds) }
                        }
                        reply => reply,
                    };
                    self.queue.push(done, Happening::Captain(self.owner.life, Box::new(reply)));
                }
            }
        }
    }

    /// What nobody has sent comes to the captain.
    fn deliver_later(&mut self, helper: usize, packet: Packet) {
        if let Some(connection) = self.links.connection(helper) {
            let arrives = Happening::Arrives(helper, Way::ToCaptain, connection, Box::new(packet));
            self.queue.push(self.queue.now(), arrives);
        }
    }

    fn send_frame(&mut self, helper: usize, frame: Frame) {
        let mut frame = frame;
        if self.plan.carelessness == Some(Carelessness::RelabelsOldStreams) {
            let old = self.old_frame.get_or_insert_with(|| frame.clone());
            if old.batch < frame.batch && old.direction == frame.direction && old.stream.rows == frame.stream.rows {
                frame.stream = old.stream.clone();
            }
        }
        self.send(helper, Way::ToHelper, Packet::Frame(frame));
    }

    fn jitter(&mut self) -> f64 {
        1.0 + self.plan.jitter * self.dice.random_range(0.0..1.0)
    }

    fn let_captain_want(&mut self) {
        if let Some(want) = self.owner.want(self.plan, &mut self.dice) {
            let life = self.owner.life;
            self.queue.push(self.queue.now(), Happening::Captain(life, Box::new(want)));
        }
    }

    /// The states of all layers where they are computed with.
    fn layers_in_use(&self) -> Vec<Layer> {
        let mut layers = self.owner.layers();
        let status = self.owner.machine.as_ref().map(|machine| machine.status(self.queue.now()));
        for (_, helper, stage) in
            status.iter().filter_map(|status| status.cut.as_ref()).flat_map(|cut| cut.of_helpers())
        {
            let range = stage.layers.first as usize + 1..stage.layers.end as usize + 1;
            if let Some(stage) = self.lenders[number(helper)].stage.as_ref().filter(|stage| stage.range() == range) {
                layers[range].copy_from_slice(&stage.layers);
            }
        }
        layers
    }

    fn wake_captain(&mut self) {
        if self.plan.carelessness == Some(Carelessness::ForgetsDeadlines) {
            return;
        }
        let Some(deadline) = self.owner.machine.as_ref().and_then(|machine| machine.next_deadline()) else { return };
        let now = self.queue.now();
        if self.owner.wakes_at.is_none_or(|at| at > deadline || at <= now) {
            self.owner.wakes_at = Some(deadline);
            self.queue.push(deadline, Happening::Captain(self.owner.life, Box::new(CaptainEvent::TimePassed)));
        }
    }

    fn tell_helper(&mut self, helper: usize, event: HelperEvent) {
        let now = self.queue.now();
        let lender = &mut self.lenders[helper];
        let dies = match &mut lender.dies_in {
            Some((0, away)) => Some(*away),
            Some((events, _)) => {
                *events -= 1;
                None
            }
            None => None,
        };
        let Some(machine) = &mut lender.machine else { return };
        self.events += 1;
        if matches!(event, HelperEvent::LeaveWanted) {
            let back = Fault::Break { helper, away: RECONNECTS_AFTER };
            self.queue.push(now + lender.leaves_for, Happening::Fault(back));
        }
        machine.handle(now, event);
        let effects: Vec<_> = std::iter::from_fn(|| machine.poll_effect()).collect();
        lender.check(&mut self.ledger);
        effects.into_iter().for_each(|effect| self.carry_out_helpers(helper, effect));
        let lender = &mut self.lenders[helper];
        if let Some(deadline) = lender.machine.as_ref().and_then(|machine| machine.next_deadline())
            && lender.wakes_at.is_none_or(|at| at > deadline || at <= now)
        {
            lender.wakes_at = Some(deadline);
            let event = Box::new(HelperEvent::TimePassed);
            self.queue.push(deadline, Happening::Helper(helper, lender.life, event));
        }
        if let Some(away) = dies {
            self.kill_helper(helper, away);
        }
    }

    fn carry_out_helpers(&mut self, helper: usize, effect: HelperEffect) {
        let now = self.queue.now();
        match effect {
            HelperEffect::Send { packet, .. } => self.send(helper, Way::ToCaptain, packet),
            HelperEffect::Notice(_) => {}
            order => {
                let jitter = self.jitter();
                let lender = &mut self.lenders[helper];
                if let Some((reply, cost)) = lender.carry_out(order, self.plan, &mut self.ledger) {
                    let seconds = cost * lender.slow / self.plan.helpers[helper].speed * jitter;
                    let done = now.max(lender.busy_until).max(lender.paused_until) + Duration::from_secs_f64(seconds);
                    lender.busy_until = done;
                    let reply = match reply {
                        HelperEvent::Computed { work, outcome, .. } => {
                            HelperEvent::Computed { work, outcome, busy: Duration::from_secs_f64(seconds) }
                        }
                        reply => reply,
                    };
                    self.queue.push(done, Happening::Helper(helper, lender.life, Box::new(reply)));
                }
            }
        }
    }
}
