//! Paths, and what stands before them.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::sync::Semaphore;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::auth::{ApiKeys, Caller};
use super::body::Bodies;
use super::error::ApiError;
use super::metrics::{self, Metrics};
use super::origin::Callers;
use super::streams::{Streams, resume};
use super::{health, openai, status};
use crate::handover::Passage;
use crate::journal::Tapes;
use crate::model::Model;
use crate::options::CorsOrigins;
use crate::supervisor::Engine;

/// Status under which a request is counted whose client left before an answer (nginx's number for it).
const CLIENT_LEFT: u16 = 499;

/// What all handlers share.
pub(crate) struct AppState {
    pub(crate) engine: Engine,
    pub(crate) model: Arc<Model>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) keys: ApiKeys,
    pub(crate) callers: Callers,
    pub(crate) bodies: Bodies,
    pub(crate) streams: Arc<Streams>,
    pub(crate) tapes: Arc<Tapes>,
    /// Where answers are made.
    pub(crate) passage: Arc<Passage>,
    pub(crate) keep_alive: Duration,
    /// Bounds templates and tokenisers at work, so that they leave cores to the engine.
    pub(crate) preparing: Arc<Semaphore>,
}

/// The same, shared.
pub(crate) type App = Arc<AppState>;

/// The whole service.
pub(crate) fn router(app: App, cors: Option<&CorsOrigins>) -> Router {
    let openai = Router::new()
        .route("/chat/completions", post(openai::chat::post))
        .route("/completions", post(openai::completions::post))
        .route("/models", get(openai::models::list))
        .route("/models/{*model}", get(openai::models::one))
        .route("/streams/{id}", get(resume::get))
        .route("/status", get(status::get));
    let router = Router::new()
        .merge(openai.clone())
        .nest("/v1", openai)
        .route("/health", get(health::get))
        .route("/v1/health", get(health::get))
        .route("/metrics", get(metrics::get))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(catch_panics())
        .layer(middleware::from_fn_with_state(Arc::clone(&app), gate))
        .with_state(app);
    match cors {
        None => router,
        Some(origins) => router.layer(cors_layer(origins)),
    }
}

/// Stands before every path: counts, and lets in who may.
async fn gate(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let mut count = Count { metrics: &app.metrics, endpoint: endpoint(path), status: CLIENT_LEFT };
    let open = matches!(path, "/health" | "/v1/health");
    let allowed = if open { Ok(()) } else { app.callers.check(request.uri(), request.headers()) };
    let known = if open { Ok(Caller::default()) } else { app.keys.check(request.headers()) };
    let response = match allowed.and(known) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(error) => error.into_response(),
    };
    count.status = response.status().as_u16();
    drop(count);
    response
}

/// Counts a request when it is dropped, so that those of clients that left are counted too.
struct Count<'a> {
    metrics: &'a Metrics,
    endpoint: &'static str,
    status: u16,
}

impl Drop for Count<'_> {
    fn drop(&mut self) {
        self.metrics.request(self.endpoint, self.status);
    }
}

/// A path as a label: a fixed set, whatever clients send.
fn endpoint(path: &str) -> &'static str {
    match path.strip_prefix("/v1").unwrap_or(path) {
        "/chat/completions" => "chat_completions",
        "/completions" => "completions",
        "/health" => "health",
        "/status" => "status",
        "/metrics" => "metrics",
        path if path.starts_with("/streams/") => "streams",
        path if path == "/models" || path.starts_with("/models/") => "models",
        _ => "other",
    }
}

async fn unknown_path(uri: Uri) -> ApiError {
    ApiError::not_found(format!("there is nothing at {}", shown(uri.path())))
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    ApiError::method(format!("{} does not take {}", shown(uri.path()), shown(method.as_str())))
}

/// As much of a client's text as an error shows.
fn shown(text: &str) -> String {
    text.chars().take(200).collect()
}

/// What a handler's panic answers, so that it ends nothing else.
type Panicked = fn(Box<dyn Any + Send>) -> Response;

/// Turns a panic of a handler's into an answer.
pub(crate) fn catch_panics() -> CatchPanicLayer<Panicked> {
    CatchPanicLayer::custom(|cause: Box<dyn Any + Send>| panicked(&*cause))
}

fn panicked(cause: &(dyn Any + Send)) -> Response {
    let text = cause.downcast_ref::<&str>().copied();
    let text = text.or_else(|| cause.downcast_ref::<String>().map(String::as_str)).unwrap_or("unknown cause");
    tracing::error!("a request's handler panicked: {text}");
    ApiError::internal("the server failed at this request; its log has the cause").into_response()
}

/// Lets pages of other origins in.
pub(crate) fn cors_layer(origins: &CorsOrigins) -> CorsLayer {
    let origins = match origins {
        CorsOrigins::Any => AllowOrigin::any(),
        // Those that no header can carry were refused at start.
        CorsOrigins::Only(origins) => {
            AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()))
        }
    };
    CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([header::RETRY_AFTER, resume::STREAM_ID])
}
