//! What the HTTP side holds of the engine: submit sequences, follow them, leave them.

use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Context, Poll};

use futures::Stream;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;
use unfazed_wire::{RequestId, Submit, ToEngine, ToFront};

use super::{Interruption, Process, Update};
use crate::http::metrics::Metrics;
use crate::journal::{Journal, Record, Stage};

/// How the engine is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Phase {
    /// Being started, or loading the model. Requests wait.
    Loading,
    /// It computes.
    Ready,
    /// It was ended on purpose.
    Stopped,
    /// No engine will ever be ready.
    Failed(Fatal),
}

/// Why no engine will be ready.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fatal {
    /// The model cannot be loaded: the engine's own line.
    Load(String),
    /// The engine's build.
    Build(String),
    /// Starts that all ended before the engine was ready, and how the last one did.
    NeverReady(u32, String),
}

/// Why sequences were not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Too many wait already.
    QueueFull,
    /// The server ends.
    ShuttingDown,
}

/// The engine, whichever process it is at the moment.
#[derive(Clone)]
pub(crate) struct Engine {
    pub(super) shared: Arc<Shared>,
}

/// What the keeper's thread and the HTTP side share.
pub(super) struct Shared {
    state: Mutex<State>,
    /// Wakes the keeper out of its back-off.
    pub(super) wake: Condvar,
    pub(super) phase: watch::Sender<Phase>,
    /// Sequences in the journal, for whoever waits for the last one to end.
    load: watch::Sender<usize>,
    capacity: usize,
    metrics: Arc<Metrics>,
}

/// Everything behind the lock.
#[derive(Default)]
pub(super) struct State {
    pub(super) journal: Journal,
    /// To the engine, while one is ready.
    pub(super) link: Option<mpsc::Sender<ToEngine>>,
    pub(super) process: Option<Arc<dyn Process>>,
    /// No new sequences.
    draining: bool,
    /// No new engines.
    pub(super) stopping: bool,
    next_request: u64,
}

impl Engine {
    /// An engine that is not started yet. `capacity` sequences may run or wait at a time.
    pub(crate) fn new(capacity: usize, metrics: Arc<Metrics>) -> Engine {
        let shared = Shared {
            state: Mutex::default(),
            wake: Condvar::new(),
            phase: watch::Sender::new(Phase::Loading),
            load: watch::Sender::new(0),
            capacity,
            metrics,
        };
        Engine { shared: Arc::new(shared) }
    }

    /// How the engine is, now and from now on.
    pub(crate) fn phase(&self) -> watch::Receiver<Phase> {
        self.shared.phase.subscribe()
    }

    /// Most sequences that may run or wait at a time.
    pub(crate) fn capacity(&self) -> usize {
        self.shared.capacity
    }

    /// Whether `count` sequences would be taken now. A cheap look before costly preparation.
    pub(crate) fn check(&self, count: usize) -> Result<(), Refused> {
        self.shared.lock().check(count, self.shared.capacity)
    }

    /// Hands sequences over, all or none. Their ids are given here.
    pub(crate) fn submit(&self, submits: Vec<Submit>) -> Result<Vec<Sequence>, Refused> {
        let mut state = self.shared.lock();
        state.check(submits.len(), self.shared.capacity)?;
        let mut sequences = Vec::with_capacity(submits.len());
        for mut submit in submits {
            let request = RequestId(state.next_request);
            state.next_request += 1;
            submit.request = request;
            let (updates, receiver) = unbounded_channel();
            let mut record = Record { submit, tokens: Vec::new(), stage: Stage::Waiting, updates };
            if let Some(link) = &state.link {
                record.hand_over(link);
            }
            state.journal.insert(record);
            sequences.push(Sequence { request, updates: receiver, shared: Arc::clone(&self.shared) });
        }
        self.shared.note(&state);
        Ok(sequences)
    }

    /// Takes no more sequences; returns how many have not ended.
    pub(crate) fn drain(&self) -> usize {
        let mut state = self.shared.lock();
        state.draining = true;
        state.journal.len()
    }

    /// Whether the server is about to end.
    pub(crate) fn draining(&self) -> bool {
        self.shared.lock().draining
    }

    /// Returns once no sequence is left.
    pub(crate) async fn idle(&self) {
        // The sender lives in `shared`, so waiting cannot fail.
        let _ = self.shared.load.subscribe().wait_for(|load| *load == 0).await;
    }

    /// Ends every sequence that has not ended; returns how many there were.
    pub(crate) fn interrupt_all(&self) -> usize {
        let mut state = self.shared.lock();
        let records = state.journal.take_if(|_| true);
        for record in &records {
            state.cancel(record);
            record.tell(Update::Interrupted(Interruption::Shutdown));
        }
        self.shared.note(&state);
        records.len()
    }

    /// Asks the engine to end; it ends at once when it is not ready.
    pub(crate) fn stop(&self) {
        let mut state = self.shared.lock();
        state.stopping = true;
        match (state.link.take(), &state.process) {
            (Some(link), _) => drop(link.send(ToEngine::Shutdown)),
            (None, Some(process)) => process.kill(),
            (None, None) => {}
        }
        self.shared.wake.notify_all();
    }

    /// Ends the engine's process.
    pub(crate) fn kill(&self) {
        if let Some(process) = &self.shared.lock().process {
            process.kill();
        }
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock panics half-way through a change; a poisoned lock is as good as a sound one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows the journal's state to those who wait for it and to the metrics.
    pub(super) fn note(&self, state: &State) {
        let running = state.journal.running();
        self.metrics.sequences(running, state.journal.len() - running);
        self.load.send_replace(state.journal.len());
    }

    /// Passes an engine's news on. News of a sequence that was left is dropped.
    pub(super) fn dispatch(&self, message: ToFront) {
        let mut state = self.lock();
        match message {
            ToFront::Prefill { request, .. } => state.started(request),
            ToFront::PromptLogprobs { request, tokens } => {
                state.started(request);
                state.tell(request, Update::PromptLogprobs(tokens));
            }
            ToFront::Tokens(tokens) => {
                for event in tokens {
                    state.started(event.request);
                    if let Some(record) = state.journal.get_mut(event.request) {
                        record.tokens.push(event.token);
                        record.tell(Update::Token(event));
                    }
                }
            }
            ToFront::Finished { request, reason, timings } => {
                state.end(request, Update::Finished(reason, timings));
            }
            ToFront::Failed { request, failure } => state.end(request, Update::Failed(failure)),
            ToFront::Admitted { request, .. } => state.started(request),
            ToFront::Hello { .. }
            | ToFront::Loading { .. }
            | ToFront::Working
            | ToFront::Waiting { .. }
            | ToFront::Ready(_)
            | ToFront::LoadFailed(_) => {}
        }
        self.note(&state);
    }
}

impl State {
    fn check(&self, count: usize, capacity: usize) -> Result<(), Refused> {
        if self.draining || self.stopping {
            Err(Refused::ShuttingDown)
        } else if self.journal.len().saturating_add(count) > capacity {
            Err(Refused::QueueFull)
        } else {
            Ok(())
        }
    }

    fn started(&mut self, request: RequestId) {
        if let Some(record) = self.journal.get_mut(request) {
            record.stage = Stage::Running;
        }
    }

    fn tell(&mut self, request: RequestId, update: Update) {
        if let Some(record) = self.journal.get_mut(request) {
            record.tell(update);
        }
    }

    fn end(&mut self, request: RequestId, update: Update) {
        if let Some(record) = self.journal.remove(request) {
            record.tell(update);
        }
    }

    fn cancel(&self, record: &Record) {
        if record.stage != Stage::Waiting
            && let Some(link) = &self.link
        {
            // A link whose engine just died has nobody to tell.
            let _ = link.send(ToEngine::Cancel(record.submit.request));
        }
    }
}

impl Record {
    /// Gives the sequence to an engine. A send to an engine that just died is as good as a death right after it.
    pub(super) fn hand_over(&mut self, link: &mpsc::Sender<ToEngine>) {
        let _ = link.send(ToEngine::Submit(Box::new(self.submit.clone())));
        self.stage = Stage::Queued;
    }

    /// Tells the client's side; one that has left hears nothing.
    pub(super) fn tell(&self, update: Update) {
        let _ = self.updates.send(update);
    }
}

/// A sequence as its client sees it. Dropping it gives its place back: the engine is told at once, in the queue and in
/// prefill too.
pub(crate) struct Sequence {
    request: RequestId,
    updates: UnboundedReceiver<Update>,
    shared: Arc<Shared>,
}

impl Stream for Sequence {
    type Item = Update;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Update>> {
        self.updates.poll_recv(context)
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if let Some(record) = state.journal.remove(self.request) {
            state.cancel(&record);
            self.shared.note(&state);
        }
    }
}
