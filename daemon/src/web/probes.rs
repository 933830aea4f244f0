//! For service managers and load balancers: whether the process answers, and whether the node has a model.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::Dashboard;

/// The answer of `/healthz` and `/readyz`.
#[derive(Serialize)]
struct Probe {
    ok: bool,
    /// joining, training, settling, completed, leaving or left; empty before the first report.
    phase: String,
}

pub(super) async fn alive(State(dashboard): State<Dashboard>) -> Response {
    let phase = dashboard.reports.borrow().phase.clone();
    Json(Probe { ok: true, phase }).into_response()
}

/// 200 while the node has a model and takes part, else 503.
pub(super) async fn ready(State(dashboard): State<Dashboard>) -> Response {
    let phase = dashboard.reports.borrow().phase.clone();
    let ok = matches!(phase.as_str(), "training" | "settling" | "completed");
    let status = if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Probe { ok, phase })).into_response()
}

pub(super) async fn status(State(dashboard): State<Dashboard>) -> Response {
    Json(dashboard.reports.borrow().clone()).into_response()
}
