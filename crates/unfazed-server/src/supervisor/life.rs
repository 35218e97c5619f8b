//! One engine from its start to its end.

use std::fmt;
use std::os::fd::AsFd;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use unfazed_formats::checkpoint::FILES_MAX;
use unfazed_wire::link::{self, LinkError, Receiver, Sender};
use unfazed_wire::{BUILD_ID, ReadyInfo, ToEngine, ToFront};

use super::Process;
use super::engine::{Phase, Shared};
use super::keeper::Orders;
use crate::events::Event;

/// Shortest time between two `loading` events.
const LOADING_EVERY: Duration = Duration::from_millis(200);

// A model that can be opened can be handed over.
const _: () = assert!(FILES_MAX <= link::MAX_DESCRIPTORS);

/// What is left of an engine.
pub(super) struct Life {
    /// Its process, if there ever was one.
    pub(super) process: Option<Arc<dyn Process>>,
    pub(super) end: End,
    pub(super) was_ready: bool,
    /// It made a token.
    pub(super) progressed: bool,
}

/// Why a life ended.
pub(super) enum End {
    /// It died, was killed or stopped talking sense.
    Died(String),
    /// It says that the model cannot be loaded.
    LoadFailed(String),
    /// It is another build.
    OtherBuild(String),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Died(message) | End::LoadFailed(message) => f.write_str(message),
            End::OtherBuild(build) => write!(f, "it is build {build:?}, not {BUILD_ID:?}"),
        }
    }
}

/// Starts an engine and follows it to its end.
pub(super) fn live(shared: &Shared, orders: &Orders) -> Life {
    shared.phase.send_replace(Phase::Loading);
    let mut life = Life { process: None, end: End::Died(String::new()), was_ready: false, progressed: false };
    let (socket, process) = match orders.launch.launch() {
        Ok(started) => started,
        Err(error) => {
            life.end = End::Died(format!("it cannot be started: {error}"));
            return life;
        }
    };
    life.process = Some(Arc::clone(&process));
    {
        let mut state = shared.lock();
        if state.stopping {
            process.kill();
        }
        state.process = Some(process);
    }
    let end = link::split(socket).map_err(LinkError::from).and_then(|(sender, mut receiver)| {
        let end = talk(shared, orders, sender, &mut receiver, &mut life);
        // An engine that hangs in a write would never see its socket end otherwise.
        drop(receiver);
        end
    });
    shared.lock().link = None;
    life.end = end.unwrap_or_else(|error| End::Died(error.to_string()));
    life
}

fn talk(
    shared: &Shared,
    orders: &Orders,
    mut sender: Sender,
    receiver: &mut Receiver,
    life: &mut Life,
) -> Result<End, LinkError> {
    match receiver.receive()? {
        Some(ToFront::Hello { build_id }) if build_id == BUILD_ID => {}
        Some(ToFront::Hello { build_id }) => return Ok(End::OtherBuild(build_id)),
        Some(_) => return Ok(End::Died("it did not say which build it is".to_owned())),
        None => return Ok(End::Died("it closed its link before a word".to_owned())),
    }
    let descriptors: Vec<_> = orders.files.iter().map(|file| file.file().as_fd()).collect();
    sender.send_with_descriptors(&ToEngine::Start(Box::new(orders.start.clone())), &descriptors)?;
    let mut loading = Loading::new(orders);
    // Taken by the writer's thread once the engine is ready.
    let mut sender = Some(sender);
    while let Some(message) = receiver.receive()? {
        match message {
            ToFront::Loading { done, total } => loading.tell(done, total),
            ToFront::LoadFailed(failure) => return Ok(End::LoadFailed(failure.message)),
            ToFront::Ready(info) => {
                let Some(sender) = sender.take() else { continue };
                open(shared, sender)?;
                life.was_ready = true;
                announce(shared, orders, &info);
            }
            message => {
                life.progressed |= matches!(message, ToFront::Tokens(_) | ToFront::Finished { .. });
                shared.dispatch(message);
            }
        }
    }
    Ok(End::Died("its link ended".to_owned()))
}

/// Opens the way to a ready engine and sends what waited for it.
fn open(shared: &Shared, mut sender: Sender) -> Result<(), LinkError> {
    let (link, outgoing) = mpsc::channel::<ToEngine>();
    // The HTTP side must never block on an engine's socket, so a thread does. It ends with the link's last sender, or
    // with the engine.
    thread::Builder::new().name("to-engine".to_owned()).spawn(move || {
        for message in outgoing {
            if let Err(error) = sender.send(&message) {
                tracing::debug!(%error, "the engine does not listen");
                return;
            }
        }
    })?;
    let mut state = shared.lock();
    if state.stopping {
        let _ = link.send(ToEngine::Shutdown);
        return Ok(());
    }
    for record in state.journal.iter_mut() {
        record.hand_over(&link);
    }
    state.link = Some(link);
    shared.note(&state);
    Ok(())
}

fn announce(shared: &Shared, orders: &Orders, info: &ReadyInfo) {
    if shared.lock().stopping {
        return;
    }
    shared.phase.send_replace(Phase::Ready);
    (orders.events)((orders.ready)(info));
}

/// Turns progress of loading into events, not too many.
struct Loading<'a> {
    orders: &'a Orders,
    start: Instant,
    last: Option<Instant>,
}

impl<'a> Loading<'a> {
    fn new(orders: &'a Orders) -> Loading<'a> {
        Loading { orders, start: Instant::now(), last: None }
    }

    fn tell(&mut self, done: u64, total: u64) {
        let now = Instant::now();
        let recent = self.last.is_some_and(|last| now - last < LOADING_EVERY);
        if recent && done < total {
            return;
        }
        self.last = Some(now);
        let seconds = (now - self.start).as_secs_f64();
        let rate = if seconds > 0.0 { done as f64 / seconds } else { 0.0 };
        let left = total.saturating_sub(done) as f64;
        (self.orders.events)(Event::Loading {
            model: self.orders.model.clone(),
            done_bytes: done,
            total_bytes: total,
            mb_per_s: rate / 1e6,
            eta_s: (rate > 0.0).then(|| left / rate),
        });
    }
}
