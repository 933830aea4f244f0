//! A tracking server that keeps to what MLflow 3.17 does with the requests of a node, counts what it is sent, and fails as it
//! is told: it can be killed and started again, answer 500, lose answers, be slow.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};

/// The most that one batch may hold, of metrics and of everything.
const BATCH_MAX: usize = 1000;

/// A metric, as MLflow's database knows it: name, milliseconds since 1970, step, and the bits of the value. Equal ones are one.
pub type Metric = (String, i64, i64, u64);

/// What the server has.
#[derive(Clone, Debug, Default)]
pub struct Store {
    /// Names of experiments; the index is the id.
    pub experiments: Vec<String>,
    /// By id.
    pub runs: BTreeMap<String, Run>,
    /// By path.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Requests that the real server would refuse, with why.
    pub mistakes: Vec<String>,
    /// Requests that were answered.
    pub requests: u64,
    /// Answers still to come that fail so.
    pub failures: Vec<Failure>,
    /// Whether parameters are refused whatever they are.
    pub refuses_params: bool,
    /// Whether files cannot be stored: each is answered with 500.
    pub fails_files: bool,
    /// Files that could not be.
    pub files_failed: u64,
}

/// A run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// As it was made, with what was updated.
    pub info: BTreeMap<String, Value>,
    /// By name.
    pub params: BTreeMap<String, String>,
    /// By name.
    pub tags: BTreeMap<String, String>,
    /// With how often each came.
    pub metrics: BTreeMap<Metric, u64>,
}

/// How an answer fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nothing is kept, and the answer is 500.
    Error,
    /// Everything is kept, and the connection ends without an answer.
    Lost,
    /// The answer comes after half a second.
    Slow,
}

/// A server on loopback. Dropping it closes its port; what it has is kept by whoever holds `store`.
pub struct FakeMlflow {
    /// Where it listens.
    pub address: SocketAddr,
    /// What it has.
    pub store: Arc<Mutex<Store>>,
    stops: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl FakeMlflow {
    /// Listens at an address; port 0 lets the system choose.
    ///
    /// # Panics
    /// When the port is taken.
    pub fn start(address: SocketAddr, store: Arc<Mutex<Store>>) -> FakeMlflow {
        let listener = TcpListener::bind(address).expect("a free port");
        let address = listener.local_addr().expect("bound");
        let stops = Arc::new(AtomicBool::new(false));
        let (served, ends) = (store.clone(), stops.clone());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                let _ = stream.and_then(|stream| serve(stream, &served));
            }
        });
        FakeMlflow { address, store, stops, thread: Some(thread) }
    }

    /// Its address as a node is given it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it has.
    ///
    /// # Panics
    /// Never: no thread panics with it.
    pub fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().expect("no thread panics")
    }
}

impl Drop for FakeMlflow {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// One request, and the end of the connection.
fn serve(stream: TcpStream, store: &Mutex<Store>) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body)?;
    let mut words = head.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut store = store.lock().expect("no thread panics");
    store.requests += 1;
    let failure = (!store.failures.is_empty()).then(|| store.failures.remove(0));
    let (status, answer) = match failure {
        Some(Failure::Error) => (500, json!({})),
        _ => store.answer(method, target, &body),
    };
    drop(store);
    match failure {
        Some(Failure::Lost) => return Ok(()),
        Some(Failure::Slow) => std::thread::sleep(Duration::from_millis(500)),
        _ => {}
    }
    // MLflow says nothing of a file that it has taken.
    let answer = if answer.is_null() { String::new() } else { answer.to_string() };
    let head = format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nConnection: close\r\n");
    (&stream).write_all(format!("{head}Content-Length: {}\r\n\r\n{answer}", answer.len()).as_bytes())
}

type Answer = (u16, Value);

impl Store {
    fn answer(&mut self, method: &str, target: &str, body: &[u8]) -> Answer {
        if let Some(path) = target.strip_prefix("/api/2.0/mlflow-artifacts/artifacts/") {
            if self.fails_files {
                self.files_failed += 1;
                return (500, json!({}));
            }
            self.files.insert(path.to_owned(), body.to_vec());
            return (200, Value::Null);
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let Some(path) = path.strip_prefix("/api/2.0/mlflow/") else { return (404, Value::Null) };
        let body: Value = if body.is_empty() { Value::Null } else { serde_json::from_slice(body).unwrap_or_default() };
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        match (method, path) {
            ("GET", "experiments/get-by-name") => {
                let name = query.strip_prefix("experiment_name=").unwrap_or_default();
                match self.experiments.iter().position(|known| known == name) {
                    Some(id) => (200, json!({ "experiment": { "experiment_id": id.to_string(), "name": name } })),
                    None => gone(),
                }
            }
            ("POST", "experiments/create") => {
                self.experiments.push(text("name"));
                (200, json!({ "experiment_id": (self.experiments.len() - 1).to_string() }))
            }
            ("POST", "runs/search") => {
                let filter = text("filter");
                let has = |run: &&Run| run.tags.get("murmur.node").is_some_and(|node| filter.contains(node));
                let runs: Vec<Value> = self.runs.values().filter(has).map(Run::shown).collect();
                (200, if runs.is_empty() { json!({}) } else { json!({ "runs": runs }) })
            }
            ("POST", "runs/create") => {
                let id = format!("run{}", self.runs.len());
                let mut run = Run::default();
                run.info.insert("run_id".to_owned(), id.clone().into());
                run.info.insert("run_name".to_owned(), body["run_name"].clone());
                run.info.insert("status".to_owned(), "RUNNING".into());
                let uri = format!("mlflow-artifacts:/{}/{id}/artifacts", text("experiment_id"));
                run.info.insert("artifact_uri".to_owned(), uri.into());
                run.tags.extend(pairs(&body["tags"]));
                let shown = run.shown();
                self.runs.insert(id, run);
                (200, json!({ "run": shown }))
            }
            ("GET", "runs/get") => {
                let id = query.strip_prefix("run_id=").unwrap_or_default();
                self.runs.get(id).map_or_else(gone, |run| (200, json!({ "run": run.shown() })))
            }
            ("POST", "runs/update") => match self.runs.get_mut(&text("run_id")) {
                None => gone(),
                Some(run) => {
                    let given = body.as_object().into_iter().flatten();
                    run.info.extend(given.map(|(name, value)| (name.clone(), value.clone())));
                    (200, json!({}))
                }
            },
            ("POST", "runs/log-batch") => match self.log_batch(&body) {
                Ok(answer) => answer,
                Err(why) => {
                    self.mistakes.push(why.clone());
                    refused(&why)
                }
            },
            _ => (404, Value::Null),
        }
    }

    /// All of a batch is kept, or nothing.
    fn log_batch(&mut self, body: &Value) -> Result<Answer, String> {
        let Some(run) = self.runs.get_mut(body["run_id"].as_str().unwrap_or_default()) else { return Ok(gone()) };
        let metrics = body["metrics"].as_array().cloned().unwrap_or_default();
        let (params, tags) = (pairs(&body["params"]), pairs(&body["tags"]));
        if metrics.len() + params.len() + tags.len() > BATCH_MAX || params.len() > 100 || tags.len() > 100 {
            return Err("a batch is too large".to_owned());
        }
        let mut read = Vec::new();
        for metric in &metrics {
            let name = metric["key"].as_str().ok_or("a metric without a name")?;
            if !name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-. :/".contains(letter)) {
                return Err(format!("the name {name:?}"));
            }
            let value = metric["value"].as_f64().ok_or(format!("the value {}", metric["value"]))?;
            let (time, step) = (metric["timestamp"].as_i64(), metric["step"].as_i64());
            read.push((name.to_owned(), time.ok_or("no time")?, step.ok_or("no step")?, value.to_bits()));
        }
        if self.refuses_params && !params.is_empty() {
            return Ok(refused("parameters are not for you"));
        }
        if let Some((name, value)) =
            params.iter().find(|(name, value)| run.params.get(name).is_some_and(|old| old != value))
        {
            return Err(format!("Changing param values is not allowed: {name} to {value}"));
        }
        run.params.extend(params);
        run.tags.extend(tags);
        for metric in read {
            *run.metrics.entry(metric).or_default() += 1;
        }
        Ok((200, json!({})))
    }
}

impl Run {
    fn shown(&self) -> Value {
        let params: Vec<Value> = self.params.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect();
        json!({ "info": self.info, "data": { "params": params } })
    }
}

fn pairs(list: &Value) -> Vec<(String, String)> {
    let of = |pair: &Value| Some((pair["key"].as_str()?.to_owned(), pair["value"].as_str()?.to_owned()));
    list.as_array().into_iter().flatten().filter_map(of).collect()
}

fn gone() -> Answer {
    (404, json!({ "error_code": "RESOURCE_DOES_NOT_EXIST", "message": "there is none" }))
}

fn refused(why: &str) -> Answer {
    (400, json!({ "error_code": "INVALID_PARAMETER_VALUE", "message": why }))
}
