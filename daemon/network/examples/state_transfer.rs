//! A model's state through the driver against the same bytes through one raw stream of the same transport.
//! `cargo run --release -p murmur-network --example state_transfer`
//!
//! The driver sends chunks of 4 MiB as a donor does, three under way at a time, each with a header, a BLAKE3 that the receiver
//! verifies, and an acknowledgement. The raw stream only writes and reads. Both over TCP on loopback, in turn, so that what
//! else the machine does falls on both.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::swarm::{Config, Swarm, SwarmEvent};
use murmur_network::streams::{BULK_PROTOCOL, ConnectionStreams, StreamsBehaviour};
use murmur_network::{Admission, Connectivity, Keypair, Network, NetworkConfig, Throttle, TrafficCounter, transport};
use murmur_protocol::NetworkOrder;
use murmur_protocol::bounds::{STATE_CHUNK_VALUES, STATE_PART_CHUNKS_MAX, STATE_PARTS_SENT_MAX};
use murmur_protocol::message::TransferHeader;
use murmur_protocol::{Address, Event, Payload, PeerId, RunManifest, TransferId};
use tokio::sync::mpsc;

/// The largest part that a donor sends in one transfer.
const CHUNK_BYTES: usize = 4 * STATE_CHUNK_VALUES * STATE_PART_CHUNKS_MAX as usize;

/// As much as the state of a model of 50 million parameters.
const CHUNKS: usize = 50;

/// Measured so often, in turn; the median counts.
const ROUNDS: usize = 7;

type Outcome<Value> = Result<Value, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(compare())
}

async fn compare() -> Outcome<()> {
    let (mut raw, mut driven, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (one, other) = (raw_stream().await?, through_the_driver().await?);
        raw.push(one);
        driven.push(other);
        ratios.push(other / one);
    }
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let (raw, driven, ratio) = (median(&mut raw), median(&mut driven), median(&mut ratios));
    println!("raw stream {raw:.0} MB/s, state through the driver {driven:.0} MB/s, ratio {ratio:.2}");
    Ok(())
}

/// Megabytes a second over one stream.
async fn raw_stream() -> Outcome<f64> {
    let (mut listener, mut dialer) = (swarm()?, swarm()?);
    listener.listen_on("/ip4/127.0.0.1/tcp/0".parse()?)?;
    let address = loop {
        if let SwarmEvent::NewListenAddr { address, .. } = listener.select_next_some().await {
            break address;
        }
    };
    dialer.dial(DialOpts::unknown_peer_id().address(address).build())?;
    let (ours, mut theirs) = tokio::join!(connected(&mut dialer), connected(&mut listener));
    tokio::spawn(async move { while dialer.next().await.is_some() {} });
    tokio::spawn(async move { while listener.next().await.is_some() {} });
    let mut sending = ours.opener.open(BULK_PROTOCOL).await?;
    let begin = Instant::now();
    let writer = tokio::spawn(async move {
        let chunk = vec![0x5a; CHUNK_BYTES];
        for _ in 0..CHUNKS {
            sending.write_all(&chunk).await?;
        }
        sending.close().await
    });
    let mut receiving = theirs.bulk.recv().await.ok_or("the stream was lost")?;
    let (mut buffer, mut received) = (vec![0; CHUNK_BYTES], 0);
    while received < CHUNKS * CHUNK_BYTES {
        received += match receiving.read(&mut buffer).await? {
            0 => return Err("the stream ended".into()),
            count => count,
        };
    }
    let seconds = begin.elapsed().as_secs_f64();
    writer.await??;
    Ok(received as f64 / 1e6 / seconds)
}

fn swarm() -> Outcome<Swarm<StreamsBehaviour>> {
    let identity = Keypair::generate_ed25519();
    let transport = transport::build(&identity, &TrafficCounter::default())?;
    let peer = identity.public().to_peer_id();
    Ok(Swarm::new(transport, StreamsBehaviour::default(), peer, Config::with_tokio_executor()))
}

async fn connected(swarm: &mut Swarm<StreamsBehaviour>) -> ConnectionStreams {
    loop {
        if let SwarmEvent::ConnectionEstablished { connection_id, .. } = swarm.select_next_some().await
            && let Some(streams) = swarm.behaviour_mut().take(connection_id)
        {
            streams.accept_all();
            return streams;
        }
    }
}

/// Megabytes a second of chunks as a donor sends them.
async fn through_the_driver() -> Outcome<f64> {
    let (donor, mut donor_events) = node().await?;
    let (joiner, mut joiner_events) = node().await?;
    let place = donor.listen_addresses().first().cloned().ok_or("no address")?;
    let addresses = vec![Address::new(place.to_string()).ok_or("too long")?];
    joiner.try_order(NetworkOrder::Dial { peer: Some(donor.peer_id()), addresses })?;
    let peer = connected_peer(&mut donor_events).await?;
    connected_peer(&mut joiner_events).await?;

    let begin = Instant::now();
    let sender = donor.clone();
    let sending = tokio::spawn(async move {
        let payload = Payload::from(vec![0x5a; CHUNK_BYTES]);
        let send = |chunk: usize| {
            let header = TransferHeader::State { request: 0, chunk: chunk as u32, progress: 0.0, layout: [0; 32] };
            let transfer = TransferId(chunk as u64);
            sender.try_order(NetworkOrder::StartTransfer { transfer, peer, header, payload: payload.clone() })
        };
        let mut next = 0;
        while next < STATE_PARTS_SENT_MAX {
            send(next)?;
            next += 1;
        }
        while next < CHUNKS {
            match donor_events.recv().await {
                Some(Event::TransferFinished { .. }) => {
                    send(next)?;
                    next += 1;
                }
                Some(Event::TransferFailed { .. }) | None => break,
                Some(_) => {}
            }
        }
        while donor_events.recv().await.is_some() {}
        Ok::<(), murmur_network::QueueFull>(())
    });
    let mut received = 0;
    while received < CHUNKS * CHUNK_BYTES {
        match joiner_events.recv().await.ok_or("the joiner is gone")? {
            Event::TransferReceived { payload, .. } => received += payload.len(),
            Event::PeerDisconnected { .. } => return Err("the donor is gone".into()),
            _ => {}
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    tokio::join!(donor.close(), joiner.close());
    sending.abort();
    Ok(received as f64 / 1e6 / seconds)
}

async fn node() -> Outcome<(Network, mpsc::Receiver<Event>)> {
    let (events, inbox) = mpsc::channel(256);
    let config = NetworkConfig {
        identity: Keypair::generate_ed25519(),
        listen: vec!["/ip4/127.0.0.1/tcp/0".parse()?],
        manifest: Arc::new(RunManifest::default()),
        secret: None,
        admission: Admission::default(),
        throttle: Throttle::default(),
        payload_bytes_max: CHUNK_BYTES as u64,
        inbound_bytes_budget: 8 * CHUNK_BYTES as u64,
        shelf: None,
        connectivity: Connectivity::OFF,
    };
    Ok((Network::start(config, events).await?, inbox))
}

async fn connected_peer(events: &mut mpsc::Receiver<Event>) -> Outcome<PeerId> {
    loop {
        if let Event::PeerConnected { peer, .. } = events.recv().await.ok_or("the node is gone")? {
            return Ok(peer);
        }
    }
}
