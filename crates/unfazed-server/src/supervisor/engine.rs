//! What the HTTP side holds of the engine: submit sequences, follow them, leave them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Stream;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;
use unfazed_wire::{RequestId, Submit, ToEngine};

use super::state::Shared;
use super::{Interruption, Update};
use crate::events::EventSink;
use crate::http::metrics::Metrics;
use crate::journal::Record;

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
    /// The thread that starts engines panicked.
    Keeper,
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

impl Engine {
    /// An engine that is not started yet. `capacity` sequences may run or wait at a time.
    pub(crate) fn new(capacity: usize, metrics: Arc<Metrics>, events: EventSink) -> Engine {
        Engine { shared: Arc::new(Shared::new(capacity, metrics, events)) }
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
            state.journal.insert(Record::new(submit, updates));
            sequences.push(Sequence { request, updates: receiver, shared: Arc::clone(&self.shared) });
        }
        state.hand_over();
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
        let records = state.journal.take_all();
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
        match (state.link.take(), &state.running) {
            (Some(link), _) => drop(link.send(ToEngine::Shutdown)),
            (None, Some(running)) => running.kill(),
            (None, None) => {}
        }
        self.shared.wake.notify_all();
    }

    /// Ends the engine's process.
    pub(crate) fn kill(&self) {
        if let Some(running) = &self.shared.lock().running {
            running.kill();
        }
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
        if state.leave(self.request).is_some() {
            self.shared.note(&state);
        }
    }
}
