//! Files for other programs: every point of every run, and the table.

use std::fmt::Write;

use super::{Cost, Figures};
use crate::compare::{Fault, Outcome, Point, Results};

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

/// The table as comma-separated values, a row a method: means over seeds, then what each fault cost. Empty: there is no such figure.
pub fn table_file(results: &Results, figures: &Figures) -> String {
    let mut head = "method,learning_rate,is_complete,loss_mean,loss_least,loss_most,target,seconds_to_target,\
                    busiest_node_bytes_to_target,all_bytes_to_target,seconds,busiest_node_bytes,all_bytes,computing,waiting,sending,\
                    tokens,loss_at_fewest_tokens"
        .to_owned();
    let faults = &results.plan.faults;
    for fault in faults {
        let name = fault.name().replace('-', "_");
        let _ = write!(head, ",{name}_more_seconds,{name}_more_loss,{name}_more_seconds_to_target,{name}_is_complete");
    }
    let mut text = head + "\n";
    // Millionths are finer than anything that is measured.
    let rounded = |value: f64| ((1e6 * value).round() / 1e6).to_string();
    let figure = |value: Option<f64>| value.filter(|value| value.is_finite()).map(rounded);
    for row in &figures.rows {
        let at_target = |of: fn(&Point) -> f64| row.target.as_ref().map(of);
        let values = [
            Some(row.loss.0),
            Some(row.loss.1),
            Some(row.loss.2),
            Some(figures.target),
            at_target(|point| point.seconds),
            at_target(|point| point.busiest_bytes as f64),
            at_target(|point| point.all_bytes as f64),
            Some(row.seconds),
            Some(row.busiest_bytes),
            Some(row.all_bytes),
            Some(row.shares.0),
            Some(row.shares.1),
            Some(row.shares.2),
            Some(row.tokens),
            row.loss_at_fewest_tokens,
        ];
        let mut cells = vec![row.method.name.to_owned(), row.learning_rate.to_string(), row.is_complete.to_string()];
        cells.extend(values.map(|value| figure(value).unwrap_or_default()));
        for fault in faults {
            let of = |cost: &&Cost| cost.method == row.method && cost.fault == *fault;
            let cost = figures.costs.iter().find(of);
            let more = cost.map_or([None; 3], Cost::figures);
            cells.extend(more.map(|value| figure(value).unwrap_or_default()));
            cells.push(cost.map_or(String::new(), |cost| cost.hurt.is_complete.to_string()));
        }
        text += &(cells.join(",") + "\n");
    }
    text
}
