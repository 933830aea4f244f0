//! What a comparison came to: figures for each method, the verdict, a table, a page and files for other programs.
//!
//! Everything here is computed from [`Results`]; nothing is known of a method beforehand.

mod explained;
mod measured;
mod page;
#[cfg(test)]
mod tests;
mod timeline;

use std::fmt::Write;

pub use explained::{explanation, list};
pub use measured::{Lines, Measured, Real};
pub use page::page;

use super::{Fault, Kind, Method, Outcome, Point, Results};
use crate::report::{Table, bytes};

/// One method's figures; means over seeds where there are several.
#[derive(Clone, Debug)]
pub struct Row {
    /// The method whose figures these are.
    pub method: Method,
    /// The best of the list.
    pub learning_rate: f64,
    /// Whether that is the first or the last of the list, so that a better one may lie beyond.
    pub is_at_edge: bool,
    /// Loss at the end: mean, least and most.
    pub loss: (f64, f64, f64),
    /// Simulated seconds until all steps were done.
    pub seconds: f64,
    /// When the target was reached, where every seed reached it.
    pub target: Option<Point>,
    /// Computing, waiting, sending: shares of the nodes' time.
    pub shares: (f64, f64, f64),
    /// Bytes that the busiest node sent.
    pub busiest_bytes: f64,
    /// Bytes that all nodes sent.
    pub all_bytes: f64,
    /// Whether every run did all its steps.
    pub is_complete: bool,
}

/// What a fault cost one method.
#[derive(Clone, Debug)]
pub struct Cost {
    /// Which method.
    pub method: Method,
    /// Which fault.
    pub fault: Fault,
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
    /// Loss at the end.
    pub loss: f64,
    /// Whether the nodes left did all their steps.
    pub is_complete: bool,
    /// Where they did not: nobody went on. Else time was over.
    pub stands_still: bool,
}

/// All figures.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The loss that time and bytes are told for.
    pub target: f64,
    /// The methods, the fastest to the target first.
    pub rows: Vec<Row>,
    /// By method, then by fault.
    pub costs: Vec<Cost>,
}

impl Figures {
    /// The figures of `results`. Without a target it is the least loss that every seed of every method but training
    /// alone reached at its end, methods left out of which a seed diverged, did not finish or ends where it began.
    pub fn new(results: &Results, target: Option<f64>) -> Figures {
        let methods = || results.plan.methods.iter();
        let worst = |method: &Method| {
            let runs = results.of(method);
            let has_learned =
                |run: &&Outcome| run.is_complete && run.points.first().is_some_and(|start| run.end().loss < start.loss);
            runs.iter()
                .all(has_learned)
                .then(|| runs.iter().map(|run| run.end().loss).fold(f64::NEG_INFINITY, f64::max))
        };
        let reached_by_all =
            |is_alone| methods().filter(|m| (m.kind == Kind::Alone) == is_alone).filter_map(worst).reduce(f64::max);
        // Where all diverged, what any of them had reached before.
        let points = || results.runs.iter().flat_map(|run| &run.points).map(|point| point.loss);
        let own = reached_by_all(false)
            .or_else(|| reached_by_all(true))
            .or_else(|| points().filter(|loss| loss.is_finite()).reduce(f64::min));
        let target = target.unwrap_or((own.unwrap_or(0.0) * 1000.0).ceil() / 1000.0);
        let mut rows: Vec<Row> = methods().map(|method| row(results, method, target)).collect();
        let time = |row: &Row| row.target.map_or(f64::INFINITY, |point| point.seconds);
        rows.sort_by(|one, other| time(one).total_cmp(&time(other)));
        let costs =
            methods().flat_map(|method| results.plan.faults.iter().map(|fault| cost(results, method, *fault, target)));
        Figures { target, costs: costs.collect(), rows }
    }

    /// A sentence or two on who won, from the figures alone; of an interrupted comparison, that it is one. A single method has
    /// won nothing.
    pub fn verdict(&self, results: &Results) -> String {
        let winner = self.winner(results);
        match results.left_out {
            0 => winner,
            left_out => {
                let had = results.plan.count();
                format!(
                    "Partial: interrupted, with {had} of {} runs, the same for every method here. {winner}",
                    had + left_out
                )
            }
        }
    }

    fn winner(&self, results: &Results) -> String {
        let reached: Vec<&Row> = self.rows.iter().filter(|row| row.target.is_some()).collect();
        let links = &results.plan.base.links.name;
        let nodes = results.plan.base.nodes;
        let Some(first) = reached.first() else {
            return format!("On {links} links with {nodes} nodes no method reached a loss of {:.3}.", self.target);
        };
        let time = |row: &Row| row.target.map_or(f64::INFINITY, |point| point.seconds);
        let sent = |row: &Row| row.target.map_or(f64::INFINITY, |point| point.busiest_bytes as f64);
        let mut text =
            format!("On {links} links with {nodes} nodes {} reached a loss of {:.3}", first.method.name, self.target);
        if self.rows.len() == 1 {
            let _ = write!(text, " in {}", seconds(time(first)));
            if first.busiest_bytes > 0.0 {
                let _ = write!(text, ", with {} sent by the busiest node", bytes(sent(first)));
            }
            return text + ".";
        }
        // A loss that was there at once says nothing of speed.
        let is_timed = time(first) > 0.0;
        if is_timed {
            let _ = write!(text, " first, in {}", seconds(time(first)));
        } else {
            text = format!("A loss of {:.3} was there from the beginning, so that no time can be told", self.target);
        }
        if let [_, second, ..] = reached[..]
            && is_timed
        {
            let _ = write!(text, "; {} took {:.2} times as long", second.method.name, time(second) / time(first));
        }
        if let [_, _, .., last] = reached[..]
            && is_timed
        {
            let (_, waiting, _) = last.shares;
            let _ = write!(
                text,
                ", and {} {:.1} times (its nodes waited {:.0} % of the time)",
                last.method.name,
                time(last) / time(first),
                100.0 * waiting
            );
        }
        text.push('.');
        // A method that diverged has learned nothing, and one that did not finish took other tokens.
        let learned = self.rows.iter().filter(|row| row.is_complete && row.loss.0.is_finite());
        if learned.clone().count() > 1
            && let Some(best) = learned.min_by(|one, other| one.loss.0.total_cmp(&other.loss.0))
        {
            let _ =
                write!(text, " For the same number of tokens {} learned best ({:.3}).", best.method.name, best.loss.0);
        }
        let talking = reached.iter().filter(|row| is_timed && row.busiest_bytes > 0.0);
        if let Some(least) = talking.min_by(|one, other| sent(one).total_cmp(&sent(other))) {
            let until = bytes(sent(least));
            let _ = write!(text, " The busiest node sent least with {}: {until} until then.", least.method.name);
        }
        text
    }

    /// The methods side by side.
    pub fn table(&self) -> Table {
        let target = format!("to {:.3}", self.target);
        let mut table = Table::new(&["method", "loss", &target, "times", "waiting", "busiest node", "rate"]);
        let first = self.rows.first().and_then(|row| row.target);
        for row in &self.rows {
            let ratio = row.target.zip(first).map(|(own, first)| own.seconds / first.seconds);
            let ratio = ratio.filter(|ratio| ratio.is_finite());
            table.row(vec![
                row.method.name.to_owned(),
                format!("{:.3}{}", row.loss.0, if row.is_complete { "" } else { " (unfinished)" }),
                row.target.map_or("never".to_owned(), |point| seconds(point.seconds)),
                ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
                format!("{:.0} %", 100.0 * row.shares.1),
                bytes(row.busiest_bytes),
                format!("{}{}", row.learning_rate, if row.is_at_edge { " (edge)" } else { "" }),
            ]);
        }
        table
    }

    /// What faults cost, a row a method.
    pub fn fault_table(&self, faults: &[Fault]) -> Table {
        let head: Vec<&str> = std::iter::once("method").chain(faults.iter().map(|fault| fault.name())).collect();
        let mut table = Table::new(&head);
        for row in &self.rows {
            let cells = faults.iter().map(|fault| {
                let of = |cost: &&Cost| cost.method == row.method && cost.fault == *fault;
                self.costs.iter().find(of).map_or("-".to_owned(), Cost::words)
            });
            table.row(std::iter::once(row.method.name.to_owned()).chain(cells).collect());
        }
        table
    }
}

impl Cost {
    /// In a cell of a table.
    pub fn words(&self) -> String {
        let Cost { calm, hurt, .. } = self;
        match (calm.reached, hurt.reached) {
            _ if !hurt.is_complete && !calm.is_complete => "unfinished, without it too".to_owned(),
            _ if hurt.stands_still => "stands still".to_owned(),
            _ if !hurt.is_complete => "unfinished".to_owned(),
            (Some(calm), Some(hurt)) => match hurt - calm {
                // Less than a tenth of a second is none.
                cost if cost.abs() < 0.05 => "none".to_owned(),
                cost if cost < 0.0 => format!("-{}", seconds(-cost)),
                cost => format!("+{}", seconds(cost)),
            },
            (Some(_), None) => format!("never ({:+.3})", hurt.loss - calm.loss),
            (None, None) => format!("never, without it too ({:+.3})", hurt.loss - calm.loss),
            (None, Some(_)) => format!("only with it ({:+.3})", hurt.loss - calm.loss),
        }
    }
}

fn row(results: &Results, method: &Method, target: f64) -> Row {
    let runs = results.of(method);
    let losses = || runs.iter().map(|run| run.end().loss);
    let reached: Option<Vec<Point>> = runs.iter().map(|run| run.reaches(target)).collect();
    let over = |of: fn(&Point) -> f64| reached.as_ref().map(|points| mean(points.iter().map(of)));
    let share = |of: fn((f64, f64, f64)) -> f64| mean(runs.iter().map(|run| of(run.shares())));
    let rates = &results.plan.learning_rates;
    let learning_rate = runs.first().map_or(0.0, |run| run.learning_rate);
    Row {
        method: *method,
        learning_rate,
        is_at_edge: rates.len() > 1 && [rates.first(), rates.last()].contains(&Some(&learning_rate)),
        loss: (mean(losses()), losses().fold(f64::INFINITY, f64::min), losses().fold(f64::NEG_INFINITY, f64::max)),
        seconds: mean(runs.iter().map(|run| run.end().seconds)),
        target: reached.is_some().then(|| Point {
            seconds: over(|point| point.seconds).unwrap_or_default(),
            tokens: over(|point| point.tokens as f64).unwrap_or_default() as u64,
            busiest_bytes: over(|point| point.busiest_bytes as f64).unwrap_or_default() as u64,
            all_bytes: over(|point| point.all_bytes as f64).unwrap_or_default() as u64,
            loss: target,
        }),
        shares: (share(|shares| shares.0), share(|shares| shares.1), share(|shares| shares.2)),
        busiest_bytes: mean(runs.iter().map(|run| run.end().busiest_bytes as f64)),
        all_bytes: mean(runs.iter().map(|run| run.end().all_bytes as f64)),
        is_complete: runs.iter().all(|run| run.is_complete),
    }
}

fn cost(results: &Results, method: &Method, fault: Fault, target: f64) -> Cost {
    let (calm, hurt) = (results.of(method), results.with(method, fault));
    let end = |runs: &[&Outcome]| {
        let run = runs.first();
        End {
            reached: run.and_then(|run| run.reaches(target)).map(|point| point.seconds),
            loss: run.map_or(f64::NAN, |run| run.end().loss),
            is_complete: run.is_none_or(|run| run.is_complete),
            stands_still: run.is_some_and(|run| run.stands_still),
        }
    };
    let stood_still = |runs: &[&Outcome]| runs.first().map_or(0.0, |run| run.counted.stood_still);
    let stood_still = (stood_still(&hurt) - stood_still(&calm)).max(0.0);
    Cost { method: *method, fault, calm: end(&calm), hurt: end(&hurt), stood_still }
}

/// All points of all runs as comma-separated values.
pub fn curves(results: &Results) -> String {
    let mut text = "method,learning_rate,seed,fault,seconds,tokens,busiest_node_bytes,all_bytes,loss\n".to_owned();
    let calm = |run: &&Outcome| run.fault == Fault::None && run.seed == results.plan.base.seed;
    let runs = results.tuning.iter().chain(results.runs.iter().filter(|run| !calm(run)));
    for run in runs {
        let (method, rate, seed, fault) = (run.method.name, run.learning_rate, run.seed, run.fault.name());
        for point in &run.points {
            let Point { seconds, tokens, busiest_bytes, all_bytes, loss } = point;
            let _ = writeln!(
                text,
                "{method},{rate},{seed},{fault},{seconds:.3},{tokens},{busiest_bytes},{all_bytes},{loss:.5}"
            );
        }
    }
    text
}

/// Seconds in few words: 95 s, 12 min 3 s.
pub(super) fn seconds(value: f64) -> String {
    match value {
        value if value < 1.0 => format!("{} s", (1000.0 * value).round() / 1000.0),
        value if value < 10.0 => format!("{value:.1} s"),
        value if value < 600.0 => format!("{value:.0} s"),
        value => format!("{:.0} min", value / 60.0),
    }
}

/// A line's rate, in bytes a second, for people.
fn rate(bytes_per_second: f64) -> String {
    format!("{} Mbit/s", (8.0 * bytes_per_second / 1e4).round() / 100.0)
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}
