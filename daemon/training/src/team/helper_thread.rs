//! The thread of a helper: pumps its state machine and computes its stage.

use std::sync::mpsc::RecvTimeoutError;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use murmur_protocol::team::{
    Helper, HelperConfig, HelperEffect, HelperEvent, Membership, Packet, TeamCounts, TeamNotice, WorkKind,
};
use murmur_protocol::{Event, PeerId, Time, TrainerOrder};

use super::lent_member::{LentMember, NewMember};
use super::lent_stage::HelperStage;
use super::wire::{Fact, Facts, Heard, TeamWire, Told, Word};
use crate::engine::TrainingError;

/// Without a deadline of the machine it is looked after this often, for nothing.
const IDLE: Duration = Duration::from_secs(3600);

/// What a helper's owner sees of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HelperProgress {
    /// Batches stepped and dropped.
    pub counts: TeamCounts,
    /// Seconds that it has computed since it began.
    pub busy_seconds: f64,
    /// Seconds since it began.
    pub seconds: f64,
}

/// What is told to a helper's owner.
pub enum HelperNews<'a> {
    /// Something that happened.
    Notice(&'a TeamNotice),
    /// How far it is; after each batch.
    Progress(HelperProgress),
    /// It is to be a member of the swarm by itself from now on, with a core whose orders to its trainer come by [`HelperControl`].
    MemberBegins(Box<NewMember>),
    /// A fact for the core of this membership.
    OfMember(u64, Event),
    /// It is a member no more.
    MemberEnds,
}

/// Where a helper's owner hears of it.
pub type OnNews = Box<dyn FnMut(HelperNews<'_>) + Send>;

/// A helper's thread. It ends when its owner wants to leave and the captain has let it go, or when this is dropped.
pub struct HelperThread {
    control: HelperControl,
    thread: Option<JoinHandle<Result<(), TrainingError>>>,
}

/// Ends a helper's thread.
#[derive(Clone, Debug)]
pub struct HelperControl(Told);

impl HelperControl {
    /// The captain is asked to go on without this helper.
    pub fn leave(&self) {
        let _ = self.0.0.try_send(Fact::Leave);
    }

    /// Hands over an order of the core of a membership: those of one that is over are not carried out. `false` where the thread has ended.
    pub fn order(&self, membership: u64, order: TrainerOrder) -> bool {
        self.0.0.send(Fact::Order(membership, Box::new(order))).is_ok()
    }

    /// The core of a member has reached nobody of its swarm.
    pub fn found_apart(&self) {
        let _ = self.0.0.try_send(Fact::Apart);
    }

    /// At once, whatever the captain says.
    pub fn end(&self) {
        let _ = self.0.0.try_send(Fact::End);
    }
}

impl HelperThread {
    /// Starts it with nothing to do.
    ///
    /// # Panics
    /// When the system has no thread left.
    pub fn start(
        config: HelperConfig,
        stage: HelperStage,
        (told, facts): (Told, Facts),
        wire: Box<dyn TeamWire>,
        on_news: OnNews,
    ) -> HelperThread {
        let pump = Pump {
            helper: Helper::new(config),
            stage,
            clock: Instant::now(),
            wire,
            on_news,
            member: None,
            memberships: 0,
            busy: Duration::ZERO,
            shown: TeamCounts::default(),
            connected: None,
        };
        let run = move || pump.run(&facts);
        let thread = std::thread::Builder::new().name("helper".to_owned()).spawn(run);
        let thread = Some(thread.expect("the system has a thread for the stage"));
        HelperThread { control: HelperControl(told), thread }
    }

    /// What ends it.
    pub fn control(&self) -> HelperControl {
        self.control.clone()
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// When the device has failed.
    pub fn join(mut self) -> Result<(), TrainingError> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(TrainingError::Team("the helper's thread has panicked".to_owned())),
            None => Ok(()),
        }
    }
}

impl Drop for HelperThread {
    fn drop(&mut self) {
        self.control.end();
    }
}

struct Pump {
    helper: Helper,
    stage: HelperStage,
    clock: Instant,
    wire: Box<dyn TeamWire>,
    on_news: OnNews,
    /// While it is a member of the swarm by itself.
    member: Option<LentMember>,
    /// How often it has become one.
    memberships: u64,
    busy: Duration,
    /// As they were told last.
    shown: TeamCounts,
    connected: Option<PeerId>,
}

impl Pump {
    fn run(mut self, facts: &Facts) -> Result<(), TrainingError> {
        let mut leaves = false;
        loop {
            let wait = self.helper.next_deadline().map_or(IDLE, |deadline| deadline - self.now());
            let event = match facts.0.recv_timeout(wait) {
                Ok(Fact::Heard(heard)) => self.event(heard),
                Ok(Fact::Leave) => {
                    leaves = true;
                    HelperEvent::LeaveWanted
                }
                Ok(Fact::Order(membership, order)) => {
                    let reply = match self.member.as_mut().filter(|_| membership == self.memberships) {
                        Some(member) => member.order(*order),
                        None => order.request().map(|request| Event::RequestFailed { request }),
                    };
                    reply.into_iter().for_each(|event| (self.on_news)(HelperNews::OfMember(membership, event)));
                    HelperEvent::TimePassed
                }
                Ok(Fact::Apart) => HelperEvent::FoundApart,
                Err(RecvTimeoutError::Timeout) => HelperEvent::TimePassed,
                Ok(Fact::End | Fact::Owner(_)) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            let now = self.now();
            self.helper.handle(now, event);
            while let Some(effect) = self.helper.poll_effect() {
                if let Some(reply) = self.carry_out(effect)? {
                    let now = self.now();
                    self.helper.handle(now, reply);
                }
            }
            if let Some(member) = self.member.as_mut().filter(|_| !self.helper.is_in_batch()) {
                let replies = member.carry_out(&mut self.stage);
                replies.into_iter().for_each(|event| (self.on_news)(HelperNews::OfMember(self.memberships, event)));
            }
            let counts = self.helper.counts();
            if counts != self.shown {
                self.shown = counts;
                let (busy_seconds, seconds) = (self.busy.as_secs_f64(), self.clock.elapsed().as_secs_f64());
                (self.on_news)(HelperNews::Progress(HelperProgress { counts, busy_seconds, seconds }));
            }
            if leaves && (self.connected.is_none() || !self.stage.is_loaded()) {
                return Ok(());
            }
        }
    }

    /// Becomes a member of the swarm, stays one, or is none any more.
    fn average(&mut self, membership: Option<Membership>) -> Result<(), TrainingError> {
        let Some(Membership { ticket, progress, is_outdated }) = membership else {
            if self.member.take().is_some() {
                (self.on_news)(HelperNews::MemberEnds);
            }
            return Ok(());
        };
        if self.member.is_none() {
            self.member = LentMember::new(&mut self.stage, progress)?;
            if let (Some(member), Some((manifest, _))) = (&self.member, self.stage.of_run()) {
                self.memberships += 1;
                let (manifest, share, number) = (manifest.clone(), member.share().clone(), self.memberships);
                let new = NewMember { number, manifest, share, ticket, report: member.report(), is_outdated };
                (self.on_news)(HelperNews::MemberBegins(Box::new(new)));
            }
        }
        if let Some(member) = &mut self.member {
            member.begin(progress);
        }
        Ok(())
    }

    fn now(&self) -> Time {
        Time::ZERO + self.clock.elapsed()
    }

    fn event(&mut self, heard: Heard) -> HelperEvent {
        match heard {
            Heard::Connected(captain) => {
                self.connected = Some(captain);
                HelperEvent::CaptainConnected { captain }
            }
            Heard::Disconnected(captain) => {
                self.connected = self.connected.filter(|connected| *connected != captain);
                HelperEvent::CaptainDisconnected { captain }
            }
            Heard::Said(captain, Word::Packet(packet)) => match packet {
                Packet::Message(message) => HelperEvent::MessageArrived { captain, message },
                Packet::Frame(frame) => HelperEvent::FrameArrived { captain, frame },
                Packet::State(header, payload) => HelperEvent::StateArrived { captain, header, payload },
            },
            // Whoever carries words answers those.
            Heard::Said(_, Word::Probe(..) | Word::Echo(_)) => HelperEvent::TimePassed,
        }
    }

    /// Carries an order out; the reply, where it has one.
    fn carry_out(&mut self, effect: HelperEffect) -> Result<Option<HelperEvent>, TrainingError> {
        let begin = Instant::now();
        let reply = match effect {
            HelperEffect::Send { captain, packet } => {
                self.wire.send(captain, Word::Packet(packet));
                None
            }
            HelperEffect::Notice(notice) => {
                (self.on_news)(HelperNews::Notice(&notice));
                None
            }
            HelperEffect::Load { assign } => Some(self.stage.load(&assign)),
            HelperEffect::Unload => {
                self.stage.unload();
                None
            }
            HelperEffect::Average { membership } => {
                self.average(membership)?;
                None
            }
            HelperEffect::Compute { work, input } => {
                if let Some(member) = self.member.as_mut().filter(|_| work.kind == WorkKind::Forward) {
                    member.forward(input.rows);
                }
                let computed = self.stage.compute(work, &input);
                self.busy += begin.elapsed();
                Some(computed)
            }
            HelperEffect::Sum { epoch, batch } => Some(self.stage.sum(epoch, batch)?),
            HelperEffect::Step { epoch, batch, factors } => {
                let stepped = self.stage.step(epoch, batch, factors)?;
                self.busy += begin.elapsed();
                if let Some(member) = &mut self.member {
                    let event = member.stepped(self.stage.travel(factors.learning_rate));
                    (self.on_news)(HelperNews::OfMember(self.memberships, event));
                }
                Some(stepped)
            }
            HelperEffect::Discard { .. } => {
                self.stage.discard()?;
                None
            }
            HelperEffect::Copy { request, kind, layers } => Some(self.stage.copy(request, kind, layers)?),
            HelperEffect::Write { request, kind, layers, payload } => {
                Some(self.stage.write(request, kind, layers, &payload))
            }
        };
        Ok(reply)
    }
}
