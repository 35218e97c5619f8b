//! The thread that starts one engine after the other, as long as the server lives.

use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use unfazed_formats::source::FileSource;
use unfazed_wire::{BUILD_ID, ReadyInfo, Start};

use super::backoff::Backoff;
use super::cause::{Cause, Seen};
use super::engine::{Engine, Fatal, Phase};
use super::life::{self, End, Life};
use super::memory::{self, Memory, Sizes};
use super::state::Shared;
use super::watchdog::Limits;
use super::{Exit, Interruption, Launch, Process, Update};
use crate::events::{Event, EventSink};
use crate::http::metrics::Metrics;

/// Deaths before the first ready engine after which the server gives up, if nobody waits for it. A machine that cannot
/// load the model once should say so instead of trying for ever; one that could will be able to again.
const FIRST_STARTS: u32 = 3;
/// Engines in a row that ended by themselves before they were ready, after which the next one gets fresh memory: what is
/// in the old may be what they end of.
const TRUST_MEMORY: u32 = 3;
/// How long an engine that was told to end may take to do so, once its link has ended.
const LEAVE: Duration = Duration::from_secs(2);
/// The same for one that was not told: long enough to see how it ends, as nearly all are gone within a millisecond.
const FALL: Duration = Duration::from_millis(100);
/// How long a killed engine is waited for. One that is stuck in a driver is left behind.
const REAP: Duration = Duration::from_secs(5);
/// How often a process is asked whether it has ended.
const POLL: Duration = Duration::from_millis(1);

/// What the keeper needs to do its work.
pub(crate) struct Orders {
    pub(crate) launch: Box<dyn Launch>,
    /// The first message, but for the memory.
    pub(crate) start: Start,
    pub(crate) memory: Sizes,
    pub(crate) limits: Limits,
    pub(crate) files: Vec<FileSource>,
    pub(crate) model: String,
    pub(crate) events: EventSink,
    /// Makes the `ready` event.
    pub(crate) ready: Box<dyn Fn(&ReadyInfo) -> Event + Send>,
    pub(crate) metrics: Arc<Metrics>,
}

/// The running thread. Dropping it ends the engine and waits for the thread.
pub(crate) struct Keeper {
    engine: Engine,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub(crate) fn start(engine: &Engine, orders: Orders) -> io::Result<Keeper> {
        let shared = Arc::clone(&engine.shared);
        let work = move || {
            let kept = panic::catch_unwind(AssertUnwindSafe(|| keep(&shared, &orders)));
            if kept.is_err() {
                // Nobody starts engines any more: the server ends by name instead of letting requests wait for ever.
                shared.phase.send_replace(Phase::Failed(Fatal::Keeper));
            }
        };
        let thread = thread::Builder::new().name("keeper".to_owned()).spawn(work)?;
        Ok(Keeper { engine: engine.clone(), thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.engine.stop();
        self.engine.kill();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the keeper's thread panicked");
        }
    }
}

fn keep(shared: &Shared, orders: &Orders) {
    let memory = Mutex::new(Memory::new(orders.memory));
    let mut backoff = Backoff::default();
    let mut unready = 0;
    loop {
        memory::reclaim(&memory, shared);
        let oom_kills = unfazed_host::oom_kills();
        let life = life::live(shared, orders, &memory);
        let stopping = shared.lock().stopping;
        let (exit, killed) = part(&life, if stopping { LEAVE } else { FALL });
        let out_of_memory =
            matches!((unfazed_host::oom_kills(), oom_kills), (Some(now), Some(before)) if now > before);
        let started = life.running.is_some();
        let seen = Seen { started, exit, stalled: life.stalled, killed, out_of_memory };
        let cause = cause(&life.end, seen);
        if life.progressed {
            backoff.progressed();
        }
        let wait = backoff.died(!(life.was_ready && cause.is_from_outside()), chance());
        unready = if life.was_ready || !cause.is_from_within() { 0 } else { unready + 1 };
        bury(shared, &memory, &life, cause, exit);
        if shared.lock().stopping {
            shared.phase.send_replace(Phase::Stopped);
            return;
        }
        if let Some(fatal) = fatal(shared, &life.end, cause, backoff.deaths()) {
            shared.phase.send_replace(Phase::Failed(fatal));
            return;
        }
        if unready >= TRUST_MEMORY {
            tracing::warn!(
                "the next engine gets fresh memory: {unready} in a row ended before they were ready"
            );
            memory.lock().unwrap_or_else(PoisonError::into_inner).renew();
            unready = 0;
        }
        rest(shared, orders, &backoff, wait);
    }
}

fn cause(end: &End, seen: Seen) -> Cause {
    match end {
        End::LoadFailed(_) => Cause::LoadFailed,
        End::OtherBuild(_) => Cause::OtherBuild,
        End::Gone | End::Died(_) => Cause::of(seen),
    }
}

/// What happened, for people.
fn message(end: &End, cause: Cause) -> String {
    match end {
        End::Gone => cause.to_string(),
        End::Died(message) if matches!(cause, Cause::Stalled | Cause::NeverStarted) => message.clone(),
        End::Died(message) => format!("{message} ({cause})"),
        End::LoadFailed(message) => message.clone(),
        End::OtherBuild(build) => format!("it is build {build:?}, not {BUILD_ID:?}"),
    }
}

/// Takes leave of an engine whose link has ended: nobody can reach it any more, and it is given a moment, a signal and
/// another moment. How it ended, and whether after the signal.
fn part(life: &Life, moment: Duration) -> (Option<Exit>, bool) {
    let Some(running) = &life.running else { return (None, false) };
    if !running.was_killed() {
        if let Some(exit) = wait_for(&*running.process, moment) {
            return (Some(exit), false);
        }
        running.kill();
    }
    (wait_for(&*running.process, REAP), true)
}

fn wait_for(process: &dyn Process, limit: Duration) -> Option<Exit> {
    let start = Instant::now();
    loop {
        let exit = process.exit();
        if exit.is_some() || start.elapsed() >= limit {
            return exit;
        }
        thread::sleep(POLL);
    }
}

/// Settles what a dead engine leaves: its sequences and its memory. Tells of it, unless it was to end.
fn bury(shared: &Shared, memory: &Mutex<Memory>, life: &Life, cause: Cause, exit: Option<Exit>) {
    let aftermath = shared.engine_died(cause, exit.unwrap_or_default());
    for (record, deaths) in &aftermath.ended {
        let message = format!(
            "this request ended the engine {deaths} times by itself ({cause}); other requests are not affected"
        );
        record.tell(Update::Interrupted(Interruption::Quarantined(message)));
    }
    let (stopping, requests) = {
        let state = shared.lock();
        (state.stopping, state.journal.len())
    };
    if !stopping {
        let message = message(&life.end, cause);
        let failed_requests = aftermath.ended.len();
        shared.metrics.engine_exit(cause.name());
        let &Exit { code, signal } = &exit.unwrap_or_default();
        let cause = cause.name();
        (shared.events)(Event::EngineExit { code, signal, cause, message, requests, failed_requests });
    }
    for (request, deaths) in aftermath.suspected {
        tracing::warn!(
            request = request.0,
            deaths,
            "a request may have ended the engine: it is tested alone"
        );
        (shared.events)(Event::RequestSuspected { request: request.0, deaths });
    }
    for (record, deaths) in aftermath.ended {
        let request = record.submit.request.0;
        tracing::error!(request, deaths, "a request ended the engine by itself and is given up");
        shared.metrics.request_quarantined();
        (shared.events)(Event::RequestQuarantined { request, deaths });
    }
    if let Some(running) = &life.running
        && exit.is_none()
    {
        tracing::error!("an engine does not end though it was killed; it is left behind with its memory");
        memory::strike(memory, shared, Arc::clone(&running.process));
    }
}

/// Whether this death is the end of all engines.
fn fatal(shared: &Shared, end: &End, cause: Cause, deaths: u32) -> Option<Fatal> {
    match end {
        End::LoadFailed(message) => Some(Fatal::Load(message.clone())),
        End::OtherBuild(build) => Some(Fatal::Build(build.clone())),
        End::Gone | End::Died(_) => {
            let state = shared.lock();
            let hopeless = !state.standing.ever_ready && deaths >= FIRST_STARTS && state.journal.len() == 0;
            hopeless.then(|| Fatal::NeverReady(deaths, message(end, cause)))
        }
    }
}

/// Waits before the next engine.
fn rest(shared: &Shared, orders: &Orders, backoff: &Backoff, wait: Duration) {
    orders.metrics.engine_restarted();
    let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    (orders.events)(Event::EngineRestart { attempt: backoff.deaths(), wait_ms });
    let mut state = shared.lock();
    state.standing.restarts += 1;
    state.standing.attempt = backoff.counted();
    let woken = shared.wake.wait_timeout_while(state, wait, |state| !state.stopping);
    drop(woken);
}

/// A random number from 0 to 1.
fn chance() -> f64 {
    // Without randomness waits are merely not spread.
    getrandom::u32().map_or(0.0, |number| f64::from(number) / f64::from(u32::MAX))
}
