//! libp2p's handshake over TLS 1.3 (<https://github.com/libp2p/specs/blob/master/tls/tls.md>): each side shows one certificate,
//! which names its identity and is signed by it.
//!
//! libp2p's own upgrade speaks the same, but prefers ChaCha20-Poly1305 on every processor. Where there are instructions for AES,
//! AES-GCM takes a fraction of the time.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

use futures::{AsyncRead, AsyncWrite};
use futures_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use futures_rustls::rustls::client::{ClientConfig, Resumption};
use futures_rustls::rustls::crypto::CryptoProvider;
use futures_rustls::rustls::crypto::aws_lc_rs;
use futures_rustls::rustls::crypto::aws_lc_rs::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use futures_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use futures_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use futures_rustls::rustls::server::{NoServerSessionStorage, ServerConfig};
use futures_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use futures_rustls::rustls::version::TLS13;
use futures_rustls::rustls::{self, DigitallySignedStruct, DistinguishedName, SignatureScheme};
use futures_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use libp2p::PeerId;
use libp2p::identity::Keypair;
use libp2p::tls::certificate;

/// The protocol that is negotiated inside of TLS.
const ALPN: &[u8] = b"libp2p";

/// How certificates of peers may be signed: libp2p's are of P-256, others' of any of these.
const SCHEMES: &[SignatureScheme] = &[
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ED25519,
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA256,
];

/// Both sides of a handshake, as one identity.
#[derive(Clone)]
pub(super) struct Tls {
    client: TlsConnector,
    server: TlsAcceptor,
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// The certificate could not be made.
    #[error("cannot make a TLS certificate: {0}")]
    Certificate(#[from] certificate::GenError),
    /// This build's cryptography lacks something.
    #[error("cannot prepare TLS: {0}")]
    Cryptography(#[from] rustls::Error),
    /// The connection was lost, or the other side did not keep to its part, where this side has dialed.
    #[error("the TLS handshake failed")]
    Client(#[source] io::Error),
    /// The same where the other side has dialed.
    #[error("the TLS handshake failed")]
    Server(#[source] io::Error),
    /// The other side's certificate is not one of libp2p's.
    #[error(transparent)]
    Peer(#[from] certificate::ParseError),
}

impl Tls {
    pub(super) fn new(identity: &Keypair) -> Result<Tls, TlsError> {
        Tls::showing(certificate::generate(identity)?, has_aes())
    }

    /// `has_aes`: whether the processor has instructions for AES.
    fn showing(
        (certificate, key): (CertificateDer<'static>, PrivateKeyDer<'static>),
        has_aes: bool,
    ) -> Result<Tls, TlsError> {
        let provider = Arc::new(cryptography(has_aes));
        let key = provider.key_provider.load_private_key(key)?;
        let shown = Arc::new(SingleCertAndKey::from(CertifiedKey::new(vec![certificate], key)));

        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(OfPeers))
            .with_client_cert_resolver(shown.clone());
        client.alpn_protocols = vec![ALPN.to_vec()];
        // Connections last for hours. Tickets to resume one would be bytes and memory for nothing.
        client.resumption = Resumption::disabled();

        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(Arc::new(OfPeers))
            .with_cert_resolver(shown);
        server.alpn_protocols = vec![ALPN.to_vec()];
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        // AES without instructions for it costs far more than it saves the other side.
        server.ignore_client_order = !has_aes;

        Ok(Tls { client: Arc::new(client).into(), server: Arc::new(server).into() })
    }

    pub(super) async fn upgrade_outbound<Raw>(&self, raw: Raw) -> Result<(PeerId, TlsStream<Raw>), TlsError>
    where
        Raw: AsyncRead + AsyncWrite + Unpin,
    {
        // An address instead of a name: no name is sent.
        let nobody = ServerName::IpAddress(Ipv4Addr::UNSPECIFIED.into());
        of_peer(self.client.connect(nobody, raw).await.map_err(TlsError::Client)?.into())
    }

    pub(super) async fn upgrade_inbound<Raw>(&self, raw: Raw) -> Result<(PeerId, TlsStream<Raw>), TlsError>
    where
        Raw: AsyncRead + AsyncWrite + Unpin,
    {
        of_peer(self.server.accept(raw).await.map_err(TlsError::Server)?.into())
    }
}

fn of_peer<Raw>(stream: TlsStream<Raw>) -> Result<(PeerId, TlsStream<Raw>), TlsError> {
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let peer = match certificates {
        [one] => certificate::parse(one)?.peer_id(),
        _ => return Err(rustls::Error::NoCertificatesPresented.into()),
    };
    Ok((peer, stream))
}

fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

/// Ciphers, the preferred one first. The client's order decides, unless the server has no instructions for AES.
fn cryptography(has_aes: bool) -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    let aes = [TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384];
    let chacha = [TLS13_CHACHA20_POLY1305_SHA256];
    provider.cipher_suites = if has_aes { [&aes[..], &chacha].concat() } else { [&chacha[..], &aes].concat() };
    provider
}

/// Certificates of peers: one each, signed by the identity that it names. Whether it is the one that was dialed is compared by the
/// swarm.
#[derive(Debug)]
struct OfPeers;

impl OfPeers {
    fn verify(certificate: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        if !others.is_empty() {
            return Err(rustls::Error::General("a peer shows exactly one certificate".into()));
        }
        certificate::parse(certificate)?;
        Ok(())
    }
}

/// The methods that are the same for both sides.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Err(rustls::Error::General("libp2p speaks TLS 1.3".into()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            certificate::parse(certificate)?.verify_signature(signed.scheme, message, signed.signature())?;
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            SCHEMES.to_vec()
        }
    };
}

impl ServerCertVerifier for OfPeers {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        OfPeers::verify(certificate, others)?;
        Ok(ServerCertVerified::assertion())
    }

    signatures!();
}

impl ClientCertVerifier for OfPeers {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        OfPeers::verify(certificate, others)?;
        Ok(ClientCertVerified::assertion())
    }

    signatures!();
}

#[cfg(test)]
mod tests {
    use futures::future::join;
    use futures::{AsyncReadExt, AsyncWriteExt};
    use futures_rustls::rustls::CipherSuite;
    use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade};
    use libp2p::tls;

    use super::*;
    use crate::security::{TLS, connected};

    type TestResult = Result<(), Box<dyn std::error::Error>>;

    /// The cipher that two sides agree on, of which the client or the server has instructions for AES.
    async fn agreed(client_has_aes: bool, server_has_aes: bool) -> Result<CipherSuite, Box<dyn std::error::Error>> {
        let tls = |has_aes| Tls::showing(certificate::generate(&Keypair::generate_ed25519())?, has_aes);
        let (client, server) = (tls(client_has_aes)?, tls(server_has_aes)?);
        let (dialed, accepted) = connected().await?;
        let (here, there) = join(client.upgrade_outbound(dialed), server.upgrade_inbound(accepted)).await;
        there?;
        Ok(here?.1.get_ref().1.negotiated_cipher_suite().ok_or("no cipher")?.suite())
    }

    #[tokio::test]
    async fn aes_is_used_where_both_processors_have_instructions_for_it() -> TestResult {
        assert_eq!(agreed(true, true).await?, CipherSuite::TLS13_AES_128_GCM_SHA256);
        for (client, server) in [(true, false), (false, true), (false, false)] {
            assert_eq!(agreed(client, server).await?, CipherSuite::TLS13_CHACHA20_POLY1305_SHA256);
        }
        Ok(())
    }

    #[tokio::test]
    async fn nodes_with_libp2ps_own_tls_are_understood_as_either_side() -> TestResult {
        let (ours, theirs) = (Keypair::generate_ed25519(), Keypair::generate_ed25519());
        let (tls, other) = (Tls::new(&ours)?, tls::Config::new(&theirs)?);

        let (dialed, accepted) = connected().await?;
        let (here, there) = join(tls.upgrade_outbound(dialed), other.clone().upgrade_inbound(accepted, TLS)).await;
        let ((peer, mut here), (seen, mut there)) = (here?, there?);
        assert_eq!((peer, seen), (theirs.public().to_peer_id(), ours.public().to_peer_id()));
        here.write_all(b"word").await?;
        here.flush().await?;
        let mut word = [0; 4];
        there.read_exact(&mut word).await?;
        assert_eq!(&word, b"word");

        let (dialed, accepted) = connected().await?;
        let (there, here) = join(other.upgrade_outbound(dialed, TLS), tls.upgrade_inbound(accepted)).await;
        assert_eq!((there?.0, here?.0), (ours.public().to_peer_id(), theirs.public().to_peer_id()));
        Ok(())
    }

    /// A certificate is public: whoever shows it must have its key.
    #[tokio::test]
    async fn who_shows_the_certificate_of_another_is_refused_as_either_side() -> TestResult {
        let generate = || certificate::generate(&Keypair::generate_ed25519());
        let thief = Tls::showing((generate()?.0, generate()?.1), true)?;
        let honest = Tls::new(&Keypair::generate_ed25519())?;

        let (dialed, accepted) = connected().await?;
        let (here, _) = join(honest.upgrade_outbound(dialed), thief.upgrade_inbound(accepted)).await;
        assert!(matches!(here, Err(TlsError::Client(_))));
        let (dialed, accepted) = connected().await?;
        let (_, here) = join(thief.upgrade_outbound(dialed), honest.upgrade_inbound(accepted)).await;
        assert!(matches!(here, Err(TlsError::Server(_))));
        Ok(())
    }

    #[tokio::test]
    async fn who_shows_no_certificate_is_refused() -> TestResult {
        let client = ClientConfig::builder_with_provider(Arc::new(cryptography(true)))
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(OfPeers))
            .with_no_client_auth();
        let honest = Tls::new(&Keypair::generate_ed25519())?;
        let (dialed, accepted) = connected().await?;
        let nobody = ServerName::IpAddress(Ipv4Addr::UNSPECIFIED.into());
        let stranger = TlsConnector::from(Arc::new(client)).connect(nobody, dialed);
        let (_, here) = join(stranger, honest.upgrade_inbound(accepted)).await;
        assert!(matches!(here, Err(TlsError::Server(_))));
        Ok(())
    }

    /// One of the web: without libp2p's extension that an identity has signed.
    #[tokio::test]
    async fn a_certificate_that_names_no_identity_is_refused() -> TestResult {
        let (certificate, key) = certificate::generate(&Keypair::generate_ed25519())?;
        // The identifier of the extension, 1.3.6.1.4.1.53594.1.1, becomes another one. The verifier fails before it compares the
        // certificate's own signature.
        let mut bytes = certificate.to_vec();
        let identifier = [0x2b, 0x06, 0x01, 0x04, 0x01, 0x83, 0xa2, 0x5a, 0x01, 0x01];
        let at = bytes.windows(identifier.len()).position(|window| window == identifier).ok_or("no extension")?;
        bytes[at + identifier.len() - 1] = 2;
        let stranger = Tls::showing((bytes.into(), key), true)?;
        let honest = Tls::new(&Keypair::generate_ed25519())?;
        let (dialed, accepted) = connected().await?;
        let (here, _) = join(honest.upgrade_outbound(dialed), stranger.upgrade_inbound(accepted)).await;
        assert!(matches!(here, Err(TlsError::Client(_))));
        Ok(())
    }
}
