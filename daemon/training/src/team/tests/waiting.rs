//! Captains to which no helper has some layers for a while.

use std::sync::mpsc::channel;

use murmur_protocol::manifest::{DataSource, MlpModel};
use murmur_protocol::{Selection, Snapshot};

use super::*;

/// A captain that needs its helper 1, and one machine with all of the model, both after two steps.
fn begun() -> (Engine, Team, Engine) {
    let manifest = manifest(true, OptimizerKind::AdamW);
    let options = TrainingOptions::default();
    let memory = room_for_ends(&manifest, &options);
    let (mut engine, team) = Team::begin(&manifest, base(&manifest), Setting { memory, ..setting(1) });
    let mut whole = alone(&manifest, options);
    assert_eq!(stepped(&mut engine, 2), stepped(&mut whole, 2));
    (engine, team, whole)
}

#[test]
fn a_captain_that_lacks_helpers_says_so_at_once_answers_exchanges_and_goes_on_when_one_comes() {
    let (mut engine, mut team, mut whole) = begun();
    team.kill(1);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !team.notices.lock().expect("no panic").iter().any(|notice| matches!(notice, TeamNotice::Waiting { .. })) {
        assert!(Instant::now() < deadline, "it does not say that it waits");
        let begin = Instant::now();
        let error = engine.step(2.0).expect_err("nobody has the layers");
        assert!(matches!(error, TrainingError::TeamWaits(_)) && begin.elapsed() < Duration::from_secs(2), "{error}");
    }
    for engine in [&mut engine, &mut whole] {
        let begin = Instant::now();
        engine.apply(Part::MODEL, &correction(engine, 0.01)).expect("a correction");
        assert!(engine.parameters().expect("those that are kept").iter().all(|value| value.is_finite()));
        assert!(begin.elapsed() < Duration::from_secs(2), "exchanges are answered");
    }
    team.help(2, TrainingOptions::default(), None);
    assert_eq!(stepped(&mut engine, 2), stepped(&mut whole, 2));
    assert_same(engine.save().expect("a state"), whole.save().expect("a state"), "after a wait");
}

/// Where all weights are trained, what is kept of a helper's layers is of the last exchange: together with the captain's own part of now
/// it is no state of the model.
#[test]
fn a_captain_of_all_weights_that_lacks_helpers_shows_nobody_parts_of_different_steps() {
    let manifest = manifest(false, OptimizerKind::AdamW);
    let options = TrainingOptions::default();
    let memory = room_for_ends(&manifest, &options);
    let (mut engine, mut team) = Team::begin(&manifest, None, Setting { memory, ..setting(1) });
    let mut whole = alone(&manifest, options);
    assert_eq!(stepped(&mut engine, 2), stepped(&mut whole, 2));
    engine.save().expect("a whole team's");
    assert_eq!(stepped(&mut engine, 1), stepped(&mut whole, 1));
    team.kill(1);
    let is_told = |result: Result<(), TrainingError>| {
        let error = result.expect_err("the helper's layers of now are nowhere");
        assert!(matches!(error, TrainingError::TeamWaits(_)), "{error}");
    };
    is_told(engine.step(3.0).map(drop));
    is_told(engine.save().map(drop));
    is_told(engine.snapshot(Selection::Part(Part::MODEL)).map(drop));
    let correction = correction(&whole, 0.01);
    is_told(engine.apply(Part::MODEL, &correction));
    // What replaces the model needs nothing of before.
    let model = whole.parameters().expect("all");
    for engine in [&mut engine, &mut whole] {
        engine.load_state(&[Snapshot::from(model.clone()).to_payload()]).expect("a model");
    }
    team.help(2, TrainingOptions::default(), None);
    assert_eq!(stepped(&mut engine, 2), stepped(&mut whole, 2));
    assert_same(engine.save().expect("a state"), whole.save().expect("a state"), "after a wait");
}

/// A step is asked for in the moment in which a helper is lost, and its batch begins once another helper has come. The model is
/// corrected between the two.
#[test]
fn a_correction_while_a_batch_waits_for_helpers_neither_misses_the_batch_nor_undoes_its_step() {
    let (mut engine, mut team, mut whole) = begun();
    let view = team.view.clone();
    let waited = || view.status().expect("it has begun").waited;
    let before = waited();
    // One that offers nothing: that it is lost is a notice, and changes nothing.
    team.board.tell(peer(CAPTAIN), Heard::Connected(peer(9)));
    let (standing, stands) = channel();
    let notices = team.notices.clone();
    let standstill = std::thread::spawn(move || {
        let _no_notice = notices.lock().unwrap_or_else(PoisonError::into_inner);
        standing.send(()).expect("the test waits");
        std::thread::sleep(Duration::from_secs(1));
    });
    stands.recv().expect("it holds the notices");
    // The captain's thread stands still in this notice, and hears in this order: helper 1 is gone, a batch is wanted.
    team.board.tell(peer(CAPTAIN), Heard::Disconnected(peer(9)));
    team.board.kill(peer(CAPTAIN), peer(1));
    let error = engine.step(2.0).expect_err("nobody has the layers");
    assert!(matches!(error, TrainingError::TeamWaits(_)), "{error}");
    standstill.join().expect("it ends");
    let deadline = Instant::now() + Duration::from_secs(60);
    while waited() == before {
        assert!(Instant::now() < deadline, "no batch waits for the team");
        std::thread::sleep(Duration::from_millis(10));
    }
    for engine in [&mut engine, &mut whole] {
        engine.apply(Part::MODEL, &correction(engine, 0.01)).expect("a correction");
    }
    team.help(2, TrainingOptions::default(), None);
    assert_eq!(stepped(&mut engine, 2), stepped(&mut whole, 2));
    assert_same(engine.save().expect("a state"), whole.save().expect("a state"), "after a wait");
}

/// It says nothing more in the middle of a batch, and its connection is there.
#[test]
fn a_helper_that_hangs_is_shown_while_it_lasts_and_counted_when_its_batch_is_dropped() {
    let manifest = manifest(true, OptimizerKind::AdamW);
    let memory = room_for_ends(&manifest, &TrainingOptions::default());
    let (mut engine, mut team) = Team::begin(&manifest, base(&manifest), Setting { memory, ..setting(0) });
    // It offers, wants the base and is ready.
    let manner = Manner { words_left: Some(4), hangs: true, ..Manner::default() };
    team.help_as(1, TrainingOptions::default(), manner);
    let (view, board) = (team.view.clone(), team.board.clone());
    let two_seconds = Duration::from_secs(2);
    let watching = std::thread::spawn(move || {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !view.awaits().is_some_and(|(helper, time)| helper == peer(1) && time > two_seconds) {
            assert!(Instant::now() < deadline, "nobody sees for whom it waits");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(view.waits().is_empty(), "it is not over");
        board.kill(peer(CAPTAIN), peer(1));
    });
    while !watching.is_finished() {
        let error = engine.step(0.0).expect_err("the helper is silent");
        assert!(matches!(error, TrainingError::TeamWaits(_)), "{error}");
    }
    watching.join().expect("it is seen");
    // The helper was seen to have something to do while the captain still computed: the two spans are not the same.
    let waits = team.view.waits();
    assert!(matches!(waits[..], [(helper, seconds)] if helper == peer(1) && seconds > 1.0), "{waits:?}");
}

/// What it shows and gives is of one step: that with which it began.
#[test]
fn a_captain_that_has_never_been_whole_has_the_state_that_it_began_with() {
    let manifest = manifest(false, OptimizerKind::AdamW);
    let options = TrainingOptions::default();
    let memory = room_for_ends(&manifest, &options);
    let (mut engine, _team) = Team::begin(&manifest, None, Setting { memory, ..setting(0) });
    let mut whole = alone(&manifest, options);
    assert!(matches!(engine.step(0.0), Err(TrainingError::TeamWaits(_))));
    for engine in [&mut engine, &mut whole] {
        engine.apply(Part::MODEL, &correction(engine, 0.01)).expect("a correction");
    }
    assert_same(engine.save().expect("a state"), whole.save().expect("a state"), "before the first cut");
}

/// As a model that does not fit in its memory any more: it was tried again without end, and its owner was told that helpers are missing.
#[test]
fn what_a_captain_cannot_compute_itself_ends_training_with_its_reason() {
    let manifest = manifest(false, OptimizerKind::AdamW);
    let mut of_images = RunManifest { model: MlpModel::default().into(), ..RunManifest::default() };
    of_images.data.source = DataSource::Idx;
    let (mut engine, _team) = Team::begin_on(Corpus::made_up(&of_images), &manifest, None, setting(1));
    let deadline = Instant::now() + Duration::from_secs(60);
    let error = loop {
        match engine.step(0.0).expect_err("a transformer reads no images") {
            TrainingError::TeamWaits(_) => assert!(Instant::now() < deadline, "it is tried without end"),
            error => break error.to_string(),
        }
    };
    assert!(error.contains("this machine's own part cannot be computed: "), "{error}");
}
