//! The thread of a helper: pumps its state machine and computes its stage.

use std::sync::mpsc::RecvTimeoutError;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use murmur_protocol::team::{Helper, HelperConfig, HelperEffect, HelperEvent, TeamCounts, TeamNotice};
use murmur_protocol::{PeerId, Time};

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
            Heard::Said(captain, Word::Message(message)) => HelperEvent::MessageArrived { captain, message },
            Heard::Said(captain, Word::Frame(frame)) => HelperEvent::FrameArrived { captain, frame },
            Heard::Said(captain, Word::State(header, payload)) => {
                HelperEvent::StateArrived { captain, header, payload }
            }
            // Whoever carries words answers those.
            Heard::Said(_, Word::Probe(..) | Word::Echo(_)) => HelperEvent::TimePassed,
        }
    }

    /// Carries an order out; the reply, where it has one.
    fn carry_out(&mut self, effect: HelperEffect) -> Result<Option<HelperEvent>, TrainingError> {
        let begin = Instant::now();
        let reply = match effect {
            HelperEffect::Send { captain, message } => {
                self.wire.send(captain, Word::Message(message));
                None
            }
            HelperEffect::SendFrame { captain, frame } => {
                self.wire.send(captain, Word::Frame(frame));
                None
            }
            HelperEffect::SendState { captain, header, payload } => {
                self.wire.send(captain, Word::State(header, payload));
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
            HelperEffect::Compute { work, input } => {
                let computed = self.stage.compute(work, &input);
                self.busy += begin.elapsed();
                Some(computed)
            }
            HelperEffect::Sum { epoch, batch } => Some(self.stage.sum(epoch, batch)?),
            HelperEffect::Step { epoch, batch, factors } => {
                let stepped = self.stage.step(epoch, batch, factors)?;
                self.busy += begin.elapsed();
                Some(stepped)
            }
            HelperEffect::Discard { .. } => {
                self.stage.discard()?;
                None
            }
            HelperEffect::Copy { request, kind } => Some(self.stage.copy(request, kind)?),
            HelperEffect::Write { request, kind, payload } => Some(self.stage.write(request, kind, &payload)),
        };
        Ok(reply)
    }
}
