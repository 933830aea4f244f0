//! Another live node with this node's identity: what the owners of both are told, and how the younger one ends.

use std::path::Path;
use std::time::SystemTime;

use murmur_network::{Double, Network};
use tokio::sync::watch;

use crate::console::note;
use crate::failure::{ExitCode, Failure};

/// Tells the owner of the elder node. Where this one is the younger, closes its network at once, so that nobody takes its
/// leaving for the elder's, and asks for its end.
pub(super) async fn watch_for_double(network: Network, stop: watch::Sender<bool>) {
    let mut double = network.double();
    let mut is_told = false;
    loop {
        let seen = *double.borrow_and_update();
        match seen {
            Some(Double { is_elder: true, .. }) => {
                network.close().await;
                let _ = stop.send(true);
                return;
            }
            Some(Double { began, is_elder: false }) if !is_told => {
                is_told = true;
                note(&format!(
                    "warning: another node with this node's identity has been started at {}, a member says; it is told \
                     to end\nhint: a data directory was copied, or a machine cloned: delete identity.key in the copy, \
                     and it becomes a node of its own",
                    shown(began)
                ));
            }
            _ => {}
        }
        if double.changed().await.is_err() {
            return;
        }
    }
}

/// Why the node has ended, where it was for an elder one.
pub(super) fn verdict(double: Option<Double>, identity: &Path) -> Result<(), Failure> {
    match double {
        Some(Double { began, is_elder: true }) => {
            let message = format!(
                "another node runs with this node's identity, since {}; this one was started later and has ended",
                shown(began)
            );
            Err(Failure::new(ExitCode::Files, message).hint(format!(
                "the data directory was copied, or the machine cloned: stop the other one, or delete {} to make this \
                 one a node of its own",
                identity.display()
            )))
        }
        _ => Ok(()),
    }
}

fn shown(time: SystemTime) -> String {
    let time = jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}
