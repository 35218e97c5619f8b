//! The thread that starts one engine after the other, as long as the server lives.

use std::fs::File;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use unfazed_fault::Backoff;
use unfazed_wire::{BUILD_ID, Placement, ReadyInfo, Start};

use super::cause::{Cause, Seen};
use super::engine::{Engine, Fatal, Phase};
use super::files::ModelFiles;
use super::life::{self, End, Life};
use super::memory::{self, Memory, Parts, Sizes};
use super::pressure::{self, Watched};
use super::state::{Pause, Shared};
use super::troubles::Rungs;
use super::watchdog::Limits;
use super::{Exit, Interruption, Launch, Process, Update, pulse};
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
    /// The first message, but for the memory and the placement.
    pub(crate) start: Start,
    /// What is where, by the placement's rungs.
    pub(crate) placements: Vec<Placement>,
    pub(crate) memory: Sizes,
    /// What another front left.
    pub(crate) inherited: Parts,
    pub(crate) limits: Limits,
    /// What can be given up.
    pub(crate) rungs: Rungs,
    /// When cache is given up.
    pub(crate) watched: Watched,
    pub(crate) files: ModelFiles,
    /// Is told which experts are used.
    pub(crate) trace: Option<Arc<File>>,
    pub(crate) model: String,
    pub(crate) events: EventSink,
    /// Makes the `ready` event.
    pub(crate) ready: Box<dyn Fn(&ReadyInfo) -> Event + Send>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Orders {
    /// What is where on a rung.
    pub(super) fn placement(&self, rung: usize) -> Placement {
        let last = || self.placements.last().unwrap_or(&self.start.placement);
        self.placements.get(rung).unwrap_or_else(last).clone()
    }
}

/// The running thread. Dropping it ends the engine and waits for the thread.
pub(crate) struct Keeper {
    engine: Engine,
    threads: Vec<JoinHandle<()>>,
}

impl Keeper {
    pub(crate) fn start(engine: &Engine, mut orders: Orders) -> io::Result<Keeper> {
        let shared = Arc::clone(&engine.shared);
        shared.lock().troubles.set_up(orders.rungs.clone());
        let watch = pressure::watch(&shared, orders.watched)?;
        let memory = Mutex::new(Memory::new(orders.memory, std::mem::take(&mut orders.inherited)));
        let work = move || {
            let kept = panic::catch_unwind(AssertUnwindSafe(|| keep(&shared, &orders, &memory)));
            if kept.is_err() {
                // Nobody starts engines any more: the server ends by name instead of letting requests wait for ever.
                shared.phase.send_replace(Phase::Failed(Fatal::Keeper));
            }
        };
        let mut keeper = Keeper { engine: engine.clone(), threads: vec![watch] };
        keeper.threads.push(thread::Builder::new().name("keeper".to_owned()).spawn(work)?);
        Ok(keeper)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.engine.stop();
        self.engine.kill();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the keeper's panicked");
            }
        }
    }
}

fn keep(shared: &Shared, orders: &Orders, memory: &Mutex<Memory>) {
    let mut backoff = Backoff::default();
    let mut unready = 0;
    loop {
        // It waits for as long as it is told to.
        shared.pulse.end();
        hold(shared, memory);
        if shared.lock().stopping {
            shared.phase.send_replace(Phase::Stopped);
            return;
        }
        shared.pulse.within(pulse::START, Instant::now());
        memory::reclaim(memory, shared);
        let oom_kills = unfazed_host::oom_kills();
        let life = life::live(shared, orders, memory);
        let stopping = shared.lock().stopping;
        let (exit, killed) = part(&life, if stopping { LEAVE } else { FALL });
        let out_of_memory =
            matches!((unfazed_host::oom_kills(), oom_kills), (Some(now), Some(before)) if now > before);
        let started = life.running.is_some();
        let seen = Seen { started, exit, stalled: life.stalled, killed, out_of_memory };
        let cause = cause(&life, seen);
        if life.progressed {
            backoff.progressed();
        }
        let wait = backoff.died(!(life.was_ready && cause.is_from_outside()), chance());
        unready = if life.was_ready || !cause.is_from_within() { 0 } else { unready + 1 };
        bury(shared, memory, &life, cause, exit);
        if shared.lock().stopping {
            shared.pulse.end();
            shared.phase.send_replace(Phase::Stopped);
            return;
        }
        if let Some(fatal) = fatal(shared, &life.end, cause, backoff.deaths()) {
            shared.pulse.end();
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
        if matches!(shared.lock().pause, Pause::No) {
            rest(shared, orders, &backoff, wait);
        }
    }
}

fn cause(life: &Life, seen: Seen) -> Cause {
    if life.running.as_ref().is_some_and(|running| running.was_replaced()) {
        return Cause::Replaced;
    }
    match (&life.end, life.device) {
        (End::LoadFailed(_), _) => Cause::LoadFailed,
        (End::OtherBuild(_), _) => Cause::OtherBuild,
        (End::Gone | End::Died(_), Some(class)) if !seen.stalled => Cause::Device(class),
        (End::Gone | End::Died(_), _) => Cause::of(seen),
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
        // The engine has told of its device's.
        let is_fault =
            !matches!(cause, Cause::Device(_) | Cause::Replaced | Cause::LoadFailed | Cause::OtherBuild);
        let (cause, class, evidence) = (cause.name(), cause.class(), message.clone());
        (shared.events)(Event::EngineExit { code, signal, cause, message, requests, failed_requests });
        if is_fault {
            shared.engine_fault(class, evidence, life.progressed);
        }
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

/// Waits while no engine is to be started, and gives whoever asked for that what engines left.
fn hold(shared: &Shared, memory: &Mutex<Memory>) {
    let mut state = shared.lock();
    if let Pause::Wanted(told) = std::mem::replace(&mut state.pause, Pause::No) {
        let parts = memory.lock().unwrap_or_else(PoisonError::into_inner).parts();
        if told.send(parts).is_ok() {
            state.pause = Pause::Held;
        }
    }
    let held = |state: &mut super::state::State| matches!(state.pause, Pause::Held) && !state.stopping;
    drop(shared.wake.wait_while(state, held));
}

/// Waits before the next engine.
fn rest(shared: &Shared, orders: &Orders, backoff: &Backoff, wait: Duration) {
    orders.metrics.engine_restarted();
    let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    (orders.events)(Event::EngineRestart { attempt: backoff.deaths(), wait_ms });
    shared.pulse.within(wait.saturating_add(pulse::TICK), Instant::now());
    let mut state = shared.lock();
    state.standing.restarts += 1;
    state.standing.attempt = backoff.counted();
    let rests = |state: &mut super::state::State| !state.stopping && matches!(state.pause, Pause::No);
    let woken = shared.wake.wait_timeout_while(state, wait, rests);
    drop(woken);
}

/// A random number from 0 to 1.
pub(crate) fn chance() -> f64 {
    // Without randomness waits are merely not spread.
    getrandom::u32().map_or(0.0, |number| f64::from(number) / f64::from(u32::MAX))
}
