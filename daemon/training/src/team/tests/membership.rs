//! Helpers that exchange their layers with the swarm by themselves.

use std::sync::mpsc::{Receiver, channel};

use murmur_protocol::manifest::FragmentCut;
use murmur_protocol::{Event, Fragment, Fragments, Holding, RequestId, Selection, Snapshot, TrainerOrder, Vector};

use super::*;

/// What a helper tells of its membership.
#[derive(Debug)]
enum Told {
    Begins(Box<NewMember>),
    Of(Event),
    Ends,
}

impl Told {
    fn of(news: HelperNews<'_>) -> Option<Told> {
        match news {
            HelperNews::MemberBegins(new) => Some(Told::Begins(new)),
            HelperNews::OfMember(_, event) => Some(Told::Of(event)),
            HelperNews::MemberEnds => Some(Told::Ends),
            HelperNews::Notice(_) | HelperNews::Progress(_) => None,
        }
    }
}

/// A captain that needs its helper 1 for all layers, which are whole fragments, after two steps of which the second was a member's; and one
/// machine with all of the model.
struct Begun {
    engine: Engine,
    team: Team,
    whole: Engine,
    told: Receiver<Told>,
    new: Box<NewMember>,
    requests: u64,
}

fn begun(has_adapters: bool, ticket: Option<&str>) -> (Engine, Team, Engine, Receiver<Told>) {
    let mut manifest = manifest(has_adapters, OptimizerKind::AdamW);
    (manifest.gossip.cut, manifest.gossip.fragments) = (FragmentCut::Layers, 60);
    let options = TrainingOptions::default();
    let (telling, told) = channel();
    let memory = room_for_ends(&manifest, &options);
    let (mut engine, mut team) = Team::begin(&manifest, base(&manifest), Setting { memory, gathers: 1, ..setting(0) });
    ticket.into_iter().for_each(|ticket| team.ticket.set(Some(ticket.to_owned())));
    let on_news =
        Box::new(move |news: HelperNews<'_>| Told::of(news).into_iter().for_each(|told| drop(telling.send(told))));
    team.help_telling(1, options, Manner::default(), on_news);
    let mut whole = alone(&manifest, options);
    assert_eq!(stepped(&mut engine, 2), stepped(&mut whole, 2));
    (engine, team, whole, told)
}

impl Begun {
    fn new() -> Begun {
        let (engine, team, whole, told) = begun(false, Some("a ticket"));
        let Ok(Told::Begins(new)) = told.recv_timeout(Duration::from_secs(60)) else { panic!("no member") };
        Begun { engine, team, whole, told, new, requests: 0 }
    }

    /// The next reply of the helper as a member, whatever it tells of its steps.
    fn reply(&self) -> Event {
        loop {
            match self.told.recv_timeout(Duration::from_secs(60)).expect("a reply") {
                Told::Of(Event::StepsCompleted(_)) => {}
                Told::Of(event) => return event,
                told => panic!("{told:?}"),
            }
        }
    }

    fn order(&mut self, order: impl FnOnce(RequestId) -> TrainerOrder) -> Event {
        let request = RequestId(self.requests);
        self.requests += 1;
        assert!(self.team.helpers[&1].control().order(self.new.number, order(request)), "it lives");
        self.reply()
    }

    fn fragments(&self) -> Fragments {
        Fragments::of(&self.new.manifest.gossip, self.whole.layout())
    }

    /// The first fragment that is held, as a part of the model.
    fn part(&self, holding: Holding) -> Part {
        let count = self.fragments().count();
        let index = self.fragments().filled().find(|index| holding.holds(*index)).expect("one");
        Part { vector: Vector::Model, fragment: Fragment { index, count } }
    }

    fn correction(&self, part: Part, by: f32) -> Correction {
        let range = self.fragments().range(part.fragment);
        Correction::new(Codes::Narrow(vec![1; range.len()]), vec![by; range.len().div_ceil(BLOCK)])
    }
}

#[test]
fn a_helper_that_exchanges_its_layers_by_itself_keeps_the_bits_of_one_machine() {
    let mut begun = Begun::new();
    let (theirs, ours) = (begun.new.share.holding, begun.engine.holding());
    assert!(!ours.is_all() && begun.fragments().filled().all(|index| ours.holds(index) != theirs.holds(index)));
    assert_eq!(begun.new.ticket, "a ticket");

    // What a member copies is what one machine has.
    let (of_helper, of_captain) = (begun.part(theirs), begun.part(ours));
    let selection = Selection::Part(of_helper);
    let copied = begun.order(|request| TrainerOrder::TakeSnapshot { request, selection });
    let Event::SnapshotTaken { snapshot, report, .. } = copied else { panic!("{copied:?}") };
    let expected = begun.whole.snapshot(selection).expect("a copy");
    assert!(snapshot.values() == expected.values.values(), "a copy of other values");
    assert_eq!(report.progress, 2.0, "the captain's");
    let state = begun.order(|request| TrainerOrder::TakeSnapshot { request, selection: Selection::State });
    let Event::SnapshotTaken { snapshot, .. } = state else { panic!("{state:?}") };
    assert_eq!(snapshot.values().len(), begun.new.share.range.len());

    // Corrections of both machines' parts, at the same boundary.
    for (part, by) in [(of_helper, 0.01), (of_captain, -0.02)] {
        let correction = begun.correction(part, by);
        begun.whole.apply(part, &correction).expect("its own");
        if part == of_captain {
            begun.engine.apply(part, &correction).expect("its own");
            continue;
        }
        let applied =
            begun.order(|request| TrainerOrder::ApplyCorrection { request, part, correction, progress_shift: 9.0 });
        assert!(matches!(applied, Event::CorrectionApplied { .. }), "{applied:?}");
    }
    assert_eq!(stepped(&mut begun.engine, 2), stepped(&mut begun.whole, 2));
    assert_same(begun.engine.save().expect("a state"), begun.whole.save().expect("a state"), "while it is a member");

    // What is not its own, it refuses.
    let correction = begun.correction(of_captain, 1.0);
    let refused = begun.order(|request| TrainerOrder::ApplyCorrection {
        request,
        part: of_captain,
        correction,
        progress_shift: 0.0,
    });
    assert!(matches!(refused, Event::RequestFailed { .. }), "{refused:?}");

    // At the end the captain has all of the model again, what came in last included.
    let correction = begun.correction(of_helper, 0.03);
    begun.whole.apply(of_helper, &correction).expect("its own");
    begun.order(|request| TrainerOrder::ApplyCorrection { request, part: of_helper, correction, progress_shift: 0.0 });
    begun.engine.end_training().expect("a copy");
    assert!(begun.engine.holding().is_all());
    assert!(
        begun.engine.parameters().expect("all") == begun.whole.parameters().expect("all"),
        "what came in last is missing"
    );
    assert!(matches!(begun.told.recv_timeout(Duration::from_secs(60)), Ok(Told::Ends)));
    let late = begun.order(|request| TrainerOrder::TakeSnapshot { request, selection });
    assert!(matches!(late, Event::RequestFailed { .. }), "{late:?}");
}

/// Whenever they come: how many steps the helper had taken by then is told, and one machine does the same at that boundary.
#[test]
fn corrections_that_come_while_a_batch_is_computed_wait_for_its_end() {
    const STEPS: u64 = 60;
    let mut begun = Begun::new();
    let part = begun.part(begun.new.share.holding);
    // Every other one takes back the one before: a machine that is busy lets thousands in, and a captain takes no layers of another size.
    let corrections = [0.01, -0.01].map(|by| begun.correction(part, by));
    let (control, number, engine) = (begun.team.helpers[&1].control(), begun.new.number, &mut begun.engine);
    let is_reply = |told: &&Told| matches!(told, Told::Of(Event::CorrectionApplied { .. }));
    let mut told = Vec::new();
    let reports = std::thread::scope(|scope| {
        let steps = scope.spawn(|| stepped(engine, STEPS));
        let mut ordered = 0;
        while !steps.is_finished() {
            told.extend(begun.told.try_iter());
            // More than a core has open, and as many as are kept during a batch that takes long.
            if ordered < told.iter().filter(is_reply).count() + 32 {
                let (request, correction) = (RequestId(ordered as u64), corrections[ordered % 2].clone());
                let order = TrainerOrder::ApplyCorrection { request, part, correction, progress_shift: 0.0 };
                assert!(control.order(number, order));
                ordered += 1;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        steps.join().expect("it steps")
    });
    begun.engine.end_training().expect("a copy");
    let (mut steps, mut corrected_after) = (0, Vec::new());
    let next = || begun.told.recv_timeout(Duration::from_secs(60)).expect("all that it tells");
    for told in told.into_iter().chain(std::iter::repeat_with(next)) {
        match told {
            Told::Of(Event::StepsCompleted(_)) => steps += 1,
            Told::Of(Event::CorrectionApplied { .. }) => corrected_after.push(steps),
            Told::Ends => break,
            told => panic!("{told:?}"),
        }
    }
    // Steps of the team before it was a member.
    let before = 2 + STEPS - steps;
    assert!(corrected_after.len() > 5 && corrected_after.iter().any(|after| *after > 3), "{corrected_after:?}");
    let mut applied = corrected_after.iter().zip(corrections.iter().cycle()).peekable();
    for step in 2..=2 + STEPS {
        while let Some((_, correction)) = applied.next_if(|(after, _)| before + **after == step) {
            begun.whole.apply(part, correction).expect("a correction");
        }
        if step < 2 + STEPS {
            let taken = step - 2;
            assert_eq!(
                begun.whole.step(taken as f64).expect("alone").loss,
                reports[taken as usize].loss,
                "step {step}"
            );
        }
    }
    assert!(begun.engine.parameters().expect("all") == begun.whole.parameters().expect("all"), "they differ");
}

#[test]
fn a_captain_takes_up_its_own_part_of_a_state_alone() {
    let mut begun = Begun::new();
    let held: Vec<_> = begun.fragments().held(begun.engine.holding()).collect();
    let own: usize = held.iter().map(|range| range.len()).sum();
    let state = begun.engine.snapshot(Selection::State).expect("a copy");
    assert_eq!(state.values.values().len(), own);
    let before = begun.whole.parameters().expect("all");
    let chunk = Snapshot::from(vec![0.5; own]).to_payload();
    begun.engine.load_state(&[chunk]).expect("its part");
    begun.engine.end_training().expect("a copy");
    let mut expected = before;
    held.into_iter().for_each(|range| expected[range].fill(0.5));
    assert!(begun.engine.parameters().expect("all") == expected, "its own part alone is replaced");
}

#[test]
fn nobody_is_a_member_without_a_ticket_or_when_it_has_reached_nobody() {
    let (engine, _team, _whole, told) = begun(false, None);
    assert!(engine.holding().is_all() && told.try_recv().is_err());
    let (engine, _team, _whole, told) = begun(true, Some("a ticket"));
    assert!(
        engine.holding().is_all() && told.try_recv().is_err(),
        "a captain without adapters would have nothing left"
    );
    let mut begun = Begun::new();
    begun.team.helpers[&1].control().found_apart();
    let deadline = Instant::now() + Duration::from_secs(60);
    while begun.team.view.status().is_none_or(|status| !status.is_apart) {
        assert!(Instant::now() < deadline, "the captain does not hear of it");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(stepped(&mut begun.engine, 1), stepped(&mut begun.whole, 1));
    assert!(begun.engine.holding().is_all());
    let part = begun.part(begun.new.share.holding);
    let correction = begun.correction(part, 0.01);
    for engine in [&mut begun.engine, &mut begun.whole] {
        engine.apply(part, &correction).expect("a correction of a helper's layers by the captain");
    }
    assert_eq!(stepped(&mut begun.engine, 1), stepped(&mut begun.whole, 1));
    assert_same(
        begun.engine.save().expect("a state"),
        begun.whole.save().expect("a state"),
        "exchanged by the captain",
    );
}

/// As in its quiet hours.
#[test]
fn a_captain_without_its_ticket_has_no_members_until_there_is_another() {
    let mut begun = Begun::new();
    let part = begun.part(begun.new.share.holding);
    let correction = begun.correction(part, 0.01);
    begun.whole.apply(part, &correction).expect("its own");
    begun.order(|request| TrainerOrder::ApplyCorrection { request, part, correction, progress_shift: 0.0 });
    let other_than_steps = |told: &Receiver<Told>| loop {
        match told.recv_timeout(Duration::from_secs(60)).expect("all that it tells") {
            Told::Of(Event::StepsCompleted(_)) => {}
            told => break told,
        }
    };
    begun.team.ticket.set(None);
    assert_eq!(stepped(&mut begun.engine, 2), stepped(&mut begun.whole, 2));
    assert!(begun.engine.holding().is_all() && matches!(other_than_steps(&begun.told), Told::Ends));
    assert!(begun.engine.parameters().expect("all") == begun.whole.parameters().expect("all"), "what it had exchanged");
    begun.team.ticket.set(Some("another ticket".to_owned()));
    assert_eq!(stepped(&mut begun.engine, 2), stepped(&mut begun.whole, 2));
    let Told::Begins(new) = other_than_steps(&begun.told) else { panic!("no member") };
    assert_eq!((new.ticket.as_str(), new.number), ("another ticket", begun.new.number + 1));
    assert!(!begun.engine.holding().is_all());
    assert_same(begun.engine.save().expect("a state"), begun.whole.save().expect("a state"), "a member again");
}

/// Captains that have room for all of the model, and give it to whoever is faster.
#[test]
fn a_captain_that_has_a_lost_helper_s_layers_from_an_older_copy_says_so() {
    let mut manifest = manifest(false, OptimizerKind::AdamW);
    (manifest.gossip.cut, manifest.gossip.fragments) = (FragmentCut::Layers, 60);
    let (mut engine, mut team) = Team::begin(&manifest, None, setting(1));
    team.ticket.set(Some("a ticket".to_owned()));
    stepped(&mut engine, 3);
    assert!(!engine.holding().is_all() && !engine.take_outdated());
    team.kill(1);
    let begin = Instant::now();
    while !engine.holding().is_all() {
        assert!(begin.elapsed() < Duration::from_secs(60), "it holds all of the model, and does not train alone");
        let _ = engine.step(3.0);
    }
    stepped(&mut engine, 1);
    assert!(engine.take_outdated(), "the helper's steps are lost");
    assert!(!engine.take_outdated(), "once");
}
