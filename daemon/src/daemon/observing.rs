//! What a daemon tells of itself while it runs: the hub of its records, what feeds it, the journal, and programs that draw it.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use murmur_protocol::{PeerId, RunManifest};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;

use crate::console::note;
use crate::engine::Noticed;
use crate::observe::record::{EndFacts, RunFacts};
use crate::observe::source::observe;
use crate::observe::{Body, Hub, Journal};
use crate::report::NodeReport;
use crate::settings::NodeSettings;
use crate::tracking::{Mlflow, TensorBoard};

/// Records that wait for the disk: more than five minutes of them.
const JOURNAL_PLACES: usize = 1024;

/// Records that wait for a tracker's disk: as many.
const TRACKING_PLACES: usize = 1024;

/// What the journal and the event files may take to write what is left, at the end.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// How often it is looked whether it has.
const END_PERIOD: Duration = Duration::from_millis(10);

/// The hub of a daemon, and what works on it.
pub(super) struct Observing {
    hub: Hub,
    source: JoinHandle<()>,
    /// Threads that write to the disk: the journal, and TensorBoard's files.
    writers: Vec<std::thread::JoinHandle<()>>,
    mlflow: Option<Mlflow>,
}

/// The node that tells.
pub(super) struct Teller<'a> {
    /// Its data directory.
    pub(super) root: &'a Path,
    pub(super) manifest: &'a RunManifest,
    pub(super) settings: &'a NodeSettings,
    pub(super) me: PeerId,
    /// Its time zero.
    pub(super) clock: Instant,
}

/// Which process of which run this is. It goes on from a checkpoint's swarm progress, where there is one, and own steps.
pub(super) fn facts(
    manifest: &RunManifest,
    name: Option<String>,
    (resumed_from, first_step): (Option<f64>, u64),
    parameters: usize,
    device: &str,
) -> RunFacts {
    let session = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    RunFacts {
        run: manifest.run_id().to_string(),
        run_name: manifest.run.name.clone(),
        name,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        session: i64::try_from(session).unwrap_or(0),
        resumed_from,
        first_step,
        parameters: parameters as u64,
        device: device.to_owned(),
        prediction: manifest.prediction().to_owned(),
    }
}

impl Observing {
    /// Begins with the record of this process. Without a journal that can be written it goes on all the same.
    pub(super) fn start(
        teller: Teller<'_>,
        facts: RunFacts,
        reports: &watch::Receiver<NodeReport>,
        notices: &broadcast::Sender<Noticed>,
    ) -> Observing {
        let Teller { root, manifest, settings, me, clock } = teller;
        let bytes = settings.journal.megabytes.saturating_mul(1_000_000);
        let opened = (bytes > 0).then(|| Journal::open(root, bytes)).transpose();
        let opened = opened.unwrap_or_else(|error| {
            note(&format!("warning: cannot write a journal in {}: {error}; training goes on", root.display()));
            None
        });
        let (journal, seq) = opened.unzip();
        let hub = Hub::new(&me.to_string(), seq.unwrap_or(0), clock);
        if let Some(journal) = &journal {
            hub.remember(&journal.remembered());
        }
        let journal = journal.map(|journal| journal.start(hub.sink(JOURNAL_PLACES)));
        let mut writers: Vec<std::thread::JoinHandle<()>> = journal.into_iter().collect();
        let tensorboard = tensorboard(&settings.tensorboard.directory, &me.to_string(), &facts, manifest);
        writers.extend(tensorboard.map(|tensorboard| tensorboard.start(hub.sink(TRACKING_PLACES))));
        let name = facts.name.clone();
        hub.tell(Body::Run(facts));
        let mlflow = Mlflow::start(&settings.mlflow, root, seq, &me.to_string(), name.as_deref(), manifest);
        let source = observe(hub.clone(), root.to_owned(), reports.clone(), notices.subscribe());
        Observing { source: tokio::spawn(source), hub, writers, mlflow }
    }

    pub(super) fn hub(&self) -> Hub {
        self.hub.clone()
    }

    /// The last record, and what is left for those who write and send.
    pub(super) async fn end(self, end: EndFacts) {
        self.source.abort();
        self.hub.tell(Body::End(end));
        self.hub.close();
        let deadline = tokio::time::Instant::now() + END_TIMEOUT;
        while !self.writers.iter().all(|thread| thread.is_finished()) && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(END_PERIOD).await;
        }
        if let Some(mlflow) = self.mlflow {
            mlflow.end().await;
        }
    }
}

/// TensorBoard's files, where the owner wants them. Where they cannot be written, that is said, and the node goes on.
fn tensorboard(directory: &Path, peer: &str, facts: &RunFacts, manifest: &RunManifest) -> Option<TensorBoard> {
    if directory.as_os_str().is_empty() {
        return None;
    }
    match TensorBoard::create(directory, peer, facts, &manifest.canonical_text()) {
        Ok(tensorboard) => {
            note(&format!("tensorboard {}", tensorboard.folder().display()));
            Some(tensorboard)
        }
        Err(error) => {
            let folder = directory.display();
            note(&format!("warning: cannot write TensorBoard's files in {folder}: {error}; training goes on"));
            note("hint: --tensorboard takes a folder that this user may write; it is made where it is missing");
            None
        }
    }
}
