//! Moves the handshake's bytes: hello, challenge, greeting, answer. The judgement is the protocol crate's.
//!
//! A refusal is told to both cores: the side that refuses says so first and waits until the other has hung up, so that
//! both can name the reason. Whom the owner's lists exclude is told that much and nothing else. In a closed run a shorter
//! handshake comes first on every connection, at the [`gate`].

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use libp2p::Multiaddr;
use libp2p::core::{ConnectedPoint, Endpoint};
use libp2p::multiaddr::Protocol;
use murmur_protocol::codec::{self, CONTROL_BYTES_MAX};
use murmur_protocol::handshake::{
    self, Answer, Challenge, ClockOffset, Credentials, Greeting, Hello, Nonce, OtherVersion, Parties, Refusal, Stamps,
    Visitor,
};
use murmur_protocol::message::Message;
use murmur_protocol::{Address, AddressRange, Event, PeerId};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::access::fresh_nonce;
use crate::bounds::{AUXILIARY_TIMEOUT, FAREWELL_TIMEOUT, HANDSHAKE_TIMEOUT};
use crate::frame::{FrameError, read_frame, write_frame};
use crate::scope::Scope;
use crate::shared::Shared;
use crate::sources::{Source, range_of};
use crate::streams::{CONTROL_PROTOCOL, ConnectionStreams, OpenError, Stream, StreamOpener};

pub(crate) mod gate;

/// A stream on which a handshake is held.
trait Talk: AsyncRead + AsyncWrite + Unpin + Send {}

impl<Any: AsyncRead + AsyncWrite + Unpin + Send> Talk for Any {}

/// A new connection, before its handshake.
pub(crate) struct NewConnection {
    pub(crate) peer: PeerId,
    /// The other end's address.
    pub(crate) remote: Multiaddr,
    /// Whether it leads through a relay.
    pub(crate) is_relayed: bool,
    /// Whether this node dialed, and then how.
    pub(crate) dialed: Option<Dialed>,
    /// Whether a connection on which nobody greets may be there for another reason, such as a lookup.
    pub(crate) may_be_auxiliary: bool,
    pub(crate) streams: ConnectionStreams,
}

/// How a connection that this node dialed came about.
#[derive(Clone, Debug)]
pub(crate) struct Dialed {
    /// Whether the core knew only an address, and not the peer.
    pub(crate) by_address: bool,
    /// The addresses that the core gave, by which it recognises its dial.
    pub(crate) addresses: Vec<Address>,
}

/// A connection whose handshake ended in welcome.
pub(crate) struct Link {
    /// Whether it leads through a relay: then it carries messages only.
    pub(crate) is_relayed: bool,
    pub(crate) dialed: Option<Dialed>,
    /// From how far the peer speaks.
    pub(crate) scope: Scope,
    /// Where the peer says it listens, as far as it is believed.
    pub(crate) addresses: Vec<Address>,
    /// From where the peer is reached; `None` where that is not known.
    pub(crate) source: Option<Source>,
    /// The range of addresses to which that belongs.
    pub(crate) range: Option<AddressRange>,
    pub(crate) control: Stream,
    pub(crate) streams: ConnectionStreams,
}

/// Why a connection did not become a link; the core knows what it needs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoLink {
    /// One of both sides refused the other.
    Stranger,
    /// It was lost, or was for something else.
    Closed,
}

/// How a handshake ended short of a welcome.
#[derive(Debug)]
enum NoWelcome {
    /// A refusal by either side.
    Refused(Refusal),
    /// The dialer only wanted to see the manifest.
    Asked,
    /// The connection was lost first.
    Lost(String),
}

/// Whether the other side is to greet. In a hole punch both sides dial, and over TCP one of them plays the listener. Over
/// QUIC that one is told to as well, but libp2p-quic 0.14 makes it the client of a connection of its own, on which the
/// other side is a listener like any other.
pub(crate) fn is_inbound(endpoint: &ConnectedPoint) -> bool {
    match endpoint {
        ConnectedPoint::Listener { .. } => true,
        ConnectedPoint::Dialer { address, role_override, .. } => {
            let is_quic = address.iter().any(|part| part == Protocol::QuicV1);
            *role_override == Endpoint::Listener && !is_quic
        }
    }
}

/// Performs the handshake of a new connection and tells the core where it came to nothing. Unless a link is returned,
/// the connection closes.
pub(crate) async fn perform(shared: Arc<Shared>, connection: NewConnection) -> Result<Link, NoLink> {
    let NewConnection { peer, remote, is_relayed, dialed, may_be_auxiliary, mut streams } = connection;
    let mut first = None;
    if dialed.is_none() && may_be_auxiliary {
        // Where nothing else uses the connection either, it closes as idle: soon, or with libp2p's relay, which says
        // that it uses it for ten seconds and does not say when these are over, after the limit here.
        first = timeout(AUXILIARY_TIMEOUT, streams.control.recv()).await.ok().flatten();
        first.as_ref().ok_or(NoLink::Closed)?;
    }
    let attempt = async {
        match dialed {
            Some(_) => greet(&shared, peer, &remote, &streams).await,
            None => reply(&shared, peer, &remote, first, &mut streams).await,
        }
    };
    let late = || Err(NoWelcome::Refused(Refusal::Silent));
    match timeout(HANDSHAKE_TIMEOUT, attempt).await.unwrap_or_else(|_| late()) {
        Ok((control, addresses)) => {
            let scope = Scope::of_peer(&remote, &shared.own.borrow());
            let addresses = scope.believed(&addresses);
            let (source, range) = (Source::of(&remote), range_of(&remote));
            return Ok(Link { is_relayed, dialed, scope, addresses, source, range, control, streams });
        }
        Err(NoWelcome::Asked) => tracing::debug!(%peer, "told the run's manifest"),
        Err(NoWelcome::Refused(refusal)) => {
            shared.emit(Event::HandshakeRefused { peer, refusal }).await;
            return Err(NoLink::Stranger);
        }
        Err(NoWelcome::Lost(reason)) => match dialed {
            Some(Dialed { addresses, .. }) => {
                let reason = format!("the connection was lost during the handshake: {reason}");
                shared.emit(Event::DialFailed { peer: Some(peer), addresses, reason }).await;
            }
            None => tracing::debug!(%peer, reason, "lost a connection during the handshake"),
        },
    }
    Err(NoLink::Closed)
}

/// A connection that a lookup or a circuit of this node has opened: nothing is said on it, unless it turns out to be
/// `wanted` for membership after all.
pub(crate) async fn stand_by(
    shared: Arc<Shared>,
    mut connection: NewConnection,
    wanted: oneshot::Receiver<Dialed>,
) -> Result<Link, NoLink> {
    let wanted = tokio::select! {
        wanted = timeout(AUXILIARY_TIMEOUT, wanted) => wanted,
        () = connection.streams.opener.closed() => return Err(NoLink::Closed),
    };
    connection.dialed = match wanted {
        Ok(Ok(dialed)) => Some(dialed),
        _ => return Err(NoLink::Closed),
    };
    perform(shared, connection).await
}

/// The dialer's part.
async fn greet(
    shared: &Shared,
    peer: PeerId,
    remote: &Multiaddr,
    streams: &ConnectionStreams,
) -> Result<(Stream, Vec<Address>), NoWelcome> {
    // The core may have known only an address.
    if !shared.access.admits(peer) {
        return Err(Refusal::Excluded.into());
    }
    let greeting = |proof| {
        // Whoever welcomes this node may begin a transfer at once.
        streams.accept_all();
        let addresses = shared.addresses_for(remote);
        Greeting::Join { proof, manifest: shared.manifest_text.clone(), addresses }
    };
    let credentials = Some(&shared.access.credentials);
    let Introduction { control, answer, .. } =
        introduce(&streams.opener, credentials, (shared.me, peer), greeting).await?;
    Ok((control, handshake::judge_answer(&shared.manifest, answer)?))
}

/// Says a last word on a connection that was welcome, and hangs up.
pub(crate) async fn turn_away(link: Link, word: &Message) {
    let Link { mut control, streams, .. } = link;
    // Transfers and questions are reset.
    let _opener = streams.opener;
    let said = timeout(FAREWELL_TIMEOUT, write_frame(&mut control, &codec::encode(word))).await;
    if matches!(said, Ok(Ok(()))) {
        hang_up(&mut control).await;
    }
}

/// What keeps a node from any handshake.
const NO_RANDOMNESS: &str = "this system gives no randomness";

/// Why a greeting got no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoAnswer {
    /// What came back was none, or the peer does not speak the protocol.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The connection was lost first.
    #[error("{0}")]
    Lost(String),
}

/// What came of a greeting.
pub(crate) struct Introduction {
    pub(crate) control: Stream,
    pub(crate) answer: Answer,
    /// How far the listener's clock is from this machine's.
    pub(crate) clock: ClockOffset,
}

/// Microseconds since 1970 UTC by this machine's clock.
fn wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Opens the control stream, lets the listener prove itself where the run is closed, greets and reads the answer, without
/// judging it. `ends` are this node and the listener.
pub(crate) async fn introduce(
    opener: &StreamOpener,
    credentials: Option<&Credentials>,
    ends: (PeerId, PeerId),
    greeting: impl FnOnce(Option<handshake::Proof>) -> Greeting,
) -> Result<Introduction, NoAnswer> {
    let mut control = opener.open(CONTROL_PROTOCOL).await?;
    let (answer, clock) = converse(&mut control, credentials, ends, greeting).await?;
    Ok(Introduction { control, answer, clock })
}

/// The same on a stream that is open.
async fn converse(
    control: &mut impl Talk,
    credentials: Option<&Credentials>,
    ends: (PeerId, PeerId),
    greeting: impl FnOnce(Option<handshake::Proof>) -> Greeting,
) -> Result<(Answer, ClockOffset), NoAnswer> {
    let nonce = fresh_nonce().ok_or_else(|| NoAnswer::Lost(NO_RANDOMNESS.to_owned()))?;
    let asked = wall_clock();
    write_frame(control, &codec::encode(&Hello::new(nonce))).await?;
    let bytes = read_reply(control).await?;
    let answered = wall_clock();
    let challenge = Challenge::decode(&bytes)?;
    let clock = ClockOffset::measured(asked, challenge.stamps().unwrap_or_default(), answered);
    let proof = match handshake::judge_challenge(credentials, ends, nonce, &challenge) {
        Ok(proof) => proof,
        Err((refusal, word)) => {
            if let Some(word) = word {
                write_frame(control, &codec::encode(&Greeting::Leave(word))).await?;
                hang_up(control).await;
            }
            return Err(refusal.into());
        }
    };
    write_frame(control, &codec::encode(&greeting(proof))).await?;
    let bytes = read_reply(control).await?;
    let answer = codec::decode(&bytes).map_err(|error| Refusal::Garbage(error.to_string()))?;
    Ok((answer, clock))
}

async fn read_reply(control: &mut impl Talk) -> Result<Vec<u8>, NoAnswer> {
    let bytes = read_frame(control, CONTROL_BYTES_MAX).await?;
    bytes.ok_or_else(|| NoAnswer::Lost("the peer closed it without an answer".to_owned()))
}

/// The listener's part.
async fn reply(
    shared: &Shared,
    peer: PeerId,
    remote: &Multiaddr,
    first: Option<Stream>,
    streams: &mut ConnectionStreams,
) -> Result<(Stream, Vec<Address>), NoWelcome> {
    let lost = || NoWelcome::Lost("the peer closed it".to_owned());
    let mut control = match first {
        Some(control) => control,
        None => streams.control.recv().await.ok_or_else(lost)?,
    };
    let (dialer_nonce, received) = read_hello(&mut control).await?;
    if !shared.access.admits(peer) {
        return Err(dismiss(&mut control, &codec::encode(&handshake::turn_away()), Refusal::Excluded).await);
    }
    let listener_nonce = fresh_nonce().ok_or_else(|| NoWelcome::Lost(NO_RANDOMNESS.to_owned()))?;
    let parties = Parties { dialer: peer, listener: shared.me, dialer_nonce, listener_nonce };
    let credentials = &shared.access.credentials;
    let challenge = |sent| codec::encode(&handshake::challenge(credentials, &parties, Stamps { received, sent }));
    say(&mut control, &challenge(wall_clock())).await?;
    let greeting: Greeting = codec::decode(&read_reply(&mut control).await?).map_err(garbage)?;
    let judgement = handshake::judge_greeting(&shared.manifest, credentials, &parties, greeting);
    let addresses = shared.addresses_for(remote);
    let answer = codec::encode(&handshake::answer(&judgement, &shared.manifest_text, addresses));
    match judgement {
        Ok(Visitor::Member(addresses)) => {
            streams.accept_all();
            say(&mut control, &answer).await?;
            Ok((control, addresses))
        }
        Ok(Visitor::Asker) => {
            say(&mut control, &answer).await?;
            hang_up(&mut control).await;
            Err(NoWelcome::Asked)
        }
        Err(refusal) => Err(dismiss(&mut control, &answer, refusal).await),
    }
}

/// The dialer's nonce, and when it came.
async fn read_hello(control: &mut impl Talk) -> Result<(Nonce, u64), NoWelcome> {
    let bytes = read_reply(control).await?;
    let received = wall_clock();
    let hello: Hello = codec::decode(&bytes).map_err(garbage)?;
    match hello.nonce() {
        Ok(nonce) => Ok((nonce, received)),
        Err(refusal) => Err(dismiss(control, &codec::encode(&OtherVersion::default()), refusal).await),
    }
}

async fn say(control: &mut impl Talk, word: &[u8]) -> Result<(), NoWelcome> {
    Ok(write_frame(control, word).await.map_err(NoAnswer::from)?)
}

/// Says the last word to a dialer that is refused. Where it does not get through, the reason is still the refusal.
async fn dismiss(control: &mut impl Talk, word: &[u8], refusal: Refusal) -> NoWelcome {
    if say(control, word).await.is_ok() {
        hang_up(control).await;
    }
    refusal.into()
}

fn garbage(error: codec::CodecError) -> NoWelcome {
    Refusal::Garbage(error.to_string()).into()
}

/// Closes our half and waits, not for long, until the other side has closed its own: closing the connection at once
/// could lose the answer.
async fn hang_up(control: &mut impl Talk) {
    let farewell = async {
        control.close().await?;
        let mut rest = [0; 256];
        while control.read(&mut rest).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _ = timeout(FAREWELL_TIMEOUT, farewell).await;
}

impl From<OpenError> for NoAnswer {
    fn from(error: OpenError) -> NoAnswer {
        match error {
            OpenError::Unsupported(_) | OpenError::TimedOut => NoAnswer::Refused(Refusal::Garbage(error.to_string())),
            OpenError::Closed | OpenError::Io(_) => NoAnswer::Lost(error.to_string()),
        }
    }
}

impl From<std::io::Error> for NoAnswer {
    fn from(error: std::io::Error) -> NoAnswer {
        NoAnswer::Lost(error.to_string())
    }
}

impl From<FrameError> for NoAnswer {
    fn from(error: FrameError) -> NoAnswer {
        match error {
            FrameError::TooLong { .. } => NoAnswer::Refused(Refusal::Garbage(error.to_string())),
            FrameError::Io(error) => error.into(),
        }
    }
}

impl From<NoAnswer> for NoWelcome {
    fn from(error: NoAnswer) -> NoWelcome {
        match error {
            NoAnswer::Refused(refusal) => NoWelcome::Refused(refusal),
            NoAnswer::Lost(reason) => NoWelcome::Lost(reason),
        }
    }
}

impl From<Refusal> for NoWelcome {
    fn from(refusal: Refusal) -> NoWelcome {
        NoWelcome::Refused(refusal)
    }
}

#[cfg(test)]
mod tests {
    use libp2p::core::transport::PortUse;

    use super::*;

    /// What both sides see of a connection that comes of a hole punch: one of them must greet, and only one.
    #[test]
    fn one_side_of_a_punched_connection_greets() {
        let address = |text: &str| -> Multiaddr { text.parse().expect("an address") };
        let dialer = |text, role_override| ConnectedPoint::Dialer {
            address: address(text),
            role_override,
            port_use: PortUse::Reuse,
        };
        let (tcp, quic) = ("/ip4/8.8.8.8/tcp/1", "/ip4/8.8.8.8/udp/1/quic-v1");
        let listener = ConnectedPoint::Listener { local_addr: address(quic), send_back_addr: address(quic) };
        for pair in [
            [dialer(tcp, Endpoint::Dialer), dialer(tcp, Endpoint::Listener)],
            [dialer(quic, Endpoint::Dialer), listener.clone()],
            [dialer(quic, Endpoint::Listener), listener],
        ] {
            assert_eq!(pair.each_ref().map(is_inbound), [false, true], "{pair:?}");
        }
    }
}
