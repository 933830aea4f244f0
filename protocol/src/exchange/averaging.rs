//! What both roles share: this node's part in averaging, and what its exchanges have taught it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::cadence::Cadence;
use super::clip::{ClipHistory, middle};
use super::gain::LoopGain;
use super::last_merges::LastMerges;
use super::links::Links;
use super::member_count::MemberCount;
use super::outcome::Way;
use super::outlier::{OutlierDetection, Seen};
use super::part_state::{PartState, masked_share};
use super::progress::is_progress_odd;
use super::reunion::{Meeting, ROUNDS_APART, Reunions};
use super::step_time::StepTime;
use super::terms::Terms;
use super::timeout::TimeoutEstimator;
use super::turns::Turns;
use crate::bounds::*;
use crate::bulk::Snapshot;
use crate::event::TrainingReport;
use crate::fragments::Holding;
use crate::manifest::{GossipKind, GossipSpec};
use crate::message::Standing;
use crate::notice::{ExchangeFailure, Notice};
use crate::numerics::{CodeWidth, Merged, Scales};
use crate::outbox::Outbox;
use crate::part::{Part, Vector};
use crate::peer::PeerId;
use crate::reputation::{Impression, Reputation};
use crate::status::ExchangeCounters;
use crate::time::Time;

/// One exchange shifts the swarm progress by at most this many intervals: a peer that claims to be at the end of the
/// run must not end ours.
const PROGRESS_SHIFT_INTERVALS: f64 = 4.0;

/// Models nearer than this share of what training has moved them are one, however near others are (a guess).
const TELLING_TRAVEL: f64 = 2e-4;

/// The travel that counts for this is at most so many times the model's size: steps go to and fro, and their sum grows for as
/// long as a run goes on (a guess).
const TRAVEL_OF_SIZE: f64 = 10.0;

/// Models of a run that is over count as one below this share of the usual distance while they trained (a guess: final
/// exchanges halve the distance each).
const SETTLED_SHARE: f64 = 0.05;

/// A link whose partner's influence falls below this is given up, for another partner (a guess).
pub(super) const LINK_INFLUENCE_MIN: f64 = 0.5;

/// Rounds for which an own exchange may wait until the partner's step ends. Seven members with steps of 0.1 s and one with steps of
/// 2 s end 0.7 % lower with two than where they wait for all of its step (three seeds).
const ROUNDS_WAITED: f64 = 2.0;

/// This node's part in averaging.
#[derive(Debug)]
pub(crate) struct Averaging {
    pub(crate) gossip: GossipSpec,
    pub(crate) training: TrainingReport,
    /// At most two vectors of [`FRAGMENTS_MAX`].
    parts: BTreeMap<Part, PartState>,
    pub(crate) turns: Turns,
    pub(crate) cadence: Cadence,
    pub(crate) gain: LoopGain,
    pub(crate) member_count: MemberCount,
    /// How long an own exchange takes.
    pub(crate) timeout: TimeoutEstimator,
    pub(crate) counters: ExchangeCounters,
    /// ‖s·d‖ of the last exchange of the model.
    pub(crate) last_distance: Option<f64>,
    /// Partner's progress of the last exchange of the model, until it is taken.
    last_merge: Option<f64>,
    /// Own steps when the last exchange was merged.
    last_merge_steps: u64,
    /// Exchanges until a joiner counts in full.
    ramp_left: u32,
    pub(super) step_time: StepTime,
    reunions: Reunions,
    pub(crate) links: Links,
    /// How far own training had moved the model before the one that was copied; `None` for one that began with the run.
    travel_of_copy: Option<f64>,
    /// How far own training had moved the model when the round began.
    travel_before: f64,
    /// Whether it moved the model between the last two rounds.
    pub(crate) has_moved: bool,
    /// The usual distance when training was over; 0 before, and where nothing was usual yet.
    usual_in_training: f64,
}

/// What there is to say of a merge beside its result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Circumstances {
    pub(super) partner: PeerId,
    /// Which fragments it holds.
    pub(super) partner_holding: Holding,
    /// Whether this side has proposed.
    pub(super) is_starter: bool,
    /// Of the snapshot.
    pub(super) parameters: usize,
    /// Of the snapshot, about; 0 until it is encoded.
    pub(super) norm: f64,
    /// Own steps at the snapshot.
    pub(super) snapshot_steps: u64,
    /// What own training had done since the snapshot before.
    pub(super) local_progress: f64,
}

impl Circumstances {
    pub(super) fn of(
        ((partner, partner_holding), is_starter): ((PeerId, Holding), bool),
        snapshot: &Snapshot,
        report: &TrainingReport,
    ) -> Circumstances {
        let TrainingReport { steps: snapshot_steps, local_progress, .. } = *report;
        let parameters = snapshot.values().len();
        Circumstances { partner, partner_holding, is_starter, parameters, norm: 0.0, snapshot_steps, local_progress }
    }
}

impl Averaging {
    /// `parameters`: of the whole model. `upload_cap`: the owner's, in bytes a second.
    pub(crate) fn new(
        (gossip, turns): (GossipSpec, Turns),
        parameters: usize,
        training: TrainingReport,
        upload_cap: Option<f64>,
    ) -> Averaging {
        Averaging {
            cadence: Cadence::new(&gossip, parameters, upload_cap),
            gain: LoopGain::new(gossip.gamma),
            member_count: MemberCount::new(),
            timeout: TimeoutEstimator::new(exchange_timeout(parameters), EXCHANGE_TIMEOUT_MIN, EXCHANGE_DOUBLINGS_MAX),
            turns,
            gossip,
            training,
            parts: BTreeMap::new(),
            counters: ExchangeCounters::default(),
            last_distance: None,
            last_merge: None,
            last_merge_steps: training.steps,
            ramp_left: 0,
            step_time: StepTime::default(),
            reunions: Reunions::default(),
            links: Links::default(),
            travel_of_copy: (training.progress > 0.0).then_some(0.0),
            travel_before: 0.0,
            has_moved: false,
            usual_in_training: 0.0,
        }
    }

    /// The model was copied: its weight begins small, and what was learned about the one before is void. `clip`: what a
    /// second peer lets in, where one was asked.
    pub(crate) fn begin_ramp(&mut self, clip: Option<f64>) {
        self.ramp_left = RAMP_EXCHANGES;
        self.travel_of_copy = Some(self.training.travel);
        for state in self.parts.values_mut() {
            (state.scales, state.outlier) = (None, OutlierDetection::default());
            (state.is_stuck, state.is_beyond_grid, state.is_near) = (false, false, false);
            state.last_merges.clear();
        }
        // Without a check the distances of the model before are the best guess.
        if let Some(clip) = clip.filter(|clip| *clip > 0.0) {
            let usual = clip / self.gossip.clip_factor;
            self.parts.values_mut().for_each(|state| state.clip.begin_anew(0.0));
            // One fragment was checked; the others are as long.
            for fragment in self.turns.held() {
                self.parts.entry(self.turns.part(*fragment)).or_default().clip.begin_anew(usual);
            }
        }
    }

    /// This node holds these fragments now; returns whether some are new. What was learned of the others is void. Of new ones
    /// nothing is known, but that they are as long as those that it has held: they are not let in at any distance.
    pub(crate) fn hold(&mut self, holding: Holding) -> bool {
        let (before, usual) = (self.turns.held().to_vec(), self.usual_distance());
        self.turns.hold(holding);
        let turns = &self.turns;
        self.links.forget_unless(|part| turns.holds(part));
        self.parts.retain(|part, _| turns.holds(*part));
        let new: Vec<u16> = turns.held().iter().copied().filter(|fragment| !before.contains(fragment)).collect();
        for fragment in new.iter().filter(|_| usual > 0.0) {
            let state = self.parts.entry(self.turns.part(*fragment)).or_default();
            state.clip.begin_anew(usual);
            state.travel_before = self.training.travel;
        }
        !new.is_empty()
    }

    /// A peer is back that was out of reach for `away`: its model went its own way, honestly.
    pub(crate) fn on_return(&mut self, now: Time, peer: PeerId, away: Duration) {
        self.reunions.on_return(now, peer, away, away.as_secs_f64() / self.round_seconds());
    }

    /// A peer says that it rests.
    pub(crate) fn on_rest(&mut self, now: Time, peer: PeerId) {
        self.reunions.on_rest(now, peer);
    }

    /// A peer takes part in an exchange: where it has rested, its model went its own way.
    pub(crate) fn on_takes_part(&mut self, now: Time, peer: PeerId) {
        if let Some(rested) = self.reunions.take_rest(now, peer).filter(|rested| *rested >= self.apart_after()) {
            self.reunions.on_rest_over(peer, rested, rested.as_secs_f64() / self.round_seconds());
        }
    }

    /// How long a peer must have been out of reach for its model to have gone its own way.
    pub(crate) fn apart_after(&self) -> Duration {
        let most = AWAY_COUNTS_AFTER.as_secs_f64();
        let rounds = ROUNDS_APART * self.round_seconds();
        Duration::from_secs_f64(if rounds > 0.0 { most.min(rounds) } else { most })
    }

    /// The time in which a node starts one exchange; 0 before it is known.
    fn round_seconds(&self) -> f64 {
        self.round_steps() * self.step_time.seconds()
    }

    /// How long a partner's step may still take, in milliseconds: rounds that are left out meanwhile are worth more than an exchange
    /// with a slow member, which may be asked again when its step ends. No limit where there is no round to leave out.
    pub(super) fn step_left_max_ms(&self, part: Part, way: Way) -> u32 {
        let has_rounds = part.vector == Vector::Model && way != Way::Probe && !self.links.is_at_rest();
        let rounds = Duration::try_from_secs_f64(ROUNDS_WAITED * self.round_seconds()).unwrap_or(Duration::MAX);
        match u32::try_from(rounds.max(BUSY_RETRY).as_millis()) {
            Ok(milliseconds) if has_rounds && !rounds.is_zero() => milliseconds,
            _ => u32::MAX,
        }
    }

    /// Own steps in which a node starts one exchange: who holds few fragments has few rounds.
    pub(super) fn round_steps(&self) -> f64 {
        self.cadence.interval() * self.turns.rounds_apart()
    }

    /// What partners have said of that counts no more.
    pub(crate) fn forget_outlier(&mut self) {
        self.parts.values_mut().for_each(|state| state.outlier = OutlierDetection::default());
    }

    /// What partners declared as the swarm's progress that hardly let this node's model in any more, so far off is it: after a
    /// long standstill, say. `None` for one that is no outlier. `others`: how many members of the swarm this node knows of.
    pub(crate) fn progress_missed(&self, others: impl Fn() -> usize) -> Option<f64> {
        self.parts.values().find_map(|state| state.outlier.progress_missed(&others))
    }

    /// What the model's parts have taught of distances.
    fn clips(&self) -> impl Iterator<Item = &ClipHistory> {
        self.parts.iter().filter(|(part, _)| part.vector == Vector::Model).map(|(_, state)| &state.clip)
    }

    /// The usual distance of two models, of the fragment in which it is largest; 0 before it is known.
    fn usual_distance(&self) -> f64 {
        self.clips().filter_map(ClipHistory::usual).fold(0.0, f64::max)
    }

    /// The same from exchanges of this node's own; of all fragments together where none had enough. What another member has told is
    /// large enough to train by, and would leave models apart that are to be one.
    fn measured_distance(&self) -> f64 {
        let of_one = self.clips().filter_map(ClipHistory::measured).reduce(f64::max);
        of_one.or_else(|| middle(self.clips())).unwrap_or(0.0)
    }

    /// What the last exchanges of those fragments of the model say that others hold, where one was merged since the last call.
    pub(crate) fn take_last_merges(&mut self, is_held: impl Fn(u16) -> bool) -> Option<LastMerges> {
        let partner_progress = self.last_merge.take()?;
        let is_of_model = |part: &Part| part.vector == Vector::Model && is_held(part.fragment.index);
        let models = self.parts.iter().filter(|(part, _)| is_of_model(part));
        Some(LastMerges::together(models.flat_map(|(_, state)| &state.last_merges), partner_progress))
    }

    /// What the last exchange of a part says.
    pub(crate) fn last_merge_of(&self, part: Part) -> Option<LastMerges> {
        self.parts.get(&part)?.last_merges.back().copied()
    }

    /// An own round begins.
    pub(crate) fn on_round(&mut self) {
        self.has_moved = self.training.travel > self.travel_before;
        self.travel_before = self.training.travel;
    }

    /// Training stood still for others meanwhile: a step takes this long, as far as is known.
    pub(crate) fn set_step_seconds(&mut self, step_seconds: f64) {
        self.step_time = StepTime::of(step_seconds);
    }

    /// Seconds of one step, 0 before that is known.
    pub(crate) fn step_seconds(&self) -> f64 {
        self.step_time.seconds()
    }

    pub(crate) fn on_report(&mut self, now: Time, report: TrainingReport) {
        self.training = report;
        self.step_time.on_report(now, report.steps);
        let step = Duration::from_secs_f64(self.step_time.seconds().min(STEP_TIME_MAX.as_secs_f64()));
        self.timeout.allow(step * STEPS_OF_AN_EXCHANGE);
    }

    /// Whether this run exchanges such a part.
    pub(crate) fn exchanges(&self, part: Part) -> bool {
        self.turns.is_cut(part.fragment) && (part.vector == Vector::Model || self.averages_momentum())
    }

    /// Whether the outer momentum is averaged too.
    pub(crate) fn averages_momentum(&self) -> bool {
        self.gossip.outer_learning_rate > 0.0 && self.gossip.momentum_bits > 0
    }

    pub(crate) fn scales(&self, part: Part) -> Option<Scales> {
        self.parts.get(&part).and_then(|state| state.scales.clone())
    }

    /// Of which the grid of `part` is made: the run's `gossip.step_fraction`, and our scales.
    pub(super) fn grid(&self, part: Part) -> (f64, Option<Scales>) {
        (self.gossip.step_fraction, self.scales(part))
    }

    /// How wide the codes of our next exchange of `part` are: coarse in the first one, and where blocks wrap again and
    /// again. The grid of a block follows those who are near, so that two halves of a swarm that were apart for a
    /// while would be beyond each other's for ever, once nobody learns any more and each half draws together.
    pub(crate) fn width(&self, part: Part) -> CodeWidth {
        let bits = if part.vector == Vector::Model { self.gossip.bits } else { self.gossip.momentum_bits };
        let steady = CodeWidth::from_bits(bits).expect("a manifest's bits are a width");
        let fits = |state: &PartState| state.scales.is_some() && !state.is_stuck;
        if self.parts.get(&part).is_some_and(fits) { steady } else { CodeWidth::Sixteen }
    }

    /// The width of these bits, where this run uses it for `part`.
    pub(crate) fn accepted_width(&self, part: Part, bits: u8) -> Option<CodeWidth> {
        let steady = if part.vector == Vector::Model { self.gossip.bits } else { self.gossip.momentum_bits };
        CodeWidth::from_bits(bits).filter(|width| match width {
            CodeWidth::Sixteen => true,
            CodeWidth::One => self.gossip.kind == GossipKind::Links && part.vector == Vector::Model,
            _ => bits == steady,
        })
    }

    /// How this node stands towards a partner of this influence, 0 to 1.
    pub(crate) fn standing(&self, part: Part, influence: f64) -> Standing {
        let ramp = f64::from(RAMP_EXCHANGES + 1 - self.ramp_left) / f64::from(RAMP_EXCHANGES + 1);
        Standing {
            weight: (self.training.tokens_per_second * ramp) as f32,
            clip: (self.clip_norm(part) * influence) as f32,
            gamma: self.gain.gamma() as f32,
            progress: self.training.progress,
        }
    }

    /// How far from this model a peer's may be to be one of the same swarm: told in answer to a probe. The peer's own past
    /// does not count, for it is another model that it asks about.
    pub(crate) fn reach(&self, part: Part) -> f32 {
        self.clip_norm(part) as f32
    }

    /// τ for a partner that is believed.
    fn clip_norm(&self, part: Part) -> f64 {
        let unknown = PartState::default();
        let PartState { clip: history, travel_before, .. } = self.parts.get(&part).unwrap_or(&unknown);
        let (first, of_copy) = self.travel_of_copy.map_or((FIRST_CLIP, 0.0), |travel| (FIRST_CLIP_OF_COPY, travel));
        let travel = self.training.travel - travel_before.max(of_copy);
        history.norm(self.gossip.clip_factor, first * travel)
    }

    /// Takes in what a merge found out and orders the correction.
    pub(super) fn complete(
        &mut self,
        merged: &Merged,
        terms: &Terms,
        about: Circumstances,
        reputation: &mut Reputation,
        out: &mut Outbox,
    ) {
        if terms.is_probe() {
            self.counters.probes += 1;
            return;
        }
        let is_excused = self.meet(merged, terms, about.partner, out);
        let trust = match is_excused {
            true => reputation.trust(about.partner),
            false => reputation.on_exchange(about.partner, self.impression(merged, terms, about)),
        };
        let is_model = terms.part.vector == Vector::Model;
        let is_progress_odd = self.is_progress_odd(terms.progress_difference);
        let seen = Seen {
            partner: about.partner,
            progress: self.training.progress + terms.progress_difference,
            is_rebuff: is_progress_odd,
            is_behind: is_progress_odd && terms.progress_difference > 0.0,
            is_excused,
        };
        let circumstances = (self.hardly_apart(about.norm), self.links.is_at_rest());
        let masked = masked_share(merged, about.parameters);
        self.parts.entry(terms.part).or_default().take_in((merged, masked), terms, seen, circumstances);
        if let Some(reference) = &merged.reference {
            let is_believed = reputation.influence(about.partner) >= LINK_INFLUENCE_MIN;
            let partner = (about.partner, about.partner_holding);
            self.links.keep(partner, terms.part, reference.clone(), (about.is_starter, is_believed));
        }
        if is_model {
            self.last_distance = Some(merged.distance);
            self.last_merge = Some(self.training.progress + terms.progress_difference);
            self.last_merge_steps = self.training.steps;
            self.cadence.on_distance(merged.distance, about.local_progress);
            self.gain.on_exchange();
            self.ramp_left = self.ramp_left.saturating_sub(1);
        } else {
            self.counters.momentum += 1;
        }
        let is_coarse = terms.width == CodeWidth::Sixteen;
        self.counters.coarse += u64::from(is_coarse);
        self.counters.masked_blocks += u64::from(merged.masked_blocks);
        let progress_shift = self.progress_shift(terms, about.partner_holding, trust);
        out.apply(terms.part, merged.correction.clone(), progress_shift, about.snapshot_steps);
        out.notice(Notice::ExchangeCompleted {
            partner: about.partner,
            part: terms.part,
            distance: merged.distance,
            clip_scale: merged.clip_scale,
            masked_blocks: merged.masked_blocks,
            coarse: is_coarse,
        });
    }

    pub(super) fn fail(&mut self, partner: PeerId, failure: ExchangeFailure, out: &mut Outbox) {
        *self.counters.failed.entry(failure).or_default() += 1;
        out.notice(Notice::ExchangeFailed { partner, failure });
    }

    /// Whether the distance has a reason: the two were apart. The first exchange after a split is told.
    fn meet(&mut self, merged: &Merged, terms: &Terms, partner: PeerId, out: &mut Outbox) -> bool {
        let steps = self.training.steps.saturating_sub(self.last_merge_steps);
        let rounds = steps as f64 / self.round_steps();
        let Meeting { first_after, is_excused } = self.reunions.on_merge(out.now(), partner, merged.distance, rounds);
        if let Some(away) = first_after {
            let (distance, partner_share) = (merged.distance, terms.partner_share);
            out.notice(Notice::Reunited { partner, away, distance, partner_share });
        }
        is_excused
    }

    /// Whether no honest pace explains that somebody's progress differs so much from ours, in steps.
    pub(crate) fn is_progress_odd(&self, difference: f64) -> bool {
        is_progress_odd(difference, self.training.progress)
    }

    /// This node trains no more.
    pub(crate) fn on_training_over(&mut self) {
        // After a few steps more, for averaged progress, what is usual is what final exchanges have left.
        self.usual_in_training = self.usual_in_training.max(self.measured_distance());
        self.links.rest();
    }

    /// Models of a run that is over and no further apart than this are one: a Euclidean norm. 0: not known.
    pub(crate) fn settled_distance(&self) -> f64 {
        SETTLED_SHARE * self.usual_in_training
    }

    /// Models that are not further apart are one. `norm`: of this node's.
    fn hardly_apart(&self, norm: f64) -> f64 {
        self.settled_distance().max(TELLING_TRAVEL * self.training.travel.min(TRAVEL_OF_SIZE * norm))
    }

    /// What this exchange says of the partner.
    fn impression(&self, merged: &Merged, terms: &Terms, about: Circumstances) -> Impression {
        let clip = self.parts.get(&terms.part).map(|state| &state.clip);
        let least = self.hardly_apart(about.norm);
        // Final exchanges bring the others nearer than training lets them be: who has missed them is no liar.
        let usual = clip.and_then(|clip| Some(clip.usual()?.max(least).max(self.usual_in_training)));
        Impression {
            distance: usual.filter(|usual| *usual > 0.0).map_or(1.0, |usual| merged.norm / usual),
            masked_share: masked_share(merged, about.parameters),
            is_progress_odd: self.is_progress_odd(terms.progress_difference),
        }
    }

    /// What the exchange adds to the swarm progress, in steps: all fragments that the two share together the difference. What is
    /// left of it for one fragment is within the limit of one exchange.
    fn progress_shift(&self, terms: &Terms, partner: Holding, trust: f64) -> f64 {
        if terms.part.vector == Vector::Momentum {
            return 0.0;
        }
        let limit = PROGRESS_SHIFT_INTERVALS * self.cadence.interval() * trust;
        let fragments = f64::from(self.turns.shared_count(partner));
        terms.factor * (terms.progress_difference / fragments).clamp(-limit, limit)
    }
}

#[cfg(test)]
mod tests;
