//! What is answered to a request that is not carried out.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

/// Why a request is not carried out: the body of every answer that is no success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denied {
    /// What is wrong.
    pub error: String,
    /// What to do about it; empty where nothing is known.
    pub hint: String,
}

/// An answer that is no success.
pub(crate) fn refuse(status: StatusCode, error: &str, hint: &str) -> Response {
    (status, Json(Denied { error: error.to_owned(), hint: hint.to_owned() })).into_response()
}
