//! Requests by HTTP: redirects are followed here, one by one, so that keys stay with the host that they are for, nothing
//! leads from HTTPS to HTTP, and what a run names leads to no private address.
//!
//! An address is resolved once, by [`PublicResolver`], and the connection goes to what it has resolved to: a name that
//! means another machine a moment later (DNS rebinding) gains nothing.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use ureq::config::Config;
use ureq::http::{HeaderMap, StatusCode, Uri};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Body, Proxy};

use super::address::{split_login, without_keys};
use super::trouble::Trouble;

/// Redirects in a row: the hub makes two or three, browsers follow twenty.
const REDIRECTS_MAX: usize = 10;

/// Finding a host and connecting to it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Until a server begins to answer: a store may have to fetch the object first.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Between two pieces of an answer; after it the connection is given up and made anew.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// The longest answer of an interface that is read, in bytes: a list of 1,000 entries has a hundredth of it.
const ANSWER_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Names a port of loopback that counts as a public host, and is spoken to without TLS, for tests alone.
const TEST_PORT: &str = "MURMUR_TEST_PUBLIC_PORT";

/// Who has named a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The owner of this machine: it may lie in a private network.
    Anywhere,
    /// A run: public addresses alone, and no key of the owner's.
    Public,
}

/// A request to read something.
#[derive(Clone, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) url: &'a str,
    /// Sent to whoever answers in the end.
    pub(crate) headers: Vec<(&'static str, String)>,
    /// Keys: sent to the host of `url` alone, as are a name and a password in it where no key is an `authorization`.
    pub(crate) keys: Vec<(&'static str, String)>,
    pub(crate) reach: Reach,
    /// Whether redirects are followed; a signature holds for one address.
    pub(crate) follows: bool,
    /// Whether the owner has named a server that speaks plain HTTP (`AWS_ENDPOINT_URL`, `HF_ENDPOINT`).
    pub(crate) is_plain: bool,
}

/// What a server has said.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body,
}

/// Sends requests.
pub(crate) struct Client {
    /// Through the environment's proxy, where there is one.
    usual: Agent,
    /// Past any proxy.
    direct: Agent,
    /// Past any proxy, to public addresses alone.
    public: Agent,
    test_port: Option<u16>,
}

impl Client {
    /// Reads the environment: proxies, `SSL_CERT_FILE`.
    ///
    /// # Errors
    /// When the certificates there cannot be read.
    pub(crate) fn new() -> Result<Client, Trouble> {
        let test_port = std::env::var(TEST_PORT).ok().and_then(|port| port.parse().ok());
        Client::through(Proxy::try_from_env(), test_port)
    }

    fn through(proxy: Option<Proxy>, test_port: Option<u16>) -> Result<Client, Trouble> {
        let tls = TlsConfig::builder().root_certs(roots()?).build();
        let config = || {
            Agent::config_builder()
                .http_status_as_error(false)
                .max_redirects(0)
                .max_redirects_will_error(false)
                .tls_config(tls.clone())
                .user_agent(concat!("murmur/", env!("CARGO_PKG_VERSION")))
                .accept_encoding("identity")
                .timeout_resolve(Some(CONNECT_TIMEOUT))
                .timeout_connect(Some(CONNECT_TIMEOUT))
                .timeout_recv_response(Some(ANSWER_TIMEOUT))
                .timeout_per_read(Some(SILENCE_MAX))
        };
        let direct = config().proxy(None).build();
        let public = Agent::with_parts(direct.clone(), DefaultConnector::new(), PublicResolver::new(test_port));
        Ok(Client { usual: config().proxy(proxy).build().new_agent(), direct: direct.new_agent(), public, test_port })
    }

    /// Sends a request and follows redirects.
    ///
    /// # Errors
    /// When nobody answers, or it leads where it may not.
    pub(crate) fn get(&self, request: &Request<'_>) -> Result<Answer, Trouble> {
        let (bare, login) = split_login(request.url);
        let first = parsed(&bare)?;
        let place = without_keys(request.url);
        let mut keys = request.keys.clone();
        if !keys.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization")) {
            keys.extend(login.map(|login| ("authorization", login)));
        }
        self.check_scheme(&first, request.is_plain, &place)?;
        let (mut url, mut is_own) = (first.clone(), true);
        for _ in 0..=REDIRECTS_MAX {
            let agent = self.agent(&first, &url, request.reach);
            let mut call = agent.get(self.dialed(&url));
            for (name, value) in request.headers.iter().chain(keys.iter().filter(|_| is_own)) {
                call = call.header(*name, value);
            }
            let answer = call.call().map_err(|error| unreachable(&place, &url, error))?;
            let target = answer.headers().get("location").and_then(|target| target.to_str().ok());
            let Some(target) = target.filter(|_| answer.status().is_redirection() && request.follows) else {
                let (head, body) = answer.into_parts();
                return Ok(Answer { status: head.status, headers: head.headers, body });
            };
            let next = joined(&url, target).ok_or_else(|| server(&place, "it leads to no address", false))?;
            self.check_scheme(&next, request.is_plain, &place)?;
            if url.scheme_str() == Some("https") && next.scheme_str() != Some("https") {
                let to = without_keys(&next.to_string());
                return Err(Trouble::Astray { place, to, reason: "which is not encrypted" });
            }
            // Once away, keys are not sent again, even if it leads back.
            is_own = is_own && origin(&next) == origin(&first);
            url = next;
        }
        Err(server(&place, "it leads from one address to the next without an end", false))
    }

    /// An owner's place may be private. From a public one nothing leads into a private network, where no proxy decides: one is there,
    /// and `NO_PROXY` does not name the host.
    fn agent(&self, first: &Uri, url: &Uri, reach: Reach) -> &Agent {
        let is_here = is_loopback(url);
        match reach {
            Reach::Public => &self.public,
            Reach::Anywhere if origin(first) == origin(url) && is_here => &self.direct,
            Reach::Anywhere if origin(first) == origin(url) || self.is_proxied(url) => &self.usual,
            Reach::Anywhere if self.is_private(first) => &self.direct,
            Reach::Anywhere => &self.public,
        }
    }

    fn is_proxied(&self, url: &Uri) -> bool {
        self.usual.config().proxy().is_some_and(|proxy| !proxy.is_no_proxy(url))
    }

    fn is_private(&self, url: &Uri) -> bool {
        let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
        let found = (host, url.port_u16().unwrap_or(443)).to_socket_addrs();
        found.is_ok_and(|mut found| found.any(|address| is_refused(address, self.test_port)))
    }

    /// The address as it is dialed: under test one port of this machine is spoken to without TLS.
    fn dialed(&self, url: &Uri) -> Uri {
        let is_tested = self.test_port.is_some() && url.port_u16() == self.test_port && is_loopback(url);
        let plain = is_tested.then(|| url.to_string().replacen("https://", "http://", 1).parse().ok()).flatten();
        plain.unwrap_or_else(|| url.clone())
    }

    /// HTTPS, or HTTP by the owner's word (`AWS_ENDPOINT_URL`, `HF_ENDPOINT`).
    fn check_scheme(&self, url: &Uri, is_plain: bool, place: &str) -> Result<(), Trouble> {
        if url.scheme_str() == Some("https") || (is_plain && url.scheme_str() == Some("http")) {
            return Ok(());
        }
        let to = without_keys(&url.to_string());
        Err(Trouble::Astray { place: place.to_owned(), to, reason: "which is not encrypted" })
    }
}

impl Answer {
    /// A header's text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The whole answer as text.
    ///
    /// # Errors
    /// When the line breaks, or it is longer than any answer of an interface.
    pub(crate) fn text(mut self, place: &str) -> Result<String, Trouble> {
        let text = self.body.with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        text.map_err(|error| Trouble::Server { place: place.to_owned(), words: error.to_string(), is_passing: true })
    }
}

/// Trouble of a server's own.
pub(crate) fn server(place: &str, words: impl Into<String>, is_passing: bool) -> Trouble {
    Trouble::Server { place: place.to_owned(), words: words.into(), is_passing }
}

/// Whether it may go away by itself: the server is busy, or has trouble of its own.
pub(crate) fn is_passing(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
}

fn parsed(url: &str) -> Result<Uri, Trouble> {
    url.parse().map_err(|_| server(&without_keys(url), "this is no address", false))
}

/// Where a redirect leads (RFC 3986, 5.2, as far as servers use it); a fragment is for the reader alone.
fn joined(base: &Uri, target: &str) -> Option<Uri> {
    let target = target.split('#').next().unwrap_or_default();
    let (scheme, authority) = (base.scheme_str()?, base.authority()?.as_str());
    // A colon may also stand in a path or a query: only letters before it make it a scheme's.
    let names_scheme = target.split_once("://").is_some_and(|(before, _)| {
        before.starts_with(|first: char| first.is_ascii_alphabetic())
            && before.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
    });
    let whole = match target {
        _ if names_scheme => target.to_owned(),
        _ if target.starts_with("//") => format!("{scheme}:{target}"),
        _ if target.starts_with('/') => format!("{scheme}://{authority}{target}"),
        _ if target.starts_with('?') || target.is_empty() => format!("{scheme}://{authority}{}{target}", base.path()),
        _ => {
            let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
            format!("{scheme}://{authority}{folder}/{target}")
        }
    };
    whole.parse().ok().filter(|uri: &Uri| uri.host().is_some_and(|host| !host.is_empty()))
}

/// What keys belong to: scheme, host and port.
fn origin(url: &Uri) -> (Option<String>, Option<String>, u16) {
    let usual = if url.scheme_str() == Some("http") { 80 } else { 443 };
    (
        url.scheme_str().map(str::to_ascii_lowercase),
        url.host().map(str::to_ascii_lowercase),
        url.port_u16().unwrap_or(usual),
    )
}

fn is_loopback(url: &Uri) -> bool {
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

fn unreachable(place: &str, url: &Uri, error: ureq::Error) -> Trouble {
    let host = url.host().unwrap_or_default().to_owned();
    let reason = match error {
        ureq::Error::Io(error) => match error.get_ref().and_then(|inner| inner.downcast_ref::<PrivateAddress>()) {
            Some(private) => {
                let (place, to) = (place.to_owned(), format!("{host} ({private})"));
                return Trouble::Astray { place, to, reason: "an address of a private network" };
            }
            None => error.to_string(),
        },
        ureq::Error::Timeout(_) => "nobody answers in time".to_owned(),
        ureq::Error::HostNotFound => "no such host is known".to_owned(),
        error => error.to_string(),
    };
    Trouble::Unreachable { host, reason }
}

/// The owner's certificates instead of those that browsers trust, where `SSL_CERT_FILE` names some.
fn roots() -> Result<RootCerts, Trouble> {
    let Some(path) = std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()) else {
        return Ok(RootCerts::WebPki);
    };
    let unusable = |reason: String| Trouble::Unfit {
        place: format!("SSL_CERT_FILE = {}", path.display()),
        reason: "holds no certificates that can be read",
        hint: format!("it takes a file of certificates in PEM, or unset it ({reason})"),
    };
    let text = std::fs::read(&path).map_err(|error| unusable(error.to_string()))?;
    let certificates: Vec<_> = parse_pem(&text)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        Err(unusable("it has none".to_owned()))
    } else {
        Ok(RootCerts::new_with_certs(&certificates))
    }
}

/// Whether an address is one of the public internet (IANA's registries of special-purpose addresses, RFC 6890).
fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let is_special = match (a, b, c) {
        (0 | 10 | 127 | 224.., ..) => true, // this network, private, loopback, multicast and above
        (100, 64..=127, _) => true,         // behind a provider's NAT (RFC 6598)
        (169, 254, _) | (172, 16..=31, _) | (192, 168, _) => true,
        (192, 0, 0 | 2) | (192, 88, 99) | (198, 18 | 19, _) | (198, 51, 100) | (203, 0, 113) => true,
        _ => false,
    };
    !is_special
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let parts = ip.segments();
    let last = Ipv4Addr::from((u32::from(parts[6]) << 16) | u32::from(parts[7]));
    match parts {
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => is_public_v4(last), // NAT64 (RFC 6052)
        // Teredo and protocols, examples (RFC 3849 and 9637), 6to4.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] | [0x2002, ..] => false,
        // All else that is public today is in 2000::/3.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

/// Whether an address is none of the public internet's, but for the port of a test.
fn is_refused(address: SocketAddr, test_port: Option<u16>) -> bool {
    let is_tested = address.ip().is_loopback() && test_port == Some(address.port());
    !(is_public(address.ip()) || is_tested)
}

/// Resolves to public addresses alone: where one of a name's is private, the whole name is refused.
#[derive(Debug)]
struct PublicResolver {
    inner: DefaultResolver,
    test_port: Option<u16>,
}

impl PublicResolver {
    fn new(test_port: Option<u16>) -> PublicResolver {
        PublicResolver { inner: DefaultResolver::default(), test_port }
    }
}

impl Resolver for PublicResolver {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = self.inner.resolve(uri, config, timeout)?;
        let private = found.iter().find(|address| is_refused(**address, self.test_port));
        match private {
            None => Ok(found),
            Some(address) => {
                Err(ureq::Error::Io(io::Error::new(io::ErrorKind::PermissionDenied, PrivateAddress(address.ip()))))
            }
        }
    }
}

/// The address that a name has resolved to.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct PrivateAddress(IpAddr);

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    use ureq::ProxyProtocol;

    use super::*;

    /// A server of one connection at a time, with an answer for each; what `Authorization` each request had.
    fn server_of(answers: Vec<String>) -> (SocketAddr, JoinHandle<Vec<Option<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let serve = move |answer: String| {
            let (mut stream, _) = listener.accept().expect("a connection");
            let head = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
            let told = head.filter_map(|line| Some(line.split_once(": ")?.1.to_owned()).filter(|_| is_login(&line)));
            let told = told.last();
            let ends = "Content-Length: 0\r\nConnection: close\r\n\r\n";
            stream.write_all(format!("HTTP/1.1 {answer}\r\n{ends}").as_bytes()).expect("answered");
            told
        };
        (address, std::thread::spawn(move || answers.into_iter().map(serve).collect()))
    }

    fn is_login(line: &str) -> bool {
        line.to_ascii_lowercase().starts_with("authorization:")
    }

    #[test]
    fn a_password_in_an_address_is_decoded_and_goes_to_its_own_host_alone() {
        let (other, of_other) = server_of(vec!["200 OK".to_owned()]);
        let leads = |to: &str| format!("302 Found\r\nLocation: {to}");
        let (own, of_own) = server_of(vec![leads("/g"), leads(&format!("http://{other}/h"))]);
        let client = Client::through(None, None).expect("no certificates of the user's own");
        let url = format!("http://me:a%2Fb@{own}/f");
        let (headers, keys) = (Vec::new(), Vec::new());
        let request = Request { url: &url, headers, keys, reach: Reach::Anywhere, follows: true, is_plain: true };
        let answer = client.get(&request);
        assert!(answer.is_ok_and(|answer| answer.status == StatusCode::OK));
        // Base64 of `me:a/b`.
        let login = Some("Basic bWU6YS9i".to_owned());
        assert_eq!(of_own.join().expect("no panic"), [login.clone(), login]);
        assert_eq!(of_other.join().expect("no panic"), [None]);
    }

    /// ureq goes past the proxy to hosts of `NO_PROXY`, so that no proxy decides where a public place leads.
    #[test]
    fn a_host_that_no_proxy_is_for_is_reached_at_public_addresses_alone() {
        let proxy = Proxy::builder(ProxyProtocol::Http).host("127.0.0.1").port(9).no_proxy("10.0.0.1");
        let client = Client::through(proxy.build().ok(), None).expect("no certificates of the user's own");
        let leads = |to: &str| {
            let [first, to] = ["https://8.8.8.8/", to].map(|url| url.parse().expect("an address"));
            let agent = client.agent(&first, &to, Reach::Anywhere);
            (std::ptr::eq(agent, &client.usual), std::ptr::eq(agent, &client.public))
        };
        assert_eq!(leads("https://10.0.0.1/"), (false, true));
        assert_eq!(leads("https://10.0.0.2/"), (true, false), "the proxy decides");
        assert_eq!(leads("https://8.8.8.8/f"), (true, false), "the owner's own word");
    }

    #[test]
    fn addresses_that_mean_another_machine_elsewhere_are_not_public() {
        for public in ["8.8.8.8", "172.32.0.1", "100.128.0.1", "2600::1", "64:ff9b::808:808", "2001:4860::8888"] {
            assert!(is_public(public.parse().expect("an address")), "{public}");
        }
        for private in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "0.1.2.3",
            "192.0.0.8",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "::1",
            "::",
            "fd00::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "64:ff9b::a00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "3fff::1",
            "2001::1",
            "::127.0.0.1",
        ] {
            assert!(!is_public(private.parse().expect("an address")), "{private}");
        }
    }

    #[test]
    fn a_redirect_leads_from_where_it_stands() {
        let base: Uri = "https://a.example:8443/x/y?q=1".parse().expect("an address");
        for (target, expected) in [
            ("/z", "https://a.example:8443/z"),
            ("z?k=2#f", "https://a.example:8443/x/z?k=2"),
            ("//b.example/z", "https://b.example/z"),
            ("http://c.example/z", "http://c.example/z"),
            ("/go?to=https://d.example/", "https://a.example:8443/go?to=https://d.example/"),
            ("go?to=https://d.example/", "https://a.example:8443/x/go?to=https://d.example/"),
            ("?page=2", "https://a.example:8443/x/y?page=2"),
        ] {
            assert_eq!(joined(&base, target).map(|uri| uri.to_string()).as_deref(), Some(expected), "{target}");
        }
        assert_eq!(joined(&base, "https://"), None);
        let same = |url: &str| origin(&url.parse().expect("an address")) == origin(&base);
        assert!(same("https://A.example:8443/") && !same("https://a.example/") && !same("http://a.example:8443/"));
    }
}
