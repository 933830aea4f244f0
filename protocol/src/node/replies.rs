//! What comes back for an order: found by its request, passed to who awaits it.

use super::Node;
use crate::effect::RequestId;
use crate::exchange::Unfit;
use crate::outbox::{Purpose, Reply};
use crate::synchronous::Replied;
use crate::time::Time;

impl Node {
    pub(super) fn on_reply(&mut self, now: Time, request: RequestId, reply: Reply) {
        if let Reply::Snapshot(_, report)
        | Reply::Applied(report)
        | Reply::Loaded(_, report)
        | Reply::Contributed(_, _, report) = &reply
        {
            self.pairwise.on_report(now, *report);
        }
        let Some((purpose, since)) = self.outbox.answered(request) else {
            self.stale_replies += 1;
            return;
        };
        let out = &mut self.outbox;
        match (purpose, reply) {
            (Purpose::StateSnapshot, Reply::Snapshot(snapshot, report)) => {
                self.giving.on_snapshot(now, &snapshot, &report, out);
            }
            (Purpose::StateSnapshot, Reply::Failed) => self.giving.on_snapshot_failed(),
            (Purpose::StateLoad, Reply::Loaded(accepted, _)) => self.on_state_loaded(now, accepted),
            (Purpose::StateLoad, Reply::Failed) => drop(self.joining.on_loaded(now, false)),
            (purpose, reply) if purpose.is_of_all_reduce() => {
                let Some(synchronous) = &mut self.synchronous else { return };
                match synchronous.on_reply(now, purpose, reply, out) {
                    Replied::Taken => {}
                    Replied::Copied(from) => self.on_replica_copied(from),
                    Replied::Stale => self.stale_replies += 1,
                    Replied::Unfit(peer, misbehaviour) => self.on_misbehaviour(now, peer, misbehaviour),
                }
            }
            (purpose, reply) => {
                let verdict = self.pairwise.on_reply(now, (purpose, now - since), reply, &mut self.reputation, out);
                match verdict {
                    Ok(()) => {}
                    Err(Unfit::Partner(peer, misbehaviour)) => self.on_misbehaviour(now, peer, misbehaviour),
                    // A driver that answers an order with another order's reply.
                    Err(Unfit::Reply) => self.stale_replies += 1,
                }
            }
        }
    }
}
