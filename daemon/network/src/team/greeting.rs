//! Both ends of a connection prove that they know the secret of the helper's line: the captain first, so that a stranger hears
//! nothing but a random number.

use std::io;

use bincode::{Decode, Encode};
use futures::{AsyncRead, AsyncWrite};
use murmur_protocol::handshake::{Nonce, Parties, Proof, Prover};
use murmur_protocol::{PeerId, RunId, Secret, codec};

use super::TEAM_VERSION;
use crate::access::fresh_nonce;
use crate::frame::{FrameError, read_frame, write_frame};

/// A greeting is some numbers and a proof.
const GREETING_BYTES_MAX: usize = 256;

/// What stands in proofs where those of a run's members have the run: a team has none.
const NO_RUN: RunId = RunId(*b"murmuration 2026 team of helpers");

/// The captain's first word, and the helper's answer to it.
#[derive(Encode, Decode)]
struct Opening {
    version: u16,
    nonce: Nonce,
}

/// The helper's last word.
#[derive(Encode, Decode)]
enum Answer {
    /// It knows the secret as well.
    Welcome(Proof),
    /// It has another captain.
    Taken(Proof),
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoWelcome {
    /// The other side speaks another version.
    #[error("the machine there speaks version {0} of teams, and this one {TEAM_VERSION}")]
    Version(u16),
    /// It does not know the secret.
    #[error("the machine there does not know the line's secret")]
    Stranger,
    /// It has another captain.
    #[error("the helper has another captain")]
    Taken,
    /// Bytes that are no greeting, or none.
    #[error("the connection was lost during the greeting: {0}")]
    Lost(String),
}

impl From<io::Error> for NoWelcome {
    fn from(error: io::Error) -> NoWelcome {
        NoWelcome::Lost(error.to_string())
    }
}

/// The captain's part; `helper` is who answers, as the transport has authenticated it.
pub(super) async fn knock(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    (captain, helper): (PeerId, PeerId),
    secret: &Secret,
) -> Result<(), NoWelcome> {
    let dialer_nonce = nonce()?;
    say(stream, &Opening { version: TEAM_VERSION, nonce: dialer_nonce }).await?;
    let Opening { version, nonce: listener_nonce } = hear(stream).await?;
    if version != TEAM_VERSION {
        return Err(NoWelcome::Version(version));
    }
    let parties = Parties { dialer: captain, listener: helper, dialer_nonce, listener_nonce };
    say(stream, &Proof::new(secret, NO_RUN, &parties, Prover::Dialer)).await?;
    let (proof, welcome) = match hear(stream).await.map_err(|_| NoWelcome::Stranger)? {
        Answer::Welcome(proof) => (proof, Ok(())),
        Answer::Taken(proof) => (proof, Err(NoWelcome::Taken)),
    };
    if !proof.is_of(secret, NO_RUN, &parties, Prover::Listener) {
        return Err(NoWelcome::Stranger);
    }
    welcome
}

/// The helper's part; `takes` says whether it may have this captain.
pub(super) async fn answer(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    (captain, helper): (PeerId, PeerId),
    secret: &Secret,
    takes: impl FnOnce() -> bool,
) -> Result<(), NoWelcome> {
    let Opening { version, nonce: dialer_nonce } = hear(stream).await?;
    let listener_nonce = nonce()?;
    say(stream, &Opening { version: TEAM_VERSION, nonce: listener_nonce }).await?;
    if version != TEAM_VERSION {
        return Err(NoWelcome::Version(version));
    }
    let parties = Parties { dialer: captain, listener: helper, dialer_nonce, listener_nonce };
    let proof: Proof = hear(stream).await?;
    if !proof.is_of(secret, NO_RUN, &parties, Prover::Dialer) {
        return Err(NoWelcome::Stranger);
    }
    let own = Proof::new(secret, NO_RUN, &parties, Prover::Listener);
    if takes() {
        Ok(say(stream, &Answer::Welcome(own)).await?)
    } else {
        say(stream, &Answer::Taken(own)).await?;
        Err(NoWelcome::Taken)
    }
}

fn nonce() -> Result<Nonce, NoWelcome> {
    fresh_nonce().ok_or_else(|| NoWelcome::Lost("the system gives no randomness".to_owned()))
}

async fn say(stream: &mut (impl AsyncWrite + Unpin), word: &impl Encode) -> io::Result<()> {
    write_frame(stream, &codec::encode(word)).await
}

async fn hear<Word: Decode<()>>(stream: &mut (impl AsyncRead + Unpin)) -> Result<Word, NoWelcome> {
    match read_frame(stream, GREETING_BYTES_MAX).await {
        Ok(Some(bytes)) => codec::decode(&bytes).map_err(|error| NoWelcome::Lost(error.to_string())),
        Ok(None) => Err(NoWelcome::Lost("it was closed".to_owned())),
        Err(error @ FrameError::TooLong { .. }) => Err(NoWelcome::Lost(error.to_string())),
        Err(FrameError::Io(error)) => Err(error.into()),
    }
}
