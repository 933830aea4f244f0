//! What the machines of a team say to each other, and how it is carried: by a network, or by queues in tests.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use murmur_protocol::team::{CaptainEvent, FRAME_HEADER_BYTES, FrameHeader, Packet, StateHeader};
use murmur_protocol::{Payload, PeerId, TrainerOrder, codec};

/// Facts that may wait for a machine's thread. It takes microseconds for most; while it computes, streams wait here, of which
/// each side has a few under way.
const FACTS_MAX: usize = 1024;

/// One thing said.
#[derive(Clone, Debug, PartialEq)]
pub enum Word {
    /// For its machine.
    Packet(Packet),
    /// Bytes that mean nothing, to see how long they take; so many are to come back, at most [`ECHO_BYTES_MAX`].
    Probe(u32, Payload),
    /// Those that come back.
    Echo(Payload),
}

/// Bytes of an echo, at most.
pub const ECHO_BYTES_MAX: u32 = 1 << 24;

const MESSAGE: u8 = 0;
const FRAME: u8 = 1;
const STATE: u8 = 2;
const PROBE: u8 = 3;
const ECHO: u8 = 4;

impl Word {
    /// A header and a body, for the wire.
    pub fn to_parts(&self) -> (Vec<u8>, Payload) {
        match self {
            Word::Packet(Packet::Message(message)) => {
                ([&[MESSAGE], &codec::encode(message)[..]].concat(), Payload::default())
            }
            Word::Packet(Packet::Frame(frame)) => {
                let header = [&[FRAME][..], &frame.header().encode()].concat();
                (header, frame.stream.payload.clone())
            }
            Word::Packet(Packet::State(header, payload)) => {
                ([&[STATE], &codec::encode(header)[..]].concat(), payload.clone())
            }
            Word::Probe(echo, payload) => ([&[PROBE][..], &echo.to_le_bytes()].concat(), payload.clone()),
            Word::Echo(payload) => (vec![ECHO], payload.clone()),
        }
    }

    /// The word of a header and a body; `None` where they are none.
    pub fn from_parts(header: &[u8], body: Payload) -> Option<Word> {
        let (kind, rest) = header.split_first()?;
        match *kind {
            MESSAGE if body.is_empty() => {
                codec::decode(rest).ok().map(|message| Word::Packet(Packet::Message(message)))
            }
            FRAME => {
                let rest: &[u8; FRAME_HEADER_BYTES] = rest.try_into().ok()?;
                let header = FrameHeader::decode(rest).ok()?;
                (body.len() as u64 == u64::from(header.bytes)).then(|| Word::Packet(Packet::Frame(header.with(body))))
            }
            STATE => {
                let header: StateHeader = codec::decode(rest).ok()?;
                (body.len() as u64 == header.bytes).then_some(Word::Packet(Packet::State(header, body)))
            }
            PROBE => {
                let echo = u32::from_le_bytes(rest.try_into().ok()?);
                (echo <= ECHO_BYTES_MAX).then_some(Word::Probe(echo, body))
            }
            ECHO => rest.is_empty().then_some(Word::Echo(body)),
            _ => None,
        }
    }

    /// What a machine answers by itself; `None` for what its thread has to hear.
    pub fn echo(&self) -> Option<Word> {
        match self {
            Word::Probe(echo, _) => Some(Word::Echo(Payload::from(vec![0; *echo as usize]))),
            _ => None,
        }
    }
}

/// Carries words to other machines.
pub trait TeamWire: Send {
    /// Hands a word over without waiting. Where it cannot be taken, because the other machine does not keep up or is gone, the
    /// connection ends, which is told as [`Heard::Disconnected`].
    fn send(&mut self, to: PeerId, word: Word);

    /// Ends the connection to a machine.
    fn disconnect(&mut self, from: PeerId);

    /// The same, once all is sent that was handed over; and makes no connection to it any more.
    fn dismiss(&mut self, from: PeerId);
}

/// What a wire tells.
#[derive(Clone, Debug)]
pub enum Heard {
    /// A machine is there: one that is known to belong to the team.
    Connected(PeerId),
    /// It is gone.
    Disconnected(PeerId),
    /// It has said something.
    Said(PeerId, Word),
}

/// What a machine's thread is told.
#[derive(Debug)]
pub(super) enum Fact {
    /// By the wire.
    Heard(Heard),
    /// By the captain's owner.
    Owner(Box<CaptainEvent>),
    /// By a helper's owner: what it has to give has changed, or it wants to leave.
    Leave,
    /// By the core of a helper that is a member of the swarm: of which of its memberships, and what.
    Order(u64, Box<TrainerOrder>),
    /// That core has reached nobody.
    Apart,
    /// Nobody needs the thread any more.
    End,
}

/// Tells a machine's thread what the wire has heard. Clones tell the same one.
#[derive(Clone, Debug)]
pub struct Told(pub(super) SyncSender<Fact>);

/// Where a machine's thread hears it.
#[derive(Debug)]
pub struct Facts(pub(super) Receiver<Fact>);

/// The two ends.
pub fn facts() -> (Told, Facts) {
    let (told, facts) = sync_channel(FACTS_MAX);
    (Told(told), Facts(facts))
}

/// Why something was not taken.
#[derive(Debug)]
pub enum Untold {
    /// Later there may be room.
    Full(Heard),
    /// The machine's thread has ended.
    Ended,
}

impl Told {
    /// Hands it over without waiting.
    ///
    /// # Errors
    /// When so much waits already, or the thread has ended.
    pub fn try_tell(&self, heard: Heard) -> Result<(), Untold> {
        self.0.try_send(Fact::Heard(heard)).map_err(|error| match error {
            TrySendError::Full(Fact::Heard(heard)) => Untold::Full(heard),
            TrySendError::Full(_) | TrySendError::Disconnected(_) => Untold::Ended,
        })
    }

    /// The same, waiting for room. For threads that nobody waits for.
    ///
    /// # Errors
    /// When the thread has ended.
    pub fn tell(&self, heard: Heard) -> Result<(), Untold> {
        self.0.send(Fact::Heard(heard)).map_err(|_| Untold::Ended)
    }
}

#[cfg(test)]
mod tests {
    use murmur_protocol::team::{Direction, Frame, LayerRange, StateKind, Stream, TeamMessage};

    use super::*;

    #[test]
    fn a_word_comes_out_as_it_went_in_and_nothing_else_does() {
        let payload = Payload::from(vec![1, 2, 3]);
        let layers = LayerRange { first: 4, end: 5 };
        let header = StateHeader { epoch: 1, request: 2, kind: StateKind::Training, layers, revision: 3, bytes: 3 };
        let stream = Stream { rows: 1, payload: payload.clone() };
        let frame = Frame { epoch: 1, batch: 2, microbatch: 3, direction: Direction::Backward, stream };
        let release = Packet::Message(TeamMessage::Release { epoch: 7 });
        for word in [release, Packet::Frame(frame), Packet::State(header, payload)].map(Word::Packet) {
            let (header, body) = word.to_parts();
            assert_eq!(Word::from_parts(&header, body.clone()), Some(word.clone()));
            assert_eq!(Word::from_parts(&header[..header.len() - 1], body.clone()), None);
            assert_eq!(Word::from_parts(&header, Payload::from(vec![9])), None, "{word:?}");
            assert_eq!(Word::from_parts(&[7], body), None);
            assert_eq!(word.echo(), None);
        }
        let (header, body) = Word::Probe(5, Payload::from(vec![1; 9])).to_parts();
        let echo = Word::from_parts(&header, body).and_then(|word| word.echo()).expect("an echo");
        assert_eq!(echo, Word::Echo(Payload::from(vec![0; 5])));
        let (header, body) = echo.to_parts();
        assert_eq!(Word::from_parts(&header, body), Some(echo));
        let (header, body) = Word::Probe(ECHO_BYTES_MAX + 1, Payload::default()).to_parts();
        assert_eq!(Word::from_parts(&header, body), None, "an echo that would take too much memory");
    }
}
