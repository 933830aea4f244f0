//! Encryption of TCP connections: TLS first, Noise for whoever has no TLS.
//!
//! libp2p's own choice between two encryptions is private to its builder, which cannot wrap the raw TCP stream that we
//! count, hence this one.

mod gathered;
mod tls;

use futures::future::{BoxFuture, Either};
use futures::{AsyncRead, AsyncWrite, FutureExt};
use futures_rustls::TlsStream;
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use libp2p::identity::Keypair;
#[cfg(test)]
use libp2p::tcp::tokio::TcpStream;
use libp2p::{PeerId, noise};

use gathered::Gathered;
use tls::Tls;
pub(crate) use tls::TlsError;

const TLS: &str = "/tls/1.0.0";
const NOISE: &str = "/noise";

/// TLS or Noise, whichever both sides speak; TLS is offered first because it costs less.
#[derive(Clone)]
pub(crate) struct Security {
    tls: Tls,
    noise: noise::Config,
}

/// Why a connection could not be encrypted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecurityError {
    /// TLS failed.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Noise failed.
    #[error(transparent)]
    Noise(#[from] noise::Error),
}

/// An encrypted stream.
type Secured<Raw> = Gathered<Either<TlsStream<Raw>, noise::Output<Raw>>>;

impl Security {
    pub(crate) fn new(identity: &Keypair) -> Result<Security, SecurityError> {
        Ok(Security { tls: Tls::new(identity)?, noise: noise::Config::new(identity)? })
    }
}

impl UpgradeInfo for Security {
    type Info = &'static str;
    type InfoIter = std::array::IntoIter<&'static str, 2>;

    fn protocol_info(&self) -> Self::InfoIter {
        [TLS, NOISE].into_iter()
    }
}

/// Both sides do the same.
macro_rules! upgrades {
    ($($side:ident by $upgrade:ident),+) => {$(
        impl<Raw> $side<Raw> for Security
        where
            Raw: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        {
            type Output = (PeerId, Secured<Raw>);
            type Error = SecurityError;
            type Future = BoxFuture<'static, Result<Self::Output, Self::Error>>;

            fn $upgrade(self, raw: Raw, chosen: &'static str) -> Self::Future {
                async move {
                    if chosen == TLS {
                        let (peer, stream) = self.tls.$upgrade(raw).await?;
                        Ok((peer, Gathered::new(Either::Left(stream))))
                    } else {
                        let (peer, stream) = self.noise.$upgrade(raw, chosen).await?;
                        Ok((peer, Gathered::new(Either::Right(stream))))
                    }
                }
                .boxed()
            }
        }
    )+};
}
upgrades!(InboundConnectionUpgrade by upgrade_inbound, OutboundConnectionUpgrade by upgrade_outbound);

/// The two ends of a TCP connection.
#[cfg(test)]
async fn connected() -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let dialed = tokio::net::TcpStream::connect(listener.local_addr()?);
    let (dialed, (accepted, _)) = tokio::try_join!(dialed, listener.accept())?;
    Ok((TcpStream(dialed), TcpStream(accepted)))
}

#[cfg(test)]
mod tests {
    use futures::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::bounds::CHUNK_BYTES;
    use crate::traffic::{Counted, TrafficCounter};

    /// A record of TLS costs 22 bytes, a packet 66, and an answer without words as many.
    #[tokio::test]
    async fn the_header_of_a_frame_and_its_body_are_one_record() -> Result<(), Box<dyn std::error::Error>> {
        let (dialed, accepted) = connected().await?;
        let security = || Security::new(&Keypair::generate_ed25519());
        let counter = TrafficCounter::default();
        let (here, there) = tokio::try_join!(
            security()?.upgrade_outbound(Counted::new(dialed, counter.clone()), TLS),
            security()?.upgrade_inbound(accepted, TLS),
        )?;
        let ((_, mut here), (_, mut there)) = (here, there);
        for body in [51, 1000, CHUNK_BYTES] {
            let before = counter.read().sent;
            here.write_all(&[1; 12]).await?;
            here.write_all(&vec![2; body]).await?;
            here.flush().await?;
            assert_eq!(counter.read().sent - before, 12 + body as u64 + 22);
            let mut frame = vec![0; 12 + body];
            there.read_exact(&mut frame).await?;
            assert!(frame[..12] == [1; 12] && frame[12..] == vec![2; body]);
        }
        Ok(())
    }

    /// The other side reads nothing until all that buffers hold is full: what is written then goes out in parts.
    #[tokio::test]
    async fn what_is_held_is_neither_lost_nor_sent_twice() -> Result<(), Box<dyn std::error::Error>> {
        let security = || Security::new(&Keypair::generate_ed25519());
        for chosen in [TLS, NOISE] {
            let (dialed, accepted) = connected().await?;
            let (here, there) = tokio::try_join!(
                security()?.upgrade_outbound(dialed, chosen),
                security()?.upgrade_inbound(accepted, chosen),
            )?;
            let ((_, mut here), (_, mut there)) = (here, there);
            let frames =
                || (0..3000_u32).map(|frame| (frame.to_le_bytes(), vec![frame as u8; frame as usize * 7 % 16_384]));
            let sent: Vec<u8> = frames().flat_map(|(header, body)| [&header[..], &body].concat()).collect();
            let write = async move {
                for (header, body) in frames() {
                    here.write_all(&header).await?;
                    here.write_all(&body).await?;
                }
                here.close().await
            };
            let read = async move {
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
                let mut received = Vec::new();
                there.read_to_end(&mut received).await.map(|_| received)
            };
            let ((), received) = tokio::try_join!(write, read)?;
            assert!(received == sent, "{chosen}: {} of {} bytes, or others", received.len(), sent.len());
        }
        Ok(())
    }
}
