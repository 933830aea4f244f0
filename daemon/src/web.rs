//! The dashboard: the page at the status address, and what it asks the daemon for.
//!
//! | request | answer |
//! |---|---|
//! | `GET /` | the page; its files are below `/assets/` and lie in the binary |
//! | `GET /api/v1/summary` | the node as views draw it, without its curves |
//! | `GET /api/v1/series?metrics=…&window=SECONDS` | curves, downsampled here |
//! | `GET /api/v1/traffic` | bytes with each member, in three windows |
//! | `GET /api/v1/swarm` | exchanges as edges of a graph; of all daemons where this is one of `murmur local` |
//! | `GET /api/v1/run` | manifest and settings |
//! | `GET /api/v1/ticket` | the ticket with its QR code, for who sends the token of `daemon.json` |
//! | `GET /api/v1/status` | the report of `murmur status` |
//! | `GET /api/v1/openapi.json` | all of this for programs |
//! | `GET /healthz`, `GET /readyz` | whether the process answers; whether it has a model and data |
//!
//! Nothing is computed while nobody asks: the page follows `/api/v1/stream`, which sends what is recorded anyway.

mod assets;
mod figures;
mod probes;
mod run;
mod secured;
mod swarm;

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use murmur_protocol::{RunManifest, Secret};
use tokio::sync::watch;

use crate::daemon::invitation::Invitation;
use crate::observe::Hub;
use crate::observe::report::NodeReport;
use crate::settings::NodeSettings;

pub(crate) use secured::{Token, secured};

/// What the dashboard is made of.
#[derive(Clone)]
pub(crate) struct Dashboard {
    pub(crate) hub: Hub,
    pub(crate) reports: watch::Receiver<NodeReport>,
    pub(crate) invitations: watch::Receiver<Invitation>,
    pub(crate) about: Arc<About>,
    pub(crate) token: Token,
    siblings: swarm::Siblings,
}

/// What does not change while a daemon runs.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// What the members have agreed on.
    pub manifest: RunManifest,
    /// This machine's settings.
    pub settings: NodeSettings,
    /// The data directory.
    pub root: PathBuf,
    /// The secret of a closed run, which its ticket holds.
    pub secret: Option<Secret>,
}

impl Dashboard {
    pub(crate) fn new(
        hub: Hub,
        reports: watch::Receiver<NodeReport>,
        invitations: watch::Receiver<Invitation>,
        about: Arc<About>,
        token: Token,
    ) -> Dashboard {
        Dashboard { hub, reports, invitations, about, token, siblings: swarm::Siblings::default() }
    }
}

/// The routes below `/api/v1`.
pub(crate) fn api(dashboard: Dashboard) -> Router {
    Router::new()
        .route("/summary", get(figures::summary))
        .route("/series", get(figures::series))
        .route("/traffic", get(figures::traffic))
        .route("/swarm", get(swarm::graph))
        .route("/run", get(run::run))
        .route("/ticket", get(run::ticket))
        .route("/status", get(probes::status))
        .route("/openapi.json", get(assets::openapi))
        .with_state(dashboard)
}

/// The page, its files, and the probes.
pub(crate) fn site(dashboard: Dashboard) -> Router {
    Router::new()
        .route("/", get(assets::index))
        .route("/favicon.ico", get(assets::icon))
        .route("/assets/{*path}", get(assets::file))
        .route("/healthz", get(probes::alive))
        .route("/readyz", get(probes::ready))
        .with_state(dashboard)
}
