//! `murmur lend`: lend this machine to a captain that trains a model which does not fit its own.

use std::time::Duration;

use anyhow::Context;
use murmur_network::{Caps, Multiaddr};
use murmur_protocol::manifest::TransformerModel;
use murmur_protocol::team::Offer;
use murmur_training::measure::timed_product;
use murmur_training::team::HelperStage;
use murmur_training::{Device, TrainingOptions, free_memory};
use serde_json::json;
use tokio::sync::watch;

use super::node;
use crate::cli::LendOptions;
use crate::console::{Console, human_bytes, note, print_line, wait_for_no_reader};
use crate::daemon::ports;
use crate::daemon::stop::watch_for_end;
use crate::failure::{ExitCode, Failure};
use crate::process::signal::Signals;
use crate::process::stats::available_memory;
use crate::settings::{NetworkSettings, NodeSettings, TrainingSettings};
use crate::setup::devices::Devices;
use crate::store::{DataDirectory, LENDING};
use crate::team::captain::stage_device;
use crate::team::lending::{Helper, Lending, secret_at};

/// Where helpers listen, so that a daemon on the same machine has the port next to it.
const DEFAULT_PORT: u16 = 4712;

/// Of the memory that is free, what a helper lends unless told otherwise: the rest is for streams, and for what else runs here.
const SHARE_OF_FREE: f64 = 0.8;

/// Where the system does not tell what is free.
const MEMORY_UNKNOWN: u64 = 1_000_000_000;

/// A model of usual size, by whose products a machine's speed is measured before it knows the captain's.
const MEASURED_WIDTH: u32 = 1024;

pub(super) fn run(options: &LendOptions) -> anyhow::Result<()> {
    let node_settings = options.settings.settings();
    let NodeSettings { training: settings, limits, .. } = node_settings.clone();
    let _ = rayon::ThreadPoolBuilder::new().num_threads(settings.threads).build_global();
    let root = options.data_dir.clone().unwrap_or_else(|| DataDirectory::default_base().join(LENDING));
    if root.join("run.toml").is_file() {
        let message =
            format!("{} is the data directory of a daemon, whose secret a helper's line would tell", root.display());
        return Err(Failure::new(ExitCode::Settings, message)
            .hint("name another folder with --data-dir, or leave it out: a helper has one of its own")
            .into());
    }
    let network = NetworkSettings { listen: options.listen.clone(), ..NetworkSettings::default() };
    addresses(&network)?;
    let directory = DataDirectory::open(&root)?;
    directory.mark_lent().with_context(|| format!("cannot write into {}", root.display()))?;
    let identity = node::identity(&directory)?;
    let secret = secret_at(&directory.secret_path(), |secret| directory.keep_secret(secret))?;
    let settings = TrainingSettings { device: options.device.clone(), ..settings };
    let devices = Devices::open(&settings)?;
    if let Some(warning) = &devices.warning {
        note(&format!("warning: {warning}"));
    }
    let device = &devices.all[0];
    let training = devices.options(&settings);
    let caps = limits.caps();
    let offer = offer(options, device, &training, caps);
    let threads = rayon::current_num_threads();
    let lending = Lending {
        identity,
        secret,
        chooses_port: network.chooses_port(),
        listen: Box::new(move || addresses(&network)),
        settings: node_settings,
        kept_for: Duration::from_secs_f64(60.0 * options.keep_minutes),
        stage: HelperStage::new(stage_device(device)?, threads, training),
        offer: offer.clone(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let ended = runtime.block_on(async {
        // Before anything is printed: whoever has the line may end the helper at once, and finds it ended in order.
        let signals = Signals::new();
        let helper = Helper::start(lending).await?;
        let line = helper.line.to_string();
        note(
            "warning: whoever has the line below computes on this machine, and this machine sees activations of their text: \
             lend only to your own machines or to friends",
        );
        let lends = format!("{} on {}", human_bytes(offer.memory_bytes), devices.name);
        match options.format {
            Console::Json => {
                let helper = helper.line.helper.to_string();
                let ready =
                    json!({ "peer": helper, "line": line, "memory_bytes": offer.memory_bytes, "device": devices.name });
                print_line(&json!({ "lending": ready }).to_string());
            }
            Console::Text => {
                note(&format!("peer        {}", helper.line.helper));
                note(&format!("lends       {lends}"));
                helper.line.addresses.iter().for_each(|address| note(&format!("listening   {address}")));
                note("The captain takes it with `murmur start` or `murmur join` and:");
                print_line(&format!("--helper {line}"));
            }
        }
        wait_for_no_reader();
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(watch_for_end(signals, stop, options.until_stdin_closes));
        helper.run(stopped).await
    });
    runtime.shutdown_background();
    ended?;
    note("ended");
    drop(directory);
    Ok(())
}

/// What this machine has to give.
fn offer(options: &LendOptions, device: &Device, training: &TrainingOptions, caps: Caps) -> Offer {
    let free = if device.is_cpu() { available_memory() } else { free_memory(device) };
    let usual = free.map_or(MEMORY_UNKNOWN, |free| (SHARE_OF_FREE * free as f64) as u64);
    if let (Some(memory), Some(free)) = (options.memory, free)
        && memory > free
    {
        note(&format!("warning: --memory {} is more than is free ({})", human_bytes(memory), human_bytes(free)));
    }
    let spec =
        TransformerModel { width: MEASURED_WIDTH, feed_forward: 3 * MEASURED_WIDTH, ..TransformerModel::default() };
    let speed = timed_product(&spec, 256, device, training.precision)
        .map_or(1.0, |(duration, operations)| operations / duration.as_secs_f64().max(1e-9));
    Offer {
        memory_bytes: options.memory.unwrap_or(usual),
        operations_per_second: speed,
        up_bytes_per_second: caps.upload.unwrap_or(0),
        down_bytes_per_second: caps.download.unwrap_or(0),
        held: None,
    }
}

/// Where to listen: a port that is free now, unless one is given.
fn addresses(network: &NetworkSettings) -> Result<Vec<Multiaddr>, Failure> {
    let listen = ports::choose_from(network, DEFAULT_PORT);
    let parse = |text: &String| {
        text.parse().map_err(|error| {
            Failure::new(ExitCode::Settings, format!("{text:?} is no address to listen on: {error}"))
                .hint("for example /ip4/0.0.0.0/tcp/4712")
        })
    };
    listen.iter().map(parse).collect()
}
