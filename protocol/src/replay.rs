//! A recording of one node: the events that it was told, when, and what it decided; and the check that the same events lead to
//! the same decisions again. So a bug that was seen on a machine is looked at as a simulated one is.
//!
//! A [`Node`] is deterministic, so its configuration, its seed and its events are all that decides. What is as large as the model
//! is not recorded, for the node never looks inside: a payload is its length, a worker's result what the node reads of it. Of each
//! effect a digest is kept, in which such bulk counts by its length as well.
//!
//! ```text
//! "murmur core 1\n" | seal | length | beginning | seal | length | entry | seal | length | entry …
//! ```
//! A seal is four bytes of BLAKE3 over the seal before and what follows, so that a changed, lost or moved entry is found where it
//! is. Lengths and seals are little-endian; the rest is bincode. Recordings hold ids and addresses of peers and the node's seed,
//! but no key, ticket or membership secret: no event carries one.

mod effect;

use std::sync::Arc;
use std::time::Duration;

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use bincode::{Decode, Encode};

use crate::config::{Bootstrap, Config, Start};
use crate::effect::Effect;
use crate::event::{Event, TrainingReport};
use crate::finish::{FinishOrder, RunEnd};
use crate::fragments::Holding;
use crate::handshake::PROTOCOL_VERSION;
use crate::layout::ModelLayout;
use crate::manifest::RunManifest;
use crate::message::KnownPeer;
use crate::node::Node;
use crate::numerics::contribution_values;
use crate::peer::{Address, PeerId};
use crate::profile::Name;
use crate::stand_ins::StandIns;
use crate::time::Time;
pub use effect::{digest, outline};

/// How every recording begins.
const MAGIC: &[u8] = b"murmur core 1\n";

/// Of a seal, and of a length.
const WORD: usize = 4;

/// The longest beginning or entry, in bytes: a layout of some ten thousand tensors.
const PIECE_BYTES_MAX: usize = 4 << 20;

/// Effects that are told in words where a decision differs.
const SHOWN_MAX: usize = 20;

type Format = Configuration<LittleEndian, Varint, Limit<PIECE_BYTES_MAX>>;
const FORMAT: Format = bincode::config::standard().with_limit::<PIECE_BYTES_MAX>();

/// Why a file cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// Something else.
    #[error("it is no recording of a node")]
    Foreign,
    /// Another version decides otherwise, and nobody could say whether that is a mistake.
    #[error("it was recorded by murmur {theirs}, and this is murmur {ours}")]
    OtherVersion {
        /// That wrote it.
        theirs: String,
        /// That reads it.
        ours: String,
    },
    /// A byte is not what was written.
    #[error("it is damaged {}", place(*entry))]
    Damaged {
        /// The event, from 1; 0 is what stands before the first.
        entry: u64,
    },
}

fn place(entry: u64) -> String {
    if entry == 0 { "before its first event".to_owned() } else { format!("at event {entry}") }
}

/// What came of a check.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// Events that were replayed; where a decision differs, the last of them is the one.
    pub events: u64,
    /// Decisions that are the same.
    pub effects: u64,
    /// When the last of them happened.
    pub time: Time,
    /// How the recording ends.
    pub ending: Ending,
    /// The first decision that differs.
    pub difference: Option<Difference>,
}

/// How a recording ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Ending {
    /// The node has left.
    Whole,
    /// It had reached the size that it may have.
    Full,
    /// The disk was slower than the node.
    Overtaken,
    /// Without a word: the process was killed, or still runs.
    BrokenOff,
}

/// A decision that differs.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The event, from 1; 0 is the node's making.
    pub entry: u64,
    /// When it happened.
    pub time: Time,
    /// What was told, in words; of payloads and models only the lengths are true.
    pub event: String,
    /// The first effect of the event that differs, from 1; 0 where only the node's next deadline does.
    pub effect: usize,
    /// How many effects the event had then.
    pub recorded: usize,
    /// What the node decides now, in words; at most twenty.
    pub now: Vec<String>,
}

/// All that decides before the first event.
#[derive(Encode, Decode)]
struct Beginning {
    version: String,
    wire: u32,
    seed: u64,
    /// When the node was made, in nanoseconds.
    made: u64,
    me: PeerId,
    manifest: String,
    /// Name and shape of each tensor.
    layout: Vec<(String, Vec<u64>)>,
    name: Option<Name>,
    order: Option<FinishOrder>,
    has_model: bool,
    training: TrainingReport,
    bootstrap: Vec<(Option<PeerId>, Address)>,
    remembered: Vec<KnownPeer>,
    first_number: u64,
    state_chunk: u64,
    upload_bytes_per_second: Option<f64>,
    holding: Holding,
    /// In nanoseconds.
    leaving_max: u64,
}

#[derive(Encode, Decode)]
#[allow(clippy::large_enum_variant)] // there is one at a time
enum Entry {
    /// An event at a time in nanoseconds, the digests of its effects, and the node's deadline after them.
    Event {
        now: u64,
        /// None where the node was made.
        told: Option<Told>,
        effects: Vec<u32>,
        deadline: Option<u64>,
    },
    End(Ending),
}

/// Turns what happens to a node into the bytes of a recording. It writes nothing by itself.
#[derive(Clone, Debug)]
pub struct Recording {
    seal: u32,
}

impl Recording {
    /// A recording of the node that these make, and its first bytes. `version` is that of the program.
    pub fn begin(
        version: &str,
        manifest: &RunManifest,
        config: &Config,
        (me, layout, seed, made): (PeerId, &ModelLayout, u64, Time),
    ) -> (Recording, Vec<u8>) {
        let dimensions = |shape: &[usize]| shape.iter().map(|size| *size as u64).collect();
        let beginning = Beginning {
            version: version.to_owned(),
            wire: PROTOCOL_VERSION,
            seed,
            made: nanoseconds(made),
            me,
            manifest: manifest.canonical_text(),
            layout: layout.tensors().iter().map(|tensor| (tensor.name.clone(), dimensions(&tensor.shape))).collect(),
            name: config.name.clone(),
            order: config.end.order.clone(),
            has_model: config.start == Start::WithModel,
            training: config.training,
            bootstrap: config.bootstrap.iter().map(|first| (first.peer, first.address.clone())).collect(),
            remembered: config.remembered.clone(),
            first_number: config.first_number,
            state_chunk: config.state_chunk as u64,
            upload_bytes_per_second: config.upload_bytes_per_second,
            holding: config.holding,
            leaving_max: u64::try_from(config.leaving_max.as_nanos()).unwrap_or(u64::MAX),
        };
        let mut recording = Recording { seal: 0 };
        let mut bytes = MAGIC.to_vec();
        bytes.extend(recording.piece(&beginning));
        (recording, bytes)
    }

    /// The bytes of an event, or of the node's making where there is none: its time, the digests of its effects in their
    /// order, and the deadline of the node after them.
    pub fn event(&mut self, now: Time, event: Option<Told>, effects: Vec<u32>, deadline: Option<Time>) -> Vec<u8> {
        let (now, deadline) = (nanoseconds(now), deadline.map(nanoseconds));
        self.piece(&Entry::Event { now, told: event, effects, deadline })
    }

    /// The last bytes.
    pub fn end(&mut self, ending: Ending) -> Vec<u8> {
        self.piece(&Entry::End(ending))
    }

    fn piece(&mut self, what: &impl Encode) -> Vec<u8> {
        let body = bincode::encode_to_vec(what, FORMAT).expect("numbers, texts and lists of them");
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes();
        self.seal = seal(self.seal, length, &body);
        [&self.seal.to_le_bytes()[..], &length, &body].concat()
    }
}

/// The bytes of an event, without what is as large as the model.
#[derive(Clone, Debug, Encode, Decode)]
pub struct Told(Vec<u8>);

impl Told {
    fn event(&self, stand_ins: &StandIns) -> Result<Event, ()> {
        let event = bincode::decode_from_slice_with_context(&self.0, FORMAT, stand_ins.clone());
        event.map(|(event, _)| event).map_err(drop)
    }
}

/// What of an event is recorded.
pub fn told(event: &Event) -> Told {
    Told(bincode::encode_to_vec(event, FORMAT).expect("numbers, texts and lists of them"))
}

/// Replays a recording: makes the same node, tells it the same events at the same times and compares what it decides.
///
/// # Errors
/// When it is none, of another version, or damaged; what stands before the damage has led to the same decisions.
pub fn check(bytes: &[u8], version: &str) -> Result<Checked, ReplayError> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(ReplayError::Foreign)?;
    let mut pieces = Pieces { rest, seal: 0 };
    let damaged = |entry| ReplayError::Damaged { entry };
    let beginning: Beginning = pieces.next().map_err(|()| damaged(0))?.ok_or(damaged(0))?;
    let (ours, theirs) = (named(version, PROTOCOL_VERSION), named(&beginning.version, beginning.wire));
    if ours != theirs {
        return Err(ReplayError::OtherVersion { theirs, ours });
    }
    let (mut node, stand_ins) = beginning.node().ok_or(damaged(0))?;
    let mut checked = Checked { events: 0, effects: 0, time: Time::ZERO, ending: Ending::BrokenOff, difference: None };
    for number in 0.. {
        let (now, told, effects, deadline) = match pieces.next().map_err(|()| damaged(number))? {
            None => break,
            Some(Entry::End(ending)) => {
                checked.ending = ending;
                break;
            }
            Some(Entry::Event { now, told, effects, deadline }) => (now, told, effects, deadline),
        };
        checked.time = time(now);
        checked.events = number;
        let event = told.map(|told| told.event(&stand_ins)).transpose().map_err(|()| damaged(number))?;
        if let Some(event) = event.clone() {
            node.handle(checked.time, event);
        }
        let decided: Vec<Effect> = std::iter::from_fn(|| node.poll_effect()).collect();
        let same = decided.iter().zip(&effects).take_while(|(now, then)| digest(now) == **then).count();
        checked.effects += same as u64;
        let is_same = same == decided.len() && same == effects.len();
        if !is_same || node.next_deadline() != deadline.map(time) {
            let shown = decided.iter().take(SHOWN_MAX).map(outline).collect();
            checked.difference = Some(Difference {
                entry: number,
                time: checked.time,
                event: event.map_or_else(|| "the node is made".to_owned(), |event| format!("{event:?}")),
                effect: if is_same { 0 } else { same + 1 },
                recorded: effects.len(),
                now: shown,
            });
            break;
        }
    }
    Ok(checked)
}

fn nanoseconds(time: Time) -> u64 {
    u64::try_from(time.since_start().as_nanos()).unwrap_or(u64::MAX)
}

fn time(nanoseconds: u64) -> Time {
    Time::from_start(Duration::from_nanos(nanoseconds))
}

fn named(version: &str, wire: u32) -> String {
    format!("{version} (wire {wire})")
}

impl Beginning {
    fn node(self) -> Option<(Node, StandIns)> {
        let manifest = RunManifest::from_text(&self.manifest).ok()?;
        let shape = |sizes: Vec<u64>| sizes.into_iter().map(|size| usize::try_from(size).ok()).collect::<Option<_>>();
        let tensors =
            self.layout.into_iter().map(|(name, sizes)| Some((name, shape(sizes)?))).collect::<Option<Vec<_>>>()?;
        let layout = Arc::new(ModelLayout::in_order(tensors));
        let stand_ins = StandIns::new(contribution_values(layout.parameters(), manifest.table.weighs_members()));
        let config = Config {
            name: self.name,
            gossip: manifest.gossip.clone(),
            synchronous: manifest.synchronous.clone(),
            weighs_members: manifest.table.weighs_members(),
            end: RunEnd { order: self.order, ..RunEnd::of(&manifest) },
            start: if self.has_model { Start::WithModel } else { Start::FromPeer },
            training: self.training,
            bootstrap: self.bootstrap.into_iter().map(|(peer, address)| Bootstrap { peer, address }).collect(),
            remembered: self.remembered,
            first_number: self.first_number,
            state_chunk: usize::try_from(self.state_chunk).ok()?.max(1),
            upload_bytes_per_second: self.upload_bytes_per_second,
            holding: self.holding,
            leaving_max: Duration::from_nanos(self.leaving_max),
        };
        Some((Node::new(config, self.me, layout, self.seed, time(self.made)), stand_ins))
    }
}

struct Pieces<'a> {
    rest: &'a [u8],
    seal: u32,
}

impl Pieces<'_> {
    /// The next one; none at the end, also where a last one was not written whole.
    fn next<Piece: Decode<()>>(&mut self) -> Result<Option<Piece>, ()> {
        let Some((head, rest)) = self.rest.split_first_chunk::<{ 2 * WORD }>() else { return Ok(None) };
        let given = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let length: [u8; WORD] = head[WORD..].try_into().map_err(drop)?;
        let bytes = u32::from_le_bytes(length) as usize;
        if bytes > PIECE_BYTES_MAX {
            return Err(());
        }
        let Some((body, rest)) = rest.split_at_checked(bytes) else { return Ok(None) };
        if seal(self.seal, length, body) != given {
            return Err(());
        }
        let (piece, read) = bincode::decode_from_slice(body, FORMAT).map_err(drop)?;
        if read != body.len() {
            return Err(());
        }
        (self.rest, self.seal) = (rest, given);
        Ok(Some(piece))
    }
}

fn seal(before: u32, length: [u8; WORD], body: &[u8]) -> u32 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&before.to_le_bytes()).update(&length).update(body);
    let hash = *hasher.finalize().as_bytes();
    u32::from_le_bytes([hash[0], hash[1], hash[2], hash[3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::TrainingReport;

    const VERSION: &str = "0.1.0";

    /// A node that hears of a peer, asks it for exchanges, gets no answer, and loses it; and where each piece begins.
    fn story() -> (Vec<u8>, Vec<usize>) {
        let manifest = RunManifest::default();
        let config = Config { first_number: 9, ..Config::founder(&manifest) };
        let layout = Arc::new(ModelLayout::new([("weight".to_owned(), vec![16, 32])]));
        let (me, peer) = (PeerId::from_public_key([1; 32]), PeerId::from_public_key([7; 32]));
        let (mut recording, mut bytes) = Recording::begin(VERSION, &manifest, &config, (me, &layout, 42, Time::ZERO));
        let mut starts = vec![MAGIC.len()];
        let mut node = Node::new(config, me, layout, 42, Time::ZERO);
        let mut now = Time::ZERO;
        let mut write = |now: Time, said: Option<Told>, node: &mut Node| {
            let digests = std::iter::from_fn(|| node.poll_effect()).map(|effect| digest(&effect)).collect();
            starts.push(bytes.len());
            bytes.extend(recording.event(now, said, digests, node.next_deadline()));
        };
        write(now, None, &mut node);
        for turn in 0..60_u64 {
            now = node.next_deadline().filter(|_| turn % 2 == 1).unwrap_or(now + Duration::from_millis(300)).max(now);
            let report =
                TrainingReport { steps: turn, progress: turn as f64, tokens_per_second: 9.5, ..Default::default() };
            let event = match turn {
                0 => Event::PeerConnected { peer, addresses: Vec::new() },
                50 => Event::PeerDisconnected { peer },
                _ if turn % 2 == 1 => Event::TimePassed,
                _ => Event::StepsCompleted(report),
            };
            let said = told(&event);
            node.handle(now, event);
            write(now, Some(said), &mut node);
        }
        let end = recording.end(Ending::Whole);
        starts.push(bytes.len());
        bytes.extend(end);
        (bytes, starts)
    }

    #[test]
    fn a_story_is_replayed_to_its_end() {
        let (bytes, _) = story();
        let checked = check(&bytes, VERSION).expect("whole");
        assert_eq!((checked.events, checked.ending, checked.difference), (60, Ending::Whole, None));
        assert!(checked.effects > 10, "{}", checked.effects);
    }

    #[test]
    fn a_changed_byte_is_found_at_its_event() {
        let (bytes, starts) = story();
        for place in (0..bytes.len()).step_by(7) {
            let mut changed = bytes.clone();
            changed[place] ^= 0x10;
            // The beginning is piece 0, the node's making 1, the first event 2.
            let piece = starts.iter().filter(|start| **start <= place).count().saturating_sub(1) as u64;
            let entry = piece.saturating_sub(1);
            match check(&changed, VERSION) {
                Err(ReplayError::Foreign) => assert!(place < MAGIC.len(), "{place}"),
                Err(ReplayError::Damaged { entry: found }) => assert_eq!(found, entry, "{place}"),
                // A length beyond the end looks like a recording that was not written whole.
                Ok(checked) => {
                    assert_eq!(
                        (checked.ending, checked.events),
                        (Ending::BrokenOff, entry.saturating_sub(1)),
                        "{place}"
                    );
                }
                Err(error) => panic!("{place}: {error}"),
            }
        }
    }

    #[test]
    fn another_decision_is_found_at_its_event() {
        let (bytes, _) = story();
        let mut pieces = Pieces { rest: bytes.strip_prefix(MAGIC).expect("ours"), seal: 0 };
        let beginning: Beginning = pieces.next().expect("sound").expect("there");
        let mut entries = Vec::new();
        while let Some(entry) = pieces.next::<Entry>().expect("sound") {
            entries.push(entry);
        }
        // The recording with these effects of one event, and this much added to the deadline after it.
        let with = |place: usize, effects: &[u32], later: u64| {
            let mut recording = Recording { seal: 0 };
            let mut changed = MAGIC.to_vec();
            changed.extend(recording.piece(&beginning));
            for (index, entry) in entries.iter().enumerate() {
                let Entry::Event { now, told, effects: same, deadline } = entry else { continue };
                let (effects, later) = if index == place { (effects.to_vec(), later) } else { (same.clone(), 0) };
                let deadline = deadline.map(|deadline| deadline + later);
                changed.extend(recording.piece(&Entry::Event { now: *now, told: told.clone(), effects, deadline }));
            }
            check(&changed, VERSION).expect("sealed anew").difference
        };
        let of = |index: usize| match &entries[index] {
            Entry::Event { effects, .. } => effects.clone(),
            Entry::End(_) => Vec::new(),
        };
        let busy = (20..60).find(|index| !of(*index).is_empty()).expect("it decides something");
        let effects = of(busy);
        assert_eq!(with(busy, &effects, 0), None);
        let other = [&[effects[0] ^ 1], &effects[1..]].concat();
        let more = [&effects[..], &[3]].concat();
        let fewer = &effects[..effects.len() - 1];
        for (recorded, later, effect) in
            [(&other[..], 0, 1), (&more, 0, effects.len() + 1), (fewer, 0, effects.len()), (&effects, 1, 0)]
        {
            let difference = with(busy, recorded, later).expect("it differs");
            assert_eq!((difference.entry, difference.effect), (busy as u64, effect), "{difference:?}");
            assert!(!difference.event.is_empty() && difference.now.len() == effects.len(), "{difference:?}");
        }
    }

    #[test]
    fn another_version_and_another_file_are_said() {
        let (bytes, starts) = story();
        let error = check(&bytes, "0.2.0").expect_err("another version").to_string();
        assert!(error.starts_with("it was recorded by murmur 0.1.0 (wire"), "{error}");
        assert_eq!(check(b"{\"v\":1}\n", VERSION), Err(ReplayError::Foreign));
        assert_eq!(check(MAGIC, VERSION), Err(ReplayError::Damaged { entry: 0 }));
        // A process that was killed.
        let torn = check(&bytes[..starts[30] + 5], VERSION).expect("what is whole is replayed");
        assert_eq!((torn.ending, torn.events, torn.difference), (Ending::BrokenOff, 28, None));
    }
}
