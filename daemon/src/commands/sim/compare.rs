//! `murmur sim compare`: scenarios and results of earlier runs, side by side.

use std::sync::atomic::Ordering;

use murmur_sim::report::{Compared, RunReport, comparison, comparison_plots};
use murmur_sim::runner::Trace;
use serde_json::json;

use super::interrupted;
use super::interruption::on_interruption;
use super::output::Output;
use super::run::{Telling, jobs, read_results, simulate};
use super::source::Source;
use crate::cli::SimCompareOptions;
use crate::console::output::go_on_without_output;
use crate::console::{Console, counted, note, print_line};
use crate::failure::{ExitCode, Failure};

/// What is compared.
enum Run {
    Read(Box<RunReport>),
    ToDo(Box<Source>),
}

pub(super) fn run(options: &SimCompareOptions) -> anyhow::Result<()> {
    let seeds = options.seeds.range();
    let jobs = jobs(options.work.jobs, &seeds);
    // All of them are read and checked before any is run.
    let mut runs = Vec::new();
    for name in &options.runs {
        runs.push(match read_results(name)? {
            Some(report) => Run::Read(Box::new(report)),
            None => Run::ToDo(Box::new(Source::load(name, options.nodes, Vec::new(), jobs)?)),
        });
    }
    let output = Output::open(options.work.output.as_deref())?;
    if output.is_some() {
        go_on_without_output("the work");
    }
    let interruption = on_interruption()?;
    // Seeds are told on their own only where they fail, as if they were many.
    let telling = Telling { format: options.work.format, trace: Trace::Off, in_full: false };
    let mut reports: Vec<(String, RunReport)> = Vec::new();
    // Of the runs that are simulated here: how many seeds fail a check, and how to see the first of them.
    let (mut failed, mut first_failed) = (0, None);
    for (name, run) in options.runs.iter().zip(runs) {
        let report = match run {
            Run::Read(report) => *report,
            Run::ToDo(source) => {
                note(&format!("running {name}, seeds {}..{}", seeds.start, seeds.end));
                let report = simulate(&source, seeds.clone(), jobs, &telling, &interruption);
                failed += report.failed().count() as u64;
                first_failed =
                    first_failed.or_else(|| report.failed().next().map(|seed| source.replay_command(seed.seed)));
                report
            }
        };
        reports.push((name.clone(), report));
        if interruption.load(Ordering::Relaxed) {
            break;
        }
    }
    let compared: Vec<Compared> = reports.iter().map(|(name, report)| Compared::new(name, report)).collect();
    match options.work.format {
        Console::Json => print_line(&json!({ "compared": compared }).to_string()),
        Console::Text => {
            print_line("");
            comparison(&compared).lines().iter().for_each(|line| print_line(line));
        }
    }
    let seeds_of = |report: &RunReport| report.seeds.iter().map(|seed| seed.seed).collect::<Vec<_>>();
    if reports.windows(2).any(|pair| seeds_of(&pair[0].1) != seeds_of(&pair[1].1)) {
        note("these runs are of different seeds, which may differ more than what is compared");
    }
    if let Some(output) = output {
        output.write("comparison.json", &serde_json::to_string(&compared)?)?;
        output.write("comparison.txt", &(comparison(&compared).lines().join("\n") + "\n"))?;
        output.write_plots(&comparison_plots(&reports))?;
    }
    if interruption.load(Ordering::Relaxed) {
        let message = format!("interrupted in run {} of {}", reports.len(), options.runs.len());
        return Err(interrupted(message).into());
    }
    match first_failed {
        None => Ok(()),
        Some(command) => {
            let message = format!("{} of these runs failed a check", counted(failed, "seed"));
            Err(Failure::new(ExitCode::Failure, message).hint(command).into())
        }
    }
}
