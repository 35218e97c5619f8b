//! What one front leaves to the next: in the journal on disk, or by handing over.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use tokio::net::TcpListener;
use unfazed_plan::Plan;

use crate::events::{Event, EventSink};
use crate::handover::old::Estate;
use crate::handover::{Answer, Key, Offer, PROTOCOL, Predecessor, SuccessorProgram, Taken, TakenOver};
use crate::http::adopt;
use crate::http::router::AppState;
use crate::journal::disk::{Disk, JournalEvent, JournalEvents, Kept, Limits, Opened};
use crate::journal::{Tapes, number};
use crate::supervisor::Parts;
use crate::{JournalOptions, ServeOptions, ServerError};

/// What this front could hand over.
pub(super) fn estate(
    app: &Arc<AppState>,
    socket: &TcpListener,
    inheritance: &mut Inheritance,
    offer: Offer,
    program: SuccessorProgram,
    events: &EventSink,
) -> Result<Estate, ServerError> {
    let socket = socket.as_fd().try_clone_to_owned();
    Ok(Estate {
        passage: Arc::clone(&app.passage),
        engine: app.engine.clone(),
        tapes: Arc::clone(&app.tapes),
        streams: Arc::clone(&app.streams),
        socket: socket.map_err(|source| ServerError::System { what: "the socket cannot be kept", source })?,
        journal: inheritance.journal.clone(),
        roster: inheritance.taken.as_mut().and_then(|taken| taken.roster.take()),
        offer,
        program,
        events: Arc::clone(events),
    })
}

/// What there is to take over, and whether the memory of the front before this one can be used.
pub(super) struct Offered {
    headers: u64,
    plan: serde_json::Value,
    pub(super) memory: bool,
}

impl Offered {
    pub(super) fn of(plan: &Plan, headers: u64, taken_over: Option<&TakenOver>, layout: &str) -> Offered {
        // A plan that cannot be written down fits no other.
        let plan = serde_json::to_value(plan).unwrap_or_default();
        let memory = taken_over.is_some_and(|front| front.has_memory(layout, headers, &plan));
        Offered { headers, plan, memory }
    }

    pub(super) fn offer(self, options: &ServeOptions, plan: &Plan) -> Offer {
        let experts = plan.experts.as_ref().filter(|experts| experts.streaming);
        let held = [plan.weight_bytes.0, plan.kv_bytes.0, plan.scratch_bytes.0];
        let experts = experts.map_or(0, |experts| experts.slot_bytes().0);
        let held_bytes = held.into_iter().fold(experts, u64::saturating_add);
        let layout = options.layout.clone();
        Offer { protocol: PROTOCOL, layout, headers: self.headers, plan: self.plan, held_bytes }
    }
}

/// What is there from before: a front that hands over, a journal, both or nothing.
pub(super) struct Inheritance {
    taken: Option<Taken>,
    journal: Option<Disk>,
    kept: Vec<Kept>,
}

impl Inheritance {
    /// Opens the journal, if there is to be one.
    pub(super) async fn open(
        options: &ServeOptions,
        mut taken: Option<Taken>,
        events: &EventSink,
    ) -> Result<Inheritance, ServerError> {
        let Some(journal) = options.journal.clone() else {
            return Ok(Inheritance { taken, journal: None, kept: Vec::new() });
        };
        let lock = taken.as_mut().and_then(|taken| taken.journal.take());
        let sink = journal_events(events);
        let opened = tokio::task::spawn_blocking(move || {
            let JournalOptions { dir, bytes, age } = journal;
            let limits = Limits { total_bytes: bytes, age, ..Limits::default() };
            match lock {
                Some(lock) => Disk::open_with_lock(&dir, lock, limits, sink),
                None => Disk::open(&dir, limits, sink),
            }
        });
        let opened = opened.await.map_err(|error| ServerError::Journal(error.to_string()))?;
        let Opened { disk, kept, found } = opened.map_err(|error| ServerError::Journal(error.to_string()))?;
        let dropped = found.without_admission + found.expired + found.over_size;
        let (bad_records, skipped_bytes) = (found.bad_records, found.skipped_bytes);
        events(Event::JournalOpened { streams: kept.len(), bad_records, skipped_bytes, dropped });
        Ok(Inheritance { taken, journal: Some(disk), kept })
    }

    /// Where answers are recorded.
    pub(super) fn tapes(&self) -> Tapes {
        Tapes::new(self.journal.clone().map(|disk| Arc::new(disk) as _))
    }

    /// Goes on with all of it. The memory that came, and the front that handed over.
    pub(super) fn enter(
        self,
        app: &Arc<AppState>,
        events: &EventSink,
    ) -> Result<(Parts, Option<Predecessor>), ServerError> {
        let mut kept: BTreeMap<u128, Kept> =
            self.kept.into_iter().map(|kept| (number(kept.key), kept)).collect();
        let Some(taken) = self.taken else {
            for (key, kept) in kept {
                adopt(app, &from_disk(key, kept), None);
            }
            return Ok((Parts::default(), None));
        };
        let (answers, memory) = (taken.answers.len(), taken.memory.clone());
        let predecessor = taken.predecessor.clone();
        for answer in &taken.answers {
            let kept = kept.remove(&answer.key.0);
            let same = kept.is_some_and(|kept| kept.entries.concat() == answer.told.as_bytes());
            adopt(app, &Answer { same, ..answer.clone() }, Some(&predecessor));
        }
        // The old front knew best what is still needed.
        kept.into_keys().for_each(|key| app.tapes.forget(key));
        let (later, to) = (Arc::clone(app), predecessor.clone());
        taken.confirm(move |answer| adopt(&later, &answer, Some(&to)))?;
        events(Event::TookOver { answers, memory: memory.weights.is_some() });
        Ok((memory, Some(predecessor)))
    }
}

/// An answer as the journal has it.
fn from_disk(key: u128, kept: Kept) -> Answer {
    let text = |bytes| String::from_utf8(bytes).unwrap_or_default();
    Answer {
        key: Key(key),
        admission: text(kept.admission),
        told: text(kept.entries.concat()),
        events: 0,
        read: false,
        stored: true,
        same: true,
    }
}

/// Tells what happens to the journal.
fn journal_events(events: &EventSink) -> JournalEvents {
    let events = Arc::clone(events);
    Arc::new(move |event| match event {
        JournalEvent::Broken { message } => events(Event::JournalBroken { message }),
        JournalEvent::Mended => events(Event::JournalMended),
        JournalEvent::Gap { key, why } => {
            tracing::warn!(stream = %key, "not all of a stream is in the journal: {why}")
        }
        JournalEvent::Dropped { keys, why } => {
            tracing::warn!(streams = keys.len(), ?why, "streams were dropped from the journal");
        }
        JournalEvent::Damaged { segment, message } => {
            tracing::error!(segment, "a part of the journal cannot be read: {message}");
        }
    })
}

/// The listening socket of another front.
pub(super) fn listening(socket: &std::net::TcpListener) -> Result<(TcpListener, SocketAddr), ServerError> {
    let failed = |source| ServerError::System { what: "the listening socket cannot be taken over", source };
    let socket = socket.try_clone().map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    let listener = TcpListener::from_std(socket).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}
