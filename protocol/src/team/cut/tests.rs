//! Cuts against all that there are, and against what people know of them.

use super::*;
use crate::peer::peer;
use crate::random::{Rng as _, stream};

fn costs(operations: f64, bytes: u64, held_bytes: u64) -> LayerCosts {
    LayerCosts { operations, bytes, held_bytes, moved_bytes: bytes, ..LayerCosts::default() }
}

fn place(memory_bytes: u64, operations_per_second: f64, link: f64) -> Place {
    Place { memory_bytes, operations_per_second, link: Link { up: link, down: link, latency: 0.0 } }
}

/// A layer takes a second on a machine of speed 1 and 100 bytes; a stream has 10.
fn model(layers: u32) -> ModelCosts {
    ModelCosts {
        layers,
        layer: costs(1.0, 100, 2),
        embedding: costs(0.1, 50, 1),
        head: costs(0.4, 50, 5),
        stream_bytes: 10,
        stage_bytes: 3,
        batch_tokens: 1000,
        borders: Vec::new(),
    }
}

/// All cuts over some helpers, with what is held as the search holds it, that fit.
fn all_cuts(
    model: &ModelCosts,
    captain: &Place,
    helpers: &[(PeerId, Place)],
    microbatches: u32,
) -> Vec<(Cut, Vec<Place>)> {
    let mut all = Vec::new();
    for hop_stages in 1..=HOP_STAGES_MAX {
        let mut open: Vec<Vec<(usize, u32)>> = vec![Vec::new()];
        while let Some(stages) = open.pop() {
            let end = stages.last().map_or(0, |(_, end)| *end);
            for next in (0..helpers.len()).filter(|next| stages.iter().all(|(taken, _)| taken != next)) {
                open.extend((end + 1..=model.layers).map(|end| [&stages[..], &[(next, end)]].concat()));
            }
            if stages.is_empty() {
                continue;
            }
            let held = |following: usize| (1 + following as u32 * (1 + hop_stages)).min(microbatches).clamp(1, 32);
            let count = stages.len();
            let stage = |helper, first, end, in_flight, embeds, predicts| CutStage {
                helper,
                layers: LayerRange { first, end },
                embeds,
                predicts,
                in_flight,
            };
            let (mut cut, mut first, mut fits) = (vec![stage(None, 0, 0, held(count + 1), true, false)], 0, true);
            for (number, (helper, end)) in stages.iter().enumerate() {
                let in_flight = held(count - number);
                let bytes = 3 + u64::from(end - first) * (100 + 2 * u64::from(in_flight));
                fits &= bytes <= helpers[*helper].1.memory_bytes;
                cut.push(stage(Some(helpers[*helper].0), first, *end, in_flight, false, false));
                first = *end;
            }
            let own = u64::from(model.layers - first);
            fits &= 3 + own * 102 + 105 + u64::from(held(count + 1)) <= captain.memory_bytes;
            cut.push(stage(None, first, model.layers, 1, false, true));
            if fits {
                let places: Vec<Place> = stages.iter().map(|(helper, _)| helpers[*helper].1).collect();
                let mut cut = Cut { stages: cut, tokens_per_second: 0.0 };
                cut.tokens_per_second = tokens_per_second(model, captain, &cut, &places, microbatches);
                all.push((cut, places));
            }
        }
    }
    all
}

#[test]
fn no_cut_of_a_team_is_faster_than_the_one_found() {
    let mut generator = stream(1, "teams", &[]);
    let mut dice = |sides: u64| generator.next_u64() % sides;
    let (mut cut_some, mut alone_is_best, mut none) = (0, 0, 0);
    for _ in 0..150 {
        let model = model(1 + dice(6) as u32);
        let random_place = |dice: &mut dyn FnMut(u64) -> u64| {
            let link = Link { up: (1 + dice(60)) as f64, down: (1 + dice(60)) as f64, latency: dice(3) as f64 / 10.0 };
            Place { memory_bytes: dice(600), operations_per_second: (1 + dice(5)) as f64, link }
        };
        let captain = random_place(&mut dice);
        let helpers: Vec<_> = (0..1 + dice(3)).map(|at| (peer(at as u8), random_place(&mut dice))).collect();
        let microbatches = 1 + dice(12) as u32;
        let mut all = all_cuts(&model, &captain, &helpers, microbatches);
        all.extend(alone(&model, &captain, microbatches).map(|cut| (cut, Vec::new())));
        let fastest = all.iter().map(|(cut, _)| cut.tokens_per_second).max_by(f64::total_cmp);
        match best(&model, &captain, &helpers, microbatches) {
            Ok(found) => {
                let expected = fastest.expect("one that fits");
                let margin = if found.stages.len() > 1 { 0.0 } else { GAIN_MIN };
                let gain = expected / found.tokens_per_second - 1.0;
                assert!((-1e-9..margin + 1e-9).contains(&gain), "{found:?} {expected}");
                // What is promised is what the formula says of it, and it is one of those that fit.
                let known = all.iter().find(|(cut, _)| cut.stages == found.stages).expect("a cut that fits");
                assert!((known.0.tokens_per_second / found.tokens_per_second - 1.0).abs() < 1e-9);
                let rooms = found.of_helpers().map(|(_, helper, _)| {
                    helpers.iter().find(|(one, _)| *one == helper).expect("one of them").1.memory_bytes
                });
                let rooms = [captain.memory_bytes].into_iter().chain(rooms);
                assert!(bytes_of(&model, &found).into_iter().zip(rooms).all(|(bytes, room)| bytes <= room));
                let of_team = best_team(&model, &captain, &helpers, microbatches);
                assert!(of_team.as_ref().is_none_or(|team| team.of_helpers().count() > 0));
                if found.stages.len() > 1 {
                    assert_eq!(of_team, Some(found));
                    cut_some += 1
                } else {
                    alone_is_best += 1
                }
            }
            Err(missing) => {
                assert_eq!(fastest, None);
                assert!(missing > 0);
                none += 1;
            }
        }
    }
    assert!(cut_some > 20 && alone_is_best > 10 && none > 20, "{cut_some} {alone_is_best} {none}");
}

#[test]
fn without_hops_the_bubble_is_that_of_the_formula() {
    // Four stages of one second, the captain's two on one machine, so three machines.
    let model = ModelCosts { embedding: costs(0.0, 0, 0), head: costs(0.0, 0, 0), stream_bytes: 0, ..model(3) };
    let captain = place(10_000, 1.0, f64::INFINITY);
    let helpers = [(peer(1), place(10_000, 1.0, f64::INFINITY)), (peer(2), place(10_000, 1.0, f64::INFINITY))];
    let cut = best(&model, &captain, &helpers, 16).expect("a cut");
    assert_eq!(cut.stages.iter().map(|stage| stage.layers.len()).collect::<Vec<_>>(), [0, 1, 1, 1]);
    assert!((cut.tokens_per_second - 1000.0 / 18.0).abs() < 1e-9, "{}", cut.tokens_per_second);
    assert!((alone(&model, &captain, 16).expect("it fits").tokens_per_second - 1000.0 / 48.0).abs() < 1e-9);
}

#[test]
fn a_team_that_is_slower_than_the_captain_alone_is_not_formed() {
    let captain = place(10_000, 10.0, 1.0);
    // Its link takes 20 seconds a microbatch.
    let cut = best(&model(6), &captain, &[(peer(1), place(10_000, 10.0, 1.0))], 8).expect("a cut");
    assert_eq!((cut.stages.len(), cut.stages[0].embeds, cut.stages[0].predicts), (1, true, true));
    // Where it does not fit alone there is no choice.
    let small = Place { memory_bytes: 300, ..captain };
    let cut = best(&model(6), &small, &[(peer(1), place(10_000, 10.0, 1.0))], 8).expect("a cut");
    assert_eq!(cut.stages.len(), 3);
    assert!(cut.tokens_per_second < alone(&model(6), &captain, 8).expect("a cut").tokens_per_second);
}

#[test]
fn a_team_that_is_hardly_faster_than_the_captain_alone_is_not_formed() {
    // With one microbatch nothing overlaps: what a team gains is what its helper is faster.
    let stages = |speed: f64| {
        let helpers = [(peer(1), place(10_000, speed, 1e9))];
        best(&model(2), &place(10_000, 10.0, 1e9), &helpers, 1).expect("a cut").stages.len()
    };
    assert_eq!((stages(10.5), stages(13.0)), (1, 3));
}

#[test]
fn what_is_missing_is_what_a_helper_would_need() {
    let captain = place(300, 1.0, 1e9);
    let missing = best(&model(6), &captain, &[], 8).expect_err("too little memory");
    assert!(best(&model(6), &captain, &[(peer(1), place(missing, 1.0, 1e9))], 8).is_ok(), "{missing}");
    assert!(best(&model(6), &captain, &[(peer(1), place(missing / 2, 1.0, 1e9))], 8).is_err(), "{missing}");
}

#[test]
fn six_helpers_and_many_layers_are_cut_while_somebody_waits() {
    let helpers: Vec<_> = (0..6_u8).map(|at| (peer(at), place(100_000, 1.0 + f64::from(at), 500.0))).collect();
    let cut = best(&model(128), &place(100_000, 4.0, 2000.0), &helpers, 32).expect("a cut");
    assert!(cut.stages.windows(2).all(|two| two[0].in_flight >= two[1].in_flight));
    assert!(cut.stages.iter().all(|stage| stage.in_flight <= IN_FLIGHT_MAX));
    assert_eq!(cut.stages.last().map(|stage| stage.layers.end), Some(128));
}

#[test]
fn stages_end_at_borders_where_that_costs_at_most_a_tenth() {
    let captain = place(10_000, 1.0, 1e9);
    let helpers = [(peer(1), place(10_000, 1.0, 1e9)), (peer(2), place(10_000, 1.0, 1e9))];
    let ends = |layers, borders: &[u32]| -> (Vec<u32>, f64) {
        let model = ModelCosts { borders: borders.to_vec(), ..model(layers) };
        let cut = best(&model, &captain, &helpers, 64).expect("a cut");
        (cut.of_helpers().map(|(_, _, stage)| stage.layers.end).collect(), cut.tokens_per_second)
    };
    let (anywhere, fastest) = ends(33, &[]);
    assert_eq!(anywhere, [11, 22]);
    // Twelve layers where there were eleven.
    let (at_borders, speed) = ends(33, &[0, 4, 8, 12, 16, 20, 24, 28, 33]);
    assert_eq!(at_borders, [12, 24]);
    assert!((0.9..1.0).contains(&(speed / fastest)), "{speed} {fastest}");
    // Seventeen; and a first layer that is no border.
    assert_eq!(ends(33, &[0, 17, 33]).0, anywhere);
    assert_eq!(ends(33, &[11, 22]).0, anywhere);
}
