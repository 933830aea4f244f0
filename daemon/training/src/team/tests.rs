//! Teams whose machines are threads connected by queues, against one machine with the whole model: bit for bit.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use murmur_protocol::bulk::{BLOCK, Codes};
use murmur_protocol::manifest::{LoraSpec, OptimizerKind, OptimizerSpec, TransformerModel};
use murmur_protocol::team::{
    HelperConfig, LayerRange, Link, Offer, Packet, Place, StateHeader, TeamNotice, TeamTimeouts, Wire,
};
use murmur_protocol::{Correction, Part, Payload, PeerId, RunManifest};

use self::manner::{Lie, Manner};
use super::*;
use crate::engine::{Engine, StageDevice, TrainingError, TrainingOptions};
use crate::model::transformer_of;
use crate::ops::Kernels;
use crate::{BaseWeights, Corpus, Device, EngineState, StepReport};

mod manner;
mod membership;
mod on_gpu;
mod streams;
mod synchronous;
mod tied;
mod waiting;

/// Who is told what is said to whom: all machines of a team.
#[derive(Clone, Default)]
struct Switchboard {
    told: Arc<Mutex<BTreeMap<PeerId, Told>>>,
    /// States that the captain has sent.
    states: Arc<AtomicUsize>,
}

/// One machine's place at it.
struct Plugged {
    me: PeerId,
    board: Switchboard,
    manner: Manner,
}

impl Switchboard {
    fn tell(&self, to: PeerId, heard: Heard) {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner).get(&to).cloned();
        // A machine that has ended hears nothing.
        let _ = told.map(|told| told.tell(heard));
    }

    fn connect(&self, captain: PeerId, helper: PeerId) {
        // A connection hears that it is one before it hears anything else.
        self.tell(captain, Heard::Connected(helper));
        self.tell(helper, Heard::Connected(captain));
    }

    /// As one whose process is killed: it hears nothing more, and others hear that it is gone.
    fn kill(&self, captain: PeerId, helper: PeerId) {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).remove(&helper);
        self.tell(captain, Heard::Disconnected(helper));
    }
}

impl TeamWire for Plugged {
    fn send(&mut self, to: PeerId, word: Word) {
        if self.me == peer(CAPTAIN) && matches!(word, Word::Packet(Packet::State(..))) {
            self.board.states.fetch_add(1, Ordering::Relaxed);
        }
        let word = match (word, self.manner.lie) {
            (Word::Packet(Packet::State(header, payload)), Some(lie)) => {
                let payload = Payload::from(lie.told(payload.bytes()));
                Word::Packet(Packet::State(StateHeader { bytes: payload.len() as u64, ..header }, payload))
            }
            (word, _) => word,
        };
        if let Some(left) = &mut self.manner.words_left {
            if *left == 0 {
                return;
            }
            *left -= 1;
            if *left == 0 && !self.manner.hangs {
                self.board.kill(to, self.me);
            }
            if *left == 0 {
                return;
            }
        }
        let (header, body) = word.to_parts();
        let word = Word::from_parts(&header, body).expect("a word comes out as it went in");
        self.board.tell(to, Heard::Said(self.me, word));
    }

    fn disconnect(&mut self, from: PeerId) {
        self.board.tell(from, Heard::Disconnected(self.me));
        self.board.tell(self.me, Heard::Disconnected(from));
    }

    fn dismiss(&mut self, from: PeerId) {
        self.disconnect(from);
    }
}

fn peer(number: u8) -> PeerId {
    PeerId::from_public_key([number; 32])
}

const CAPTAIN: u8 = 100;

fn place(operations_per_second: f64) -> Place {
    let link = Link { up: f64::INFINITY, down: f64::INFINITY, latency: 0.0 };
    Place { memory_bytes: 1 << 33, operations_per_second, link }
}

/// A team in which the captain keeps as little as it can.
struct Team {
    /// How helpers come to the swarm, once it is set.
    ticket: SwarmTicket,
    board: Switchboard,
    view: TeamView,
    notices: Arc<Mutex<Vec<TeamNotice>>>,
    helpers: BTreeMap<u8, HelperThread>,
    /// Of helpers.
    device: StageDevice,
}

#[derive(Clone)]
struct Setting {
    /// Of the captain, and of its helpers.
    devices: [StageDevice; 2],
    helpers: u8,
    wire: Wire,
    options: TrainingOptions,
    /// Of the captain, in bytes.
    memory: u64,
    /// Helpers for which it waits before the first cut.
    gathers: usize,
}

fn setting(helpers: u8) -> Setting {
    let gathers = usize::from(helpers.max(1));
    let devices = [StageDevice::CPU; 2];
    Setting { devices, helpers, wire: Wire::F32, options: TrainingOptions::default(), memory: 1 << 33, gathers }
}

impl Team {
    fn begin(manifest: &RunManifest, base: Option<BaseWeights>, setting: Setting) -> (Engine, Team) {
        Team::begin_on(Corpus::grammar(), manifest, base, setting)
    }

    fn begin_on(corpus: Corpus, manifest: &RunManifest, base: Option<BaseWeights>, setting: Setting) -> (Engine, Team) {
        let Setting { devices: [device, of_helpers], helpers, wire, options, memory, gathers } = setting;
        let (board, view, notices) = (Switchboard::default(), TeamView::default(), Arc::new(Mutex::new(Vec::new())));
        let (told, heard) = facts();
        board.told.lock().unwrap_or_else(PoisonError::into_inner).insert(peer(CAPTAIN), told.clone());
        let mut team = Team {
            board: board.clone(),
            ticket: SwarmTicket::default(),
            view: view.clone(),
            notices: notices.clone(),
            helpers: BTreeMap::new(),
            device: of_helpers,
        };
        (1..=helpers).for_each(|number| team.help(number, options, None));
        let on_notice = Box::new(move |notice: &TeamNotice| {
            notices.lock().unwrap_or_else(PoisonError::into_inner).push(notice.clone());
        });
        let options_of_team = TeamOptions {
            device,
            threads: 1,
            wire,
            // Slow where it may hold all: what helps is given away.
            place: Place { memory_bytes: memory, ..place(if memory < 1 << 33 { 1e9 } else { 1.0 }) },
            epoch: 1 << 20,
            helpers_wanted: gathers,
            // On a machine that does other things, a thread may not run for seconds.
            timeouts: TeamTimeouts {
                grace: Duration::from_millis(300),
                floor: Duration::from_secs(60),
                ..TeamTimeouts::default()
            },
            carrier: Box::new(Plugged { me: peer(CAPTAIN), board, manner: Manner::default() }),
            facts: (told, heard),
            ticket: team.ticket.clone(),
            view,
            on_notice,
        };
        let base = base.map_or(TeamBase::None, TeamBase::Held);
        let engine = Engine::in_team(manifest, base, corpus, [1; 32], options_of_team, options);
        (engine.expect("a captain"), team)
    }

    /// One more helper.
    fn help(&mut self, number: u8, options: TrainingOptions, words_left: Option<u32>) {
        self.help_as(number, options, Manner { words_left, ..Manner::default() });
    }

    fn help_as(&mut self, number: u8, options: TrainingOptions, manner: Manner) {
        self.help_telling(number, options, manner, Box::new(|_| {}));
    }

    fn help_telling(&mut self, number: u8, options: TrainingOptions, manner: Manner, on_news: OnNews) {
        let (told, heard) = facts();
        self.board.told.lock().unwrap_or_else(PoisonError::into_inner).insert(peer(number), told.clone());
        let offer = Offer {
            memory_bytes: 1 << 33,
            operations_per_second: 1e9,
            up_bytes_per_second: 0,
            down_bytes_per_second: 0,
            held: None,
        };
        let config = HelperConfig { offer, kept_for: Duration::from_secs(600) };
        let wire = Box::new(Plugged { me: peer(number), board: self.board.clone(), manner });
        let stage = HelperStage::new(self.device.clone(), 1, options);
        self.helpers.insert(number, HelperThread::start(config, stage, (told, heard), wire, on_news));
        self.board.connect(peer(CAPTAIN), peer(number));
    }

    fn kill(&mut self, number: u8) {
        self.board.kill(peer(CAPTAIN), peer(number));
        self.helpers.remove(&number);
    }

    /// Who has which layers.
    fn layers(&self) -> Vec<(Option<PeerId>, LayerRange)> {
        let cut = self.view.status().and_then(|status| status.cut).expect("a cut");
        cut.stages.iter().map(|stage| (stage.helper, stage.layers)).collect()
    }
}

/// Whether this run takes its time: what a push repeats a few times is repeated often.
fn is_nightly() -> bool {
    std::env::var("MURMUR_TEST_SCALE").is_ok_and(|scale| scale == "nightly")
}

/// Steps until so many have been taken, through all waits. A step holds a thread of its pool while it waits for helpers, which in
/// these tests compute on threads of the same process: with the process' own pool two tests would hold all of it.
fn stepped(engine: &mut Engine, steps: u64) -> Vec<StepReport> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("a pool");
    pool.install(|| stepped_in_pool(engine, steps))
}

fn stepped_in_pool(engine: &mut Engine, steps: u64) -> Vec<StepReport> {
    let (begin, mut reports) = (Instant::now(), Vec::new());
    while (reports.len() as u64) < steps {
        assert!(begin.elapsed() < Duration::from_secs(300), "the team stands still");
        match engine.step(reports.len() as f64) {
            Ok(report) => reports.push(report),
            Err(TrainingError::TeamWaits(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    reports
}

fn edit_model(manifest: &mut RunManifest, edit: impl FnOnce(&mut TransformerModel)) {
    let mut model = transformer_of(manifest).clone();
    edit(&mut model);
    manifest.model = model.into();
}

fn manifest(has_adapters: bool, kind: OptimizerKind) -> RunManifest {
    let model =
        TransformerModel { layers: 6, width: 16, heads: 2, feed_forward: 24, context: 12, ..Default::default() };
    // A norm that clips every step: one wrong bit of it would be in every parameter.
    let optimizer = OptimizerSpec {
        kind,
        batch_sequences: 5,
        gradient_norm_max: 0.1,
        match_batch: true,
        ..OptimizerSpec::default()
    };
    let mut manifest = RunManifest { model: model.into(), optimizer, ..RunManifest::default() };
    manifest.data.validation_sequences = 7;
    if has_adapters {
        let targets = ["q_proj", "up_proj"].map(str::to_owned).to_vec();
        manifest.lora = LoraSpec { rank: 2, targets, base_bits: 8, ..LoraSpec::default() };
        manifest.base.digest = "0".repeat(64);
    }
    manifest
}

fn base(manifest: &RunManifest) -> Option<BaseWeights> {
    manifest.lora.is_on().then(|| crate::model::drawn_base(manifest))
}

fn alone(manifest: &RunManifest, options: TrainingOptions) -> Engine {
    let engine = Engine::on_base(manifest, base(manifest), Corpus::grammar(), [1; 32], &[Device::Cpu], options);
    engine.expect("one machine")
}

/// Memory for embedding and head, and not for a layer.
fn room_for_ends(manifest: &RunManifest, options: &TrainingOptions) -> u64 {
    let (least, layer) = captain_needs(manifest, options, (Wire::F32, 1, Kernels::Fused));
    least + layer / 2
}

/// Names what differs: whole states would fill the screen.
fn assert_same(found: EngineState, expected: EngineState, where_from: &str) {
    let differing = |found: &[f32], expected: &[f32]| {
        let pairs = found.iter().zip(expected).enumerate();
        let places: Vec<usize> = pairs.filter(|(_, (one, other))| one != other).map(|(place, _)| place).collect();
        (found.len() != expected.len() || !places.is_empty()).then(|| (places.len(), places.first().copied()))
    };
    let average =
        |state: &EngineState| state.gradient_average.as_ref().map(|average| average.values.clone()).unwrap_or_default();
    let vectors = [
        ("parameters", differing(&found.parameters, &expected.parameters)),
        ("first moments", differing(&found.first_moment, &expected.first_moment)),
        ("second moments", differing(&found.second_moment, &expected.second_moment)),
        ("average", differing(&average(&found), &average(&expected))),
    ];
    for (name, differs) in vectors {
        assert_eq!(differs, None, "{name} differ at so many places, first at: {where_from}");
    }
    assert_eq!(found.counters, expected.counters, "{where_from}");
    assert!(found == expected, "{where_from}");
}

/// Alternating ones, times a step.
fn correction(engine: &Engine, step: f32) -> Correction {
    let count = engine.layout().parameters();
    let codes = (0..count).map(|index| if index % 2 == 0 { 1 } else { -1 }).collect();
    Correction::new(Codes::Narrow(codes), vec![step; count.div_ceil(BLOCK)])
}

#[test]
fn a_team_of_any_size_trains_with_the_bits_of_one_machine() {
    let small = TrainingOptions { micro_batch: Some(2), ..TrainingOptions::default() };
    let ways = [
        (false, OptimizerKind::AdamW, 1, TrainingOptions::default()),
        (false, OptimizerKind::Muon, 2, small),
        (true, OptimizerKind::AdamW, 1, small),
        (true, OptimizerKind::AdamW, 3, TrainingOptions { recompute: true, ..small }),
        (false, OptimizerKind::AdamW, 3, TrainingOptions { moments_in_8_bits: true, ..small }),
    ];
    for (has_adapters, kind, helpers, options) in ways {
        let manifest = manifest(has_adapters, kind);
        let mut whole = alone(&manifest, options);
        let memory = room_for_ends(&manifest, &options);
        let setting = Setting { options, memory, ..setting(helpers) };
        let (mut engine, team) = Team::begin(&manifest, base(&manifest), setting);
        whole.set_members(3.0);
        engine.set_members(3.0);
        let expected = stepped(&mut whole, 20);
        let found = stepped(&mut engine, 20);
        assert_eq!(found, expected, "losses and norms of {helpers} helpers");
        assert!(expected.iter().all(|report| report.gradient_norm > 0.01));
        let on_helpers: u32 =
            team.layers().iter().filter(|(who, _)| who.is_some()).map(|(_, layers)| layers.len()).sum();
        assert_eq!((on_helpers, team.layers().len()), (6, usize::from(helpers) + 2), "{:?}", team.layers());
        assert_same(engine.save().expect("a state"), whole.save().expect("a state"), &format!("{helpers} helpers"));
        let (one, other) = (engine.evaluate().expect("evaluated"), whole.evaluate().expect("evaluated"));
        assert_eq!((one.correct, one.predictions), (other.correct, other.predictions));
        // Losses are added up by groups of rows, and a team's microbatches have fewer.
        assert!((one.loss() - other.loss()).abs() < 1e-8 * other.loss(), "{one:?} {other:?}");
    }
}

#[test]
fn corrections_and_saved_states_reach_all_machines_and_go_on_in_any_team() {
    for has_adapters in [false, true] {
        let manifest = manifest(has_adapters, OptimizerKind::AdamW);
        let options = TrainingOptions::default();
        let mut whole = alone(&manifest, options);
        let (mut engine, team) = Team::begin(&manifest, base(&manifest), setting(2));
        let written = || team.board.states.load(Ordering::Relaxed);
        assert_eq!(stepped(&mut engine, 3), stepped(&mut whole, 3));
        let before = written();
        for engine in [&mut engine, &mut whole] {
            for _ in 0..3 {
                engine.apply(Part::MODEL, &correction(engine, 0.01)).expect("a correction");
            }
        }
        assert_eq!(written(), before, "helpers are told when they compute");
        assert_eq!(stepped(&mut engine, 2), stepped(&mut whole, 2));
        let cut = team.view.status().and_then(|status| status.cut).expect("a cut");
        assert_eq!(written(), before + cut.of_helpers().count(), "once each");
        let saved: EngineState = engine.save().expect("a state");
        assert_same(saved.clone(), whole.save().expect("a state"), "corrected");
        let (mut other, _other_team) = Team::begin(&manifest, base(&manifest), setting(1));
        other.restore(saved).expect("restored");
        let expected = stepped(&mut whole, 2);
        assert_eq!((stepped(&mut other, 2), stepped(&mut engine, 2)), (expected.clone(), expected));
    }
}

#[test]
fn microbatches_of_a_team_give_the_gradient_of_one_batch() {
    let manifest = manifest(false, OptimizerKind::AdamW);
    let norms = |micro_batch| {
        let options = TrainingOptions { micro_batch: Some(micro_batch), recompute: true, ..TrainingOptions::default() };
        let (mut engine, _team) = Team::begin(&manifest, None, Setting { options, ..setting(1) });
        stepped(&mut engine, 1)[0]
    };
    let (one, five) = (norms(5), norms(1));
    assert!((one.loss - five.loss).abs() < 1e-6 && (one.gradient_norm - five.gradient_norm).abs() < 1e-6);
}

/// A helper is killed after any number of its words: with adapters nothing is lost but, where it happens between the first commit
/// and the last, one step of its layers. Every third number on each push, all with `MURMUR_TEST_SCALE=nightly`.
#[test]
fn whenever_a_helper_is_killed_the_team_goes_on_as_if_nothing_had_been() {
    let manifest = manifest(true, OptimizerKind::AdamW);
    let options = TrainingOptions { micro_batch: Some(2), ..TrainingOptions::default() };
    let mut whole = alone(&manifest, options);
    let expected = stepped(&mut whole, 4);
    let expected_state = whole.save().expect("a state");
    let (mut exact, mut missed) = (0, 0);
    let apart = if is_nightly() { 1 } else { 3 };
    for words in (1..50).step_by(apart) {
        let (mut engine, mut team) = Team::begin(&manifest, base(&manifest), Setting { options, ..setting(0) });
        team.help(1, options, Some(words));
        let found = stepped(&mut engine, 4);
        let counts = team.view.status().expect("it has begun").counts;
        assert!(counts.steps_missed <= 1, "{counts:?}");
        if counts.steps_missed + counts.revisions_lost > 0 {
            // It had stepped, or was to step, and nobody has what came of it.
            missed += 1;
            assert!(found.iter().all(|report| report.loss.is_finite()));
            continue;
        }
        assert_eq!(found, expected, "killed after {words} words: {counts:?}");
        assert_same(engine.save().expect("a state"), expected_state.clone(), &format!("killed after {words} words"));
        exact += usize::from(counts.helpers_lost > 0);
    }
    assert!(exact * apart > 20 && missed * apart < 10, "{exact} {missed}");
}

#[test]
fn a_helper_whose_state_cannot_be_used_is_let_go_for_good_and_training_goes_on() {
    let options = TrainingOptions { micro_batch: Some(2), ..TrainingOptions::default() };
    for has_adapters in [true, false] {
        let manifest = manifest(has_adapters, OptimizerKind::AdamW);
        for lie in [Lie::Garbage, Lie::Short, Lie::Long, Lie::NotFinite, Lie::Huge] {
            let memory = room_for_ends(&manifest, &options);
            let setting = Setting { options, memory, gathers: 2, ..setting(0) };
            let (mut engine, mut team) = Team::begin(&manifest, base(&manifest), setting);
            team.help_as(1, options, Manner { lie: Some(lie), ..Manner::default() });
            team.help(2, options, None);
            stepped(&mut engine, 3);
            // With adapters it was a copy after a step; with all weights it is that for the checkpoint, which comes once helper 2 has the
            // layers.
            let saved = match engine.save() {
                Err(TrainingError::TeamWaits(_)) if !has_adapters => {
                    stepped(&mut engine, 1);
                    engine.save()
                }
                saved => saved,
            };
            let saved = saved.expect("the captain has a state whatever a helper sends");
            assert!(saved.parameters.iter().all(|value| value.is_finite() && value.abs() < 100.0), "{lie:?}");
            // It comes again in vain.
            team.board.connect(peer(CAPTAIN), peer(1));
            let reports = stepped(&mut engine, 3);
            assert!(reports.iter().all(|report| report.loss.is_finite()), "{lie:?} {reports:?}");
            assert!(team.layers().iter().all(|(who, _)| *who != Some(peer(1))), "{lie:?} {:?}", team.layers());
            assert!(team.layers().iter().any(|(who, _)| *who == Some(peer(2))), "{lie:?} {:?}", team.layers());
            let notices = team.notices.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let reasons: Vec<&String> = notices.iter().filter_map(dismissal).collect();
            assert!(reasons.len() == 1 && reasons[0].contains(lie.reason()), "{lie:?} {reasons:?}");
        }
    }
}

fn dismissal(notice: &TeamNotice) -> Option<&String> {
    match notice {
        TeamNotice::HelperDismissed { helper, reason } if *helper == peer(1) => Some(reason),
        _ => None,
    }
}
