//! Connections between the machines of a team: one stream on a connection of its own, over the same transports and with the same
//! encryption and identities as the run's network, and apart from it: a helper takes part in no run.
//!
//! ```text
//! captain ── dials ──► helper       both prove that they know the secret of the helper's line  (greeting.rs)
//!         ◄── words ──►             until one of both ends it, or is silent                    (link.rs)
//! ```
//!
//! A word is a small header and a body as large as a stream of activations or a tensor. Each side has a queue of words to
//! send and one of words that have come; where the reader of a side is slow, its sender waits: nothing grows. A side that has nothing
//! to say says so every [`HEARTBEAT_PERIOD`], so that a machine that is gone without a word is noticed within
//! [`SILENCE_MAX`].

mod dialing;
mod greeting;
mod link;
mod listening;
mod taken;
mod wire;

use std::time::Duration;

use libp2p::StreamProtocol;

pub use dialing::{DialError, dial};
pub use link::{Closed, TeamLink, TeamSender, Unsent};
pub use listening::{ListenError, TeamListener};
pub use taken::Taken;
pub use wire::TeamWord;

/// The only protocol of such a connection.
const TEAM_PROTOCOL: StreamProtocol = StreamProtocol::new("/murmur/team/1");

/// What both sides speak: machines of another version are told so.
pub const TEAM_VERSION: u16 = 3;

/// A side with nothing to send says so this often.
pub(crate) const HEARTBEAT_PERIOD: Duration = Duration::from_secs(2);

/// A side from which nothing comes for so long is gone: some heartbeats in a row are lost, or its machine stands still.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(15);

/// Words that may wait to be sent, and as many that have come and wait to be read. A machine of a team has at most so many
/// microbatches under way, each with a stream, and some words about them.
pub(crate) const WORDS_MAX: usize = 64;

/// A header: a control message at most.
pub(crate) const HEADER_BYTES_MAX: usize = murmur_protocol::codec::CONTROL_BYTES_MAX;

/// Connections of captains that are let in and that the helper has not taken yet: it has one captain, which may come again.
pub(crate) const WAITING_CAPTAINS_MAX: usize = 16;

/// From the first byte of a connection to its welcome.
pub(crate) const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
