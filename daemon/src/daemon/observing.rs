//! What a daemon tells of itself while it runs: the hub of its records, what feeds it, and the journal.

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

/// Records that wait for the disk: more than five minutes of them.
const JOURNAL_PLACES: usize = 1024;

/// What the journal may take to write what is left, at the end.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// How often it is looked whether it has.
const END_PERIOD: Duration = Duration::from_millis(10);

/// The hub of a daemon, and what works on it.
pub(super) struct Observing {
    hub: Hub,
    source: JoinHandle<()>,
    journal: Option<std::thread::JoinHandle<()>>,
}

/// Which process of which run this is.
pub(super) fn facts(
    manifest: &RunManifest,
    name: Option<String>,
    resumed_from: Option<f64>,
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
        parameters: parameters as u64,
        device: device.to_owned(),
        prediction: manifest.prediction().to_owned(),
    }
}

impl Observing {
    /// Begins with the record of this process. Without a journal that can be written it goes on all the same.
    pub(super) fn start(
        root: &Path,
        settings: &NodeSettings,
        me: PeerId,
        clock: Instant,
        facts: RunFacts,
        reports: &watch::Receiver<NodeReport>,
        notices: &broadcast::Sender<Noticed>,
    ) -> Observing {
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
        hub.tell(Body::Run(facts));
        let source = observe(hub.clone(), root.to_owned(), reports.clone(), notices.subscribe());
        Observing { source: tokio::spawn(source), hub, journal }
    }

    pub(super) fn hub(&self) -> Hub {
        self.hub.clone()
    }

    /// The last record, and what is left for the journal.
    pub(super) async fn end(self, steps: u64, failure: Option<String>) {
        self.source.abort();
        self.hub.tell(Body::End(EndFacts { steps, failure }));
        self.hub.close();
        let Some(journal) = self.journal else { return };
        let deadline = tokio::time::Instant::now() + END_TIMEOUT;
        while !journal.is_finished() && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(END_PERIOD).await;
        }
    }
}
