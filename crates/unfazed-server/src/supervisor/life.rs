//! One engine from its start to its end.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use unfazed_fault::{Action, Class, Origin};
use unfazed_formats::checkpoint::FILES_MAX;
use unfazed_wire::link::{self, LinkError, Receiver, Sender};
use unfazed_wire::{
    BUILD_ID, Gpus, LoadFailure, LoadFault, ReadyInfo, Start, StreamedExperts, ToEngine, ToFront,
};

use super::memory::{self, Given, Memory};
use super::state::{Pause, Shared};
use super::watchdog::Watch;
use super::{Orders, Phase, Process, pulse};
use crate::events::Event;

/// Shortest time between two `loading` events.
const LOADING_EVERY: Duration = Duration::from_millis(200);
/// Most characters of what an engine says that it waits for.
const LONGEST_WAIT_NAME: usize = 200;
/// An engine that was ready for so long is a good one, whether it had anything to do or not.
pub(super) const STEADY: Duration = Duration::from_secs(60);
/// Descriptors beside those of the model's files: a trace, and memory for weights, KV pages and experts.
const OTHERS: usize = 4;

// A model that can be opened can be handed over.
const _: () = assert!(FILES_MAX + OTHERS <= link::MAX_DESCRIPTORS);

/// An engine's process and our end of its link.
pub(super) struct Running {
    pub(super) process: Arc<dyn Process>,
    socket: UnixStream,
    killed: AtomicBool,
    replaced: AtomicBool,
}

impl Running {
    /// Ends the process and the link: whoever waits for the engine's next message wakes up, even if the process cannot
    /// be ended.
    pub(super) fn kill(&self) {
        self.killed.store(true, Ordering::Relaxed);
        self.process.kill();
        self.hang_up();
    }

    /// Ends it so that another one takes its place.
    pub(super) fn replace(&self) {
        self.replaced.store(true, Ordering::Relaxed);
        self.kill();
    }

    /// Whether it made room for another one.
    pub(super) fn was_replaced(&self) -> bool {
        self.replaced.load(Ordering::Relaxed)
    }

    /// Whether we killed it.
    pub(super) fn was_killed(&self) -> bool {
        self.killed.load(Ordering::Relaxed)
    }

    fn hang_up(&self) {
        // Fails where the engine's end is closed already, which is as good.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// What is left of an engine.
pub(super) struct Life {
    /// Its process, if there ever was one.
    pub(super) running: Option<Arc<Running>>,
    pub(super) end: End,
    /// The watchdog killed it.
    pub(super) stalled: bool,
    /// It said that its device can be used no more.
    pub(super) device: Option<Class>,
    pub(super) was_ready: bool,
    /// Some sequence got further than ever, or it was there for long.
    pub(super) progressed: bool,
}

/// Why a life ended.
pub(super) enum End {
    /// Its link ended; how the process did says more.
    Gone,
    /// It could not be started, stalled or stopped talking sense.
    Died(String),
    /// It says that the model cannot be loaded.
    LoadFailed(String),
    /// It is another build.
    OtherBuild(String),
}

/// Starts an engine and follows it to its end.
pub(super) fn live(shared: &Shared, orders: &Orders, memory: &Mutex<Memory>) -> Life {
    let mut life = Life {
        running: None,
        end: End::Gone,
        stalled: false,
        device: None,
        was_ready: false,
        progressed: false,
    };
    let begun = Instant::now();
    let rung = shared.lock().troubles.memory();
    let given = memory.lock().unwrap_or_else(PoisonError::into_inner).next(rung);
    let started = given.map_err(|error| error.to_string()).and_then(|given| {
        let (socket, running) =
            start(shared, orders).map_err(|error| format!("it cannot be started: {error}"))?;
        Ok((given, socket, running))
    });
    match started {
        Ok((given, socket, running)) => {
            shared.metrics.kv_pages(given.pages);
            follow(shared, orders, memory, &given, socket, &running, &mut life);
            life.running = Some(running);
            life.progressed |= life.was_ready && begun.elapsed() >= STEADY;
        }
        Err(message) => life.end = End::Died(message),
    }
    life
}

fn start(shared: &Shared, orders: &Orders) -> io::Result<(UnixStream, Arc<Running>)> {
    let (socket, process) = orders.launch.launch()?;
    let ours = socket.try_clone().inspect_err(|_| process.kill())?;
    let running = Arc::new(Running {
        process,
        socket: ours,
        killed: AtomicBool::new(false),
        replaced: AtomicBool::new(false),
    });
    let mut state = shared.lock();
    if state.stopping || !matches!(state.pause, Pause::No) {
        running.kill();
    }
    state.running = Some(Arc::clone(&running));
    Ok((socket, running))
}

/// Talks to a started engine until its link ends, under the eyes of the watchdog.
fn follow(
    shared: &Shared,
    orders: &Orders,
    memory: &Mutex<Memory>,
    given: &Given,
    socket: UnixStream,
    running: &Running,
    life: &mut Life,
) {
    let watch = &Watch::new(orders.limits);
    let busy = || {
        shared.pulse.within(pulse::TICK, Instant::now());
        memory::reclaim(memory, shared);
        if shared.climbs() {
            // Requests go on in the next engine as after any death.
            running.replace();
        }
        shared.lock().engine_is_busy()
    };
    let end = thread::scope(|scope| {
        let (alive, ended) = mpsc::channel();
        let guard = move || watch.keep(&ended, busy, || running.kill());
        let watchdog = thread::Builder::new().name("watchdog".to_owned());
        watchdog.spawn_scoped(scope, guard).map_err(LinkError::from)?;
        let (sender, mut receiver) = link::split(socket)?;
        let end = Talk { shared, orders, given, watch, life }.hold(sender, &mut receiver);
        // An engine that hangs in a write would never see its socket end otherwise.
        running.hang_up();
        drop(alive);
        end
    });
    shared.lock().link = None;
    shared.phase.send_replace(Phase::Loading);
    life.end = end.unwrap_or_else(|error| End::Died(error.to_string()));
    if let Some(stall) = watch.stall() {
        life.stalled = true;
        life.end = End::Died(stall.to_string());
    }
}

/// A conversation with an engine.
struct Talk<'a> {
    shared: &'a Shared,
    orders: &'a Orders,
    given: &'a Given,
    watch: &'a Watch,
    life: &'a mut Life,
}

impl Talk<'_> {
    fn hold(mut self, mut sender: Sender, receiver: &mut Receiver) -> Result<End, LinkError> {
        match self.next(receiver)? {
            Some(ToFront::Hello { build_id }) if build_id == BUILD_ID => {}
            Some(ToFront::Hello { build_id }) => return Ok(End::OtherBuild(build_id)),
            Some(_) => return Ok(End::Died("it did not say which build it is".to_owned())),
            None => return Ok(End::Gone),
        }
        let files = self.orders.files.to_hand_over();
        let files = files.iter().map(|source| source.file().as_fd());
        let trace = self.orders.trace.iter().map(AsFd::as_fd);
        let memory = [self.given.weights.as_fd(), self.given.kv.as_fd()];
        let experts = self.given.experts.iter().map(|experts| experts.as_fd());
        let descriptors: Vec<_> = files.chain(trace).chain(memory).chain(experts).collect();
        sender.send_with_descriptors(&ToEngine::Start(Box::new(self.start_message())), &descriptors)?;
        let mut loading = Loading::new(self.orders);
        // Taken by the writer's thread once the engine is ready.
        let mut sender = Some(sender);
        while let Some(message) = self.next(receiver)? {
            match message {
                ToFront::Loading { done, total } => loading.tell(done, total),
                ToFront::LoadFailed(LoadFailure { fault, message }) => {
                    return Ok(match fault {
                        LoadFault::Model => End::LoadFailed(message),
                        LoadFault::Machine => End::Died(message),
                    });
                }
                ToFront::Ready(info) => {
                    let Some(sender) = sender.take() else { continue };
                    self.ready(sender, &info)?;
                }
                ToFront::Fault(report) => {
                    if report.class.origin() == Origin::Device
                        && matches!(report.action, Action::NewEngine | Action::StepDown)
                    {
                        self.life.device = Some(report.class);
                    }
                    self.shared.fault(report);
                }
                ToFront::GaveUp(given) => self.shared.gave_up(given),
                ToFront::OpenedUp { slots, open_slots } => self.shared.opened_up(slots, open_slots),
                message => {
                    if let Some(excess) = self.shared.excess(&message) {
                        return Ok(End::Died(excess));
                    }
                    self.life.progressed |= self.shared.dispatch(message);
                }
            }
        }
        Ok(End::Gone)
    }

    /// The next message, which the watchdog hears of.
    fn next(&self, receiver: &mut Receiver) -> Result<Option<ToFront>, LinkError> {
        let message = receiver.receive()?;
        if let Some(message) = &message
            && self.watch.hear(message)
            && let ToFront::Waiting { what, ms } = message
        {
            let what: String = what.chars().take(LONGEST_WAIT_NAME).collect();
            tracing::warn!(ms, "the engine waits for {what}");
            self.shared.waits(&what, *ms);
            (self.orders.events)(Event::Waiting { what, ms: *ms });
        }
        Ok(message)
    }

    fn start_message(&self) -> Start {
        let memory = self.given.experts.as_ref().map_or(0, |experts| experts.len());
        let mut state = self.shared.lock();
        let (engine, troubles) = state.troubles.next_engine();
        let cpu_alone = state.troubles.cpu_alone();
        let placement = self.orders.placement(state.troubles.placement());
        let slots = state.given.open(self.orders.memory.slots_at(state.troubles.memory()));
        drop(state);
        let experts = self.orders.start.experts.clone().map(|experts| {
            let open = slots.max(experts.least);
            StreamedExperts { memory, open, ..experts }
        });
        Start {
            experts,
            engine,
            troubles,
            cpu_alone,
            gpus: if placement.is_cpu_alone() { Gpus::default() } else { self.orders.start.gpus.clone() },
            placement,
            pages: self.given.pages,
            weight_memory: self.given.weights.len(),
            kv_memory: self.given.kv.len(),
            ..self.orders.start.clone()
        }
    }

    /// Opens the way to a ready engine and sends what waited for it.
    fn ready(&mut self, mut sender: Sender, info: &ReadyInfo) -> Result<(), LinkError> {
        self.life.was_ready = true;
        let (link, outgoing) = mpsc::channel::<ToEngine>();
        // The HTTP side must never block on an engine's socket, so a thread does. It ends with the link's last sender,
        // or with the engine.
        thread::Builder::new().name("to-engine".to_owned()).spawn(move || {
            for message in outgoing {
                if let Err(error) = sender.send(&message) {
                    tracing::debug!(%error, "the engine does not listen");
                    return;
                }
            }
        })?;
        self.shared.engine_ready(link);
        self.announce(info);
        self.shared.mended();
        if cfg!(target_os = "linux") && !memory::is_sealed(&self.given.weights) {
            tracing::warn!("the engine did not seal its weights: another engine's fault could reach them");
        }
        Ok(())
    }

    fn announce(&self, info: &ReadyInfo) {
        let first = {
            let mut state = self.shared.lock();
            if state.stopping {
                return;
            }
            state.standing.ready(Instant::now(), info);
            !std::mem::replace(&mut state.standing.ever_ready, true)
        };
        self.shared.phase.send_replace(Phase::Ready);
        self.shared.metrics.engine_ready(info);
        let &ReadyInfo { load_ms, read_bytes, kept_bytes, ref placement, .. } = info;
        let (engine, gpu_layers) = (placement.engine(), placement.gpu_layers());
        (self.orders.events)(if first {
            (self.orders.ready)(info)
        } else {
            Event::EngineReady { load_ms, read_bytes, kept_bytes, engine, gpu_layers }
        });
    }
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
