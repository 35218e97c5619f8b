//! Memory that runs out takes cache first: a thread that watches what is left and tells the engine to give memory up before the
//! kernel takes all of it, and to take it again once there has been enough for long.

use std::io;
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use unfazed_host::pressure::{Pressure, Reading, Verdict};
use unfazed_wire::{GivenUp, ToEngine};

use super::state::{Shared, State};
use crate::events::Event;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(200);
/// An engine in a long step answers late; it is not told again meanwhile.
const ANSWER: Duration = Duration::from_secs(2);

/// What the watch needs to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    /// Bytes that should stay free.
    pub(crate) reserve: u64,
    /// Bytes of a slot.
    pub(crate) slot_bytes: u64,
    /// How long there must be enough before what was given up is taken again.
    pub(crate) quiet: Duration,
}

/// What engines gave up so far and did not take again.
#[derive(Debug, Default)]
pub(super) struct Given {
    /// Slots that are closed.
    slots: usize,
    /// When the engine was told to, until it has.
    told: Option<Instant>,
}

impl Given {
    /// Slots that the next engine may use, of so many.
    pub(super) fn open(&self, slots: usize) -> usize {
        slots.saturating_sub(self.slots)
    }
}

/// Starts the thread, which ends with the server.
pub(super) fn watch(shared: &Arc<Shared>, watched: Watched) -> io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let mut pressure = Pressure::open();
    thread::Builder::new().name("memory".to_owned()).spawn(move || {
        let mut before = pressure.look();
        let mut short = Instant::now();
        loop {
            let state = shared.lock();
            let waited = shared.wake.wait_timeout_while(state, EVERY, |state| !state.stopping);
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.stopping {
                return;
            }
            let reading = pressure.look();
            let verdict = reading.verdict(&before, watched.reserve);
            if verdict != Verdict::Calm {
                short = Instant::now();
            }
            match verdict {
                Verdict::Tight { give_up } => tell(&mut state, ToEngine::GiveUp { bytes: give_up }),
                Verdict::Calm if state.given.slots > 0 && short.elapsed() >= watched.quiet => {
                    let spare = reading.spare(watched.reserve) / watched.slot_bytes.max(1);
                    let slots = usize::try_from(spare).unwrap_or(usize::MAX).min(state.given.slots);
                    if slots > 0 {
                        tell(&mut state, ToEngine::OpenUp { slots });
                    }
                }
                _ => {}
            }
            drop(state);
            note(&pressure, &reading, verdict);
            before = reading;
        }
    })
}

fn tell(state: &mut State, message: ToEngine) {
    if state.given.told.is_some_and(|told| told.elapsed() < ANSWER) {
        return;
    }
    if let Some(link) = &state.link
        && link.send(message).is_ok()
    {
        state.given.told = Some(Instant::now());
    }
}

fn note(pressure: &Pressure, reading: &Reading, verdict: Verdict) {
    if let Verdict::Tight { give_up } = verdict {
        let bound = pressure.bound(reading).unwrap_or("the machine");
        tracing::debug!(free = reading.free, give_up, "memory runs out: {bound}");
    }
}

impl Shared {
    /// An engine has given memory up or taken it again.
    pub(super) fn gave_up(&self, given: GivenUp) {
        let GivenUp { page_bytes, slots, slot_bytes, open_slots } = given;
        {
            let mut state = self.lock();
            state.given.told = None;
            state.given.slots = state.given.slots.saturating_add(slots);
        }
        self.metrics.open_slots(open_slots);
        if page_bytes == 0 && slots == 0 {
            return;
        }
        tracing::warn!(page_bytes, slots, slot_bytes, open_slots, "memory runs out: cache was given up");
        (self.events)(Event::MemoryGivenUp { page_bytes, slots, slot_bytes, open_slots });
    }

    /// An engine has opened slots again.
    pub(super) fn opened_up(&self, slots: usize, open_slots: usize) {
        {
            let mut state = self.lock();
            state.given.told = None;
            // Those that it did not open are none of its own.
            state.given.slots = if slots == 0 { 0 } else { state.given.slots.saturating_sub(slots) };
        }
        self.metrics.open_slots(open_slots);
        if slots > 0 {
            tracing::info!(slots, open_slots, "there is memory again: slots for experts are open");
            (self.events)(Event::MemoryTakenUp { slots, open_slots });
        }
    }
}
