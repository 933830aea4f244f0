//! What is written into a journal, and what is read from it again.

use super::*;
use crate::observe::hub::Hub;
use crate::observe::record::{EventFacts, RunFacts};

/// Writes a run and so many events, and waits until they are there.
fn write(root: &Path, bytes_max: u64, events: u64) -> u64 {
    let (journal, seq) = Journal::open(root, bytes_max).expect("written");
    let hub = Hub::new("a", seq, Instant::now());
    let thread = journal.start(hub.sink(4096));
    hub.tell(Body::Run(RunFacts { session: seq as i64 + 1, ..RunFacts::default() }));
    for number in 0..events {
        hub.tell(Body::Event(EventFacts { text: format!("event {number}"), ..EventFacts::default() }));
    }
    hub.close();
    thread.join().expect("it ends");
    seq
}

fn records(root: &Path) -> Vec<Record> {
    Reading::new(files_at(root).expect("a journal")).collect()
}

#[test]
fn numbers_go_on_over_restarts_and_a_torn_line_is_cut() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    assert_eq!(write(folder.path(), 1 << 30, 3), 0);
    let path = path(&folder.path().join(FOLDER), 1);
    let mut file = OpenOptions::new().append(true).open(&path).expect("there");
    file.write_all(b"{\"v\":1,\"seq\":5,\"t\":\"20").expect("written");
    assert_eq!(records(folder.path()).len(), 4, "a reader leaves out what is not whole");
    assert_eq!(write(folder.path(), 1 << 30, 2), 4);
    let (journal, _) = Journal::open(folder.path(), 1 << 30).expect("free");
    assert_eq!(journal.remembered().len(), 7);
    let seqs: Vec<u64> = records(folder.path()).iter().map(|record| record.seq).collect();
    assert_eq!(seqs, [1, 2, 3, 4, 5, 6, 7]);
    let text = fs::read_to_string(&path).expect("text");
    assert!(text.lines().all(|line| Record::parse(line).is_some()), "{text}");
}

#[test]
fn files_are_cut_off_and_the_oldest_go_and_each_begins_with_its_run() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let most = 8_000;
    write(folder.path(), most, 500);
    let files = files(&folder.path().join(FOLDER));
    assert!(files.len() >= 3 && files[0].0 > 1, "{files:?}");
    let bytes: u64 = files.iter().map(|(_, path)| fs::metadata(path).expect("there").len()).sum();
    assert!(bytes <= most && bytes > most / 2, "{bytes}");
    for (_, path) in &files {
        let first = Reading::new(vec![path.clone()]).next().expect("a record");
        assert!(matches!(first.body, Body::Run(_)), "{first:?}");
    }
    assert_eq!(records(folder.path()).last().map(|record| record.seq), Some(501));
    assert_eq!(write(folder.path(), most, 1), 501, "and is found again");
}

#[cfg(unix)]
#[test]
fn a_journal_that_was_deleted_begins_anew_with_its_run() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (mut journal, _) = Journal::open(folder.path(), 1 << 30).expect("written");
    let hub = Hub::new("a", 0, Instant::now());
    let sink = hub.sink(10);
    hub.tell(Body::Run(RunFacts::default()));
    journal.write(&sink.recv().expect("told"));
    fs::remove_dir_all(folder.path().join(FOLDER)).expect("removed");
    journal.sync();
    hub.tell(Body::Event(EventFacts::default()));
    journal.write(&sink.recv().expect("told"));
    let bodies: Vec<Body> = records(folder.path()).into_iter().map(|record| record.body).collect();
    assert!(matches!(&bodies[..], [Body::Run(_), Body::Event(_)]), "{bodies:?}");
    fs::remove_dir_all(folder.path()).expect("removed");
    journal.sync();
    assert!(!folder.path().exists() && journal.has_warned, "the data directory is not made");
}

#[test]
fn what_is_no_journal_has_no_records() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    assert!(files_at(folder.path()).is_err() && files_at(&folder.path().join("nothing")).is_err());
    let path = folder.path().join("image.png");
    fs::write(&path, [0xff; 3000]).expect("written");
    let mut reading = Reading::new(files_at(&path).expect("a file"));
    assert!(reading.next().is_none() && reading.unreadable == 1);
}

/// The file is there, and the disk had no room for its first line.
#[cfg(target_os = "linux")]
#[test]
fn a_file_that_began_on_a_full_disk_begins_with_its_run() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (mut journal, _) = Journal::open(folder.path(), 8_000).expect("written");
    let hub = Hub::new("a", 0, Instant::now());
    let sink = hub.sink(1000);
    hub.tell(Body::Run(RunFacts::default()));
    let text = "x".repeat(500);
    let next = || {
        hub.tell(Body::Event(EventFacts { text: text.clone(), ..EventFacts::default() }));
        sink.recv().expect("told")
    };
    journal.write(&next());
    while journal.number == 1 {
        journal.write(&next());
    }
    let second = path(&folder.path().join(FOLDER), 2);
    journal.file.set_len(0).expect("cut");
    (journal.length, journal.file) = (0, OpenOptions::new().append(true).open("/dev/full").expect("there"));
    journal.write(&next());
    assert_eq!(journal.lost, 1);
    journal.file = append(&second).expect("there");
    journal.write(&next());
    let bodies: Vec<Body> = Reading::new(vec![second]).map(|record| record.body).collect();
    assert!(matches!(&bodies[..], [Body::Run(_), Body::Event(_)]), "{bodies:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_costs_records_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (mut journal, _) = Journal::open(folder.path(), 1 << 30).expect("written");
    let good = journal.file.try_clone().expect("one more");
    let told = |seq: u64| {
        let hub = Hub::new("a", seq, Instant::now());
        let sink = hub.sink(1);
        hub.tell(Body::Run(RunFacts::default()));
        sink.recv().expect("told")
    };
    journal.write(&told(0));
    journal.file = OpenOptions::new().append(true).open("/dev/full").expect("there");
    (1..4).for_each(|seq| journal.write(&told(seq)));
    assert_eq!((journal.lost, journal.has_warned), (3, true));
    // What the disk had room for.
    good.try_clone().expect("one more").write_all(b"{\"v\":1,").expect("written");
    journal.file = good;
    journal.write(&told(4));
    assert_eq!((journal.lost, journal.has_warned), (0, false), "another full disk is told as well");
    let seqs: Vec<u64> = records(folder.path()).iter().map(|record| record.seq).collect();
    assert_eq!(seqs, [1, 5]);
    let text = fs::read_to_string(path(&folder.path().join(FOLDER), 1)).expect("text");
    assert!(text.lines().all(|line| Record::parse(line).is_some()), "{text}");
}

/// A process began the newest file a moment before it ended.
#[test]
fn what_is_remembered_does_not_end_where_a_file_was_begun() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let most = 40_000;
    write(folder.path(), most, 50);
    let (journal, _) = Journal::open(folder.path(), most).expect("free");
    let (whole, room) = (journal.length, journal.file_bytes_max());
    drop(journal);
    // So many more that the next file has few of them.
    let more = (room - whole) / (whole / 51) + 3;
    write(folder.path(), most, more);
    let folder_of_it = folder.path().join(FOLDER);
    assert_eq!(files(&folder_of_it).len(), 2);
    let newest = Reading::new(vec![path(&folder_of_it, 2)]).count() as u64;
    assert!((2..20).contains(&newest), "{newest}");
    let (journal, last) = Journal::open(folder.path(), most).expect("free");
    let seqs: Vec<u64> = journal.remembered().iter().map(|record| record.seq).collect();
    assert_eq!(seqs, (1..=last).collect::<Vec<u64>>());
}
