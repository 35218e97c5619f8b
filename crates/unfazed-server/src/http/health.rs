//! `GET /health`: open to everybody, says whether requests are answered and how engines have fared. Errors as
//! llama-server's.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;

use super::router::App;
use crate::supervisor::Health;

#[derive(Serialize)]
struct Body {
    status: &'static str,
    front: Front,
    #[serde(flatten)]
    health: Health,
}

/// The process that answers.
#[derive(Clone, Copy, Debug, Serialize)]
struct Front {
    pid: u32,
    /// New fronts that were to take over from it and did not.
    failed_restarts: u64,
}

/// Handles the request. Once an engine was ready requests are answered, if need be by the next engine.
pub(crate) async fn get(State(app): State<App>) -> Response {
    let message = match app.engine.health() {
        _ if app.engine.draining() => "Shutting down",
        Some(health) => {
            let failed_restarts = app.passage.failed();
            let front = Front { pid: std::process::id(), failed_restarts };
            return Json(Body { status: "ok", front, health }).into_response();
        }
        None => "Loading model",
    };
    let body = json!({"error": {"code": 503, "message": message, "type": "unavailable_error"}});
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}
