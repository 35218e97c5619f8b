//! What those who answer requests and the keeper of the server share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, Semaphore, watch};

use super::GuardOptions;
use super::life::Life;
use super::probe::Talk;
use super::standing::Standing;
use crate::EventSink;
use crate::events::Event;
use crate::http::error::ApiError;

/// Whether requests can be answered.
#[derive(Clone)]
pub(super) enum Phase {
    /// No process is ready; one will be.
    Waiting,
    /// This one answers.
    Ready(Arc<Life>),
    /// None will be any more.
    Over,
}

/// The guard.
pub(super) struct Guard {
    pub(super) options: GuardOptions,
    events: EventSink,
    phase: watch::Sender<Phase>,
    standing: Mutex<Standing>,
    /// What the server can do; known once it was ready.
    talk: OnceLock<Talk>,
    /// Places for requests that wait for the server.
    queue: Semaphore,
    /// Requests read it; one that may end the server is its only writer.
    gate: Arc<RwLock<()>>,
    /// The guard was told to end.
    draining: watch::Sender<bool>,
    /// The server is to end too.
    ending: watch::Sender<bool>,
    /// Requests that are being answered.
    active: watch::Sender<usize>,
    requests: AtomicU64,
}

/// Holds a request's place beside others, or alone.
pub(super) enum Pass {
    Beside(#[allow(dead_code, reason = "held for its end")] OwnedRwLockReadGuard<()>),
    Alone(OwnedRwLockWriteGuard<()>),
}

impl Pass {
    /// The request is no suspect any more.
    pub(super) fn share(self) -> Pass {
        match self {
            Pass::Alone(held) => Pass::Beside(held.downgrade()),
            beside @ Pass::Beside(_) => beside,
        }
    }
}

impl Guard {
    pub(super) fn new(options: GuardOptions, events: EventSink) -> Guard {
        Guard {
            queue: Semaphore::new(options.front.max_queue.min(Semaphore::MAX_PERMITS)),
            options,
            events,
            phase: watch::Sender::new(Phase::Waiting),
            standing: Mutex::default(),
            talk: OnceLock::new(),
            gate: Arc::default(),
            draining: watch::Sender::new(false),
            ending: watch::Sender::new(false),
            active: watch::Sender::new(0),
            requests: AtomicU64::new(0),
        }
    }

    pub(super) fn tell(&self, event: Event) {
        (self.events)(event);
    }

    pub(super) fn set(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    pub(super) fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the server can do, once that is known.
    pub(super) fn talk(&self) -> Option<&Talk> {
        self.talk.get()
    }

    pub(super) fn learned(&self, talk: Talk) -> &Talk {
        self.talk.get_or_init(|| talk)
    }

    /// A process that answers. Waits for one, in a place of the queue and for so long at most.
    pub(super) async fn ready(&self, limit: Duration) -> Result<Arc<Life>, ApiError> {
        if let Phase::Ready(life) = self.phase() {
            return Ok(life);
        }
        let retry = self.standing().retry_after();
        let Ok(_place) = self.queue.try_acquire() else {
            let text = "the server behind this guard is starting, and too many requests wait for it";
            return Err(ApiError::unavailable("queue_full", text, retry));
        };
        let mut phase = self.phase.subscribe();
        let waited = phase.wait_for(|phase| !matches!(phase, Phase::Waiting));
        match tokio::time::timeout(limit, waited).await {
            Ok(Ok(phase)) => match &*phase {
                Phase::Ready(life) => Ok(Arc::clone(life)),
                Phase::Waiting | Phase::Over => Err(ApiError::shutting_down()),
            },
            Ok(Err(_)) => Err(ApiError::shutting_down()),
            Err(_) => {
                let seconds = limit.as_secs();
                let text = format!(
                    "the server behind this guard is not ready after {seconds} s (--queue-seconds); it is being started again"
                );
                Err(ApiError::unavailable("engine_unavailable", text, retry))
            }
        }
    }

    /// A place in the server: beside others, or for a suspect alone.
    pub(super) async fn pass(&self, alone: bool) -> Pass {
        if alone {
            Pass::Alone(Arc::clone(&self.gate).write_owned().await)
        } else {
            Pass::Beside(Arc::clone(&self.gate).read_owned().await)
        }
    }

    /// A request begins, unless the guard ends.
    pub(super) fn enter(self: &Arc<Self>) -> Result<Active, ApiError> {
        if *self.draining.borrow() {
            return Err(ApiError::shutting_down());
        }
        self.active.send_modify(|active| *active = active.saturating_add(1));
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        Ok(Active { guard: Arc::clone(self), number })
    }

    /// Takes no more requests, and returns how many there are.
    pub(super) fn drain(&self) -> usize {
        self.draining.send_replace(true);
        *self.active.borrow()
    }

    pub(super) fn draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Resolves once no request is being answered.
    pub(super) async fn idle(&self) {
        // The sender is in `self`.
        let _ = self.active.subscribe().wait_for(|active| *active == 0).await;
    }

    pub(super) fn active(&self) -> usize {
        *self.active.borrow()
    }

    /// Ends the server for good.
    pub(super) fn end(&self) {
        self.ending.send_replace(true);
    }

    pub(super) fn is_ending(&self) -> bool {
        *self.ending.borrow()
    }

    /// Resolves once the server is to end.
    pub(super) async fn ending(&self) {
        let _ = self.ending.subscribe().wait_for(|ending| *ending).await;
    }
}

/// A request that is being answered.
pub(super) struct Active {
    pub(super) guard: Arc<Guard>,
    /// Counts from 0.
    pub(super) number: u64,
}

impl Drop for Active {
    fn drop(&mut self) {
        self.guard.active.send_modify(|active| *active = active.saturating_sub(1));
    }
}
