//! The status page on a loopback port.
//!
//! | request | answer |
//! |---|---|
//! | `GET /status` | a [`NodeReport`] |
//! | `GET /metrics` | the same for Prometheus |
//! | `GET /ticket` | an [`Invitation`] |
//! | `GET /api/v1/…` | the [stream of records](follow), and what the [dashboard](crate::web) asks for |
//! | `GET /` | the dashboard |
//! | `POST /checkpoint` | a [`SavedCheckpoint`](super::SavedCheckpoint), once it is on disk |
//! | `POST /finish` with a [`FinishWish`] | what was ordered: [`Finishing`](crate::daemon::finishing::Finishing) |
//! | `POST /block` with a [`BlockWish`] | who is shut out then: [`Blocked`](crate::daemon::blocking::Blocked) |
//!
//! Bodies are JSON. A `POST` changes something and needs the token of `daemon.json`.
//!
//! Only requests for a loopback name are answered: a web page could otherwise have its own name point to 127.0.0.1 (DNS
//! rebinding) and read the ticket through the visitor's browser. What a page of another origin asks for by itself is refused
//! as well, although it could not read the answer.

pub(crate) mod follow;
pub(super) mod refusal;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use self::follow::Following;
use self::refusal::refuse;
use super::CheckpointRequests;
use crate::daemon::blocking::{BlockWish, Blocker};
use crate::daemon::finishing::{FinishWish, Finisher};
use crate::daemon::invitation::Invitation;
use crate::failure::{ExitCode, Failure};
use crate::observe::Hub;
use crate::observe::metrics;
use crate::observe::report::NodeReport;
use crate::web::{self, About, Dashboard, Token};

/// Connections at once; with one more the oldest is closed, so that who holds all of them, without asking or without reading
/// answers, keeps nobody out. Any program of this machine may ask, and files are shared with the network.
const CONNECTIONS_MAX: usize = 64;

/// How long a request's header may take, and a connection be idle.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// The system has no file left for another connection, or something like it; it may have one a little later.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// What the page shows.
#[derive(Clone)]
pub struct Pages {
    /// How the node does.
    pub reports: watch::Receiver<NodeReport>,
    /// How others join.
    pub invitations: watch::Receiver<Invitation>,
    /// Whom `POST /checkpoint` asks.
    pub checkpoints: CheckpointRequests,
    /// Ends the run, for its founder.
    pub finisher: Finisher,
    /// Shuts peers out.
    pub blocker: Blocker,
    /// What views follow.
    pub hub: Hub,
    /// What the dashboard tells of the run.
    pub about: Arc<About>,
}

/// Answers until it is dropped.
#[derive(Debug)]
pub struct StatusServer {
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl StatusServer {
    /// Listens on `address`.
    ///
    /// # Errors
    /// When the port is taken.
    pub async fn listen(address: &str) -> Result<TcpListener, Failure> {
        TcpListener::bind(address).await.map_err(|error| {
            Failure::new(ExitCode::Network, format!("cannot listen on {address} for `murmur status`: {error}"))
                .hint("choose another port with --status-address, or turn it off with --status-address off")
        })
    }

    /// Serves the latest of each page. `token` is what changes need.
    ///
    /// # Errors
    /// When the system does not tell where it listens.
    pub fn start(listener: TcpListener, pages: Pages, token: &str) -> std::io::Result<StatusServer> {
        let address = listener.local_addr()?;
        let task = tokio::spawn(serve(listener, router(pages, token)));
        Ok(StatusServer { address, task })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for StatusServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers until it is dropped, and all connections with it.
async fn serve(listener: TcpListener, router: Router) {
    let mut connections = JoinSet::new();
    let mut oldest_first = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("the status page cannot take a connection: {error}");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        oldest_first.retain(|connection: &AbortHandle| !connection.is_finished());
        if oldest_first.len() >= CONNECTIONS_MAX
            && let Some(oldest) = oldest_first.pop_front()
        {
            oldest.abort();
        }
        let service = TowerToHyperService::new(router.clone());
        oldest_first.push_back(connections.spawn(async move {
            let mut connection = http1::Builder::new();
            connection.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
            if let Err(error) = connection.serve_connection(TokioIo::new(stream), service).await {
                tracing::debug!("a connection to the status page has ended: {error}");
            }
        }));
    }
}

fn router(pages: Pages, token: &str) -> Router {
    let report = |State(pages): State<Pages>| async move { Json(pages.reports.borrow().clone()) };
    let invitation = |State(pages): State<Pages>| async move { Json(pages.invitations.borrow().clone()) };
    let metrics = |State(pages): State<Pages>| async move {
        ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::rendered(&pages.reports.borrow()))
    };
    let checkpoint = |State(pages): State<Pages>| async move {
        match pages.checkpoints.write().await {
            Ok(saved) => Json(saved).into_response(),
            Err(reason) => refuse(StatusCode::CONFLICT, &reason.to_string(), "ask again in a moment"),
        }
    };
    let token = Token::new(token);
    let Pages { hub, reports, invitations, about, .. } = pages.clone();
    let dashboard = Dashboard::new(hub, reports, invitations, about, token);
    let followed = Router::new()
        .route("/picture", get(follow::picture))
        .route("/records", get(follow::records))
        .route("/stream", get(follow::stream))
        .with_state(Following::new(pages.hub.clone()))
        .merge(web::api(dashboard.clone()));
    Router::new()
        .route("/status", get(report))
        .route("/metrics", get(metrics))
        .route("/ticket", get(invitation))
        .route("/checkpoint", post(checkpoint))
        .route("/finish", post(finish))
        .route("/block", post(block))
        .with_state(pages)
        .nest("/api/v1", followed)
        .merge(web::site(dashboard))
        .fallback(no_such_page)
        .method_not_allowed_fallback(no_such_method)
        .layer(from_fn_with_state(token, changes_need_the_token))
        .layer(from_fn(only_for_loopback_names))
        .layer(from_fn(web::secured))
}

async fn finish(State(pages): State<Pages>, Json(wish): Json<FinishWish>) -> Response {
    match pages.finisher.finish(wish).await {
        Ok(finishing) => Json(finishing).into_response(),
        Err(reason) => refuse(StatusCode::CONFLICT, &reason.to_string(), reason.remedy()),
    }
}

async fn block(State(pages): State<Pages>, Json(wish): Json<BlockWish>) -> Response {
    let changed = tokio::task::spawn_blocking(move || pages.blocker.change(&wish)).await;
    match changed.unwrap_or_else(|error| Err(std::io::Error::other(error).into())) {
        Ok(blocked) => Json(blocked).into_response(),
        Err(reason) => refuse(StatusCode::CONFLICT, &reason.to_string(), reason.remedy()),
    }
}

async fn no_such_page(uri: Uri) -> Response {
    let error = format!("there is no page {}", uri.path());
    refuse(StatusCode::NOT_FOUND, &error, "/api/v1/openapi.json tells what there is; / is the page for people")
}

async fn no_such_method(method: Method, uri: Uri) -> Response {
    let error = format!("{} takes no {method}", uri.path());
    refuse(StatusCode::METHOD_NOT_ALLOWED, &error, "what only tells takes GET, what changes a daemon takes POST")
}

async fn only_for_loopback_names(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    if !host.is_some_and(is_loopback_name) {
        let error = "this page answers only as 127.0.0.1, [::1] or localhost";
        return refuse(StatusCode::FORBIDDEN, error, "ask one of these");
    }
    if is_of_another_page(&request) {
        return refuse(StatusCode::FORBIDDEN, "a page of another origin asks", "open this page itself");
    }
    next.run(request).await
}

/// Whether a browser says that a page of another origin asks, other than by a link that its visitor has followed.
fn is_of_another_page(request: &Request) -> bool {
    let says = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    let is_foreign = says("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none"));
    is_foreign && says("sec-fetch-mode") != Some("navigate")
}

async fn changes_need_the_token(State(token): State<Token>, request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) || token.is_in(request.headers()) {
        return next.run(request).await;
    }
    let hint = "send `Authorization: Bearer` with the token in daemon.json, in the daemon's data directory";
    refuse(StatusCode::UNAUTHORIZED, "what changes a daemon needs its token", hint)
}

/// Whether a `Host` header, with or without a port, names this machine itself. An address cannot be rebound, a name can.
fn is_loopback_name(host: &str) -> bool {
    let has_port = |port: &str| port.bytes().all(|digit| digit.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if has_port(port) => name,
        _ => host,
    };
    let bracketed = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let is_loopback = |address: IpAddr| address.is_loopback();
    match bracketed {
        Some(address) => address.parse().is_ok_and(|address| is_loopback(IpAddr::V6(address))),
        None => name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|v4| is_loopback(IpAddr::V4(v4))),
    }
}

#[cfg(test)]
mod tests {
    use murmur_protocol::RunManifest;
    use tokio::sync::mpsc;

    use super::*;

    #[test]
    fn only_names_of_this_machine_are_answered() {
        for host in ["127.0.0.1", "127.0.0.1:4780", "localhost", "LocalHost:1", "[::1]", "[::1]:4780", "127.0.0.2:1"] {
            assert!(is_loopback_name(host), "{host}");
        }
        let strangers = [
            "",
            "evil.example",
            "evil.example:4780",
            "localhost.evil.example",
            "127.0.0.1.evil.example:4780",
            "192.0.2.1",
            "0.0.0.0:4780",
            "::1",
            "[::]:1",
            "localhost:evil",
            "127.0.0.1:4780:1",
        ];
        for host in strangers {
            assert!(!is_loopback_name(host), "{host}");
        }
    }

    async fn answer(address: SocketAddr, first: &str, headers: &str) -> String {
        answer_to(address, first, headers, "").await
    }

    /// The status of a request with this first line, these headers and this body.
    async fn answer_to(address: SocketAddr, first: &str, headers: &str, body: &str) -> String {
        let answer = whole_answer(address, first, headers, body).await;
        answer.split_whitespace().nth(1).unwrap_or_default().to_owned()
    }

    async fn whole_answer(address: SocketAddr, first: &str, headers: &str, body: &str) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(address).await.expect("it listens");
        let request = format!("{first} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        answer
    }

    /// Of a node that nothing is known of, with the token "secret".
    async fn server() -> StatusServer {
        server_of(Hub::new("a", 0, std::time::Instant::now())).await
    }

    /// The same with these records.
    pub(super) async fn server_of(hub: Hub) -> StatusServer {
        let (_, reports) = watch::channel(NodeReport::default());
        let (_, invitations) = watch::channel(Invitation::default());
        let (events, _) = mpsc::channel(1);
        let identity = murmur_network::Keypair::generate_ed25519();
        let finisher = Finisher::new(&identity, &RunManifest::default(), reports.clone(), || None, events);
        let (admission, _) = watch::channel(murmur_network::Admission::default());
        let blocker = Blocker::new("nowhere".as_ref(), &Default::default(), admission, reports.clone());
        let checkpoints = CheckpointRequests::of_nobody();
        let about = Arc::default();
        let pages = Pages { reports, invitations, checkpoints, finisher, blocker, hub, about };
        let listener = StatusServer::listen("127.0.0.1:0").await.expect("a free port");
        StatusServer::start(listener, pages, "secret").expect("started")
    }

    #[tokio::test]
    async fn who_sends_no_request_or_reads_no_answer_keeps_nobody_out() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let server = server().await;
        let at = server.address();
        let host = format!("Host: {at}\r\n");
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            idle.push(tokio::net::TcpStream::connect(at).await.expect("it listens"));
        }
        assert_eq!(answer(at, "GET /status", &host).await, "200");
        for stream in &mut idle {
            let limit = HEADER_TIMEOUT + Duration::from_secs(2);
            let _ = tokio::time::timeout(limit, stream.read_to_end(&mut Vec::new())).await.expect("closed in time");
        }
        // Answers of more bytes than the system keeps for who does not read.
        let many = format!("GET /api/v1/openapi.json HTTP/1.1\r\n{host}\r\n").repeat(200);
        let mut deaf = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            let mut stream = tokio::net::TcpStream::connect(at).await.expect("it listens");
            stream.write_all(many.as_bytes()).await.expect("sent");
            deaf.push(stream);
        }
        assert_eq!(answer(at, "GET /status", &host).await, "200");
    }

    #[tokio::test]
    async fn what_is_not_there_is_named_in_the_answer() {
        let server = server().await;
        let at = server.address();
        let headers = format!("Host: {at}\r\nAuthorization: Bearer secret\r\n");
        let missing = ["GET /nothing", "POST /nothing/at/all", "GET /api/v1/nothing", "GET /assets/nothing"];
        let cases = missing.map(|first| (first, "404")).into_iter().chain([("GET /checkpoint", "405")]);
        for (first, status) in cases.chain([("POST /api/v1/summary", "405"), ("POST /healthz", "405")]) {
            let answer = whole_answer(at, first, &headers, "").await;
            let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{first}: {answer}");
            assert!(head.contains("content-type: application/json"), "{first}: {answer}");
            let denied: crate::drivers::Denied =
                serde_json::from_str(body).unwrap_or_else(|_| panic!("{first}: {answer}"));
            let (_, path) = first.split_once(' ').expect("a path");
            assert!(denied.error.contains(path) && !denied.hint.is_empty(), "{first}: {answer}");
        }
        let head = whole_answer(at, "HEAD /nothing", &headers, "").await;
        assert!(head.starts_with("HTTP/1.1 404 ") && head.ends_with("\r\n\r\n"), "{head}");
    }

    #[tokio::test]
    async fn a_page_of_another_name_learns_nothing_and_changes_need_the_token() {
        let server = server().await;
        let at = server.address();
        let host = format!("Host: {at}\r\n");
        assert_eq!(answer(at, "GET /ticket", &host).await, "200");
        assert_eq!(answer(at, "GET /ticket", "Host: evil.example\r\n").await, "403");
        assert_eq!(answer(at, "GET /", &host).await, "200");
        assert_eq!(answer(at, "GET /healthz", &host).await, "200");
        assert_eq!(answer(at, "GET /readyz", &host).await, "503", "there is no model");
        assert_eq!(answer(at, "POST /nothing", &host).await, "401");
        assert_eq!(answer(at, "POST /nothing", &format!("{host}Authorization: Bearer wrong\r\n")).await, "401");
        assert_eq!(answer(at, "POST /nothing", &format!("{host}Authorization: Bearer secret\r\n")).await, "404");
        assert_eq!(answer(at, "POST /checkpoint", &host).await, "401");
        let owner = format!("{host}Authorization: Bearer secret\r\n");
        assert_eq!(answer(at, "POST /checkpoint", &owner).await, "409", "there is no trainer");
        assert_eq!(answer(at, "GET /checkpoint", &owner).await, "405");
        let wish =
            format!("{host}Authorization: Bearer secret\r\nContent-Type: application/json\r\nContent-Length: 2\r\n");
        assert_eq!(answer_to(at, "POST /finish", &wish, "{}").await, "409", "not the founder");
        assert_eq!(answer_to(at, "POST /finish", &format!("{host}Content-Length: 2\r\n"), "{}").await, "401");
        assert_eq!(answer_to(at, "POST /block", &wish, "{}").await, "422", "a wish says what it wants");
        for (site, mode, status) in [
            ("cross-site", "no-cors", "403"),
            ("same-site", "cors", "403"),
            ("cross-site", "navigate", "200"),
            ("same-origin", "cors", "200"),
            ("none", "navigate", "200"),
        ] {
            let from_a_page = format!("{host}Sec-Fetch-Site: {site}\r\nSec-Fetch-Mode: {mode}\r\n");
            assert_eq!(answer(at, "GET /api/v1/records", &from_a_page).await, status, "{site} {mode}");
        }
        let stranger = "Host: evil.example\r\nAuthorization: Bearer secret\r\n";
        assert_eq!(answer(at, "POST /nothing", stranger).await, "403");
    }
}
