//! What nodes say to each other once the handshake is done.
//!
//! A [`Message`] is small and typed and travels on a connection's control stream. What is as large as the model
//! travels as a transfer: a [`TransferHeader`], then a payload that never goes through the control codec.

use bincode::{Decode, Encode};

use crate::collective::{self, Epoch, SliceName, Word};
use crate::finish::FinishOrder;
use crate::part::Part;
use crate::peer::{Address, PeerId};
use crate::profile::Profile;
use crate::scheme::{Costs, SchemeOrder};

/// Names an exchange: unique among those of its starter, and growing.
pub type ExchangeNumber = u64;

/// A control message.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum Message {
    /// Where the sender and some other members can be reached.
    Shuffle {
        /// A random sample of the sender's view; at most [`PEERS_TOLD_MAX`](crate::bounds::PEERS_TOLD_MAX).
        peers: Vec<Descriptor>,
        /// Whether the receiver is to tell a sample of its own, with `wants_reply` false.
        wants_reply: bool,
    },
    /// Asks for an exchange. Repeated with the same number until it is answered.
    Propose(Propose),
    /// The responder is ready for the starter's scales and codes.
    Accept(Accept),
    /// The responder will not take part.
    Reject(Reject),
    /// Asks for some chunks of the model. A later request of the same peer takes the place of the one before; the same
    /// request with fewer chunks says that the others are not wanted any more.
    RequestState {
        /// Chosen by the asker, returned with each chunk.
        request: u64,
        /// The chunks that are asked for.
        chunks: Chunks,
    },
    /// The model cannot be had here for now.
    RefuseState {
        /// From the request.
        request: u64,
        /// When to ask again, in milliseconds.
        retry_after_ms: u32,
    },
    /// The sender leaves the swarm on purpose.
    Leave,
    /// The sender has connections enough and is about to close this one, as GossipSub prunes its mesh: nobody is to blame, and here
    /// are others.
    Prune {
        /// As in a shuffle.
        peers: Vec<Descriptor>,
    },
    /// The founder's order to finish the run, passed on.
    Finish(FinishOrder),
    /// Between members of a synchronous run: who takes part in the all-reduce.
    Synchronous(Word),
    /// Where members choose how they average: what it costs the sender.
    Costs(Costs),
    /// Where members choose how they average: what was decided, passed on.
    Scheme(SchemeOrder),
}

/// A member as one node describes it to another.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Descriptor {
    /// Who, and where.
    pub known: KnownPeer,
    /// How long ago somebody last heard from it directly, in seconds; zero where it describes itself. Rounded up, so
    /// that it never grows younger on its way.
    pub age_seconds: u32,
    /// What it said of itself, that long ago or longer.
    pub profile: Profile,
}

/// A member and its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct KnownPeer {
    /// The peer's id.
    pub peer: PeerId,
    /// Where; at most [`ADDRESSES_TOLD_MAX`](crate::bounds::ADDRESSES_TOLD_MAX).
    pub addresses: Vec<Address>,
}

/// Some chunks of a state, one after the other: each of [`STATE_CHUNK_VALUES`](crate::bounds::STATE_CHUNK_VALUES) values,
/// but for the last one of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Chunks {
    /// The first one.
    pub first: u32,
    /// How many; at least 1, at most [`STATE_CHUNKS_MAX`](crate::bounds::STATE_CHUNKS_MAX).
    pub count: u32,
}

/// Asks for an exchange.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Propose {
    /// Names the exchange.
    pub exchange: ExchangeNumber,
    /// What is averaged.
    pub part: Part,
    /// Seeds the dither that both partners add.
    pub nonce: u64,
    /// Bits of a code: the run's, or 16 in a first exchange and towards a part of the swarm that is far off; 1 on a link.
    pub bits: u8,
    /// Digest of the reference that the starter keeps of this link; 0 where it has none.
    pub reference: u64,
    /// How the starter stands.
    pub standing: Standing,
    /// The exchange is void after this long, in milliseconds.
    pub deadline_ms: u32,
    /// What may be left of the responder's step, in milliseconds; where more is, it declines. The largest number: it is waited for.
    pub step_left_max_ms: u32,
}

/// Ready for the starter's scales and codes.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Accept {
    /// From the proposal.
    pub exchange: ExchangeNumber,
    /// The starter's share of the joint weight, w_i / (w_i + w_j), as both will use it.
    pub starter_share: f32,
    /// As proposed, where the responder keeps the same reference; 0 where the starter is to send a new one.
    pub reference: u64,
    /// How the responder stands.
    pub standing: Standing,
}

/// How a node stands when an exchange begins.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode)]
pub struct Standing {
    /// w: tokens a second.
    pub weight: f32,
    /// τ: the longest correction that it lets in, as a Euclidean norm.
    pub clip: f32,
    /// The largest γ that it takes part with, 0 to 0.5; 0 asks for the distance alone. The smaller one of both counts.
    pub gamma: f32,
    /// Swarm progress, in steps.
    pub progress: f64,
}

/// Will not take part.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Reject {
    /// From the proposal.
    pub exchange: ExchangeNumber,
    /// Why it is rejected.
    pub reason: RejectReason,
    /// When to ask again, in milliseconds.
    pub retry_after_ms: u32,
}

/// Why a proposal is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum RejectReason {
    /// As many exchanges as it answers at a time are under way.
    Busy,
    /// It has no model yet.
    Joining,
    /// It is about to leave.
    Leaving,
    /// The proposal's values are out of range.
    Unacceptable,
    /// This exchange, or a later one, is over.
    Over,
    /// Its owner wants the network left alone for now: a day's budget is used up, or these are quiet hours.
    Resting,
    /// It does not hold the fragment.
    NotHeld,
}

/// What a transfer carries.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum TransferHeader {
    /// The scales of an exchange, from its starter, ahead of its codes: with them the responder encodes.
    Scales {
        /// The exchange's number, as its starter gave it.
        exchange: ExchangeNumber,
    },
    /// The starter's checks and codes.
    ProposalCodes {
        /// The exchange's number, as its starter gave it.
        exchange: ExchangeNumber,
    },
    /// The responder's checks and codes.
    ReplyCodes {
        /// The exchange's number, as its starter gave it.
        exchange: ExchangeNumber,
    },
    /// Nothing but the news that the responder has merged: now the starter may. (A transfer, for it is confirmed.)
    Merged {
        /// The exchange's number, as its starter gave it.
        exchange: ExchangeNumber,
        /// Of the integer differences, the mask and the terms: the starter drops the exchange where its own differs.
        digest: u64,
    },
    /// Some chunks of the model, one after the other, for a joiner: values as little-endian `f32`. How many the payload's
    /// length tells; at most [`STATE_PART_CHUNKS_MAX`](crate::bounds::STATE_PART_CHUNKS_MAX).
    State {
        /// From the request.
        request: u64,
        /// The first one.
        chunk: u32,
        /// Swarm progress of the model, in steps.
        progress: f64,
        /// Digest of the model's layout.
        layout: [u8; 32],
    },
    /// Slices of an all-reduce, as the run's [`SliceCodec`](crate::numerics::SliceCodec) writes them.
    Slices(SliceName),
    /// A replica for another member of a synchronous run, which has other bits or none.
    Replica {
        /// The epoch that it takes part in with it.
        epoch: Epoch,
        /// Names the replica.
        version: collective::Version,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;
    use crate::collective::{Announced, Members, Stalled};
    use crate::finish::Ending;
    use crate::fragments::Holding;
    use crate::handshake::{
        self, Answer, Credentials, Denial, Greeting, Hello, OtherVersion, Parties, Proof, Prover, Stamps,
    };
    use crate::manifest::RunId;
    use crate::profile::Name;
    use crate::scheme::{Comparison, Scheme};
    use crate::secret::Secret;

    fn standing() -> Standing {
        Standing { weight: 1000.0, clip: 0.5, gamma: 0.5, progress: 250.0 }
    }

    fn hexadecimal(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The wire format, fixed: a change of any of these bytes is a new [`crate::handshake::PROTOCOL_VERSION`].
    #[test]
    fn the_bytes_on_the_wire_have_not_changed() {
        let peer = PeerId::from_public_key([7; 32]);
        let address = Address::new("/ip4/127.0.0.1/tcp/1").expect("short");
        let known = KnownPeer { peer, addresses: vec![address.clone()] };
        let holding = Holding::of([1, 3]);
        let profile = Profile { name: Name::new("attic"), tokens_per_second: 1000.0, holding };
        let peers = vec![Descriptor { known, age_seconds: 60, profile }];
        let propose = Propose {
            exchange: 300,
            part: Part::MODEL,
            nonce: 5,
            bits: 8,
            reference: 6,
            standing: standing(),
            deadline_ms: 20_000,
            step_left_max_ms: 400,
        };
        let accept = Accept { exchange: 300, starter_share: 0.5, reference: 6, standing: standing() };
        let reject = Reject { exchange: 1, reason: RejectReason::Joining, retry_after_ms: 500 };
        let finish = FinishOrder { serial: 1, ending: Ending { from: 1.0, until: 2.0 }, signature: [9; 64] };
        let parties = Parties { dialer: peer, listener: peer, dialer_nonce: [1; 32], listener_nonce: [2; 32] };
        let closed = Credentials { run: RunId([4; 32]), secret: Some(Secret::from_bytes([5; 32])) };
        let open = Credentials { secret: None, ..closed.clone() };
        let proof = Some(Proof::new(&Secret::from_bytes([5; 32]), RunId([4; 32]), &parties, Prover::Dialer));
        let manifest = || "a".to_owned();
        let addresses = || vec![address.clone()];
        let epoch = Epoch { number: 3, leader: PeerId::from_public_key([8; 32]) };
        let at = collective::Version { operations: 7, epoch };
        let members: Members = [peer].into_iter().collect();
        let reaches = members.clone();
        let stalled = Stalled { epoch, members: members.clone(), version: Some(at), digest: 5, reaches };
        let announced = Announced { epoch, members: members.clone(), version: at, current: members.clone() };
        let reason = Comparison { members: 3, together: 1.5, alone: 1.0, worth: 2.0 };
        let state = TransferHeader::State { request: 1, chunk: 9, progress: 2.0, layout: [3; 32] };
        let encoded = [
            codec::encode(&Message::Shuffle { peers: peers.clone(), wants_reply: true }),
            codec::encode(&Message::Propose(propose)),
            codec::encode(&Message::Accept(accept)),
            codec::encode(&Message::Reject(reject)),
            codec::encode(&Message::RequestState { request: 1, chunks: Chunks { first: 2, count: 3 } }),
            codec::encode(&Message::RefuseState { request: 1, retry_after_ms: 2 }),
            codec::encode(&Message::Leave),
            codec::encode(&Message::Prune { peers }),
            codec::encode(&Message::Finish(finish)),
            codec::encode(&TransferHeader::Scales { exchange: 300 }),
            codec::encode(&TransferHeader::ProposalCodes { exchange: 300 }),
            codec::encode(&TransferHeader::ReplyCodes { exchange: 300 }),
            codec::encode(&TransferHeader::Merged { exchange: 300, digest: 1 }),
            codec::encode(&state),
            codec::encode(&Hello::new([1; 32])),
            codec::encode(&OtherVersion::default()),
            codec::encode(&handshake::challenge(&open, &parties, Stamps { received: 1, sent: 300 })),
            codec::encode(&handshake::challenge(&closed, &parties, Stamps::default())),
            codec::encode(&handshake::turn_away()),
            codec::encode(&Greeting::Join { proof: None, manifest: manifest(), addresses: addresses() }),
            codec::encode(&Greeting::Ask { proof }),
            codec::encode(&Greeting::Leave(Denial::NoSecret)),
            codec::encode(&Greeting::Enter { proof }),
            codec::encode(&Answer::Run { welcome: true, manifest: manifest(), addresses: addresses() }),
            codec::encode(&Answer::Denied(Denial::Closed)),
            codec::encode(&Answer::Entered),
            codec::encode(&Message::Synchronous(Word::Stalled(stalled))),
            codec::encode(&Message::Synchronous(Word::Announced(announced))),
            codec::encode(&Message::Synchronous(Word::Running { epoch, members, version: at })),
            codec::encode(&Message::Synchronous(Word::Ended(at))),
            codec::encode(&TransferHeader::Slices(SliceName { epoch, operation: 7, line: 2, digest: 300 })),
            codec::encode(&TransferHeader::Replica { epoch, version: at }),
            codec::encode(&Message::Costs(Costs { step_seconds: 0.5, uplink: 1e6, round_trip: 0.25, drifts: true })),
            codec::encode(&Message::Scheme(SchemeOrder { serial: 300, by: peer, scheme: Scheme::AllReduce, reason })),
        ];
        let lines: Vec<String> = encoded.iter().map(|bytes| hexadecimal(bytes)).collect();
        assert_eq!(lines, GOLDEN);
    }

    #[test]
    fn no_prefix_of_a_message_is_a_message() {
        let accept = Message::Accept(Accept { exchange: 9, starter_share: 0.5, reference: 0, standing: standing() });
        let bytes = codec::encode(&accept);
        assert_eq!(codec::decode::<Message>(&bytes), Ok(accept));
        for length in 0..bytes.len() {
            assert!(codec::decode::<Message>(&bytes[..length]).is_err(), "the first {length} bytes were accepted");
        }
    }

    const GOLDEN: [&str; 34] = [
        "0001070707070707070707070707070707070707070707070707070707070707070701142f6970342f3132372e302e302e312f7463702f313c0105617474696300007a440a01",
        "01fb2c0100000105080600007a440000003f0000003f0000000000406f40fb204efb9001",
        "02fb2c010000003f0600007a440000003f0000003f0000000000406f40",
        "030101fbf401",
        "04010203",
        "050102",
        "06",
        "0701070707070707070707070707070707070707070707070707070707070707070701142f6970342f3132372e302e302e312f7463702f313c0105617474696300007a440a",
        "0801000000000000f03f000000000000004009090909090909090909090909090909090909090909090909090909090909090909090909090909090909090909090909090909090909090909090909090909",
        "00fb2c01",
        "01fb2c01",
        "02fb2c01",
        "03fb2c0101",
        "04010900000000000000400303030303030303030303030303030303030303030303030303030303030303",
        "1000014030313031303130313031303130313031303130313031303130313031303130313031303130313031303130313031303130313031303130313031303130313031",
        "10000000",
        "100002020202020202020202020202020202020202020202020202020202020202020001fb2c01",
        "10000202020202020202020202020202020202020202020202020202020202020202012528ece7fd56c39e35126cbfd4d9180d5fd2c7d7d79b5a0bc354385a201a76700000",
        "1001",
        "0000016101142f6970342f3132372e302e302e312f7463702f31",
        "0101a2435fc136c46c12bd8027543331e39fcb7dbba05bbbb7ee6e0f606628f4e9b1",
        "0201",
        "0301a2435fc136c46c12bd8027543331e39fcb7dbba05bbbb7ee6e0f606628f4e9b1",
        "0001016101142f6970342f3132372e302e302e312f7463702f31",
        "0100",
        "02",
        "0900030808080808080808080808080808080808080808080808080808080808080808010707070707070707070707070707070707070707070707070707070707070707010703080808080808080808080808080808080808080808080808080808080808080805010707070707070707070707070707070707070707070707070707070707070707",
        "090103080808080808080808080808080808080808080808080808080808080808080801070707070707070707070707070707070707070707070707070707070707070707030808080808080808080808080808080808080808080808080808080808080808010707070707070707070707070707070707070707070707070707070707070707",
        "090203080808080808080808080808080808080808080808080808080808080808080801070707070707070707070707070707070707070707070707070707070707070707030808080808080808080808080808080808080808080808080808080808080808",
        "090307030808080808080808080808080808080808080808080808080808080808080808",
        "050308080808080808080808080808080808080808080808080808080808080808080702fb2c01",
        "0603080808080808080808080808080808080808080808080808080808080808080807030808080808080808080808080808080808080808080808080808080808080808",
        "0a0000003f002474490000803e01",
        "0bfb2c01070707070707070707070707070707070707070707070707070707070707070701030000c03f0000803f00000040",
    ];
}
