//! The four messages of a handshake.
//!
//! The first one has the form that it had in version 2, and so has the reply to one of another version: however the rest
//! changes, nodes of different versions can tell each other so.

use bincode::{Decode, Encode};

use super::clock::Stamps;
use super::proof::{Nonce, Proof};
use super::{Denial, PROTOCOL_VERSION, Refusal};
use crate::codec;
use crate::peer::Address;

/// The dialer's first message. Construct it with [`new`](Self::new).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Hello {
    version: u32,
    /// Version 2 had its manifest here. `None` makes such a node answer with its own version.
    manifest: Option<String>,
    /// Version 2 had addresses here. One entry: the nonce as hexadecimal digits.
    nonce: Vec<String>,
}

impl Hello {
    /// A hello of this version.
    pub fn new(nonce: Nonce) -> Hello {
        let digits = blake3::Hash::from_bytes(nonce).to_string();
        Hello { version: PROTOCOL_VERSION, manifest: None, nonce: vec![digits] }
    }

    /// The dialer's nonce.
    ///
    /// # Errors
    /// When it speaks another version, or its message holds no nonce.
    pub fn nonce(&self) -> Result<Nonce, Refusal> {
        if self.version != PROTOCOL_VERSION {
            return Err(Refusal::Version { theirs: self.version });
        }
        let [digits] = &self.nonce[..] else { return Err(Refusal::Garbage("a hello without a nonce".to_owned())) };
        let nonce = blake3::Hash::from_hex(digits);
        nonce.map(Into::into).map_err(|_| Refusal::Garbage("a nonce that is not 64 hexadecimal digits".to_owned()))
    }
}

/// The listener's reply to a hello.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Challenge {
    version: u32,
    /// How it goes on.
    pub(super) opening: Opening,
}

/// How a listener goes on after a hello.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) enum Opening {
    /// With the dialer's greeting.
    Proceed {
        /// Fresh from the listener.
        nonce: Nonce,
        /// That the listener is a member, where its run is closed.
        proof: Option<Proof>,
        /// By the listener's clock: no decision rests on it.
        stamps: Stamps,
    },
    /// Not at all: this node's owner does not admit the dialer.
    NotAdmitted,
}

impl Challenge {
    pub(super) fn new(opening: Opening) -> Challenge {
        Challenge { version: PROTOCOL_VERSION, opening }
    }

    /// When the listener has received the hello and answered it, by its clock; `None` where it turned the dialer away.
    pub fn stamps(&self) -> Option<Stamps> {
        match self.opening {
            Opening::Proceed { stamps, .. } => Some(stamps),
            Opening::NotAdmitted => None,
        }
    }

    /// Reads a reply to a hello.
    ///
    /// # Errors
    /// When it comes from another version, or is no challenge.
    pub fn decode(bytes: &[u8]) -> Result<Challenge, Refusal> {
        let garbage = |error: codec::CodecError| Refusal::Garbage(error.to_string());
        let theirs: u32 = codec::decode_beginning(bytes).map_err(garbage)?;
        if theirs != PROTOCOL_VERSION {
            return Err(Refusal::Version { theirs });
        }
        codec::decode(bytes).map_err(garbage)
    }
}

/// What a dialer of another version is told: an answer as version 2 had it, that says no.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OtherVersion {
    version: u32,
    welcome: bool,
    manifest: String,
    addresses: Vec<Address>,
}

impl Default for OtherVersion {
    fn default() -> OtherVersion {
        OtherVersion { version: PROTOCOL_VERSION, welcome: false, manifest: String::new(), addresses: Vec::new() }
    }
}

/// The dialer's second message.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Greeting {
    /// It takes part in the listener's run.
    Join {
        /// That it is a member, where its run is closed.
        proof: Option<Proof>,
        /// Canonical manifest of its run.
        manifest: String,
        /// Where it listens; at most [`OWN_ADDRESSES_MAX`](super::OWN_ADDRESSES_MAX).
        addresses: Vec<Address>,
    },
    /// It only asks for the listener's manifest.
    Ask {
        /// That it has a ticket, where the run is closed.
        proof: Option<Proof>,
    },
    /// It will have nothing to do with the listener.
    Leave(Denial),
    /// It opens a connection in a closed run, whatever for: the first words on each.
    Enter {
        /// That it is a member, or has a ticket.
        proof: Option<Proof>,
    },
}

/// The listener's last word.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Answer {
    /// To somebody who may know the run.
    Run {
        /// Whether the dialer is welcome as a member.
        welcome: bool,
        /// Canonical manifest of the listener's run.
        manifest: String,
        /// Where the listener listens; at most [`OWN_ADDRESSES_MAX`](super::OWN_ADDRESSES_MAX).
        addresses: Vec<Address>,
    },
    /// To a stranger.
    Denied(Denial),
    /// The connection is open to a dialer that wanted to [enter](Greeting::Enter).
    Entered,
}
