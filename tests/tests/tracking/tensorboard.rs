//! `--tensorboard`: files that real daemons leave, read record by record, and by the real TensorBoard.

use std::fs;
use std::path::{Path, PathBuf};

use murmur::observe::journal::{Reading, files_at};
use murmur::observe::{Body, Record};
use murmur_tests::{Daemon, TINY_RUN, text, wait_until};
use serde_json::Value;

use super::script;
use crate::MURMUR;
use crate::place::Place;

/// An event, as far as the test reads it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Event {
    step: u64,
    is_session_start: bool,
    /// Tags of its numbers and texts, with a number's value.
    values: Vec<(String, Option<f32>)>,
}

/// CRC-32C bit by bit, masked: another implementation than the one under test.
fn masked_checksum(data: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    let crc = !data.iter().fold(!0_u32, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)));
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The records of a file, all of which are whole.
fn events_in(path: &Path) -> Vec<Event> {
    let bytes = fs::read(path).expect("there");
    let mut rest = bytes.as_slice();
    let mut events = Vec::new();
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    while !rest.is_empty() {
        let (length, after) = rest.split_at(8);
        assert_eq!(number(&after[..4]), masked_checksum(length), "the length is damaged");
        let length = u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize;
        let (data, after) = after[4..].split_at(length);
        assert_eq!(number(&after[..4]), masked_checksum(data), "a record is damaged");
        events.push(event(data));
        rest = &after[4..];
    }
    events
}

/// The fields of a message: their numbers, and their bytes or value.
fn fields(mut data: &[u8]) -> Vec<(u64, &[u8], u64)> {
    fn varint(data: &mut &[u8]) -> u64 {
        let mut value = 0;
        for index in 0.. {
            let byte = data[0];
            *data = &data[1..];
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                break;
            }
        }
        value
    }
    let mut fields = Vec::new();
    while !data.is_empty() {
        let key = varint(&mut data);
        let (length, value) = match key & 7 {
            0 => (0, varint(&mut data)),
            1 => (8, 0),
            2 => (varint(&mut data) as usize, 0),
            5 => (4, 0),
            other => panic!("wire type {other}"),
        };
        let (bytes, after) = data.split_at(length);
        fields.push((key >> 3, bytes, value));
        data = after;
    }
    fields
}

fn event(data: &[u8]) -> Event {
    let mut event = Event::default();
    for (field, bytes, value) in fields(data) {
        match field {
            2 => event.step = value,
            7 => event.is_session_start = fields(bytes).contains(&(1, &[], 1)),
            5 => {
                for (_, value, _) in fields(bytes) {
                    let parts = fields(value);
                    let text = |number| parts.iter().find(|(field, _, _)| *field == number).map(|(_, bytes, _)| *bytes);
                    let tag = String::from_utf8(text(1).expect("a tag").to_vec()).expect("UTF-8");
                    let number = text(2).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("a float")));
                    event.values.push((tag, number));
                }
            }
            _ => {}
        }
    }
    event
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).expect("there").flatten().map(|entry| entry.path()).collect();
    files.sort();
    files
}

fn losses(events: &[Event]) -> Vec<(u64, f32)> {
    let of = |event: &Event| {
        let (_, value) = event.values.iter().find(|(tag, _)| tag == "loss/train")?;
        Some((event.step, (*value)?))
    };
    events.iter().filter_map(of).collect()
}

/// Samples in the journal that tell of steps after the newest checkpoint; 0 where there is none.
fn lost_samples(root: &Path) -> usize {
    let names = fs::read_dir(root.join("checkpoints")).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let step = |name: std::ffi::OsString| name.to_str()?.strip_prefix("step-")?.parse::<u64>().ok();
    let (Some(saved), Ok(files)) = (names.filter_map(step).max(), files_at(root)) else { return 0 };
    let is_lost = |record: &Record| matches!(&record.body, Body::Sample(sample) if sample.steps > saved);
    Reading::new(files).filter(is_lost).count()
}

#[test]
fn curves_go_on_over_a_kill_and_are_what_the_journal_says() {
    let place = Place::new(TINY_RUN);
    let node_file = place.at("node.toml");
    let logs = place.at("logs");
    let settings = "[checkpoint]\nevery_seconds = 5\n";
    fs::write(&node_file, format!("{settings}[tensorboard]\ndirectory = {logs:?}\n")).expect("written");
    let arguments = ["start", place.run_file(), "--node", text(&node_file), "--name", "a/../b"];
    let root = place.at("node");

    let daemon = Daemon::spawn(MURMUR, &root, &arguments);
    // What is done after the checkpoint is lost, and done again: two samples of it are told, and no other checkpoint is near.
    wait_until("a checkpoint, and steps after it", || lost_samples(&root) >= 2);
    daemon.kill();
    let daemon = Daemon::spawn(MURMUR, &root, &arguments);
    let begun = daemon.wait_for("steps", |report| report.steps > 0).seconds;
    daemon.wait_for("more steps", |report| report.seconds > begun + 2.5);
    assert!(daemon.stop().status.success());

    let nodes = files_in(&logs.join("tiny"));
    assert_eq!(nodes.len(), 1, "{nodes:?}");
    assert!(nodes[0].file_name().expect("a name").to_string_lossy().starts_with("a_.._b-"), "{nodes:?}");
    let files = files_in(&nodes[0]);
    assert_eq!(files.len(), 2, "one for each process");
    let sessions: Vec<Vec<Event>> = files.iter().map(|file| events_in(file)).collect();
    let journal: Vec<Record> = Reading::new(files_at(&root).expect("a journal")).collect();
    let first_steps: Vec<u64> = journal
        .iter()
        .filter_map(|record| match &record.body {
            Body::Run(facts) => Some(facts.first_step),
            _ => None,
        })
        .collect();
    for (session, first_step) in sessions.iter().zip(&first_steps) {
        assert!(session[1].is_session_start && session[1].step == *first_step, "{:?}", session[1]);
        assert!(session.iter().skip(2).all(|event| !event.is_session_start));
        assert_eq!(session[2].values, [("run".to_owned(), None)]);
    }
    let last_of_first = losses(&sessions[0]).last().expect("losses").0;
    assert!(first_steps[0] == 0 && 0 < first_steps[1] && first_steps[1] < last_of_first, "steps were done twice");
    let told: Vec<(u64, f32)> = journal
        .iter()
        .filter_map(|record| match &record.body {
            Body::Sample(sample) => Some((sample.steps, sample.loss? as f32)),
            _ => None,
        })
        .collect();
    let drawn = losses(&sessions.concat());
    assert!(drawn.len() >= 4 && drawn.iter().all(|point| told.contains(point)), "{drawn:?} of {told:?}");

    let Some(read) = script("tensorboard_reads.py", "tensorboard", &[text(&nodes[0])]) else { return };
    let read: Value = serde_json::from_str(&read).expect("JSON");
    let curve: Vec<(u64, f32)> = serde_json::from_value(read["scalars"]["loss/train"].clone()).expect("a curve");
    assert!(curve.is_sorted_by(|one, other| one.0 < other.0), "it goes back: {curve:?}");
    // Of the first process only what came before the second.
    let kept: Vec<(u64, f32)> = losses(&sessions[0]).into_iter().filter(|(step, _)| *step < first_steps[1]).collect();
    assert_eq!(curve, [kept, losses(&sessions[1])].concat());
    assert!(read["texts"]["run"].as_str().expect("a text").contains("\n    model.layers = 1\n"), "{read}");
}

#[test]
fn a_folder_that_cannot_be_written_is_named_and_training_goes_on() {
    let place = Place::new(TINY_RUN);
    let file = place.at("a-file");
    fs::write(&file, "mine").expect("written");
    let logs = file.join("logs");
    let arguments = ["start", place.run_file(), "--tensorboard", logs.to_str().expect("UTF-8")];
    let daemon = place.spawn("node", &arguments);
    daemon.wait_for("steps", |report| report.steps > 0);
    let finished = daemon.stop();
    assert!(finished.status.success());
    let lines: Vec<&str> = finished.errors.lines().filter(|line| line.to_lowercase().contains("tensorboard")).collect();
    assert_eq!(lines.len(), 2, "{}", finished.errors);
    assert!(lines[0].contains("a-file/logs") && lines[0].contains("training goes on"), "{lines:?}");
    assert!(lines[1].starts_with("hint: ") && lines[1].contains("--tensorboard"), "{lines:?}");
}
