//! The entry point: binds, starts the engine, serves, drains.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::sync::watch;
use unfazed_formats::{Checkpoint, Headers};
use unfazed_plan::{PAGE_TOKENS, Plan, needs};
use unfazed_wire::memory::WEIGHTS_OFFSET;
use unfazed_wire::{ReadyInfo, Start, Threads};

use crate::events::{EffectiveSettings, Event, EventSink, Partition, Ready};
use crate::http::body::Bodies;
use crate::http::metrics::{Metrics, UPKEEP_EVERY};
use crate::http::router::{AppState, router};
use crate::http::streams::Streams;
use crate::http::{ApiKeys, Callers, descriptors, listener};
use crate::model::{Model, refused_chats};
use crate::supervisor::{Engine, Fatal, Keeper, Launch, Limits, Orders, Phase, Sizes};
use crate::{ServeOptions, ServerError};

/// How long an engine may take to end in good order before it is killed. It has nothing to save.
const ENGINE_END: Duration = Duration::from_secs(2);

/// Serves a model until `shutdown` resolves, and then until running requests have ended or `options.drain` is over.
/// Needs a tokio runtime with time and I/O.
///
/// # Errors
///
/// Whatever keeps the server from starting, and what ends it for good: a model that cannot be loaded (also by a later
/// engine), an engine of another build, an engine that never gets ready. A dying engine is no error: another is started.
pub async fn serve(
    options: ServeOptions,
    checkpoint: Checkpoint,
    plan: Plan,
    launch: impl Launch,
    events: EventSink,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServerError> {
    let (socket, address) = bind(&options).await?;
    events(Event::Listening { host: address.ip().to_string(), port: address.port() });
    let callers = Callers::new(&options, address.ip())?;
    let metrics = Arc::new(metrics(&plan)?);
    let capacity = plan.parallel.saturating_add(options.max_queue);
    let engine = Engine::new(capacity, Arc::clone(&metrics), Arc::clone(&events));
    let start = start_message(&options, &checkpoint, &plan)?;
    // Built before the engine starts: a tokenizer that cannot be is a refusal, and no engine has to be ended for it.
    let (checkpoint, plan, model) = with_model(&options, checkpoint, plan).await?;
    let limits = listener::Limits {
        connections: descriptors::connections(options.connections, checkpoint.files.len())?,
        head: options.receive_timeout,
    };
    let app = app(&options, callers, model, &engine, &metrics);
    let orders = Orders {
        launch: Box::new(launch),
        start,
        ready: ready_event(&options, &checkpoint, &plan, address),
        memory: memory_sizes(&checkpoint, &plan),
        limits: Limits { stall: options.stall, patience: options.storage_patience },
        files: checkpoint.files,
        model: options.model_id.clone(),
        events: Arc::clone(&events),
        metrics: Arc::clone(&metrics),
    };
    let keeper = Keeper::start(&engine, orders)
        .map_err(|source| ServerError::System { what: "the keeper's thread cannot be started", source })?;
    let http = Http { socket, router: router(app, options.cors.as_ref()), limits };
    let result = run(&options, http, &engine, &metrics, &events, shutdown).await;
    end_engine(&engine, keeper).await;
    result.map(|unfinished_requests| events(Event::Shutdown { unfinished_requests }))
}

fn metrics(plan: &Plan) -> Result<Metrics, ServerError> {
    let metrics = Metrics::new().map_err(|error| ServerError::System {
        what: "the metrics cannot be set up",
        source: std::io::Error::other(error),
    })?;
    metrics.kv_pages(plan.pages);
    Ok(metrics)
}

/// Makes a checkpoint's tokenizer and template, away from the async threads; what the template lacks becomes a note.
async fn with_model(
    options: &ServeOptions,
    checkpoint: Checkpoint,
    plan: Plan,
) -> Result<(Checkpoint, Plan, Model), ServerError> {
    let model_id = options.model_id.clone();
    let (checkpoint, mut plan, model) = tokio::task::spawn_blocking(move || {
        let model = Model::new(model_id, &checkpoint, &plan);
        (checkpoint, plan, model)
    })
    .await
    .map_err(|error| ServerError::Tokenizer(format!("building the tokenizer failed: {error}")))?;
    let model = model?;
    plan.notes.extend(model.template.as_ref().err().map(refused_chats));
    Ok((checkpoint, plan, model))
}

/// What the handlers share.
fn app(
    options: &ServeOptions,
    callers: Callers,
    model: Model,
    engine: &Engine,
    metrics: &Arc<Metrics>,
) -> Arc<AppState> {
    Arc::new(AppState {
        engine: engine.clone(),
        model: Arc::new(model),
        metrics: Arc::clone(metrics),
        keys: ApiKeys::new(options.api_keys.clone()),
        callers,
        bodies: Bodies::new(options.body_limit, options.body_budget, options.receive_timeout),
        streams: Arc::new(Streams::new(options.stream_budget)),
        keep_alive: options.keep_alive,
        preparing: Arc::new(Semaphore::new(unfazed_host::cores().most_threads())),
    })
}

/// What answers clients.
struct Http {
    socket: TcpListener,
    router: Router,
    limits: listener::Limits,
}

/// Serves until the end and returns how many sequences were ended unfinished.
async fn run(
    options: &ServeOptions,
    http: Http,
    engine: &Engine,
    metrics: &Metrics,
    events: &EventSink,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<usize, ServerError> {
    let (end, ended) = watch::channel(false);
    let mut stop = ended.clone();
    let http = tokio::spawn(listener::serve(http.socket, http.router, http.limits, async move {
        // A sender that is gone means that this function was cancelled: the listener ends too.
        let _ = stop.wait_for(|end| *end).await;
    }));
    let mut phase = engine.phase();
    let result = tokio::select! {
        () = shutdown => Ok(drain(options, engine, events).await),
        fatal = fatal(&mut phase) => {
            engine.drain();
            engine.interrupt_all();
            Err(fatal)
        }
        () = upkeep(metrics) => Ok(0),
    };
    end.send_replace(true);
    if let Err(error) = http.await {
        tracing::error!(%error, "the listener failed");
    }
    result
}

/// Lets running requests end, for so long.
async fn drain(options: &ServeOptions, engine: &Engine, events: &EventSink) -> usize {
    let requests = engine.drain();
    let limit_ms = u64::try_from(options.drain.as_millis()).unwrap_or(u64::MAX);
    events(Event::Draining { requests, limit_ms });
    if tokio::time::timeout(options.drain, engine.idle()).await.is_ok() {
        return 0;
    }
    engine.interrupt_all()
}

/// Resolves once no engine will ever be ready.
async fn fatal(phase: &mut watch::Receiver<Phase>) -> ServerError {
    let failed = phase.wait_for(|phase| matches!(phase, Phase::Failed(_) | Phase::Stopped)).await;
    match failed.as_deref() {
        Ok(Phase::Failed(Fatal::Load(message))) => ServerError::Load(message.clone()),
        Ok(Phase::Failed(Fatal::Build(engine))) => {
            ServerError::Build { front: unfazed_wire::BUILD_ID.to_owned(), engine: engine.clone() }
        }
        Ok(Phase::Failed(Fatal::NeverReady(attempts, cause))) => {
            ServerError::NeverReady { attempts: *attempts, cause: cause.clone() }
        }
        Ok(Phase::Failed(Fatal::Keeper)) => ServerError::System {
            what: "the thread that starts engines panicked; its message is in the log",
            source: std::io::Error::other("a fault of this program"),
        },
        // Nothing stops the engine while the server runs.
        Ok(_) | Err(_) => ServerError::NeverReady { attempts: 0, cause: "an order to stop".to_owned() },
    }
}

/// Never resolves.
async fn upkeep(metrics: &Metrics) {
    let mut clock = tokio::time::interval(UPKEEP_EVERY);
    loop {
        clock.tick().await;
        metrics.upkeep();
    }
}

/// Ends the engine: by a word, then by force. The keeper's thread is joined away from the async threads.
async fn end_engine(engine: &Engine, keeper: Keeper) {
    let mut phase = engine.phase();
    engine.stop();
    let stopped = phase.wait_for(|phase| matches!(phase, Phase::Stopped | Phase::Failed(_)));
    if tokio::time::timeout(ENGINE_END, stopped).await.is_err() {
        tracing::warn!("the engine does not end by itself and is killed");
    }
    if let Err(error) = tokio::task::spawn_blocking(move || drop(keeper)).await {
        tracing::error!(%error, "the engine's keeper cannot be joined");
    }
}

async fn bind(options: &ServeOptions) -> Result<(TcpListener, SocketAddr), ServerError> {
    let host = options.host.trim_start_matches('[').trim_end_matches(']');
    let failed = |source| ServerError::Bind { address: format!("{}:{}", options.host, options.port), source };
    let listener = TcpListener::bind((host, options.port)).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

fn memory_sizes(checkpoint: &Checkpoint, plan: &Plan) -> Sizes {
    Sizes {
        weights: plan.weight_bytes.0.saturating_add(WEIGHTS_OFFSET as u64),
        scratch: plan.scratch_bytes.0,
        pages: plan.pages,
        page_bytes: usize::try_from(needs::page(&checkpoint.config, plan.cache).0).unwrap_or(usize::MAX),
        least_pages: plan.context.0.div_ceil(PAGE_TOKENS),
    }
}

/// The engine's first message. The keeper fills in the memory.
fn start_message(options: &ServeOptions, checkpoint: &Checkpoint, plan: &Plan) -> Result<Start, ServerError> {
    let headers = Headers::from(checkpoint).encode().map_err(|error| ServerError::System {
        what: "the model's headers cannot be handed over",
        source: std::io::Error::other(error),
    })?;
    Ok(Start {
        headers,
        context: plan.context.0,
        parallel: plan.parallel,
        pages: plan.pages,
        page_tokens: PAGE_TOKENS,
        cache_type_k: plan.cache.keys.to_string(),
        cache_type_v: plan.cache.values.to_string(),
        chunk: plan.chunk.0,
        threads: Threads {
            decode: plan.threads,
            batch: plan.batch_threads,
            processors: options.processors.clone(),
            pin: options.pin,
        },
        isa: options.isa.clone(),
        weight_memory: 0,
        kv_memory: 0,
    })
}

/// What makes the `ready` event once the engine says what it is.
fn ready_event(
    options: &ServeOptions,
    checkpoint: &Checkpoint,
    plan: &Plan,
    address: SocketAddr,
) -> Box<dyn Fn(&ReadyInfo) -> Event + Send> {
    let (plan, layers) = (plan.clone(), checkpoint.config.layers);
    let (model, max_queue, api_key) =
        (options.model_id.clone(), options.max_queue, !options.api_keys.is_empty());
    Box::new(move |info| {
        let gb = |bytes: u64| bytes as f64 / 1e9;
        let (weights, kv) = (gb(info.weight_bytes), gb(info.kv_bytes));
        let required = weights + kv + gb(plan.scratch_bytes.0);
        let system = unfazed_host::memory().map_or(0.0, |memory| gb(memory.total));
        Event::Ready(Box::new(Ready {
            port: address.port(),
            host: address.ip().to_string(),
            model: model.clone(),
            engine: "cpu",
            vision: false,
            partition: Partition {
                strategy: "cpu",
                overcommit_ratio: if system > 0.0 { required / system } else { 0.0 },
                model_weight_gb: weights,
                kv_cache_gb: kv,
                total_required_gb: required,
                system_ram_gb: system,
                gpu_layers: 0,
                cpu_layers: layers,
                total_layers: layers,
                estimated_tok_s: None,
            },
            settings: EffectiveSettings {
                context: plan.context.0,
                parallel: plan.parallel,
                chunk: plan.chunk.0,
                threads: info.threads,
                threads_batch: plan.batch_threads,
                isa: info.isa.clone(),
                kv_pages: plan.pages,
                page_tokens: PAGE_TOKENS,
                cache_type_k: plan.cache.keys.name(),
                cache_type_v: plan.cache.values.name(),
                max_queue,
                api_key,
            },
            load_ms: info.load_ms,
            notes: plan.notes.clone(),
        }))
    })
}
