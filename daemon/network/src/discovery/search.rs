//! Looking for a member of a run of which only the id is known, where all addresses of a ticket are dead: on the local
//! network (mDNS), in the run's table (Kademlia) through whoever of the ticket answers lookups although it lets this node
//! in no more, and at the ticket's addresses again, for machines restart. Whoever is found is asked for the manifest, and
//! only the run's own will do.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use futures::StreamExt;
use libp2p::identity::Keypair;
use libp2p::kad::{self, GetProvidersOk, QueryResult};
use libp2p::swarm::{Swarm, SwarmEvent};
use libp2p::{Multiaddr, PeerId as Libp2pPeerId};
use murmur_protocol::handshake::{Credentials, Refusal};
use murmur_protocol::{Address, Bootstrap, PeerId, RunId};
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use crate::address::{is_loopback_only, to_core_address, to_dialable, to_libp2p_peer};
use crate::behaviour::{Behaviour, BehaviourEvent};
use crate::bounds::{SEARCH_ADDRESSES_MAX, SEARCH_ASKED_AT_ONCE, SEARCH_ASKED_MAX, SEARCH_LOOK_PERIOD};
use crate::connectivity::Connectivity;
use crate::dial_filter::DialFilter;
use crate::discovery::manifest::{FetchError, Question, Told, fetch_manifest};
use crate::discovery::table::{meaningful, places_of, run_key};
use crate::handshake::gate::Gate;
use crate::network::new_swarm;
use crate::scope::Scope;
use crate::traffic::TrafficCounter;
use crate::transport::TransportError;

/// What is looked for, and by which means.
#[derive(Clone, Copy, Debug)]
pub struct Search<'a> {
    /// Who looks.
    pub identity: &'a Keypair,
    /// What a ticket says of the run.
    pub ticket: &'a Credentials,
    /// Members that the ticket names.
    pub known: &'a [Bootstrap],
    /// Where this node will listen: one that is on loopback only looks at no local network.
    pub listen: &'a [Multiaddr],
    /// What its owner allows; of it only `mdns` and `kademlia` matter.
    pub connectivity: Connectivity,
    /// How long one member may take to tell its run.
    pub answer_timeout: Duration,
}

/// A member of the run.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundMember {
    /// What it told; the id of its run is that of the ticket.
    pub told: Told,
    /// Where it answers.
    pub member: Bootstrap,
}

/// Nobody was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NobodyFound {
    /// Nodes seen on the local network, of any run.
    pub on_local_network: usize,
    /// Members that the run's table named.
    pub in_table: usize,
    /// Why those that took part in the run, or claimed to, told no manifest.
    pub refusals: Vec<String>,
}

/// Whether a search with these means could find anybody: with no local network to look at, there has to be somebody who
/// `answers` lookups.
pub fn is_promising(search: &Search<'_>, answers: bool) -> bool {
    looks_on_local_network(search) || (search.connectivity.kademlia && answers)
}

/// Looks for so long, or until a member has told the run.
///
/// # Errors
/// Who was met instead, or that encryption could not be set up.
pub async fn search_member(
    search: Search<'_>,
    limit: Duration,
) -> Result<Result<FoundMember, NobodyFound>, TransportError> {
    let mut looking = Looking::new(search)?;
    Ok(match timeout(limit, looking.run()).await {
        Ok(found) => Ok(found),
        Err(_) => Err(looking.into_report()),
    })
}

fn looks_on_local_network(search: &Search<'_>) -> bool {
    cfg!(feature = "mdns") && search.connectivity.mdns && !is_loopback_only(search.listen)
}

/// A search under way.
struct Looking<'a> {
    search: Search<'a>,
    swarm: Swarm<Behaviour>,
    dial_filter: DialFilter,
    key: kad::RecordKey,
    /// Whom to ask next.
    waiting: VecDeque<Candidate>,
    /// Who was asked or will be.
    noted: BTreeSet<Libp2pPeerId>,
    asking: JoinSet<Result<FoundMember, Option<String>>>,
    on_local_network: BTreeSet<Libp2pPeerId>,
    in_table: BTreeSet<Libp2pPeerId>,
    refusals: BTreeSet<String>,
}

/// Somebody who may be a member, and where.
struct Candidate {
    peer: Option<Libp2pPeerId>,
    places: Vec<Multiaddr>,
}

impl<'a> Looking<'a> {
    fn new(search: Search<'a>) -> Result<Looking<'a>, TransportError> {
        let mdns = looks_on_local_network(&search);
        let connectivity = Connectivity { mdns, kademlia: search.connectivity.kademlia, ..Connectivity::OFF };
        let run: RunId = search.ticket.run;
        let gate = Gate::new(search.identity, search.ticket);
        let dial_filter = DialFilter::new(search.listen);
        let known: Vec<Multiaddr> = search.known.iter().filter_map(|known| to_dialable(&known.address)).collect();
        known.iter().filter_map(Scope::of).for_each(|scope| dial_filter.met(scope));
        let (filter, traffic) = (Some(dial_filter.clone()), TrafficCounter::default());
        let mut swarm = new_swarm(search.identity, Some(run), gate, &connectivity, filter, &traffic)?;
        if let Some(kademlia) = swarm.behaviour_mut().kademlia.as_mut() {
            // It listens nowhere: nobody need remember it.
            kademlia.set_mode(Some(kad::Mode::Client));
        }
        Ok(Looking {
            search,
            swarm,
            dial_filter,
            key: run_key(run),
            waiting: VecDeque::new(),
            noted: BTreeSet::new(),
            asking: JoinSet::new(),
            on_local_network: BTreeSet::new(),
            in_table: BTreeSet::new(),
            refusals: BTreeSet::new(),
        })
    }

    async fn run(&mut self) -> FoundMember {
        let mut looks = interval(SEARCH_LOOK_PERIOD);
        loop {
            tokio::select! {
                event = self.swarm.select_next_some() => self.on_swarm_event(event),
                _ = looks.tick() => self.look(),
                Some(Ok(answer)) = self.asking.join_next() => match answer {
                    Ok(found) => return found,
                    Err(refusal) => self.refusals.extend(refusal),
                },
            }
            self.ask_next();
        }
    }

    /// Asks the run's table, and the ticket's addresses again: whoever answers there, under its old name or a new one.
    fn look(&mut self) {
        let known = self.search.known;
        for Bootstrap { peer, address } in known {
            let Ok(place) = address.as_str().parse::<Multiaddr>() else { continue };
            if let Some(peer) = peer.and_then(to_libp2p_peer)
                && let Some(kademlia) = self.swarm.behaviour_mut().kademlia.as_mut()
            {
                self.dial_filter.vouch([&place]);
                kademlia.add_address(&peer, place.clone());
            }
            if self.waiting.len() < SEARCH_ASKED_MAX {
                self.waiting.push_back(Candidate { peer: None, places: vec![place] });
            }
        }
        let key = self.key.clone();
        if let Some(kademlia) = self.swarm.behaviour_mut().kademlia.as_mut() {
            kademlia.get_providers(key);
        }
    }

    fn on_swarm_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            #[cfg(feature = "mdns")]
            SwarmEvent::Behaviour(BehaviourEvent::LocalNetwork(found)) => {
                let mut by_peer = BTreeMap::<_, Vec<Multiaddr>>::new();
                for (peer, address) in found {
                    by_peer.entry(peer).or_default().push(crate::address::split_peer(address).1);
                }
                remember(&mut self.on_local_network, by_peer.keys());
                self.note(by_peer, Scope::Network);
            }
            SwarmEvent::Behaviour(BehaviourEvent::Kademlia(kad::Event::OutboundQueryProgressed {
                result: QueryResult::GetProviders(Ok(GetProvidersOk::FoundProviders { providers, .. })),
                ..
            })) => {
                let Some(kademlia) = self.swarm.behaviour_mut().kademlia.as_mut() else { return };
                let found = places_of(kademlia, providers);
                remember(&mut self.in_table, found.keys());
                self.note(found, self.dial_filter.nearest());
            }
            _ => {}
        }
    }

    /// Puts those in the queue that are new and can be reached from here, as somebody so far away has told.
    fn note(&mut self, found: BTreeMap<Libp2pPeerId, Vec<Multiaddr>>, scope: Scope) {
        for (peer, places) in found {
            let mut places = meaningful(places, self.search.listen);
            places.retain(|place| scope.admits(place));
            places.truncate(SEARCH_ADDRESSES_MAX);
            if !places.is_empty() && self.noted.len() < SEARCH_ASKED_MAX && self.noted.insert(peer) {
                // Before the ticket's dead addresses.
                self.waiting.push_front(Candidate { peer: Some(peer), places });
            }
        }
    }

    fn ask_next(&mut self) {
        while self.asking.len() < SEARCH_ASKED_AT_ONCE
            && let Some(candidate) = self.waiting.pop_front()
        {
            let (identity, ticket) = (self.search.identity.clone(), self.search.ticket.clone());
            let limit = self.search.answer_timeout;
            self.asking.spawn(async move { ask(candidate, &identity, &ticket, limit).await });
        }
    }

    fn into_report(self) -> NobodyFound {
        NobodyFound {
            on_local_network: self.on_local_network.len(),
            in_table: self.in_table.len(),
            refusals: self.refusals.into_iter().collect(),
        }
    }
}

fn remember<'a>(known: &mut BTreeSet<Libp2pPeerId>, peers: impl Iterator<Item = &'a Libp2pPeerId>) {
    for peer in peers {
        if known.len() < SEARCH_ASKED_MAX {
            known.insert(*peer);
        }
    }
}

/// Asks at one place after the other. An error says why a member of the run told nothing; of those of other runs, and of
/// the dead, nothing is said.
async fn ask(
    candidate: Candidate,
    identity: &Keypair,
    ticket: &Credentials,
    limit: Duration,
) -> Result<FoundMember, Option<String>> {
    for place in candidate.places {
        let address = match candidate.peer {
            Some(peer) => place.clone().with_p2p(peer).unwrap_or_else(|address| address),
            None => place.clone(),
        };
        match fetch_manifest(Question { identity, address: &address, ticket: Some(ticket) }, limit).await {
            Ok(told) => match bootstrap(told.peer, &place) {
                Some(member) => return Ok(FoundMember { told, member }),
                None => return Err(None),
            },
            Err(FetchError::Refused(_, Refusal::OtherRun { .. })) => return Err(None),
            Err(error @ FetchError::Refused(..)) => return Err(Some(error.to_string())),
            Err(_) => {}
        }
    }
    Err(None)
}

fn bootstrap(peer: PeerId, place: &Multiaddr) -> Option<Bootstrap> {
    let address: Address = to_core_address(place)?;
    Some(Bootstrap { peer: Some(peer), address })
}
