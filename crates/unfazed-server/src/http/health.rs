//! `GET /health`: open to everybody, says nothing but whether requests are answered. Bodies as llama-server's.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::router::App;
use crate::supervisor::Phase;

/// Handles the request.
pub(crate) async fn get(State(app): State<App>) -> Response {
    let message = if app.engine.draining() {
        "Shutting down"
    } else if *app.engine.phase().borrow() == Phase::Ready {
        return Json(json!({"status": "ok"})).into_response();
    } else {
        "Loading model"
    };
    let body = json!({"error": {"code": 503, "message": message, "type": "unavailable_error"}});
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}
