//! A daemon that runs: the engine, and all that works beside it until the node has left its swarm.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use murmur_network::{Double, Multiaddr, Network, Throttle, Traffic};
use murmur_protocol::{Node, RunManifest, Time, bounds};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinHandle};

use super::blocking::Blocker;
use super::configured::{node_config, random_seed, trainer_settings};
use super::double::{self, watch_for_double};
use super::finishing::Finisher;
use super::invitation::Invitation;
use super::leaving::{self, Hurry};
use super::length::{finish_after, length};
use super::networking::start_network;
use super::observing::{self, Observing, Teller};
use super::prepared::Prepared;
use super::regular::{
    FINISH_PERIOD, Reporter, announce_regularly, invitation, invite_helpers, invite_regularly, keep_the_finish,
    remember_peers_regularly, report_regularly,
};
use super::stop::watch_for_stop;
use super::{Plan, Ready, ports, recording};
use crate::console::{Console, Given, next_commands, note, wait_for_no_reader};
use crate::drivers::{DataDriver, Pages, ShelfParts, StatusServer, Trainer, Workers};
use crate::engine::{Channels, Engine, Picture, Recorder, Stopped};
use crate::failure::{ExitCode, Failure};
use crate::limits::rest::Rest;
use crate::limits::stay::StayFacts;
use crate::observe::Hub;
use crate::observe::report::NodeReport;
use crate::observe::source::{record_events, record_words};
use crate::process::background;
use crate::process::service_manager::ServiceManager;
use crate::process::signal::Signals;
use crate::settings::{AfterCompletion, NodeSettings};
use crate::store::{Announcement, CheckpointWriter, DataDirectory, RunningDaemon, newest_checkpoint, unsaved};
use crate::team::captain::Helpers;
use crate::team::report::TeamSource;
use crate::web::About;

/// Facts waiting for the engine, which takes microseconds for each.
const EVENTS_MAX: usize = 1024;

/// Notices kept for a slow console; older ones are lost to it.
const NOTICES_MAX: usize = 256;

/// How often it is said that a step in progress, the last evaluation and the last checkpoint are waited for: of a large model on a slow
/// disk they take minutes.
const FINISHING_PERIOD: Duration = Duration::from_secs(60);

/// A daemon that shows itself to others.
pub(super) struct Running {
    manifest: RunManifest,
    settings: NodeSettings,
    console: Console,
    again: String,
    directory: Arc<DataDirectory>,
    engine: Engine,
    /// Whether it is to leave.
    stop: watch::Receiver<bool>,
    /// How it leaves where it has little time for it.
    hurry: Option<Hurry>,
    reporter: Reporter,
    observing: Observing,
    resting: Resting,
    /// End after the trainer, so that they hear that they are let go.
    helpers: Option<Helpers>,
    service_manager: Option<ServiceManager>,
    double: watch::Receiver<Option<Double>>,
    /// What has nothing to do any more once the engine has ended.
    beside_engine: Vec<AbortHandle>,
    /// What shows the last evaluation and the last checkpoint as well.
    beside_end: Vec<AbortHandle>,
    /// Answers until all is over.
    _server: Option<StatusServer>,
    announcement: Arc<Announcement>,
}

/// What keeps the node's hours of rest and the bytes of its day.
struct Resting {
    task: JoinHandle<()>,
    /// Dropping it ends the task.
    end: oneshot::Sender<()>,
}

/// A task that ends with a daemon.
fn beside(task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
    tokio::spawn(task).abort_handle()
}

impl Running {
    /// Starts the drivers and all tasks, and says that the daemon is ready.
    ///
    /// # Errors
    /// When it cannot listen, or its data directory belongs to another run.
    pub(super) async fn start(plan: Plan, model: Prepared) -> anyhow::Result<Running> {
        let clock = Instant::now();
        let layout = model.engine.layout().clone();
        let parameters = layout.parameters();
        let first_step = model.engine.steps();
        let (events, inbox) = mpsc::channel(EVENTS_MAX);
        let shelf = model.shared.as_ref().map(|shared| ShelfParts::new(shared.held.clone()));
        let network_shelf = shelf.as_ref().map(|parts| parts.shelf.clone());
        let caps = || Throttle::new(plan.settings.limits.caps());
        let throttle = model.helpers.as_ref().map_or_else(caps, Helpers::throttle);
        let network = start_network(&plan, (network_shelf, throttle.clone()), events.clone()).await?;
        let listener = ports::listen_for_status(&plan.settings.status).await?;
        let (me, resumed, progress) = (network.peer_id(), model.resumed, model.progress);
        let mut helpers = model.helpers;
        let keep = plan.settings.checkpoint.keep;
        // The hub comes later, and still before the first checkpoint.
        let (checkpoints_path, hub_of_writer) = (plan.directory.checkpoints_path(), Arc::new(OnceLock::new()));
        let told: Arc<OnceLock<Hub>> = hub_of_writer.clone();
        let tell = move |words| {
            if let Some(hub) = told.get() {
                record_words(hub, words);
            }
        };
        let writer = CheckpointWriter::start_telling(checkpoints_path, layout.clone(), keep, tell);
        let (arrivals, arriving) = mpsc::channel(bounds::SHARDS_MAX);
        let private_end = model.privacy.as_ref().map(|ledger| first_step.saturating_add(ledger.steps_left()));
        let trainer_settings = trainer_settings(&plan, progress, model.privacy);
        let saving = writer.view();
        let trainer = Trainer::start(model.engine, trainer_settings, events.clone(), writer, arriving);
        let workers = Workers::start(events.clone());
        let (config, seed) = (node_config(&plan, resumed, trainer.report())?, random_seed()?);
        let recorder = recording::recorder(&plan, &config, (me, &layout, seed))?;
        // Nothing that its owner has asked for is in the way any more: from now on the directory is that of a run.
        plan.directory.claim(&plan.manifest)?;
        let node = Node::new(config, me, layout, seed, Time::ZERO);

        let picture = Picture { status: node.status(), traffic: network.traffic(), peers: Default::default() };
        let (pictures, picture_view) = watch::channel(picture);
        let (notices, heard) = broadcast::channel(NOTICES_MAX);
        let (training_view, checkpoints) = (trainer.view(), trainer.checkpoints());
        let (reports, report_view) = watch::channel(NodeReport::default());
        let fetching = model
            .shared
            .zip(shelf)
            .map(|(shared, shelf)| DataDriver::start(shared, network.clone(), shelf, picture_view.clone(), arrivals));
        let (data_view, fetching) = fetching.unzip();
        let mut rest = Rest::new(&plan.settings.limits, plan.directory.traffic_path());
        let (rest_sender, rest_view) = watch::channel(rest.look(SystemTime::now(), network.traffic()));
        let (end, rest_end) = oneshot::channel();
        let task = tokio::spawn(rest.watch(picture_view.clone(), events.clone(), rest_sender, rest_end));
        let resting = Resting { task, end };
        let own_steps = Some(plan.settings.training.steps).filter(|steps| *steps > 0);
        let reporter = Reporter {
            run: plan.manifest.run_id().to_string(),
            run_name: plan.manifest.run.name.clone(),
            device: model.device.clone(),
            data_directory: std::path::absolute(plan.directory.root())
                .unwrap_or_else(|_| plan.directory.root().to_owned())
                .display()
                .to_string(),
            name: plan.settings.network.name.trim().to_owned(),
            stay: StayFacts::of(&plan.settings.stay),
            own_steps: [own_steps, private_end].into_iter().flatten().min(),
            state_bytes: bounds::state_bytes(parameters) as u64,
            saving,
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
        let mut beside_engine: Vec<AbortHandle> = fetching.into_iter().collect();
        let mut beside_end = vec![beside(report_regularly(reporter.clone(), reports))];
        let Plan { manifest, settings, directory, identity, secret, console, entry, again, .. } = plan;
        let directory = Arc::new(directory);
        beside_engine.push(beside(remember_peers_regularly(directory.clone(), reporter.pictures.clone())));
        beside_engine.push(beside(keep_the_finish(directory.clone(), reporter.pictures.clone(), FINISH_PERIOD)));
        // Absolute: who asks for a ticket is in another folder.
        let secret_path = || std::path::absolute(directory.secret_path()).unwrap_or_else(|_| directory.secret_path());
        let secret_file = secret.is_some().then(secret_path);
        let run_id = manifest.run_id();
        let invited = invitation(run_id, &network, secret_file.as_deref());
        let ticket = invited.ticket(secret.clone()).map_or_else(String::new, |ticket| ticket.to_string());
        let (invitations, invitation_view) = watch::channel(invited);
        if let Some(helpers) = &helpers {
            let sources = (invitation_view.clone(), reporter.rest.clone());
            let admission = network.admission().subscribe();
            beside_engine.push(beside(invite_helpers(helpers.ticket(), secret.clone(), sources, admission)));
        }
        let pictures_to_invite = reporter.pictures.clone();
        let inviting = invite_regularly(run_id, network.clone(), secret_file, pictures_to_invite, invitations);
        beside_engine.push(beside(inviting));
        let pictures_of_end = reporter.pictures.clone();
        let known = move || pictures_of_end.borrow().status.end.order.as_ref().map(|order| order.serial);
        let finisher = Finisher::new(&identity, &manifest, report_view.clone(), known, events);
        // Of a run that is complete nothing is left to be ended, and that has been told.
        let is_complete = model.finished.as_ref().is_some_and(|finished| !finished.is_own);
        let length = if is_complete { None } else { length(entry.length, directory.root())? };
        if let Some(length) = length {
            let root = directory.root().to_owned();
            let ending = finish_after(length, entry.length, root, report_view.clone(), finisher.clone());
            beside_engine.push(beside(ending));
        }
        let blocker = Blocker::new(directory.root(), &settings.network, network.admission(), report_view.clone());
        let from = (resumed.then_some(progress), first_step);
        let price = settings.stay.price_per_hour;
        let facts = observing::facts(&manifest, reporter.own_name(), from, parameters, (&model.device, price));
        let root = directory.root();
        let teller = Teller { root, manifest: &manifest, settings: &settings, me, clock, throttle: &throttle };
        let observing = Observing::start(teller, facts, &report_view, &notices);
        let (reports, hub) = (report_view.clone(), observing.hub());
        let _ = hub_of_writer.set(hub.clone());
        let of_team = helpers.as_mut().and_then(Helpers::take_events);
        of_team.map(|events| tokio::spawn(record_events(hub.clone(), events)));
        let about = Arc::new(About {
            manifest: manifest.clone(),
            settings: settings.clone(),
            root: directory.root().to_owned(),
            secret: secret.clone(),
        });
        let requests = checkpoints.clone();
        let pages = Pages { reports, invitations: invitation_view, checkpoints, finisher, blocker, hub, about };
        let token = RunningDaemon::draw_token().context("the system gives no randomness")?;
        let server = listener.map(|listener| StatusServer::start(listener, pages, &token)).transpose()?;
        let status_address = server.as_ref().map(|server| server.address().to_string());
        let daemon = RunningDaemon::this(status_address.clone(), token);
        let announcement = Arc::new(daemon.announcement(directory.root()));
        announce(&announcement);
        beside_engine.push(beside(announce_regularly(Arc::downgrade(&announcement))));

        let ready = Ready {
            peer: me.to_string(),
            name: reporter.own_name(),
            run: reporter.run.clone(),
            run_name: manifest.run.name.clone(),
            addresses: network.listen_addresses().iter().map(|address| format!("{address}/p2p/{me}")).collect(),
            closed: secret.is_some(),
            ticket,
            status_address,
            parameters,
            data_directory: directory.root().to_owned(),
            device: model.device,
            device_warning: model.device_warning,
            traffic: model.traffic,
        };
        // The line with which others join comes last: it goes another way to a terminal than the lines before.
        if let Some(finished) = &model.finished {
            console.show_finished(finished, &manifest, directory.root(), &given(&settings, &again));
        }
        console.show_ready(&ready, resumed.then_some(progress), !resumed && !entry.joins);
        if plan.in_background {
            background::detach(directory.root())?;
        }
        wait_for_no_reader();
        let service_manager = ServiceManager::from_environment();
        service_manager.iter().for_each(ServiceManager::ready);
        beside_end.extend(service_manager.clone().map(|manager| beside(live(manager))));
        beside_engine.extend(data_view.map(|view| beside(console.show_fetching(view))));
        beside_end.push(beside(console.follow(report_view.clone(), heard)));
        let listen = network.listen_addresses();
        let new_ticket = move |public: &[Multiaddr]| {
            let ticket = Invitation::new(run_id, me, public, &listen).ticket(secret.clone());
            ticket.map_or_else(String::new, |ticket| ticket.to_string())
        };
        beside_end.push(beside(console.follow_reachability(network.reachability(), new_ticket)));

        let (stop, stop_view) = watch::channel(false);
        let exits = settings.training.after_completion == AfterCompletion::Exit;
        let double = network.double();
        beside_engine.push(beside(watch_for_double(network.clone(), stop.clone())));
        let of_team = helpers.as_ref().map(Helpers::source);
        let stay = entry.stay.over(traffic(network.clone(), entry.loaded, of_team));
        tokio::spawn(watch_for_stop(Signals::new(), stop, plan.until_stdin_closes, training_view, exits, stay));
        let leave_within = Some(settings.stay.leave_seconds).filter(|seconds| *seconds > 0.0);
        let hurry =
            leave_within.map(|limit| Hurry::prepare(stop_view.clone(), Duration::from_secs_f64(limit), requests));
        let channels = Channels { events: inbox, pictures, notices, recorder };
        let engine = Engine::new(node, network, trainer, workers, clock, channels);
        Ok(Running {
            manifest,
            settings,
            console,
            again,
            directory,
            engine,
            stop: stop_view,
            hurry,
            reporter,
            observing,
            resting,
            helpers,
            service_manager,
            double,
            beside_engine,
            beside_end,
            _server: server,
            announcement,
        })
    }

    /// Runs until the node has left its swarm, and takes everything down in order.
    ///
    /// # Errors
    /// A failure of the training, a last checkpoint that could not be written, another live node with this identity.
    pub(super) async fn until_left(self) -> anyhow::Result<()> {
        let Running { manifest, settings, console, again, directory, stop, reporter, observing, helpers, .. } = self;
        let mut stopped = self.engine.run(stop.clone()).await;
        stopped.recorder.take().into_iter().for_each(Recorder::end);
        self.service_manager.iter().for_each(ServiceManager::stopping);
        self.beside_engine.iter().for_each(AbortHandle::abort);
        // Its last count is on the disk before this one.
        drop(self.resting.end);
        let _ = self.resting.task.await;
        Rest::keep(&directory.traffic_path(), &reporter.rest.borrow());
        directory.remember_peers(&stopped.status.known);
        let next = || next_commands(directory.root(), &manifest, &given(&settings, &again));
        let checkpoints = directory.checkpoints_path();
        let known_end = stopped.status.end.clone();
        let hurry = self.hurry.filter(|_| *stop.borrow());
        let has_time = hurry.is_none();
        let hub = observing.hub();
        let result = finish(stopped, (&reporter, &hub), hurry, &console, (next, &checkpoints)).await;
        let _ = tokio::task::spawn_blocking(move || drop(helpers)).await;
        let picture = reporter.pictures.borrow().clone();
        let last = reporter.report(&picture);
        observing.end((&last, &picture.peers), directory.root(), (reporter.outcome(&known_end), has_time)).await;
        self.beside_end.iter().for_each(AbortHandle::abort);
        let result = result.and_then(|()| double::verdict(*self.double.borrow(), &directory.identity_path()));
        if let (Err(_), Some(announcement)) = (&result, Arc::into_inner(self.announcement)) {
            announcement.leave();
        }
        Ok(result?)
    }
}

/// Bytes of this process, with those of remote data and models that were loaded before and those of its team.
fn traffic(network: Network, loaded: u64, team: Option<TeamSource>) -> impl Fn() -> Traffic {
    move || {
        let (swarm, team) = (network.traffic(), team.as_ref().map(|team| team.counter.read()).unwrap_or_default());
        Traffic { sent: swarm.sent + team.sent, received: swarm.received + team.received + loaded }
    }
}

/// What this node was given beside its run file.
pub(super) fn given<'a>(settings: &'a NodeSettings, again: &'a str) -> Given<'a> {
    Given { base: settings.model.base(), tokenizer: settings.data.tokenizer(), files: &settings.data.files, again }
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

/// Where it cannot be written, the daemon runs all the same, and is only harder to find until it can.
fn announce(announcement: &Announcement) {
    if let Err(error) = announcement.write() {
        note(&format!("warning: cannot write daemon.json: {error}; it is tried again"));
    }
}

/// After the node has left: last evaluation and checkpoint (the latter alone in a `hurry`), then the network.
async fn finish(
    stopped: Stopped,
    (reporter, hub): (&Reporter, &Hub),
    hurry: Option<Hurry>,
    console: &Console,
    (next, checkpoints): (impl Fn() -> Vec<String>, &Path),
) -> Result<(), Failure> {
    let Stopped { trainer, network, has_trained, status, peers, recorder: _ } = stopped;
    let view = trainer.view();
    let (in_hurry, completes) = (hurry.is_some(), has_trained && hurry.is_none());
    let kept = match hurry {
        Some(hurry) => hurry.save().await.inspect_err(|reason| record_words(hub, unsaved(reason))),
        None => Ok(()),
    };
    let mut finished = tokio::task::spawn_blocking(move || trainer.finish(completes));
    let limit = if in_hurry { leaving::CLOSING } else { FINISHING_PERIOD };
    let saved = loop {
        match tokio::time::timeout(limit, &mut finished).await {
            Ok(Ok(saved)) => break saved,
            Ok(Err(error)) => break Err(error.to_string()),
            // What was kept in time is known.
            Err(_) if in_hurry => break Ok(()),
            Err(_) => note("leaving     the last step and checkpoint are not done yet (once more to end at once)"),
        }
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
        Failure::new(ExitCode::Files, reason).hint("a checkpoint from before, where there is one, is still there")
    })
}
