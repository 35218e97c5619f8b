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
const RUNNING: &str = "unfazed_requests_running";
const QUEUED: &str = "unfazed_requests_queued";
const KV_PAGES: &str = "unfazed_kv_pages";
const PROMPT_TOKENS: &str = "unfazed_prompt_tokens_total";
const CACHED_TOKENS: &str = "unfazed_cached_tokens_total";
const GENERATED_TOKENS: &str = "unfazed_generated_tokens_total";
const RESTARTS: &str = "unfazed_engine_restarts_total";
const RESUMED: &str = "unfazed_requests_resumed_total";
const POSITIONS_KEPT: &str = "unfazed_positions_kept_total";
const POSITIONS_RECOMPUTED: &str = "unfazed_positions_recomputed_total";
const WEIGHTS_READ: &str = "unfazed_weights_read_bytes_total";
const WEIGHTS_KEPT: &str = "unfazed_weights_kept_bytes_total";
const QUARANTINED: &str = "unfazed_requests_quarantined_total";
const STRUCK: &str = "unfazed_memory_struck_bytes";
const OPEN_SLOTS: &str = "unfazed_expert_slots_open";
const FAULTS: &str = "unfazed_faults_total";
const LADDER: &str = "unfazed_ladder_rung";
const FIRST_TOKEN: &str = "unfazed_time_to_first_token_seconds";
const PER_TOKEN: &str = "unfazed_time_per_token_seconds";
const QUEUE: &str = "unfazed_queue_seconds";

/// What each one is, as Prometheus is told.
const DESCRIPTIONS: [(&str, Kind, &str); 22] = [
    (REQUESTS, Kind::Counter, "HTTP requests answered, by endpoint and status"),
    (EXITS, Kind::Counter, "Engines that ended without being told to, by cause"),
    (RUNNING, Kind::Gauge, "Sequences that the engine computes"),
    (QUEUED, Kind::Gauge, "Sequences that wait for the engine"),
    (KV_PAGES, Kind::Gauge, "KV pages that there are"),
    (PROMPT_TOKENS, Kind::Counter, "Prompt tokens computed"),
    (CACHED_TOKENS, Kind::Counter, "Prompt tokens found computed already"),
    (GENERATED_TOKENS, Kind::Counter, "Tokens generated"),
    (RESTARTS, Kind::Counter, "Engines started after another one's death"),
    (RESUMED, Kind::Counter, "Sequences that another engine went on with"),
    (POSITIONS_KEPT, Kind::Counter, "Positions of resumed sequences whose keys and values were still there"),
    (
        POSITIONS_RECOMPUTED,
        Kind::Counter,
        "Positions of resumed sequences that had to be computed before the next token",
    ),
    (WEIGHTS_READ, Kind::Counter, "Bytes of weights that engines read from the model's files"),
    (WEIGHTS_KEPT, Kind::Counter, "Bytes of packed weights that engines found in memory"),
    (QUARANTINED, Kind::Counter, "Sequences that were given up because they ended the engine by themselves"),
    (STRUCK, Kind::Gauge, "Bytes held by engines that could not be ended"),
    (OPEN_SLOTS, Kind::Gauge, "Slots for experts that the engine may use"),
    (FAULTS, Kind::Counter, "Faults, by class and by what was decided"),
    (LADDER, Kind::Gauge, "What is given up for faults, by ladder: 0 is nothing"),
    (FIRST_TOKEN, Kind::Seconds, "From a request's arrival to its first token"),
    (PER_TOKEN, Kind::Seconds, "Mean time per generated token of an answer"),
    (QUEUE, Kind::Seconds, "Wait for a place in the engine"),
];

/// What kind of number a metric is.
#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    /// A histogram of times.
    Seconds,
}

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
        for (name, buckets) in
            [(FIRST_TOKEN, PHASE_BUCKETS), (QUEUE, PHASE_BUCKETS), (PER_TOKEN, TOKEN_BUCKETS)]
        {
            builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), buckets)?;
        }
        let recorder = builder.build_recorder();
        for (name, kind, text) in DESCRIPTIONS {
            match kind {
                Kind::Counter => recorder.describe_counter(name.into(), Some(Unit::Count), text.into()),
                Kind::Gauge => recorder.describe_gauge(name.into(), Some(Unit::Count), text.into()),
                Kind::Seconds => recorder.describe_histogram(name.into(), Some(Unit::Seconds), text.into()),
            }
        }
        let counter = |name| recorder.register_counter(&Key::from_static_name(name), &METADATA);
        let gauge = |name| recorder.register_gauge(&Key::from_static_name(name), &METADATA);
        let histogram = |name| recorder.register_histogram(&Key::from_static_name(name), &METADATA);
        Ok(Metrics {
            running: gauge(RUNNING),
            queued: gauge(QUEUED),
            kv_pages: gauge(KV_PAGES),
            prompt_tokens: counter(PROMPT_TOKENS),
            cached_tokens: counter(CACHED_TOKENS),
            generated_tokens: counter(GENERATED_TOKENS),
            restarts: counter(RESTARTS),
            resumed: counter(RESUMED),
            positions_kept: counter(POSITIONS_KEPT),
            positions_recomputed: counter(POSITIONS_RECOMPUTED),
            weights_read: counter(WEIGHTS_READ),
            weights_kept: counter(WEIGHTS_KEPT),
            quarantined: counter(QUARANTINED),
            struck: gauge(STRUCK),
            first_token: histogram(FIRST_TOKEN),
            per_token: histogram(PER_TOKEN),
            queue: histogram(QUEUE),
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

    /// Class and action by their names.
    pub(crate) fn fault(&self, class: &'static str, action: &'static str) {
        let labels =
            vec![Label::from_static_parts("class", class), Label::from_static_parts("action", action)];
        self.recorder.register_counter(&Key::from_parts(FAULTS, labels), &METADATA).increment(1);
    }

    pub(crate) fn open_slots(&self, slots: usize) {
        self.recorder.register_gauge(&Key::from_static_name(OPEN_SLOTS), &METADATA).set(slots as f64);
    }

    pub(crate) fn ladder(&self, ladder: &'static str, rung: usize) {
        let labels = vec![Label::from_static_parts("ladder", ladder)];
        self.recorder.register_gauge(&Key::from_parts(LADDER, labels), &METADATA).set(rung as f64);
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
