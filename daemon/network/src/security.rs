//! Encryption of TCP connections: TLS first, Noise for whoever has no TLS.
//!
//! libp2p's own choice between two encryptions is private to its builder, which cannot wrap the raw TCP stream that we
//! count, hence this one.

use futures::future::{BoxFuture, Either};
use futures::io::BufWriter;
use futures::{AsyncRead, AsyncWrite, FutureExt};
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use libp2p::identity::Keypair;
use libp2p::{PeerId, noise, tls};

use crate::bounds::FRAME_BYTES_MAX;

const TLS: &str = "/tls/1.0.0";
const NOISE: &str = "/noise";

/// TLS or Noise, whichever both sides speak; TLS is offered first because it costs less.
#[derive(Clone)]
pub(crate) struct Security {
    tls: tls::Config,
    noise: noise::Config,
}

/// Why a connection could not be encrypted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecurityError {
    /// The certificate could not be made.
    #[error("cannot make a TLS certificate: {0}")]
    Certificate(#[from] tls::certificate::GenError),
    /// TLS failed.
    #[error(transparent)]
    Tls(#[from] tls::UpgradeError),
    /// Noise failed.
    #[error(transparent)]
    Noise(#[from] noise::Error),
}

/// An encrypted stream. Each write to TLS is a record and a packet of its own, and yamux writes the header of a frame and
/// its body one after the other, then flushes: they travel together, or short messages take twice the line.
type Secured<Raw> = BufWriter<Either<tls::TlsStream<Raw>, noise::Output<Raw>>>;

fn together<Raw>(peer: PeerId, stream: Either<tls::TlsStream<Raw>, noise::Output<Raw>>) -> (PeerId, Secured<Raw>)
where
    Raw: AsyncRead + AsyncWrite + Unpin,
{
    (peer, BufWriter::with_capacity(FRAME_BYTES_MAX, stream))
}

impl Security {
    pub(crate) fn new(identity: &Keypair) -> Result<Security, SecurityError> {
        Ok(Security { tls: tls::Config::new(identity)?, noise: noise::Config::new(identity)? })
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
                        let (peer, stream) = self.tls.$upgrade(raw, chosen).await?;
                        Ok(together(peer, Either::Left(stream)))
                    } else {
                        let (peer, stream) = self.noise.$upgrade(raw, chosen).await?;
                        Ok(together(peer, Either::Right(stream)))
                    }
                }
                .boxed()
            }
        }
    )+};
}
upgrades!(InboundConnectionUpgrade by upgrade_inbound, OutboundConnectionUpgrade by upgrade_outbound);

#[cfg(test)]
mod tests {
    use futures::{AsyncReadExt, AsyncWriteExt};
    use libp2p::tcp::tokio::TcpStream;
    use tokio::net::TcpListener;

    use super::*;
    use crate::traffic::{Counted, TrafficCounter};

    /// A record of TLS costs 22 bytes, a packet 66, and an answer without words as many.
    #[tokio::test]
    async fn the_header_of_a_frame_and_its_body_are_one_record() -> Result<(), Box<dyn std::error::Error>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (dialed, accepted) =
            tokio::try_join!(tokio::net::TcpStream::connect(listener.local_addr()?), listener.accept())?;
        let security = || Security::new(&Keypair::generate_ed25519());
        let counter = TrafficCounter::default();
        let (here, there) = tokio::try_join!(
            security()?.upgrade_outbound(Counted::new(TcpStream(dialed), counter.clone()), TLS),
            security()?.upgrade_inbound(TcpStream(accepted.0), TLS),
        )?;
        let ((_, mut here), (_, mut there)) = (here, there);
        let before = counter.read().sent;
        here.write_all(&[1; 12]).await?;
        here.write_all(&[2; 51]).await?;
        here.flush().await?;
        assert_eq!(counter.read().sent - before, 12 + 51 + 22);
        let mut frame = [0; 63];
        there.read_exact(&mut frame).await?;
        assert!(frame[..12] == [1; 12] && frame[12..] == [2; 51]);
        Ok(())
    }
}
