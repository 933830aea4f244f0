//! What members and the machines of a team say to each other.

use std::fmt::Debug;

use bincode::{Decode, Encode};
use murmur_protocol::message::{Chunks, Descriptor, KnownPeer, Propose, Standing};
use murmur_protocol::part::Part;
use murmur_protocol::shards::{ShardAnswer, ShardRequest};
use murmur_protocol::team::{FRAME_HEADER_BYTES, FrameHeader, StateHeader, TeamMessage};
use murmur_protocol::{Address, Message, PeerId, Profile, TransferHeader, codec};

pub(super) fn read(bytes: &[u8]) -> bool {
    let team = again::<TeamMessage>(bytes);
    if let Some(word) = &team {
        word.is_sound();
    }
    let frame = bytes.first_chunk::<FRAME_HEADER_BYTES>().and_then(|bytes| FrameHeader::decode(bytes).ok());
    if let Some(header) = &frame {
        assert_eq!(header.encode(), bytes[..FRAME_HEADER_BYTES]);
    }
    let words = [
        again::<Message>(bytes).is_some(),
        again::<TransferHeader>(bytes).is_some(),
        again::<StateHeader>(bytes).is_some(),
        again::<ShardRequest>(bytes).is_some(),
        again::<ShardAnswer>(bytes).is_some(),
    ];
    words.contains(&true) || team.is_some() || frame.is_some()
}

/// The word of these bytes, where they are one. Compared as text, for numbers may be none.
fn again<Word: Encode + Decode<()> + Debug>(bytes: &[u8]) -> Option<Word> {
    let word = codec::decode::<Word>(bytes).ok()?;
    let again = codec::decode::<Word>(&codec::encode(&word)).expect("our own encoding");
    assert_eq!(format!("{again:?}"), format!("{word:?}"));
    Some(word)
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let peer = PeerId::from_public_key([9; 32]);
    let addresses = vec![Address::new("/ip4/192.0.2.7/tcp/4001").expect("an address")];
    let known = KnownPeer { peer, addresses };
    let peers = vec![Descriptor { known, age_seconds: 7, profile: Profile::default() }];
    let standing = Standing { weight: 1.0, clip: 0.5, gamma: 0.1, progress: 12.5 };
    let proposal = Propose {
        exchange: 3,
        part: Part::MODEL,
        nonce: 5,
        bits: 8,
        reference: 0,
        standing,
        deadline_ms: 1_000,
        step_left_max_ms: 20,
    };
    vec![
        codec::encode(&Message::Shuffle { peers: peers.clone(), wants_reply: true }),
        codec::encode(&Message::Propose(proposal)),
        codec::encode(&Message::RequestState { request: 1, chunks: Chunks { first: 2, count: 3 } }),
        codec::encode(&Message::Prune { peers }),
        codec::encode(&TransferHeader::Merged { exchange: 3, digest: 4 }),
        codec::encode(&TransferHeader::State { request: 1, chunk: 2, progress: 12.5, layout: [8; 32] }),
        codec::encode(&TeamMessage::Ready { epoch: 1 }),
    ]
}
