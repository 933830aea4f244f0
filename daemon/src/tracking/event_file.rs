//! TensorBoard's event files: protocol buffers in the framing of TFRecord.
//!
//! A file is records, one after the other. All integers of the framing are little-endian:
//! ```text
//! u64 length · u32 masked checksum of those 8 bytes · data · u32 masked checksum of the data
//! ```
//! The checksum is CRC-32C (Castagnoli's polynomial; RFC 3720, appendix B.4), masked as `rotate_right(crc, 15) + 0xa282ead8`, so
//! that a checksum of data which holds checksums keeps its strength. Framing: TensorFlow's guide "TFRecord and tf.train.Example";
//! the messages `Event`, `Summary`, `SessionLog` and `TensorProto` are those of TensorBoard's `compat/proto`, with the field
//! numbers that are named below. A reader leaves out an unfinished record at the end.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What the first record of every file says.
const FILE_VERSION: &str = "brain.Event:2";

/// `SessionLog.SessionStatus.START`.
const SESSION_START: u64 = 1;

/// `DataType.DT_STRING`.
const DT_STRING: u64 = 7;

/// An event file that is being written.
#[derive(Debug)]
pub struct EventFile {
    file: File,
    path: PathBuf,
    /// Bytes that are whole records.
    length: u64,
    /// Whether a part of a record may stand behind the whole ones.
    is_torn: bool,
}

impl EventFile {
    /// Begins a file in a folder, which is made where it is missing. `wall_time` is in seconds since 1970. Readers take the
    /// files of a folder in the order of their names, so the new one is named to be the last, also where the clock was set
    /// back.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn create(folder: &Path, wall_time: f64, node: &str) -> io::Result<EventFile> {
        std::fs::create_dir_all(folder)?;
        let before = std::fs::read_dir(folder)?.flatten().filter_map(|entry| began(entry.file_name().to_str()?)).max();
        let begins = before.map_or(0, |last| last + 1).max(wall_time as u64);
        let path = folder.join(format!("events.out.tfevents.{begins:010}.{node}.{}.0", std::process::id()));
        let file = OpenOptions::new().create_new(true).append(true).open(&path)?;
        let mut file = EventFile { file, path, length: 0, is_torn: false };
        let mut event = Event::new(wall_time, 0);
        event.0.text(3, FILE_VERSION);
        file.write(&event)?;
        Ok(file)
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends an event, in one write, so that a reader sees whole ones.
    ///
    /// # Errors
    /// When the disk is full, say. The next event may be tried all the same.
    pub fn write(&mut self, event: &Event) -> io::Result<()> {
        if self.is_torn {
            self.file.set_len(self.length)?;
        }
        let record = framed(&event.0.0);
        self.is_torn = true;
        self.file.write_all(&record)?;
        self.is_torn = false;
        self.length += record.len() as u64;
        Ok(())
    }
}

/// The number in a file's name: when it was begun, in seconds since 1970.
fn began(name: &str) -> Option<u64> {
    name.strip_prefix("events.out.tfevents.")?.split('.').next()?.parse().ok()
}

/// A record around some data.
fn framed(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked_checksum(&length), data, &masked_checksum(data)].concat()
}

fn masked_checksum(data: &[u8]) -> [u8; 4] {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// What is told at one moment: `Event`.
#[derive(Clone, Debug, PartialEq)]
pub struct Event(Message);

impl Event {
    /// At a time, in seconds since 1970, and at a number of own steps.
    fn new(wall_time: f64, step: u64) -> Event {
        let mut event = Message::default();
        event.double(1, wall_time);
        event.number(2, step);
        Event(event)
    }

    /// A process begins, and goes on from so many steps: readers forget what the folder's files say of that step and later
    /// ones, which are done again.
    pub fn session_start(wall_time: f64, step: u64) -> Event {
        let mut event = Event::new(wall_time, step);
        let mut log = Message::default();
        log.number(1, SESSION_START);
        event.0.message(7, &log);
        event
    }

    /// Numbers by tag. Without any it tells nothing.
    pub fn scalars(wall_time: f64, step: u64, scalars: &[(&str, f64)]) -> Event {
        let mut summary = Message::default();
        for (tag, number) in scalars {
            let mut value = Message::default();
            value.text(1, tag);
            value.float(2, *number as f32);
            summary.message(1, &value);
        }
        let mut event = Event::new(wall_time, step);
        event.0.message(5, &summary);
        event
    }

    /// A text in Markdown.
    pub fn text(wall_time: f64, step: u64, tag: &str, markdown: &str) -> Event {
        let (mut dimension, mut shape, mut tensor) = (Message::default(), Message::default(), Message::default());
        dimension.number(1, 1);
        shape.message(2, &dimension);
        tensor.number(1, DT_STRING);
        tensor.message(2, &shape);
        tensor.text(8, markdown);
        let (mut plugin, mut metadata, mut value) = (Message::default(), Message::default(), Message::default());
        plugin.text(1, "text");
        metadata.message(1, &plugin);
        value.text(1, tag);
        value.message(8, &tensor);
        value.message(9, &metadata);
        let mut summary = Message::default();
        summary.message(1, &value);
        let mut event = Event::new(wall_time, step);
        event.0.message(5, &summary);
        event
    }
}

/// A message of protocol buffers, as far as events need them: each field is a number with its wire type, then the value
/// (protobuf.dev, "Encoding").
#[derive(Clone, Debug, Default, PartialEq)]
struct Message(Vec<u8>);

impl Message {
    fn number(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    fn double(&mut self, field: u64, value: f64) {
        self.varint(field << 3 | 1);
        self.0.extend(value.to_le_bytes());
    }

    fn float(&mut self, field: u64, value: f32) {
        self.varint(field << 3 | 5);
        self.0.extend(value.to_le_bytes());
    }

    fn text(&mut self, field: u64, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn message(&mut self, field: u64, message: &Message) {
        self.bytes(field, &message.0);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    /// Seven bits a byte, the lowest first; the top bit says that more follow.
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_rfc_3720() {
        // Appendix B.4: 32 bytes of zeros, of ones, and counting up; and the usual check value of CRC-32C.
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c::crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c::crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    }

    /// These are the bytes with which every event file of TensorFlow begins, but for the time.
    #[test]
    fn the_first_record_is_byte_for_byte_what_tensorflow_writes() {
        let mut event = Event::new(1.0, 0);
        event.0.text(3, FILE_VERSION);
        // `step` is written although it is 0; leaving it out, as protoc does, says the same.
        let data = b"\x09\0\0\0\0\0\0\xf0\x3f\x10\0\x1a\x0dbrain.Event:2";
        assert_eq!(event.0.0, data);
        let record = framed(data);
        assert_eq!(record[..8], 26_u64.to_le_bytes());
        // By another implementation, bit by bit.
        let bitwise = |data: &[u8]| {
            let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
            let crc = data.iter().fold(!0_u32, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)));
            ((!crc).rotate_right(15).wrapping_add(0xa282_ead8)).to_le_bytes()
        };
        assert_eq!((&record[8..12], &record[38..]), (&bitwise(&record[..8])[..], &bitwise(data)[..]));
        assert_eq!(record[12..38], data[..]);
        // TensorFlow's own frame around 24 bytes, as its files begin: 18 00 … 00, then this.
        assert_eq!(masked_checksum(&24_u64.to_le_bytes()), [0xa3, 0x7f, 0x4b, 0x22]);
    }

    #[test]
    fn events_have_the_fields_of_their_messages() {
        let scalar = Event::scalars(0.0, 300, &[("a", 1.5)]);
        let expected = b"\x09\0\0\0\0\0\0\0\0\x10\xac\x02\x2a\x0a\x0a\x08\x0a\x01a\x15\0\0\xc0\x3f";
        assert_eq!(scalar.0.0, expected);
        let start = Event::session_start(0.0, 1);
        assert_eq!(start.0.0, b"\x09\0\0\0\0\0\0\0\0\x10\x01\x3a\x02\x08\x01");
        let text = Event::text(0.0, 0, "t", "m");
        let tensor = b"\x42\x0b\x08\x07\x12\x04\x12\x02\x08\x01\x42\x01m";
        let value = [&b"\x0a\x01t"[..], tensor, b"\x4a\x08\x0a\x06\x0a\x04text"].concat();
        let begin =
            [&b"\x09\0\0\0\0\0\0\0\0\x10\0\x2a"[..], &[value.len() as u8 + 2, 0x0a, value.len() as u8]].concat();
        assert_eq!(text.0.0, [begin, value].concat());
    }

    #[test]
    fn a_new_file_comes_last_also_where_the_clock_was_set_back() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let name = |file: EventFile| file.path().file_name().expect("a name").to_owned();
        let first = name(EventFile::create(folder.path(), 2e9, "n").expect("written"));
        let second = name(EventFile::create(folder.path(), 1e9, "n").expect("written"));
        let third = name(EventFile::create(folder.path(), 1e9, "n").expect("written"));
        assert!(first < second && second < third, "{first:?} {second:?} {third:?}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_leaves_whole_records() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let mut file = EventFile::create(folder.path(), 1.0, "n").expect("written");
        let event = Event::scalars(1.0, 1, &[("a", 1.0)]);
        file.write(&event).expect("written");
        let good = std::mem::replace(&mut file.file, OpenOptions::new().append(true).open("/dev/full").expect("there"));
        assert!(file.write(&event).is_err() && file.is_torn);
        (&good).write_all(b"what the disk had room for").expect("written");
        file.file = good;
        file.write(&event).expect("written");
        let whole = 2 * framed(&event.0.0).len() as u64 + 12 + 26 + 4;
        assert_eq!(std::fs::metadata(file.path()).expect("there").len(), whole);
    }
}
