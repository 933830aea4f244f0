//! Sends what the journal has to an MLflow server: a run with parameters and tags, metrics in batches, the complete model.
//!
//! Every step may be carried out twice, because an answer may be lost: the run is looked for by its tags before it is made, a
//! server keeps equal metrics once, parameters are compared with those that are there. What is sent is put down in
//! [`Sent`] only once the server has confirmed it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use murmur_network::Throttle;
use serde_json::{Value, json};

use super::client::{Client, Trouble, batch};
use super::sent::Sent;
use super::upload::{self, Tries, Uploaded};
use crate::console::figures::counted;
use crate::console::note;
use crate::observe::cursor;
use crate::observe::record::{Body, EndFacts, Record, RunFacts};

/// Metrics in one batch: a server takes 1,000 of them, parameters and tags together.
const METRICS_MAX: usize = 900;

/// Where a server is too slow for a batch, the next is half as large, down to this.
const METRICS_MIN: usize = 50;

/// Parameters, or tags, in one batch, by MLflow's documentation.
const PAIRS_MAX: usize = 100;

/// The longest value of a parameter or a tag, in letters. Older servers take no more than 500 bytes.
const VALUE_MAX: usize = 250;

/// Of a run that has a name, so that it is found again.
const TAG_NODE: &str = "murmur.node";
const TAG_RUN: &str = "murmur.run";

/// What of a node is told once.
#[derive(Clone, Debug, Default)]
pub(super) struct About {
    /// Its peer id.
    pub(super) node: String,
    /// The run's id, in short.
    pub(super) run: String,
    /// The experiment.
    pub(super) experiment: String,
    /// What the run is called in MLflow.
    pub(super) run_name: String,
    /// The run's own parameters, by `section.key`.
    pub(super) params: Vec<(String, String)>,
    /// Whether the complete model is sent.
    pub(super) with_model: bool,
}

/// One node's way to a server.
#[derive(Debug)]
pub(super) struct Sender {
    client: Client,
    about: About,
    /// The data directory.
    root: PathBuf,
    journal: PathBuf,
    sent: Sent,
    throttle: Throttle,
    uploaded: Uploaded,
    /// To send the model.
    tries: Tries,
    /// Whether this process knows that the run is there.
    is_verified: bool,
    metrics_max: usize,
    /// The number of the last record before which it was said that some are gone.
    said_gone_before: u64,
    said_of_params: bool,
    said_of_metrics: bool,
    said_of_disk: bool,
}

/// A part of the journal that is being sent.
struct Pass {
    /// What the server has once `metrics` are there.
    sent: Sent,
    metrics: Vec<Value>,
}

impl Sender {
    /// Goes on from what `sent` says. `journal` is the folder of the journal. Models draw from `throttle`, and are counted.
    pub(super) fn new(
        client: Client,
        about: About,
        (root, journal): (&Path, PathBuf),
        sent: Sent,
        (throttle, uploaded): (Throttle, Uploaded),
    ) -> Sender {
        Sender {
            client,
            about,
            root: root.to_owned(),
            journal,
            sent,
            throttle,
            uploaded,
            tries: Tries::default(),
            is_verified: false,
            metrics_max: METRICS_MAX,
            said_gone_before: 0,
            said_of_params: false,
            said_of_metrics: false,
            said_of_disk: false,
        }
    }

    /// Where the server is, without a password.
    pub(super) fn server(&self) -> &str {
        &self.client.shown
    }

    /// Sends a part of what is new. Whether there may be more.
    ///
    /// # Errors
    /// What keeps it from being sent. The next call tries the same again.
    pub(super) fn pass(&mut self) -> Result<bool, Trouble> {
        if !self.is_verified {
            self.find_run()?;
            self.is_verified = true;
        }
        let read = cursor::after(&self.journal, &self.sent.journal);
        let (records, next) = read.map_err(|error| Trouble::Journal(error.to_string()))?;
        let is_more = next != self.sent.journal;
        let mut pass = Pass { sent: self.sent.clone(), metrics: Vec::new() };
        for record in &records {
            self.take(&mut pass, record)?;
        }
        pass.sent.journal = next;
        self.flush(&mut pass)?;
        self.send_model()?;
        Ok(is_more)
    }

    fn take(&mut self, pass: &mut Pass, record: &Record) -> Result<(), Trouble> {
        let expected = pass.sent.journal.seq + 1;
        // A pass that fails is made again.
        if expected > 1 && record.seq > expected && record.seq > self.said_gone_before {
            let lost = record.seq - expected;
            self.said_gone_before = record.seq;
            let lost = counted(lost, "record");
            note(&format!("warning: MLflow lacks {lost} of the journal, gone before it was sent"));
            note("hint: a larger journal.megabytes in the node file keeps more of them");
        }
        match &record.body {
            // Told under an identity that the data directory had before.
            _ if record.node != self.about.node => {}
            Body::Run(facts) if facts.session != pass.sent.session => {
                self.flush(pass)?;
                self.begin_session(pass.sent.sessions, facts)?;
                pass.sent.session = facts.session;
                pass.sent.sessions += 1;
                pass.sent.thinning.begin();
            }
            Body::Sample(sample) => {
                for (key, value) in pass.sent.thinning.choose(record.up, sample) {
                    let metric = json!({ "key": key, "value": value, "timestamp": record.t, "step": sample.steps });
                    pass.metrics.push(metric);
                }
                if sample.phase == "completed" && self.about.with_model {
                    pass.sent.model_steps = Some(sample.steps);
                }
            }
            Body::End(end) => {
                self.flush(pass)?;
                self.end_session(record.t, end)?;
                if end.complete && self.about.with_model {
                    pass.sent.model_steps = Some(end.steps);
                }
            }
            _ => {}
        }
        pass.sent.journal.seq = record.seq;
        // A sample has less than 50 numbers.
        if pass.metrics.len() + METRICS_MIN > self.metrics_max {
            self.flush(pass)?;
        }
        Ok(())
    }

    /// Sends the metrics so far, and puts down that they are there.
    fn flush(&mut self, pass: &mut Pass) -> Result<(), Trouble> {
        for metrics in pass.metrics.chunks(self.metrics_max) {
            match self.client.post("runs/log-batch", &batch(&self.sent.run_id, metrics, &[], &[])) {
                Ok(_) => {}
                Err(Trouble::Slow) => {
                    self.metrics_max = (self.metrics_max / 2).max(METRICS_MIN);
                    return Err(Trouble::Slow);
                }
                Err(Trouble::Refused(words)) => {
                    // A deleted run is refused in the same way.
                    self.look_at_run()?;
                    if !std::mem::replace(&mut self.said_of_metrics, true) {
                        note(&format!("warning: MLflow does not take metrics: {words}; they are left out"));
                    }
                }
                Err(trouble) => return Err(trouble),
            }
        }
        pass.metrics.clear();
        self.metrics_max = (self.metrics_max + METRICS_MIN).min(METRICS_MAX);
        if pass.sent != self.sent {
            self.sent = pass.sent.clone();
            self.keep();
        }
        Ok(())
    }

    fn keep(&mut self) {
        if let Err(error) = self.sent.keep(&self.root)
            && !std::mem::replace(&mut self.said_of_disk, true)
        {
            note(&format!("warning: cannot write mlflow.json: {error}; after a restart more is sent than is needed"));
        }
    }

    /// Finds or makes experiment and run, or sees that they are still there.
    fn find_run(&mut self) -> Result<(), Trouble> {
        if !self.sent.run_id.is_empty() {
            self.look_at_run()?;
            note(&format!("mlflow      run {} goes on at {}", self.sent.run_id, self.client.shown));
            return Ok(());
        }
        let experiment_id = self.experiment()?;
        let About { node, run, run_name, .. } = &self.about;
        let filter = format!("tags.`{TAG_NODE}` = '{node}' and tags.`{TAG_RUN}` = '{run}'");
        let search = json!({ "experiment_ids": [experiment_id], "filter": filter, "max_results": 1 });
        let found = self.client.post("runs/search", &search)?;
        let found = match found.pointer("/runs/0/info") {
            Some(info) => info.clone(),
            None => {
                let tags = [(TAG_NODE, node.as_str()), (TAG_RUN, run), ("mlflow.source.name", "murmur")];
                let tags: Vec<Value> = tags.map(|(key, value)| json!({ "key": key, "value": value })).into();
                let now = jiff::Timestamp::now().as_millisecond();
                let wish =
                    json!({ "experiment_id": experiment_id, "run_name": run_name, "start_time": now, "tags": tags });
                let made = self.client.post("runs/create", &wish)?;
                made.pointer("/run/info").cloned().unwrap_or_default()
            }
        };
        let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
        if text("run_id").is_empty() {
            return Err(Trouble::NoMlflow("it names no run".to_owned()));
        }
        self.sent.experiment_id = experiment_id;
        (self.sent.run_id, self.sent.artifact_uri) = (text("run_id"), text("artifact_uri"));
        let (experiment, server) = (&self.about.experiment, &self.client.shown);
        note(&format!("mlflow      run {run_name} of experiment {experiment} at {server}"));
        self.keep();
        Ok(())
    }

    fn experiment(&self) -> Result<String, Trouble> {
        let name = self.about.experiment.as_str();
        let of = |answer: &Value, place: &str| answer.pointer(place).and_then(Value::as_str).map(str::to_owned);
        let nameless = || Trouble::NoMlflow("it names no experiment".to_owned());
        let by_name = || match self.client.get("experiments/get-by-name", &[("experiment_name", name)]) {
            Ok(answer) if of(&answer, "/experiment/lifecycle_stage").as_deref() == Some("deleted") => {
                Err(Trouble::Gone(format!("the experiment {name} was deleted")))
            }
            Ok(answer) => of(&answer, "/experiment/experiment_id").map(Some).ok_or_else(nameless),
            Err(Trouble::Gone(_)) => Ok(None),
            Err(trouble) => Err(trouble),
        };
        if let Some(id) = by_name()? {
            return Ok(id);
        }
        match self.client.post("experiments/create", &json!({ "name": name })) {
            Ok(answer) => of(&answer, "/experiment_id").ok_or_else(nameless),
            // Another node was quicker.
            Err(Trouble::Refused(words)) => by_name()?.ok_or(Trouble::Refused(words)),
            Err(trouble) => Err(trouble),
        }
    }

    /// The run as the server has it.
    fn look_at_run(&self) -> Result<Value, Trouble> {
        let answer = self.client.get("runs/get", &[("run_id", &self.sent.run_id)])?;
        let stage = answer.pointer("/run/info/lifecycle_stage").and_then(Value::as_str);
        match stage {
            Some("deleted") => Err(Trouble::Gone(format!("the run {} was deleted", self.sent.run_id))),
            _ => Ok(answer),
        }
    }

    /// A process begins, the `number`th after the first. Parameters that are there with other values stay, and the new ones
    /// become tags: a server refuses to change a parameter.
    fn begin_session(&mut self, number: u64, facts: &RunFacts) -> Result<(), Trouble> {
        let run = self.look_at_run()?;
        let pairs = run.pointer("/run/data/params").and_then(Value::as_array).cloned().unwrap_or_default();
        let there = |key: &str| pairs.iter().find(|pair| pair["key"] == key).and_then(|pair| pair["value"].as_str());
        let (mut params, mut tags) = (Vec::new(), Vec::new());
        for (key, value) in self.params(facts) {
            match there(&key) {
                None => params.push((key, value)),
                Some(earlier) if earlier == value => {}
                Some(_) => tags.push((format!("restart.{number}.{key}"), value)),
            }
        }
        if number > 0 {
            tags.push((format!("restart.{number}.first_step"), facts.first_step.to_string()));
        }
        let id = self.sent.run_id.clone();
        for params in params.chunks(PAIRS_MAX) {
            match self.client.post("runs/log-batch", &batch(&id, &[], params, &[])) {
                Err(Trouble::Refused(words)) => {
                    if !std::mem::replace(&mut self.said_of_params, true) {
                        note(&format!(
                            "warning: MLflow does not take parameters: {words}; metrics are sent all the same"
                        ));
                    }
                }
                other => drop(other?),
            }
        }
        for tags in tags.chunks(PAIRS_MAX) {
            self.client.post("runs/log-batch", &batch(&id, &[], &[], tags))?;
        }
        self.client.post("runs/update", &json!({ "run_id": id, "status": "RUNNING" })).map(drop)
    }

    /// What a process trains and on what. Values without a letter are left out: not all servers take them.
    fn params(&self, facts: &RunFacts) -> Vec<(String, String)> {
        let node = [
            ("node.device", facts.device.clone()),
            ("node.murmur_version", facts.version.clone()),
            ("node.name", facts.name.clone().unwrap_or_default()),
            ("node.parameters", facts.parameters.to_string()),
        ];
        let node = node.map(|(key, value)| (key.to_owned(), value));
        let all = self.about.params.iter().cloned().chain(node);
        let short = |(key, value): (String, String)| (key, value.chars().take(VALUE_MAX).collect::<String>());
        all.map(short).filter(|(_, value)| !value.trim().is_empty()).collect()
    }

    fn end_session(&self, time: i64, end: &EndFacts) -> Result<(), Trouble> {
        let id = &self.sent.run_id;
        if let Some(failure) = &end.failure {
            let failure = failure.chars().take(VALUE_MAX).collect();
            let tags = [("murmur.failure".to_owned(), failure)];
            self.client.post("runs/log-batch", &batch(id, &[], &[], &tags))?;
        }
        // These are MLflow's words: a run that was stopped early is killed.
        let status = match end {
            EndFacts { failure: Some(_), .. } => "FAILED",
            EndFacts { complete: true, .. } => "FINISHED",
            _ => "KILLED",
        };
        self.client.post("runs/update", &json!({ "run_id": id, "status": status, "end_time": time })).map(drop)
    }

    /// Sends the complete model, once its checkpoint is there.
    fn send_model(&mut self) -> Result<(), Trouble> {
        let Some(steps) = self.sent.model_steps else { return Ok(()) };
        let folder = self.root.join(format!("checkpoints/step-{steps:012}"));
        let index = std::fs::read(folder.join("checkpoint.json")).ok();
        let index: Option<Value> = index.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let hash = index.and_then(|index| index.pointer("/files/model.safetensors")?.as_str().map(str::to_owned));
        let path = folder.join("model.safetensors");
        let (Some(hash), Ok(file)) = (hash, File::open(&path)) else { return Ok(()) };
        if self.sent.model_hash.as_ref() != Some(&hash) {
            if !self.tries.is_due(Instant::now()) {
                return Ok(());
            }
            // Before so much is sent: whether somebody is there who takes it.
            self.look_at_run()?;
            match self.upload(&file) {
                Ok(()) => note("mlflow      the complete model is there, as model/model.safetensors"),
                Err(trouble @ (Trouble::Silent(_) | Trouble::Slow | Trouble::Busy(_))) => {
                    self.put_off(&trouble);
                    return Ok(());
                }
                Err(trouble) => {
                    note(&format!("warning: MLflow at {} takes no files: it {trouble}", self.client.shown));
                    note(&format!("hint: the model is {}", path.display()));
                }
            }
        }
        (self.sent.model_steps, self.sent.model_hash) = (None, Some(hash));
        self.keep();
        Ok(())
    }

    /// The model did not get there, and metrics do not wait for it.
    fn put_off(&mut self, trouble: &Trouble) {
        let again = match self.tries.fail(Instant::now()) {
            Some(pause) => format!("in {:.0} min", pause.as_secs_f64() / 60.0),
            None => "when this node is started again".to_owned(),
        };
        let server = &self.client.shown;
        note(&format!("warning: MLflow at {server} has not got the model: it {trouble}; it is sent again {again}"));
        note("hint: the server's own log says more; has its disk room for it?");
    }

    /// Whether a model is still to be sent that could not be.
    pub(super) fn lacks_model(&self) -> bool {
        self.sent.model_steps.is_some() && self.tries.has_failed()
    }

    fn upload(&self, file: &File) -> Result<(), Trouble> {
        let uri = &self.sent.artifact_uri;
        let elsewhere = || Trouble::Refused(format!("its files belong to {uri}, not to the server itself"));
        let place = uri.strip_prefix("mlflow-artifacts:").ok_or_else(elsewhere)?;
        // With or without a host.
        let place = match place.strip_prefix("//") {
            Some(with_host) => with_host.split_once('/').map_or("", |(_, place)| place),
            None => place.trim_start_matches('/'),
        };
        let body = upload::Body { file, throttle: &self.throttle, uploaded: &self.uploaded };
        self.client.upload(&format!("{place}/model/model.safetensors"), body)
    }
}
