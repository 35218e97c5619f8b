//! `GET /v1/status`: how engines have fared, what was given up, the last faults, and where each request's time goes.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use serde::Serialize;

use super::router::App;
use crate::journal::StoreState;
use crate::supervisor::Status;

#[derive(Serialize)]
struct Body {
    #[serde(flatten)]
    status: Status,
    /// The journal on disk; `null` without.
    journal: Option<StoreState>,
}

/// Handles the request.
pub(crate) async fn get(State(app): State<App>) -> Response {
    let journal = app.tapes.store_state();
    Json(Body { status: app.engine.status(), journal }).into_response()
}
