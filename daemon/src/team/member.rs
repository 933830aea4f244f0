//! A helper as a member of its captain's swarm: a core and a network of its own, whose trainer is the helper's stage. It exchanges the
//! stage's fragments of the model; the captain exchanges the others.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use murmur_network::{Keypair, Multiaddr, Network, NetworkConfig, Throttle};
use murmur_protocol::{Bootstrap, Config, Event, Name, Node, Notice, PeerId, Status, Ticket, Time, TrainerOrder};
use murmur_training::team::{HelperControl, NewMember};
use murmur_training::trained_layout;
use tokio::sync::{broadcast, mpsc, watch};

use crate::console::figures::counted;
use crate::console::note;
use crate::daemon::{network_config, random_seed};
use crate::drivers::{Trainer, Workers};
use crate::engine::{Channels, Engine, Noticed, Picture, Stopped};
use crate::settings::NodeSettings;

/// Facts that wait for the core, which takes microseconds for each.
const EVENTS_MAX: usize = 1024;

/// Notices that nobody has taken; older ones are lost.
const NOTICES_MAX: usize = 256;

/// How long a member may reach nobody before its captain is told to exchange for it. A guess: a daemon finds others in seconds.
const APART_AFTER: Duration = Duration::from_secs(30);

/// How long its core has to hear that no exchange is to begin any more.
const RESTED: Duration = Duration::from_millis(50);

/// How long it may take to leave.
pub(super) const LEAVING_MAX: Duration = Duration::from_secs(2);

/// What a helper's thread says of its membership.
#[derive(Debug)]
pub(super) enum Told {
    /// It begins.
    Begins(Box<NewMember>),
    /// It ends.
    Ends,
}

/// The number of a membership, and where its core hears of facts.
type Core = (u64, mpsc::Sender<Event>);

/// Where facts for the core of a member go, where there is one; clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts(Arc<Mutex<Option<Core>>>);

impl Facts {
    /// Hands a fact of a membership over without waiting.
    pub(super) fn tell(&self, membership: u64, event: Event) {
        if let Some((now, events)) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner)
            && *now == membership
        {
            // A core that does not keep up has requests that fail by their deadlines.
            let _ = events.try_send(event);
        }
    }

    fn go_to(&self, core: Option<Core>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = core;
    }
}

/// How a member is reached and what it may use: what is left while memberships begin and end.
pub(super) struct Place {
    pub(super) identity: Keypair,
    /// Of the helper; a member listens there as well, at ports of its own.
    pub(super) listen: Vec<Multiaddr>,
    pub(super) settings: NodeSettings,
    /// The helper's caps, which its captain's connections draw from as well.
    pub(super) throttle: Throttle,
    pub(super) control: HelperControl,
    pub(super) facts: Facts,
    /// What is shown of it in a line; empty while it is no member.
    pub(super) shown: watch::Sender<String>,
}

impl Place {
    /// Carries memberships out, one after the other, until nobody tells of any.
    pub(super) async fn serve(self, mut told: mpsc::UnboundedReceiver<Told>) {
        let mut next = told.recv().await;
        while let Some(what) = next {
            next = match what {
                Told::Ends => told.recv().await,
                Told::Begins(new) => {
                    let (stop, stopped) = watch::channel(false);
                    let number = new.number;
                    let member = self.member(*new, stopped);
                    tokio::pin!(member);
                    tokio::select! {
                        result = &mut member => {
                            if let Err(error) = result {
                                note(&format!("warning: this helper cannot be a member of the swarm: {error:#}"));
                                self.control.found_apart();
                            }
                            told.recv().await
                        }
                        next = told.recv() => {
                            // No last exchange: its layers are another's by now.
                            self.facts.tell(number, Event::RestBegan);
                            let has_ended = tokio::time::timeout(RESTED, &mut member).await.is_ok();
                            stop.send_replace(true);
                            if !has_ended {
                                let _ = tokio::time::timeout(2 * LEAVING_MAX, member).await;
                            }
                            next
                        }
                    }
                }
            };
            self.facts.go_to(None);
            self.shown.send_replace(String::new());
        }
    }

    /// One membership, until `stop` says so.
    async fn member(&self, new: NewMember, mut stop: watch::Receiver<bool>) -> anyhow::Result<()> {
        let NewMember { number, manifest, share, ticket, report, is_outdated } = new;
        let ticket: Ticket = ticket.parse().context("the captain's ticket")?;
        let (events, inbox) = mpsc::channel(EVENTS_MAX);
        let config = network_config(self.identity.clone(), &manifest, &self.settings, ticket.secret.clone())?;
        let listen = self.listen.iter().filter_map(with_free_port).collect();
        let config = NetworkConfig { listen, throttle: self.throttle.clone(), ..config };
        let network = Network::start(config, events.clone()).await?;
        let microseconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let (held, of) = (share.range.len(), share.of);
        let config = Config {
            name: Name::new(&self.settings.network.name),
            holding: share.holding,
            training: report,
            bootstrap: Bootstrap::of(&ticket),
            first_number: u64::try_from(microseconds).unwrap_or(u64::MAX / 2),
            upload_bytes_per_second: self.settings.limits.caps().upload.map(|rate| rate as f64),
            leaving_max: LEAVING_MAX,
            ..Config::founder(&manifest)
        };
        let (clock, me) = (Instant::now(), network.peer_id());
        let node = Node::new(config, me, Arc::new(trained_layout(&manifest)), random_seed()?, Time::ZERO);
        let (trainer, orders) = Trainer::elsewhere();
        let control = self.control.clone();
        // Ends with the trainer.
        std::thread::Builder::new().name("member".to_owned()).spawn(move || pass_on(&orders, number, &control))?;
        let picture = Picture { status: node.status(), traffic: network.traffic(), peers: Default::default() };
        let (pictures, view) = watch::channel(picture);
        let (notices, mut heard) = broadcast::channel(NOTICES_MAX);
        let workers = Workers::start(events.clone());
        if is_outdated {
            let _ = events.try_send(Event::ModelOutdated);
        }
        self.facts.go_to(Some((number, events)));
        note(&format!("member      exchanges {:.0} % of the model by itself", 100.0 * held as f64 / of.max(1) as f64));
        let channels = Channels { events: inbox, pictures, notices, recorder: None };
        let engine = Engine::new(node, network, trainer, workers, clock, channels).run(stop.clone());
        tokio::pin!(engine);
        let mut looks = tokio::time::interval(Duration::from_secs(1));
        let (mut seen, mut is_told) = (Instant::now(), false);
        let stopped = loop {
            tokio::select! {
                stopped = &mut engine => break stopped,
                noticed = heard.recv() => {
                    if let Ok(Noticed { notice: Notice::StateReceived { donors, .. }, .. }) = noticed {
                        let names: Vec<String> = donors.iter().map(PeerId::short).collect();
                        note(&format!("member      took its layers over from {}", names.join(", ")));
                    }
                }
                _ = looks.tick() => {
                    let line = described(&view.borrow());
                    if reaches_others(&view.borrow().status, ticket.peer) {
                        seen = Instant::now();
                    }
                    self.shown.send_replace(line);
                    if seen.elapsed() > APART_AFTER && !is_told && !*stop.borrow_and_update() {
                        is_told = true;
                        note("warning: as a member of the swarm this helper reaches nobody; the captain exchanges for it");
                        self.control.found_apart();
                    }
                }
            }
        };
        let Stopped { network, .. } = stopped;
        network.close().await;
        Ok(())
    }
}

/// Whether it can exchange with somebody beside its captain, which lacks what it holds; or there is nobody else.
fn reaches_others(status: &Status, captain: PeerId) -> bool {
    let others = status.members.keys().any(|peer| *peer != captain);
    status.connected.iter().any(|peer| *peer != captain) || (!others && !status.connected.is_empty())
}

/// Orders of a core on their way to the helper's thread.
fn pass_on(orders: &std::sync::mpsc::Receiver<TrainerOrder>, membership: u64, control: &HelperControl) {
    for order in orders {
        if !control.order(membership, order) {
            return;
        }
    }
}

/// The same address with any free port.
fn with_free_port(address: &Multiaddr) -> Option<Multiaddr> {
    let (text, mut is_port) = (address.to_string(), false);
    let part = |part: &str| {
        let is_this_one = std::mem::replace(&mut is_port, matches!(part, "tcp" | "udp"));
        if is_this_one { "0".to_owned() } else { part.to_owned() }
    };
    text.split('/').map(part).collect::<Vec<_>>().join("/").parse().ok()
}

/// One line of what a member does.
fn described(picture: &Picture) -> String {
    let exchanges = picture.status.exchanges.completed();
    let connected = picture.status.connected.len();
    format!("{} in the swarm, {} of its layers", counted(connected as u64, "member"), counted(exchanges, "exchange"))
}
