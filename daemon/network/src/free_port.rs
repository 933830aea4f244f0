//! Whether an address can be listened on.

use std::io;
use std::net::{IpAddr, TcpListener, UdpSocket};

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

/// libp2p lets several processes listen on one TCP port (it sets `SO_REUSEPORT`, for hole punching), and each would get
/// some of the connections. A second node on a port is a mistake, so the port is tried without that option first.
pub(crate) fn ensure(address: &Multiaddr) -> io::Result<()> {
    let mut parts = address.iter();
    let ip: IpAddr = match parts.next() {
        Some(Protocol::Ip4(ip)) => ip.into(),
        Some(Protocol::Ip6(ip)) => ip.into(),
        _ => return Ok(()),
    };
    match parts.next() {
        Some(Protocol::Tcp(port)) if port != 0 => TcpListener::bind((ip, port)).map(drop),
        Some(Protocol::Udp(port)) if port != 0 => UdpSocket::bind((ip, port)).map(drop),
        _ => Ok(()),
    }
}

/// Why it cannot, for people.
pub(crate) fn describe(error: &io::Error) -> String {
    let text = error.to_string();
    match error.kind() {
        _ if text.contains("in use") => "another program uses that port, perhaps another murmur".to_owned(),
        io::ErrorKind::AddrNotAvailable => "this machine has no such address; 0.0.0.0 stands for all it has".to_owned(),
        io::ErrorKind::PermissionDenied => "this user may not use that port; those below 1024 are root's".to_owned(),
        _ => text,
    }
}
