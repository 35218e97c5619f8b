//! The whole `unfazed engine` process, from its socket to its end.
//!
//! The caller's thread reads the front's messages and does nothing else, so that it notices the end of the socket at
//! once, even in the middle of a step; another loads the model and computes; a third tells the front what gets on.

use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread;
use std::time::Duration;

use unfazed_device::Device;
use unfazed_store::experts::ExpertStore;
use unfazed_store::{Clock, SystemClock};
use unfazed_wire::link::{self, LinkError};
use unfazed_wire::{BUILD_ID, LoadFailure, Start, ToEngine, ToFront};

use crate::beat::{Beat, Outgoing, Progress};
use crate::experts::Experts;
use crate::load::{self, Loaded};
use crate::sandbox::Sandbox;
use crate::{Engine, EngineError, Parts, RealParts, huge_pages, pressure};

/// An engine that has nothing to do looks up so often.
const IDLE: Duration = Duration::from_secs(10);

/// Serves the front at the other end of the socket: says hello, loads the model of the front's `Start`, computes what
/// it submits. With `locked` it gives up all rights that it does not need, for good and for the whole process, before it
/// reads anything of the model. Returns when the socket ends, which is how a front ends an engine, without waiting for a running step:
/// the caller must end the process then. Returns earlier after a `Shutdown` whose requests have ended.
///
/// # Errors
///
/// A socket that fails or carries something else than messages; a model that cannot be loaded (the front has been told
/// by `LoadFailed`).
pub fn run(socket: UnixStream, locked: bool) -> Result<(), EngineError> {
    run_with(socket, locked, RealParts)
}

/// The same with other parts.
///
/// # Errors
///
/// As for [`run`].
pub fn run_with<P: Parts + Send + 'static>(
    socket: UnixStream,
    locked: bool,
    parts: P,
) -> Result<(), EngineError> {
    let handle = socket.try_clone().map_err(LinkError::from)?;
    let (sender, mut receiver) = link::split(socket).map_err(LinkError::from)?;
    let outgoing = Outgoing::new(sender);
    outgoing.send(&ToFront::Hello { build_id: BUILD_ID.to_owned() })?;
    let Some((first, files)) = receiver.receive_with_descriptors()? else { return Ok(()) };
    let ToEngine::Start(start) = first else { return Err(EngineError::NotStarted) };
    let sandbox =
        if locked { Sandbox::enter(&files, !start.gpus.adapters.is_empty()) } else { Sandbox::off() };

    let (messages, inbox) = mpsc::channel();
    let (result, ended) = mpsc::channel();
    let work = move || {
        let _wake = WakeReader(handle);
        // Declared after the guard, so dropped before it: a reader that wakes up finds the result, or that there is none.
        let result = result;
        // A front that is gone hears nothing; neither does a reader that is.
        let _ = result.send(serve(&start, files, sandbox, &inbox, &outgoing, &parts));
    };
    thread::Builder::new().name("engine".to_owned()).spawn(work).map_err(EngineError::Thread)?;
    let read = read(&mut receiver, &messages);
    match ended.try_recv() {
        Ok(Err(EngineError::Link(LinkError::Io(error)))) if front_is_gone(&error) => Ok(()),
        Ok(result) => result,
        Err(TryRecvError::Empty) => read,
        Err(TryRecvError::Disconnected) => Err(EngineError::Panicked),
    }
}

/// The front may end the link at any moment; that is no fault.
fn front_is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

/// Passes messages on until the socket ends.
fn read(receiver: &mut link::Receiver, messages: &Sender<ToEngine>) -> Result<(), EngineError> {
    while let Some(message) = receiver.receive()? {
        if messages.send(message).is_err() {
            break;
        }
    }
    Ok(())
}

/// Ends the socket when the computing thread ends, however it ends, so that the reading thread wakes up.
struct WakeReader(UnixStream);

impl Drop for WakeReader {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

fn serve<P: Parts>(
    start: &Start,
    files: Vec<OwnedFd>,
    sandbox: Sandbox,
    inbox: &Receiver<ToEngine>,
    outgoing: &Outgoing,
    parts: &P,
) -> Result<(), EngineError> {
    let progress = Progress::default();
    let beat = || Beat::start(progress.clone(), outgoing.clone()).map_err(EngineError::Thread);
    let loading = beat()?;
    let loaded = load::load(start, files, sandbox, &progress, parts);
    // Nothing of loading is said behind `Ready`.
    drop(loading);
    match loaded {
        Ok(Loaded { engine, ready, weights, experts }) => {
            let _computing = beat()?;
            outgoing.send(&progress.loading())?;
            #[cfg(all(feature = "fault-plan", target_os = "linux"))]
            crate::escape::try_all();
            outgoing.send(&ToFront::Ready(ready))?;
            if let Some((mapping, used)) = weights {
                huge_pages::gather(&mapping, used);
            }
            if let Some(experts) = &experts {
                experts.pre_fill();
            }
            work(engine, experts, inbox, outgoing)
        }
        Err(EngineError::Load { fault, message }) => {
            // The front says it, once.
            tracing::debug!("{message}");
            outgoing.send(&ToFront::LoadFailed(LoadFailure { fault, message: message.clone() }))?;
            Err(EngineError::Load { fault, message })
        }
        Err(error) => Err(error),
    }
}

/// Takes a message.
fn take<D: Device>(
    engine: &mut Engine<D>,
    experts: Option<&Experts>,
    outgoing: &Outgoing,
    message: ToEngine,
) -> Result<(), EngineError> {
    let store = experts.map(|experts| &*experts.store);
    match message {
        ToEngine::GiveUp { bytes } => {
            outgoing.send(&ToFront::GaveUp(pressure::give_up(engine, store, bytes)))?;
        }
        ToEngine::OpenUp { slots } => {
            let slots = store.map_or(0, |store| store.open_up(slots));
            let open_slots = store.map_or(0, ExpertStore::open_slots);
            outgoing.send(&ToFront::OpenedUp { slots, open_slots })?;
        }
        message => engine.handle(message),
    }
    Ok(())
}

/// Steps while there is work, waits for messages while there is none.
fn work<D: Device>(
    mut engine: Engine<D>,
    mut experts: Option<Experts>,
    inbox: &Receiver<ToEngine>,
    outgoing: &Outgoing,
) -> Result<(), EngineError> {
    let clock = SystemClock::new();
    while !engine.finished() {
        if engine.idle() {
            match inbox.recv_timeout(IDLE) {
                Ok(message) => take(&mut engine, experts.as_ref(), outgoing, message)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
        if let Some(experts) = &mut experts {
            experts.tick(clock.now());
        }
        loop {
            match inbox.try_recv() {
                Ok(message) => take(&mut engine, experts.as_ref(), outgoing, message)?,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
        }
        // The front knows who is in a step before it is computed: it may end this process.
        while let Some(message) = engine.admit_next() {
            outgoing.send(&message)?;
        }
        for message in engine.step() {
            outgoing.send(&message)?;
        }
        if engine.is_over() {
            break;
        }
    }
    if let Some(experts) = &experts {
        experts.save();
    }
    if engine.is_over() { Err(EngineError::Device) } else { Ok(()) }
}
