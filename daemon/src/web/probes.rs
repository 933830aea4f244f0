//! For service managers and load balancers: whether the process answers, and whether the node has a model.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::Dashboard;
use crate::observe::doing::lacks_data;
use crate::observe::report::NodeReport;

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

/// 200 while the node has a model, and data to train it on, and takes part, else 503.
pub(super) async fn ready(State(dashboard): State<Dashboard>) -> Response {
    let (ok, phase) = {
        let report = dashboard.reports.borrow();
        (is_ready(&report), report.phase.clone())
    };
    let status = if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Probe { ok, phase })).into_response()
}

fn is_ready(report: &NodeReport) -> bool {
    match report.phase.as_str() {
        "training" => !lacks_data(report.data.as_ref()),
        phase => matches!(phase, "settling" | "completed"),
    }
}

pub(super) async fn status(State(dashboard): State<Dashboard>) -> Response {
    Json(dashboard.reports.borrow().clone()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::DataReport;

    #[test]
    fn who_has_no_data_to_train_on_is_not_ready() {
        let is_ready = |phase: &str, data: Option<DataReport>| {
            is_ready(&NodeReport { phase: phase.to_owned(), data, ..NodeReport::default() })
        };
        let data = |suffices| Some(DataReport { suffices, ..DataReport::default() });
        assert!(is_ready("training", None) && is_ready("training", data(true)));
        assert!(!is_ready("training", data(false)) && !is_ready("joining", None) && !is_ready("", None));
        assert!(is_ready("completed", data(false)), "it trains no more, and gives the model to whoever joins");
    }
}
