//! Helpers that are members of the swarm by themselves: each machine of a team exchanges its own fragments of the model.

use murmur_protocol::bulk::BLOCK;

use super::*;

/// How long a run of some hundred steps may take on a busy machine: a quarter of the time is trained.
const RUN: Duration = Duration::from_secs(180);

/// Fragments that end at layers, so that a helper's layers are some of them.
fn fragments_and_steps(steps: u32) -> String {
    LAYERED_RUN
        .replace("total_steps = 100000", &format!("total_steps = {steps}"))
        .replace("[gossip]", "[gossip]\nfragments = 8\ncut = \"layers\"")
}

/// The values of the newest checkpoint's model.
fn values(data: &Path) -> Vec<f32> {
    let [model, _] = checkpoint(data);
    let header = u64::from_le_bytes(*model.first_chunk().expect("a header's length"));
    let values = &model[8 + usize::try_from(header).expect("a length")..];
    values.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect()
}

/// How far two vectors are apart, as a share of the first one's length.
fn apart(one: &[f32], other: &[f32]) -> f64 {
    assert_eq!(one.len(), other.len());
    let squares = |values: &mut dyn Iterator<Item = f32>| values.map(|value| f64::from(value).powi(2)).sum::<f64>();
    let differences = squares(&mut one.iter().zip(other).map(|(one, other)| one - other));
    (differences / squares(&mut one.iter().copied())).sqrt()
}

/// In a closed run, whose secret a helper has from its captain.
#[test]
fn a_helper_exchanges_its_own_layers_and_all_end_with_one_model() {
    let _turn = murmur_tests::turn::computes();
    let place = Place::new(LAYERED_RUN);
    let run_file = write_run(place.path(), &fragments_and_steps(400));
    let helper = place.helper("helper", Helper::free_port(), &[]);
    let (data, plain_data) = (place.at("captain"), place.at("plain"));
    let captain = place.captain(&run_file, &[&helper.line()], &["--closed", "--exit"]).with_patience(RUN);
    helper.wait_for("exchanges 92 % of the model by itself");
    let plain = Daemon::spawn(MURMUR, &plain_data, &["join", &captain.ticket(), "--exit"]).with_patience(RUN);
    // The joiner has the helper's layers from the helper, and all others from the captain.
    let joined = plain.wait_for_notice("took over the model of");
    assert_eq!(joined.matches(", ").count(), 1, "two donors: {joined}");
    let (captain, plain) = (captain.wait_for_end(), plain.wait_for_end());
    assert!(captain.status.success() && plain.status.success(), "{}\n{}", captain.errors, plain.errors);
    helper.wait_for("holds nothing any more");
    let [of_captain, of_plain] = [captain, plain].map(|finished| finished.report.expect("it left in order"));
    // Of 401 kB in 8 bits the captain sends 8 % in each exchange, but for the last ones; joining counts as well.
    assert!(of_captain.bytes_sent < of_plain.bytes_sent, "{} and {}", of_captain.bytes_sent, of_plain.bytes_sent);
    let (ours, theirs) = (values(&data), values(&plain_data));
    assert!(ours.len() > 100 * BLOCK);
    let distance = apart(&ours, &theirs);
    println!("{distance} apart");
    assert!(distance < 0.01, "one model: {distance} apart");
}

/// A helper that is killed takes what it has learned along. What it has exchanged is in the swarm, and comes from there.
#[test]
fn layers_of_a_helper_that_was_killed_come_back_from_the_swarm() {
    let _turn = murmur_tests::turn::computes();
    let place = Place::new(LAYERED_RUN);
    let run_file = write_run(place.path(), &fragments_and_steps(100_000));
    let (settings, port) = (place.settings(&run_file), Helper::free_port());
    // Without checkpoints: killed just after one, a helper takes nothing along.
    let without =
        std::fs::read_to_string(&settings).expect("text").replace("every_seconds = 5", "every_seconds = 3600");
    std::fs::write(&settings, without).expect("writable");
    let helper = place.helper("helper", port, &[]);
    let line = helper.line();
    let captain = ["start", text(&run_file), "--node", text(&settings), "--helper", &line];
    let captain = place.spawn("captain", &captain);
    let plain = place.spawn("plain", &["join", &captain.ticket()]);
    helper.wait_for("of the model by itself");
    let before = plain.wait_for("exchanges with both", |report| report.exchanges_completed > 10);
    helper.kill();
    let helper = place.helper("helper", port, &[]);
    captain.wait_for_notice("go on from an older copy");
    helper.wait_for("took its layers over from");
    plain.wait_for("exchanges with both again", |report| report.exchanges_completed > before.exchanges_completed + 10);
    assert!(plain.stop().status.success() && captain.stop().status.success());
    helper.wait_for("holds nothing any more");
    assert!(helper.interrupt().success());
}

/// Two helpers with room for three of four layers each, beside a machine with all of the model. One is killed and comes back: the
/// model is cut anew while the other one exchanges.
#[test]
fn each_of_two_helpers_exchanges_its_own_layers_before_and_after_a_new_cut() {
    let _turn = murmur_tests::turn::computes();
    let place = Place::new(LAYERED_RUN);
    let run_file = write_run(place.path(), &fragments_and_steps(250));
    let room = place.room_for_layers(&run_file, 3);
    let room = ["--memory", &room];
    let ports = [Helper::free_port(), Helper::free_port()];
    let helpers = [0, 1].map(|at| place.helper(&format!("helper{at}"), ports[at], &room));
    let lines = [helpers[0].line(), helpers[1].line()];
    let (data, plain_data) = (place.at("captain"), place.at("plain"));
    let captain = place.captain(&run_file, &[&lines[0], &lines[1]], &["--exit"]).with_patience(RUN);
    let plain = Daemon::spawn(MURMUR, &plain_data, &["join", &captain.ticket(), "--exit"]).with_patience(RUN);
    helpers.iter().for_each(|helper| helper.wait_for("of the model by itself"));
    plain.wait_for("exchanges with three machines", |report| report.peers == 3 && report.exchanges_completed > 2);
    let [first, second] = helpers;
    first.kill();
    captain.wait_for("it waits for those layers", |report| report.doing.starts_with("waiting for a helper with"));
    let first = place.helper("helper0", ports[0], &room);
    first.wait_for("of the model by itself");
    let (captain, plain) = (captain.wait_for_end(), plain.wait_for_end());
    assert!(captain.status.success() && plain.status.success(), "{}\n{}", captain.errors, plain.errors);
    [first, second].iter().for_each(|helper| helper.wait_for("holds nothing any more"));
    let distance = apart(&values(&data), &values(&plain_data));
    println!("{distance} apart");
    assert!(distance < 0.01, "one model: {distance} apart");
}

/// Where stages are no whole fragments, the captain exchanges for all.
#[test]
fn a_captain_exchanges_for_helpers_whose_layers_are_no_fragments() {
    let _turn = murmur_tests::turn::computes();
    let place = Place::new(LAYERED_RUN);
    let run_file = place.layered_run("");
    let helper = place.helper("helper", Helper::free_port(), &[]);
    let captain = place.captain(&run_file, &[&helper.line()], &[]);
    let plain = place.spawn("plain", &["join", &captain.ticket()]);
    plain.wait_for("exchanges", |report| report.exchanges_completed > 5);
    assert_eq!(plain.latest().expect("a report").peers, 1, "the captain alone");
    assert!(!helper.told().contains("by itself"), "{}", helper.told());
    assert!(plain.stop().status.success() && captain.stop().status.success());
}
