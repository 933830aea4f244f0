//! The steps of the trainers, and what they do for their nodes at step boundaries.
//!
//! The trainer is due at the end of each step, which it reports; where somebody looks before, steps that have ended are
//! caught up with.

use std::time::Duration;

use murmur_protocol::random::RngExt;
use murmur_protocol::{Correction, Event, Part, RequestId, Vector};

use super::Swarm;
use super::sabotage::{Sabotage, rebuilt};
use crate::happening::{Happening, Life};
use crate::host::{Host, Landing, rounding_of};
use crate::record::add_scaled;
use crate::scenario::HostIndex;
use crate::trainer::Order;

/// A trainer that does not train looks at its requests this soon.
const IDLE_BOUNDARY: Duration = Duration::from_millis(1);

impl Swarm {
    pub(super) fn begin_steps(&mut self, index: HostIndex) {
        let now = self.queue.now();
        if let Some(host) = self.hosts[index].as_mut() {
            host.begin_training(now);
            self.schedule_trainer(index);
        }
    }

    pub(super) fn end_steps(&mut self, index: HostIndex) {
        self.catch_up(index);
        let now = self.queue.now();
        if let Some(host) = self.hosts[index].as_mut() {
            host.end_as_ordered(now);
        }
        self.schedule_trainer(index);
        self.set_idle_boundary(index);
    }

    /// Takes all steps that have ended.
    pub(super) fn catch_up(&mut self, index: HostIndex) {
        let now = self.queue.now();
        let (learning, reporting) = (self.is_learning, self.is_reporting);
        let Some(host) = self.hosts[index].as_mut() else { return };
        let waits = host.node.is(Sabotage::TrainerWaits) && host.node.is_exchanging();
        for _ in 0..host.step_clock.take_ended(now) {
            if !waits {
                host.trainer.step(learning, reporting);
            }
        }
    }

    pub(super) fn catch_up_everywhere(&mut self) {
        (0..self.hosts.len()).for_each(|host| self.catch_up(host));
    }

    /// Puts the next moment at which the trainer is due into the queue, where it has changed.
    pub(super) fn schedule_trainer(&mut self, index: HostIndex) {
        let Some(host) = self.hosts[index].as_mut() else { return };
        let due = host.step_clock.next_end();
        if due == host.due.1 {
            return;
        }
        host.due = (host.due.0 + 1, due);
        if let Some(due) = due {
            self.queue.push(due, Happening::TrainerDue { host: index, life: host.life, due: host.due.0 });
        }
    }

    pub(super) fn on_trainer_due(&mut self, index: HostIndex, life: Life, due: u64) {
        if self.living(index, life).is_none_or(|host| host.due.0 != due) {
            return;
        }
        self.catch_up(index);
        let now = self.queue.now();
        let is_reporting = self.is_reporting;
        let Some(host) = self.living(index, life) else { return };
        host.due.1 = None;
        let report = host.trainer.report();
        let steps = host.trainer.steps;
        let is_over = host.step_clock.is_training()
            && (host.trainer.is_finished()
                || host.steps_max.map_or(host.trainer.is_run_over(), |steps_max| steps >= steps_max));
        let is_report_due = steps > host.reported_steps;
        if is_over {
            host.end_training(now);
        }
        if is_report_due || is_over {
            host.reported_steps = steps;
        }
        self.serve_orders(index);
        if is_over {
            self.tell_life(index, life, Event::TrainingCompleted(report));
        } else if is_reporting && is_report_due {
            self.tell_life(index, life, Event::StepsCompleted(report));
        }
        self.schedule_trainer(index);
        if is_over {
            self.set_idle_boundary(index);
        }
    }

    pub(super) fn on_idle_boundary(&mut self, index: HostIndex, life: Life) {
        if let Some(host) = self.living(index, life) {
            host.idle_boundary_is_set = false;
            self.serve_orders(index);
        }
    }

    /// Takes an order for the next boundary, unless the trainer's queue is full.
    pub(super) fn order(&mut self, index: HostIndex, order: Order) {
        self.catch_up(index);
        let refusal = self.scenario.drivers.refusal;
        let drawn = self.draw_refusal(refusal);
        let order = match (drawn, order.request()) {
            (Some(drawn), Some(request)) => {
                if let Some(host) = self.hosts[index].as_mut() {
                    host.forget_landing(&order);
                }
                if drawn < refusal / 2.0 {
                    return self.reply(index, Duration::ZERO, Event::RequestFailed { request });
                }
                Order::Refused(request)
            }
            _ => order,
        };
        if let Some(host) = self.hosts[index].as_mut() {
            host.orders.push(order);
            self.schedule_trainer(index);
            self.set_idle_boundary(index);
        }
    }

    /// Draws whether a driver refuses something with this chance: then a number below it. Nothing is drawn where nothing is to be
    /// decided.
    pub(super) fn draw_refusal(&mut self, chance: f64) -> Option<f64> {
        let drawn = (self.is_learning && chance > 0.0).then(|| self.driver_dice.random::<f64>());
        drawn.filter(|drawn| *drawn < chance)
    }

    /// Makes sure that an order to a trainer that stands still finds a boundary.
    pub(super) fn set_idle_boundary(&mut self, index: HostIndex) {
        let soon = self.queue.now() + IDLE_BOUNDARY;
        let Some(host) = self.hosts[index].as_mut() else { return };
        if !host.step_clock.is_training() && !host.orders.is_empty() && !host.idle_boundary_is_set {
            host.idle_boundary_is_set = true;
            let life = host.life;
            self.queue.push(soon, Happening::IdleBoundary { host: index, life });
        }
    }

    fn serve_orders(&mut self, index: HostIndex) {
        let Some(host) = self.hosts[index].as_mut() else { return };
        let life = host.life;
        for order in host.take_orders() {
            host.trainer.order(order);
        }
        let outcomes = host.trainer.boundary();
        // The model has moved by all of them before the node hears of the first, which may be its last word.
        for outcome in &outcomes {
            self.on_landed(index, outcome.landed);
        }
        for reply in outcomes.into_iter().filter_map(|outcome| outcome.reply).filter(|reply| !is_silent(reply)) {
            self.tell_life(index, life, reply);
        }
    }

    /// A correction has been added to the model.
    fn on_landed(&mut self, index: HostIndex, landed: Option<usize>) {
        let now = self.queue.now();
        let Some(host) = self.hosts[index].as_mut() else { return };
        let Some(landing) = landed.and_then(|number| host.landing.remove(&number)) else { return };
        // The model's own rounding, and that of sums in `f64` over all that moved it.
        host.tally.way += length_of(&landing.correction);
        host.tally.rounding += rounding_of(&host.trainer.values()) + 4.0 * f64::EPSILON * host.tally.way;
        if host.step_clock.is_training() && landing.part.vector == Vector::Model {
            host.tally.corrections += 1;
            host.tally.gain += landing.factor / f64::from(landing.part.fragment.count);
            host.tally.delay += now - landing.taken_at;
            let round = host.step_clock.step_time().as_secs_f64() * host.tally.interval_steps;
            host.tally.delay_rounds += (now - landing.taken_at).as_secs_f64() / round;
        }
        let Landing { exchange, part, correction, .. } = landing;
        let range = (part.vector == Vector::Model).then(|| self.fragments.range(part.fragment));
        let verdict = match self.has_books {
            true => self.ledger.landed(exchange, now, range.clone(), &correction),
            false => Ok(()),
        };
        // What must not land explains nothing.
        if let (Ok(()), Some(range)) = (&verdict, range) {
            add_scaled(&mut host.tally.landed, range, &correction, 1.0);
        }
        self.history.find(verdict);
    }
}

impl Host {
    /// What the trainer is to do now; where mistakes are made on purpose, here they are.
    fn take_orders(&mut self) -> Vec<Order> {
        let mut orders = std::mem::take(&mut self.orders);
        if self.node.is(Sabotage::CorrectsLate) {
            let is_late = |order: &Order| matches!(order, Order::Correction { merge: Some(_), .. });
            let three_rounds = self.step_clock.step_time() * 30;
            let (corrections, others): (Vec<Order>, Vec<Order>) = orders.into_iter().partition(is_late);
            let now = self.step_clock.next_end().unwrap_or_default();
            let is_ripe = |order: &Order| match order {
                Order::Correction { merge: Some(merge), .. } => {
                    self.landing.get(merge).is_none_or(|landing| now.saturating_since(landing.taken_at) > three_rounds)
                }
                _ => true,
            };
            let (ripe, unripe): (Vec<Order>, Vec<Order>) = corrections.into_iter().partition(is_ripe);
            self.orders = unripe;
            orders = others.into_iter().chain(ripe).collect();
        }
        if self.node.is(Sabotage::AppliesTwice) {
            let again = |order: &Order| match order {
                Order::Correction { request: _, part, correction, progress_shift, merge } => {
                    let landing = merge.and_then(|merge| self.landing.get(&merge)).cloned();
                    Some((landing, *part, correction.clone(), *progress_shift))
                }
                _ => None,
            };
            let copies: Vec<_> = orders.iter().filter_map(again).collect();
            for (landing, part, correction, progress_shift) in copies {
                let merge = landing.map(|landing| self.keep_landing(landing));
                orders.push(Order::Correction { request: SILENT, part, correction, progress_shift, merge });
            }
        }
        if self.node.is(Sabotage::Overwrites) {
            for order in &mut orders {
                if let Order::Correction { correction, merge: Some(merge), .. } = order
                    && let Some(landing) = self.landing.get(merge)
                {
                    let now = self.trainer.values();
                    let meant = landing.snapshot.values().iter().zip(correction.to_values()).zip(now.iter());
                    *correction = rebuilt(&meant.map(|((then, add), now)| then + add - now).collect::<Vec<f32>>());
                }
            }
        }
        if self.node.is(Sabotage::DecaysByItself) && self.step_clock.is_training() {
            let values: Vec<f32> = self.trainer.values().iter().map(|value| -1e-3 * value).collect();
            let (part, correction) = (Part::MODEL, rebuilt(&values));
            orders.push(Order::Correction { request: SILENT, part, correction, progress_shift: 0.0, merge: None });
        }
        orders
    }

    /// An order will not be carried out: where it is a correction, that does not land.
    fn forget_landing(&mut self, order: &Order) {
        if let Order::Correction { merge: Some(merge), .. } = order {
            self.landing.remove(merge);
        }
    }

    /// Remembers a correction until it lands; its number goes with the order.
    pub(super) fn keep_landing(&mut self, landing: Landing) -> usize {
        let number = self.next_landing;
        self.next_landing += 1;
        self.landing.insert(number, landing);
        number
    }
}

/// The request of an order that no node has made: its reply is swallowed.
const SILENT: RequestId = RequestId(u64::MAX);

/// Whether this is the reply to an order that no node has made.
fn is_silent(event: &Event) -> bool {
    matches!(event, Event::CorrectionApplied { request: SILENT, .. })
}

/// The length of a correction.
pub(super) fn length_of(correction: &Correction) -> f64 {
    correction.to_values().iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
}
