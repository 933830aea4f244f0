//! The engine: owns the core's [`Node`] and nothing else does.
//!
//! One loop with three branches: an event, the deadline, the wish to stop. It waits for nobody: orders go out with
//! `try_…`, and where a queue is full the core hears of it as an event.

mod ledger;
mod picture;
mod recorder;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use murmur_network::{Network, QueueFull};
use murmur_protocol::replay::{Told, digest, told};
use murmur_protocol::{Effect, Event, NetworkOrder, Node, PeerId, RequestId, Status, Time, TrainerOrder, WorkerOrder};
use tokio::sync::{broadcast, mpsc, watch};

use crate::drivers::{Refused, Trainer, Workers};
use crate::process::memory;
use ledger::Ledger;
pub use ledger::{Noticed, PeerTraffic, Taken};
pub use picture::Picture;
pub use recorder::Recorder;

/// How often a picture is published at most: often enough for a live view, too seldom to cost anything.
const PICTURE_PERIOD: Duration = Duration::from_millis(200);

/// The engine and what it orders around.
pub struct Engine {
    node: Node,
    network: Network,
    trainer: Trainer,
    workers: Workers,
    events: mpsc::Receiver<Event>,
    /// Failed orders, to be told to the core before anything else. Bounded by the effects of one event.
    failures: VecDeque<Event>,
    postponed: Postponed,
    disconnects: Disconnects,
    clock: Instant,
    pictures: watch::Sender<Picture>,
    published_at: Instant,
    notices: broadcast::Sender<Noticed>,
    ledger: Ledger,
    recorder: Option<Recorder>,
    has_trained: bool,
    stopped: bool,
}

/// The channels that the engine reads and writes.
pub struct Channels {
    /// Facts from the drivers.
    pub events: mpsc::Receiver<Event>,
    /// For whoever wants to see how it goes.
    pub pictures: watch::Sender<Picture>,
    /// For whoever wants to hear what happens.
    pub notices: broadcast::Sender<Noticed>,
    /// What the node is told and decides, where it is recorded.
    pub recorder: Option<Recorder>,
}

/// What is left when the engine has stopped.
pub struct Stopped {
    /// Still running: it may have a last checkpoint to write.
    pub trainer: Trainer,
    /// Still open.
    pub network: Network,
    /// Whether there is a model worth keeping: a joiner that never got one has only its cold start.
    pub has_trained: bool,
    /// The core's last state.
    pub status: Status,
    /// What went to and from each peer.
    pub peers: BTreeMap<PeerId, PeerTraffic>,
    /// Still open, where it has not ended before.
    pub recorder: Option<Recorder>,
}

impl Engine {
    /// An engine around a node whose first effects are still to be drained. `clock` is the node's time zero.
    pub fn new(
        node: Node,
        network: Network,
        trainer: Trainer,
        workers: Workers,
        clock: Instant,
        channels: Channels,
    ) -> Engine {
        let Channels { events, pictures, notices, recorder } = channels;
        Engine {
            node,
            network,
            trainer,
            workers,
            events,
            failures: VecDeque::new(),
            postponed: Postponed::default(),
            disconnects: Disconnects::default(),
            clock,
            pictures,
            published_at: clock,
            notices,
            ledger: Ledger::default(),
            recorder,
            has_trained: false,
            stopped: false,
        }
    }

    /// Runs until the node has left. `stop` turns true when it should.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) -> Stopped {
        self.drain(Time::ZERO, None);
        let mut stop_seen = false;
        while !self.stopped {
            let deadline = self.node.next_deadline().map(|time| self.clock + time.since_start());
            let event = tokio::select! {
                event = self.events.recv() => event.expect("the drivers outlive the engine"),
                () = sleep_until(deadline) => Event::TimePassed,
                _ = stop.wait_for(|stop| *stop), if !stop_seen => {
                    stop_seen = true;
                    Event::LeaveRequested
                }
            };
            self.take_in(event);
        }
        Stopped {
            status: self.node.status(),
            peers: self.ledger.peers(),
            trainer: self.trainer,
            network: self.network,
            has_trained: self.has_trained,
            recorder: self.recorder,
        }
    }

    fn take_in(&mut self, event: Event) {
        memory::follow();
        self.handle(event);
        while let Some(failure) = self.failures.pop_front() {
            self.handle(failure);
        }
        self.postponed.try_again(|order| self.trainer.try_order(order));
        self.disconnects.try_again(|order| self.network.try_order(order));
        if self.published_at.elapsed() >= PICTURE_PERIOD || self.stopped {
            self.published_at = Instant::now();
            let (status, peers) = (self.node.status(), self.ledger.peers());
            self.pictures.send_replace(Picture { status, traffic: self.network.traffic(), peers });
        }
    }

    fn handle(&mut self, event: Event) {
        self.ledger.on_event(Instant::now(), &event);
        let now = Time::from_start(self.clock.elapsed());
        let told = self.recorder.as_ref().map(|_| told(&event));
        self.node.handle(now, event);
        self.drain(now, told);
    }

    /// Carries out what an event has led to; `told` is what is recorded of it.
    fn drain(&mut self, now: Time, told: Option<Told>) {
        let mut digests = Vec::new();
        while let Some(effect) = self.node.poll_effect() {
            if self.recorder.is_some() {
                digests.push(digest(&effect));
            }
            self.ledger.on_effect(Instant::now(), &effect);
            self.dispatch(effect);
        }
        if let Some(recorder) = self.recorder.take() {
            self.recorder = recorder.event(now, told, digests, self.node.next_deadline());
        }
    }

    fn dispatch(&mut self, effect: Effect) {
        match effect {
            Effect::Network(NetworkOrder::Disconnect { peer }) => {
                self.disconnects.order(peer, |order| self.network.try_order(order));
            }
            Effect::Network(order) => self.order_network(order),
            Effect::Trainer(order) => self.order_trainer(order),
            Effect::Worker(order) => self.order_worker(order),
            Effect::Notice(notice) => {
                // Nobody may be listening.
                let _ = self.notices.send(self.ledger.on_notice(Instant::now(), notice));
            }
            Effect::Stop => self.stopped = true,
        }
    }

    fn order_network(&mut self, order: NetworkOrder) {
        let transfer = match order {
            NetworkOrder::StartTransfer { transfer, .. } => Some(transfer),
            _ => None,
        };
        if let (Err(QueueFull), Some(transfer)) = (self.network.try_order(order), transfer) {
            let reason = "the network's queue is full".to_owned();
            self.failures.push_back(Event::TransferFailed { transfer, reason });
        }
    }

    fn order_trainer(&mut self, order: TrainerOrder) {
        self.has_trained |= matches!(order, TrainerOrder::Begin);
        if let Some(request) = self.postponed.order(order, |order| self.trainer.try_order(order)) {
            self.failures.push_back(Event::RequestFailed { request });
        }
    }

    fn order_worker(&mut self, order: WorkerOrder) {
        if let Err(Refused(request)) = self.workers.try_order(order) {
            self.failures.push_back(Event::RequestFailed { request });
        }
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

/// Orders for the trainer that have no reply and must not be lost: tried again after every event. At most one of each kind. Nothing
/// overtakes them: a contribution is of the model that the last sum has led to, and a replica takes the place of that model.
#[derive(Debug, Default)]
struct Postponed(VecDeque<TrainerOrder>);

impl Postponed {
    /// Hands an order over behind those that wait. The request that is refused, where it cannot be and has a reply.
    fn order(
        &mut self,
        order: TrainerOrder,
        try_order: impl Fn(TrainerOrder) -> Result<(), Refused<TrainerOrder>>,
    ) -> Option<RequestId> {
        self.try_again(&try_order);
        let Refused(order) = if self.0.is_empty() { try_order(order).err()? } else { Refused(order) };
        let request = order.request();
        if request.is_none() {
            self.0.push_back(order);
        }
        request
    }

    fn try_again(&mut self, try_order: impl Fn(TrainerOrder) -> Result<(), Refused<TrainerOrder>>) {
        while let Some(order) = self.0.pop_front() {
            if let Err(Refused(order)) = try_order(order) {
                return self.0.push_front(order);
            }
        }
    }
}

/// Peers that the network is to be told to disconnect, once its queue has room: the core waits for their end, and has no
/// dealings with them until then. Bounded by the peers of the core.
#[derive(Debug, Default)]
struct Disconnects(BTreeSet<PeerId>);

impl Disconnects {
    fn order(&mut self, peer: PeerId, try_order: impl Fn(NetworkOrder) -> Result<(), QueueFull>) {
        self.0.insert(peer);
        self.try_again(try_order);
    }

    fn try_again(&mut self, try_order: impl Fn(NetworkOrder) -> Result<(), QueueFull>) {
        self.0.retain(|peer| try_order(NetworkOrder::Disconnect { peer: *peer }).is_err());
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use murmur_protocol::Snapshot;

    use super::*;

    /// The trainer made room between two orders: a contribution was computed from a model without the last sum.
    #[test]
    fn no_order_overtakes_one_that_waits_for_room_in_the_trainers_queue() {
        let (queue, room) = (RefCell::new(Vec::new()), Cell::new(0));
        let try_order = |order: TrainerOrder| {
            if room.get() == 0 {
                return Err(Refused(order));
            }
            room.set(room.get() - 1);
            queue.borrow_mut().push(match order {
                TrainerOrder::TakeUp { .. } => "take up",
                TrainerOrder::Contribute { .. } => "contribute",
                _ => "complete",
            });
            Ok(())
        };
        let take_up = || TrainerOrder::TakeUp { sum: Snapshot::from(vec![1.0]), members: 2, progress: 1.0 };
        let contribute = |number| TrainerOrder::Contribute { request: RequestId(number) };
        let mut postponed = Postponed::default();
        assert_eq!(postponed.order(take_up(), try_order), None, "it waits");
        room.set(1);
        assert_eq!(postponed.order(contribute(7), try_order), Some(RequestId(7)), "there is no room for both");
        room.set(1);
        assert_eq!(postponed.order(contribute(8), try_order), None);
        assert_eq!(queue.take(), ["take up", "contribute"]);
        for order in [take_up(), TrainerOrder::Complete] {
            assert_eq!(postponed.order(order, try_order), None);
        }
        room.set(2);
        // Room comes when the first one has been refused once more.
        let is_first = Cell::new(true);
        postponed.try_again(|order| if is_first.replace(false) { Err(Refused(order)) } else { try_order(order) });
        postponed.try_again(try_order);
        assert_eq!(queue.take(), ["take up", "complete"]);
    }

    #[test]
    fn whom_a_full_queue_could_not_disconnect_is_disconnected_later_and_once() {
        let told = RefCell::new(Vec::new());
        let accept = |order| {
            told.borrow_mut().push(order);
            Ok(())
        };
        let mut disconnects = Disconnects::default();
        let [one, other] = [1, 2].map(|key| PeerId::from_public_key([key; 32]));
        disconnects.order(one, |_| Err(QueueFull));
        disconnects.order(other, |_| Err(QueueFull));
        disconnects.try_again(accept);
        disconnects.try_again(accept);
        assert!(matches!(
            told.borrow()[..],
            [NetworkOrder::Disconnect { peer: first }, NetworkOrder::Disconnect { peer: second }] if (first, second) == (one, other)
        ));
    }
}
