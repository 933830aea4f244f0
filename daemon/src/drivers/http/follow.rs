//! `/api/v1`: what views follow a daemon by.
//!
//! | request | answer |
//! |---|---|
//! | `GET /api/v1/picture` | the [`Picture`](crate::observe::Picture) so far, whose node says the number of its last record |
//! | `GET /api/v1/records?after=SEQ` | the records after that number as JSON Lines, a thousand at most |
//! | `…&wait=SECONDS` | waits so long, 30 at most, where there are none yet |
//! | `GET /api/v1/stream` | the same as server-sent events; `Last-Event-ID` or `?after=` says where to go on |
//!
//! Fields of version 1 are only ever added. A reader that was away for longer than records are kept gets one that says how
//! many it has missed.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::refusal::refuse;
use crate::observe::Hub;
use crate::observe::hub::News;

/// Records in one answer.
const RECORDS_MAX: usize = 1000;

/// The longest that a request may wait for a record.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Readers that wait or follow at once: so many views of one daemon, and connections are left for commands.
const FOLLOWERS_MAX: usize = 16;

/// How soon a reader of events is to come back when its connection is lost.
const RETRY: Duration = Duration::from_secs(3);

/// How often a quiet stream shows that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// What the answers are made of.
#[derive(Clone, Debug)]
pub(crate) struct Following {
    hub: Hub,
    places: Arc<Semaphore>,
}

impl Following {
    pub(crate) fn new(hub: Hub) -> Following {
        Following { hub, places: Arc::new(Semaphore::new(FOLLOWERS_MAX)) }
    }

    fn place(&self) -> Option<OwnedSemaphorePermit> {
        self.places.clone().try_acquire_owned().ok()
    }
}

pub(super) async fn picture(State(following): State<Following>) -> Response {
    plain(Json(following.hub.picture()).into_response())
}

pub(super) async fn records(State(following): State<Following>, uri: Uri) -> Response {
    let (after, wait) = match (number(&uri, "after"), number(&uri, "wait")) {
        (Ok(after), Ok(wait)) => (after.unwrap_or(0), Duration::from_secs(wait.unwrap_or(0)).min(WAIT_MAX)),
        (Err(name), _) | (_, Err(name)) => return no_number(name),
    };
    let mut changes = following.hub.news();
    changes.mark_unchanged();
    let mut news = following.hub.after(after, RECORDS_MAX);
    if news.records.is_empty() && !wait.is_zero() {
        let Some(_place) = following.place() else { return too_many() };
        let _ = tokio::time::timeout(wait, changes.changed()).await;
        news = following.hub.after(after, RECORDS_MAX);
    }
    let mut lines: String = missed(&following.hub, &news).map_or_else(String::new, |(_, line)| line + "\n");
    for told in &news.records {
        lines.push_str(&told.line);
        lines.push('\n');
    }
    plain(([(header::CONTENT_TYPE, "application/jsonl; charset=utf-8")], lines).into_response())
}

pub(super) async fn stream(State(following): State<Following>, request: Request) -> Response {
    let last = request.headers().get("last-event-id").and_then(|id| id.to_str().ok()?.trim().parse().ok());
    let after = match number(request.uri(), "after") {
        Ok(after) => last.or(after).unwrap_or(0),
        Err(name) => return no_number(name),
    };
    let Some(place) = following.place() else { return too_many() };
    let reader = Reader { changes: following.hub.news(), hub: following.hub, after, ready: VecDeque::new(), place };
    let events = stream::unfold(reader, |mut reader| async move {
        let event = reader.next().await?;
        Some((Ok::<Event, Infallible>(event), reader))
    });
    plain(Sse::new(events).into_response())
}

/// One reader of the stream. It holds as many records as one answer does, whatever the speed at which it reads.
struct Reader {
    hub: Hub,
    changes: watch::Receiver<u64>,
    after: u64,
    ready: VecDeque<(u64, String)>,
    #[expect(dead_code, reason = "held until the stream ends")]
    place: OwnedSemaphorePermit,
}

impl Reader {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((seq, line)) = self.ready.pop_front() {
                return Some(Event::default().id(seq.to_string()).retry(RETRY).data(line));
            }
            self.changes.mark_unchanged();
            let news = self.hub.after(self.after, RECORDS_MAX);
            self.ready.extend(missed(&self.hub, &news));
            for told in &news.records {
                self.after = told.record.seq;
                self.ready.push_back((told.record.seq, told.line.clone()));
            }
            if self.ready.is_empty() {
                match tokio::time::timeout(KEEP_ALIVE, self.changes.changed()).await {
                    Ok(changed) => changed.ok()?,
                    Err(_) => return Some(Event::default().comment("nothing new")),
                }
            }
        }
    }
}

/// What stands for the records that a reader has missed: the number of the last of them, and its line.
fn missed(hub: &Hub, news: &News) -> Option<(u64, String)> {
    let first = news.records.first().filter(|_| news.missed > 0)?;
    let seq = first.record.seq - 1;
    Some((seq, hub.missed(news.missed, seq).line()))
}

/// A number of a query; its name where it is none.
fn number(uri: &Uri, name: &'static str) -> Result<Option<u64>, &'static str> {
    let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next_back();
    value.map(|value| value.parse().map_err(|_| name)).transpose()
}

fn no_number(name: &str) -> Response {
    refuse(StatusCode::BAD_REQUEST, &format!("{name} is a whole number"), "such as /api/v1/records?after=0")
}

fn too_many() -> Response {
    let error = format!("{FOLLOWERS_MAX} views follow this daemon already");
    refuse(StatusCode::SERVICE_UNAVAILABLE, &error, "close one of them")
}

/// An answer that is data and nothing else, and true only now.
fn plain(mut response: Response) -> Response {
    let said = [(header::CACHE_CONTROL, "no-store"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    let said = said.map(|(name, value): (HeaderName, &'static str)| (name, HeaderValue::from_static(value)));
    response.headers_mut().extend(said);
    response
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Instant;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::super::tests::server_of;
    use super::*;
    use crate::observe::hub::RECENT_MAX;
    use crate::observe::record::EventFacts;
    use crate::observe::{Body, Picture, Record};

    /// A hub with so many records.
    fn hub(records: u64) -> Hub {
        let hub = Hub::new("a", 0, Instant::now());
        (0..records).for_each(|number| tell(&hub, number));
        hub
    }

    fn tell(hub: &Hub, number: u64) {
        hub.tell(Body::Event(EventFacts { text: format!("event {number}"), ..EventFacts::default() }));
    }

    async fn ask(at: SocketAddr, page: &str, headers: &str) -> TcpStream {
        let mut stream = TcpStream::connect(at).await.expect("it listens");
        let request = format!("GET /api/v1/{page} HTTP/1.1\r\nHost: {at}\r\n{headers}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        stream
    }

    /// The head and the body of an answer.
    async fn get(at: SocketAddr, page: &str) -> (String, String) {
        let mut answer = String::new();
        ask(at, page, "").await.read_to_string(&mut answer).await.expect("an answer");
        answer.split_once("\r\n\r\n").map(|(head, body)| (head.to_lowercase(), body.to_owned())).expect("a head")
    }

    fn seqs(lines: &str) -> Vec<u64> {
        lines.lines().map(|line| Record::parse(line).expect("a record").seq).collect()
    }

    #[tokio::test]
    async fn records_are_lines_from_where_the_reader_was() {
        let hub = hub(5);
        let server = server_of(hub.clone()).await;
        let at = server.address();
        let (head, body) = get(at, "records?after=3").await;
        assert!(head.contains("application/jsonl") && head.contains("no-store"), "{head}");
        assert_eq!(seqs(&body), [4, 5]);
        assert_eq!(seqs(&get(at, "records").await.1).len(), 5);
        assert!(get(at, "records?after=x").await.0.starts_with("http/1.1 400"));
        let waiting = tokio::spawn(async move { get(at, "records?after=5&wait=20").await.1 });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!waiting.is_finished(), "there is nothing to tell");
        tell(&hub, 6);
        assert_eq!(seqs(&waiting.await.expect("an answer")), [6]);
        let picture: Picture = serde_json::from_str(&get(at, "picture").await.1).expect("a picture");
        assert_eq!(picture.nodes["a"].seq, 6);
    }

    #[tokio::test]
    async fn a_stream_goes_on_after_the_last_event_that_the_reader_has() {
        let hub = hub(RECENT_MAX as u64 + 10);
        let server = server_of(hub.clone()).await;
        let last = RECENT_MAX as u64 + 10;
        let read = async |headers: &str, until: &str| {
            let mut stream = ask(server.address(), "stream", headers).await;
            let mut text = String::new();
            while !text.contains(until) {
                let mut bytes = [0; 4096];
                let length = stream.read(&mut bytes).await.expect("more");
                assert!(length > 0, "it has ended: {text}");
                text.push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
            text
        };
        let text = read(&format!("Last-Event-ID: {}\r\n", last - 1), &format!("id: {last}")).await;
        assert!(text.contains("text/event-stream") && !text.contains(&format!("id: {}\n", last - 1)), "{text}");
        let text = read("Last-Event-ID: 3\r\n", "id: 11").await;
        assert!(text.contains("id: 10\n") && text.contains(r#""kind":"missed","count":7"#), "{text}");
    }

    #[tokio::test]
    async fn readers_that_follow_leave_room_for_commands() {
        let server = server_of(hub(1)).await;
        let at = server.address();
        let mut held = Vec::new();
        for _ in 0..FOLLOWERS_MAX {
            let mut stream = ask(at, "stream", "").await;
            stream.read_exact(&mut [0; 12]).await.expect("an answer");
            held.push(stream);
        }
        assert!(get(at, "stream").await.0.starts_with("http/1.1 503"));
        assert!(get(at, "records").await.0.starts_with("http/1.1 200"), "what waits for nothing is answered");
        drop(held);
        let mut tries = 0;
        while get(at, "records?after=1&wait=1").await.0.starts_with("http/1.1 503") {
            tries += 1;
            assert!(tries < 1000, "places are given back");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
