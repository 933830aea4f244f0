//! A server of files on loopback that fails as it is told: plain files with parts and validators as RFC 9110 has them, a
//! bucket of an S3 store with its lists in pages, and a hub in the manner of Hugging Face's. It keeps what it was asked.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use sha1::{Digest, Sha1};
use sha2::Sha256;

/// Keys on a page of a list: Amazon's own number.
const PAGE_KEYS: usize = 1000;

/// Files on a page of a hub's list: few, so that small repositories have several.
const PAGE_FILES: usize = 2;

/// What the server has, and how it fails.
#[derive(Clone, Debug, Default)]
pub struct Store {
    /// Files by path, from the first slash on.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Where paths lead instead.
    pub redirects: BTreeMap<String, String>,
    /// Objects by bucket and key.
    pub buckets: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    /// The access key without which no bucket is read, if there is one.
    pub access_key: Option<String>,
    /// Repositories of the hub, by `models/OWNER/NAME` or `datasets/OWNER/NAME`.
    pub repositories: BTreeMap<String, Repository>,
    /// The token without which no repository is read, if there is one.
    pub token: Option<String>,
    /// How the next answers with contents fail, in order.
    pub faults: Vec<Fault>,
    /// Whether answers name their content by a validator.
    pub has_validators: bool,
    /// Whether lists of objects go on for ever, with nothing on their pages.
    pub is_endless: bool,
    /// What was asked.
    pub asked: Vec<Asked>,
}

/// A repository of the hub.
#[derive(Clone, Debug, Default)]
pub struct Repository {
    /// What its branch `main` is at: 40 hexadecimal digits.
    pub commit: String,
    /// Files, each with whether the hub keeps it as a large one.
    pub files: BTreeMap<String, (Vec<u8>, bool)>,
}

/// How an answer fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection ends after so many bytes of the content.
    Cut(usize),
    /// Nothing comes any more after so many bytes; the connection stays.
    Stall(usize),
    /// The answer is this status.
    Status(u16),
    /// A byte of the content is another one.
    Flip,
    /// No length is told, and zeros follow the content without end.
    Endless,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Such as GET.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// In lower case, with their values.
    pub headers: BTreeMap<String, String>,
}

/// A server on loopback. Dropping it closes its port.
pub struct FakeStore {
    /// Where it listens.
    pub address: SocketAddr,
    store: Arc<Mutex<Store>>,
    stops: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl FakeStore {
    /// Listens at a port that the system chooses.
    ///
    /// # Panics
    /// When there is none.
    pub fn start(store: Store) -> FakeStore {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (store, stops) = (Arc::new(Mutex::new(store)), Arc::new(AtomicBool::new(false)));
        let (served, ends) = (store.clone(), stops.clone());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                let (served, ends) = (served.clone(), ends.clone());
                std::thread::spawn(move || stream.and_then(|stream| serve(stream, address, &served, &ends)));
            }
        });
        FakeStore { address, store, stops, thread: Some(thread) }
    }

    /// What it has.
    ///
    /// # Panics
    /// Never: no thread panics with it.
    pub fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().expect("no thread panics")
    }

    /// Its address, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Takes what it was asked so far.
    pub fn take_asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.store().asked)
    }
}

impl Drop for FakeStore {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// An answer, before faults.
struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    content: Vec<u8>,
    /// Whether it is a file, which has parts and may fail.
    is_file: bool,
}

impl Answer {
    fn of(status: u16, content: impl Into<Vec<u8>>) -> Answer {
        Answer { status, headers: Vec::new(), content: content.into(), is_file: false }
    }

    fn json(value: &Value) -> Answer {
        let mut answer = Answer::of(200, value.to_string());
        answer.headers.push(("Content-Type", "application/json".to_owned()));
        answer
    }

    fn file(content: &[u8], etag: Option<String>) -> Answer {
        let mut answer = Answer::of(200, content);
        answer.headers.extend(etag.map(|etag| ("ETag", etag)));
        answer.is_file = true;
        answer
    }

    fn to(place: &str) -> Answer {
        let mut answer = Answer::of(302, "");
        answer.headers.push(("Location", place.to_owned()));
        answer
    }
}

fn serve(stream: TcpStream, address: SocketAddr, store: &Mutex<Store>, ends: &AtomicBool) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ').map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let pair = |line: &str| line.split_once(':').map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()));
    let asked = Asked { method, target, headers: lines.filter_map(pair).collect() };
    let mut store = store.lock().expect("no thread panics");
    let mut answer = store.answer(&asked, address);
    let fault = (answer.is_file && answer.status < 300 && asked.method == "GET" && !store.faults.is_empty())
        .then(|| store.faults.remove(0));
    store.asked.push(asked.clone());
    drop(store);
    if answer.is_file {
        answer = part(answer, &asked);
    }
    let length = answer.content.len();
    let sent = match fault {
        Some(Fault::Cut(bytes) | Fault::Stall(bytes)) => bytes.min(length),
        Some(Fault::Status(status)) => {
            answer = Answer::of(status, "");
            0
        }
        Some(Fault::Flip) if length > 0 => {
            answer.content[length / 2] ^= 1;
            length
        }
        _ => length,
    };
    let mut text = format!("HTTP/1.1 {} X\r\nConnection: close\r\nAccept-Ranges: bytes\r\n", answer.status);
    for (name, value) in &answer.headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if !matches!(fault, Some(Fault::Endless)) {
        text.push_str(&format!("Content-Length: {}\r\n", answer.content.len()));
    }
    (&stream).write_all(format!("{text}\r\n").as_bytes())?;
    if asked.method != "HEAD" {
        (&stream).write_all(&answer.content[..sent])?;
    }
    while matches!(fault, Some(Fault::Endless)) && !ends.load(Ordering::SeqCst) {
        (&stream).write_all(&[0; 64 * 1024])?;
    }
    if matches!(fault, Some(Fault::Stall(_))) {
        // Until the other side goes, or the test is over.
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        while !ends.load(Ordering::SeqCst) && !matches!((&stream).read(&mut [0]), Ok(0)) {}
    }
    Ok(())
}

/// The part of a file that is asked for (RFC 9110, 14), or that there is nothing new.
fn part(mut answer: Answer, asked: &Asked) -> Answer {
    let etag = answer.headers.iter().find(|(name, _)| *name == "ETag").map(|(_, value)| value.clone());
    if etag.is_some() && asked.headers.get("if-none-match") == etag.as_ref() {
        return Answer { status: 304, content: Vec::new(), ..answer };
    }
    let is_same = asked.headers.get("if-range").is_none_or(|wanted| Some(wanted) == etag.as_ref());
    let range = asked.headers.get("range").and_then(|range| range.strip_prefix("bytes=")).filter(|_| is_same);
    let Some((from, to)) = range.and_then(|range| range.split_once('-')) else { return answer };
    let total = answer.content.len();
    let Ok(from) = from.parse::<usize>() else { return answer };
    if from >= total {
        answer.headers.push(("Content-Range", format!("bytes */{total}")));
        return Answer { status: 416, content: Vec::new(), ..answer };
    }
    let to = to.parse::<usize>().map_or(total - 1, |to| to.min(total - 1));
    answer.headers.push(("Content-Range", format!("bytes {from}-{to}/{total}")));
    Answer { status: 206, content: answer.content[from..=to].to_vec(), ..answer }
}

impl Store {
    fn answer(&self, asked: &Asked, address: SocketAddr) -> Answer {
        let (path, query) = asked.target.split_once('?').unwrap_or((&asked.target, ""));
        let path = decoded(path);
        if let Some(place) = self.redirects.get(&path) {
            return Answer::to(place);
        }
        if let Some(content) = self.files.get(&path) {
            return Answer::file(content, self.has_validators.then(|| format!("\"{}\"", &sha256(content)[..16])));
        }
        let mut parts = path.trim_start_matches('/').splitn(2, '/');
        let (first, rest) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        match self.buckets.get(first) {
            Some(objects) => self.object(objects, rest, query, asked),
            None => self.hub(&path, query, asked, address),
        }
    }

    /// An object, or a page of a list (ListObjectsV2).
    fn object(&self, objects: &BTreeMap<String, Vec<u8>>, key: &str, query: &str, asked: &Asked) -> Answer {
        let authorization = asked.headers.get("authorization").map_or("", String::as_str);
        if self.access_key.as_ref().is_some_and(|key| !authorization.contains(&format!("Credential={key}/"))) {
            return Answer::of(403, "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>");
        }
        let etag = |content: &[u8]| format!("\"{}\"", &sha256(content)[..32]);
        if !key.is_empty() {
            return match objects.get(key) {
                Some(content) => Answer::file(content, Some(etag(content))),
                None => Answer::of(404, "<Error><Code>NoSuchKey</Code></Error>"),
            };
        }
        let of = |name: &str| {
            let pair = query.split('&').filter_map(|pair| pair.split_once('=')).find(|(known, _)| *known == name);
            pair.map(|(_, value)| decoded(value))
        };
        if self.is_endless {
            let next = "<IsTruncated>true</IsTruncated><NextContinuationToken>a</NextContinuationToken>";
            return Answer::of(200, format!("<ListBucketResult>{next}</ListBucketResult>"));
        }
        let (prefix, after) = (of("prefix").unwrap_or_default(), of("continuation-token").unwrap_or_default());
        let mut found = objects.iter().filter(|(key, _)| key.starts_with(&prefix) && **key > after).peekable();
        let mut page = String::new();
        let mut last = String::new();
        for (key, content) in found.by_ref().take(PAGE_KEYS) {
            let (tag, bytes) = (etag(content).replace('"', "&quot;"), content.len());
            page.push_str(&format!("<Contents><Key>{key}</Key><Size>{bytes}</Size><ETag>{tag}</ETag></Contents>"));
            last.clone_from(key);
        }
        let more = match found.peek() {
            Some(_) => format!("<IsTruncated>true</IsTruncated><NextContinuationToken>{last}</NextContinuationToken>"),
            None => "<IsTruncated>false</IsTruncated>".to_owned(),
        };
        Answer::of(200, format!("<ListBucketResult>{more}{page}</ListBucketResult>"))
    }

    /// The hub: its interface, and files behind a redirect to another host, as the hub's large ones are.
    fn hub(&self, path: &str, query: &str, asked: &Asked, address: SocketAddr) -> Answer {
        let authorization = asked.headers.get("authorization").map_or("", String::as_str);
        let is_at_store = query.contains("at=store");
        let is_denied =
            !is_at_store && self.token.as_ref().is_some_and(|token| authorization != format!("Bearer {token}"));
        let missing = || {
            let mut answer = Answer::of(if is_denied { 401 } else { 404 }, "");
            answer.headers.push(("X-Error-Code", "RepoNotFound".to_owned()));
            answer
        };
        let named = self.repositories.iter().find_map(|(name, repository)| {
            let files = name.strip_prefix("models/").unwrap_or(name);
            let api = path.strip_prefix(&format!("/api/{name}/")).map(|rest| (true, rest));
            let file = || path.strip_prefix(&format!("/{files}/")).map(|rest| (false, rest));
            api.or_else(file).map(|(is_api, rest)| (name, repository, is_api, rest))
        });
        let Some((name, repository, is_api, rest)) = named.filter(|_| !is_denied) else { return missing() };
        let of_revision = |rest: &str| rest == "main" || rest == repository.commit;
        match (is_api, rest.split_once('/').unwrap_or((rest, ""))) {
            (true, ("revision", revision)) if of_revision(revision) => {
                let siblings: Vec<Value> = repository.files.keys().map(|path| json!({ "rfilename": path })).collect();
                let id = name.split_once('/').map_or("", |(_, id)| id);
                Answer::json(&json!({ "id": id, "sha": repository.commit, "siblings": siblings }))
            }
            (true, ("tree", rest)) => {
                let (revision, folder) = rest.split_once('/').unwrap_or((rest, ""));
                if !of_revision(revision) {
                    return missing();
                }
                let items =
                    repository.tree(folder, query.contains("recursive=true") || query.contains("recursive=True"));
                let of = |pair: &str| pair.strip_prefix("cursor=").and_then(|from| from.parse().ok());
                let from: usize = query.split('&').find_map(of).unwrap_or(0);
                let page: Vec<&Value> = items.iter().skip(from).take(PAGE_FILES).collect();
                let mut answer = Answer::json(&json!(page));
                if from + PAGE_FILES < items.len() {
                    let bare: Vec<&str> = query.split('&').filter(|pair| !pair.starts_with("cursor=")).collect();
                    let (bare, next) = (bare.join("&"), from + PAGE_FILES);
                    let link = format!("<http://{address}{path}?{bare}&cursor={next}>; rel=\"next\"");
                    answer.headers.push(("Link", link));
                }
                answer
            }
            (false, ("resolve", rest)) => {
                let (revision, file) = rest.split_once('/').unwrap_or((rest, ""));
                let Some((content, is_large)) = repository.files.get(file).filter(|_| of_revision(revision)) else {
                    return missing();
                };
                let mut answer = if *is_large && !is_at_store {
                    // Another host, as far as keys go.
                    Answer::to(&format!("http://localhost:{}{path}?at=store", address.port()))
                } else {
                    Answer::file(content, Some(format!("\"{}\"", blob_name(content, *is_large))))
                };
                answer.headers.push(("X-Repo-Commit", repository.commit.clone()));
                answer.headers.push(("X-Linked-Etag", format!("\"{}\"", blob_name(content, *is_large))));
                answer.headers.push(("X-Linked-Size", content.len().to_string()));
                answer
            }
            _ => missing(),
        }
    }
}

impl Repository {
    fn tree(&self, folder: &str, is_deep: bool) -> Vec<Value> {
        let inside = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let mut items = BTreeMap::new();
        for (path, (content, is_large)) in &self.files {
            let Some(rest) = path.strip_prefix(&inside) else { continue };
            if let Some((below, _)) = rest.split_once('/') {
                let path = format!("{inside}{below}");
                let oid = &sha256(path.as_bytes())[..40];
                items.insert(path.clone(), json!({ "type": "directory", "oid": oid, "size": 0, "path": path }));
                if !is_deep {
                    continue;
                }
            }
            let mut item =
                json!({ "type": "file", "oid": blob_name(content, false), "size": content.len(), "path": path });
            if *is_large {
                let size = content.len();
                item["lfs"] = json!({ "oid": sha256(content), "size": size, "pointerSize": 134 });
            }
            items.insert(path.clone(), item);
        }
        items.into_values().collect()
    }
}

/// SHA-256 in hexadecimal.
pub fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How the hub names a content: a large one by its SHA-256, any other as git does.
fn blob_name(content: &[u8], is_large: bool) -> String {
    if is_large {
        return sha256(content);
    }
    let hash = Sha1::new().chain_update(format!("blob {}\0", content.len())).chain_update(content).finalize();
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        let code = more.get(..2).filter(|_| *first == b'%');
        let code = code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &more[2..] } else { more };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
