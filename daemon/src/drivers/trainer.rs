//! The training driver: a thread that steps, and between two steps does what the engine ordered.
//!
//! It never waits for anybody while it trains: orders are picked up with `try_recv`, facts handed over with
//! `try_send`, and what cannot be handed over yet is kept for the next boundary. Its only call that can wait is in
//! `wait_for_order`, which is not called between the first step and the last (before the first it waits for shards of
//! shared data as well). Whether that is so shows in `StepTimes`: the gaps between steps are measured, and tests bound
//! them. While all members average at once it does wait there: from its contribution until the sum of all is there. And where other machines
//! hold a part of its model, a step waits for them.

mod copied;
mod divergence;
mod ending;
mod evaluating;
mod member;
mod privacy;
mod saving;
mod slowness;
mod step_times;
mod throttle;
mod under_way;
mod view;

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use murmur_protocol::{Ending, Event, Holding, RequestId, RunManifest, TrainerOrder, TrainingReport};
use murmur_training::{Engine, TrainingError};
use tokio::sync::{mpsc, watch};

use super::{Arrival, Refused};
use crate::console::note;
use crate::limits::pace::Pace;
use crate::process::memory;
use crate::store::{CheckpointWriter, PrivacyLedger};
use divergence::Divergence;
use member::Member;
pub use privacy::PrivacyReport;
use privacy::Withheld;
pub(crate) use saving::Reply;
use saving::Timetable;
pub use saving::{CheckpointRequests, NotSaved, SavedCheckpoint};
use step_times::StepClock;
pub use step_times::StepTimes;
use throttle::Throttle;
use under_way::Transfers;
pub use view::TrainingView;

/// Orders waiting for the next step boundary. The core has at most a handful of requests open.
const QUEUE_MAX: usize = 16;

/// Facts kept while the engine's queue is full. Replies only, so no more than there are orders.
const KEPT_MAX: usize = 4 * QUEUE_MAX;

/// Weight of the newest step in the running averages of loss and step time: about the last 20 steps count.
const AVERAGE_WEIGHT: f64 = 0.1;

/// How often a trainer without a step to take looks whether its kept facts can go out, or a checkpoint is wished for.
const IDLE_PERIOD: Duration = Duration::from_millis(50);

/// What the trainer is told once.
#[derive(Clone, Debug)]
pub struct TrainerSettings {
    /// The run.
    pub manifest: RunManifest,
    /// Swarm progress at the start, in steps.
    pub progress: f64,
    /// Stop after this many own steps.
    pub steps_max: Option<u64>,
    /// Evaluate every so many steps.
    pub evaluate_every: Option<u64>,
    /// Write a checkpoint this often, the first one 20 s after training has begun.
    pub checkpoint_period: Option<Duration>,
    /// Where the engine's steps are private: what counts them.
    pub privacy: Option<PrivacyLedger>,
    /// Steps take at most so much of the time, in percent: above 0, at most 100.
    pub training_percent: f64,
    /// Steps take at least as long as on the machine that it stands for, where it stands for another one.
    pub pace: Option<Pace>,
}

/// The training thread. It ends when this is dropped.
#[derive(Debug)]
pub struct Trainer {
    orders: Option<SyncSender<TrainerOrder>>,
    view: watch::Receiver<TrainingView>,
    checkpoints: CheckpointRequests,
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl Trainer {
    /// Starts the thread, which waits for [`TrainerOrder::Begin`], and then for data to begin with. Shards that arrive
    /// later are taken up between steps.
    ///
    /// # Panics
    /// When the system has no thread left, or steps are private without a ledger, or counted by one without being private.
    pub fn start(
        engine: Engine,
        settings: TrainerSettings,
        events: mpsc::Sender<Event>,
        writer: CheckpointWriter,
        arrivals: mpsc::Receiver<Arrival>,
    ) -> Trainer {
        assert_eq!(
            settings.privacy.is_some(),
            engine.permits().is_some(),
            "private steps, and only those, are counted"
        );
        let (orders, inbox) = sync_channel(QUEUE_MAX);
        let (checkpoints, asked) = CheckpointRequests::channel();
        let first_view = TrainingView { steps: engine.steps(), progress: settings.progress, ..TrainingView::default() };
        let (view_sender, view) = watch::channel(first_view.clone());
        let thread = TrainerThread {
            timetable: Timetable::new(settings.checkpoint_period),
            member: None,
            throttle: Throttle::new(settings.training_percent),
            settings,
            engine,
            inbox,
            events,
            arrivals,
            asked,
            kept: VecDeque::new(),
            under_way: Transfers::new(),
            held: None,
            view: first_view,
            view_sender,
            writer,
            is_own_kept: false,
            travel: 0.0,
            stage: Stage::Waiting,
            ending: None,
            unsaved: None,
            last_made: None,
            holding: Holding::ALL,
            divergence: Divergence::default(),
            withheld: Withheld::default(),
            clock: StepClock::default(),
            busy_at: Some(Instant::now()),
            first_step: None,
        };
        let thread = std::thread::Builder::new()
            .name("trainer".to_owned())
            .spawn(move || thread.run())
            .expect("the system has a thread for training");
        Trainer { orders: Some(orders), view, checkpoints, thread: Some(thread) }
    }

    /// In the place of a thread of this machine's own: whoever has the other end carries orders out, and tells what comes of them.
    pub(crate) fn elsewhere() -> (Trainer, Receiver<TrainerOrder>) {
        let (orders, inbox) = sync_channel(QUEUE_MAX);
        let (checkpoints, _) = CheckpointRequests::channel();
        let (_, view) = watch::channel(TrainingView::default());
        (Trainer { orders: Some(orders), view, checkpoints, thread: None }, inbox)
    }

    /// Hands an order over without waiting.
    ///
    /// # Errors
    /// The order, when the queue is full or the thread is gone.
    pub fn try_order(&self, order: TrainerOrder) -> Result<(), Refused<TrainerOrder>> {
        let Some(orders) = &self.orders else { return Err(Refused(order)) };
        orders.try_send(order).map_err(|error| match error {
            TrySendError::Full(order) | TrySendError::Disconnected(order) => Refused(order),
        })
    }

    /// Where it stands.
    pub fn report(&self) -> TrainingReport {
        let view = self.view.borrow();
        TrainingReport { steps: view.steps, progress: view.progress, ..TrainingReport::default() }
    }

    /// What the trainer shows of itself, always the latest.
    pub fn view(&self) -> watch::Receiver<TrainingView> {
        self.view.clone()
    }

    /// Has checkpoints written on request.
    pub fn checkpoints(&self) -> CheckpointRequests {
        self.checkpoints.clone()
    }

    /// Ends the thread after what has been ordered, with a last evaluation and checkpoint where `completes`. Waits.
    ///
    /// # Errors
    /// What kept the last checkpoint from the disk.
    pub fn finish(mut self, completes: bool) -> Result<(), String> {
        if let Some(orders) = self.orders.take()
            && completes
        {
            // A thread that is gone says why below.
            let _ = orders.send(TrainerOrder::Complete);
        }
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err("the training thread has panicked".to_owned()),
            None => Ok(()),
        }
    }
}

/// Where the thread stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// For the order to begin.
    Waiting,
    Training,
    /// For good; orders are still carried out.
    Ended,
}

/// The thread's own state.
struct TrainerThread {
    settings: TrainerSettings,
    engine: Engine,
    inbox: Receiver<TrainerOrder>,
    events: mpsc::Sender<Event>,
    /// Shards of shared data.
    arrivals: mpsc::Receiver<Arrival>,
    /// Wishes for a checkpoint.
    asked: mpsc::Receiver<Reply>,
    /// Facts that the engine's queue had no room for.
    kept: VecDeque<Event>,
    under_way: Transfers,
    /// It waits for transfers, and all behind it wait for it.
    held: Option<TrainerOrder>,
    view: TrainingView,
    view_sender: watch::Sender<TrainingView>,
    writer: CheckpointWriter,
    /// Whether the model that training has made was kept before a copy took its place, and no copy has been believed since.
    is_own_kept: bool,
    /// See [`TrainingReport::travel`].
    travel: f64,
    stage: Stage,
    /// As the founder has ordered.
    ending: Option<Ending>,
    /// Why the last checkpoint could not be made.
    unsaved: Option<String>,
    /// When the last checkpoint was made last.
    last_made: Option<Instant>,
    /// What of the model is exchanged from here, as the engine was told last.
    holding: Holding,
    divergence: Divergence,
    /// While all members average at once.
    member: Option<Member>,
    withheld: Withheld,
    throttle: Throttle,
    timetable: Timetable,
    clock: StepClock,
    /// When there was something to do; `None` once the memory for it is given back.
    busy_at: Option<Instant>,
    /// When the first step began, where steps have a pace.
    first_step: Option<Instant>,
}

impl TrainerThread {
    fn run(mut self) -> Result<(), String> {
        tracing::debug!("the trainer is ready");
        loop {
            self.take_shards();
            self.tell_holding();
            self.save_as_asked();
            self.save_on();
            self.write_last_again();
            let is_to_step = self.is_to_step() && self.is_permitted();
            let pause = self.throttle.left(Instant::now()).filter(|_| is_to_step);
            let open = match pause {
                Some(pause) => self.pause(pause),
                None if is_to_step => self.take_waiting_orders(),
                None => self.wait_for_order(),
            };
            let steps = is_to_step && pause.is_none();
            if !open {
                self.finish_all();
                self.engine.stop_saving();
                let written = self.writer.finish().map_err(|error| format!("cannot write a checkpoint: {error}"));
                return self.unsaved.map_or(written, Err);
            }
            self.end_failed_member();
            let is_between = self.member.as_ref().is_none_or(Member::is_between);
            if self.stage == Stage::Training && is_between && self.is_run_over() {
                self.end_training();
                self.finish_all();
                if let Some(report) = self.privacy_report().filter(|_| self.is_budget_used_up()) {
                    note(&format!("privacy     {report}"));
                }
                let report = self.report();
                self.tell(Event::TrainingCompleted(report));
            }
            match &self.member {
                _ if !steps || !self.is_to_step() => {}
                Some(_) => self.step_of_member(),
                None => drop(self.step()),
            }
        }
    }

    /// Whether there is something to compute: always while it trains, but in a synchronous run only what is asked for.
    fn is_to_step(&self) -> bool {
        let is_asked = self.member.as_ref().is_none_or(Member::is_asked);
        self.stage == Stage::Training && self.engine.has_data() && is_asked
    }

    fn take_shards(&mut self) {
        while let Ok((index, shard)) = self.arrivals.try_recv() {
            self.engine.add_shard(index, shard);
        }
    }

    /// While training: whatever is there, without waiting. `false` once nobody orders any more.
    fn take_waiting_orders(&mut self) -> bool {
        loop {
            self.send_kept();
            self.finish_arrived();
            match self.next_order() {
                Ok(order) => self.carry_out(order),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
            if self.stage != Stage::Training {
                return true;
            }
        }
    }

    fn wait_for_order(&mut self) -> bool {
        self.send_kept();
        // No step would be taken meanwhile.
        self.finish_all();
        let order = self.held.take().map_or_else(|| self.inbox.recv_timeout(IDLE_PERIOD), Ok);
        match order {
            Ok(order) => {
                self.carry_out(order);
                self.busy_at = Some(Instant::now());
            }
            Err(RecvTimeoutError::Timeout) => memory::rest(&mut self.busy_at, self.stage == Stage::Ended),
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        true
    }

    fn carry_out(&mut self, order: TrainerOrder) {
        match order {
            TrainerOrder::TakeSnapshot { request, selection } => self.begin_snapshot(request, selection),
            TrainerOrder::ApplyCorrection { request, part, correction, progress_shift: shift } => {
                self.begin_correction(request, part, &correction, shift);
            }
            TrainerOrder::LoadState { request, chunks, holding, progress } => {
                let accepted = holding == self.holding && self.load_state(&chunks, progress);
                // Training takes memory in larger pieces than these.
                drop(chunks);
                memory::give_back();
                let report = self.report();
                self.tell(Event::StateLoaded { request, accepted, report });
            }
            TrainerOrder::AdvanceOuter => {
                if let Err(error) = self.engine.advance_outer() {
                    tracing::error!("the outer step failed: {error}");
                }
            }
            TrainerOrder::Contribute { request } => self.member().order(request),
            TrainerOrder::TakeUp { sum, members, progress } => self.take_up_sum(sum, members, progress),
            TrainerOrder::LoadReplica { request, replica, progress } => self.load_replica(request, &replica, progress),
            TrainerOrder::MatchBatch { members } => self.engine.set_members(members),
            TrainerOrder::Average(scheme) => self.average(scheme),
            TrainerOrder::Finish(order) => {
                self.engine.finish(order.ending);
                self.ending = Some(order.ending);
            }
            TrainerOrder::Begin => self.begin(),
            TrainerOrder::End => self.stage = Stage::Ended,
            TrainerOrder::Complete => self.complete(),
        }
        self.finish_arrived();
    }

    /// Whether a step was taken or left out: not where it waits for other machines.
    fn step(&mut self) -> bool {
        let begin = Instant::now();
        let stepped = self.engine.step(self.view.progress);
        self.keep_pace(begin);
        let end = Instant::now();
        let pause = self.throttle.taken();
        if let Err(TrainingError::TeamWaits(why)) = &stepped {
            // Orders are taken up, and the same batch is tried again.
            tracing::debug!("waits for the team: {why}");
            self.clock.spent_aside(end - begin);
            self.show();
            return false;
        }
        let tokens = stepped.as_ref().map_or(0, |report| report.tokens);
        self.clock.stepped(tokens, (begin, end), pause);
        match stepped {
            Ok(report) => {
                self.divergence.stepped();
                let seconds = (end - begin + pause).as_secs_f64();
                self.travel += report.travel;
                self.view.progress += 1.0;
                // A private step may have taken no record.
                if report.loss.is_finite() {
                    self.view.loss = Some(self.view.loss.map_or(report.loss, |loss| blend(loss, report.loss)));
                }
                self.count_step(seconds, report.tokens);
            }
            Err(error) => self.on_failed_step(&error),
        }
        self.after_step();
        self.throttle.stepped(end - begin, Instant::now());
        true
    }

    /// A step has been taken, that took so long with the pause before it; while all average at once, also what it waited for them.
    fn count_step(&mut self, seconds: f64, tokens: usize) {
        let seconds =
            self.member.as_ref().map_or(seconds, |member| member.step_seconds(seconds, self.view.step_seconds));
        self.view.steps = self.engine.steps();
        tracing::trace!(seconds, "step {}", self.view.steps);
        let first = self.view.step_seconds == 0.0;
        self.view.step_seconds = if first { seconds } else { blend(self.view.step_seconds, seconds) };
        self.view.tokens_per_second = tokens as f64 / self.view.step_seconds;
    }

    /// What follows a step: an evaluation and a checkpoint where they are due, and a report.
    fn after_step(&mut self) {
        let after = Instant::now();
        // Members that wait for one another evaluate at the same step, or each would wait for every other one's evaluation.
        let counted = if self.member.is_some() { self.view.progress as u64 } else { self.view.steps };
        if self.settings.evaluate_every.is_some_and(|every| counted.is_multiple_of(every)) {
            self.evaluate();
        }
        self.save_where_due();
        self.clock.spent_aside(after.elapsed());
        if let Some(member) = &mut self.member {
            member.begin_step();
        }
        self.show();
        // The next report says the same and more, so this one may be lost; it must not overtake kept facts.
        if self.kept.is_empty() {
            let _ = self.events.try_send(Event::StepsCompleted(self.report()));
        }
    }

    fn place(&self) -> String {
        format!("step {} (progress {:.0} of the swarm)", self.view.steps + 1, self.view.progress)
    }

    fn report(&self) -> TrainingReport {
        TrainingReport {
            steps: self.view.steps,
            progress: self.view.progress,
            tokens_per_second: self.view.tokens_per_second,
            travel: self.travel,
            local_progress: 0.0,
        }
    }

    fn show(&mut self) {
        self.view.times = self.clock.times();
        self.view.privacy = self.privacy_report();
        self.view_sender.send_replace(self.view.clone());
    }

    fn refuse(&mut self, request: RequestId, error: &TrainingError) {
        match error {
            TrainingError::TeamWaits(_) => tracing::debug!("the trainer cannot do as told: {error}"),
            _ => tracing::error!("the trainer cannot do as told: {error}"),
        }
        self.tell(Event::RequestFailed { request });
    }

    /// Hands a fact over that must not be lost, in order, without waiting.
    fn tell(&mut self, event: Event) {
        if self.kept.len() < KEPT_MAX {
            self.kept.push_back(event);
        }
        self.send_kept();
    }

    fn send_kept(&mut self) {
        while let Some(event) = self.kept.pop_front() {
            if let Err(mpsc::error::TrySendError::Full(event)) = self.events.try_send(event) {
                self.kept.push_front(event);
                return;
            }
        }
    }
}

fn blend(average: f64, newest: f64) -> f64 {
    average + AVERAGE_WEIGHT * (newest - average)
}
