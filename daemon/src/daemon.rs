//! One daemon from start to end: puts the drivers together, runs the engine, takes everything down in order.

pub mod blocking;
mod configured;
mod double;
pub mod finishing;
pub(crate) mod invitation;
mod leaving;
mod length;
mod networking;
mod observing;
pub(crate) mod ports;
mod prepared;
mod ready;
mod recording;
mod regular;
pub(crate) mod stop;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use murmur_network::{Keypair, Multiaddr, Traffic};
use murmur_protocol::{Bootstrap, Node, RunManifest, Secret, Time, bounds};
use murmur_training::PretrainedBase;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinHandle};

use crate::console::{Console, Given, next_commands, note};
use crate::daemon::blocking::Blocker;
use crate::daemon::finishing::Finisher;
use crate::daemon::invitation::Invitation;
use crate::drivers::{DataDriver, Pages, ShelfParts, StatusServer, Trainer, Workers};
use crate::engine::{Channels, Engine, Picture, Recorder, Stopped};
use crate::failure::{ExitCode, Failure};
use crate::limits::pace::Pace;
use crate::limits::rest::Rest;
use crate::limits::stay::{Stay, StayFacts};
use crate::observe::report::NodeReport;
use crate::observe::source::record_events;
use crate::process::background;
use crate::process::service_manager::ServiceManager;
use crate::settings::{AfterCompletion, NodeSettings};
use crate::store::{Announcement, CheckpointWriter, DataDirectory, RunningDaemon, newest_checkpoint};
use crate::team::captain::Helpers;
use crate::web::About;
use configured::{node_config, trainer_settings};
use double::watch_for_double;
use leaving::Hurry;
pub use length::AskedLength;
use length::{finish_after, length};
pub(crate) use networking::network_config;
use networking::start_network;
use observing::{Observing, Teller};
use prepared::{Prepared, prepare};
pub use ready::Ready;
use regular::{Reporter, invitation, invite_regularly, keep_the_finish, remember_peers_regularly, report_regularly};
use stop::watch_for_stop;

/// Facts waiting for the engine, which takes microseconds for each.
const EVENTS_MAX: usize = 1024;

/// Notices kept for a slow console; older ones are lost to it.
const NOTICES_MAX: usize = 256;

/// Steps in progress, the last evaluation and the last checkpoint may take this long.
const FINISH_TIMEOUT: Duration = Duration::from_secs(60);

/// Daemons that start at the same moment may choose the same port.
const PORT_ATTEMPTS: u32 = 4;

/// What a daemon is to do.
pub struct Plan {
    /// The run.
    pub manifest: RunManifest,
    /// This machine's settings.
    pub settings: NodeSettings,
    /// Taken for this process.
    pub directory: DataDirectory,
    /// Who the node is.
    pub identity: Keypair,
    /// The run's membership secret, where it is closed.
    pub secret: Option<Secret>,
    /// Members to dial first.
    pub bootstrap: Vec<Bootstrap>,
    /// Whether to copy a peer's model where there is no checkpoint.
    pub joins: bool,
    /// Whether to begin at step 0 where no checkpoint can be used, also where members are known.
    pub begins_anew: bool,
    /// How long the whole run is to be, where this node is its founder and its length is asked for now.
    pub length: Option<AskedLength>,
    /// The run's base model, where it has been read already.
    pub base: Option<PretrainedBase>,
    /// Bytes of remote data and models that were loaded for it: they count in `stay.max_gigabytes`.
    pub loaded: u64,
    /// How long it stays; begun before anything was loaded.
    pub(crate) stay: Stay,
    /// What to print.
    pub console: Console,
    /// Go on in the background once it is ready.
    pub in_background: bool,
    /// Where what the core is told and decides is recorded, if it is.
    pub record_core: Option<PathBuf>,
    /// Stop when standard input ends: how a parent process stops its daemons, even by dying.
    pub until_stdin_closes: bool,
    /// How long steps take at least, where it stands for another machine.
    pub pace: Option<Pace>,
}

/// Runs a daemon until it has left its swarm.
///
/// # Errors
/// Whatever keeps it from starting, each with its remedy; afterwards only a failure of the training itself.
pub fn run(mut plan: Plan) -> anyhow::Result<()> {
    let threads = plan.settings.training.threads;
    // A second pool in one process is refused; the first one then serves both.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    let base = plan.base.take();
    let model = prepare(&plan, base)?;
    if let Some(finished) = &model.finished
        && plan.settings.training.after_completion == AfterCompletion::Exit
    {
        plan.console.show_finished(finished, &plan.manifest, plan.directory.root(), &given(&plan.settings));
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2) // one may be busy in a long poll of the swarm; training has its own thread
        .on_thread_park(crate::process::memory::follow)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let result = runtime.block_on(run_with_model(plan, model));
    // Without waiting for a blocking task that has outlived its deadline, such as a write to a disk that hangs.
    runtime.shutdown_background();
    result
}

async fn run_with_model(plan: Plan, model: Prepared) -> anyhow::Result<()> {
    let clock = Instant::now();
    let layout = model.engine.layout().clone();
    let parameters = layout.parameters();
    let first_step = model.engine.steps();
    let (events, inbox) = mpsc::channel(EVENTS_MAX);
    let shelf = model.shared.as_ref().map(|shared| ShelfParts::new(shared.held.clone()));
    let network_shelf = shelf.as_ref().map(|parts| parts.shelf.clone());
    let throttle = model.helpers.as_ref().map(Helpers::throttle);
    let network = start_network(&plan, (network_shelf, throttle), events.clone()).await?;
    plan.directory.claim(&plan.manifest)?;
    let me = network.peer_id();
    let resumed = model.resumed;
    let device = model.device;
    // Ends after the trainer, so that helpers hear that they are let go.
    let mut helpers = model.helpers;
    let keep = plan.settings.checkpoint.keep;
    let writer = CheckpointWriter::start(plan.directory.checkpoints_path(), layout.clone(), keep);
    let progress = model.progress;
    let (arrivals, arriving) = mpsc::channel(bounds::SHARDS_MAX);
    let private_end = model.privacy.as_ref().map(|ledger| first_step.saturating_add(ledger.steps_left()));
    let settings = trainer_settings(&plan, progress, model.privacy);
    let writing = writer.writing();
    let trainer = Trainer::start(model.engine, settings, events.clone(), writer, arriving);
    let workers = Workers::start(events.clone());
    let (config, seed) = (node_config(&plan, resumed, trainer.report()), random_seed()?);
    let recorder = recording::recorder(&plan, &config, (me, &layout, seed))?;
    let node = Node::new(config, me, layout, seed, Time::ZERO);

    let (pictures, picture_view) =
        watch::channel(Picture { status: node.status(), traffic: network.traffic(), peers: Default::default() });
    let (notices, heard) = broadcast::channel(NOTICES_MAX);
    let (training_view, checkpoints) = (trainer.view(), trainer.checkpoints());
    let run = plan.manifest.run_id().to_string();
    let (reports, report_view) = watch::channel(NodeReport::default());
    let shared = model.shared.zip(shelf);
    let fetching =
        shared.map(|(shared, shelf)| DataDriver::start(shared, network.clone(), shelf, picture_view.clone(), arrivals));
    let (data_view, fetching) = fetching.unzip();
    let mut rest = Rest::new(&plan.settings.limits, plan.directory.traffic_path());
    let (rest_sender, rest_view) = watch::channel(rest.look(SystemTime::now(), network.traffic()));
    let (rest_ends, rest_end) = oneshot::channel();
    let resting = tokio::spawn(rest.watch(picture_view.clone(), events.clone(), rest_sender, rest_end));
    let reporter = Reporter {
        run: run.clone(),
        name: plan.settings.network.name.trim().to_owned(),
        stay: StayFacts::of(&plan.settings.stay, first_step),
        own_steps: [Some(plan.settings.training.steps).filter(|steps| *steps > 0), private_end]
            .into_iter()
            .flatten()
            .min(),
        state_bytes: bounds::state_bytes(parameters) as u64,
        writing,
        outlook: Arc::default(),
        prediction: plan.manifest.prediction(),
        parameters,
        pictures: picture_view,
        training: training_view.clone(),
        data: data_view.clone(),
        rest: rest_view,
        reachability: network.reachability(),
        network: network.clone(),
        clock,
        team: helpers.as_ref().map(Helpers::source),
    };
    let reporting = tokio::spawn(report_regularly(reporter.clone(), reports));
    let directory = Arc::new(plan.directory);
    let remembering = tokio::spawn(remember_peers_regularly(directory.clone(), reporter.pictures.clone()));
    let keeping = tokio::spawn(keep_the_finish(directory.clone(), reporter.pictures.clone()));
    let secret_file = plan.secret.is_some().then(|| directory.secret_path());
    let run_id = plan.manifest.run_id();
    let invited = invitation(run_id, &network, secret_file.as_deref());
    let ticket = invited.ticket(plan.secret.clone()).map_or_else(String::new, |ticket| ticket.to_string());
    let (invitations, invitation_view) = watch::channel(invited);
    let pictures_to_invite = reporter.pictures.clone();
    let inviting =
        tokio::spawn(invite_regularly(run_id, network.clone(), secret_file, pictures_to_invite, invitations));
    let finisher = Finisher::new(&plan.identity, &plan.manifest, report_view.clone(), events);
    let ending = length(plan.length, directory.root()).map(|length| {
        let root = directory.root().to_owned();
        tokio::spawn(finish_after((length, first_step), root, report_view.clone(), finisher.clone())).abort_handle()
    });
    let blocker = Blocker::new(directory.root(), &plan.settings.network, network.admission(), report_view.clone());
    let from = (resumed.then_some(progress), first_step);
    let price = plan.settings.stay.price_per_hour;
    let facts = observing::facts(&plan.manifest, reporter.own_name(), from, parameters, (&device, price));
    let (root, manifest, settings) = (directory.root(), &plan.manifest, &plan.settings);
    let observing = Observing::start(Teller { root, manifest, settings, me, clock }, facts, &report_view, &notices);
    let (reports, hub) = (report_view.clone(), observing.hub());
    let of_team = helpers.as_mut().and_then(Helpers::take_events);
    of_team.map(|events| tokio::spawn(record_events(hub.clone(), events)));
    let about = Arc::new(About {
        manifest: plan.manifest.clone(),
        settings: plan.settings.clone(),
        root: directory.root().to_owned(),
        secret: plan.secret.clone(),
    });
    let requests = checkpoints.clone();
    let pages = Pages { reports, invitations: invitation_view, checkpoints, finisher, blocker, hub, about };
    let token = RunningDaemon::draw_token().context("the system gives no randomness")?;
    let listener = ports::listen_for_status(&plan.settings.status).await?;
    let server = listener.map(|listener| StatusServer::start(listener, pages, &token)).transpose()?;
    let status_address = server.as_ref().map(|server| server.address().to_string());
    let announcement = announce(&directory, status_address.clone(), token);

    let ready = Ready {
        peer: me.to_string(),
        name: reporter.own_name(),
        run,
        run_name: plan.manifest.run.name.clone(),
        addresses: network.listen_addresses().iter().map(|address| format!("{address}/p2p/{me}")).collect(),
        ticket,
        status_address,
        parameters,
        data_directory: directory.root().to_owned(),
        device,
    };
    let founds = !resumed && !plan.joins;
    // The line with which others join comes last: it goes another way to a terminal than the lines before.
    if let Some(finished) = &model.finished {
        plan.console.show_finished(finished, &plan.manifest, directory.root(), &given(&plan.settings));
    }
    plan.console.show_ready(&ready, resumed.then_some(progress), founds);
    if plan.in_background {
        background::detach(directory.root())?;
    }
    let service_manager = ServiceManager::from_environment();
    service_manager.iter().for_each(ServiceManager::ready);
    let watched = service_manager.clone().map(|manager| tokio::spawn(live(manager)));
    let bar = data_view.map(|view| tokio::spawn(plan.console.show_fetching(view)));
    let console = tokio::spawn(plan.console.follow(report_view.clone(), heard));
    let (secret, listen) = (plan.secret.clone(), network.listen_addresses());
    let new_ticket = move |public: &[Multiaddr]| {
        let ticket = Invitation::new(run_id, me, public, &listen).ticket(secret.clone());
        ticket.map_or_else(String::new, |ticket| ticket.to_string())
    };
    let announcing = tokio::spawn(plan.console.follow_reachability(network.reachability(), new_ticket));

    let (stop, stop_view) = watch::channel(false);
    let exits = plan.settings.training.after_completion == AfterCompletion::Exit;
    let double = network.double();
    let doubling = tokio::spawn(watch_for_double(network.clone(), stop.clone()));
    let wire = network.clone();
    let loaded = plan.loaded;
    let stay = plan.stay.over(move || {
        let Traffic { sent, received } = wire.traffic();
        Traffic { sent, received: received + loaded }
    });
    tokio::spawn(watch_for_stop(stop, plan.until_stdin_closes, training_view, exits, stay));
    let leave_within = Some(plan.settings.stay.leave_seconds).filter(|seconds| *seconds > 0.0);
    let hurry = leave_within.map(|limit| Hurry::prepare(stop_view.clone(), Duration::from_secs_f64(limit), requests));
    let wished = stop_view.clone();
    let channels = Channels { events: inbox, pictures, notices, recorder };
    let mut stopped = Engine::new(node, network, trainer, workers, clock, channels).run(stop_view).await;

    stopped.recorder.take().into_iter().for_each(Recorder::end);
    service_manager.iter().for_each(ServiceManager::stopping);
    for task in [&remembering, &keeping, &inviting, &doubling] {
        task.abort();
    }
    ending.inspect(AbortHandle::abort);
    fetching.inspect(AbortHandle::abort);
    bar.inspect(JoinHandle::abort);
    // Its last count is on the disk before this one.
    drop(rest_ends);
    let _ = resting.await;
    Rest::keep(&plan.settings.limits, &directory.traffic_path(), &reporter.rest.borrow());
    directory.remember_peers(&stopped.status.known);
    let next = || next_commands(directory.root(), &plan.manifest, &given(&plan.settings));
    let checkpoints = directory.checkpoints_path();
    let known_end = stopped.status.end.clone();
    let hurry = hurry.filter(|_| *wished.borrow());
    let result = finish(stopped, &reporter, hurry, &plan.console, (next, &checkpoints)).await;
    let _ = tokio::task::spawn_blocking(move || drop(helpers)).await;
    observing.end(reporter.outcome(&known_end)).await;
    reporting.abort();
    console.abort();
    announcing.abort();
    watched.inspect(JoinHandle::abort);
    drop(announcement);
    result?;
    Ok(double::verdict(*double.borrow(), &directory.identity_path())?)
}

/// What this node was given beside its run file.
fn given(settings: &NodeSettings) -> Given<'_> {
    let tokenizer = Some(settings.data.tokenizer.as_path()).filter(|path| !path.as_os_str().is_empty());
    Given { base: settings.model.base(), tokenizer, files: &settings.data.files }
}

/// Tells the service manager regularly that the daemon lives.
async fn live(manager: ServiceManager) {
    let Some(period) = manager.period() else { return };
    let mut ticks = tokio::time::interval(period);
    loop {
        ticks.tick().await;
        manager.alive();
    }
}

/// Where it cannot be written, the daemon runs all the same, and is only harder to find.
fn announce(directory: &DataDirectory, status_address: Option<String>, token: String) -> Option<Announcement> {
    let announced = RunningDaemon::this(status_address, token).announce(directory.root());
    announced.inspect_err(|error| note(&format!("warning: cannot write daemon.json: {error}"))).ok()
}

/// After the node has left: last evaluation and checkpoint (the latter alone in a `hurry`), then the network.
async fn finish(
    stopped: Stopped,
    reporter: &Reporter,
    hurry: Option<Hurry>,
    console: &Console,
    (next, checkpoints): (impl Fn() -> Vec<String>, &Path),
) -> Result<(), Failure> {
    let Stopped { trainer, network, has_trained, status, peers, recorder: _ } = stopped;
    let view = trainer.view();
    let (in_hurry, completes) = (hurry.is_some(), has_trained && hurry.is_none());
    let kept = match hurry {
        Some(hurry) => hurry.save().await,
        None => Ok(()),
    };
    let finished = tokio::task::spawn_blocking(move || trainer.finish(completes));
    let limit = if in_hurry { leaving::CLOSING } else { FINISH_TIMEOUT };
    let saved = match tokio::time::timeout(limit, finished).await {
        Ok(Ok(saved)) => saved,
        Ok(Err(error)) => Err(error.to_string()),
        // What was kept in time is known.
        Err(_) if in_hurry => Ok(()),
        Err(_) => Err(format!("the last checkpoint was not written within {} s", FINISH_TIMEOUT.as_secs())),
    };
    let report = reporter.report(&Picture { status, traffic: network.traffic(), peers });
    network.close().await;
    console.show_last(&report);
    if *console == Console::Text {
        if let Some(stay) = reporter.stay {
            note(&format!("stay        {}", stay.described(&report)));
        }
        note("next:");
        // Most of them read a checkpoint.
        let are_all = newest_checkpoint(checkpoints).is_some();
        let next = next().into_iter().filter(|command| are_all || command.starts_with("murmur start"));
        next.for_each(|command| note(&format!("  {command}")));
    }
    if let Some(reason) = &view.borrow().failure {
        return Err(Failure::new(ExitCode::Failure, format!("training has ended: {reason}")).hint(
            "the last checkpoint is of before: `murmur export` it, and go on with --base and a lower learning rate",
        ));
    }
    kept.and(saved).map_err(|reason| {
        Failure::new(ExitCode::Files, reason)
            .hint("is the disk full? a checkpoint from before, where there is one, is still there")
    })
}

fn random_seed() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("the system gives no randomness: {error}"))?;
    Ok(u64::from_le_bytes(bytes))
}
