//! Encryption of TCP connections: TLS first, Noise for whoever has no TLS.
//!
//! libp2p's own choice between two encryptions is private to its builder, which cannot wrap the raw TCP stream that we
//! count, hence this one.

use futures::future::{BoxFuture, Either};
use futures::{AsyncRead, AsyncWrite, FutureExt};
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use libp2p::identity::Keypair;
use libp2p::{PeerId, noise, tls};

const TLS: &str = "/tls/1.0.0";
const NOISE: &str = "/noise";

/// TLS or Noise, whichever both sides speak; TLS is offered first because it costs less (see the shared notes on
/// networking).
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

/// An encrypted stream.
type Secured<Raw> = Either<tls::TlsStream<Raw>, noise::Output<Raw>>;

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

impl<Raw> InboundConnectionUpgrade<Raw> for Security
where
    Raw: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Output = (PeerId, Secured<Raw>);
    type Error = SecurityError;
    type Future = BoxFuture<'static, Result<Self::Output, Self::Error>>;

    fn upgrade_inbound(self, raw: Raw, chosen: &'static str) -> Self::Future {
        async move {
            if chosen == TLS {
                let (peer, stream) = self.tls.upgrade_inbound(raw, chosen).await?;
                Ok((peer, Either::Left(stream)))
            } else {
                let (peer, stream) = self.noise.upgrade_inbound(raw, chosen).await?;
                Ok((peer, Either::Right(stream)))
            }
        }
        .boxed()
    }
}

impl<Raw> OutboundConnectionUpgrade<Raw> for Security
where
    Raw: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Output = (PeerId, Secured<Raw>);
    type Error = SecurityError;
    type Future = BoxFuture<'static, Result<Self::Output, Self::Error>>;

    fn upgrade_outbound(self, raw: Raw, chosen: &'static str) -> Self::Future {
        async move {
            if chosen == TLS {
                let (peer, stream) = self.tls.upgrade_outbound(raw, chosen).await?;
                Ok((peer, Either::Left(stream)))
            } else {
                let (peer, stream) = self.noise.upgrade_outbound(raw, chosen).await?;
                Ok((peer, Either::Right(stream)))
            }
        }
        .boxed()
    }
}
