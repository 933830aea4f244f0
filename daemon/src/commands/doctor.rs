//! `murmur doctor`: will this machine work, and what will it contribute?

use std::path::Path;
use std::time::Instant;

use murmur_network::Keypair;
use murmur_protocol::RunManifest;
use murmur_training::privacy::NotPrivate;
use murmur_training::{DataPlace, PretrainedBase};
use serde_json::json;
use tokio::runtime::Runtime;

use super::join::{self, Reached};
use super::node;
use super::start::{directory_of, run_to_start};
use crate::cli::DoctorOptions;
use crate::console::{Console, note, print_fitted, print_line, quoted};
use crate::daemon::network_config;
use crate::doctor::{self, Finding, Found, Health, Measured};
use crate::failure::{ExitCode, Failure};
use crate::limits::memory_check::checkpoint_bytes;
use crate::remote::{self, Allowance};
use crate::settings::NodeSettings;
use crate::setup::base_model;
use crate::setup::corpus::{built_in_run, check_statistics, corpus_failure, open_corpus};
use crate::setup::privacy::{check_run, refusal};
use crate::store::DataDirectory;
use crate::team::captain;

/// Where the text of a finding begins.
const TEXT_COLUMNS: usize = 21;

/// Where that of the verdict begins.
const VERDICT_COLUMNS: usize = 12;

pub(super) fn run(options: &DoctorOptions) -> anyhow::Result<()> {
    let mut settings = node::machine_settings(&options.machine)?;
    if !options.team.is_empty() {
        settings.training.helpers.clone_from(&options.team);
    }
    // A line that is none, and a directory that no daemon takes, are found before anything is measured.
    captain::lines(&settings)?;
    let configured = settings.checkpoint.directory.clone();
    if !configured.as_os_str().is_empty() {
        DataDirectory::check_not_lent(&configured)?;
        DataDirectory::claimed(&configured)?;
    }
    let mut findings = Vec::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;

    let tell = |text: &str| {
        if options.machine.format != Some(Console::Json) {
            note(text);
        }
    };
    if let Some(file) = options.ticket.as_deref().filter(|ticket| Path::new(ticket).is_file()) {
        return Err(Failure::new(ExitCode::CommandLine, format!("{file} is a file, and no ticket"))
            .hint(format!("a run file goes after --run: murmur doctor --run {}", quoted(Path::new(file))))
            .into());
    }
    if options.run.is_some() {
        settings.network.bootstrap.clear(); // of the environment or the node file
    }
    let mut destination = join::destination(options.ticket.as_deref(), &settings)?;
    let (manifest, found) = match destination.bootstrap.is_empty() {
        true => {
            let manifest = own_run(options, &mut settings)?;
            let owner = check_owner(&manifest, &settings);
            findings.extend(owner.err().map(|failure| Finding::of_failure("disk", &failure)));
            let config = network_config(Keypair::generate_ed25519(), &manifest, &settings, None)?;
            runtime.block_on(doctor::check_ports(config, &mut findings));
            findings.push(runtime.block_on(doctor::check_clock(None)));
            (manifest, None)
        }
        false => {
            tell("asking      a member for its run");
            let begin = Instant::now();
            let Reached { manifest, secret, clock } = destination.fetch(&settings)?;
            let text = format!("a member of {} answers, in {} ms", manifest.run.name, begin.elapsed().as_millis());
            findings.push(Finding::good("ticket", text));
            if !configured.as_os_str().is_empty() {
                DataDirectory::check_owner_of(&configured, &manifest)?;
            }
            findings.push(runtime.block_on(doctor::check_clock(Some(clock))));
            let allowance = Allowance::capped(&settings.limits);
            remote::bring(&mut settings, &manifest, false, allowance)?;
            base_model::take_tokenizer(&mut settings, &manifest)?;
            let parameters = murmur_training::trained_layout(&manifest).parameters();
            let config = network_config(Keypair::generate_ed25519(), &manifest, &settings, secret)?;
            let seconds = doctor::WATCHING.as_secs();
            tell(&format!("watching    the swarm of {} for {seconds} s, as a joiner meets it", manifest.run.name));
            let asking = doctor::ask_swarm(config, (&manifest, parameters), &destination.bootstrap, &mut findings);
            let found: Option<Found> = runtime.block_on(asking);
            (manifest, found)
        }
    };
    // Held while the machine is measured: the rows of a table take memory that training does not have.
    let mut corpus = None;
    if manifest.data.share && settings.data.files.is_empty() {
        findings.push(Finding::good("data", "comes from the swarm".to_owned()));
        if settings.privacy.is_on() {
            findings.push(Finding::of_failure("privacy", &refusal(&NotPrivate::Shared)));
        }
    } else {
        let parameters = murmur_training::trained_layout(&manifest).parameters();
        match open_corpus(&manifest, &settings, None) {
            Ok(opened) => {
                findings.extend(doctor::check_privacy(&manifest, &settings, &opened, parameters));
                corpus = Some(opened);
            }
            Err(failure) => findings.push(Finding::of_failure("data", &failure)),
        }
    }
    match crate::setup::base_model::inspected(&manifest, &settings) {
        Ok(base) => findings.extend(base.map(|base| Finding::good("base", base))),
        Err(failure) => findings.push(Finding::of_failure("base", &failure)),
    }
    tell("measuring   some steps of the run's model on this machine");
    let measured = machine(&manifest, &settings, &runtime, &mut findings);
    drop(corpus);
    let megabits = found.as_ref().and_then(|found| found.megabits);
    findings.extend(measured.as_ref().map(|measured| doctor::judge_averaging(measured, megabits)));
    let checkpoint = checkpoint_bytes(&manifest, settings.training.moment_bits == 8);
    findings.push(doctor::check_storage(&directory_of(&manifest, &settings), checkpoint, settings.checkpoint.keep));
    let verdict = doctor::verdict((&manifest, &settings), measured.as_ref(), found.as_ref(), &findings);

    if options.machine.format == Some(Console::Json) {
        print_line(&json!({ "findings": findings, "verdict": verdict }).to_string());
    } else {
        findings.iter().for_each(show);
        print_fitted(&format!("verdict     {}", verdict.text), VERDICT_COLUMNS);
    }
    if verdict.fit {
        return Ok(());
    }
    Err(Failure::new(code(&findings), "this machine cannot take part yet").hint("each problem has its fix").into())
}

/// What this machine can do with the run's model, alone or, where that does not fit it, in a team with its helpers.
fn machine(
    manifest: &RunManifest,
    settings: &NodeSettings,
    runtime: &Runtime,
    findings: &mut Vec<Finding>,
) -> Option<Measured> {
    let mut alone = Vec::new();
    let measured = doctor::check_machine(manifest, settings, &mut alone);
    if settings.training.helpers.is_empty() {
        findings.append(&mut alone);
        return measured;
    }
    let mut of_team = Vec::new();
    let in_team = doctor::check_team((manifest, settings), measured.as_ref(), runtime, &mut of_team);
    // What does not fit here alone is no problem where a team has room for it.
    alone.retain(|finding| in_team.is_none() || finding.health != Health::Problem);
    findings.append(&mut alone);
    findings.append(&mut of_team);
    measured.or_else(|| {
        let tokens_per_second = in_team?;
        let tokens = f64::from(manifest.optimizer.batch_sequences) * f64::from(manifest.model.context());
        let parameters = murmur_training::trained_layout(manifest).parameters();
        Some(Measured { parameters, step_seconds: tokens / tokens_per_second, tokens_per_second })
    })
}

/// Whether `murmur start` may begin a run in its place on this machine, as far as is known before it has the founder and the shards.
fn check_owner(manifest: &RunManifest, settings: &NodeSettings) -> Result<(), Failure> {
    let (directory, mut manifest) = (directory_of(manifest, settings), manifest.clone());
    if let Some(claimed) = DataDirectory::claimed(&directory)? {
        if manifest.run.founder.is_empty() {
            manifest.run.founder = claimed.run.founder;
        }
        if manifest.data.share && manifest.data.shards.is_empty() {
            manifest.data = claimed.data;
        }
        if let Some(base) = settings.model.base().filter(|_| manifest.base.digest.is_empty()) {
            // What cannot be read is another finding.
            manifest.base.digest = PretrainedBase::digest_of(base).unwrap_or(claimed.base.digest);
        }
    }
    DataDirectory::check_owner_of(&directory, &manifest)
}

/// That with which a daemon would end, where all problems have the same.
fn code(findings: &[Finding]) -> ExitCode {
    let mut codes = findings.iter().filter(|finding| finding.health == Health::Problem).map(|finding| finding.code);
    let first = codes.next().unwrap_or(ExitCode::Failure);
    if codes.all(|code| code == first) { first } else { ExitCode::Failure }
}

fn show(finding: &Finding) {
    let health = match finding.health {
        Health::Good => "ok",
        Health::Warning => "warning",
        Health::Problem => "problem",
    };
    print_fitted(&format!("{:<11} {health:<8} {}", finding.check, finding.text), TEXT_COLUMNS);
    if !finding.fix.is_empty() {
        print_fitted(&format!("{:<11} {:<8} {}", "", "fix:", finding.fix), TEXT_COLUMNS);
    }
}

/// The run that this machine would found or resume; what of it is remote is loaded.
fn own_run(options: &DoctorOptions, settings: &mut NodeSettings) -> Result<RunManifest, Failure> {
    let (mut manifest, is_built_in) = run_to_start(options.run.as_deref(), settings)?;
    let allowance = Allowance::capped(&settings.limits);
    remote::bring(settings, &manifest, true, allowance)?;
    if is_built_in {
        manifest = built_in_run(settings); // its base is on this machine now
    }
    base_model::take_tokenizer(settings, &manifest)?;
    if is_built_in || options.run.is_some() {
        manifest = base_model::described(remote::describe(manifest, settings)?, settings)?;
    }
    check_statistics(&options.statistics)?;
    // As `murmur start` would found it; where that cannot be private, a finding says so.
    let place = DataPlace {
        statistics: options.statistics.clone(),
        private: settings.privacy.is_on() && check_run(&manifest, settings).is_ok(),
        ..settings.data.place(None)
    };
    place.complete(manifest).map_err(|error| corpus_failure(&error))
}
