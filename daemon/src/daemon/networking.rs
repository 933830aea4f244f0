//! How a daemon's network begins, and what it needs to know.

use std::sync::Arc;

use murmur_network::{Keypair, Multiaddr, Network, NetworkConfig, NetworkError, Shelf, Throttle};
use murmur_protocol::{Event, RunManifest, Secret, bounds};
use tokio::sync::mpsc;

use super::{PORT_ATTEMPTS, Plan, ports};
use crate::console::note;
use crate::daemon::blocking;
use crate::failure::{ExitCode, Failure};
use crate::settings::NodeSettings;

/// Its connections draw from `throttle`, as others do.
pub(super) async fn start_network(
    plan: &Plan,
    (shelf, throttle): (Option<Shelf>, Throttle),
    events: mpsc::Sender<Event>,
) -> anyhow::Result<Network> {
    let failed = |message: String| Failure::new(ExitCode::Network, message).hint(ports::REMEDY);
    let settings = &plan.settings.network;
    let given = settings.listen_at(settings.usual_port());
    if !settings.chooses_port()
        && let Some(address) = ports::taken(&given)
    {
        return Err(failed(format!(
            "cannot listen on {address}: another program uses that port, perhaps another murmur"
        ))
        .into());
    }
    for attempt in 1.. {
        let config = network_config(plan.identity.clone(), &plan.manifest, &plan.settings, plan.secret.clone())?;
        let is_usual = config.listen.iter().map(ToString::to_string).eq(given.iter().cloned());
        let admission = blocking::admission(settings, plan.directory.root());
        let config = NetworkConfig { shelf: shelf.clone(), throttle: throttle.clone(), admission, ..config };
        match Network::start(config, events.clone()).await {
            Ok(network) => {
                if !is_usual {
                    note(&format!("port        {} is taken, so another one is used", settings.usual_port()));
                }
                return Ok(network);
            }
            // Another daemon has started at the same moment: it has that port now.
            Err(NetworkError::Listen(..)) if settings.chooses_port() && attempt < PORT_ATTEMPTS => {}
            Err(error) => return Err(failed(error.to_string()).into()),
        }
    }
    unreachable!("the last attempt returns")
}

/// What the network of such a node needs to know.
///
/// # Errors
/// When an address to listen on is none.
pub(crate) fn network_config(
    identity: Keypair,
    manifest: &RunManifest,
    settings: &NodeSettings,
    secret: Option<Secret>,
) -> Result<NetworkConfig, Failure> {
    let parse = |text: &String| -> Result<Multiaddr, Failure> {
        text.parse().map_err(|error| {
            let message = format!("{text:?} is no address to listen on: {error}");
            Failure::new(ExitCode::Settings, message).hint("for example /ip4/0.0.0.0/tcp/4711")
        })
    };
    let parameters = murmur_training::trained_layout(manifest).parameters();
    let mut payload_bytes_max = bounds::payload_bytes_max(parameters);
    let mut inbound_bytes_budget = bounds::inbound_bytes_budget(parameters);
    if manifest.synchronous.is_on() {
        payload_bytes_max = payload_bytes_max.max(bounds::replica_bytes_max(parameters));
        inbound_bytes_budget = inbound_bytes_budget.max(manifest.synchronous.inbound_budget(parameters));
    }
    Ok(NetworkConfig {
        identity,
        listen: ports::choose(&settings.network).iter().map(parse).collect::<Result<_, _>>()?,
        manifest: Arc::new(manifest.clone()),
        secret,
        admission: settings.network.admission(),
        throttle: Throttle::new(settings.limits.caps()),
        payload_bytes_max,
        inbound_bytes_budget,
        shelf: None,
        connectivity: settings.network.connectivity(),
    })
}
