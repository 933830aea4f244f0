//! `murmur compare --real`: the methods that daemons have, trained by real daemons of this machine as well, where it can on hosts
//! of their own with the links of the comparison, and through its faults.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use murmur_network::peer_id;
use murmur_protocol::RunManifest;
use murmur_sim::compare::report::{Figures, Lines, Measured, Real};
use murmur_sim::compare::{Fault, Kind, Method, Results, STRAGGLER, Setting};

use crate::cli::{CompareOptions, LocalOptions};
use crate::commands::node::identity_at;
use crate::console::figures::counted;
use crate::console::note;
use crate::failure::{ExitCode, Failure};
use crate::limits::pace::Pace;
use crate::local::{self, Blow, Ended, Hosts, NodeSummary, Rates, Summary, Trial, Tried};

/// The folder of all swarms in that of the comparison; each may be read with `murmur report`.
const FOLDER: &str = "real";

/// Evaluations of each daemon: as many as a simulated curve has points.
const EVALUATIONS: u64 = 16;

/// A swarm that takes longer than the simulated one by this factor, and by what follows, is ended. Guesses.
const TIME_FACTOR_MAX: f64 = 4.0;
const TIME_MORE: Duration = Duration::from_secs(90);

/// One swarm.
struct Job {
    method: Method,
    fault: Fault,
    manifest: RunManifest,
}

impl Job {
    fn name(&self) -> String {
        swarm_name(self.method, self.fault)
    }
}

/// Of a swarm's folder and its run.
fn swarm_name(method: Method, fault: Fault) -> String {
    match fault {
        Fault::None => method.name.to_owned(),
        fault => format!("{}-{}", method.name, fault.name()),
    }
}

/// Trains by every method that daemons have, at the learning rate that was its best in the simulator, with the first seed, and then
/// through the faults. Alone are those of another swarm, so that they read the same data in the same order; by themselves they
/// are not trained, and what goes wrong elsewhere costs them nothing. Ctrl-C leaves out the swarm under way and those after it, and so
/// does a failure, which is told beside what was measured before.
pub(super) fn run(
    results: &Results,
    figures: &Figures,
    options: &CompareOptions,
    interruption: &AtomicBool,
) -> (Real, anyhow::Result<()>) {
    let base = &results.plan.base;
    let rates = Rates { up: base.links.up_bytes_per_second, down: base.links.down_bytes_per_second };
    let (hosts, lines) = match Hosts::new(base.nodes, rates) {
        Ok(hosts) => (Some(hosts), Lines::Shaped),
        Err(reason) => (None, Lines::Loopback(reason.to_string())),
    };
    let mut real = Real { lines, measured: Vec::new(), target: figures.target, left_out: 0 };
    note(&real.conditions(results));
    let jobs = jobs(results, figures, hosts.is_some());
    let seconds: f64 = jobs.iter().map(|job| simulated_seconds(results, job.method, job.fault)).sum();
    note(&format!("{}, {seconds:.0} s as simulated", counted(jobs.len() as u64, "real swarm")));
    let ended = train_all(results, options, (&jobs, hosts.as_ref()), interruption, &mut real.measured);
    real.left_out = jobs.len() - real.measured.len();
    // Real daemons may miss the least loss that all simulated nodes reached.
    real.target = options.target.unwrap_or_else(|| real.reached_by_all(figures.target));
    (real, ended)
}

/// Trains one swarm after another, until Ctrl-C or a failure.
fn train_all(
    results: &Results,
    options: &CompareOptions,
    (jobs, hosts): (&[Job], Option<&Hosts>),
    interruption: &AtomicBool,
    all: &mut Vec<Measured>,
) -> anyhow::Result<()> {
    let unwritable = |error: std::io::Error| {
        Failure::new(ExitCode::Files, format!("cannot write in {}: {error}", options.output.display()))
            .hint("choose another folder with --output")
    };
    let folder = options.output.join(FOLDER);
    // Of an earlier comparison, in a folder that is known to be this command's.
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(unwritable)?;
    }
    std::fs::create_dir_all(&folder).map_err(unwritable)?;
    let mut calm = None;
    for (number, job) in jobs.iter().enumerate() {
        if interruption.load(Ordering::Relaxed) {
            break;
        }
        let own = folder.join(job.name());
        note(&format!("real swarm {} of {}: {}", number + 1, jobs.len(), job.name()));
        std::fs::write(own.with_extension("toml"), job.manifest.canonical_text()).map_err(unwritable)?;
        let twins = calm.take().filter(|_| job.method.kind == Kind::Alone);
        let Some(measured) = train(results, options, hosts, job, (&own, twins.as_deref()))? else { break };
        all.push(measured);
        calm = Some(own);
    }
    Ok(())
}

/// Trains one swarm in a folder, or the twins of another one's daemons; `None` where Ctrl-C has ended it.
fn train(
    results: &Results,
    options: &CompareOptions,
    hosts: Option<&Hosts>,
    job: &Job,
    (folder, twins): (&Path, Option<&Path>),
) -> anyhow::Result<Option<Measured>> {
    let files = options.data.iter().cloned().collect();
    let daemons = LocalOptions {
        run: Some(folder.with_extension("toml")),
        nodes: options.nodes as u16,
        directory: Some(folder.to_owned()),
        ..LocalOptions::default()
    };
    let base = &results.plan.base;
    if twins.is_none() {
        name_in_order(folder, base.nodes)?;
    }
    let seconds = TIME_FACTOR_MAX * simulated_seconds(results, job.method, job.fault);
    let limit = Duration::from_secs_f64(seconds) + TIME_MORE;
    let trial = Trial { hosts, limit, ..trial(base, job.fault) };
    let ended = local::train(daemons, files, (folder, twins), trial)?;
    Ok(ended.map(|Ended { summary, tried, .. }| measured(job.method, job.fault, (&summary, tried), base)))
}

/// Makes identities whose order is that of the nodes. Members take their ranks by it, so that here, too, the first node is a star's
/// aggregator and the last one is not.
fn name_in_order(folder: &Path, nodes: usize) -> anyhow::Result<()> {
    let file = |node: usize| folder.join(format!("node-{node}")).join("identity.key");
    let mut identities = Vec::new();
    for node in 0..nodes {
        std::fs::create_dir_all(folder.join(format!("node-{node}")))?;
        let peer = peer_id(&identity_at(&file(node))?);
        identities.push((peer, std::fs::read(file(node))?));
    }
    identities.sort();
    for (node, (_, identity)) in identities.iter().enumerate() {
        std::fs::write(file(node), identity)?;
    }
    Ok(())
}

/// Whether daemons train by it without others beside them: alone they are twins of those.
pub(super) fn is_real(method: &Method) -> bool {
    method.kind != Kind::Alone && method.kind.of_daemons().is_some()
}

/// All without a fault, alone last, and then with those that can be had.
fn jobs(results: &Results, figures: &Figures, has_hosts: bool) -> Vec<Job> {
    let (base, faults) = (&results.plan.base, &results.plan.faults);
    let job = |method: Method, rate: f64, fault| {
        Some(Job { method, fault, manifest: manifest(base, fault, (method, rate))? })
    };
    let rows = || figures.rows.iter();
    let mut jobs: Vec<Job> = rows().filter_map(|row| job(row.method, row.learning_rate, Fault::None)).collect();
    jobs.sort_by_key(|job| job.method.kind == Kind::Alone);
    if jobs.first().is_some_and(|job| job.method.kind == Kind::Alone) {
        // They are twins of daemons that are not there.
        return Vec::new();
    }
    for fault in faults.iter().filter(|fault| has_hosts || **fault != Fault::Partition) {
        let together = rows().filter(|row| row.method.kind != Kind::Alone);
        jobs.extend(together.filter_map(|row| job(row.method, row.learning_rate, *fault)));
    }
    jobs
}

/// How long it took in the simulator, no less than the steps take.
fn simulated_seconds(results: &Results, method: Method, fault: Fault) -> f64 {
    let base = &results.plan.base;
    let steps = base.step_time.as_secs_f64() * base.steps as f64;
    let ended = |fault| results.with(&method, fault).first().map_or(0.0, |run| run.end().seconds);
    steps.max(ended(Fault::None)).max(ended(fault))
}

/// What the simulated nodes go through, too.
fn trial(base: &Setting, fault: Fault) -> Trial<'static> {
    let last = base.nodes - 1;
    let begins = base.fault_at();
    let mut paces: Vec<Pace> =
        (0..base.nodes).map(|node| Pace { step: base.step_time_of(node), later: None }).collect();
    let blows = match fault {
        Fault::None => Vec::new(),
        Fault::Kill => vec![(begins, Blow::Kill(last))],
        Fault::KillFirst => vec![(begins, Blow::Kill(0))],
        Fault::Straggler => {
            paces[last].later = Some((begins, paces[last].step.mul_f64(STRAGGLER)));
            Vec::new()
        }
        Fault::Partition => {
            let heals = begins + base.partition_lasts();
            vec![(begins, Blow::CutOff(base.cut_off())), (heals, Blow::CutOff(Vec::new()))]
        }
    };
    let evaluate_every = base.steps.div_ceil(EVALUATIONS);
    Trial { hosts: None, paces, evaluate_every, blows, limit: Duration::MAX }
}

/// The run of daemons that train as the simulated nodes do; `None` for a method that they do not have.
fn manifest(base: &Setting, fault: Fault, (method, learning_rate): (Method, f64)) -> Option<RunManifest> {
    let (gossip, synchronous) = method.kind.of_daemons()?;
    let trainer = &base.trainer;
    let mut manifest = RunManifest {
        model: trainer.model.clone().into(),
        optimizer: trainer.optimizer.at_rate(learning_rate),
        schedule: trainer.schedule.clone(),
        gossip,
        synchronous,
        ..RunManifest::default()
    };
    manifest.run.name = swarm_name(method, fault);
    manifest.run.seed = base.seed;
    manifest.data.validation_sequences = trainer.validation_sequences;
    manifest.drop_needless_matching();
    if manifest.synchronous.is_fixed() {
        // As the simulated ones they all begin at the first step, but for those without whom the others are to go on.
        let left_out = match fault {
            Fault::Kill | Fault::KillFirst => 1,
            Fault::Partition => base.cut_off().len(),
            Fault::None | Fault::Straggler => 0,
        };
        manifest.synchronous.members_min = (base.nodes - left_out).max(1) as u32;
    }
    Some(manifest)
}

fn measured(method: Method, fault: Fault, (summary, tried): (&Summary, Tried), base: &Setting) -> Measured {
    let nodes = &summary.nodes;
    let steps_per_second = |node: &NodeSummary| match node.seconds_in_training {
        0.0 => 0.0, // it took none
        seconds => node.steps as f64 / seconds,
    };
    let killed = usize::from(matches!(fault, Fault::Kill | Fault::KillFirst));
    Measured {
        method,
        fault,
        losses: nodes.iter().filter_map(|node| node.validation_loss).collect(),
        sent_bytes: nodes.iter().map(|node| node.bytes_sent).collect(),
        steps_per_second: nodes.iter().map(steps_per_second).collect(),
        is_complete: tried.is_whole && nodes.len() + killed == base.nodes && nodes.iter().all(|node| node.is_completed),
        curve: tried.curve,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use murmur_sim::compare::{ALL, LEARNING_RATES};

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::commands::compare::wanted;

    #[test]
    fn the_order_of_identities_is_that_of_the_nodes() {
        let folder = tempfile::tempdir().expect("a folder");
        name_in_order(folder.path(), 6).expect("written");
        let peer =
            |node| identity_at(&folder.path().join(format!("node-{node}/identity.key"))).map(|key| peer_id(&key));
        let peers: Vec<_> = (0..6).map(|node| peer(node).expect("an identity")).collect();
        assert!(peers.is_sorted_by(|one, next| one < next), "{peers:?}");
    }

    /// Every daemon that leaves in order tells a report, also where it was stopped or its training failed.
    #[test]
    fn a_swarm_of_which_one_daemon_did_not_come_to_the_end_is_unfinished() {
        let Command::Compare(options) = Cli::parse_from(["murmur", "compare", "--real"]).command else { panic!() };
        let base = wanted::plan(&options).expect("a plan").base;
        let ring = Method::named("ring").expect("a method");
        let is_complete = |fault, completed: usize, stopped: usize, is_whole| {
            let node = |node| NodeSummary { node, is_completed: node < completed, ..NodeSummary::default() };
            let summary = Summary { nodes: (0..completed + stopped).map(node).collect(), ..Summary::default() };
            let tried = Tried { is_whole, ..Tried::default() };
            measured(ring, fault, (&summary, tried), &base).is_complete
        };
        assert!(is_complete(Fault::None, 8, 0, true) && is_complete(Fault::Kill, 7, 0, true));
        assert!(!is_complete(Fault::None, 8, 0, false), "not all has happened, or its time was over");
        assert!(!is_complete(Fault::None, 7, 1, true), "one was stopped, or could not train");
        assert!(!is_complete(Fault::None, 7, 0, true), "one did not leave in order");
    }

    #[test]
    fn a_daemon_that_took_no_step_has_a_speed_of_zero() {
        let Command::Compare(options) = Cli::parse_from(["murmur", "compare", "--real"]).command else { panic!() };
        let base = wanted::plan(&options).expect("a plan").base;
        let node = |steps, seconds_in_training| NodeSummary { steps, seconds_in_training, ..NodeSummary::default() };
        let summary = Summary { nodes: vec![node(0, 0.0), node(10, 4.0)], ..Summary::default() };
        let ring = Method::named("ring").expect("a method");
        let measured = measured(ring, Fault::None, (&summary, Tried::default()), &base);
        assert_eq!(measured.steps_per_second, [0.0, 2.5]);
    }

    #[test]
    fn every_method_that_daemons_have_is_a_run_that_they_take() {
        let Command::Compare(options) = Cli::parse_from(["murmur", "compare", "--real"]).command else { panic!() };
        let plan = wanted::plan(&options).expect("a plan");
        let mut real = 0;
        for method in ALL {
            let with_rate = |rate: &f64| manifest(&plan.base, Fault::Kill, (method, *rate));
            for manifest in LEARNING_RATES.iter().filter_map(with_rate) {
                manifest.validate().unwrap_or_else(|error| panic!("{}: {error}", method.name));
                assert_eq!(RunManifest::from_text(&manifest.canonical_text()), Ok(manifest), "{}", method.name);
                real += 1;
            }
        }
        assert!(real >= 9 * LEARNING_RATES.len(), "{real}");
    }

    /// A run without a fault that began without some of its members would be slower at first for no reason of the method's.
    #[test]
    fn a_swarm_begins_with_all_daemons_but_those_that_its_own_fault_takes_away() {
        let Command::Compare(options) = Cli::parse_from(["murmur", "compare", "--real"]).command else { panic!() };
        let base = wanted::plan(&options).expect("a plan").base;
        let ring = Method::named("ring").expect("a method");
        let of = |fault| manifest(&base, fault, (ring, 8e-3)).expect("daemons have it");
        let least = [Fault::None, Fault::Straggler, Fault::Kill, Fault::KillFirst, Fault::Partition]
            .map(|fault| of(fault).synchronous.members_min);
        assert_eq!(least, [8, 8, 7, 7, 6]);
        // Their journals, pages and dashboards say which swarm they are of.
        assert_eq!([Fault::None, Fault::Kill].map(|fault| of(fault).run.name), ["ring", "ring-kill"]);
    }
}
