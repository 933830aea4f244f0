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

/// The helper's part; `takes` gives the place of this captain, where the helper may have it.
pub(super) async fn answer<Place>(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    (captain, helper): (PeerId, PeerId),
    secret: &Secret,
    takes: impl FnOnce() -> Option<Place>,
) -> Result<Place, NoWelcome> {
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
    if let Some(place) = takes() {
        // Where it does not get through, the place is free again.
        say(stream, &Answer::Welcome(own)).await?;
        Ok(place)
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

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use libp2p::core::transport::{DialOpts, ListenerId, MemoryTransport, PortUse, TransportEvent};
    use libp2p::core::{Endpoint, Transport};

    use super::super::taken::Taken;
    use super::*;

    /// Both ends of a connection.
    async fn connection() -> [impl AsyncRead + AsyncWrite + Unpin; 2] {
        let (mut here, mut there) = (MemoryTransport::default().boxed(), MemoryTransport::default().boxed());
        here.listen_on(ListenerId::next(), "/memory/0".parse().expect("an address")).expect("free");
        let Some(TransportEvent::NewAddress { listen_addr, .. }) = here.next().await else { panic!("it listens") };
        let options = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
        let dialing = there.dial(listen_addr, options).expect("it can be dialed");
        let accepting = async {
            let Some(TransportEvent::Incoming { upgrade, .. }) = here.next().await else { panic!("somebody comes") };
            upgrade.await
        };
        let (dialed, accepted) = futures::join!(dialing, accepting);
        [dialed.expect("connected"), accepted.expect("connected")]
    }

    /// The helper stayed taken by it, and let in nobody until it was started anew.
    #[tokio::test]
    async fn a_captain_that_is_gone_before_its_welcome_does_not_take_the_helper() {
        let [captain, other, helper] = [1, 2, 3].map(|key| PeerId::from_public_key([key; 32]));
        let (taken, secret, [mut there, mut here]) =
            (Taken::default(), Secret::from_bytes([7; 32]), connection().await);
        let known = secret.clone();
        let leaving = async move {
            let dialer_nonce = nonce().expect("randomness");
            say(&mut there, &Opening { version: TEAM_VERSION, nonce: dialer_nonce }).await.expect("said");
            let Opening { nonce: listener_nonce, .. } = hear(&mut there).await.expect("heard");
            let parties = Parties { dialer: captain, listener: helper, dialer_nonce, listener_nonce };
            say(&mut there, &Proof::new(&known, NO_RUN, &parties, Prover::Dialer)).await.expect("said");
            drop(there);
        };
        let takes = || taken.takes(captain);
        let ((), answered) = futures::join!(leaving, answer(&mut here, (captain, helper), &secret, takes));
        assert!(matches!(answered, Err(NoWelcome::Lost(_))), "{answered:?}");
        assert!(taken.takes(other).is_some());
    }
}
