//! The status page on a loopback port: `GET /status` answers with a [`NodeReport`] in JSON, `GET /ticket` with an
//! [`Invitation`].

use std::net::SocketAddr;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::failure::{ExitCode, Failure};
use crate::invitation::Invitation;
use crate::report::NodeReport;

/// What the page shows.
#[derive(Clone, Debug)]
pub struct Pages {
    /// How the node does.
    pub reports: watch::Receiver<NodeReport>,
    /// How others join.
    pub invitations: watch::Receiver<Invitation>,
}

/// Answers until it is dropped.
#[derive(Debug)]
pub struct StatusServer {
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl StatusServer {
    /// Listens on `address` and serves the latest of each page.
    ///
    /// # Errors
    /// When the port is taken.
    pub async fn start(address: &str, pages: Pages) -> Result<StatusServer, Failure> {
        let taken = |error: std::io::Error| {
            Failure::new(ExitCode::Network, format!("cannot listen on {address} for `murmur status`: {error}"))
                .hint("choose another port with --status-address, or turn it off with --status-address off")
        };
        let listener = TcpListener::bind(address).await.map_err(taken)?;
        let address = listener.local_addr().map_err(taken)?;
        let report = |State(pages): State<Pages>| async move { Json(pages.reports.borrow().clone()) };
        let invitation = |State(pages): State<Pages>| async move { Json(pages.invitations.borrow().clone()) };
        let router = Router::new().route("/status", get(report)).route("/ticket", get(invitation)).with_state(pages);
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::warn!("the status page has ended: {error}");
            }
        });
        Ok(StatusServer { address, task })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for StatusServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}
