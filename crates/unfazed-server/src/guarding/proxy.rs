//! Requests at the guard's door: who may come in, what the guard answers itself, and what goes on to the server.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Response, StatusCode, Uri};
use axum::response::IntoResponse;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::client;
use super::exchange::passed_on;
use super::probe::Asker;
use super::request::Asked;
use super::state::{Guard, Phase};
use super::{stream, whole};
use crate::http::ApiKeys;
use crate::http::Callers;
use crate::http::body::Bodies;
use crate::http::error::ApiError;
use crate::http::router::{catch_panics, cors_layer};

/// The guard's own status.
const STATUS: &str = "/guard/status";

/// What all requests share.
pub(super) struct Door {
    pub(super) guard: Arc<Guard>,
    pub(super) callers: Callers,
    pub(super) keys: ApiKeys,
    pub(super) bodies: Bodies,
}

/// The whole service.
pub(super) fn router(door: Arc<Door>) -> Router {
    let cors = door.guard.options.front.cors.clone();
    let router = Router::new().fallback(handle).with_state(door).layer(catch_panics());
    match cors {
        None => router,
        Some(origins) => router.layer(cors_layer(&origins)),
    }
}

async fn handle(State(door): State<Arc<Door>>, request: Request) -> Response<Body> {
    match answer(&door, request).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

async fn answer(door: &Door, request: Request) -> Result<Response<Body>, ApiError> {
    let path = request.uri().path();
    let guard = &door.guard;
    if matches!(path, "/health" | "/v1/health") && request.method() == "GET" {
        return Ok(health(guard).await);
    }
    door.callers.check(request.uri(), request.headers())?;
    door.keys.check(request.headers())?;
    if path == STATUS {
        return Ok(Json(status(guard, true)).into_response());
    }
    let active = guard.enter()?;
    let (parts, body) = request.into_parts();
    let received = door.bodies.read(body).await?;
    let asked = Asked {
        target: target(&parts.uri),
        path: parts.uri.path().to_owned(),
        headers: passed_on(&parts.headers),
        object: serde_json::from_slice::<Value>(received.bytes()).ok().and_then(|body| match body {
            Value::Object(object) => Some(object),
            _ => None,
        }),
        body: received.bytes().to_vec().into(),
        method: parts.method,
    };
    drop(received);
    Ok(if asked.is_streamed() {
        stream::answer(active, asked).await
    } else {
        whole::answer(active, asked).await
    })
}

/// Path and query, whatever form the request's target had.
fn target(uri: &Uri) -> String {
    uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string)
}

fn status(guard: &Guard, evidence: bool) -> Value {
    let ready = matches!(guard.phase(), Phase::Ready(_));
    let mut status = guard.standing().json(ready, evidence);
    if evidence && let Some(status) = status.as_object_mut() {
        status.insert("program".to_owned(), guard.options.command.name.clone().into());
        status.insert("pid".to_owned(), guard.standing().pid.into());
        status.insert("requests".to_owned(), guard.active().into());
    }
    status
}

/// 200 while requests are answered, if need be by the next process; the server's own words where it has some.
async fn health(guard: &Guard) -> Response<Body> {
    let message = if guard.draining() {
        "Shutting down"
    } else if guard.standing().ever_ready {
        let mut body = own_health(guard).await.unwrap_or_else(|| json!({"status": "ok"}));
        body["guard"] = status(guard, false);
        return Json(body).into_response();
    } else {
        "Loading model"
    };
    let error = json!({"code": 503, "message": message, "type": "unavailable_error"});
    let body = json!({"error": error, "guard": status(guard, false)});
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}

/// What the server itself says, as an object.
async fn own_health(guard: &Guard) -> Option<Value> {
    let Phase::Ready(life) = guard.phase() else { return None };
    let Asker(key) = Asker(guard.options.command.key.as_deref());
    let (status, body) = client::ask(life.port, key, "/health", None, HEALTH).await.ok()?;
    let body: Value = serde_json::from_slice(&body).ok()?;
    (status.is_success() && body.is_object()).then_some(body)
}

/// How long the server may take to say how it is, before the guard alone does.
const HEALTH: std::time::Duration = std::time::Duration::from_secs(1);
