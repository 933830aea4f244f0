//! Which transport a connection is made over.

use std::time::{Duration, Instant};

use futures::future::{Either, select};
use futures::{StreamExt, pin_mut};
use libp2p::core::Endpoint;
use libp2p::core::transport::{DialOpts, ListenerId, PortUse, Transport, TransportEvent};
use libp2p::identity::Keypair;
use libp2p::multiaddr::{Multiaddr, Protocol};
use murmur_network::TrafficCounter;
use murmur_network::transport::{BoxedTransport, build};

/// So long QUIC waits for TCP.
const HEAD_START: Duration = Duration::from_millis(500);

type TestResult = Result<(), Box<dyn std::error::Error>>;

const OPTIONS: DialOpts = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };

fn transport() -> Result<BoxedTransport, Box<dyn std::error::Error>> {
    Ok(build(&Keypair::generate_ed25519(), &TrafficCounter::default())?)
}

/// Where a transport that takes whoever comes listens over TCP and QUIC.
async fn listening() -> Result<(Multiaddr, Multiaddr), Box<dyn std::error::Error>> {
    let mut transport = transport()?;
    for address in ["/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"] {
        transport.listen_on(ListenerId::next(), address.parse()?)?;
    }
    let mut addresses = Vec::new();
    while addresses.len() < 2 {
        if let TransportEvent::NewAddress { listen_addr, .. } = transport.select_next_some().await {
            addresses.push(listen_addr);
        }
    }
    tokio::spawn(async move {
        loop {
            if let TransportEvent::Incoming { upgrade, .. } = transport.select_next_some().await {
                tokio::spawn(upgrade);
            }
        }
    });
    let is_tcp = |address: &Multiaddr| address.iter().any(|part| matches!(part, Protocol::Tcp(_)));
    let (tcp, quic) = addresses.into_iter().partition::<Vec<_>, _>(is_tcp);
    Ok((tcp.into_iter().next().ok_or("no TCP")?, quic.into_iter().next().ok_or("no QUIC")?))
}

#[tokio::test]
async fn a_host_that_is_dialed_over_both_is_connected_over_tcp() -> TestResult {
    let (tcp, quic) = listening().await?;
    let mut transport = transport()?;
    // As libp2p does: both dials are made before either begins.
    let (by_quic, by_tcp) = (transport.dial(quic, OPTIONS)?, transport.dial(tcp, OPTIONS)?);
    pin_mut!(by_quic, by_tcp);
    match select(by_quic, by_tcp).await {
        Either::Right((connected, _)) => drop(connected?),
        Either::Left(_) => return Err("QUIC was first".into()),
    }
    Ok(())
}

#[tokio::test]
async fn quic_alone_does_not_wait_and_gets_through_where_tcp_does_not() -> TestResult {
    let (_, quic) = listening().await?;
    let mut transport = transport()?;
    let begin = Instant::now();
    transport.dial(quic.clone(), OPTIONS)?.await?;
    assert!(begin.elapsed() < HEAD_START, "{:?} alone", begin.elapsed());

    let nobody = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let in_vain = transport.dial(format!("/ip4/127.0.0.1/tcp/{nobody}").parse()?, OPTIONS)?;
    let by_quic = transport.dial(quic, OPTIONS)?;
    assert!(in_vain.await.is_err());
    by_quic.await?;
    Ok(())
}
