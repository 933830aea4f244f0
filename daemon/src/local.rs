//! `murmur local`: several real daemons as processes of this machine, with one merged view.
//!
//! The first daemon founds the swarm, the others join it by its address, exactly as on several machines. Each is a
//! child with its own folder; a child stops when its standard input ends, so none outlives this process, however it
//! ends.

mod against;
mod child;
mod folder;
mod hosts;
mod lender;
mod summary;
mod table;
mod tracking;
mod trial;
mod view;
mod wanted;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use murmur_protocol::RunManifest;
use serde_json::json;
use tokio::sync::mpsc;

use crate::cli::{self, LocalOptions};
use crate::console::{Console, Given, next_commands, note, print_line, quoted, settle, wait_for_no_reader};
use crate::environment;
use crate::failure::{ExitCode, Failure, to_write};
use crate::process::signal::Signals;
use crate::settings::{NodeSettings, as_typed};
use crate::setup::corpus::open_corpus;
use crate::store::{Outline, Run, Series, remember};
use crate::tracking::mlflow;
use child::{Child, Line, Said};
use folder::{check_owner, finished, new_folder, prepared, prune, remove_unused};
pub(crate) use hosts::{Hosts, Rates};
use lender::{Lender, captain_settings};
use summary::Traffic;
pub(crate) use summary::{NodeSummary, Summary};
use trial::Course;
pub(crate) use trial::{Blow, Trial, Tried};
use view::View;
use wanted::{brought, manifest};

/// Lines of children waiting to be shown.
const LINES_MAX: usize = 1024;

/// After this the daemons are ended the hard way. A guess: the last checkpoint of a large model takes minutes on a slow disk.
const STOP_TIMEOUT: Duration = Duration::from_secs(900);

/// The view is drawn this often at most.
const VIEW_PERIOD: Duration = Duration::from_millis(250);

/// Runs the swarm until its run is complete or Ctrl-C.
///
/// # Errors
/// When the run, the data or the folder is wrong, or no daemon comes through.
pub fn run(options: LocalOptions) -> anyhow::Result<()> {
    environment::tell_what_local_daemons_do_not_hear(&cli::command());
    let settings = brought(&options, options.settings.settings())?;
    let manifest = manifest(&options, &settings)?;
    tracking::check(&settings);
    if options.against.is_some() {
        return against::run(&options, &settings, &manifest);
    }
    let has_own_folder = options.directory.is_none();
    let folder = options.directory.clone().unwrap_or_else(|| new_folder(0));
    let ended = run_in(options, &settings, manifest, folder.clone(), Purpose::default())?;
    if has_own_folder {
        prune(&ended.map_or(folder, |ended| ended.folder));
    }
    Ok(())
}

/// Trains a swarm on files as a part of something larger, which tells what came of it. With `twins`, its daemons are those of
/// another swarm's folder, each for itself. `None` where Ctrl-C has ended it.
///
/// # Errors
/// As [`run`].
pub(crate) fn train(
    options: LocalOptions,
    files: Vec<PathBuf>,
    (folder, twins): (&Path, Option<&Path>),
    trial: Trial<'_>,
) -> anyhow::Result<Option<Ended>> {
    let mut settings = NodeSettings::default();
    settings.data.files = files;
    let settings = brought(&options, settings)?;
    let manifest = manifest(&options, &settings)?;
    let purpose = Purpose { series: None, twins: twins.map(Path::to_owned), trial: Some(trial) };
    run_in(options, &settings, manifest, folder.to_owned(), purpose)
}

/// What a swarm is trained for, where that is not itself alone.
#[derive(Default)]
struct Purpose<'hosts> {
    /// The comparison that it belongs to.
    series: Option<Series>,
    /// The folder of another swarm, whose daemons these are without each other.
    twins: Option<PathBuf>,
    /// What it goes through, where somebody else tells what came of it.
    trial: Option<Trial<'hosts>>,
}

/// A swarm that came to its end.
pub(crate) struct Ended {
    folder: PathBuf,
    pub(crate) summary: Summary,
    pub(crate) tried: Tried,
}

/// Runs a swarm in a folder. Returns nothing where Ctrl-C has ended it. Where nothing could begin in a new folder, the folder
/// goes again.
fn run_in(
    options: LocalOptions,
    settings: &NodeSettings,
    manifest: RunManifest,
    folder: PathBuf,
    Purpose { series, twins, trial }: Purpose<'_>,
) -> anyhow::Result<Option<Ended>> {
    check_owner(&folder, &manifest)?;
    // Programs hear of the same daemons, and have the same summary as before.
    if options.format == Console::Text
        && let Some(run) = finished(&folder, options.nodes.into())
    {
        let (base, tokenizer) = (settings.model.base(), settings.data.tokenizer());
        let given = Given { base, tokenizer, files: &settings.data.files, again: "" };
        options.format.show_finished(&run, &manifest, &folder.join("node-0"), &given);
        return Ok(None);
    }
    // Its logs and its run file are those of the daemons that run.
    if Run::open(&folder).is_some_and(|run| run.is_in_use()) {
        return Err(Failure::new(ExitCode::Files, format!("daemons run in {}", folder.display()))
            .hint(format!("murmur stop {}, or choose another folder with --directory", quoted(&folder)))
            .into());
    }
    let is_new = !folder.exists();
    std::fs::create_dir_all(&folder).map_err(|error| {
        Failure::new(ExitCode::Files, format!("cannot write {}: {error}", folder.display()))
            .hint("choose another folder with --directory")
    })?;
    let folder = folder.canonicalize().context("the folder that was just created")?;
    let is_resumed = (0..options.nodes).any(|number| Outline::latest(&folder.join(format!("node-{number}"))).is_some());
    let run_file = folder.join("run.toml");
    let unwritable = |error: std::io::Error| {
        Failure::new(ExitCode::Files, format!("cannot write in {}: {error}", folder.display()))
            .hint(format!("{}, or choose another folder with --directory", to_write(&error)))
    };
    let floor = open_corpus(&manifest, settings, Some(prepared(&folder))).and_then(|corpus| {
        series.map_or(Ok(()), |series| series.mark(&folder)).map_err(unwritable)?;
        std::fs::write(&run_file, manifest.canonical_text()).map_err(unwritable)?;
        Ok(corpus.entropy_rate())
    });
    if floor.is_err() && is_new {
        remove_unused(&folder);
    }
    let floor = floor?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let begin = Instant::now();
    let settings = settings.clone();
    let swarm = Swarm { options, settings, manifest, folder, is_new, is_resumed, twins, trial, run_file, floor, begin };
    runtime.block_on(swarm.run())
}

struct Swarm<'hosts> {
    options: LocalOptions,
    /// Of all daemons.
    settings: NodeSettings,
    manifest: RunManifest,
    folder: PathBuf,
    /// Whether this process has made the folder.
    is_new: bool,
    /// Whether a daemon goes on from a checkpoint.
    is_resumed: bool,
    twins: Option<PathBuf>,
    trial: Option<Trial<'hosts>>,
    run_file: PathBuf,
    floor: Option<f64>,
    begin: Instant,
}

impl Swarm<'_> {
    /// What came of it; nothing where Ctrl-C has ended it.
    async fn run(self) -> anyhow::Result<Option<Ended>> {
        let (lines, mut heard) = mpsc::channel(LINES_MAX);
        // From now on: without it the first Ctrl-C would leave processes behind that begin or are still ending.
        let mut signals = Signals::new().or_end_of_stdin(self.options.until_stdin_closes);
        wait_for_no_reader();
        let mut lenders = Vec::new();
        tokio::select! {
            started = self.start_lenders(&mut lenders) => started?,
            () = signals.first() => {
                for lender in lenders {
                    lender.kill().await;
                }
                if self.is_new {
                    remove_unused(&self.folder);
                }
                note("Ctrl-C: no daemon had begun, and its helpers have ended");
                return Ok(None);
            }
        }
        let mut children = vec![self.spawn(0, None, &lenders, &lines)?];
        let counts = (usize::from(self.options.nodes), lenders.len());
        let view = View::new(self.options.format, self.floor, counts, &self.manifest);
        let mut traffic = Traffic::new(&self.manifest.gossip);
        let mut ticks = tokio::time::interval(VIEW_PERIOD);
        let founder = tokio::select! {
            founder = self.wait_for_founder(&mut children, &mut heard) => founder?,
            () = signals.first() => {
                self.stop(&mut children, &mut heard, &view, &mut signals).await;
                end_all(lenders).await;
                // Who trains it as a part of something larger says that it was interrupted.
                return if self.trial.is_some() { Ok(None) } else { self.conclude(&children, &traffic, &view).map(|_| None) };
            }
        };
        let founder = Some(founder.as_str()).filter(|_| self.twins.is_none());
        for number in 1..usize::from(self.options.nodes) {
            children.push(self.spawn(number, founder, &[], &lines)?);
        }
        let mut is_interrupted = false;
        let mut course = Course::new(self.trial.as_ref());
        drop(lines);
        if self.options.directory.is_some() && self.options.format == Console::Text {
            remember(&self.folder);
        }
        let are_elsewhere = self.trial.as_ref().is_some_and(|trial| trial.hosts.is_some());
        view.show_beginning(&self.manifest, (&children, are_elsewhere), &self.folder);
        if let Some(place) = mlflow::place(&self.settings.mlflow, &self.manifest) {
            view.say(&format!("MLflow has a run of each daemon in {place}"));
        }
        loop {
            tokio::select! {
                line = heard.recv() => match line {
                    Some(line) => {
                        self.take_in(line, &mut children, &view);
                        course.observe(&children);
                    }
                    None => break,
                },
                _ = ticks.tick() => {
                    traffic.observe(&children);
                    view.draw(&children);
                    if !course.advance(&mut children, &view)? {
                        view.say("its time is over, so every daemon is stopped");
                        break;
                    }
                }
                () = signals.first() => {
                    is_interrupted = true;
                    view.say("Ctrl-C: every daemon leaves the swarm and writes a last checkpoint");
                    break;
                }
            }
            if children.iter().all(Child::is_done) {
                break;
            }
        }
        self.stop(&mut children, &mut heard, &view, &mut signals).await;
        end_all(lenders).await;
        view.draw_last(&children);
        if is_interrupted && self.trial.is_some() {
            return Ok(None);
        }
        let summary = self.conclude(&children, &traffic, &view)?;
        let tried = course.end();
        Ok((!is_interrupted).then_some(Ended { folder: self.folder.clone(), summary, tried }))
    }

    /// The captain's helpers, one after another: each measures the machine as it begins.
    async fn start_lenders(&self, lenders: &mut Vec<Lender>) -> anyhow::Result<()> {
        for number in 0..self.helpers() {
            let lender = Lender::start(&self.folder.join(format!("helper-{number}")), self.threads())?;
            lenders.push_mut(lender).listen().await?;
        }
        Ok(())
    }

    fn helpers(&self) -> u8 {
        self.options.helpers.unwrap_or(0)
    }

    /// Of each process.
    fn threads(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let processes = usize::from(self.options.nodes) + usize::from(self.helpers());
        self.options.threads.unwrap_or_else(|| (cores / processes).max(1))
    }

    fn spawn(
        &self,
        number: usize,
        founder: Option<&str>,
        helpers: &[Lender],
        lines: &mpsc::Sender<Line>,
    ) -> anyhow::Result<Child> {
        let threads = self.threads();
        let settings = match (&self.trial, helpers.len()) {
            (Some(trial), _) => trial.settings(),
            (None, 0) => String::new(),
            (None, count) => captain_settings(&self.manifest, count, threads),
        };
        let directory = self.folder.join(format!("node-{number}"));
        if let Some(twins) = &self.twins {
            against::share_identity(&twins.join(format!("node-{number}")), &directory)?;
        }
        let hosts = self.trial.as_ref().and_then(|trial| trial.hosts);
        let address = hosts.map_or("127.0.0.1".to_owned(), |_| Hosts::address(number));
        let mut own = self.settings.clone();
        own.training.threads = threads;
        own.network.listen = vec![format!("/ip4/{address}/tcp/0")];
        own.data.cache = prepared(&self.folder);
        own.checkpoint.directory.clone_from(&directory);
        // Where the run shares its data, the founder's files reach the others through the swarm.
        if founder.is_some() && self.manifest.data.share {
            own.data.files.clear();
        }
        // In a comparison what ends the run is the swarm's progress, as in the simulator: who came late has taken over what others had
        // learned, and has no more to do.
        let pace = self.trial.as_ref().map(|trial| trial.paces[number % trial.paces.len()].typed());
        if pace.is_none() && self.options.against.is_none() {
            own.training.steps = self.manifest.schedule.total_steps;
        }
        let mut arguments: Vec<OsString> = match founder {
            None => vec!["start".into(), self.run_file.clone().into()],
            Some(address) => ["join", "--bootstrap", address].map(OsString::from).to_vec(),
        };
        // The founder's dashboard is where that of a single daemon is, unless another has that port.
        let status = if founder.is_none() { "auto" } else { "127.0.0.1:0" };
        arguments.extend(["--status-address", status, "--format", "json", "--until-stdin-closes"].map(OsString::from));
        arguments.extend(pace.iter().flat_map(|pace| ["--pace", pace]).map(OsString::from));
        arguments.extend(as_typed(&own));
        // Their lines have a secret, which everybody on the machine could read among a process's arguments.
        let helpers: Vec<&str> = helpers.iter().map(|helper| helper.line.as_str()).collect();
        Child::spawn(number, &directory, (&arguments, &settings, &helpers.join(",")), hosts, lines.clone())
    }

    /// The founder's address, with its peer id.
    async fn wait_for_founder(
        &self,
        children: &mut [Child],
        heard: &mut mpsc::Receiver<Line>,
    ) -> anyhow::Result<String> {
        let founder = &mut children[0];
        let ready = async {
            while let Some(line) = heard.recv().await {
                self.pass_on(&line);
                founder.take_in(line.said);
                if let Some(ready) = &founder.ready {
                    return ready.addresses.first().cloned();
                }
                if founder.has_ended {
                    return None;
                }
            }
            None
        };
        // One that reads a large base or checkpoint first takes minutes; one that cannot start ends.
        match ready.await {
            Some(address) => Ok(address),
            None => Err(self.no_daemon(&mut children[0]).await),
        }
    }

    fn take_in(&self, line: Line, children: &mut [Child], view: &View) {
        let Some(child) = children.get_mut(line.child) else { return };
        self.pass_on(&line);
        let expected = child.is_stopping;
        child.take_in(line.said);
        if child.has_ended && !expected {
            view.say(&format!(
                "node {} has ended by itself; the others go on (its log: {})",
                line.child,
                child.log.display()
            ));
        }
    }

    /// With `--format json` every line of every daemon is printed, the founder's first ones, too.
    fn pass_on(&self, line: &Line) {
        if self.options.format == Console::Json
            && let Some(object) = line.said.as_json()
        {
            print_line(&json!({ "node": line.child, "line": object }).to_string());
        }
    }

    /// Lets every daemon leave, then waits for the last lines.
    async fn stop(&self, children: &mut [Child], heard: &mut mpsc::Receiver<Line>, view: &View, signals: &mut Signals) {
        children.iter_mut().for_each(Child::stop);
        let deadline = tokio::time::Instant::now() + STOP_TIMEOUT;
        let again = signals.second(|| ());
        tokio::pin!(again);
        while children.iter().any(|child| !child.has_ended) {
            tokio::select! {
                line = heard.recv() => match line {
                    Some(line) => self.take_in(line, children, view),
                    None => break,
                },
                () = &mut again => break,
                () = tokio::time::sleep_until(deadline) => break,
            }
        }
        for child in children.iter_mut() {
            child.end().await;
        }
    }

    fn conclude(&self, children: &[Child], traffic: &Traffic, view: &View) -> anyhow::Result<Summary> {
        if children.iter().all(|child| child.last.is_none()) {
            let failure = Failure::new(ExitCode::Failure, "no daemon has left in order, so there is nothing to sum up");
            return Err(failure.hint(format!("their logs are in {}", self.folder.display())).into());
        }
        let summary = Summary::new(children, traffic, self.begin.elapsed());
        if self.trial.is_some() {
            return Ok(summary);
        }
        // It is not what is lost on somebody who reads slowly.
        settle();
        if self.options.format == Console::Json {
            print_line(&json!({ "summary": summary }).to_string());
            return Ok(summary);
        }
        view.show_summary(&summary, self.is_resumed);
        if let Some((number, text)) = summary::sample(children, self.settings.model.base()) {
            view.show_sample(number, &text);
        }
        if let Some(child) = children.iter().find(|child| child.last.is_some()) {
            note("next:");
            let NodeSettings { model, data, .. } = &self.settings;
            let (base, tokenizer) = (model.base(), data.tokenizer());
            let given = Given { base, tokenizer, files: &data.files, again: "" };
            for command in next_commands(&child.directory, &self.manifest, &given) {
                note(&format!("  {command}"));
            }
            note(&format!("  murmur report {}", quoted(&self.folder)));
        }
        Ok(summary)
    }

    /// The founder's own reason, remedy and exit code. Where it gives one, a folder without a node has nothing more to tell.
    async fn no_daemon(&self, child: &mut Child) -> anyhow::Error {
        let log = std::fs::read_to_string(&child.log).unwrap_or_default();
        let said = |prefix: &str| log.lines().find_map(|line| line.strip_prefix(prefix)).map(str::to_owned);
        let reason = said("error: ");
        let ended = child.exit_code().await;
        if self.is_new && reason.is_some() && ended.is_some() {
            remove_unused(&self.folder);
        }
        let reason = reason.unwrap_or_else(|| "it gives no reason".to_owned());
        let code = ended.map_or(ExitCode::Failure, ExitCode::of);
        let hint = said("hint: ").unwrap_or_else(|| format!("their logs are in {}", self.folder.display()));
        Failure::new(code, format!("the daemons did not start: {reason}")).hint(hint).into()
    }
}

/// After their captain, which lets them go.
async fn end_all(lenders: Vec<Lender>) {
    for lender in lenders {
        lender.end().await;
    }
}

impl Said {
    fn as_json(&self) -> Option<&serde_json::Value> {
        match self {
            Said::Object(object) => Some(object),
            Said::Ended => None,
        }
    }
}

#[cfg(test)]
mod tests;
