//! Teams of real processes: a captain whose model lies on other machines as well, helpers that are killed, sent away and come back.

mod membership;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use murmur::observe::report::NodeReport;
use murmur_protocol::team::{ModelCosts, Wire};
use murmur_tests::{Daemon, Helper, at_once, output_of, run, text, write_run};
use murmur_training::ops::Kernels;

use crate::MURMUR;
use crate::base::exported;
use crate::place::Place;

/// A model whose layers are larger than its embedding and head, so that these alone fit a small captain.
pub(crate) const LAYERED_RUN: &str = "\
[run]
name = \"layered\"
[model]
layers = 4
width = 96
heads = 4
feed_forward = 384
context = 32
[optimizer]
batch_sequences = 4
[schedule]
total_steps = 100000
warmup_steps = 20
[data]
validation_sequences = 8
[gossip]
interval_steps = 5
final_exchanges = 2
";

/// Adapters on the same model.
pub(crate) const ADAPTERS: &str = "[lora]\nrank = 4\nbase_bits = 8\n";

impl Place {
    /// A run file with more in it.
    fn layered_run(&self, more: &str) -> PathBuf {
        write_run(self.path(), &format!("{LAYERED_RUN}{more}"))
    }

    /// The same with a head that is the embedding's table, as small models have it.
    pub(crate) fn tied_run(&self, more: &str) -> PathBuf {
        let tied = LAYERED_RUN.replace("[model]", "[model]\ntied_head = true");
        write_run(self.path(), &format!("{tied}{more}"))
    }

    /// Settings of a captain that has room for embedding and head, and for none of the layers.
    fn settings(&self, run_file: &Path) -> PathBuf {
        let path = self.at("captain.toml");
        let (least, layer) = needs(run_file);
        let memory = (least + layer / 2) as f64 / 1e9;
        let training = format!("stream_bits = 32\nevaluate_every = 20\nmemory_gigabytes = {memory:.6}\n");
        let text = format!("[training]\n{training}[checkpoint]\nevery_seconds = 5\n");
        std::fs::write(&path, text).expect("writable");
        path
    }

    /// What a helper lends that is to have room for so many layers, though not for one more.
    fn room_for_layers(&self, run_file: &Path, layers: u64) -> String {
        let ModelCosts { layer, stage_bytes, .. } = costs(run_file);
        // Two microbatches are under way.
        let of_layer = layer.bytes + layer.copied_bytes + 2 * layer.held_bytes;
        let bytes = stage_bytes + layer.kept_bytes + layers * of_layer + layer.copied_bytes;
        format!("{:.6}MB", bytes as f64 / 1e6)
    }

    fn helper(&self, name: &str, port: u16, more: &[&str]) -> Helper {
        Helper::spawn(MURMUR, &self.at(name), port, more)
    }

    /// Of the helpers with these lines, with [`Place::settings`].
    fn captain(&self, run_file: &Path, helpers: &[&str], more: &[&str]) -> Daemon {
        let settings = self.settings(run_file);
        let mut arguments = vec!["start", text(run_file), "--node", text(&settings)];
        arguments.extend(helpers.iter().flat_map(|line| ["--helper", line]).chain(more.iter().copied()));
        self.spawn("captain", &arguments)
    }

    /// The base of adapters: a model of this run in the form of Hugging Face's.
    fn base(&self) -> PathBuf {
        self.base_of(&self.layered_run(""))
    }

    /// The same of a run.
    pub(crate) fn base_of(&self, run_file: &Path) -> PathBuf {
        let (data, base) = (self.at("trained"), self.at("base"));
        Daemon::spawn(MURMUR, &data, &["start", text(run_file), "--steps", "20", "--exit"]).wait_for_end().in_order();
        exported(&data, &base, &[]);
        base
    }
}

/// What a run's model costs in a team.
fn costs(run_file: &Path) -> ModelCosts {
    let manifest = murmur::settings::load_run_manifest(run_file).expect("a run file");
    let options = murmur_training::TrainingOptions::default();
    murmur_training::team::costs(&manifest, &options, 1, Wire::F32, Kernels::Fused).0
}

/// Bytes that a captain needs at least, and for each layer.
fn needs(run_file: &Path) -> (u64, u64) {
    let manifest = murmur::settings::load_run_manifest(run_file).expect("a run file");
    let options = murmur_training::TrainingOptions::default();
    murmur_training::team::captain_needs(&manifest, &options, (Wire::F32, 1, Kernels::Fused))
}

/// The files of the newest checkpoint.
pub(crate) fn checkpoint(data: &Path) -> [Vec<u8>; 2] {
    let folders = std::fs::read_dir(data.join("checkpoints")).expect("a folder").flatten();
    let newest = folders.map(|folder| folder.path()).max().expect("a checkpoint");
    ["model.safetensors", "optimizer.safetensors"].map(|name| std::fs::read(newest.join(name)).expect("a file"))
}

#[test]
fn a_captain_and_a_helper_train_with_the_bits_of_one_machine() {
    let _turn = murmur_tests::turn::computes();
    at_once([false, true], |with_base| trains_with_the_bits_of_one_machine(with_base, Place::layered_run));
}

#[test]
fn a_model_whose_head_is_the_embedding_trains_in_a_team_with_the_bits_of_one_machine() {
    let _turn = murmur_tests::turn::computes();
    at_once([false, true], |with_base| trains_with_the_bits_of_one_machine(with_base, Place::tied_run));
}

fn trains_with_the_bits_of_one_machine(with_base: bool, write: fn(&Place, &str) -> PathBuf) {
    let place = Place::new(LAYERED_RUN);
    let base = with_base.then(|| place.base_of(&write(&place, "")));
    let run_file = write(&place, if with_base { ADAPTERS } else { "" });
    let (data, alone) = (place.at("captain"), place.at("alone"));
    let helper = place.helper("helper", Helper::free_port(), &[]);
    let (settings, line) = (place.settings(&run_file), helper.line());
    let mut own = vec!["start", text(&run_file), "--steps", "30", "--exit", "--node", text(&settings)];
    own.extend(base.iter().flat_map(|base| ["--base", text(base)]));
    let captain = Daemon::spawn(MURMUR, &data, &[&own[..], &["--helper", &line]].concat());
    captain.wait_for_notice("layers 0-3 on ");
    // Data is shared out by identity.
    std::fs::create_dir_all(&alone).expect("writable");
    std::fs::copy(data.join("identity.key"), alone.join("identity.key")).expect("copied");
    Daemon::spawn(MURMUR, &alone, &own).wait_for_end().in_order();
    let finished = captain.wait_for_end().in_order();
    let (found, expected) = (checkpoint(&data), checkpoint(&alone));
    assert!(found == expected, "model and moments, with adapters: {with_base}");
    let report = finished.report.expect("it left in order");
    let team = report.team.expect("it had one");
    assert_eq!((team.batches, team.helpers_lost, report.steps), (30, 0, 30), "{team:?}");
    assert!(team.bytes_sent > 100_000, "{team:?}");
    helper.wait_for("holds nothing any more");
}

/// A team and a machine with all of the model average their models every five steps.
#[test]
fn a_team_is_a_member_of_a_synchronous_run_that_averages_models() {
    let _turn = murmur_tests::turn::computes();
    let place = Place::new(LAYERED_RUN);
    let synchronous = "[synchronous]\ntopology = \"ring\"\nevery_steps = 5\n";
    let run_file = write_run(
        place.path(),
        &format!("{}{synchronous}", LAYERED_RUN.replace("total_steps = 100000", "total_steps = 60")),
    );
    let helper = place.helper("helper", Helper::free_port(), &[]);
    let captain = place.captain(&run_file, &[&helper.line()], &[]);
    captain.wait_for("a step", |report| report.steps > 0);
    let other = place.spawn("other", &["join", &captain.ticket()]);
    let at_its_end = |daemon: &Daemon| daemon.wait_for("the end of the run", |report| report.phase == "completed");
    let [of_captain, of_other] = [&captain, &other].map(at_its_end);
    for report in [&of_captain, &of_other] {
        let told = report.synchronous.as_ref().expect("the run is synchronous");
        assert!(told.has_ended && told.all_reduces >= 4, "{told:?}");
    }
    let team = of_captain.team.expect("it had one");
    assert!(team.batches >= 50, "{team:?}");
    assert_eq!(checkpoint(&place.at("captain"))[0], checkpoint(&place.at("other"))[0]);
}

/// All weights: what the helper had of its layers is gone with it, between the steps of a contribution or before it.
#[test]
fn a_captain_in_a_synchronous_run_waits_for_a_helper_that_was_killed_and_goes_on() {
    let _turn = murmur_tests::turn::computes();
    let place = Place::new(LAYERED_RUN);
    let synchronous = "[synchronous]\ntopology = \"ring\"\nevery_steps = 5\n";
    let (run_file, port) = (place.layered_run(synchronous), Helper::free_port());
    let helper = place.helper("helper", port, &[]);
    let captain = place.captain(&run_file, &[&helper.line()], &[]);
    captain.wait_for("some steps", |report| report.steps > 5);
    helper.kill();
    let waiting =
        captain.wait_for("it says that it waits", |report| report.doing.starts_with("waiting for a helper with"));
    // As long as several tries of a step take.
    std::thread::sleep(Duration::from_secs(2));
    let helper = place.helper("helper", port, &[]);
    let after = captain.wait_for("steps again", |report| report.steps > waiting.steps + 10);
    assert!(after.synchronous.is_some_and(|told| told.all_reduces > 1) && after.loss.is_some_and(f64::is_finite));
    let finished = captain.stop();
    assert!(finished.status.success() && !finished.errors.contains("training has ended"), "{}", finished.errors);
    helper.wait_for("holds nothing any more");
}

#[test]
fn a_captain_waits_visibly_for_a_helper_that_was_killed_answers_others_and_goes_on() {
    let _turn = murmur_tests::turn::computes();
    let place = Place::new(LAYERED_RUN);
    let base = place.base();
    let (run_file, port) = (place.layered_run(ADAPTERS), Helper::free_port());
    let helper = place.helper("helper", port, &[]);
    let line = helper.line();
    let captain = place.captain(&run_file, &[&line], &["--base", text(&base)]);
    let plain = place.spawn("plain", &["join", &captain.ticket(), "--base", text(&base)]);
    plain.wait_for("an exchange with the captain", |report| report.exchanges_completed > 0);
    captain.wait_for("some steps", |report| report.steps > 5);
    helper.kill();
    let waiting =
        captain.wait_for("it says that it waits", |report| report.doing.starts_with("waiting for a helper with"));
    let before = waiting.steps;
    let exchanges = waiting.exchanges_completed;
    captain.wait_for("exchanges meanwhile", |report| report.exchanges_completed > exchanges + 2);
    let still = captain.latest().expect("a report");
    assert_eq!(still.steps, before, "nobody has its layers");
    let helper = place.helper("helper", port, &[]);
    assert_eq!(helper.line(), line, "it is the same helper");
    let after = captain.wait_for("steps again", |report| report.steps > before + 5);
    let team = after.team.expect("a team");
    assert!(team.helpers_lost >= 1 && team.seconds_without > 0.0, "{team:?}");
    assert!(plain.stop().status.success() && captain.stop().status.success());
    helper.wait_for("holds nothing any more");
}

#[test]
fn a_captain_that_cannot_start_says_so_in_one_line() {
    let place = Place::new(LAYERED_RUN);
    let run_file = place.layered_run("");
    let helper = place.helper("helper", Helper::free_port(), &[]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let listen = format!("/ip4/127.0.0.1/tcp/{}", taken.local_addr().expect("bound").port());
    let (data, line) = (place.at("captain"), helper.line());
    let captain = ["start", text(&run_file), "--data-dir", text(&data), "--listen", &listen, "--helper", &line];
    let refused = run(MURMUR, &captain);
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(4), "{errors}");
    assert!(errors.contains("error: cannot listen on"), "{errors}");
}

#[test]
fn another_helper_takes_the_layers_of_one_that_was_killed() {
    let _turn = murmur_tests::turn::computes();
    at_once([false, true], takes_the_layers_of_one_that_was_killed);
}

fn takes_the_layers_of_one_that_was_killed(is_tied: bool) {
    let place = Place::new(LAYERED_RUN);
    let run_file = if is_tied { place.tied_run("") } else { place.layered_run("") };
    let ports = [Helper::free_port(), Helper::free_port()];
    let helpers = [0, 1].map(|number| place.helper(&format!("helper{number}"), ports[number], &[]));
    let lines = [helpers[0].line(), helpers[1].line()];
    let captain = place.captain(&run_file, &[&lines[0], &lines[1]], &[]);
    captain.wait_for("some steps", |report| report.steps > 5);
    let [first, second] = helpers;
    let cut = captain.latest().and_then(|report| report.team).and_then(|team| team.cut).expect("a cut");
    let name = |line: &str| {
        let line: murmur_protocol::HelperLine = line.parse().expect("a line");
        line.helper.to_string()[44..].to_owned()
    };
    // The one that holds layers is killed; the other one takes them.
    let (victim, other, kept) = if cut.contains(&name(&lines[0])) {
        (first, second, name(&lines[1]))
    } else {
        (second, first, name(&lines[0]))
    };
    let before = captain.latest().expect("a report").steps;
    victim.kill();
    let after = captain.wait_for("it goes on with the other one", |report| {
        let has_other =
            report.team.as_ref().is_some_and(|team| team.cut.as_ref().is_some_and(|cut| cut.contains(&kept)));
        has_other && report.steps > before + 5
    });
    assert!(after.loss.is_some_and(f64::is_finite), "{after:?}");
    if !is_tied {
        assert!(captain.stop().status.success());
        return drop(other);
    }
    // Nobody has its layers as they are now: a checkpoint would be of two steps.
    drop(other);
    let finished = captain.stop();
    assert_eq!(finished.status.code(), Some(5), "{}", finished.errors);
    assert!(finished.errors.contains("waits for the team"), "{}", finished.errors);
}

#[test]
fn a_captain_that_was_killed_finds_its_helper_again_and_goes_on_from_its_checkpoint() {
    let _turn = murmur_tests::turn::computes();
    let place = Place::new(LAYERED_RUN);
    let run_file = place.layered_run("");
    let helper = place.helper("helper", Helper::free_port(), &[]);
    let (line, data) = (helper.line(), place.at("captain"));
    let captain = place.captain(&run_file, &[&line], &[]);
    captain.wait_for("some steps", |report| report.steps > 5);
    // Of the newest that is whole: others have another name until they are.
    let saved = || {
        let folders = std::fs::read_dir(data.join("checkpoints")).expect("a folder").flatten();
        let steps =
            folders.filter_map(|folder| folder.file_name().to_str()?.strip_prefix("step-")?.parse::<u64>().ok());
        steps.max()
    };
    captain.wait_for("a checkpoint", |_| saved().is_some());
    let saved = saved().expect("it was there");
    captain.kill();
    helper.wait_for("its layers are kept for 10 minutes");
    let captain = place.captain(&run_file, &[&line], &[]);
    let first = captain.wait_for("it goes on", |report| report.steps > 0);
    assert!(first.steps >= saved, "from its checkpoint of {saved} steps: {}", first.steps);
    captain.wait_for("more steps", |report| report.steps > first.steps + 5);
    assert!(captain.stop().status.success());
}

#[test]
fn both_sides_end_in_order_at_ctrl_c() {
    let _turn = murmur_tests::turn::computes();
    let place = Place::new(LAYERED_RUN);
    let run_file = place.layered_run("");
    let helpers = [0, 1].map(|number| place.helper(&format!("helper{number}"), Helper::free_port(), &[]));
    let lines = [helpers[0].line(), helpers[1].line()];
    let captain = place.captain(&run_file, &[&lines[0], &lines[1]], &[]);
    captain.wait_for("some steps", |report| report.steps > 5);
    let [first, second] = helpers;
    assert!(first.interrupt().success());
    let before = captain.latest().expect("a report").steps;
    captain.wait_for("it goes on without it", |report| report.steps > before + 5);
    captain.signal("INT");
    let finished = captain.wait_for_end();
    assert!(finished.status.success() && finished.report.is_some(), "{}", finished.errors);
    second.wait_for("holds nothing any more");
    assert!(second.interrupt().success());
}

/// Bytes a second that a team moves, by its captain's reports, once it has begun; over so many at least.
fn rate(captain: &Daemon, least: u64, moved: fn(&NodeReport) -> u64) -> f64 {
    // What a bucket holds at first, and what moves before training, is through.
    let first = moved(&captain.wait_for("some steps", |report| report.steps > 3));
    let begin = Instant::now();
    let last = moved(&captain.wait_for("more bytes", |report| moved(report) >= first + least));
    (last - first) as f64 / begin.elapsed().as_secs_f64()
}

#[test]
fn the_traffic_of_a_team_keeps_to_the_caps_of_captain_and_helper() {
    let _turn = murmur_tests::turn::computes();
    let caps: [&[&str]; 2] = [&["--upload-mbit", "4"], &[]];
    at_once([("captain", caps), ("helper", [caps[1], caps[0]])], |(name, caps)| traffic_keeps_to_the_cap(name, caps));
}

/// Of the captain or the helper by `name`, with what both are started with.
fn traffic_keeps_to_the_cap(name: &str, [of_captain, of_helper]: [&[&str]; 2]) {
    const CAP: f64 = 4e6 / 8.0;
    let place = Place::new(LAYERED_RUN);
    let run_file = place.layered_run("");
    let helper = place.helper("helper", Helper::free_port(), of_helper);
    // The layers themselves take twenty seconds to their helper at this rate.
    let captain = place.captain(&run_file, &[&helper.line()], of_captain).with_patience(Duration::from_secs(120));
    let sent = |report: &NodeReport| report.team.as_ref().map_or(0, |team| team.bytes_sent);
    let received = |report: &NodeReport| report.team.as_ref().map_or(0, |team| team.bytes_received);
    let rate = rate(&captain, 2_000_000, if name == "captain" { sent } else { received });
    println!("capped at the {name}: {:.2} Mbit/s", 8e-6 * rate);
    // The last report may tell of half a second more.
    assert!(rate < 1.15 * CAP, "capped at the {name}: {rate} bytes a second");
}

#[test]
fn the_doctor_compares_a_team_with_one_machine_and_does_not_recommend_a_slower_one() {
    let _turn = murmur_tests::turn::computes();
    let place = Place::new(LAYERED_RUN);
    let run_file = place.layered_run("");
    let doctor = |lines: &[&str]| {
        let mut command = murmur_tests::murmur(MURMUR);
        command.args(["doctor", "--run", text(&run_file), "--threads", "1", "--device", "cpu"]).arg("--data-dir");
        let output = output_of(command.arg(place.at("doctor")).arg("--team").args(lines));
        let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.success(), told)
    };
    // Its streams take a quarter of a second each way.
    let slow = place.helper("slow", Helper::free_port(), &["--upload-mbit", "0.4"]);
    let (is_fit, told) = doctor(&[&slow.line()]);
    assert!(is_fit && told.contains("a team would be slower: ") && told.contains("murmur join"), "{told}");
    let of_helper = told.lines().find(|line| line.starts_with("helper")).expect("a line of the helper");
    assert!(of_helper.contains("lends 1.00 GB") && of_helper.contains("billion operations a second"), "{of_helper}");
    let back: f64 = of_helper
        .split_once(" there and ")
        .and_then(|(_, rest)| rest.split_once(" back"))
        .and_then(|(rate, _)| rate.parse().ok())
        .expect("a rate");
    assert!((0.2..0.45).contains(&back), "{of_helper}");
    // It is free for a captain again.
    slow.wait_for("holds nothing any more");
    let said = slow.told();
    let comings = said.lines().filter(|line| line.ends_with(" is there") || line.starts_with("waiting "));
    let comings: Vec<bool> = comings.map(|line| line.ends_with(" is there")).collect();
    assert!(comings.contains(&true) && comings.windows(2).all(|two| two != [true, true]), "said twice: {said}");
    let line = slow.line();
    drop(slow);
    let (is_fit, told) = doctor(&[&line]);
    assert!(!is_fit && told.contains("cannot be reached") && told.contains("run `murmur lend` there"), "{told}");
    let (is_fit, told) = doctor(&["murmurL1abc"]);
    let errors = told.lines().filter(|line| line.starts_with("error: ")).count();
    assert!(!is_fit && errors == 1 && told.contains("hint: "), "{told}");
}

#[test]
fn what_no_team_can_be_made_of_is_refused_in_one_line_with_a_hint() {
    let place = Place::new(LAYERED_RUN);
    let refused = |arguments: &[&str]| {
        let data = place.at("refused");
        let own = ["--data-dir", text(&data), "--listen", "/ip4/127.0.0.1/tcp/0", "--status-address", "off"];
        let output = output_of(murmur_tests::murmur(MURMUR).args(arguments).args(own));
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let hints = errors.lines().filter(|line| line.starts_with("hint: ")).count();
        assert!(!output.status.success() && hints == 1, "{errors}");
        errors
    };
    let run_file = place.layered_run("");
    let start = ["start", text(&run_file), "--helper"];
    let errors = refused(&[&start[..], &["murmur1abc"]].concat());
    assert!(
        errors.contains("the line of a helper begins with `murmurL1`") && errors.contains("murmur lend"),
        "{errors}"
    );

    let helper = place.helper("helper", Helper::free_port(), &[]);
    let line = helper.line();
    let errors = refused(&[&start[..], &[&line[..line.len() - 1]]].concat());
    assert!(errors.contains("was it copied whole?"), "{errors}");
    let errors = refused(&[&start[..], &[&line, "--helper", &line]].concat());
    assert!(errors.contains("is named twice"), "{errors}");

    let images = write_run(place.path(), "[model]\nkind = \"mlp\"\nhidden = [8]\n[data]\nsource = \"idx\"\n");
    let errors = refused(&["start", text(&images), "--helper", &line]);
    assert!(errors.contains("only transformers are cut") && errors.contains("murmur join"), "{errors}");
    let of_gradients = place.layered_run("[synchronous]\ntopology = \"ring\"\n");
    let errors = refused(&["start", text(&of_gradients), "--helper", &line]);
    assert!(errors.contains("gradient of every step") && errors.contains("every_steps = 10"), "{errors}");

    let lent = place.helper("lent", Helper::free_port(), &[]);
    lent.line();
    assert!(lent.interrupt().success());
    let data = place.at("lent");
    let start_there = ["start", text(&run_file), "--data-dir", text(&data), "--status-address", "off"];
    let output = output_of(murmur_tests::murmur(MURMUR).args(start_there));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.contains("is the data directory of a helper"), "{errors}");

    let run_file = place.layered_run("");
    let captain = place.captain(&run_file, &[&line], &[]);
    captain.wait_for("a step", |report| report.steps > 0);
    let errors = refused(&[&start[..], &[&line]].concat());
    assert!(errors.contains("it has another captain") && errors.contains("hint: "), "{errors}");
}
