//! What the HTTP side holds of the engine: submit sequences, follow them, leave them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use futures::Stream;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{oneshot, watch};
use unfazed_wire::{RequestId, Submit, ToEngine};

use super::state::{Pause, Shared, State};
use super::{Interruption, Parts, Update};
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

/// A sequence that another front had, and how far that came.
#[derive(Clone, Debug)]
pub(crate) struct Unfinished {
    pub(crate) submit: Submit,
    /// Tokens verified.
    pub(crate) tokens: Vec<u32>,
    /// Prompt tokens whose log probabilities were told.
    pub(crate) prompt_logprobs: usize,
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

    /// Whether engines are being kept: the keeper has been heard of when it should have been. Does not return where nobody gets at
    /// what front and keeper share.
    pub(crate) fn is_kept(&self) -> bool {
        let _state = self.shared.lock();
        !self.shared.pulse.is_late(Instant::now())
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
        let new = |submit| Unfinished { submit, tokens: Vec::new(), prompt_logprobs: 0 };
        Ok(self.insert(&mut state, submits.into_iter().map(new)))
    }

    /// Goes on with sequences of another front. They were let in by it: there is room for them whatever else waits.
    pub(crate) fn adopt(&self, sequences: Vec<Unfinished>) -> Vec<Sequence> {
        self.insert(&mut self.shared.lock(), sequences.into_iter())
    }

    fn insert(&self, state: &mut State, sequences: impl Iterator<Item = Unfinished>) -> Vec<Sequence> {
        let mut inserted = Vec::new();
        for Unfinished { mut submit, tokens, prompt_logprobs } in sequences {
            let request = RequestId(state.next_request);
            state.next_request += 1;
            submit.request = request;
            let (updates, receiver) = unbounded_channel();
            let begun = !tokens.is_empty() || prompt_logprobs > 0;
            let mut record = Record::new(submit, updates);
            (record.tokens, record.prompt_logprobs, record.begun) = (tokens, prompt_logprobs, begun);
            state.journal.insert(record);
            inserted.push(Sequence { request, updates: receiver, shared: Arc::clone(&self.shared) });
        }
        state.hand_over();
        self.shared.note(state);
        inserted
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

    /// Ends the engine and starts no other; what it leaves. Requests wait, as for any other engine. `None` if no engine is
    /// started any more.
    pub(crate) async fn pause(&self) -> Option<Parts> {
        let (told, wait) = oneshot::channel();
        {
            let mut state = self.shared.lock();
            state.pause = Pause::Wanted(told);
            if let Some(running) = &state.running {
                running.replace();
            }
            self.shared.wake.notify_all();
        }
        wait.await.ok()
    }

    /// Starts engines again.
    pub(crate) fn go_on(&self) {
        self.shared.lock().pause = Pause::No;
        self.shared.wake.notify_all();
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
