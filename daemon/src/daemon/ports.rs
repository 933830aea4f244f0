//! On which ports a daemon listens: those it was given, or the usual one, or where that is taken the next that is free.

use std::net::{SocketAddr, TcpListener, UdpSocket};

use tokio::net::TcpListener as StatusListener;

use crate::drivers::StatusServer;
use crate::failure::{ExitCode, Failure};
use crate::settings::{DEFAULT_STATUS_PORT, NetworkSettings, StatusSettings};

/// Ports that are tried after the usual one: so many daemons of one machine are still found by their data directories.
const TRIED: u16 = 64;

/// What to do where an address cannot be listened on.
pub(crate) const REMEDY: &str = "choose another port with --port, or another address with --listen; /ip4/0.0.0.0/tcp/0 takes any \
     free port";

/// The addresses to listen on. Where the port may be chosen, it is the first that is free; if none is, the usual one.
pub(crate) fn choose(network: &NetworkSettings) -> Vec<String> {
    choose_from(network, network.usual_port())
}

/// The same with another usual port.
pub(crate) fn choose_from(network: &NetworkSettings, usual: u16) -> Vec<String> {
    if !network.chooses_port() {
        return network.listen_at(usual);
    }
    let is_free = |port: &u16| taken(&network.listen_at(*port)).is_none();
    network.listen_at((usual..usual + TRIED).find(is_free).unwrap_or(usual))
}

/// The first of these addresses whose port another program has. libp2p would share a TCP port with another murmur, and
/// each would get half of the connections.
pub(super) fn taken(listen: &[String]) -> Option<&String> {
    listen.iter().find(|address| {
        let parts: Vec<&str> = address.split('/').collect();
        let ["", "ip4", ip, transport, port, ..] = parts.as_slice() else { return false };
        let Ok(address) = format!("{ip}:{port}").parse::<SocketAddr>() else { return false };
        let tried = match *transport {
            "tcp" => TcpListener::bind(address).map(drop),
            "udp" => UdpSocket::bind(address).map(drop),
            _ => return false,
        };
        tried.is_err_and(|error| error.kind() == std::io::ErrorKind::AddrInUse)
    })
}

/// Listens for the status page; `None` where it is turned off.
///
/// # Errors
/// When the port is taken, or all that may be chosen are.
pub(super) async fn listen_for_status(status: &StatusSettings) -> Result<Option<StatusListener>, Failure> {
    if StatusSettings::is_off(&status.address) {
        return Ok(None);
    }
    if status.address != StatusSettings::AUTO {
        return StatusServer::listen(&status.address).await.map(Some);
    }
    let mut last = Failure::new(ExitCode::Network, "no port is free for the status page");
    for port in DEFAULT_STATUS_PORT..DEFAULT_STATUS_PORT + TRIED {
        match StatusServer::listen(&format!("127.0.0.1:{port}")).await {
            Ok(listener) => return Ok(Some(listener)),
            Err(failure) => last = failure,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port such that it and the next are free, with its holder.
    fn held() -> (TcpListener, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        (listener, port)
    }

    #[test]
    fn a_port_that_is_taken_is_noticed_for_tcp_and_udp() {
        let (tcp, port) = held();
        let of_tcp = [format!("/ip4/127.0.0.1/tcp/{port}")];
        assert_eq!(taken(&of_tcp), Some(&of_tcp[0]));
        drop(tcp);
        assert_eq!(taken(&of_tcp), None);
        let udp = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let of_udp = [format!("/ip4/127.0.0.1/udp/{}/quic-v1", udp.local_addr().expect("bound").port())];
        assert_eq!(taken(&of_udp), Some(&of_udp[0]));
        assert_eq!(taken(&["/ip4/127.0.0.1/tcp/0".to_owned(), "/dns4/example.org/tcp/80".to_owned()]), None);
    }

    #[test]
    fn the_usual_port_gives_way_and_a_given_one_does_not() {
        let usual = NetworkSettings::default();
        let at = |listen: &[String]| -> u16 {
            listen[0].rsplit('/').next().and_then(|port| port.parse().ok()).expect("a port at its end")
        };
        let first = at(&choose(&usual));
        let _held = TcpListener::bind(("0.0.0.0", first)).expect("it was free");
        assert!(at(&choose(&usual)) > first, "the next free one");
        let given = NetworkSettings { port: first, ..usual.clone() };
        let expected = [format!("/ip4/0.0.0.0/tcp/{first}"), format!("/ip4/0.0.0.0/udp/{first}/quic-v1")];
        assert_eq!(choose(&given), expected);
        let listen = vec!["/ip4/127.0.0.1/tcp/0".to_owned()];
        assert_eq!(choose(&NetworkSettings { listen: listen.clone(), ..usual }), listen);
    }
}
