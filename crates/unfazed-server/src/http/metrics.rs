//! Numbers for Prometheus. `docs/metrics.md` lists every name.

use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, Unit};
use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

use super::router::App;

/// How often histograms' raw samples are folded into their buckets, so that they do not pile up where nobody scrapes.
pub(crate) const UPKEEP_EVERY: Duration = Duration::from_secs(5);

const REQUESTS: &str = "unfazed_requests_total";
const EXITS: &str = "unfazed_engine_exits_total";
const PHASE_BUCKETS: &[f64] = &[0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0];
const TOKEN_BUCKETS: &[f64] = &[0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0];
const METADATA: Metadata<'static> = Metadata::new("unfazed_server", Level::INFO, Some(module_path!()));

/// The server's own recorder: several servers in one process don't mix their numbers.
pub(crate) struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    running: Gauge,
    queued: Gauge,
    kv_pages: Gauge,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    generated_tokens: Counter,
    restarts: Counter,
    resumed: Counter,
    positions_kept: Counter,
    positions_recomputed: Counter,
    weights_read: Counter,
    weights_kept: Counter,
    quarantined: Counter,
    struck: Gauge,
    first_token: Histogram,
    per_token: Histogram,
    queue: Histogram,
}

impl Metrics {
    /// Fails only if a list of buckets above is empty.
    pub(crate) fn new() -> Result<Metrics, BuildError> {
        let mut builder = PrometheusBuilder::new();
        for (name, buckets) in [
            ("unfazed_time_to_first_token_seconds", PHASE_BUCKETS),
            ("unfazed_queue_seconds", PHASE_BUCKETS),
            ("unfazed_time_per_token_seconds", TOKEN_BUCKETS),
        ] {
            builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), buckets)?;
        }
        let recorder = builder.build_recorder();
        let describe_counter = |name: &'static str, text: &'static str| {
            recorder.describe_counter(name.into(), Some(Unit::Count), text.into());
            recorder.register_counter(&Key::from_static_name(name), &METADATA)
        };
        let describe_gauge = |name: &'static str, text: &'static str| {
            recorder.describe_gauge(name.into(), Some(Unit::Count), text.into());
            recorder.register_gauge(&Key::from_static_name(name), &METADATA)
        };
        let describe_histogram = |name: &'static str, text: &'static str| {
            recorder.describe_histogram(name.into(), Some(Unit::Seconds), text.into());
            recorder.register_histogram(&Key::from_static_name(name), &METADATA)
        };
        recorder.describe_counter(
            REQUESTS.into(),
            Some(Unit::Count),
            "HTTP requests answered, by endpoint and status".into(),
        );
        recorder.describe_counter(
            EXITS.into(),
            Some(Unit::Count),
            "Engines that ended without being told to, by cause".into(),
        );
        Ok(Metrics {
            running: describe_gauge("unfazed_requests_running", "Sequences that the engine computes"),
            queued: describe_gauge("unfazed_requests_queued", "Sequences that wait for the engine"),
            kv_pages: describe_gauge("unfazed_kv_pages", "KV pages that there are"),
            prompt_tokens: describe_counter("unfazed_prompt_tokens_total", "Prompt tokens computed"),
            cached_tokens: describe_counter(
                "unfazed_cached_tokens_total",
                "Prompt tokens found computed already",
            ),
            generated_tokens: describe_counter("unfazed_generated_tokens_total", "Tokens generated"),
            restarts: describe_counter(
                "unfazed_engine_restarts_total",
                "Engines started after another one's death",
            ),
            resumed: describe_counter(
                "unfazed_requests_resumed_total",
                "Sequences that another engine went on with",
            ),
            positions_kept: describe_counter(
                "unfazed_positions_kept_total",
                "Positions of resumed sequences whose keys and values were still there",
            ),
            positions_recomputed: describe_counter(
                "unfazed_positions_recomputed_total",
                "Positions of resumed sequences that had to be computed before the next token",
            ),
            weights_read: describe_counter(
                "unfazed_weights_read_bytes_total",
                "Bytes of weights that engines read from the model's files",
            ),
            weights_kept: describe_counter(
                "unfazed_weights_kept_bytes_total",
                "Bytes of packed weights that engines found in memory",
            ),
            quarantined: describe_counter(
                "unfazed_requests_quarantined_total",
                "Sequences that were given up because they ended the engine by themselves",
            ),
            struck: describe_gauge(
                "unfazed_memory_struck_bytes",
                "Bytes held by engines that could not be ended",
            ),
            first_token: describe_histogram(
                "unfazed_time_to_first_token_seconds",
                "From a request's arrival to its first token",
            ),
            per_token: describe_histogram(
                "unfazed_time_per_token_seconds",
                "Mean time per generated token of an answer",
            ),
            queue: describe_histogram("unfazed_queue_seconds", "Wait for a place in the engine"),
            handle: recorder.handle(),
            recorder,
        })
    }

    pub(crate) fn request(&self, endpoint: &'static str, status: u16) {
        let labels =
            vec![Label::from_static_parts("endpoint", endpoint), Label::new("status", status.to_string())];
        self.recorder.register_counter(&Key::from_parts(REQUESTS, labels), &METADATA).increment(1);
    }

    pub(crate) fn sequences(&self, running: usize, queued: usize) {
        self.running.set(running as f64);
        self.queued.set(queued as f64);
    }

    pub(crate) fn kv_pages(&self, pages: usize) {
        self.kv_pages.set(pages as f64);
    }

    pub(crate) fn engine_restarted(&self) {
        self.restarts.increment(1);
    }

    pub(crate) fn engine_exit(&self, cause: &'static str) {
        let labels = vec![Label::from_static_parts("cause", cause)];
        self.recorder.register_counter(&Key::from_parts(EXITS, labels), &METADATA).increment(1);
    }

    /// An engine is ready.
    pub(crate) fn engine_ready(&self, info: &unfazed_wire::ReadyInfo) {
        self.weights_read.increment(info.read_bytes);
        self.weights_kept.increment(info.kept_bytes);
    }

    pub(crate) fn request_resumed(&self, kept_positions: usize, missing_positions: usize) {
        self.resumed.increment(1);
        self.positions_kept.increment(kept_positions as u64);
        self.positions_recomputed.increment(missing_positions as u64);
    }

    pub(crate) fn request_quarantined(&self) {
        self.quarantined.increment(1);
    }

    pub(crate) fn memory_struck(&self, bytes: u64) {
        self.struck.set(bytes as f64);
    }

    pub(crate) fn generated_token(&self) {
        self.generated_tokens.increment(1);
    }

    pub(crate) fn queued(&self, milliseconds: f64) {
        self.queue.record(milliseconds / 1e3);
    }

    pub(crate) fn first_token(&self, after: Duration) {
        self.first_token.record(after.as_secs_f64());
    }

    /// A sequence ended well.
    pub(crate) fn finished(&self, timings: &unfazed_wire::Timings) {
        self.prompt_tokens.increment(timings.prompt_tokens as u64);
        self.cached_tokens.increment(timings.cached_tokens as u64);
        if timings.predicted_tokens > 0 {
            self.per_token.record(timings.predicted_ms / 1e3 / timings.predicted_tokens as f64);
        }
    }

    pub(crate) fn upkeep(&self) {
        self.handle.run_upkeep();
    }

    fn render(&self) -> String {
        self.handle.render()
    }
}

/// `GET /metrics`.
pub(crate) async fn get(State(app): State<App>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.metrics.render())
        .into_response()
}
