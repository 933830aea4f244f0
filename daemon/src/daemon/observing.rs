//! What a daemon tells of itself while it runs: the hub of its records, what feeds it, the journal, and programs that draw it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use murmur_network::{Throttle, peer_id};
use murmur_protocol::{PeerId, RunManifest};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;

use super::Plan;
use crate::console::{ToldOnce, note};
use crate::engine::{Noticed, PeerTraffic};
use crate::observe::record::{EndFacts, RunFacts};
use crate::observe::report::NodeReport;
use crate::observe::source::{last_peers, observe, sample};
use crate::observe::traffic::{self, Traffic};
use crate::observe::{Body, Hub, Journal};
use crate::settings::NodeSettings;
use crate::store::write_atomically;
use crate::tracking::{LastRecords, Mlflow, TensorBoard, mlflow};

/// Records that wait for the disk: more than five minutes of them.
const JOURNAL_PLACES: usize = 1024;

/// Records that wait for a tracker's disk: as many.
const TRACKING_PLACES: usize = 1024;

/// What the journal and the event files may take to write what is left, at the end.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// How often it is looked whether it has.
const END_PERIOD: Duration = Duration::from_millis(10);

/// How often the bytes with each member are written. What a killed process has not written comes back from the journal.
const TRAFFIC_PERIOD: Duration = Duration::from_secs(60);

/// The hub of a daemon, and what works on it.
pub(super) struct Observing {
    hub: Hub,
    traffic_path: PathBuf,
    keeping: JoinHandle<()>,
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
    /// Its caps.
    pub(super) throttle: &'a Throttle,
}

/// Which process of which run this is. It goes on from a checkpoint's swarm progress, where there is one, and own steps.
pub(super) fn facts(
    manifest: &RunManifest,
    name: Option<String>,
    (resumed_from, first_step): (Option<f64>, u64),
    parameters: usize,
    (device, price_per_hour): (&str, f64),
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
        price_per_hour,
        parameters: parameters as u64,
        device: device.to_owned(),
        prediction: manifest.prediction().to_owned(),
        ratio_band: manifest.gossip.kind.ratio_band(),
        run_file: manifest.canonical_text(),
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
        let Teller { root, manifest, settings, me, clock, throttle } = teller;
        let bytes = settings.journal.megabytes.saturating_mul(1_000_000);
        let opened = (bytes > 0).then(|| Journal::open(root, bytes)).transpose();
        let opened = opened.unwrap_or_else(|error| {
            note(&format!("warning: cannot write a journal in {}: {error}; training goes on", root.display()));
            None
        });
        let (journal, seq) = opened.unzip();
        let traffic_path = root.join(traffic::FILE);
        let traffic = read_traffic(&traffic_path);
        // Without a journal numbers go on from the totals, which know by them what they have counted.
        let told = seq.unwrap_or(0).max(traffic.seq);
        let hub = Hub::new(&me.to_string(), told, clock);
        hub.remember_traffic(traffic);
        if let Some(journal) = &journal {
            hub.remember(&journal.remembered());
        }
        let journal = journal.map(|journal| journal.start(hub.sink(JOURNAL_PLACES)));
        let mut writers: Vec<std::thread::JoinHandle<()>> = journal.into_iter().collect();
        let tensorboard = tensorboard(&settings.tensorboard.directory, &me.to_string(), &facts, manifest);
        writers.extend(tensorboard.map(|tensorboard| tensorboard.start(hub.sink(TRACKING_PLACES))));
        let name = facts.name.clone();
        hub.tell(Body::Run(facts));
        let last = seq.map(|written| LastRecords { written, told });
        let node = me.to_string();
        let name = name.as_deref();
        let mlflow = mlflow::Teller { settings: &settings.mlflow, root, node: &node, name, manifest, throttle };
        let mlflow = Mlflow::start(mlflow, last);
        let source = observe(hub.clone(), root.to_owned(), reports.clone(), notices.subscribe());
        let keeping = tokio::spawn(keep_traffic(hub.clone(), traffic_path.clone()));
        Observing { source: tokio::spawn(source), hub, traffic_path, keeping, writers, mlflow }
    }

    pub(super) fn hub(&self) -> Hub {
        self.hub.clone()
    }

    /// The last records, of how it stands at the end too, and what is left for those who write and send: a model, too, where there
    /// is time for it.
    pub(super) async fn end(
        self,
        (last, peers): (&NodeReport, &BTreeMap<PeerId, PeerTraffic>),
        root: &Path,
        (end, has_time): (EndFacts, bool),
    ) {
        self.source.abort();
        self.hub.tell(Body::Peers(last_peers(&self.hub, last, peers)));
        self.hub.tell(Body::Sample(Box::new(sample(last, root))));
        self.keeping.abort();
        write_traffic(&self.hub, &self.traffic_path);
        self.hub.tell(Body::End(end));
        self.hub.close();
        let deadline = tokio::time::Instant::now() + END_TIMEOUT;
        while !self.writers.iter().all(|thread| thread.is_finished()) && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(END_PERIOD).await;
        }
        if let Some(mlflow) = self.mlflow {
            mlflow.end(has_time).await;
        }
    }
}

/// Sends what an earlier process of this node has left for MLflow, where it is not to run any more.
pub(super) async fn send_rest(plan: &Plan) {
    let Plan { manifest, settings, directory, identity, .. } = plan;
    let root = directory.root();
    let bytes = settings.journal.megabytes.saturating_mul(1_000_000);
    if settings.mlflow.url.is_empty() || bytes == 0 {
        return;
    }
    let Ok((_, written)) = Journal::open(root, bytes) else { return };
    let told = written.max(read_traffic(&root.join(traffic::FILE)).seq);
    let (node, name) = (peer_id(identity).to_string(), settings.network.name.trim());
    let teller = mlflow::Teller {
        settings: &settings.mlflow,
        root,
        node: &node,
        name: (!name.is_empty()).then_some(name),
        manifest,
        throttle: &Throttle::new(settings.limits.caps()),
    };
    if let Some(mlflow) = Mlflow::start_rest(teller, Some(LastRecords { written, told })) {
        mlflow.end(true).await;
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

/// None where the file is missing or damaged: totals then begin anew.
fn read_traffic(path: &Path) -> Traffic {
    std::fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

async fn keep_traffic(hub: Hub, path: PathBuf) {
    loop {
        tokio::time::sleep(TRAFFIC_PERIOD).await;
        let (hub, path) = (hub.clone(), path.clone());
        // A disk may take its time, and the network's tasks must not wait for it.
        let _ = tokio::task::spawn_blocking(move || write_traffic(&hub, &path)).await;
    }
}

fn write_traffic(hub: &Hub, path: &Path) {
    let totals = hub.read(|id, picture| picture.nodes.get(id).map(|node| node.traffic.totals()));
    let Some(totals) = totals.filter(|totals| totals.since > 0) else { return };
    let text = serde_json::to_vec(&totals).expect("numbers and strings are serialisable");
    static TOLD: ToldOnce = ToldOnce::new();
    TOLD.look("the bytes with each member", write_atomically(path, &text));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::record::{PeerFacts, Peers};

    #[test]
    fn bytes_with_a_member_go_on_after_a_restart_without_a_journal() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join(traffic::FILE);
        let process = |sent: u64| {
            let traffic = read_traffic(&path);
            let hub = Hub::new("a", traffic.seq, Instant::now());
            hub.remember_traffic(traffic);
            let session = i64::try_from(sent).expect("small");
            hub.tell(Body::Run(RunFacts { session, ..RunFacts::default() }));
            let facts = PeerFacts { peer: "b".to_owned(), sent: Some(sent), ..PeerFacts::default() };
            hub.tell(Body::Peers(Peers { peers: vec![facts], more: 0 }));
            write_traffic(&hub, &path);
            hub.read(|_, picture| picture.nodes["a"].traffic.peers["b"].total.sent)
        };
        assert_eq!(process(100), 100);
        assert_eq!(process(30), 130, "another process counts from 0");
        std::fs::write(&path, "{").expect("written");
        assert_eq!(process(5), 5, "a damaged file is none");
    }
}
