//! Members that keep transfers waiting, in both directions: others do not feel it, and it is held against them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::AsyncReadExt;
use murmur_network::streams::Stream;
use murmur_protocol::Misbehaviour;
use murmur_protocol::NetworkOrder;
use murmur_protocol::message::TransferHeader;
use murmur_protocol::{Event, Payload, PeerId, TransferId, codec};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::hostile::{Hostile, announced, write, write_frame};
use crate::node::{DEADLINE, Node, Over, PAYLOAD_BYTES_MAX, connected_pair, payload};

/// Members that announce the largest payload and send a little of it now and then.
const TRICKLERS: usize = 12;
const TRICKLE_BYTES: usize = 16 * 1024;
const TRICKLE_PAUSE: Duration = Duration::from_secs(12);

/// Members that read what they are sent at half a kilobyte a second, and confirm it.
const READERS: usize = 8;
const READ_BYTES: usize = 1024;
const READ_PAUSE: Duration = Duration::from_secs(2);

/// What partners send each other in an exchange, and their pause after it.
const EXCHANGED_BYTES: usize = 1 << 20;
const EXCHANGE_PAUSE: Duration = Duration::from_millis(200);

/// For how long the node exchanges undisturbed, and how long it is beset: the trickle is below the least rate after 84 s.
const BEFORE: Duration = Duration::from_secs(10);
const BESET: Duration = Duration::from_secs(95);

/// A node, its honest partner, and what has come of the others.
struct Scene {
    node: Node,
    partner: Node,
    sent: Payload,
    /// Whom each transfer of the node goes to, while it is under way.
    under_way: BTreeMap<u64, PeerId>,
    next_transfer: u64,
    stalls: BTreeMap<PeerId, usize>,
}

impl Scene {
    /// Sends to `peer`, either for an exchange or a part of the model.
    fn send(&mut self, peer: PeerId, is_part: bool) -> u64 {
        let number = self.next_transfer;
        self.next_transfer += 1;
        let header = if is_part {
            TransferHeader::State { request: 0, chunk: 0, progress: 0.0, layout: [0; 32] }
        } else {
            TransferHeader::ProposalCodes { exchange: number }
        };
        let (transfer, payload) = (TransferId(number), self.sent.clone());
        self.node.order(NetworkOrder::StartTransfer { transfer, peer, header, payload });
        self.under_way.insert(number, peer);
        number
    }

    /// Each side sends the other something, as in an exchange. False where the node's own transfer finds no place.
    async fn exchange(&mut self) -> bool {
        let number = self.send(self.partner.peer, false);
        self.partner.transfer(number, self.node.peer, self.sent.clone());
        let is_done = timeout(DEADLINE, async { self.both_sent(number).await }).await;
        is_done.expect("the partners' transfers end")
    }

    async fn both_sent(&mut self, number: u64) -> bool {
        let (mut sent, mut received, mut partner_is_done) = (None, false, false);
        while sent.is_none() || !received || !partner_is_done {
            tokio::select! {
                event = self.node.events.recv() => match event.expect("the network runs") {
                    Event::TransferReceived { peer, .. } => received |= peer == self.partner.peer,
                    Event::TransferFinished { transfer } if transfer.0 == number => sent = Some(true),
                    Event::TransferFailed { transfer, .. } if transfer.0 == number => sent = Some(false),
                    Event::TransferFailed { transfer, .. } => {
                        self.under_way.remove(&transfer.0);
                    }
                    Event::PeerMisbehaved { peer, misbehaviour } => {
                        assert_eq!(misbehaviour, Misbehaviour::Stalled);
                        *self.stalls.entry(peer).or_default() += 1;
                    }
                    _ => {}
                },
                event = self.partner.events.recv() => match event.expect("the network runs") {
                    Event::TransferFinished { transfer } => partner_is_done |= transfer.0 == number,
                    Event::TransferFailed { reason, .. } => panic!("the partner cannot send: {reason}"),
                    Event::PeerMisbehaved { .. } => panic!("the node itself misbehaves"),
                    _ => {}
                },
            }
        }
        self.under_way.remove(&number);
        sent == Some(true)
    }

    /// Exchanges for so long; returns how many there were in a second. Whoever of `readers` has nothing left to read is
    /// sent more: a part of the model, or what an exchange needs.
    async fn exchanges_a_second(&mut self, time: Duration, readers: &[PeerId]) -> f64 {
        let (begin, mut exchanges) = (Instant::now(), 0);
        while begin.elapsed() < time {
            let busy: BTreeSet<PeerId> = self.under_way.values().copied().collect();
            for (place, reader) in readers.iter().enumerate().filter(|(_, reader)| !busy.contains(reader)) {
                self.send(*reader, place % 2 == 0);
                self.send(*reader, place % 2 == 1);
            }
            exchanges += usize::from(self.exchange().await);
            sleep(EXCHANGE_PAUSE).await;
        }
        exchanges as f64 / begin.elapsed().as_secs_f64()
    }
}

/// Begins the largest transfer again and again, and hardly sends anything.
async fn trickle(hostile: &Hostile) {
    loop {
        let mut bulk = hostile.open_bulk().await;
        write_frame(&mut bulk, &codec::encode(&TransferHeader::ProposalCodes { exchange: 1 })).await;
        write(&mut bulk, &announced(PAYLOAD_BYTES_MAX)).await;
        let some = [7; TRICKLE_BYTES];
        while futures::AsyncWriteExt::write_all(&mut bulk, &some).await.is_ok()
            && futures::AsyncWriteExt::flush(&mut bulk).await.is_ok()
        {
            sleep(TRICKLE_PAUSE).await;
        }
    }
}

/// Reads slowly, and says what has come as an honest peer does, or a little less.
async fn read_slowly(mut bulk: Stream) {
    let mut some = [0; READ_BYTES];
    while bulk.read_exact(&mut some).await.is_ok() {
        let word = (READ_BYTES as u32 / 2).to_le_bytes();
        if futures::AsyncWriteExt::write_all(&mut bulk, &word).await.is_err() {
            return;
        }
        let _ = futures::AsyncWriteExt::flush(&mut bulk).await;
        sleep(READ_PAUSE).await;
    }
}

async fn dawdlers_slow_nobody_down(over: Over) {
    let (node, partner) = connected_pair(over).await;
    let sent = payload(EXCHANGED_BYTES, 5);
    let mut scene =
        Scene { node, partner, sent, under_way: BTreeMap::new(), next_transfer: 0, stalls: BTreeMap::new() };
    let (mut tricklers, mut readers, mut controls) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..TRICKLERS + READERS {
        let (hostile, control) = Hostile::join(&mut scene.node).await;
        controls.push(control);
        if number < TRICKLERS { tricklers.push(hostile) } else { readers.push(hostile) }
    }
    let before = scene.exchanges_a_second(BEFORE, &[]).await;
    let hostile: Vec<PeerId> = tricklers.iter().chain(&readers).map(|hostile| hostile.peer).collect();
    let reading = hostile[TRICKLERS..].to_vec();
    let mut tasks = JoinSet::new();
    for trickler in tricklers {
        tasks.spawn(async move { tokio::join!(trickle(&trickler), trickle(&trickler)) });
    }
    for mut reader in readers {
        tasks.spawn(async move {
            let mut streams = JoinSet::new();
            while let Some(bulk) = reader.streams.bulk.recv().await {
                streams.spawn(read_slowly(bulk));
            }
            ((), ())
        });
    }
    let beset = scene.exchanges_a_second(BESET, &reading).await;
    println!(
        "{over:?}: {before:.2} exchanges a second before, {beset:.2} meanwhile, stalls {:?}",
        scene.stalls.values()
    );
    assert!(beset > before / 2.0, "{before:.2} exchanges a second before, {beset:.2} meanwhile");
    let unseen = hostile.iter().filter(|peer| !scene.stalls.contains_key(peer)).count();
    assert!(unseen == 0 && scene.stalls.len() == hostile.len(), "{unseen} kept it waiting unseen: {:?}", scene.stalls);
}

/// Both wait most of the time, so they wait at once.
#[tokio::test(flavor = "multi_thread")]
async fn dawdlers_slow_nobody_down_and_it_is_held_against_them_over_tcp_and_quic() {
    let [tcp, quic] = [Over::Tcp, Over::Quic].map(|over| tokio::spawn(dawdlers_slow_nobody_down(over)));
    tcp.await.expect("over TCP");
    quic.await.expect("over QUIC");
}
