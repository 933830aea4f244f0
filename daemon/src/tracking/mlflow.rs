//! Sends what a node tells to an MLflow tracking server.
//!
//! It reads the journal from where it was, on a thread of its own: a server that is away for an hour is told later, by another
//! process, too, and neither the hub nor training knows of it. What goes wrong is said once, and once more when it is over.
//!
//! ```text
//! hub ──► journal ──► sender ──► MLflow
//!                       └─ mlflow.json: up to which record
//! ```

mod client;
mod sender;
mod sent;
mod upload;

pub(crate) use sent::FILE;
pub use sent::LastRecords;

use std::mem::{Discriminant, discriminant};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender as Stop, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use murmur_network::Throttle;
use murmur_protocol::RunManifest;

use self::client::{Client, Credentials, Trouble};
use self::sender::{About, Sender};
use self::sent::Sent;
use self::upload::Uploaded;
use crate::console::{note, short};
use crate::observe::journal;
use crate::settings::MlflowSettings;

/// How often it is looked for something new. A batch of that time has a tenth of what a server takes at once.
const PERIOD: Duration = Duration::from_secs(5);

/// Until the next try where a server does not answer; each further one takes twice as long.
const RETRY_MIN: Duration = Duration::from_secs(1);

/// The longest time between two tries.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// What the last part may take at the end of a process, where no model is on its way. What is left is sent by the next one.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// At the end a model is waited for as long as some of it was sent in that time, or the server stores it.
const MODEL_PATIENCE: Duration = Duration::from_secs(120);

/// How often it is looked whether it has ended.
const END_PERIOD: Duration = Duration::from_millis(20);

/// A thread that sends.
#[derive(Debug)]
pub struct Mlflow {
    stop: Stop<()>,
    thread: JoinHandle<()>,
    uploaded: Uploaded,
}

/// The node whose journal is sent.
#[derive(Clone, Copy, Debug)]
pub struct Teller<'a> {
    /// Its settings of MLflow.
    pub settings: &'a MlflowSettings,
    /// Its data directory.
    pub root: &'a Path,
    /// Its peer id.
    pub node: &'a str,
    /// What its owner calls it.
    pub name: Option<&'a str>,
    /// Its run.
    pub manifest: &'a RunManifest,
    /// Its caps, from which models draw.
    pub throttle: &'a Throttle,
}

/// Says where this is no address of a server.
pub(crate) fn check_address(url: &str) {
    if !url.is_empty() {
        let _ = client_of(url);
    }
}

fn client_of(url: &str) -> Option<Client> {
    let client = Client::new(url, &Credentials::from_environment());
    if client.is_none() {
        // It may hold a password.
        let url = url.rsplit_once('@').map_or(url, |(_, place)| place);
        note(&format!("warning: {url:?} is no address of an MLflow server; training goes on"));
        note("hint: --mlflow takes an address such as http://127.0.0.1:5000");
    }
    client
}

impl Mlflow {
    /// Begins to send a journal, which had these last records; `None` where there is no journal. Where the settings are wrong that
    /// is said, and nothing is sent.
    pub fn start(teller: Teller<'_>, last: Option<LastRecords>) -> Option<Mlflow> {
        let (client, sent) = Mlflow::look(teller, last)?;
        Some(Mlflow::begin(teller, client, sent))
    }

    /// The same of what an earlier process has left to be sent; `None` where it has left nothing.
    pub fn start_rest(teller: Teller<'_>, last: Option<LastRecords>) -> Option<Mlflow> {
        let (client, sent) = Mlflow::look(teller, last)?;
        let is_behind = sent.model_steps.is_some() || last.is_some_and(|last| sent.journal.seq < last.written);
        is_behind.then(|| Mlflow::begin(teller, client, sent))
    }

    /// The server, and what it has.
    fn look(Teller { settings, root, node, .. }: Teller<'_>, last: Option<LastRecords>) -> Option<(Client, Sent)> {
        if settings.url.is_empty() {
            return None;
        }
        let client = client_of(&settings.url)?;
        let Some(last) = last else {
            note("warning: without a journal nothing is sent to MLflow; training goes on");
            note("hint: leave journal.megabytes in the node file at its default, and make room on the disk");
            return None;
        };
        let sent = Sent::load(root, &client.shown, node, last);
        Some((client, sent))
    }

    fn begin(teller: Teller<'_>, client: Client, sent: Sent) -> Mlflow {
        let Teller { settings, root, node, name, manifest, throttle } = teller;
        let about = about(settings, node, name, manifest);
        let uploaded = Uploaded::default();
        let places = (root, root.join(journal::FOLDER));
        let sender = Sender::new(client, about, places, sent, (throttle.clone(), uploaded.clone()));
        let (stop, stopped) = channel();
        let work = move || send(sender, &stopped);
        let thread = std::thread::Builder::new().name("mlflow".to_owned()).spawn(work);
        Mlflow { stop, thread: thread.expect("the system gives a thread"), uploaded }
    }

    /// Sends what is left, for some seconds at most, and a model as long as it moves where there is time for it. The journal is
    /// complete.
    pub async fn end(self, has_time: bool) {
        self.end_within(END_TIMEOUT, if has_time { MODEL_PATIENCE } else { Duration::ZERO }).await;
    }

    /// The same, with so much time for all but a model, and for a model that does not move.
    async fn end_within(self, limit: Duration, patience: Duration) {
        drop(self.stop);
        let begin = Instant::now();
        // The model may have been on its way before.
        let (mut seen, mut moved, mut has_said) = (self.uploaded.bytes(), None, false);
        while !self.thread.is_finished() {
            let bytes = self.uploaded.bytes();
            if bytes > seen {
                (seen, moved) = (bytes, Some(Instant::now()));
            }
            let is_moving = moved.is_some_and(|moved| moved.elapsed() < patience);
            if begin.elapsed() > limit && !is_moving {
                return note("            MLflow has not got everything yet; starting this node again sends the rest");
            }
            if begin.elapsed() > limit && !std::mem::replace(&mut has_said, true) {
                note("leaving     MLflow gets the model, which is waited for (once more to end at once)");
            }
            tokio::time::sleep(END_PERIOD).await;
        }
    }
}

/// The experiment and the server that daemons with these settings send to, for people; `None` where they send nowhere.
pub(crate) fn place(settings: &MlflowSettings, manifest: &RunManifest) -> Option<String> {
    let client = Client::new(&settings.url, &Credentials::default())?;
    Some(format!("experiment {} at {}", experiment(settings, manifest), client.shown))
}

fn experiment<'a>(settings: &'a MlflowSettings, manifest: &'a RunManifest) -> &'a str {
    let names = [settings.experiment.trim(), manifest.run.name.trim()];
    names.into_iter().find(|name| !name.is_empty()).unwrap_or("murmur")
}

fn about(settings: &MlflowSettings, node: &str, name: Option<&str>, manifest: &RunManifest) -> About {
    let pair = |line: &str| {
        let (key, value) = line.split_once(" = ")?;
        Some((key.to_owned(), value.trim_matches('"').to_owned()))
    };
    About {
        node: node.to_owned(),
        run: manifest.run_id().to_string(),
        experiment: experiment(settings, manifest).to_owned(),
        run_name: name.unwrap_or(short(node)).to_owned(),
        params: manifest.canonical_text().lines().filter_map(pair).collect(),
        with_model: settings.model,
    }
}

/// Sends until it is stopped and everything is there, or nothing can be sent any more.
fn send(mut sender: Sender, stopped: &Receiver<()>) {
    let mut said: Vec<Discriminant<Trouble>> = Vec::new();
    let (mut retry, mut is_stopping) = (RETRY_MIN, false);
    loop {
        let pause = match sender.pass() {
            Ok(is_more) => {
                if !std::mem::take(&mut said).is_empty() {
                    note("            MLflow answers again; it gets what it has missed");
                }
                retry = RETRY_MIN;
                if is_stopping && !is_more {
                    if sender.lacks_model() {
                        note("            MLflow has not got the model; starting this node again sends it");
                    }
                    return;
                }
                if is_more { Duration::ZERO } else { PERIOD }
            }
            Err(trouble) => {
                let kind = discriminant(&trouble);
                let is_over = matches!(trouble, Trouble::Gone(_));
                if !said.contains(&kind) {
                    said.push(kind);
                    let consequence = if is_over { "nothing more is sent" } else { "training goes on" };
                    note(&format!("warning: MLflow at {} {trouble}; {consequence}", sender.server()));
                    note(&format!("hint: {}", trouble.hint()));
                }
                if is_over {
                    return;
                }
                if is_stopping {
                    return note("            MLflow has not got everything; starting this node again sends the rest");
                }
                let pause = retry;
                retry = (retry * 2).min(RETRY_MAX);
                pause
            }
        };
        is_stopping = is_stopping || stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of one whose model moves for so long, and then stands still for as long.
    async fn ended_before_its_thread(moves: Duration, patience: Duration) -> bool {
        let (uploaded, (stop, _stopped)) = (Uploaded::default(), channel());
        let (sends, (ended, is_ended)) = (uploaded.clone(), channel());
        let thread = std::thread::spawn(move || {
            let begin = Instant::now();
            while begin.elapsed() < 2 * moves {
                if begin.elapsed() < moves {
                    sends.add(1);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            let _ = ended.send(());
        });
        Mlflow { stop, thread, uploaded }.end_within(Duration::from_millis(100), patience).await;
        is_ended.try_recv().is_err()
    }

    #[tokio::test]
    async fn a_model_is_waited_for_while_it_moves_and_no_longer() {
        let second = Duration::from_secs(1);
        assert!(!ended_before_its_thread(second / 2, 60 * second).await, "it was on its way");
        assert!(ended_before_its_thread(second, second / 5).await, "it did not move");
        assert!(ended_before_its_thread(second / 2, Duration::ZERO).await, "there is no time for it");
    }
}
