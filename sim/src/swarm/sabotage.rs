//! A node that may be broken on purpose, to prove that checks can fail.
//!
//! Mistakes are made around the real core: on what it is told, on what it orders, or on how an order is carried out, each
//! as a core with that mistake would behave. `tests/broken.rs` runs one scenario for each and asserts which checks find
//! it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use murmur_protocol::bulk::{BLOCK, Codes};
use murmur_protocol::numerics::{Buffers, Encoded, MergeJob, MergeRole, Merged, merge};
use murmur_protocol::{
    Config, Correction, Counts, Effect, Event, Message, Misbehaviour, ModelLayout, NetworkOrder, Node, Notice, PeerId,
    Phase, Status, Time, TrainerOrder, WorkerOrder, message::KnownPeer,
};

/// A mistake, made by all nodes of a swarm alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A correction is added twice.
    AppliesTwice,
    /// The model is overwritten with that of the snapshot, corrected: local steps on the way are lost.
    Overwrites,
    /// Large differences are taken for wrapped ones, and get the wrong sign on both sides.
    WrongSignAfterWrap,
    /// Nothing is clipped, nor is what comes of that found to be too long.
    NeverClips,
    /// From [`FORGETS_AFTER`] on time stands still for the node: nothing that it waits for is ever over.
    ForgetsDeadlines,
    /// A proposal is accepted a second time, on other terms.
    AnswersTwice,
    /// A proposal is accepted a second time, with the same share and another γ.
    ChangesGamma,
    /// The trainer waits while an exchange of its node is under way.
    TrainerWaits,
    /// The node ends training with each proposal, and begins it again when an exchange is over.
    EndsToExchange,
    /// Members are never forgotten.
    UnboundedView,
    /// The two sides of an exchange round differently.
    LopsidedCorrections,
    /// Corrections are a fifth too long, as far as the clip norm lets them.
    Overreaches,
    /// A starter does not move the references of its links.
    KeepsOldReferences,
    /// Corrections are thrown away.
    NeverCorrects,
    /// The news of merges gets lost, and nobody notices.
    LosesReplies,
    /// Busy partners are taken for hostile ones.
    Accuses,
    /// Who takes leave is dialed at once.
    PursuesLeavers,
    /// Who is banned is dialed at once.
    PursuesBanned,
    /// A starter merges whatever the responder has merged.
    IgnoresDigests,
    /// Trainers hear nothing of the run's end.
    IgnoresEnd,
    /// The node asks to be woken at once, for ever.
    NeverSleeps,
    /// Dials are forgotten.
    NeverDials,
    /// Corrections wait for three rounds, at full gain.
    CorrectsLate,
    /// Models shrink at every boundary, with or without peers.
    DecaysByItself,
    /// In a synchronous run, one host steps twice with each sum.
    TakesSumsUpTwice,
    /// What a node holds is taken for the whole model.
    ExchangesAll,
    /// That a node holds other fragments than before is not heard.
    KeepsHolding,
    /// Something that is neither seed nor event decides.
    AmbientRandomness,
}

/// When [`Sabotage::ForgetsDeadlines`] begins: members have come together by then.
const FORGETS_AFTER: Duration = Duration::from_secs(10);

/// What [`Sabotage::Overreaches`] makes of a length.
const OVERREACH: f32 = 1.2;

/// γ without any regard to delays: the default of a run.
const FULL_GAMMA: f64 = 0.5;

/// What only [`Sabotage::AmbientRandomness`] looks at: as wrong as it can be, on purpose.
static AMBIENT: AtomicU64 = AtomicU64::new(0);

/// A [`Node`], or one with a mistake.
#[derive(Debug)]
pub(crate) struct Core {
    node: Node,
    sabotage: Option<Sabotage>,
    began_at: Time,
    /// Everybody that was ever heard of, for [`Sabotage::UnboundedView`].
    ever_known: Vec<KnownPeer>,
    /// Since the last proposal, no exchange has ended.
    is_exchanging: bool,
    /// Effects that follow the one polled last.
    extra: Vec<Effect>,
}

impl Core {
    pub(crate) fn new(
        config: Config,
        me: PeerId,
        layout: Arc<ModelLayout>,
        seed: u64,
        now: Time,
        sabotage: Option<Sabotage>,
    ) -> Core {
        let node = Node::new(config, me, layout, seed, now);
        Core { node, sabotage, began_at: now, ever_known: Vec::new(), is_exchanging: false, extra: Vec::new() }
    }

    pub(crate) fn is(&self, sabotage: Sabotage) -> bool {
        self.sabotage == Some(sabotage)
    }

    /// Whether an exchange is under way, as far as its orders show.
    pub(crate) fn is_exchanging(&self) -> bool {
        self.is_exchanging
    }

    pub(crate) fn handle(&mut self, now: Time, mut event: Event) {
        let now = if self.is(Sabotage::ForgetsDeadlines) { now.min(self.began_at + FORGETS_AFTER) } else { now };
        if self.is(Sabotage::UnboundedView)
            && let Event::MessageReceived { message: Message::Shuffle { peers: told, .. }, .. } = &event
        {
            for known in told.iter().map(|told| &told.known) {
                if !self.ever_known.contains(known) {
                    self.ever_known.push(known.clone());
                }
            }
        }
        let accused = match &event {
            Event::MessageReceived { peer, message: Message::Reject(_) } if self.is(Sabotage::Accuses) => Some(*peer),
            _ => None,
        };
        let pursued = match &event {
            Event::MessageReceived { peer, message: Message::Leave } if self.is(Sabotage::PursuesLeavers) => {
                Some(*peer)
            }
            _ => None,
        };
        if let Event::Merged { result: Ok(merged), .. } = &mut event
            && self.is(Sabotage::NeverClips)
        {
            merged.clip_scale = 0.0;
        }
        let is_deaf = self.is(Sabotage::KeepsHolding) && matches!(event, Event::HoldingChanged { .. });
        self.node.handle(now, if is_deaf { Event::TimePassed } else { event });
        if pursued.is_some() {
            self.extra.push(Effect::Network(NetworkOrder::Dial { peer: pursued, addresses: Vec::new() }));
        }
        if let Some(peer) = accused {
            let notice = Notice::PeerMisbehaved { peer, misbehaviour: Misbehaviour::Unsolicited };
            self.extra.push(Effect::Notice(notice));
        }
    }

    pub(crate) fn poll_effect(&mut self) -> Option<Effect> {
        if let Some(extra) = self.extra.pop() {
            return Some(extra);
        }
        let mut effect = self.node.poll_effect()?;
        match (self.sabotage, &mut effect) {
            (Some(Sabotage::NeverDials), Effect::Network(NetworkOrder::Dial { .. })) => return self.poll_effect(),
            (Some(Sabotage::IgnoresEnd), Effect::Trainer(TrainerOrder::Finish(_))) => return self.poll_effect(),
            (Some(Sabotage::PursuesBanned), Effect::Notice(Notice::PeerBanned { peer, .. })) => {
                self.extra.push(Effect::Network(NetworkOrder::Dial { peer: Some(*peer), addresses: Vec::new() }));
            }
            (Some(Sabotage::IgnoresDigests), Effect::Worker(WorkerOrder::Merge { job, .. })) => ignore_digest(job),
            (Some(Sabotage::NeverClips), Effect::Worker(WorkerOrder::Merge { job, .. })) => job.clip = f64::MAX,
            (Some(Sabotage::CorrectsLate), Effect::Worker(WorkerOrder::Merge { job, .. })) => job.gamma = FULL_GAMMA,
            (_, Effect::Network(NetworkOrder::Send { message: Message::Propose(_), .. })) => {
                self.is_exchanging = true;
                self.train(TrainerOrder::End);
            }
            (_, Effect::Notice(Notice::ExchangeCompleted { .. } | Notice::ExchangeFailed { .. })) => {
                self.is_exchanging = false;
                self.train(TrainerOrder::Begin);
            }
            (
                Some(sabotage @ (Sabotage::AnswersTwice | Sabotage::ChangesGamma)),
                Effect::Network(NetworkOrder::Send { peer, message: Message::Accept(accept) }),
            ) => {
                let mut second = accept.clone();
                let changed = match sabotage {
                    Sabotage::ChangesGamma => &mut second.standing.gamma,
                    _ => &mut second.starter_share,
                };
                *changed *= 0.9;
                self.extra.push(Effect::Network(NetworkOrder::Send { peer: *peer, message: Message::Accept(second) }));
            }
            _ => {}
        }
        Some(effect)
    }

    /// Of [`Sabotage::EndsToExchange`].
    fn train(&mut self, order: TrainerOrder) {
        if self.is(Sabotage::EndsToExchange) && self.node.counts().phase == Phase::Training {
            self.extra.push(Effect::Trainer(order));
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        match self.sabotage {
            Some(Sabotage::ForgetsDeadlines) => {
                self.node.next_deadline().filter(|deadline| *deadline <= self.began_at + FORGETS_AFTER)
            }
            Some(Sabotage::NeverSleeps) => Some(Time::ZERO),
            _ => self.node.next_deadline(),
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        let counts = self.node.counts();
        Counts { known: counts.known + self.ever_known.len(), ..counts }
    }

    pub(crate) fn status(&self) -> Status {
        let mut status = self.node.status();
        status.known.extend(self.ever_known.iter().cloned());
        status
    }

    /// What the worker makes of a merge.
    pub(crate) fn spoil(&self, job: &MergeJob, merged: &mut Merged) {
        let values = || merged.correction.to_values();
        match (self.sabotage, &job.role) {
            (Some(Sabotage::WrongSignAfterWrap), _) => merged.correction = rebuilt(&flipped(values())),
            (Some(Sabotage::LopsidedCorrections), MergeRole::Starter { .. }) => {
                let mut values = values();
                let largest =
                    (0..values.len()).max_by(|one, other| values[*one].abs().total_cmp(&values[*other].abs()));
                largest.into_iter().for_each(|index| values[index] *= 0.5);
                merged.correction = rebuilt(&values);
            }
            (Some(Sabotage::Overreaches), _) if merged.norm * f64::from(OVERREACH) < job.clip => {
                let values: Vec<f32> = values().iter().map(|value| OVERREACH * value).collect();
                merged.correction = rebuilt(&values);
            }
            (Some(Sabotage::KeepsOldReferences), MergeRole::Starter { .. }) => {
                merged.reference.clone_from(&job.reference);
            }
            (Some(Sabotage::NeverCorrects), _) => merged.correction = rebuilt(&vec![0.0; merged.correction.len()]),
            _ => {}
        }
    }
}

/// Puts the digest that the starter will find in place of what the responder has told: it is that of a responder with the
/// same payloads.
fn ignore_digest(job: &mut MergeJob) {
    if job.role == MergeRole::Responder {
        return;
    }
    let own = Encoded { codes: job.received.clone(), ..job.own.clone() };
    let (own, received) = (own, job.own.codes.clone());
    let responder = MergeJob { role: MergeRole::Responder, own, received, ..job.clone() };
    if let Ok(merged) = merge(&responder, &Buffers::new()) {
        job.role = MergeRole::Starter { digest: merged.digest };
    }
}

/// A number that no seed decides.
pub(super) fn ambient() -> u64 {
    AMBIENT.fetch_add(1, Ordering::Relaxed)
}

/// Turns the larger half of each block around.
fn flipped(mut values: Vec<f32>) -> Vec<f32> {
    for block in values.chunks_mut(BLOCK) {
        let largest = block.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        block.iter_mut().filter(|value| value.abs() > largest / 2.0).for_each(|value| *value = -*value);
    }
    values
}

/// A correction of these values: opposite for opposite ones, and equal to the one that they came from up to the last
/// bits of its steps.
pub(super) fn rebuilt(values: &[f32]) -> Correction {
    let mut codes = Vec::with_capacity(values.len());
    let mut steps = Vec::new();
    for block in values.chunks(BLOCK) {
        let step = step_of(block);
        steps.push(step);
        codes.extend(block.iter().map(|value| if step > 0.0 { (value / step).round() as i16 } else { 0 }));
    }
    Correction::new(Codes::Wide(codes), steps)
}

/// The largest step of which all values are multiples; where there is none, the finest that 16 bits allow.
fn step_of(block: &[f32]) -> f32 {
    /// How far from a whole number a quotient may lie.
    const TOLERANCE: f32 = 0.01;
    let largest = block.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let finest = largest / f32::from(i16::MAX);
    let is_multiple = |value: &f32, step: f32| ((value / step) - (value / step).round()).abs() < TOLERANCE;
    let steps = (1..i16::MAX).map(|code| largest / f32::from(code));
    let mut fitting = steps.filter(|step| block.iter().all(|value| is_multiple(value, *step)));
    if largest > 0.0 { fitting.next().unwrap_or(finest) } else { 0.0 }
}
