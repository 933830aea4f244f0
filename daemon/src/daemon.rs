//! One daemon from start to end: a [`Plan`] of what it is to do becomes `Prepared`, a model on its devices with its data, and
//! that `Running`, until the node has left its swarm.

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
mod running;
pub(crate) mod stop;

use std::path::PathBuf;

use anyhow::Context;
use murmur_network::Keypair;
use murmur_protocol::{Bootstrap, RunManifest, Secret};

use crate::console::{Console, FinishedRun, note};
use crate::limits::pace::Pace;
use crate::limits::stay::Stay;
use crate::process::service_manager::ServiceManager;
use crate::settings::{AfterCompletion, NodeSettings};
use crate::setup::base_model::ReadBase;
use crate::store::DataDirectory;
pub(crate) use configured::random_seed;
pub use length::AskedLength;
pub(crate) use networking::network_config;
use prepared::{over_without_data, prepare};
pub use ready::Ready;
use running::{Running, given};

/// Daemons that start at the same moment may choose the same port.
pub(crate) const PORT_ATTEMPTS: u32 = 4;

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
    /// How it comes to its swarm.
    pub entry: Entry,
    /// What to print.
    pub console: Console,
    /// What was typed that a later start of the node needs again.
    pub again: String,
    /// Go on in the background once it is ready.
    pub in_background: bool,
    /// Where what the core is told and decides is recorded, if it is.
    pub record_core: Option<PathBuf>,
    /// Stop when standard input ends: how a parent process stops its daemons, even by dying.
    pub until_stdin_closes: bool,
    /// How long steps take at least, where it stands for another machine.
    pub pace: Option<Pace>,
}

/// How a node comes to a swarm, and what was done for it already.
pub struct Entry {
    /// Members to dial first.
    pub bootstrap: Vec<Bootstrap>,
    /// Whether to copy a peer's model where there is no checkpoint.
    pub joins: bool,
    /// Whether to begin at step 0 where no checkpoint can be used, also where members are known.
    pub begins_anew: bool,
    /// How long the whole run is to be, where this node is its founder and its length is asked for now.
    pub length: Option<AskedLength>,
    /// What has been read and opened for the run's base model.
    pub base: ReadBase,
    /// Bytes of remote data and models that were loaded: they count in `stay.max_gigabytes`.
    pub loaded: u64,
    /// How long it stays; begun before anything was loaded.
    pub(crate) stay: Stay,
}

/// Runs a daemon until it has left its swarm.
///
/// # Errors
/// Whatever keeps it from starting, each with its remedy; afterwards only a failure of the training itself.
pub fn run(mut plan: Plan) -> anyhow::Result<()> {
    let base = std::mem::take(&mut plan.entry.base);
    let ends_when_over = plan.settings.training.after_completion == AfterCompletion::Exit;
    // Where only its own part is over, there is nothing that it could do for the others without its data.
    if let Some(finished) = over_without_data(&plan)?.filter(|finished| ends_when_over || finished.is_own) {
        return tell_finished(&plan, &finished);
    }
    let model = prepare(&plan, base)?;
    if let Some(finished) = model.finished.as_ref().filter(|_| ends_when_over) {
        return tell_finished(&plan, finished);
    }
    if model.finished.is_some() {
        warn_of_length(&plan);
    }
    let runtime = runtime()?;
    let result = runtime.block_on(async { Running::start(plan, model).await?.until_left().await });
    // Without waiting for a blocking task that has outlived its deadline, such as a write to a disk that hangs.
    runtime.shutdown_background();
    result
}

/// Says what can be done with a run that was over before this process began, for this node at least.
fn tell_finished(plan: &Plan, finished: &FinishedRun) -> anyhow::Result<()> {
    if !finished.is_own {
        warn_of_length(plan);
    }
    let given = given(&plan.settings, &plan.again);
    plan.console.show_finished(finished, &plan.manifest, plan.directory.root(), &given);
    runtime()?.block_on(observing::send_rest(plan));
    // A unit of systemd that ends before it is ready has failed, and would be started again.
    if let Some(manager) = ServiceManager::from_environment() {
        manager.ready();
        manager.stopping();
    }
    Ok(())
}

fn warn_of_length(plan: &Plan) {
    if let Some(length) = plan.entry.length {
        note(&format!("warning: {} changes nothing: this run is finished", length.option()));
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2) // one may be busy in a long poll of the swarm; training has its own thread
        .on_thread_park(crate::process::memory::follow)
        .enable_all()
        .build()
        .context("cannot start the runtime")
}
