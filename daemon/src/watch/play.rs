//! Playing journals again: their records in the order of their wall clocks, at a speed.

use std::path::PathBuf;

use crate::observe::Record;
use crate::observe::journal::Reading;

/// Where a journal has nothing for longer than this, in seconds, the rest of the time is passed over: nobody was running.
const PAUSE_MAX: f64 = 10.0;

/// Journals that are played at once, on one clock.
#[derive(Debug, Default)]
pub(super) struct Player {
    tracks: Vec<Track>,
    /// The time up to which is played, in seconds since 1970.
    position: Option<f64>,
}

#[derive(Debug)]
struct Track {
    index: usize,
    reading: Reading,
    next: Option<Record>,
    is_over: bool,
}

impl Player {
    /// Plays the files of a journal as well.
    pub(super) fn add(&mut self, index: usize, files: Vec<PathBuf>) {
        let mut reading = Reading::new(files);
        let next = reading.next();
        self.tracks.push(Track { index, reading, next, is_over: false });
    }

    /// The records of so many more seconds, each with its source.
    pub(super) fn play(&mut self, seconds: f64) -> Vec<(usize, Record)> {
        let Some(first) = self.next_time() else { return Vec::new() };
        let position = self.position.get_or_insert(first);
        *position += seconds;
        // Clocks that were set back, and nights.
        if seconds.is_finite() && first - *position > PAUSE_MAX {
            *position = first;
        }
        let until = *position;
        let mut played = Vec::new();
        while let Some(track) = self.earliest().filter(|track| track.time() <= until) {
            let next = track.reading.next();
            played.extend(std::mem::replace(&mut track.next, next).map(|record| (track.index, record)));
        }
        if until.is_infinite() {
            self.position = None;
        }
        played
    }

    /// The sources that have come to their end since they were asked last.
    pub(super) fn over(&mut self) -> Vec<usize> {
        let mut over = Vec::new();
        for track in &mut self.tracks {
            if track.next.is_none() && !track.is_over {
                track.is_over = true;
                over.push(track.index);
            }
        }
        over
    }

    fn next_time(&mut self) -> Option<f64> {
        self.earliest().map(|track| track.time())
    }

    fn earliest(&mut self) -> Option<&mut Track> {
        let going = self.tracks.iter_mut().filter(|track| track.next.is_some());
        going.min_by(|one, other| one.time().total_cmp(&other.time()))
    }
}

impl Track {
    /// When its next record was made.
    fn time(&self) -> f64 {
        self.next.as_ref().map_or(f64::INFINITY, |record| record.t as f64 / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::record::{Body, VERSION};

    fn journal(folder: &std::path::Path, node: &str, seconds: &[i64]) -> Vec<PathBuf> {
        let record = |(seq, second): (usize, &i64)| Record {
            v: VERSION,
            seq: seq as u64 + 1,
            t: 1_000 * second,
            up: *second as f64,
            node: node.to_owned(),
            body: Body::Unknown,
        };
        let lines: String = seconds.iter().enumerate().map(|line| record(line).line() + "\n").collect();
        let path = folder.join(node);
        std::fs::write(&path, lines).expect("written");
        vec![path]
    }

    fn seconds(played: &[(usize, Record)]) -> Vec<i64> {
        played.iter().map(|(_, record)| record.t / 1000).collect()
    }

    #[test]
    fn records_come_when_their_time_has_come_whatever_journal_they_are_in() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let mut player = Player::default();
        player.add(0, journal(folder.path(), "a", &[100, 102, 104]));
        player.add(1, journal(folder.path(), "b", &[101, 103]));
        assert_eq!(seconds(&player.play(0.0)), [100]);
        assert_eq!(seconds(&player.play(2.0)), [101, 102]);
        assert!(player.over().is_empty());
        assert_eq!(seconds(&player.play(f64::INFINITY)), [103, 104]);
        assert_eq!(player.over(), [0, 1]);
        assert!(player.over().is_empty() && player.play(1.0).is_empty());
    }

    #[test]
    fn nobody_waits_for_a_night_or_a_clock_that_was_set_back() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let mut player = Player::default();
        player.add(0, journal(folder.path(), "a", &[100, 90_000, 400, 90_010]));
        assert_eq!(seconds(&player.play(0.0)), [100]);
        assert_eq!(seconds(&player.play(1.0)), [90_000, 400], "at once");
        assert!(player.play(9.0).is_empty());
        assert_eq!(seconds(&player.play(1.0)), [90_010]);
    }
}
