//! The data driver between real networks on loopback: sources that go away, sources that send wrong bytes, a full disk.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use murmur::drivers::{Arrival, DataDriver, DataReport, ShelfParts};
use murmur::engine::Picture;
use murmur::setup::sharing::SharedData;
use murmur::store::ShardStore;
use murmur_network::{Connectivity, HeldShards, Keypair, Network, NetworkConfig, Shelf, Traffic};
use murmur_protocol::NetworkOrder;
use murmur_protocol::manifest::DataSource;
use murmur_protocol::message::KnownPeer;
use murmur_protocol::shards::{Sharding, list_shards};
use murmur_protocol::{Address, Config, Event, ModelLayout, Node, Payload, PeerId, RunManifest, Time};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// Everything in these tests happens within this, or fails.
const DEADLINE: Duration = Duration::from_secs(40);

/// A run with data in eight shards of this length, and that data.
fn run(shard_bytes: u64) -> (Arc<RunManifest>, Sharding, Payload) {
    run_of(8, shard_bytes)
}

fn run_of(shards: usize, shard_bytes: u64) -> (Arc<RunManifest>, Sharding, Payload) {
    let mut corpus = vec![0; shards * shard_bytes as usize - 100];
    blake3::Hasher::new().update(b"corpus").finalize_xof().fill(&mut corpus);
    let corpus = Payload::from(corpus);
    let (manifest, sharding) = listed(shard_bytes, &corpus);
    (manifest, sharding, corpus)
}

/// A run of this data.
fn listed(shard_bytes: u64, corpus: &Payload) -> (Arc<RunManifest>, Sharding) {
    let mut manifest = RunManifest::default();
    manifest.data.source = DataSource::Files;
    manifest.data.share = true;
    manifest.data.shard_bytes = shard_bytes;
    let manifest = list_shards(&manifest, corpus.bytes()).expect("it fits");
    let sharding = Sharding::of(&manifest.data).expect("listed");
    (Arc::new(manifest), sharding)
}

fn cut(sharding: &Sharding, corpus: &Payload) -> BTreeMap<usize, Payload> {
    let shard = |index: usize| {
        let range = sharding.range(index);
        Payload::from(corpus.bytes().slice(range.start as usize..range.end as usize))
    };
    (0..sharding.count()).map(|index| (index, shard(index))).collect()
}

/// A member's network, whose core is played by the test.
struct Member {
    network: Network,
    events: mpsc::Receiver<Event>,
    pictures: watch::Sender<Picture>,
}

impl Member {
    async fn start(manifest: &Arc<RunManifest>, shelf: Shelf) -> Member {
        let config = NetworkConfig {
            identity: Keypair::generate_ed25519(),
            listen: vec!["/ip4/127.0.0.1/tcp/0".parse().expect("an address")],
            manifest: manifest.clone(),
            payload_bytes_max: 1 << 20,
            inbound_bytes_budget: 1 << 20,
            shelf: Some(shelf),
            connectivity: Connectivity::OFF,
            secret: None,
            admission: Default::default(),
            throttle: Default::default(),
        };
        let (sender, events) = mpsc::channel(256);
        let network = Network::start(config, sender).await.expect("a free port");
        let (pictures, _) = watch::channel(picture(network.peer_id(), &[]));
        Member { network, events, pictures }
    }

    /// A source that holds these.
    async fn source(manifest: &Arc<RunManifest>, shards: BTreeMap<usize, Payload>) -> Member {
        Member::start(manifest, Shelf::new(watch::channel(Arc::new(shards)).1)).await
    }

    async fn connect(&mut self, others: &[&Member]) {
        let connected = self.dial(others).await;
        self.pictures.send_replace(picture(self.network.peer_id(), &connected));
    }

    /// Connects without a word to the driver.
    async fn dial(&mut self, others: &[&Member]) -> Vec<PeerId> {
        for other in others {
            let address = other.network.listen_addresses().first().expect("it listens").to_string();
            let order = NetworkOrder::Dial {
                peer: Some(other.network.peer_id()),
                addresses: vec![Address::new(address).expect("short")],
            };
            self.network.try_order(order).expect("there is room");
        }
        let mut connected = Vec::new();
        while connected.len() < others.len() {
            let event = timeout(DEADLINE, self.events.recv()).await.expect("in time").expect("the network runs");
            if let Event::PeerConnected { peer, .. } = event {
                connected.push(peer);
            }
        }
        connected
    }
}

/// What a core would show that is connected to these.
fn picture(me: PeerId, connected: &[PeerId]) -> Picture {
    let config = Config::founder(&RunManifest::default());
    let layout = Arc::new(ModelLayout::new(Vec::new()));
    let mut status = Node::new(config, me, layout, 1, Time::ZERO).status();
    status.connected = connected.to_vec();
    Picture { status, traffic: Traffic::default(), peers: Default::default() }
}

/// The same of a core that knows these members besides.
fn knowing(mut picture: Picture, others: &[PeerId]) -> Picture {
    let known = |peer: &PeerId| KnownPeer { peer: *peer, addresses: Vec::new() };
    picture.status.known = others.iter().map(known).collect();
    picture
}

/// A joiner's driver at work.
struct Joiner {
    member: Member,
    view: watch::Receiver<DataReport>,
    arrivals: mpsc::Receiver<Arrival>,
    task: AbortHandle,
}

impl Joiner {
    async fn start(manifest: &Arc<RunManifest>, folder: &Path, sources: &[&Member]) -> Joiner {
        let sharding = Sharding::of(&manifest.data).expect("listed");
        let store = ShardStore::open(folder.join("shards")).expect("writable");
        let held = HeldShards::default();
        let shelf = ShelfParts::new(held.clone());
        let mut member = Member::start(manifest, shelf.shelf.clone()).await;
        let (sender, arrivals) = mpsc::channel(sharding.count());
        let data = SharedData { sharding, store, held };
        let pictures = member.pictures.subscribe();
        let (view, task) = DataDriver::start(data, member.network.clone(), shelf, pictures, sender);
        member.connect(sources).await;
        Joiner { member, view, arrivals, task }
    }

    async fn wait_for(&mut self, what: &str, condition: impl FnMut(&DataReport) -> bool) -> DataReport {
        let found = timeout(DEADLINE, self.view.wait_for(condition)).await;
        let found = found.ok().map(|view| view.expect("the driver runs").clone());
        found.unwrap_or_else(|| panic!("waited in vain for {what}: {:?}", *self.view.borrow()))
    }

    /// Everything that has been handed to the trainer, put together.
    fn corpus(&mut self) -> Vec<u8> {
        let mut shards = BTreeMap::new();
        while let Ok((index, shard)) = self.arrivals.try_recv() {
            assert!(shards.insert(index, shard).is_none(), "shard {index} arrived twice");
        }
        shards.values().flat_map(|shard| shard.bytes().to_vec()).collect()
    }
}

impl Drop for Joiner {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resting_node_fetches_nothing_and_gives_nothing_until_its_rest_is_over() {
    let folder = folder();
    let (manifest, sharding, corpus) = run(64 * 1024);
    let source = Member::source(&manifest, cut(&sharding, &corpus)).await;
    let mut joiner = Joiner::start(&manifest, folder.path(), &[]).await;
    let (me, source_peer) = (joiner.member.network.peer_id(), source.network.peer_id());
    let rest = |is_resting: bool| {
        let mut picture = picture(me, &[source_peer]);
        picture.status.is_resting = is_resting;
        picture
    };
    joiner.member.pictures.send_replace(rest(true));
    joiner.member.dial(&[&source]).await;
    // Several looks of the driver, each of which would fetch.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(joiner.view.borrow().shards_held, 0, "it rests");
    joiner.member.pictures.send_replace(rest(false));
    joiner.wait_for("all shards", |view| view.shards_held == 8).await;
    assert_eq!(source.network.ask_holdings(me).await.expect("it answers").len(), 8);
    joiner.member.pictures.send_replace(rest(true));
    let emptied = async {
        while !source.network.ask_holdings(me).await.expect("it answers").is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, emptied).await.expect("nothing is offered any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_goes_on_at_another_source_where_the_first_broke_off() {
    let folder = folder();
    let (manifest, sharding, corpus) = run(8 << 20);
    let first = Member::source(&manifest, cut(&sharding, &corpus)).await;
    let mut joiner = Joiner::start(&manifest, folder.path(), &[&first]).await;
    joiner.wait_for("some bytes", |view| view.bytes_fetched > 1 << 20).await;
    first.network.close().await;
    let second = Member::source(&manifest, cut(&sharding, &corpus)).await;
    joiner.member.connect(&[&second]).await;
    let view = joiner.wait_for("all shards", |view| view.shards_held == 8).await;
    // Every byte was fetched once, so what the first source had sent was gone on with.
    assert_eq!(view.bytes_fetched, sharding.corpus_bytes());
    assert_eq!((view.shards_assigned, view.shards_assigned_held, view.suffices), (8, 8, true));
    assert!(joiner.corpus() == corpus.bytes()[..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_bytes_are_noticed_and_taken_from_another_source() {
    let folder = folder();
    let (manifest, sharding, corpus) = run(4096);
    let mut wrong = cut(&sharding, &corpus);
    for shard in wrong.values_mut() {
        let mut bytes = shard.bytes().to_vec();
        bytes[17] ^= 1;
        *shard = bytes.into();
    }
    let liar = Member::source(&manifest, wrong).await;
    let mut joiner = Joiner::start(&manifest, folder.path(), &[&liar]).await;
    joiner.wait_for("the lie", |view| view.bytes_fetched >= 4096).await;
    let honest = Member::source(&manifest, cut(&sharding, &corpus)).await;
    joiner.member.connect(&[&honest]).await;
    let both = [liar.network.peer_id(), honest.network.peer_id()];
    joiner.member.pictures.send_replace(picture(joiner.member.network.peer_id(), &both));
    joiner.wait_for("all shards", |view| view.shards_held == 8).await;
    assert!(joiner.corpus() == corpus.bytes()[..]);
    // The liar was asked for as much as it sends at once, and then for nothing more.
    let lied = joiner.view.borrow().bytes_fetched - sharding.corpus_bytes();
    assert!((1..=2 * 4096).contains(&lied), "{lied} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_joiner_with_several_sources_takes_from_all_and_then_serves() {
    let folder = folder();
    let (manifest, sharding, corpus) = run(1 << 20);
    let (mut odd, mut even) = (cut(&sharding, &corpus), cut(&sharding, &corpus));
    odd.retain(|index, _| index % 2 == 1);
    even.retain(|index, _| index % 2 == 0);
    let (odd, even) = (Member::source(&manifest, odd).await, Member::source(&manifest, even).await);
    let mut joiner = Joiner::start(&manifest, folder.path(), &[&odd, &even]).await;
    joiner.wait_for("all shards", |view| view.shards_held == 8).await;
    assert!(joiner.corpus() == corpus.bytes()[..]);
    let later = tempfile::tempdir().expect("a temporary directory");
    let mut next = Joiner::start(&manifest, later.path(), &[&joiner.member]).await;
    next.wait_for("all shards from the joiner", |view| view.shards_held == 8 && view.shards_reachable == 8).await;
    assert!(next.corpus() == corpus.bytes()[..]);
    joiner.wait_for("it has served", |view| view.bytes_served == sharding.corpus_bytes()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_fetches_its_part_and_more_when_members_leave() {
    let folder = folder();
    let (manifest, sharding, corpus) = run_of(64, 1024);
    let source = Member::source(&manifest, cut(&sharding, &corpus)).await;
    let mut joiner = Joiner::start(&manifest, folder.path(), &[]).await;
    let me = joiner.member.network.peer_id();
    // A core that knows many members before the first is connected.
    let others: Vec<PeerId> = (1..=20).map(|number| PeerId::from_public_key([number; 32])).collect();
    joiner.member.pictures.send_replace(knowing(picture(me, &[]), &others));
    joiner.wait_for("a small part", |view| view.shards_assigned < 30).await;
    joiner.member.connect(&[&source]).await;
    let connected = picture(me, &[source.network.peer_id()]);
    joiner.member.pictures.send_replace(knowing(connected.clone(), &others));
    let few =
        joiner.wait_for("its part", |view| view.suffices && view.shards_assigned_held == view.shards_assigned).await;
    assert!(few.shards_held < 40, "{few:?}");
    joiner.member.pictures.send_replace(knowing(connected.clone(), &others[..4]));
    let more = joiner
        .wait_for("more", |view| {
            view.shards_assigned > few.shards_assigned && view.shards_assigned_held == view.shards_assigned
        })
        .await;
    assert!(more.shards_held > few.shards_held && more.shards_held < 64, "{more:?}");
    // What has been fetched stays when a member comes.
    joiner.member.pictures.send_replace(knowing(connected.clone(), &others));
    let again = joiner.wait_for("the small part again", |view| view.shards_assigned == few.shards_assigned).await;
    assert_eq!(again.shards_held, more.shards_held);
    joiner.member.pictures.send_replace(connected);
    joiner.wait_for("everything, with one other member", |view| view.shards_held == 64).await;
    assert_eq!(joiner.view.borrow().bytes_fetched, sharding.corpus_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_had_arrived_of_shards_that_fall_to_others_is_removed() {
    let folder = folder();
    let (manifest, sharding, corpus) = run_of(64, 1024);
    let shards = cut(&sharding, &corpus);
    let store = ShardStore::open(folder.path().join("shards")).expect("writable");
    for (index, hash) in sharding.hashes().iter().enumerate() {
        let mut part = store.begin(*hash, sharding.length(index), false).expect("writable");
        part.write(&shards[&index].bytes()[..100]).expect("writable");
    }
    let source = Member::source(&manifest, shards).await;
    let mut joiner = Joiner::start(&manifest, folder.path(), &[]).await;
    let me = joiner.member.network.peer_id();
    let others: Vec<PeerId> = (1..=20).map(|number| PeerId::from_public_key([number; 32])).collect();
    let connected = joiner.member.dial(&[&source]).await;
    joiner.member.pictures.send_replace(knowing(picture(me, &connected), &others));
    let its_part = |view: &DataReport| view.suffices && view.shards_assigned_held == view.shards_assigned;
    let view = joiner.wait_for("its part", its_part).await;
    assert!(view.shards_held < 40, "{view:?}");
    let parts = || std::fs::read_dir(store.folder()).expect("there").count() - joiner.view.borrow().shards_held;
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while parts() > 0 {
        assert!(tokio::time::Instant::now() < deadline, "{} parts stay that nobody will go on with", parts());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_life_left_is_gone_on_with_or_thrown_away() {
    let (manifest, sharding, corpus) = run(1 << 20);
    let (shards, half) = (cut(&sharding, &corpus), 1 << 19);
    let right = shards[&0].bytes()[..half].to_vec();
    // Half of a shard is there already; where it is wrong, that shows when the other half has come, and then all of it
    // comes once more: the only source is not blamed for what somebody else had left.
    let bytes = sharding.corpus_bytes();
    for (left_over, expected) in [(right, bytes - half as u64), (vec![0; half], bytes + half as u64)] {
        let folder = folder();
        let store = ShardStore::open(folder.path().join("shards")).expect("writable");
        let mut left = store.begin(sharding.hashes()[0], 1 << 20, false).expect("writable");
        left.write(&left_over).expect("writable");
        let source = Member::source(&manifest, shards.clone()).await;
        let mut joiner = Joiner::start(&manifest, folder.path(), &[&source]).await;
        let view = joiner.wait_for("all shards", |view| view.shards_held == 8).await;
        assert!(joiner.corpus() == corpus.bytes()[..]);
        assert_eq!(view.bytes_fetched, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_shards_are_fetched_once() {
    let folder = folder();
    let corpus = Payload::from(vec![7; 64 * 1024 - 5]);
    let (manifest, sharding) = listed(1024, &corpus);
    let source = Member::source(&manifest, cut(&sharding, &corpus)).await;
    let mut joiner = Joiner::start(&manifest, folder.path(), &[&source]).await;
    let view = joiner.wait_for("all shards", |view| view.shards_held == 64).await;
    assert_eq!(view.bytes_fetched, 1024 + 1019);
    assert!(joiner.corpus() == corpus.bytes()[..]);
}

/// Needs the right to mount a small file system; where there is none, the test says so and ends.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_waited_out_and_leaves_nothing_half_written() {
    let folder = folder();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"])
        .arg(folder.path())
        .output();
    match mounted {
        Ok(output) if output.status.success() => {}
        other => {
            println!("skipped: no file system can be mounted here ({other:?})");
            return;
        }
    }
    let _unmount = Unmount(folder.path().to_owned());
    let (manifest, sharding, corpus) = run(64 << 10);
    let source = Member::source(&manifest, cut(&sharding, &corpus)).await;
    let mut joiner = Joiner::start(&manifest, folder.path(), &[&source]).await;
    // Four shards fit, and fill the disk to the last byte.
    joiner.wait_for("four shards", |view| view.shards_held == 4).await;
    // Some looks of the driver, each of which would ask for a fifth.
    tokio::time::sleep(Duration::from_secs(2)).await;
    // The last one is a little shorter.
    assert!(joiner.view.borrow().bytes_fetched <= 4 * (64 << 10), "what does not fit is not asked for");
    assert!(joiner.arrivals.try_recv().is_ok(), "what is here is trained on");
    let is_part = |name: &str| name.ends_with(".part");
    let parts = || {
        let entries = std::fs::read_dir(folder.path().join("shards")).expect("there").flatten();
        entries.filter(|entry| is_part(&entry.file_name().to_string_lossy())).count()
    };
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while parts() > 0 {
        assert!(tokio::time::Instant::now() < deadline, "a partial shard stays on a full disk");
        tokio::task::yield_now().await;
    }
    let roomier =
        std::process::Command::new("mount").args(["-o", "remount,size=4m"]).arg(folder.path()).status().expect("mount");
    assert!(roomier.success());
    joiner.wait_for("all shards once there is room", |view| view.shards_held == 8).await;
}

#[cfg(target_os = "linux")]
struct Unmount(std::path::PathBuf);

#[cfg(target_os = "linux")]
impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
