//! What listens at an address that has not answered as a murmur node: people give the port of something else.

use std::time::Duration;

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Most programs answer a line at once.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1500);

/// What is said of [`Stranger::Silent`].
pub(crate) const SILENCE: &str =
    "something takes connections there and says nothing: is it a murmur node, and does it run?";

/// What listens at an address and does not answer as a murmur node does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stranger {
    /// Another program, in words.
    Program(&'static str),
    /// It takes connections and says nothing. A murmur node hangs up on such a line, unless it stands still.
    Silent,
}

/// Names what listens there, where it tells; `None` for a murmur node, for nobody, and for addresses other than TCP.
pub(crate) async fn stranger_at(address: &Multiaddr) -> Option<Stranger> {
    let place = tcp_place(address)?;
    let mut stream = timeout(ANSWER_TIMEOUT, TcpStream::connect(place)).await.ok()?.ok()?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.ok()?;
    let mut beginning = [0; 5];
    match timeout(ANSWER_TIMEOUT, stream.read(&mut beginning)).await {
        Err(_) => Some(Stranger::Silent),
        Ok(Err(_) | Ok(0)) => None,
        Ok(Ok(_)) if beginning.starts_with(b"HTTP") => Some(Stranger::Program(
            "a web server answers there (HTTP), no murmur node; a daemon's status page is not its port for peers",
        )),
        Ok(Ok(_)) if beginning.starts_with(b"SSH") => {
            Some(Stranger::Program("an SSH server answers there, no murmur node"))
        }
        // The first words of libp2p's own protocol.
        Ok(Ok(count)) if beginning[1..count].starts_with(b"/mul") => None,
        Ok(Ok(_)) => Some(Stranger::Program("something else than a murmur node answers there")),
    }
}

/// Host and port of an address that is TCP and nothing more.
fn tcp_place(address: &Multiaddr) -> Option<(String, u16)> {
    let mut parts = address.iter().filter(|part| !matches!(part, Protocol::P2p(_)));
    let host = match parts.next()? {
        Protocol::Ip4(ip) => ip.to_string(),
        Protocol::Ip6(ip) => ip.to_string(),
        Protocol::Dns(name) | Protocol::Dns4(name) | Protocol::Dns6(name) => name.to_string(),
        _ => return None,
    };
    match (parts.next()?, parts.next()) {
        (Protocol::Tcp(port), None) => Some((host, port)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// What is said of a server that answers so; with nothing it stays silent.
    async fn said_of(answer: Option<&'static [u8]>) -> Option<Stranger> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("somebody");
            let mut question = [0; 64];
            let _ = stream.read(&mut question).await;
            match answer {
                Some(answer) => drop(stream.write_all(answer).await),
                None => std::future::pending().await,
            }
        });
        let address = format!("/ip4/127.0.0.1/tcp/{port}").parse().expect("an address");
        let said = stranger_at(&address).await;
        server.abort();
        said
    }

    #[tokio::test]
    async fn what_else_listens_there_is_named() {
        let said = said_of(Some(b"HTTP/1.1 400 Bad Request\r\n\r\n")).await;
        assert!(matches!(said, Some(Stranger::Program(text)) if text.starts_with("a web server")), "{said:?}");
        let said = said_of(Some(b"SSH-2.0-OpenSSH_9.2p1\r\n")).await;
        assert!(matches!(said, Some(Stranger::Program(text)) if text.starts_with("an SSH server")), "{said:?}");
        assert_eq!(said_of(None).await, Some(Stranger::Silent));
        assert_eq!(said_of(Some(b"")).await, None, "who hangs up may be a node");
        assert_eq!(said_of(Some(b"\x13/multistream/1.0.0\n")).await, None);
    }

    #[test]
    fn only_plain_tcp_addresses_are_asked() {
        let place = |text: &str| tcp_place(&text.parse().expect("an address"));
        assert_eq!(place("/ip4/127.0.0.1/tcp/80"), Some(("127.0.0.1".to_owned(), 80)));
        assert_eq!(place("/dns4/example.org/tcp/80"), Some(("example.org".to_owned(), 80)));
        assert_eq!(place("/ip4/127.0.0.1/udp/80/quic-v1"), None);
        assert_eq!(place("/ip4/127.0.0.1/tcp/80/ws"), None);
    }
}
