//! The swarm as this machine meets it: it connects as a joiner does, copies a little, and leaves.

use std::time::{Duration, Instant};

use murmur_network::{Network, NetworkConfig, ReachabilityState};
use murmur_protocol::NetworkOrder;
use murmur_protocol::bounds::{PROGRESS_MAX, STATE_CHUNK_VALUES, STATE_PART_CHUNKS_MAX, state_bytes};
use murmur_protocol::finish::{FinishOrder, RunEnd};
use murmur_protocol::message::{Chunks, Message, Reject, RejectReason, TransferHeader};
use murmur_protocol::{Bootstrap, Event, PeerId, RunManifest};
use tokio::sync::mpsc;
use tokio::time::{sleep_until, timeout};

use super::Finding;
use crate::console::figures::{count, megabits};
use crate::console::{ReachabilityReport, counted, human_bytes};
use crate::daemon::ports;

/// How long the swarm is watched: long enough for probes of this node's addresses and for some proposals.
pub const WATCHING: Duration = Duration::from_secs(12);

/// What is copied to measure the bandwidth, in chunks of a state: 32 MiB, which a slow line does not carry in that time.
const CHUNKS_COPIED_MAX: u32 = 8 * STATE_PART_CHUNKS_MAX;

/// Less than this is over before its rate tells anything of the link (a guess): the round trip and the donor's step weigh more.
const MEASURED_BYTES_MIN: u64 = 1_000_000;

/// Facts that may wait for the doctor, who takes microseconds for each.
const EVENTS_MAX: usize = 1024;

/// A day after which proposals may be repeated to a node that only looks around, in milliseconds.
const NOT_AGAIN_MS: u32 = 60_000;

/// What was seen of the swarm.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Members connected or told of, this node not counted.
    pub members: usize,
    /// Speeds that members have declared in proposals.
    pub tokens_per_second: Vec<f64>,
    /// The link from a member, in Mbit/s, where enough was copied to measure it.
    pub megabits: Option<f64>,
}

impl Found {
    /// The mean of the declared speeds.
    pub fn mean_tokens_per_second(&self) -> Option<f64> {
        let count = self.tokens_per_second.len();
        (count > 0).then(|| self.tokens_per_second.iter().sum::<f64>() / count as f64)
    }
}

/// Connects to the members at `bootstrap` and watches for a while.
pub async fn ask_swarm(
    config: NetworkConfig,
    (manifest, parameters): (&RunManifest, usize),
    bootstrap: &[Bootstrap],
    findings: &mut Vec<Finding>,
) -> Option<Found> {
    let (events, mut inbox) = mpsc::channel(EVENTS_MAX);
    let network = listen(config, events, findings).await?;
    for entry in bootstrap {
        let order = NetworkOrder::Dial { peer: entry.peer, addresses: vec![entry.address.clone()] };
        let _ = network.try_order(order); // one that is not dialed does not answer
    }
    let mut visit = Visit::new(&network, RunEnd::of(manifest), state_bytes(parameters));
    let end = tokio::time::Instant::now() + WATCHING;
    loop {
        tokio::select! {
            event = inbox.recv() => match event {
                Some(event) => visit.on_event(event),
                None => break,
            },
            () = sleep_until(end) => break,
        }
    }
    findings.push(visit.judge_bandwidth());
    findings.extend(visit.judge_end());
    findings.push(judge_reachability(&network));
    let found = visit.found();
    for peer in visit.connected.clone() {
        let _ = network.try_order(NetworkOrder::Send { peer, message: Message::Leave });
    }
    // The members' last words are of no interest, but somebody has to take them until the network is closed.
    let _ = timeout(Duration::from_secs(5), async {
        tokio::join!(network.close(), async { while inbox.recv().await.is_some() {} })
    })
    .await;
    (!visit.seen.is_empty()).then_some(found)
}

/// Of the listen addresses alone, where there is no swarm to ask.
pub async fn check_ports(config: NetworkConfig, findings: &mut Vec<Finding>) {
    let (events, _inbox) = mpsc::channel(EVENTS_MAX);
    if let Some(network) = listen(config, events, findings).await {
        network.close().await;
    }
}

async fn listen(config: NetworkConfig, events: mpsc::Sender<Event>, findings: &mut Vec<Finding>) -> Option<Network> {
    match Network::start(config, events).await {
        Ok(network) => {
            let listening: Vec<String> = network.listen_addresses().iter().map(ToString::to_string).collect();
            findings.push(Finding::good("ports", format!("can listen at {}", listening.join(", "))));
            Some(network)
        }
        Err(error) => {
            findings.push(Finding::problem("ports", error.to_string(), ports::REMEDY));
            None
        }
    }
}

struct Visit<'a> {
    network: &'a Network,
    /// With the newest order that a member has told.
    end: RunEnd,
    /// Swarm progress of the donor's model, in steps, once it has come.
    progress: Option<f64>,
    connected: Vec<PeerId>,
    /// Everybody connected or told of.
    seen: Vec<PeerId>,
    tokens_per_second: Vec<f64>,
    chunks: u32,
    /// Whom chunks are copied from, and when the first of them came.
    donor: Option<(PeerId, Option<Instant>)>,
    /// Behind the first chunk, which waits for the donor's step.
    bytes: u64,
    chunks_come: u32,
    last_at: Instant,
}

impl Visit<'_> {
    fn new(network: &Network, end: RunEnd, state_bytes: usize) -> Visit<'_> {
        let chunks = state_bytes.div_ceil(4 * STATE_CHUNK_VALUES).clamp(1, CHUNKS_COPIED_MAX as usize) as u32;
        Visit {
            network,
            end,
            progress: None,
            connected: Vec::new(),
            seen: Vec::new(),
            tokens_per_second: Vec::new(),
            chunks,
            donor: None,
            bytes: 0,
            chunks_come: 0,
            last_at: Instant::now(),
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::PeerConnected { peer, .. } => {
                self.see(peer);
                self.connected.push(peer);
                self.send(peer, Message::Shuffle { peers: Vec::new(), wants_reply: true });
                if self.donor.is_none() {
                    self.donor = Some((peer, None));
                    let chunks = Chunks { first: 0, count: self.chunks };
                    self.send(peer, Message::RequestState { request: 0, chunks });
                }
            }
            Event::PeerDisconnected { peer } => self.connected.retain(|connected| *connected != peer),
            Event::MessageReceived { message: Message::Shuffle { peers, .. } | Message::Prune { peers }, .. } => {
                peers.iter().for_each(|told| self.see(told.known.peer));
            }
            Event::MessageReceived { peer, message: Message::Propose(propose) } => {
                self.tokens_per_second.push(f64::from(propose.standing.weight));
                let (exchange, reason) = (propose.exchange, RejectReason::Joining);
                self.send(peer, Message::Reject(Reject { exchange, reason, retry_after_ms: NOT_AGAIN_MS }));
            }
            Event::MessageReceived { message: Message::Finish(order), .. } => self.hear(order),
            Event::TransferReceived { peer, header, payload, .. } => {
                if let Some((donor, first_at)) = &mut self.donor
                    && *donor == peer
                {
                    if let TransferHeader::State { progress, .. } = header {
                        self.progress = Some(progress).filter(|progress| (0.0..=PROGRESS_MAX).contains(progress));
                    }
                    self.chunks_come += 1;
                    self.last_at = Instant::now();
                    match first_at {
                        None => *first_at = Some(self.last_at),
                        Some(_) => self.bytes += payload.len() as u64,
                    }
                }
            }
            _ => {}
        }
    }

    fn hear(&mut self, order: FinishOrder) {
        let known = self.end.order.as_ref().map(|known| known.serial);
        let is_valid = self.end.founder.is_some_and(|founder| order.is_valid(self.end.run, founder));
        if is_valid && known.is_none_or(|known| known < order.serial) {
            self.end.order = Some(order);
        }
    }

    /// Of a run that is over.
    fn judge_end(&self) -> Option<Finding> {
        let end = self.end.at().filter(|end| self.progress.is_some_and(|progress| progress >= *end))?;
        let text =
            format!("this run is over: it is complete at swarm step {}, and nobody trains any more", count(end as u64));
        let fix = "`murmur join` with its ticket copies the finished model; to train, found or join another run";
        Some(Finding::problem("run", text, fix))
    }

    fn see(&mut self, peer: PeerId) {
        // One told more than a thousand members would not change the verdict.
        if peer != self.network.peer_id() && !self.seen.contains(&peer) && self.seen.len() < EVENTS_MAX {
            self.seen.push(peer);
        }
    }

    fn send(&self, peer: PeerId, message: Message) {
        let _ = self.network.try_order(NetworkOrder::Send { peer, message });
    }

    fn found(&self) -> Found {
        Found { members: self.seen.len(), tokens_per_second: self.tokens_per_second.clone(), megabits: self.megabits() }
    }

    /// The link from the donor, where it has given anything.
    fn megabits(&self) -> Option<f64> {
        let (_, first_at) = self.donor.as_ref()?;
        let seconds = (self.last_at - (*first_at)?).as_secs_f64().max(1e-6);
        (self.bytes >= MEASURED_BYTES_MIN).then(|| 8e-6 * self.bytes as f64 / seconds)
    }

    fn judge_bandwidth(&self) -> Finding {
        let Some((donor, first_at)) = &self.donor else {
            let fix = "is that member still running? ask for a fresh ticket (`murmur ticket`)";
            return Finding::problem("swarm", "no member could be connected to".to_owned(), fix);
        };
        let members = self.seen.len();
        let swarm = format!("{} seen, {} connected", counted(members as u64, "member"), self.connected.len());
        match first_at {
            None => {
                let text = format!("{swarm}; {} gave nothing of its model in time", donor.short());
                Finding::warning("swarm", text, "it may be busy or joining itself: try again in a while")
            }
            Some(_) if self.megabits().is_none() => {
                Finding::good("swarm", format!("{swarm}; the model is too small to measure the bandwidth"))
            }
            Some(_) => {
                let (rate, bytes) = (self.megabits().unwrap_or_default(), human_bytes(self.bytes));
                Finding::good("swarm", format!("{swarm}; {} from {} ({bytes})", megabits(rate), donor.short()))
            }
        }
    }
}

fn judge_reachability(network: &Network) -> Finding {
    let reachability = network.reachability().borrow().clone();
    let ReachabilityReport { text, hint, .. } = ReachabilityReport::new(&reachability);
    match (reachability.state, hint) {
        (ReachabilityState::Isolated, Some(hint)) => Finding::problem("reachable", text, hint),
        (_, Some(hint)) => Finding::warning("reachable", text, hint),
        (_, None) => Finding::good("reachable", text),
    }
}
