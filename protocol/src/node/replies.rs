//! What comes back for an order: found by its request, passed to who awaits it.

use super::Node;
use crate::Snapshot;
use crate::effect::RequestId;
use crate::event::{Misbehaviour, TrainingReport};
use crate::numerics::{Encoded, Merged};
use crate::outbox::Purpose;
use crate::time::Time;

/// A reply without its request.
pub(super) enum Reply {
    Snapshot(Snapshot, TrainingReport),
    Codes(Result<Encoded, Misbehaviour>),
    Merge(Result<Merged, Misbehaviour>),
    Applied(TrainingReport),
    Loaded(bool, TrainingReport),
    /// The order was refused by a full queue; there will be nothing else.
    Failed,
}

impl Node {
    pub(super) fn on_reply(&mut self, now: Time, request: RequestId, reply: Reply) {
        if let Reply::Snapshot(_, report) | Reply::Applied(report) | Reply::Loaded(_, report) = &reply {
            self.averaging.on_report(now, *report);
        }
        let Some((purpose, since)) = self.outbox.answered(request) else {
            self.stale_replies += 1;
            return;
        };
        if matches!(reply, Reply::Codes(_) | Reply::Merge(_)) {
            self.averaging.cadence.on_work(now - since);
        }
        let (averaging, out) = (&mut self.averaging, &mut self.outbox);
        match (purpose, reply) {
            (Purpose::StarterSnapshot(number), Reply::Snapshot(snapshot, report)) => {
                self.starter.on_snapshot(number, snapshot, &report, averaging, out);
            }
            (Purpose::StarterCodes(number), Reply::Codes(result)) => self.starter.on_encoded(number, result, out),
            (Purpose::StarterMerge(number), Reply::Merge(result)) => {
                if let Err((peer, what)) = self.starter.on_merged(now, number, result, averaging, out) {
                    self.on_misbehaviour(now, peer, what);
                }
            }
            (Purpose::ResponderSnapshot(peer, number), Reply::Snapshot(snapshot, report)) => {
                self.responder.on_snapshot(peer, number, snapshot, &report, out);
            }
            (Purpose::ResponderCodes(peer, number), Reply::Codes(result)) => {
                let verdict = self.responder.on_encoded(peer, number, result, averaging, out);
                self.judge(now, peer, verdict);
            }
            (Purpose::ResponderMerge(peer, number), Reply::Merge(result)) => {
                let verdict = self.responder.on_merged(peer, number, result, averaging, out);
                self.judge(now, peer, verdict);
            }
            (Purpose::Correction { part: _, snapshot_steps }, Reply::Applied(report)) => {
                let steps = report.steps.saturating_sub(snapshot_steps);
                averaging.gain.on_applied(steps, averaging.cadence.interval());
            }
            (Purpose::StateSnapshot, Reply::Snapshot(snapshot, report)) => {
                self.giving.on_snapshot(now, &snapshot, &report, out);
            }
            (Purpose::StateLoad, Reply::Loaded(accepted, _)) => self.on_state_loaded(now, accepted),
            (purpose, Reply::Failed) => self.on_request_failed(now, purpose),
            // A driver that answers an order with another order's reply.
            _ => self.stale_replies += 1,
        }
    }

    fn on_request_failed(&mut self, now: Time, purpose: Purpose) {
        let (averaging, out) = (&mut self.averaging, &mut self.outbox);
        match purpose {
            Purpose::StarterSnapshot(number) | Purpose::StarterCodes(number) | Purpose::StarterMerge(number) => {
                self.starter.on_overload(number, averaging, out);
            }
            Purpose::ResponderSnapshot(peer, number)
            | Purpose::ResponderCodes(peer, number)
            | Purpose::ResponderMerge(peer, number) => {
                self.responder.on_overload(peer, number, averaging, out);
            }
            Purpose::StateSnapshot => self.giving.on_snapshot_failed(),
            Purpose::StateLoad => drop(self.joining.on_loaded(now, false)),
            Purpose::Correction { .. } => {} // counted by the driver; one-sided, like a crash at this moment
        }
    }
}
