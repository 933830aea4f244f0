//! TCP has a head start over QUIC.
//!
//! libp2p dials all addresses of a peer at once and keeps the connection that is there first. That would be QUIC's, whose handshake
//! takes fewer round trips. But bytes cost less over TCP, whose packets the kernel cuts and joins: an average among members of one
//! machine takes half of the time and two thirds of the processor's. So where a host is dialed over both, QUIC waits a moment, as IPv4
//! does for IPv6 (RFC 8305). Where TCP does not get through, QUIC does.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures::FutureExt;
use libp2p::core::Endpoint;
use libp2p::core::transport::{DialOpts, ListenerId, Transport, TransportError, TransportEvent};
use libp2p::multiaddr::{Multiaddr, Protocol};
use tokio::time::{Instant, sleep};

use crate::address::ip_of;
use crate::bounds::{ADDRESSES_WITHIN, TCP_HEAD_START};
use crate::dial_filter::BoxedTransport;

/// A transport whose dials over QUIC wait for those over TCP to the same host.
pub(crate) struct TcpFirst {
    transport: BoxedTransport,
    /// When each host was last dialed over TCP; those of the last moments.
    dialed: Arc<Mutex<HashMap<IpAddr, Instant>>>,
}

impl TcpFirst {
    pub(crate) fn new(transport: BoxedTransport) -> TcpFirst {
        TcpFirst { transport, dialed: Arc::default() }
    }
}

impl Transport for TcpFirst {
    type Output = <BoxedTransport as Transport>::Output;
    type Error = io::Error;
    type ListenerUpgrade = <BoxedTransport as Transport>::ListenerUpgrade;
    type Dial = <BoxedTransport as Transport>::Dial;

    fn listen_on(&mut self, listener: ListenerId, address: Multiaddr) -> Result<(), TransportError<io::Error>> {
        self.transport.listen_on(listener, address)
    }

    fn remove_listener(&mut self, listener: ListenerId) -> bool {
        self.transport.remove_listener(listener)
    }

    fn dial(&mut self, address: Multiaddr, options: DialOpts) -> Result<Self::Dial, TransportError<io::Error>> {
        let host = ip_of(&address);
        let port = address.iter().nth(1).map(Protocol::acquire);
        // Who punches a hole lets the other side dial.
        let may_wait = options.role == Endpoint::Dialer;
        let dial = self.transport.dial(address, options)?;
        let Some(host) = host else { return Ok(dial) };
        match port {
            Some(Protocol::Tcp(_)) => {
                let now = Instant::now();
                let mut dialed = self.dialed.lock().unwrap_or_else(PoisonError::into_inner);
                dialed.retain(|_, at| now < *at + TCP_HEAD_START);
                dialed.insert(host, now);
                Ok(dial)
            }
            Some(Protocol::Udp(_)) if may_wait => {
                let dialed = self.dialed.clone();
                let is_dialed = move || {
                    let dialed = dialed.lock().unwrap_or_else(PoisonError::into_inner);
                    dialed.get(&host).is_some_and(|at| at.elapsed() < TCP_HEAD_START)
                };
                Ok(async move {
                    // A peer's addresses are dialed at once, in any order, and names are looked up before.
                    sleep(ADDRESSES_WITHIN).await;
                    if is_dialed() {
                        sleep(TCP_HEAD_START).await;
                    }
                    dial.await
                }
                .boxed())
            }
            _ => Ok(dial),
        }
    }

    fn poll(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        Pin::new(&mut self.transport).poll(context)
    }
}
