//! What the founder's daemon does for `murmur finish`: signs the order and hands it to the core, which spreads it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use murmur_network::{Keypair, peer_id};
use murmur_protocol::{Ending, Event, FinishOrder, RunId, RunManifest};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use crate::observe::report::NodeReport;

/// The decay takes this share of the steps so far where no time is given: with a tenth to a fifth a stable rate ends as low
/// as a cosine of the same length (Hägele et al., arXiv 2405.18392).
const DECAY_SHARE: f64 = 0.2;

/// An order reaches all members of a swarm within this: it is sent on at once. A guess.
const HEARD_WITHIN: Duration = Duration::from_secs(2);

/// The least steps of a decay: fewer than a node's usual interval between exchanges would end before all have heard.
const DECAY_STEPS_MIN: f64 = 20.0;

/// What `murmur finish` wishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FinishWish {
    /// Until the run is complete, at the present pace; none takes a fifth of the steps so far.
    pub seconds: Option<f64>,
}

/// What was ordered.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finishing {
    /// On the scale of swarm progress, in steps.
    pub ending: Ending,
    /// Until then at the present pace; none where that is not known yet.
    pub seconds: Option<f64>,
    /// Where the run was to end before, if it was.
    #[serde(default)]
    pub before: Option<f64>,
}

/// Why there was no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotFinished {
    /// Only who holds the founder's key can.
    #[error("only the run's founder can finish it, and this node is not the founder")]
    NotFounder,
    /// There is nothing to decay.
    #[error("the run is complete already")]
    Complete,
    /// The pace is not known, so no time can be kept.
    #[error("how fast the swarm trains is not known yet")]
    NoPace,
    /// Members of a synchronous run train on without this node, and it hears nothing of how far they are.
    #[error("this node has ended before the run, and does not know how far the others are")]
    Behind,
    /// The daemon ends.
    #[error("the daemon is about to end")]
    Ended,
}

impl NotFinished {
    /// What to do about it.
    pub fn remedy(self) -> &'static str {
        match self {
            NotFinished::NotFounder => "run `murmur finish` on the machine that founded the run",
            NotFinished::Complete => "`murmur sample`, `murmur eval` and `murmur export` use what it has learned",
            NotFinished::NoPace => "try again after some steps, or leave --in out",
            NotFinished::Behind => "start it again without --steps, then finish the run",
            NotFinished::Ended => "start it again, then finish the run",
        }
    }
}

/// Signs orders with this node's key, where it is the founder's.
#[derive(Clone)]
pub struct Finisher {
    key: Option<Keypair>,
    run: RunId,
    /// A run ends after a multiple of so many steps.
    round: f64,
    reports: watch::Receiver<NodeReport>,
    /// Where the run ends by the last order from here: a report is a second old. Shared by all copies, locked for an instruction.
    ordered: Arc<Mutex<Option<f64>>>,
    /// The serial of the newest order that the core knows.
    known: Arc<dyn Fn() -> Option<u64> + Send + Sync>,
    events: mpsc::Sender<Event>,
}

impl Finisher {
    /// Of a node with this identity. `known`: the serial of the newest order that its core knows.
    pub fn new(
        identity: &Keypair,
        manifest: &RunManifest,
        reports: watch::Receiver<NodeReport>,
        known: impl Fn() -> Option<u64> + Send + Sync + 'static,
        events: mpsc::Sender<Event>,
    ) -> Finisher {
        let is_founder = manifest.run.founder == peer_id(identity).to_string();
        Finisher {
            key: is_founder.then(|| identity.clone()),
            run: manifest.run_id(),
            round: manifest.synchronous.steps_of_a_round() as f64,
            reports,
            ordered: Arc::default(),
            known: Arc::new(known),
            events,
        }
    }

    /// Orders the end of the run.
    ///
    /// # Errors
    /// Why there is no order.
    pub async fn finish(&self, wish: FinishWish) -> Result<Finishing, NotFinished> {
        let report = self.reports.borrow().clone();
        check_open(&report)?;
        let steps = match wish.seconds {
            Some(seconds) => seconds * steps_per_second(&report).ok_or(NotFinished::NoPace)?,
            None => DECAY_SHARE * report.progress,
        };
        self.order(&report, steps).await
    }

    /// Orders the end of the run after so many more steps of this node.
    ///
    /// # Errors
    /// Why there is no order.
    pub async fn finish_in(&self, own_steps: f64) -> Result<Finishing, NotFinished> {
        let report = self.reports.borrow().clone();
        let steps = own_steps * progress_per_step(&report).ok_or(NotFinished::NoPace)?;
        self.order(&report, steps).await
    }

    async fn order(&self, report: &NodeReport, steps: f64) -> Result<Finishing, NotFinished> {
        let key = self.key.as_ref().ok_or(NotFinished::NotFounder)?;
        check_open(report)?;
        if report.synchronous.is_some() && report.is_over() && report.peers > 0 {
            return Err(NotFinished::Behind);
        }
        let steps = steps.max(DECAY_STEPS_MIN);
        let from = report.progress + steps_until_all_have_heard(report);
        let until = ((from + steps) / self.round).ceil() * self.round;
        let steps = until - from;
        let ending = Ending { from, until };
        let microseconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        // A clock that was set back makes no order older than the one before: members would not hear of it.
        let serial = u64::try_from(microseconds).unwrap_or(u64::MAX).max((self.known)().map_or(0, |known| known + 1));
        let sign = |bytes: &[u8]| key.sign(bytes).ok().and_then(|signature| signature.try_into().ok());
        let order = FinishOrder::sign(self.run, serial, ending, |bytes| sign(bytes).ok_or(NotFinished::NotFounder))?;
        self.events.send(Event::FinishOrdered { order }).await.map_err(|_| NotFinished::Ended)?;
        let seconds = steps_per_second(report).map(|pace| steps / pace);
        let ordered = self.ordered.lock().unwrap_or_else(PoisonError::into_inner).replace(until);
        Ok(Finishing { ending, seconds, before: ordered.or(report.ends_at) })
    }
}

/// A run that is complete has no pace any more, and that is not what is wrong.
fn check_open(report: &NodeReport) -> Result<(), NotFinished> {
    match report.ends_at.is_some_and(|end| report.progress >= end) {
        true => Err(NotFinished::Complete),
        false => Ok(()),
    }
}

/// Members of a synchronous run step together: all must know of the end before it changes a step. 0 for others.
fn steps_until_all_have_heard(report: &NodeReport) -> f64 {
    let step_seconds = report.times.median_step_seconds.max(report.step_seconds);
    let is_synchronous = report.synchronous.is_some() && step_seconds > 0.0;
    if is_synchronous { (HEARD_WITHIN.as_secs_f64() / step_seconds).ceil() } else { 0.0 }
}

/// How fast the swarm's progress grows.
fn steps_per_second(report: &NodeReport) -> Option<f64> {
    if let Some(pace) = report.outlook.pace.filter(|pace| pace.swarm > 0.0) {
        return Some(pace.swarm);
    }
    progress_per_step(report).filter(|_| report.step_seconds > 0.0).map(|progress| progress / report.step_seconds)
}

/// By how much the swarm's progress grows with each own step: in the last minute, where that is known. Of all steps so far, progress
/// that the others made while this node was away counts as well.
fn progress_per_step(report: &NodeReport) -> Option<f64> {
    if let Some(pace) = report.outlook.pace.filter(|pace| pace.own > 0.0 && pace.swarm > 0.0) {
        return Some(pace.swarm / pace.own);
    }
    (report.steps > 0 && report.progress > 0.0).then(|| report.progress / report.steps as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::outlook::{OutlookReport, Pace};
    use crate::observe::synchronous::SynchronousReport;

    /// The others made three thousand steps while it was away.
    #[test]
    fn a_node_that_was_away_counts_by_the_pace_of_the_last_minute() {
        let outlook = OutlookReport { pace: Some(Pace { own: 20.0, swarm: 20.0 }), ..OutlookReport::default() };
        let away = NodeReport { steps: 100, progress: 3100.0, step_seconds: 0.05, outlook, ..NodeReport::default() };
        assert_eq!((steps_per_second(&away), progress_per_step(&away)), (Some(20.0), Some(1.0)));
        let outlook = OutlookReport::default();
        assert_eq!(progress_per_step(&NodeReport { outlook, ..away }), Some(31.0), "nothing better is known");
    }

    #[tokio::test]
    async fn a_member_of_a_synchronous_run_that_has_ended_does_not_order_an_end_that_the_others_have_passed() {
        let founder = Keypair::generate_ed25519();
        let mut manifest = RunManifest::default();
        manifest.run.founder = peer_id(&founder).to_string();
        let ended = NodeReport {
            phase: "completed".to_owned(),
            progress: 100.0,
            peers: 2,
            synchronous: Some(SynchronousReport::default()),
            ..NodeReport::default()
        };
        let (reports, view) = watch::channel(ended.clone());
        let (events, _ordered) = mpsc::channel(2);
        let finisher = Finisher::new(&founder, &manifest, view, || None, events);
        assert_eq!(finisher.finish(FinishWish::default()).await.err(), Some(NotFinished::Behind));
        for ended in [NodeReport { peers: 0, ..ended.clone() }, NodeReport { synchronous: None, ..ended }] {
            reports.send_replace(ended);
            assert!(finisher.finish(FinishWish::default()).await.is_ok(), "alone, or told by exchanges");
        }
    }

    #[tokio::test]
    async fn a_complete_run_is_said_to_be_so_whatever_is_asked_of_it() {
        let founder = Keypair::generate_ed25519();
        let mut manifest = RunManifest::default();
        manifest.run.founder = peer_id(&founder).to_string();
        let complete = NodeReport { progress: 100.0, ends_at: Some(100.0), ..NodeReport::default() };
        let (_reports, view) = watch::channel(complete);
        let (events, _ordered) = mpsc::channel(2);
        let finisher = Finisher::new(&founder, &manifest, view, || None, events);
        for seconds in [None, Some(60.0)] {
            assert_eq!(finisher.finish(FinishWish { seconds }).await.err(), Some(NotFinished::Complete));
        }
    }

    /// Both come before the next report.
    #[tokio::test]
    async fn a_second_order_within_a_second_says_which_end_it_replaces() {
        let founder = Keypair::generate_ed25519();
        let mut manifest = RunManifest::default();
        manifest.run.founder = peer_id(&founder).to_string();
        let report = NodeReport { steps: 100, progress: 100.0, ends_at: Some(900.0), ..NodeReport::default() };
        let (_reports, view) = watch::channel(report);
        let (events, _ordered) = mpsc::channel(2);
        let finisher = Finisher::new(&founder, &manifest, view, || None, events);
        let first = finisher.finish(FinishWish::default()).await.expect("an order");
        let second = finisher.clone().finish(FinishWish::default()).await.expect("another one");
        assert_eq!((first.before, second.before), (Some(900.0), Some(first.ending.until)));
    }

    #[tokio::test]
    async fn an_order_is_newer_than_the_one_before_whatever_the_clock_says() {
        let founder = Keypair::generate_ed25519();
        let mut manifest = RunManifest::default();
        manifest.run.founder = peer_id(&founder).to_string();
        let (_reports, view) = watch::channel(NodeReport { steps: 100, progress: 100.0, ..NodeReport::default() });
        let (events, mut ordered) = mpsc::channel(2);
        // Of a clock that ran a century ahead.
        let known = (u64::MAX / 4, u64::MAX / 4 + 1);
        for (known, expected) in [(Some(known.0), Some(known.1)), (None, None)] {
            let finisher = Finisher::new(&founder, &manifest, view.clone(), move || known, events.clone());
            finisher.finish(FinishWish::default()).await.expect("an order");
            let Some(Event::FinishOrdered { order }) = ordered.recv().await else { panic!("an order") };
            assert!(order.is_valid(manifest.run_id(), peer_id(&founder)));
            assert!(expected.map_or(order.serial < u64::MAX / 8, |expected| order.serial == expected));
        }
    }
}
