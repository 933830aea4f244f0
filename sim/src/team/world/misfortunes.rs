//! What happens to machines and connections.

use std::time::Duration;

use murmur_protocol::team::HelperEvent;

use super::{Happening, World};
use crate::team::plan::Fault;

impl World<'_> {
    pub(super) fn strike(&mut self, fault: Fault) {
        let now = self.queue.now();
        match fault {
            Fault::Break { helper, away } => self.disconnect(helper, away),
            Fault::Crash { helper, away } => self.kill_helper(helper, away),
            Fault::CrashAtEvent { helper, events, away } => self.lenders[helper].dies_in = Some((events, away)),
            Fault::Pause { helper, lasts } => self.lenders[helper].paused_until = now + lasts,
            Fault::Swallow { helper, lasts } => self.links.swallow(helper, now + lasts),
            Fault::Slow { helper, times } => self.lenders[helper].slow = times,
            Fault::NotFinite { helper } => self.lenders[helper].gives_not_finite = true,
            Fault::Leave { helper, away } => {
                let life = self.lenders[helper].life;
                self.lenders[helper].leaves_for = away;
                self.queue.push(now, Happening::Helper(helper, life, Box::new(HelperEvent::LeaveWanted)));
            }
            Fault::CaptainCrash { away } => self.kill_captain(away),
            Fault::CaptainCrashAtEvent { events, away } => self.owner.dies_in = Some((events, away)),
        }
    }

    pub(super) fn kill_helper(&mut self, helper: usize, away: Duration) {
        if self.lenders[helper].machine.is_some() {
            self.lenders[helper].die();
            self.disconnect(helper, away);
            self.queue.push(self.queue.now() + away, Happening::HelperBegins(helper));
        }
    }

    pub(super) fn kill_captain(&mut self, away: Duration) {
        let now = self.queue.now();
        if self.owner.machine.is_some() {
            self.owner.die(now, &mut self.ledger);
            (0..self.lenders.len()).for_each(|helper| self.disconnect(helper, away));
            self.queue.push(now + away, Happening::CaptainBegins);
        }
    }
}
