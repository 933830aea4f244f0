//! The worker: encodes and merges off the engine's thread, with the same pure functions that the simulator calls.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use murmur_protocol::numerics::{self, Buffers};
use murmur_protocol::{Event, RequestId, WorkerOrder};
use tokio::sync::mpsc::Sender;

use super::Refused;

/// Jobs waiting. The core has at most one exchange of its own and two of others under way, each with one job.
const QUEUE_MAX: usize = 4;

/// A thread for bulk arithmetic. It ends when this is dropped.
#[derive(Debug)]
pub struct Workers {
    queue: SyncSender<WorkerOrder>,
}

impl Workers {
    /// Starts the thread. One suffices: a merge of 10M parameters takes about 20 ms.
    ///
    /// # Panics
    /// When the system has no thread left.
    pub fn start(events: Sender<Event>) -> Workers {
        let (queue, orders) = sync_channel(QUEUE_MAX);
        std::thread::Builder::new()
            .name("worker".to_owned())
            .spawn(move || work(&orders, &events))
            .expect("the system has a thread for the worker");
        Workers { queue }
    }

    /// Hands an order over without waiting.
    ///
    /// # Errors
    /// Its request, when the queue is full.
    pub fn try_order(&self, order: WorkerOrder) -> Result<(), Refused<RequestId>> {
        let request = order.request();
        self.queue.try_send(order).map_err(|_| Refused(request))
    }
}

fn work(orders: &Receiver<WorkerOrder>, events: &Sender<Event>) {
    let buffers = Buffers::new();
    for order in orders {
        let event = match order {
            WorkerOrder::Encode { request, snapshot, job } => {
                Event::Encoded { request, result: numerics::encode(&snapshot, &job, &buffers) }
            }
            WorkerOrder::Reduce { request, job } => Event::Reduced { request, result: numerics::reduce(job) },
            WorkerOrder::Merge { request, job } => Event::Merged { request, result: numerics::merge(&job, &buffers) },
        };
        // A driver may wait for the engine; only a finished engine does not listen any more.
        if events.blocking_send(event).is_err() {
            return;
        }
    }
}
