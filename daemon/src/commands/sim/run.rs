//! `murmur sim run` and `murmur sim replay`: seeds, their verdicts, and what they come to.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use murmur_sim::file::built_in;
use murmur_sim::report::{
    About, COLUMNS, FORMAT, RunReport, SeedReport, check_counts, number, page, plots, series, summary,
};
use murmur_sim::runner::{Ended, Heard, Trace, run_seeds};
use serde_json::json;

use super::interrupted;
use super::interruption::on_interruption;
use super::output::Output;
use super::progress::Progress;
use super::setting::{combinations, the_one};
use super::source::Source;
use super::sweep;
use crate::cli::{SEED_MAX, SimReplayOptions, SimRunOptions};
use crate::console::output::go_on_without_output;
use crate::console::{Console, counted, print_fitted, print_line};
use crate::failure::{ExitCode, Failure};

/// Of more seeds, only those with a failed check get a line of their own.
const SEED_LINES_MAX: u64 = 100;

/// Last events and effects shown of a run that fails.
const LAST_LINES: usize = 20;

pub(super) fn run(options: &SimRunOptions) -> anyhow::Result<()> {
    let seeds = options.seeds.range();
    let jobs = jobs(options.work.jobs, &seeds);
    let mut sources = Vec::new();
    for settings in combinations(&options.set)? {
        sources.push(Source::load(&options.scenario, options.nodes, settings, jobs)?);
    }
    let output = Output::open(options.work.output.as_deref())?;
    if output.is_some() {
        go_on_without_output("the work");
    }
    let trace = if options.trace { Trace::On } else { Trace::Off };
    let telling = Telling { format: options.work.format, trace, in_full: seeds.end - seeds.start == 1 };
    if let [source] = &sources[..] {
        let report = simulate(source, seeds, jobs, &telling, &on_interruption()?);
        return conclude(source, &report, options.work.format, output.as_ref());
    }
    sweep::run(&sources, seeds, jobs, &telling, output.as_ref())
}

pub(super) fn replay(options: &SimReplayOptions) -> anyhow::Result<()> {
    let (scenario, seed) = which(options)?;
    let source = Source::load(&scenario, options.nodes, the_one(&options.set)?, 1)?;
    let output = Output::open(options.output.as_deref())?;
    if output.is_some() {
        go_on_without_output("the work");
    }
    let telling = Telling { format: Console::Text, trace: Trace::On, in_full: true };
    let report = simulate(&source, seed..seed + 1, 1, &telling, &on_interruption()?);
    conclude(&source, &report, Console::Text, output.as_ref())
}

/// A scenario and a seed, from one or two words and `--seed`.
fn which(options: &SimReplayOptions) -> Result<(String, u64), Failure> {
    let wrong = |message: String| {
        Failure::new(ExitCode::Settings, message).hint("for example: murmur sim replay churn --seed 17")
    };
    let seed = |text: &str| {
        let seed = text.parse().ok().filter(|seed| *seed <= SEED_MAX);
        seed.ok_or_else(|| wrong(format!("the seed {text:?} is no whole number from 0 to {SEED_MAX}")))
    };
    match (&options.which[..], options.seed) {
        // The seed of what continuous integration runs.
        ([word], None) if word.parse::<u64>().is_ok() => Ok(("everything".to_owned(), seed(word)?)),
        ([scenario], Some(number)) => Ok((scenario.clone(), number)),
        ([scenario, word], None) => Ok((scenario.clone(), seed(word)?)),
        ([scenario], None) => Err(wrong(format!("which seed of {scenario}?"))),
        _ => Err(wrong("the seed is given twice".to_owned())),
    }
}

/// As many as there are cores, and never more than seeds.
pub(super) fn jobs(asked: Option<u16>, seeds: &Range<u64>) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let count = usize::try_from(seeds.end - seeds.start).unwrap_or(usize::MAX);
    asked.map_or(cores, usize::from).min(count)
}

/// What is told of a seed as soon as it has ended.
pub(super) struct Telling {
    pub(super) format: Console,
    pub(super) trace: Trace,
    /// With its draws and every verdict.
    pub(super) in_full: bool,
}

/// Runs seeds and tells of them.
pub(super) fn simulate(
    source: &Source,
    seeds: Range<u64>,
    jobs: usize,
    telling: &Telling,
    interruption: &Arc<AtomicBool>,
) -> RunReport {
    let total = seeds.end - seeds.start;
    let mut progress = Progress::new(total, "seeds");
    let reports = run_seeds(&source.file, seeds.clone(), jobs, telling.trace, interruption, |heard| match heard {
        Heard::Progress { finished, failed } => progress.show(finished, &format!(" · {failed} failed")),
        Heard::Seed(ended) => {
            progress.clear();
            telling.tell(source, ended, total);
        }
    });
    progress.clear();
    RunReport {
        format: FORMAT,
        scenario: source.name.clone(),
        nodes: source.nodes,
        settings: source.settings.iter().map(|setting| (setting.key.clone(), setting.value.clone())).collect(),
        seeds_asked: (seeds.start, seeds.end),
        interrupted: interruption.load(Ordering::Relaxed) && (reports.len() as u64) < total,
        columns: COLUMNS.map(str::to_owned).into(),
        seeds: reports,
    }
}

impl Telling {
    fn tell(&self, source: &Source, ended: &Ended, total: u64) {
        if self.format == Console::Json {
            for line in &ended.changes {
                print_line(&json!({ "seed": ended.report.seed, "change": line }).to_string());
            }
            print_line(&json!({ "seed": SeedReport { series: Vec::new(), ..ended.report.clone() } }).to_string());
            return;
        }
        let report = &ended.report;
        if self.in_full {
            report.drawn.iter().for_each(|(key, value)| print_line(&format!("drawn   {key} = {value}")));
        }
        ended.changes.iter().for_each(|line| print_line(line));
        if self.in_full {
            tell_verdicts(report);
        }
        if total <= SEED_LINES_MAX || !report.has_passed() {
            print_fitted(&seed_line(report), 13);
        }
        if !report.has_passed() {
            if self.trace == Trace::On {
                print_line("the last events (<) and effects (>) of nodes:");
                let first = ended.last_lines.len().saturating_sub(LAST_LINES);
                ended.last_lines[first..].iter().for_each(|line| print_line(&format!("  {line}")));
            } else {
                print_line(&format!("        replay: {}", source.replay_command(report.seed)));
            }
        }
    }
}

fn tell_verdicts(report: &SeedReport) {
    for verdict in &report.verdicts {
        match &verdict.finding {
            None => print_line(&format!("holds   {}", verdict.check)),
            Some(finding) => print_line(&format!("FAILS   {}: {finding}", verdict.check)),
        }
    }
}

fn seed_line(report: &SeedReport) -> String {
    let failed: Vec<String> = report
        .verdicts
        .iter()
        .filter_map(|verdict| verdict.finding.as_ref().map(|finding| format!("{}: {finding}", verdict.check)))
        .collect();
    let seed = format!("seed {:>6}", report.seed);
    if failed.is_empty() {
        format!(
            "{seed}  {} hold · {} · loss {} · apart at the end {} · {} · {:.2} s",
            counted(report.verdicts.len() as u64, "check"),
            counted(report.nodes as u64, "node"),
            number(report.summary.loss),
            number(report.summary.worst_disagreement_at_end),
            counted(report.summary.exchanges_completed, "exchange"),
            report.real_seconds,
        )
    } else {
        format!("{seed}  FAILS {}", failed.join("; "))
    }
}

/// Sums up, writes what is asked for, and ends with the right exit code.
fn conclude(source: &Source, report: &RunReport, format: Console, output: Option<&Output>) -> anyhow::Result<()> {
    if !report.seeds.is_empty() {
        match format {
            Console::Json => print_line(&json!({ "finished": finished(report) }).to_string()),
            Console::Text => summary_lines(report).iter().for_each(|line| print_line(line)),
        }
    }
    if let Some(output) = output {
        write(source, report, output)?;
    }
    let (asked, ended) = (report.seeds_asked.1 - report.seeds_asked.0, report.seeds.len());
    if report.interrupted {
        let asked = counted(asked, "seed");
        return Err(interrupted(format!("interrupted: {ended} of {asked} ended")).into());
    }
    let failed: Vec<u64> = report.failed().map(|seed| seed.seed).collect();
    match failed.first() {
        None => Ok(()),
        Some(first) => {
            let fail = if failed.len() == 1 { "fails" } else { "fail" };
            let message = format!("{} of {} {fail} a check", failed.len(), counted(ended as u64, "seed"));
            Err(Failure::new(ExitCode::Failure, message).hint(source.replay_command(*first)).into())
        }
    }
}

/// Everything that a run leaves.
pub(super) fn write(source: &Source, report: &RunReport, output: &Output) -> anyhow::Result<()> {
    output.write_results(report)?;
    output.write("summary.txt", &(summary_lines(report).join("\n") + "\n"))?;
    output.write("series.csv", &series(report))?;
    output.write_plots(&plots(report))?;
    let about = About { command: source.run_command(report.seeds_asked), settings: source.text.clone() };
    output.write("index.html", &page(report, &about, |seed| source.replay_command(seed)))
}

/// The checks of a single seed have been told one by one.
fn summary_lines(report: &RunReport) -> Vec<String> {
    let mut lines = vec![String::new()];
    if report.seeds.len() > 1 {
        lines.extend(check_counts(report).lines());
        lines.push(String::new());
    }
    lines.extend(summary(report).lines());
    lines
}

fn finished(report: &RunReport) -> serde_json::Value {
    json!({
        "scenario": report.scenario,
        "nodes": report.nodes,
        "settings": report.settings,
        "seeds_asked": report.seeds_asked,
        "seeds_ended": report.seeds.len(),
        "seeds_failed": report.failed().map(|seed| seed.seed).collect::<Vec<_>>(),
        "interrupted": report.interrupted,
    })
}

/// The results that a path leads to; `None` where it is no result at all.
pub(super) fn read_results(name: &str) -> Result<Option<RunReport>, Failure> {
    // A built-in name wins over a directory that happens to be called so, as it does everywhere.
    if built_in(name).is_some() {
        return Ok(None);
    }
    let path = Path::new(name);
    let path = if path.is_dir() { path.join(super::output::RESULTS) } else { path.to_owned() };
    if path.extension().is_none_or(|extension| extension != "json") {
        return Ok(None);
    }
    let refused = |reason: String| {
        Failure::new(ExitCode::Files, format!("{}: {reason}", path.display()))
            .hint("`murmur sim run SCENARIO --output DIRECTORY` writes results")
    };
    let text = std::fs::read_to_string(&path).map_err(|error| refused(error.to_string()))?;
    let report: RunReport = serde_json::from_str(&text).map_err(|error| refused(format!("no results: {error}")))?;
    if report.format != FORMAT {
        return Err(refused(format!("results of format {}, this murmur reads {FORMAT}", report.format)));
    }
    Ok(Some(report))
}
