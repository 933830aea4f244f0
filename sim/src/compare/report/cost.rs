//! What a fault cost a method: until the end of the run, and to the target.

use super::seconds;
use crate::compare::{Fault, Kind, Method, Outcome, Plan, Results};

/// What a fault cost one method.
#[derive(Clone, Debug)]
pub struct Cost {
    /// Which method.
    pub method: Method,
    /// Which fault.
    pub fault: Fault,
    /// Seconds after which the fault came.
    pub at: f64,
    /// How it ended without the fault, from the same seed.
    pub calm: End,
    /// How it ended with the fault.
    pub hurt: End,
    /// Seconds that operations which were dropped had taken.
    pub stood_still: f64,
}

/// How one run ended.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Seconds until the target was reached; `None` where it never was.
    pub reached: Option<f64>,
    /// Seconds until the end.
    pub seconds: f64,
    /// Loss at the end.
    pub loss: f64,
    /// Whether the nodes left did all their steps.
    pub is_complete: bool,
    /// Where they did not: nobody went on. Else time was over.
    pub stands_still: bool,
}

/// What is told of a cost in a cell of a table.
pub type Words = fn(&Cost) -> String;

impl Cost {
    /// Until the end of the run, in a cell of a table: more time, and how much higher the loss ended.
    pub fn until_the_end(&self) -> String {
        if let Some(words) = self.unfinished() {
            return words.to_owned();
        }
        if self.ended_before() {
            return "ended before it".to_owned();
        }
        let loss = self.hurt.loss - self.calm.loss;
        let loss = if loss.is_finite() { format!("{loss:+.3}") } else { "diverged".to_owned() };
        format!("{} ({loss})", more(self.hurt.seconds - self.calm.seconds))
    }

    /// To the target, in a cell of a table: more time.
    pub fn to_target(&self) -> String {
        if let Some(words) = self.unfinished() {
            return words.to_owned();
        }
        match (self.calm.reached, self.hurt.reached) {
            _ if self.was_reached_before() => "before it".to_owned(),
            _ if self.ended_before() => "ended before it".to_owned(),
            (Some(calm), Some(hurt)) => more(hurt - calm),
            (Some(_), None) => "never".to_owned(),
            (None, None) => "never, without it too".to_owned(),
            (None, Some(_)) => "only with it".to_owned(),
        }
    }

    /// More seconds and how much higher the loss is at the end, and more seconds to the target, where there are such: none of a run
    /// that was over before the fault came.
    pub fn figures(&self) -> [Option<f64>; 3] {
        let ends = self.unfinished().is_none() && !self.ended_before();
        let to_target = self.hurt.reached.zip(self.calm.reached).filter(|_| ends && !self.was_reached_before());
        [
            ends.then_some(self.hurt.seconds - self.calm.seconds),
            ends.then_some(self.hurt.loss - self.calm.loss),
            to_target.map(|(hurt, calm)| hurt - calm),
        ]
    }

    /// Nothing that the fault did can show in it.
    fn was_reached_before(&self) -> bool {
        [self.calm.reached, self.hurt.reached].into_iter().flatten().any(|reached| reached <= self.at)
    }

    /// The run is over when the fault comes.
    fn ended_before(&self) -> bool {
        self.calm.is_complete && self.calm.seconds <= self.at
    }

    /// Why there is no end to compare.
    fn unfinished(&self) -> Option<&'static str> {
        let Cost { calm, hurt, .. } = self;
        // Nobody depends on the dead one; without it the mean is that of others.
        let is_nobodys = self.method.kind == Kind::Alone && matches!(self.fault, Fault::Kill | Fault::KillFirst);
        match (calm.is_complete, hurt.is_complete) {
            _ if is_nobodys => Some("-"),
            (true, true) => None,
            // Real daemons to whom it did not come.
            (true, false) if self.ended_before() => None,
            (false, false) => Some("unfinished, without it too"),
            (false, true) => Some("only without it unfinished"),
            (true, false) if hurt.stands_still => Some("stands still"),
            (true, false) => Some("unfinished"),
        }
    }
}

/// More seconds, or fewer.
fn more(value: f64) -> String {
    let sign = if value < 0.0 { "-" } else { "+" };
    match value.abs() {
        // Less than a tenth of a second is none.
        size if size < 0.05 => "none".to_owned(),
        size if size < 10.0 => format!("{sign}{size:.1} s"),
        size => format!("{sign}{}", seconds(size)),
    }
}

/// When what goes wrong comes, and how long a partition lasts; a sentence, empty where nothing goes wrong.
pub fn when(plan: &Plan) -> String {
    let Plan { base, faults, .. } = plan;
    let comes = seconds(base.fault_at().as_secs_f64());
    let lasts = seconds(base.partition_lasts().as_secs_f64());
    match faults.contains(&Fault::Partition) {
        _ if faults.is_empty() => String::new(),
        true => format!("A fault comes after {comes}; a partition lasts {lasts}."),
        false => format!("A fault comes after {comes}."),
    }
}

/// What a fault cost a method, with the first seed.
pub(super) fn cost(results: &Results, method: &Method, fault: Fault, target: f64) -> Cost {
    let (calm, hurt) = (results.of(method), results.with(method, fault));
    let end = |runs: &[&Outcome]| {
        let run = runs.first();
        End {
            reached: run.and_then(|run| run.reaches(target)).map(|point| point.seconds),
            seconds: run.map_or(f64::NAN, |run| run.end().seconds),
            loss: run.map_or(f64::NAN, |run| run.end().loss),
            is_complete: run.is_none_or(|run| run.is_complete),
            stands_still: run.is_some_and(|run| run.stands_still),
        }
    };
    let stood_still = |runs: &[&Outcome]| runs.first().map_or(0.0, |run| run.counted.stood_still);
    Cost {
        method: *method,
        fault,
        at: results.plan.base.fault_at().as_secs_f64(),
        calm: end(&calm),
        hurt: end(&hurt),
        stood_still: (stood_still(&hurt) - stood_still(&calm)).max(0.0),
    }
}
