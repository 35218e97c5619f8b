//! The thread that starts one engine after the other, as long as the server lives.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use unfazed_formats::source::FileSource;
use unfazed_wire::{ReadyInfo, Start};

use super::backoff::Backoff;
use super::engine::{Engine, Fatal, Phase, Shared};
use super::fate::{self, Fate};
use super::life::{self, End};
use super::{Exit, Launch, Process, Update};
use crate::events::{Event, EventSink};
use crate::http::metrics::Metrics;

/// Deaths before the first ready engine after which the server gives up. A machine that cannot load the model once
/// should say so instead of trying for ever; one that could will be able to again.
const FIRST_STARTS: u32 = 3;
/// How long an engine whose link has ended may take to end by itself.
const LEAVE: Duration = Duration::from_secs(2);
/// How long a killed engine is waited for. One that is stuck in a driver is left behind.
const REAP: Duration = Duration::from_secs(5);
/// How often a process is asked whether it has ended.
const POLL: Duration = Duration::from_millis(5);

/// What the keeper needs to do its work.
pub(crate) struct Orders {
    pub(crate) launch: Box<dyn Launch>,
    pub(crate) start: Start,
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
        let thread =
            thread::Builder::new().name("keeper".to_owned()).spawn(move || keep(&shared, &orders))?;
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
    let mut backoff = Backoff::default();
    let mut was_ready = false;
    loop {
        let life = life::live(shared, orders);
        let exit = part(shared, life.process);
        if life.progressed {
            backoff.progressed();
        }
        was_ready |= life.was_ready;
        if shared.lock().stopping {
            shared.phase.send_replace(Phase::Stopped);
            return;
        }
        let wait = backoff.died();
        tell_of_death(shared, orders, &life.end, exit);
        let fatal = match life.end {
            End::LoadFailed(message) => Some(Fatal::Load(message)),
            End::OtherBuild(build) => Some(Fatal::Build(build)),
            End::Died(message) if !was_ready && backoff.deaths() >= FIRST_STARTS => {
                Some(Fatal::NeverReady(backoff.deaths(), format!("{message} ({exit})")))
            }
            End::Died(_) => None,
        };
        if let Some(fatal) = fatal {
            shared.phase.send_replace(Phase::Failed(fatal));
            return;
        }
        orders.metrics.engine_restarted();
        (orders.events)(Event::EngineRestart {
            attempt: backoff.deaths(),
            wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
        });
        let state = shared.lock();
        let woken = shared.wake.wait_timeout_while(state, wait, |state| !state.stopping);
        drop(woken);
    }
}

/// Takes leave of an engine whose link has ended: nobody can reach it any more, and it is given a moment, a signal and
/// another moment.
fn part(shared: &Shared, process: Option<Arc<dyn Process>>) -> Exit {
    let Some(process) = process else { return Exit::default() };
    let mut exit = wait_for(&*process, LEAVE);
    if exit.is_none() {
        process.kill();
        exit = wait_for(&*process, REAP);
    }
    shared.lock().process = None;
    exit.unwrap_or_else(|| {
        tracing::error!("an engine does not end though it was killed; it is left behind");
        Exit::default()
    })
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

fn tell_of_death(shared: &Shared, orders: &Orders, end: &End, exit: Exit) {
    let mut ended = Vec::new();
    {
        let mut state = shared.lock();
        let records = state.journal.take_if(|record| match fate::after_death(record, exit) {
            Fate::Wait => false,
            Fate::End(interruption) => {
                ended.push(interruption);
                true
            }
        });
        for (record, interruption) in records.iter().zip(&ended) {
            record.tell(Update::Interrupted(interruption.clone()));
        }
        shared.note(&state);
    }
    let message = end.to_string();
    let failed_requests = ended.len();
    match end {
        End::Died(_) => tracing::error!(%exit, failed_requests, "the engine stopped: {message}"),
        // The server ends with this line, and says it once.
        End::LoadFailed(_) | End::OtherBuild(_) => {}
    }
    (orders.events)(Event::EngineExit { code: exit.code, signal: exit.signal, message, failed_requests });
}
