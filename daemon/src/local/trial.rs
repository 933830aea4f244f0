//! What a swarm of a comparison goes through: on which hosts its daemons run, how fast they step, and what goes wrong when.

use std::time::{Duration, Instant};

use super::child::Child;
use super::hosts::{Hosts, NoHosts};
use super::summary::mean;
use super::view::View;
use crate::limits::pace::Pace;

/// Conditions of one swarm.
#[derive(Debug)]
pub(crate) struct Trial<'hosts> {
    /// One for each daemon; without them all are connected over loopback.
    pub(crate) hosts: Option<&'hosts Hosts>,
    /// Of each daemon, at least one; repeated for more.
    pub(crate) paces: Vec<Pace>,
    /// Steps between two evaluations.
    pub(crate) evaluate_every: u64,
    /// What happens so long after the first of them has begun to train, in order.
    pub(crate) blows: Vec<(Duration, Blow)>,
    /// After this the daemons are stopped, wherever they are.
    pub(crate) limit: Duration,
}

impl Trial<'_> {
    /// Settings of every daemon.
    pub(super) fn settings(&self) -> String {
        format!("[training]\nevaluate_every = {}\n", self.evaluate_every)
    }
}

/// Something that is done to a swarm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    /// A daemon is killed, as by `kill -9`.
    Kill(usize),
    /// These reach nobody else any more; none of them: all reach each other again. Takes hosts.
    CutOff(Vec<usize>),
}

/// How far a trial has come.
#[derive(Debug)]
pub(super) struct Course<'trial> {
    trial: Option<&'trial Trial<'trial>>,
    started: Instant,
    /// When the first of them had done a step.
    began: Option<Instant>,
    /// Blows that were dealt.
    dealt: usize,
    /// Whether its time is over, so that the daemons are stopped wherever they are.
    is_over: bool,
    curve: Vec<(f64, f64)>,
}

/// What came of a trial.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tried {
    /// Seconds since the first of them had done a step, and the mean loss on held-out text then, of those that live; where it has changed.
    pub(crate) curve: Vec<(f64, f64)>,
    /// Whether everything has happened that was to happen, in the time that there was.
    pub(crate) is_whole: bool,
}

impl<'trial> Course<'trial> {
    pub(super) fn new(trial: Option<&'trial Trial<'trial>>) -> Course<'trial> {
        Course { trial, started: Instant::now(), began: None, dealt: 0, is_over: false, curve: Vec::new() }
    }

    /// Does what is due, and says so. Whether there is time left.
    ///
    /// # Errors
    /// When a blow cannot be dealt.
    pub(super) fn advance(&mut self, children: &mut [Child], view: &View) -> Result<bool, NoHosts> {
        let Some(trial) = self.trial else { return Ok(true) };
        if self.began.is_none()
            && has_begun(children.iter().map(|child| child.report.as_ref().map(|report| report.steps)))
        {
            self.began = Some(Instant::now());
        }
        while let Some(began) = self.began
            && let Some((after, blow)) = trial.blows.get(self.dealt)
            && began.elapsed() >= *after
        {
            self.dealt += 1;
            blow.deal(children, trial.hosts)?;
            view.say(&blow.words());
        }
        self.is_over = self.started.elapsed() >= trial.limit;
        Ok(!self.is_over)
    }

    /// Takes up what the daemons say of their loss.
    pub(super) fn observe(&mut self, children: &[Child]) {
        let Some(began) = self.began else { return };
        let living = children.iter().filter(|child| !child.is_stopping);
        let losses: Option<Vec<f64>> = living.map(|child| child.report.as_ref()?.validation_loss).collect();
        let loss = mean(losses.into_iter().flatten());
        if let Some(loss) = loss.filter(|loss| self.curve.last().is_none_or(|(_, last)| last != loss)) {
            self.curve.push((began.elapsed().as_secs_f64(), loss));
        }
    }

    pub(super) fn end(self) -> Tried {
        let is_whole = !self.is_over && self.trial.is_none_or(|trial| self.dealt == trial.blows.len());
        Tried { curve: self.curve, is_whole }
    }
}

impl Blow {
    fn deal(&self, children: &mut [Child], hosts: Option<&Hosts>) -> Result<(), NoHosts> {
        match self {
            Blow::Kill(number) => {
                children[*number].kill();
                Ok(())
            }
            Blow::CutOff(far) => hosts.expect("a trial with cuts has hosts").cut_off(far),
        }
    }

    fn words(&self) -> String {
        match self {
            Blow::Kill(number) => format!("node {number} is killed"),
            Blow::CutOff(far) if far.is_empty() => "all nodes reach each other again".to_owned(),
            Blow::CutOff(far) => {
                let far: Vec<String> = far.iter().map(usize::to_string).collect();
                format!("cut off from the others: node {}", far.join(", "))
            }
        }
    }
}

/// Whether the time of a trial runs, from the steps of each daemon, of which some may have said nothing: those that wait for another
/// one spend it.
fn has_begun(mut steps: impl Iterator<Item = Option<u64>>) -> bool {
    steps.any(|steps| steps.is_some_and(|steps| steps > 0))
}

#[cfg(test)]
mod tests {
    use murmur_protocol::RunManifest;

    use super::*;
    use crate::console::Console;

    #[test]
    fn a_trial_whose_time_is_over_before_its_daemons_have_ended_is_not_whole() {
        let view = View::new(Console::Json, None, (0, 0), &RunManifest::default());
        for (limit, is_whole) in [(Duration::MAX, true), (Duration::ZERO, false)] {
            let pace = Pace { step: Duration::ZERO, later: None };
            let trial = Trial { hosts: None, paces: vec![pace], evaluate_every: 1, blows: Vec::new(), limit };
            let mut course = Course::new(Some(&trial));
            assert_eq!(course.advance(&mut [], &view).ok(), Some(is_whole));
            assert_eq!(course.end().is_whole, is_whole, "{limit:?}");
        }
        assert!(Course::new(None).end().is_whole);
    }

    #[test]
    fn the_time_of_a_trial_begins_with_the_first_step_of_any_daemon() {
        let cases = [(&[Some(0), None][..], false), (&[None, Some(1), Some(0)], true), (&[Some(3), Some(2)], true)];
        for (steps, expected) in cases {
            assert_eq!(has_begun(steps.iter().copied()), expected, "{steps:?}");
        }
    }
}
