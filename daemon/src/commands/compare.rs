//! `murmur compare`: ways to train together, side by side, simulated on the user's own links, faults and text.

mod real;
mod wanted;

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use murmur_sim::compare::report::{Cost, Figures, Real, Words, conditions, curves, list, page, table_file, when};
use murmur_sim::compare::{Job, Plan, Results};

use super::sim::{Output, Progress, interrupted, on_interruption};
use crate::cli::CompareOptions;
use crate::console::figures::counted;
use crate::console::{note, print_fitted, print_line};
use crate::failure::{ExitCode, Failure};

/// What makes a comparison end sooner.
const SHORTER: &str = "fewer --methods, --steps, --seeds or --faults take less time";

/// What stands in the cells of what a fault cost.
const UNTIL_THE_END: &str = "more time until the end because of a fault (in brackets: how much higher the loss ended)";
const BEFORE: &str = "\"before it\" where it was reached before the fault came";

/// Columns of a terminal that all tables fit.
const COLUMNS: usize = 80;

/// Columns that belong together: what is measured and what is simulated.
const BESIDE: usize = 2;

pub(super) fn run(options: &CompareOptions) -> anyhow::Result<()> {
    if options.list {
        list(COLUMNS).iter().for_each(|line| print_line(line));
        return Ok(());
    }
    let plan = wanted::plan(options)?;
    let output = Output::open(Some(&options.output))?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = options.jobs.map_or(cores, usize::from).min(plan.count());
    let interruption = on_interruption()?;
    announce(&plan);
    let progress = Mutex::new(Progress::new(plan.count() as u64, "runs"));
    let tell = |done: usize, _: &Job| {
        progress.lock().unwrap_or_else(PoisonError::into_inner).show(done as u64, "");
    };
    let results = plan.run(jobs, &interruption, &tell);
    progress.into_inner().unwrap_or_else(PoisonError::into_inner).clear();
    let Some(results) = results else {
        output.into_iter().for_each(Output::take_back);
        let message = "interrupted before one method had been tried at all learning rates: nothing was written";
        return Err(interrupted(message.to_owned()).hint(SHORTER).into());
    };
    let figures = Figures::new(&results, options.target);
    let mut lines = vec![figures.verdict(&results), String::new()];
    lines.extend(figures.table().lines_within(COLUMNS, 1));
    lines.push(format!("A loss of {:.3} is {}.", figures.target, figures.target_source));
    lines.extend(of_faults(&figures, &results));
    let goes_on = options.real && !interruption.load(Ordering::Relaxed);
    // A failure of real daemons is told at the end: what there is besides is worth as much without them.
    let real = goes_on.then(|| real::run(&results, &figures, options, &interruption));
    let (real, ended) = real.map_or((None, Ok(())), |(real, ended)| (Some(real), ended));
    let is_partial = results.left_out > 0 || (options.real && real.as_ref().is_none_or(|real| real.left_out > 0));
    match &real {
        Some(real) => lines.extend(beside(real, &results)),
        None if options.real => lines.extend(no_real_daemons()),
        None => {}
    }
    // The files first: where nobody reads on, printing ends the process.
    if let Some(output) = output {
        output.write("report.html", &page(&results, &figures, real.as_ref(), &wanted::command(options)))?;
        output.write("table.csv", &table_file(&results, &figures))?;
        output.write("curves.csv", &curves(&results))?;
        output.write("summary.txt", &(summary(&lines, &results).join("\n") + "\n"))?;
    }
    lines.iter().for_each(|line| print_fitted(line, 0));
    print_line("");
    ended?;
    if is_partial {
        return Err(interrupted("interrupted: this is a part of the comparison".to_owned()).hint(SHORTER).into());
    }
    match &results.violations()[..] {
        [] => Ok(()),
        found => {
            let times = counted(found.len() as u64, "time");
            let message = format!("{times} a law of a method did not hold, the first: {}", found[0]);
            Err(Failure::new(ExitCode::Failure, message)
                .hint("the figures of that method are not to be trusted; please report it with the command")
                .into())
        }
    }
}

fn no_real_daemons() -> [String; 2] {
    [String::new(), "Partial: ended before one swarm of real daemons had come to its end.".to_owned()]
}

/// What was told, and under which conditions.
fn summary(lines: &[String], results: &Results) -> Vec<String> {
    let conditions = conditions(results).into_iter().map(|(name, value)| format!("{name}: {value}"));
    lines.iter().cloned().chain([String::new()]).chain(conditions).collect()
}

/// When faults came and what they cost, until the end and to the target.
fn of_faults(figures: &Figures, results: &Results) -> Vec<String> {
    let faults = &results.plan.faults;
    if faults.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![String::new(), when(&results.plan), UNTIL_THE_END.to_owned()];
    lines.extend(figures.fault_table(faults, Cost::until_the_end).lines_within(COLUMNS, 1));
    lines
        .extend([String::new(), format!("more time to a loss of {:.3} because of a fault ({BEFORE})", figures.target)]);
    lines.extend(figures.fault_table(faults, Cost::to_target).lines_within(COLUMNS, 1));
    lines
}

/// What real daemons came to, beside the simulated nodes.
fn beside(real: &Real, results: &Results) -> Vec<String> {
    if real.measured.is_empty() {
        return no_real_daemons().into();
    }
    let mut lines =
        vec![String::new(), format!("the same by {} real daemons on this machine", results.plan.base.nodes)];
    lines.extend(real.table(results).lines_within(COLUMNS, BESIDE));
    let to_target =
        format!("more time to a loss of {:.3} because of a fault, real and simulated ({BEFORE})", real.target);
    let words: [(String, Words); 2] =
        [(format!("real and simulated: {UNTIL_THE_END}"), Cost::until_the_end), (to_target, Cost::to_target)];
    for (title, words) in words {
        if let Some(table) = real.fault_table(results, words) {
            lines.extend([String::new(), title]);
            lines.extend(table.lines_within(COLUMNS, BESIDE));
        }
    }
    lines.push(real.conditions(results));
    lines
}

fn announce(plan: &Plan) {
    let names: Vec<&str> = plan.methods.iter().map(|method| method.name).collect();
    let base = &plan.base;
    note(&format!(
        "{} of {} simulated nodes, {} each, on {} links: {}",
        counted(plan.count() as u64, "run"),
        base.nodes,
        counted(base.steps, "step"),
        base.links.name,
        names.join(", ")
    ));
}
