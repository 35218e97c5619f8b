//! What the keeper's thread and the HTTP side share: the journal, the way to the ready engine, and how engines fare.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use unfazed_wire::{Failure, FailureKind, RequestId, ToEngine, ToFront, TokenEvent};

use super::cause::Cause;
use super::fate::{self, Aftermath};
use super::health::Standing;
use super::life::Running;
use super::pressure::Given;
use super::pulse::Pulse;
use super::status::LastEnded;
use super::troubles::Troubles;
use super::{Exit, Parts, Phase, Refused, Update, quarantine};
use crate::events::{Event, EventSink};
use crate::http::metrics::Metrics;
use crate::journal::{Journal, Record, Stage};

/// What both share.
pub(super) struct Shared {
    state: Mutex<State>,
    /// Wakes the keeper out of its back-off.
    pub(super) wake: Condvar,
    pub(super) phase: watch::Sender<Phase>,
    /// Whether the keeper is at work.
    pub(super) pulse: Pulse,
    /// Sequences in the journal, for whoever waits for the last one to end.
    pub(super) load: watch::Sender<usize>,
    pub(super) capacity: usize,
    pub(super) metrics: Arc<Metrics>,
    pub(super) events: EventSink,
}

/// Everything behind the lock.
#[derive(Default)]
pub(super) struct State {
    pub(super) journal: Journal,
    /// To the engine, while one is ready.
    pub(super) link: Option<mpsc::Sender<ToEngine>>,
    /// The engine, from its start until it is reaped or left behind.
    pub(super) running: Option<Arc<Running>>,
    /// No new sequences.
    pub(super) draining: bool,
    /// No new engines.
    pub(super) stopping: bool,
    pub(super) pause: Pause,
    pub(super) next_request: u64,
    pub(super) standing: Standing,
    pub(super) troubles: Troubles,
    pub(super) ended: LastEnded,
    pub(super) given: Given,
}

/// Whether engines are started.
#[derive(Default)]
pub(super) enum Pause {
    /// They are.
    #[default]
    No,
    /// Somebody wants none, and what they left.
    Wanted(oneshot::Sender<Parts>),
    /// They are not, until somebody wants them again.
    Held,
}

impl Shared {
    pub(super) fn new(capacity: usize, metrics: Arc<Metrics>, events: EventSink) -> Shared {
        Shared {
            state: Mutex::default(),
            wake: Condvar::new(),
            phase: watch::Sender::new(Phase::Loading),
            pulse: Pulse::default(),
            load: watch::Sender::new(0),
            capacity,
            metrics,
            events,
        }
    }

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

    /// An engine is ready: what waits goes to it, as far as quarantine allows.
    pub(super) fn engine_ready(&self, link: mpsc::Sender<ToEngine>) {
        let mut state = self.lock();
        if state.stopping {
            let _ = link.send(ToEngine::Shutdown);
            return;
        }
        state.link = Some(link);
        state.hand_over();
        self.note(&state);
    }

    /// Says what is wrong with an engine's news, if it tells of more than was asked for. Nobody could bound what it would
    /// take otherwise, and no other engine could go on from it.
    pub(super) fn excess(&self, message: &ToFront) -> Option<String> {
        let state = self.lock();
        let (request, count, limit, what) = match message {
            ToFront::Tokens(tokens) => tokens.iter().find_map(|event| {
                let record = state.journal.get(event.request)?;
                let news = tokens.iter().filter(|other| other.request == event.request).count();
                let (count, limit) = (record.tokens.len().saturating_add(news), record.submit.max_tokens);
                (count > limit).then_some((event.request, count, limit, "tokens of the answer"))
            })?,
            ToFront::PromptLogprobs { request, tokens } => {
                let record = state.journal.get(*request)?;
                let count = record.prompt_logprobs.saturating_add(tokens.len());
                let limit = record.submit.prompt.len().saturating_sub(1);
                (count > limit).then_some((*request, count, limit, "log probabilities of the prompt"))?
            }
            _ => return None,
        };
        Some(format!("it told {count} {what} of request {}, which has at most {limit}", request.0))
    }

    /// Passes an engine's news on. News of a sequence that was left, or that this engine does not have, is dropped. True
    /// if a sequence got further than ever.
    pub(super) fn dispatch(&self, message: ToFront) -> bool {
        let mut event = None;
        if let ToFront::Failed { failure: Failure { kind: FailureKind::Storage, message }, .. } = &message {
            self.cannot_read(message);
        }
        let mut state = self.lock();
        let gained = match message {
            ToFront::Admitted { request, kept, missing } => {
                event = state.admitted(request, kept, missing);
                false
            }
            ToFront::Prefill { request, done, .. } => state.advance(request, |record| {
                let further = done > record.prefilled;
                record.prefilled = record.prefilled.max(done);
                further
            }),
            ToFront::PromptLogprobs { request, tokens } => state.advance(request, |record| {
                record.prompt_logprobs = record.prompt_logprobs.saturating_add(tokens.len());
                record.tell(Update::PromptLogprobs(tokens));
                true
            }),
            ToFront::Tokens(tokens) => {
                state.troubles.step_went_well();
                // Every one of them, not just up to the first that is a gain.
                tokens.into_iter().fold(false, |gained, event| state.token(event) | gained)
            }
            ToFront::StorageWait { ms } => {
                state.journal.waited(Duration::from_secs_f64(ms.clamp(0.0, 3.6e6) / 1e3));
                false
            }
            ToFront::Finished { request, reason, timings } => {
                state.end(request, Update::Finished(reason, timings))
            }
            ToFront::Failed { request, failure } => state.end(request, Update::Failed(failure)),
            ToFront::Hello { .. }
            | ToFront::Loading { .. }
            | ToFront::Working
            | ToFront::Waiting { .. }
            | ToFront::Ready(_)
            | ToFront::Fault(_)
            | ToFront::GaveUp(_)
            | ToFront::OpenedUp { .. }
            | ToFront::LoadFailed(_) => false,
        };
        if gained {
            state.standing.attempt = 0;
        }
        self.note(&state);
        drop(state);
        if let Some(event) = event {
            self.tell_of_resumed(event);
        }
        gained
    }

    fn tell_of_resumed(&self, event: Event) {
        if let Event::RequestResumed { kept_positions, missing_positions, .. } = event {
            self.metrics.request_resumed(kept_positions, missing_positions);
        }
        (self.events)(event);
    }

    /// An engine is gone: decides about its sequences.
    pub(super) fn engine_died(&self, cause: Cause, exit: Exit) -> Aftermath {
        let mut state = self.lock();
        state.link = None;
        state.running = None;
        state.standing.died(cause, exit);
        let aftermath = fate::after_death(&mut state.journal, cause);
        self.note(&state);
        aftermath
    }
}

impl State {
    pub(super) fn check(&self, count: usize, capacity: usize) -> Result<(), Refused> {
        if self.draining || self.stopping {
            Err(Refused::ShuttingDown)
        } else if self.journal.len().saturating_add(count) > capacity {
            Err(Refused::QueueFull)
        } else {
            Ok(())
        }
    }

    /// Whether the engine has something to do: it loads, or has sequences.
    pub(super) fn engine_is_busy(&self) -> bool {
        !self.stopping
            && (self.link.is_none() || self.journal.iter().any(|record| record.stage() != Stage::Waiting))
    }

    /// Whether sequences are tested one at a time.
    pub(super) fn has_suspects(&self) -> bool {
        self.journal.iter().any(|record| record.suspicion.is_suspect())
    }

    /// Gives the ready engine, if there is one, what it may have.
    pub(super) fn hand_over(&mut self) {
        let Some(link) = &self.link else { return };
        for request in quarantine::admissible(&self.journal) {
            if let Some(record) = self.journal.get_mut(request) {
                record.turn(Stage::Queued);
                record.gained = false;
                if record.begun {
                    record.tell(Update::Resumed);
                }
                // A send to an engine that just died is as good as a death right after it.
                let _ = link.send(ToEngine::Submit(Box::new(record.to_submit())));
            }
        }
    }

    /// A sequence that the engine has.
    fn handed_over(&mut self, request: RequestId) -> Option<&mut Record> {
        self.journal.get_mut(request).filter(|record| record.stage() != Stage::Waiting)
    }

    fn admitted(&mut self, request: RequestId, kept: usize, missing: usize) -> Option<Event> {
        let record = self.handed_over(request)?;
        record.turn(Stage::Running);
        if !std::mem::replace(&mut record.begun, true) {
            return None;
        }
        Some(Event::RequestResumed {
            request: request.0,
            tokens: record.tokens.len(),
            kept_positions: kept,
            missing_positions: missing,
        })
    }

    /// Takes note of news about a running sequence; `change` says whether it got further than ever. A suspect that does
    /// is none any more, and what waits for it is handed over.
    fn advance(&mut self, request: RequestId, change: impl FnOnce(&mut Record) -> bool) -> bool {
        let Some(record) = self.handed_over(request) else { return false };
        record.turn(Stage::Running);
        record.begun = true;
        let gained = change(record);
        record.gained |= gained;
        if gained && record.suspicion.clear() {
            self.hand_over();
        }
        gained
    }

    fn token(&mut self, event: TokenEvent) -> bool {
        self.advance(event.request, |record| {
            record.tokens.push(event.token);
            record.tell(Update::Token(event));
            true
        })
    }

    /// A sequence ends. Waiting suspects may have waited for it.
    fn end(&mut self, request: RequestId, update: Update) -> bool {
        if self.handed_over(request).is_none() {
            return false;
        }
        if let Some(record) = self.journal.remove(request) {
            self.ended.note(&record);
            record.tell(update);
        }
        self.hand_over();
        true
    }

    /// A sequence was left by its client.
    pub(super) fn leave(&mut self, request: RequestId) -> Option<Record> {
        let record = self.journal.remove(request)?;
        self.cancel(&record);
        self.hand_over();
        Some(record)
    }

    pub(super) fn cancel(&self, record: &Record) {
        if record.stage() != Stage::Waiting
            && let Some(link) = &self.link
        {
            // A link whose engine just died has nobody to tell.
            let _ = link.send(ToEngine::Cancel(record.submit.request));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver;

    use super::super::simulation::{engine, submit};
    use super::super::{Engine, Sequence};
    use super::*;

    /// Makes the engine ready and gives it a request.
    fn requests(engine: &Engine) -> (Vec<Sequence>, Receiver<ToEngine>) {
        let (link, inbox) = mpsc::channel();
        engine.shared.engine_ready(link);
        (engine.submit(vec![submit(0, 5)]).unwrap(), inbox)
    }

    fn handed_over(inbox: &Receiver<ToEngine>) -> Vec<u64> {
        let submit = |message| match message {
            ToEngine::Submit(submit) => Some(submit.request.0),
            _ => None,
        };
        inbox.try_iter().filter_map(submit).collect()
    }

    fn token(request: u64) -> ToFront {
        ToFront::Tokens(vec![TokenEvent { request: RequestId(request), token: 1, logprobs: None }])
    }

    #[test]
    fn news_of_a_request_that_the_engine_does_not_have_is_dropped() {
        let engine = engine(4);
        let (_first, inbox) = requests(&engine);
        assert_eq!(handed_over(&inbox), [0]);
        engine.shared.engine_died(Cause::Signal(9), Exit::default());
        assert!(!engine.shared.dispatch(token(0)), "it waits");
        assert!(!engine.shared.dispatch(token(7)), "there is none");
        assert!(engine.shared.lock().journal.iter().all(|record| record.tokens.is_empty()));
    }

    #[test]
    fn prompt_positions_that_an_earlier_engine_had_computed_are_no_gain() {
        let engine = engine(4);
        let (_first, _inbox) = requests(&engine);
        let prefill = |done| ToFront::Prefill { request: RequestId(0), done, total: 9 };
        assert!(engine.shared.dispatch(prefill(3)));
        assert!(!engine.shared.dispatch(prefill(3)));
        engine.shared.engine_died(Cause::Signal(9), Exit::default());
        let (link, _inbox) = mpsc::channel();
        engine.shared.engine_ready(link);
        assert!(!engine.shared.dispatch(prefill(2)));
        assert!(engine.shared.dispatch(prefill(4)));
    }

    #[test]
    fn a_suspect_that_is_left_makes_room_for_the_others() {
        let engine = engine(4);
        let (first, _) = requests(&engine);
        for _ in 0..2 {
            let (link, _inbox) = mpsc::channel();
            engine.shared.engine_ready(link);
            engine.shared.engine_died(Cause::Signal(6), Exit::default());
        }
        let _second = engine.submit(vec![submit(0, 5)]).unwrap();
        let (link, inbox) = mpsc::channel();
        engine.shared.engine_ready(link);
        assert_eq!(handed_over(&inbox), [0], "the suspect alone");
        drop(first);
        assert_eq!(handed_over(&inbox), [1]);
    }
}
