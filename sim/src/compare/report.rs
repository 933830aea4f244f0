//! What a comparison came to: figures for each method, the verdict, a table, a page and files for other programs.
//!
//! Everything here is computed from [`Results`]; nothing is known of a method beforehand.

mod conditions;
mod cost;
mod explained;
mod files;
mod measured;
mod page;
#[cfg(test)]
mod tests;
mod timeline;

use std::fmt::Write;

pub use conditions::conditions;
use cost::cost;
pub use cost::{Cost, End, Words, when};
pub use explained::{explanation, list};
pub use files::{curves, table_file};
pub use measured::{Lines, Measured, Real};
pub use page::page;

use super::{Fault, Kind, Method, Outcome, Point, Results};
use crate::report::{Table, bytes, count};

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
    /// Bytes of text that all nodes together had trained on at the end.
    pub tokens: f64,
    /// Loss after the fewest tokens that any method took which did all its steps, see [`Figures::fewest_tokens`]. `None` where a run
    /// took fewer, as one that did not do all of them may.
    pub loss_at_fewest_tokens: Option<f64>,
    /// Whether every run did all its steps.
    pub is_complete: bool,
}

/// All figures.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The loss that time and bytes are told for.
    pub target: f64,
    /// Where that loss comes from, in a phrase.
    pub target_source: String,
    /// The methods, the fastest to the target first.
    pub rows: Vec<Row>,
    /// By method, then by fault.
    pub costs: Vec<Cost>,
    /// The fewest tokens that a run without a fault took which did all its steps and did not diverge: what methods learn is
    /// compared there. `None` where there is no such run.
    pub fewest_tokens: Option<u64>,
}

/// Methods whose tokens differ by less than this factor took the same: nodes that wait for nobody are not at the same step at the
/// end.
const SAME_TOKENS: f64 = 1.01;

impl Figures {
    /// The figures of `results`. Without a target it is the least loss that every seed of every method but training
    /// alone reached at its end, methods left out of which a seed diverged, did not finish or ends where it began.
    pub fn new(results: &Results, target: Option<f64>) -> Figures {
        let methods = || results.plan.methods.iter();
        let worst = |method: &&Method| {
            let runs = results.of(method);
            let has_learned =
                |run: &&Outcome| run.is_complete && run.points.first().is_some_and(|start| run.end().loss < start.loss);
            runs.iter()
                .all(has_learned)
                .then(|| runs.iter().map(|run| run.end().loss).fold(f64::NEG_INFINITY, f64::max))
        };
        let learned = |is_alone| {
            let of_kind = methods().filter(|method| (method.kind == Kind::Alone) == is_alone);
            of_kind.filter(|method| worst(method).is_some()).collect::<Vec<_>>()
        };
        let counted = Some(learned(false)).filter(|together| !together.is_empty()).unwrap_or_else(|| learned(true));
        // Where all diverged, what any of them had reached before.
        let points = || results.runs.iter().flat_map(|run| &run.points).map(|point| point.loss);
        let own = counted.iter().filter_map(worst).reduce(f64::max);
        let own = own.or_else(|| points().filter(|loss| loss.is_finite()).reduce(f64::min));
        let others: Vec<&str> =
            methods().filter(|method| !counted.contains(method)).map(|method| method.name).collect();
        let target_source = match (target, counted.len()) {
            (Some(_), _) => "set by --target".to_owned(),
            (None, 0) => "the least that any method had before it diverged or ended".to_owned(),
            (None, _) if others.is_empty() => "what every method reached with every seed".to_owned(),
            (None, _) => format!("what every method but {} reached with every seed", others.join(", ")),
        };
        let target = target.unwrap_or((own.unwrap_or(0.0) * 1000.0).ceil() / 1000.0);
        let calm = methods().flat_map(|method| results.of(method));
        let has_learned = calm.filter(|run| run.is_complete && run.end().loss.is_finite());
        let fewest_tokens = has_learned.map(|run| run.end().tokens).min();
        let mut rows: Vec<Row> = methods().map(|method| row(results, method, (target, fewest_tokens))).collect();
        let time = |row: &Row| row.target.map_or(f64::INFINITY, |point| point.seconds);
        rows.sort_by(|one, other| time(one).total_cmp(&time(other)));
        let costs =
            methods().flat_map(|method| results.plan.faults.iter().map(|fault| cost(results, method, *fault, target)));
        Figures { target, target_source, costs: costs.collect(), rows, fewest_tokens }
    }

    /// Whether methods that did all their steps took other tokens than others.
    pub fn do_tokens_differ(&self) -> bool {
        let tokens = || self.rows.iter().filter(|row| row.is_complete).map(|row| row.tokens);
        tokens().fold(0.0, f64::max) > SAME_TOKENS * tokens().fold(f64::INFINITY, f64::min)
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
        let at_fewest = |row: &Row| row.loss_at_fewest_tokens.filter(|loss| row.is_complete && loss.is_finite());
        let learned = self.rows.iter().filter_map(|row| Some((row, at_fewest(row)?)));
        if learned.clone().count() > 1
            && let Some((_, least)) = learned.clone().min_by(|one, other| one.1.total_cmp(&other.1))
            && let Some(tokens) = self.fewest_tokens
        {
            let tokens = count(tokens as f64);
            // Whoever has the same figure where it is shown has learned as well.
            let shown = |loss: f64| format!("{loss:.3}");
            let best = learned.filter(|(_, loss)| shown(*loss) == shown(least)).map(|(row, _)| row.method.name);
            let best = best.collect::<Vec<_>>().join(" and ");
            let _ = write!(text, " For the same number of tokens ({tokens}) {best} learned best ({least:.3}).");
        }
        let talking = reached.iter().filter(|row| is_timed && row.busiest_bytes > 0.0);
        if let Some(least) = talking.min_by(|one, other| sent(one).total_cmp(&sent(other))) {
            let until = bytes(sent(least));
            let _ = write!(text, " The busiest node sent least with {}: {until} until then.", least.method.name);
        }
        text
    }

    /// The methods side by side; with their tokens, where these differ.
    pub fn table(&self) -> Table {
        let target = format!("to {:.3}", self.target);
        let head = ["method", "loss", &target, "times", "waiting", "busiest node", "rate", "tokens"];
        let columns = if self.do_tokens_differ() { head.len() } else { head.len() - 1 };
        let mut table = Table::new(&head[..columns]);
        let first = self.rows.first().and_then(|row| row.target);
        for row in &self.rows {
            let ratio = row.target.zip(first).map(|(own, first)| own.seconds / first.seconds);
            let ratio = ratio.filter(|ratio| ratio.is_finite());
            let cells = [
                row.method.name.to_owned(),
                format!("{:.3}{}", row.loss.0, if row.is_complete { "" } else { " (unfinished)" }),
                row.target.map_or("never".to_owned(), |point| seconds(point.seconds)),
                ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
                format!("{:.0} %", 100.0 * row.shares.1),
                bytes(row.busiest_bytes),
                format!("{}{}", row.learning_rate, if row.is_at_edge { " (edge)" } else { "" }),
                count(row.tokens),
            ];
            table.row(cells.into_iter().take(columns).collect());
        }
        table
    }

    /// What faults cost, a row a method, in these words.
    pub fn fault_table(&self, faults: &[Fault], words: impl Fn(&Cost) -> String) -> Table {
        let head: Vec<&str> = std::iter::once("method").chain(faults.iter().map(|fault| fault.name())).collect();
        let mut table = Table::new(&head);
        for row in &self.rows {
            let cells = faults.iter().map(|fault| {
                let of = |cost: &&Cost| cost.method == row.method && cost.fault == *fault;
                self.costs.iter().find(of).map_or("-".to_owned(), &words)
            });
            table.row(std::iter::once(row.method.name.to_owned()).chain(cells).collect());
        }
        table
    }
}

fn row(results: &Results, method: &Method, (target, fewest_tokens): (f64, Option<u64>)) -> Row {
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
        tokens: mean(runs.iter().map(|run| run.end().tokens as f64)),
        loss_at_fewest_tokens: fewest_tokens.and_then(|tokens| {
            let losses: Option<Vec<f64>> = runs.iter().map(|run| run.loss_after(tokens)).collect();
            losses.map(|losses| mean(losses.into_iter()))
        }),
        is_complete: runs.iter().all(|run| run.is_complete),
    }
}

/// Seconds in few words: 95 s, 12 min 3 s.
pub(super) fn seconds(value: f64) -> String {
    match value {
        value if value < 1.0 => format!("{} s", (1000.0 * value).round() / 1000.0),
        value if value < 10.0 => format!("{value:.1} s"),
        value if value.round() < 600.0 => format!("{value:.0} s"),
        value => format!("{:.0} min {:.0} s", (value.round() / 60.0).floor(), value.round() % 60.0),
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
