//! How a team is cut: helpers are gathered, states of layers that move are kept, stages are loaded. And cut anew where a helper is
//! lost, comes or leaves.

use std::collections::{BTreeMap, BTreeSet};

use super::roster::Task;
use super::{Captain, CaptainEffect, Packet, Phase};
use crate::Payload;
use crate::peer::PeerId;
use crate::team::bounds::{GAIN_MIN, HELPERS_MAX, REPAYS_WITHIN, WAITING_NOTICE_PERIOD};
use crate::team::cut::{self, Cut, Place};
use crate::team::frame::{StateHeader, StateKind};
use crate::team::message::{Assign, HeldLayers, LayerRange, TeamMessage};
use crate::team::notice::TeamNotice;
use crate::time::Time;

/// No cut, as yet.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Until when it waits for those who are expected; then it cuts with those who are there.
    pub(super) until: Time,
    /// Where no cut fits: bytes that are missing, at least.
    pub(super) missing_bytes: u64,
    /// Who was there before the last loss; nobody where the first cut is sought.
    expected: BTreeSet<PeerId>,
}

impl Waiting {
    /// Before the first cut.
    pub(super) fn gathering(until: Time) -> Waiting {
        Waiting { until, missing_bytes: 0, expected: BTreeSet::new() }
    }
}

/// States of layers that are about to move are copied to the owner.
#[derive(Debug)]
pub(super) struct Saving {
    cut: Cut,
    /// Of whom, by request.
    copies: BTreeMap<u64, (PeerId, HeldLayers)>,
    since: Time,
}

impl Saving {
    pub(super) fn awaited(&self) -> Vec<(PeerId, Task, Time)> {
        self.copies.values().map(|(helper, _)| (*helper, Task::Copy, self.since)).collect()
    }

    /// Whether a helper gives its state, or has a stage of the cut that comes.
    pub(super) fn concerns(&self, helper: PeerId) -> bool {
        self.cut.has(helper) || self.copies.values().any(|(giver, _)| *giver == helper)
    }
}

/// Stages are loaded.
#[derive(Debug)]
pub(super) struct Loading {
    pub(super) cut: Cut,
    /// Helpers that are not ready.
    awaits: BTreeSet<PeerId>,
    /// Whether the captain's own stages are not ready.
    awaits_own: bool,
    /// States that the owner reads out, by request.
    reads: BTreeMap<u64, (PeerId, StateKind)>,
    since: Time,
}

impl Loading {
    pub(super) fn awaited(&self) -> Vec<(PeerId, Task, Time)> {
        self.awaits.iter().map(|helper| (*helper, Task::Load, self.since)).collect()
    }
}

impl Captain {
    /// A helper that the cut has is gone: it may return within the grace, and then goes on where it was.
    pub(super) fn wait_for(&mut self, now: Time, helper: PeerId) {
        let mut expected: BTreeSet<PeerId> = match &self.phase {
            Phase::Waiting(waiting) => waiting.expected.clone(),
            Phase::Saving(saving) => saving.cut.of_helpers().map(|(_, helper, _)| helper).collect(),
            Phase::Loading(loading) => loading.cut.of_helpers().map(|(_, helper, _)| helper).collect(),
            Phase::Ended => return,
            _ => self.cut.iter().flat_map(Cut::of_helpers).map(|(_, helper, _)| helper).collect(),
        };
        expected.insert(helper);
        self.phase = Phase::Waiting(Waiting { until: now + self.config.timeouts.grace, missing_bytes: 0, expected });
    }

    /// The captain's own machine, as fast as it was measured.
    fn own_place(&self) -> Place {
        let operations_per_second = self.speed.reached().unwrap_or(self.config.captain.operations_per_second);
        Place { operations_per_second, ..self.config.captain }
    }

    fn best_cut(&self) -> Result<Cut, u64> {
        let mut candidates = self.roster.candidates();
        // The fastest, where there are more than can be tried.
        candidates.sort_by(|one, other| other.1.operations_per_second.total_cmp(&one.1.operations_per_second));
        candidates.truncate(HELPERS_MAX);
        cut::best(&self.config.model, &self.own_place(), &candidates, self.config.lanes.microbatches())
    }

    /// Whether all who are expected are there, or the time for them is over; where no cut has fitted, whether something is new.
    fn is_gathered(&self, now: Time, waiting: &Waiting) -> bool {
        if now >= waiting.until || waiting.missing_bytes > 0 {
            return now >= waiting.until || self.reconsiders;
        }
        if waiting.expected.is_empty() {
            return self.roster.candidates().len() >= self.config.helpers_wanted;
        }
        waiting.expected.iter().all(|helper| self.roster.is_candidate(*helper))
    }

    /// Cuts the model, where it fits.
    pub(super) fn seek_cut(&mut self, now: Time) {
        let Phase::Waiting(waiting) = &self.phase else { return };
        // What layers begin from has to be known.
        if !self.is_gathered(now, waiting) || !self.checking.is_empty() {
            return;
        }
        let is_late = now >= waiting.until;
        self.reconsiders = false;
        // Those who were there before go on as before.
        let same = self.cut.clone().filter(|cut| {
            let mut members = cut.of_helpers();
            !waiting.expected.is_empty() && members.all(|(_, helper, _)| self.roster.is_candidate(helper))
        });
        match same.map_or_else(|| self.best_cut(), Ok) {
            Ok(cut) => self.take_up(now, cut),
            Err(missing_bytes) => {
                if let Phase::Waiting(waiting) = &mut self.phase
                    && (is_late || waiting.missing_bytes != missing_bytes)
                {
                    waiting.missing_bytes = missing_bytes;
                    waiting.until = now + WAITING_NOTICE_PERIOD;
                    self.notice(TeamNotice::Waiting { missing_bytes });
                }
            }
        }
    }

    /// Cuts anew between batches where somebody leaves, or another cut repays what it costs.
    pub(super) fn improve_cut(&mut self, now: Time) {
        let Some(cut) = self.cut.as_ref().filter(|_| std::mem::take(&mut self.reconsiders)) else { return };
        let leaves = cut.of_helpers().any(|(_, helper, _)| !self.roster.is_candidate(helper));
        let Ok(better) = self.best_cut() else { return };
        if leaves || (better.stages != cut.stages && self.repays(cut, &better)) {
            self.take_up(now, better);
        }
    }

    /// Whether a cut gains more within [`REPAYS_WITHIN`] than moving layers takes.
    fn repays(&self, cut: &Cut, better: &Cut) -> bool {
        let places: Option<Vec<Place>> = cut.of_helpers().map(|(_, helper, _)| self.roster.place(helper)).collect();
        let Some(places) = places else { return true };
        let microbatches = self.config.lanes.microbatches();
        let now = cut::tokens_per_second(&self.config.model, &self.own_place(), cut, &places, microbatches);
        let gain = better.tokens_per_second / now - 1.0;
        let seconds = better.of_helpers().map(|(_, helper, stage)| {
            let keeps =
                self.roster.get(helper).and_then(|known| known.held).is_some_and(|held| held.layers == stage.layers);
            let bytes = if keeps { 0 } else { u64::from(stage.layers.len()) * self.config.model.layer.moved_bytes };
            let rate = self.roster.place(helper).map_or(f64::INFINITY, |place| place.link.down);
            // Out of one machine and into another.
            2.0 * bytes as f64 / rate.min(self.config.captain.link.up)
        });
        let seconds: f64 = seconds.sum();
        gain > GAIN_MIN && gain * REPAYS_WITHIN.as_secs_f64() > seconds
    }

    /// A cut is decided. What only a helper has of layers that move is copied first.
    fn take_up(&mut self, now: Time, cut: Cut) {
        let mut copies = BTreeMap::new();
        for (helper, held) in self.roster.held_layers() {
            let stays = cut.of_helpers().any(|(_, member, stage)| member == helper && stage.layers == held.layers);
            let is_kept = held.layers.numbers().all(|layer| self.kept[layer as usize] >= held.revision);
            if !stays && !is_kept {
                let request = self.number();
                copies.insert(request, (helper, held));
                let (epoch, kind) = (held.epoch, StateKind::Training);
                self.send(helper, TeamMessage::Copy { epoch, request, kind, stays_member: false });
            }
        }
        self.phase = Phase::Saving(Saving { cut, copies, since: now });
        self.end_saving(now);
    }

    /// The state of a helper whose layers move has come; whether it is one that was asked for.
    pub(super) fn on_saved(&mut self, now: Time, helper: PeerId, header: StateHeader, payload: &Payload) -> bool {
        let Phase::Saving(saving) = &mut self.phase else { return false };
        let Some((giver, held)) = saving.copies.get(&header.request).copied() else { return false };
        if giver != helper || header.epoch != held.epoch {
            return false;
        }
        saving.copies.remove(&header.request);
        let since = saving.since;
        if let Some(known) = self.roster.get_mut(helper) {
            known.record(Task::Copy, now - since);
        }
        self.keep(helper, held.layers, header, payload.clone());
        true
    }

    pub(super) fn end_saving(&mut self, now: Time) {
        let Phase::Saving(saving) = &self.phase else { return };
        if saving.copies.is_empty() && self.checking.is_empty() {
            let cut = saving.cut.clone();
            self.load(now, cut);
        }
    }

    /// Orders all stages of a cut.
    fn load(&mut self, now: Time, cut: Cut) {
        self.epoch = self.number();
        self.end_memberships();
        for helper in self.roster.offering() {
            if let Some(known) = self.roster.get_mut(helper)
                && !cut.has(helper)
                && (known.is_assigned || known.held.is_some())
            {
                (known.is_assigned, known.held) = (false, None);
                self.send(helper, TeamMessage::Release { epoch: self.epoch });
            }
        }
        let mut reads = BTreeMap::new();
        for (number, helper, stage) in cut.of_helpers() {
            let keeps_state = self.keeps_state(helper, stage.layers);
            self.assign(helper, &cut, number, keeps_state);
            if !keeps_state {
                let request = self.number();
                reads.insert(request, (helper, StateKind::Training));
                let (layers, kind) = (stage.layers, StateKind::Training);
                self.effects.push_back(CaptainEffect::ReadOut { request, layers, kind });
            }
        }
        let own: Vec<LayerRange> = cut.of_captain().map(|stage| cut.stages[stage].layers).collect();
        own.into_iter().for_each(|layers| self.go_back(layers));
        self.effects.push_back(CaptainEffect::Load { epoch: self.epoch, cut: cut.clone() });
        let awaits = cut.of_helpers().map(|(_, helper, _)| helper).collect();
        self.phase = Phase::Loading(Loading { cut, awaits, awaits_own: true, reads, since: now });
    }

    /// Whether a helper goes on with what it holds of these layers, which is no older than the owner's copy.
    fn keeps_state(&mut self, helper: PeerId, layers: LayerRange) -> bool {
        let kept = layers.numbers().map(|layer| self.kept[layer as usize]).min().unwrap_or(0);
        let held = self.roster.get(helper).and_then(|known| known.held);
        let held = held.filter(|held| held.layers == layers && held.revision >= kept);
        match held {
            Some(held) => {
                self.count_lost(layers, held.revision);
                if let Some(known) = self.roster.get_mut(helper) {
                    known.held = Some(HeldLayers { epoch: self.epoch, revision: self.revision, layers });
                }
            }
            None => {
                self.go_back(layers);
                if let Some(known) = self.roster.get_mut(helper) {
                    known.held = None;
                    known.forget_work(&self.config.timeouts);
                }
            }
        }
        held.is_some()
    }

    /// These layers go on from the owner's copy, which from now on counts as that of now.
    fn go_back(&mut self, layers: LayerRange) {
        let oldest = layers.numbers().map(|layer| self.kept[layer as usize]).min();
        self.count_lost(layers, oldest.unwrap_or(self.revision));
        layers.numbers().for_each(|layer| self.kept[layer as usize] = self.revision);
    }

    fn count_lost(&mut self, layers: LayerRange, revision: u64) {
        let revisions = self.revision.saturating_sub(revision);
        if revisions > 0 {
            self.counts.revisions_lost += revisions;
            self.on_outdated(layers);
            self.notice(TeamNotice::StepsLost { layers: (layers.first, layers.end), revisions });
        }
    }

    fn assign(&mut self, helper: PeerId, cut: &Cut, number: usize, keeps_state: bool) {
        let stage = &cut.stages[number];
        let assign = Assign {
            epoch: self.epoch,
            stage: number as u32,
            layers: stage.layers,
            tensors: stage.layers.len() * self.config.tensors_per_layer,
            in_flight: stage.in_flight,
            // No stage runs further ahead than the first one.
            waiting: cut.stages[0].in_flight,
            rows_max: self.config.rows_max,
            width: self.config.width,
            wire: self.config.wire,
            revision: self.revision,
            keeps_state,
            run: self.config.run.clone(),
        };
        if let Some(known) = self.roster.get_mut(helper) {
            known.is_assigned = true;
        }
        self.send(helper, TeamMessage::Assign(Box::new(assign)));
    }

    pub(super) fn on_wants_base(&mut self, helper: PeerId, epoch: u64) {
        let request = self.next_number;
        let is_this = epoch == self.epoch;
        let Phase::Loading(loading) = &mut self.phase else { return self.counts.stale += 1 };
        let stage = loading.cut.of_helpers().find(|(_, member, _)| *member == helper);
        let is_read = loading.reads.values().any(|read| *read == (helper, StateKind::Base));
        let Some((_, _, stage)) = stage.filter(|_| is_this && loading.awaits.contains(&helper) && !is_read) else {
            return self.counts.stale += 1;
        };
        let layers = stage.layers;
        loading.reads.insert(request, (helper, StateKind::Base));
        self.next_number += 1;
        self.effects.push_back(CaptainEffect::ReadOut { request, layers, kind: StateKind::Base });
    }

    pub(super) fn on_read_out(&mut self, now: Time, request: u64, payload: Option<Payload>) {
        let Phase::Loading(loading) = &mut self.phase else { return self.counts.stale += 1 };
        let Some((helper, kind)) = loading.reads.get(&request).copied() else { return self.counts.stale += 1 };
        let Some(payload) = payload else {
            // The owner has not what it should have: nobody else is to blame.
            return self.pause(now, "a state that should be kept is missing".to_owned());
        };
        if kind == StateKind::Training {
            loading.reads.remove(&request);
        }
        let (epoch, revision, bytes) = (self.epoch, self.revision, payload.len() as u64);
        let header = StateHeader { epoch, request: epoch, kind, revision, bytes };
        self.effects.push_back(CaptainEffect::Send { helper, packet: Packet::State(header, payload) });
    }

    pub(super) fn on_ready(&mut self, now: Time, helper: PeerId, epoch: u64) {
        let is_this = epoch == self.epoch;
        let Phase::Loading(loading) = &mut self.phase else { return self.counts.stale += 1 };
        if !is_this || !loading.awaits.remove(&helper) {
            return self.counts.stale += 1;
        }
        let stage = loading.cut.of_helpers().find(|(_, member, _)| *member == helper);
        let layers = stage.expect("one that is awaited has a stage").2.layers;
        let since = loading.since;
        if let Some(known) = self.roster.get_mut(helper) {
            known.record(Task::Load, now - since);
            known.held = Some(HeldLayers { epoch, layers, revision: self.revision });
        }
        self.end_loading();
    }

    pub(super) fn on_cannot(&mut self, now: Time, helper: PeerId, epoch: u64, reason: String) {
        let is_this = epoch == self.epoch;
        let is_awaited = matches!(&self.phase, Phase::Loading(loading) if loading.awaits.contains(&helper));
        // One that held a stage may give it up at any time, where it could not take up what was written.
        let is_member = self.cut.as_ref().is_some_and(|cut| cut.has(helper));
        if !is_this || !(is_awaited || is_member) {
            return self.counts.stale += 1;
        }
        self.notice(TeamNotice::HelperCannot { helper, reason });
        if let Some(known) = self.roster.get_mut(helper) {
            // What was said to be kept is gone: it may have the same layers again, with their state.
            known.cannot = known.held.is_none();
            known.held = None;
        }
        match &self.phase {
            Phase::Ready | Phase::Computing(_) | Phase::Copying(_) | Phase::Writing(_) => {
                self.lose(now, helper, crate::team::notice::DropReason::Failed);
            }
            Phase::Waiting(_) | Phase::Saving(_) | Phase::Loading(_) | Phase::Ended => {
                self.wait_for(now, helper);
                if let Phase::Waiting(waiting) = &mut self.phase {
                    waiting.until = now;
                }
            }
        }
    }

    pub(super) fn on_loaded(&mut self, now: Time, epoch: u64, result: Result<(), String>) {
        let is_this = epoch == self.epoch;
        let Phase::Loading(loading) = &mut self.phase else { return self.counts.stale += 1 };
        if !is_this || !loading.awaits_own {
            return self.counts.stale += 1;
        }
        match result {
            Ok(()) => {
                loading.awaits_own = false;
                self.end_loading();
            }
            Err(reason) => self.pause(now, reason),
        }
    }

    /// The captain's own part fails: tried again now and then.
    fn pause(&mut self, now: Time, reason: String) {
        let missing_bytes = self.config.model.layer.bytes.max(1);
        let until = now + WAITING_NOTICE_PERIOD;
        self.phase = Phase::Waiting(Waiting { until, missing_bytes, expected: BTreeSet::new() });
        self.notice(TeamNotice::LoadFailed { reason });
    }

    fn end_loading(&mut self) {
        let Phase::Loading(loading) = &self.phase else { return };
        if loading.awaits.is_empty() && !loading.awaits_own {
            let cut = loading.cut.clone();
            self.cut = Some(cut.clone());
            self.counts.cuts += 1;
            self.phase = Phase::Ready;
            self.notice(TeamNotice::CutTaken { epoch: self.epoch, cut });
        }
    }
}
