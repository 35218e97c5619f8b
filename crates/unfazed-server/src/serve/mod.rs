//! The entry point: binds, starts the engine, serves, drains.
//!
//! | module | what |
//! |---|---|
//! | `start` | what is started, and what is told of it |
//! | `inheritance` | what one front leaves to the next |

mod inheritance;
mod start;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use rustix::process::Signal;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use unfazed_formats::Checkpoint;
use unfazed_plan::Plan;

use self::inheritance::{Inheritance, Offered, estate, listening};
use self::start::{memory_sizes, ready_event, rungs, start_message};
use crate::alive::give_signs;
use crate::events::{Event, EventSink};
use crate::handover::old::{Estate, HandedOver, Started};
use crate::handover::{Predecessor, SuccessorProgram, TakenOver, process};
use crate::http::body::Bodies;
use crate::http::metrics::{Metrics, UPKEEP_EVERY};
use crate::http::router::{AppState, router};
use crate::http::streams::Streams;
use crate::http::{ApiKeys, Callers, descriptors, listener};
use crate::journal::Tapes;
use crate::model::{self, Model, refused_chats};
use crate::supervisor::{Engine, Fatal, Keeper, Launch, Limits, ModelFiles, Orders, Phase, Rungs, Watched};
use crate::{Exit, ServeOptions, ServerError};

/// How long an engine may take to end in good order before it is killed. It has nothing to save.
const ENGINE_END: Duration = Duration::from_secs(2);

/// How long a front that is of no use any more stays.
const LEAVE: Duration = Duration::from_secs(2);

/// What a server hears from outside while it runs.
pub struct Control<S> {
    /// Resolves when it is to end.
    pub shutdown: S,
    /// Each message is a wish for a new front.
    pub restarts: mpsc::Receiver<()>,
    /// What is started as a new front; without, there is none.
    pub successor: Option<SuccessorProgram>,
    /// The front that this one takes over from.
    pub taken_over: Option<TakenOver>,
}

impl<S> Control<S> {
    /// Nothing but an end.
    pub fn end_only(shutdown: S) -> Control<S> {
        Control { shutdown, restarts: mpsc::channel(1).1, successor: None, taken_over: None }
    }
}

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// In good order.
    Ended,
    /// Another front had taken over, and has ended so.
    Succeeded(Exit),
}

/// Serves a model until `shutdown` resolves, and then until running requests have ended or `options.drain` is over.
/// Needs a tokio runtime with time and I/O.
///
/// # Errors
///
/// Whatever keeps the server from starting, and what ends it for good: a model that cannot be loaded (also by a later
/// engine), an engine of another build, an engine that never gets ready. A dying engine is no error: another is started.
pub async fn serve<S: Future<Output = ()> + Send>(
    options: ServeOptions,
    checkpoint: Checkpoint,
    plan: Plan,
    launch: impl Launch,
    events: EventSink,
    control: Control<S>,
) -> Result<Served, ServerError> {
    let Control { shutdown, restarts, successor, taken_over } = control;
    if taken_over.is_none() && successor.is_some() {
        process::adopt_orphans();
    }
    let headers = model::headers_digest(&checkpoint);
    let offered = Offered::of(&plan, headers, taken_over.as_ref(), &options.layout);
    // Whoever starts anew hears at once of a port that is in use; whoever takes over holds nobody up while it gets ready.
    let bound = if taken_over.is_none() { Some(bind(&options).await?) } else { None };
    let metrics = Arc::new(metrics(&plan)?);
    let capacity = plan.parallel.saturating_add(options.max_queue);
    let engine = Engine::new(capacity, Arc::clone(&metrics), Arc::clone(&events));
    let start = start_message(&options, &checkpoint, &plan)?;
    // Built before the engine starts: a tokenizer that cannot be is a refusal, and no engine has to be ended for it.
    let (mut checkpoint, plan, model) = with_model(&options, checkpoint, plan).await?;
    let limits = listener::Limits {
        connections: descriptors::connections(options.connections, checkpoint.files.len())?,
        head: options.receive_timeout,
    };
    let taken =
        taken_over.map(|front| tokio::task::block_in_place(|| front.take(offered.memory))).transpose()?;
    let (socket, address) = match (bound, &taken) {
        (Some(bound), _) => bound,
        (None, Some(taken)) => listening(&taken.listener)?,
        (None, None) => bind(&options).await?,
    };
    events(Event::Listening { host: address.ip().to_string(), port: address.port() });
    let callers = Callers::new(&options, address.ip())?;
    let mut inheritance = Inheritance::open(&options, taken, &events).await?;
    let app = app(&options, callers, model, &engine, &metrics, inheritance.tapes());
    let memory = memory_sizes(&checkpoint, &plan);
    let rungs = rungs(&options, &checkpoint, &plan);
    let files = ModelFiles::new(std::mem::take(&mut checkpoint.files));
    let estate = successor.map(|program| {
        estate(&app, &socket, &mut inheritance, offered.offer(&options, &plan), program, &events)
    });
    let estate = estate.transpose()?;
    let (inherited, predecessor) = inheritance.enter(&app, &events)?;
    if let Some(estate) = &estate {
        estate.announce();
    }
    let orders = Orders {
        launch: Box::new(launch),
        start,
        ready: ready_event(&options, &plan, address),
        memory,
        inherited,
        watched: Watched {
            reserve: plan.reserve_bytes.0 / 2,
            slot_bytes: memory.experts / (memory.slots as u64).max(1),
            quiet: options.recover_after,
        },
        rungs: Rungs {
            memory: memory.rungs(),
            cpu_alone: rungs.len().saturating_sub(1),
            placements: rungs.iter().map(|rung| rung.name.clone()).collect(),
            gpu: plan.gpu.is_some(),
            quiet: options.recover_after,
        },
        placements: rungs.into_iter().map(|rung| rung.placement).collect(),
        limits: Limits { stall: options.stall, patience: options.storage_patience },
        files,
        trace: options.expert_trace.clone(),
        model: options.model_id.clone(),
        events: Arc::clone(&events),
        metrics: Arc::clone(&metrics),
    };
    let keeper = Keeper::start(&engine, orders)
        .map_err(|source| ServerError::System { what: "the keeper's thread cannot be started", source })?;
    let http = Http { socket, router: router(Arc::clone(&app), options.cors.as_ref()), limits };
    let outside = Outside { shutdown, restarts, estate, predecessor: predecessor.clone() };
    let result = run(&options, http, &app, &events, outside).await;
    if let Some(predecessor) = predecessor {
        predecessor.finish().await;
    }
    app.tapes.flush().await;
    end_engine(&engine, keeper).await;
    let (served, unfinished_requests) = result?;
    if served == Served::Ended {
        events(Event::Shutdown { unfinished_requests });
    }
    Ok(served)
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
    let (model_id, renderer) = (options.model_id.clone(), options.renderer.clone());
    let repeat_stop_tokens = options.repeat_stop_tokens;
    let (checkpoint, mut plan, model) = tokio::task::spawn_blocking(move || {
        let model = Model::new(model_id, &checkpoint, &plan, renderer);
        (checkpoint, plan, model)
    })
    .await
    .map_err(|error| ServerError::Tokenizer(format!("building the tokenizer failed: {error}")))?;
    let model = Model { repeat_stop_tokens, ..model? };
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
    tapes: Tapes,
) -> Arc<AppState> {
    Arc::new(AppState {
        engine: engine.clone(),
        model: Arc::new(model),
        metrics: Arc::clone(metrics),
        keys: ApiKeys::new(options.api_keys.clone()),
        callers,
        bodies: Bodies::new(options.body_limit, options.body_budget, options.receive_timeout),
        streams: Arc::new(Streams::new(options.stream_budget)),
        tapes: Arc::new(tapes),
        passage: Arc::default(),
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

/// What is heard from outside.
struct Outside<S> {
    shutdown: S,
    restarts: mpsc::Receiver<()>,
    estate: Option<Estate>,
    predecessor: Option<Predecessor>,
}

/// Serves until the end and returns how many sequences were ended unfinished.
async fn run<S: Future<Output = ()> + Send>(
    options: &ServeOptions,
    http: Http,
    app: &Arc<AppState>,
    events: &EventSink,
    outside: Outside<S>,
) -> Result<(Served, usize), ServerError> {
    let engine = &app.engine;
    let (end, ended) = watch::channel(false);
    let mut stop = ended.clone();
    let passage = Arc::clone(&app.passage);
    let mut http =
        tokio::spawn(listener::serve(http.socket, http.router, http.limits, passage, async move {
            // A sender that is gone means that this function was cancelled: the listener ends too.
            let _ = stop.wait_for(|end| *end).await;
        }));
    let signs = options
        .alive
        .clone()
        .map(|alive| tokio::spawn(give_signs(alive, engine.clone(), http.abort_handle())));
    let Outside { shutdown, mut restarts, estate, predecessor } = outside;
    let mut shutdown = std::pin::pin!(shutdown);
    let mut phase = engine.phase();
    let result = loop {
        let started = tokio::select! {
            () = &mut shutdown => break Ok((Served::Ended, drain(options, engine, events).await)),
            fatal = fatal(&mut phase) => {
                engine.drain();
                engine.interrupt_all();
                break Err(fatal);
            }
            () = upkeep(&app.metrics) => continue,
            started = started(estate.as_ref(), &mut restarts) => started,
        };
        // From here on to the end, whatever else is wished for.
        let given = match (started, &estate) {
            (Ok(started), Some(estate)) => estate.give(started).await,
            (Err(message), _) => Err(message),
            (Ok(_), None) => continue,
        };
        match given {
            Ok(front) => {
                // It gives signs of its own: ours would hide that it gives none.
                if let Some(signs) = &signs {
                    signs.abort();
                }
                let exit = tokio::select! {
                    exit = stand_by(&front, shutdown, restarts) => exit,
                    () = needless(predecessor.as_ref(), &mut http) => {
                        return Ok((Served::Succeeded(Exit { code: Some(0), signal: None }), 0));
                    }
                };
                break Ok((Served::Succeeded(exit), 0));
            }
            Err(message) => events(Event::RestartFailed { message }),
        }
    };
    end.send_replace(true);
    if let Some(signs) = signs {
        signs.abort();
    }
    if !http.is_finished()
        && let Err(error) = http.await
    {
        tracing::error!(%error, "the listener failed");
    }
    result
}

/// Starts a new front when one is wished for.
async fn started(estate: Option<&Estate>, restarts: &mut mpsc::Receiver<()>) -> Result<Started, String> {
    match (estate, restarts.recv().await) {
        (Some(estate), Some(())) => estate.start().await,
        _ => std::future::pending().await,
    }
}

/// Resolves once a front that took over, and from which another one did, is of no use any more: none of its own clients is
/// left and none of the front before it, which will look after the one that follows.
async fn needless(predecessor: Option<&Predecessor>, http: &mut JoinHandle<()>) {
    let Some(predecessor) = predecessor.filter(|_| cfg!(target_os = "linux")) else {
        return std::future::pending().await;
    };
    if let Err(error) = http.await {
        tracing::error!(%error, "the listener failed");
    }
    predecessor.idle().await;
    // A signal to this process may be on its way still.
    tokio::time::sleep(LEAVE).await;
}

/// Waits for the end of the front that took over: whoever started this process waits for that one through it.
async fn stand_by(
    front: &HandedOver,
    mut shutdown: std::pin::Pin<&mut (impl Future<Output = ()> + Send)>,
    mut restarts: mpsc::Receiver<()>,
) -> Exit {
    let mut told = false;
    loop {
        tokio::select! {
            exit = front.ended() => return exit,
            () = &mut shutdown, if !told => {
                told = true;
                front.signal(Signal::TERM);
            }
            Some(()) = restarts.recv() => front.signal(Signal::USR2),
        }
    }
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

pub(crate) async fn bind(options: &ServeOptions) -> Result<(TcpListener, SocketAddr), ServerError> {
    let host = options.host.trim_start_matches('[').trim_end_matches(']');
    let failed = |source| ServerError::Bind { address: format!("{}:{}", options.host, options.port), source };
    let listener = TcpListener::bind((host, options.port)).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}
