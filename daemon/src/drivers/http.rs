//! The status page: `GET /status` on a loopback port answers with a [`NodeReport`] in JSON.

use std::net::SocketAddr;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::failure::{ExitCode, Failure};
use crate::report::NodeReport;

/// Answers until it is dropped.
#[derive(Debug)]
pub struct StatusServer {
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl StatusServer {
    /// Listens on `address` and serves the latest report.
    ///
    /// # Errors
    /// When the port is taken.
    pub async fn start(address: &str, reports: watch::Receiver<NodeReport>) -> Result<StatusServer, Failure> {
        let taken = |error: std::io::Error| {
            Failure::new(ExitCode::Network, format!("cannot listen on {address} for `murmur status`: {error}"))
                .hint("choose another port with --status-address, or turn it off with --status-address off")
        };
        let listener = TcpListener::bind(address).await.map_err(taken)?;
        let address = listener.local_addr().map_err(taken)?;
        let latest = |State(reports): State<watch::Receiver<NodeReport>>| async move { Json(reports.borrow().clone()) };
        let router = Router::new().route("/status", get(latest)).with_state(reports);
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
