//! Giving slots up when memory runs out: what they hold is forgotten, their memory returned to the system, and they are not
//! filled again until they are opened up.
//!
//! Memory is short then, so nothing here allocates: what is needed was made with the store. A slot's record says that it is
//! empty before its memory goes, so that an engine that dies in between leaves nothing that could be believed.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Unit;
use super::slots::Records;
use super::state::{Slot, State, is_pinned};
use super::store::ExpertStore;
use crate::Buffer;

/// What was given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenUp {
    /// Slots, empty ones included.
    pub slots: usize,
    /// Bytes of memory that the system has again.
    pub bytes: u64,
}

/// Which slots are closed. Who has it locked is the only one who closes slots, opens them or gathers their pages.
pub(super) struct Closed {
    slots: Mutex<Slots>,
    /// Slots that always stay open.
    least: usize,
}

struct Slots {
    /// By slot: the memory of those that are closed, or what is left of it.
    closed: Vec<Option<Buffer<u8>>>,
    /// Those that are being closed.
    now: Vec<usize>,
}

impl Closed {
    /// All slots are open. `least` of them always will be.
    pub(super) fn new(slots: usize, least: usize) -> Closed {
        let none = Slots { closed: (0..slots).map(|_| None).collect(), now: Vec::with_capacity(slots) };
        Closed { slots: Mutex::new(none), least: least.clamp(1, slots.max(1)) }
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ExpertStore {
    /// Gives slots up until this many bytes of memory were returned to the system or no slot can be spared: empty ones first,
    /// which may have no memory (then they are closed all the same, as memory is short), then those whose experts the policy
    /// would have leave first. A slot that is being filled, pinned or waited for stays, and so do as many as the store needs.
    /// May be called while others compute; does not wait for them, and allocates nothing.
    ///
    /// Where the system cannot take single pages of shared memory back (macOS) nothing is given up.
    pub fn give_up(&self, bytes: u64) -> GivenUp {
        self.close(bytes, usize::MAX)
    }

    /// Lets slots be filled again that were given up, this many at most. Returns how many there were.
    pub fn open_up(&self, slots: usize) -> usize {
        let mut closed = self.0.closed.lock();
        let mut state = self.0.lock();
        let mut opened = 0;
        // The highest first, as the lowest are taken first.
        for (slot, closed) in closed.closed.iter_mut().enumerate().rev() {
            if opened == slots {
                break;
            }
            if let Some(buffer) = closed.take() {
                state.open(slot, buffer);
                opened += 1;
            }
        }
        state.resize();
        drop(state);
        self.0.work.notify_all();
        opened
    }

    /// Slots that are not closed.
    pub fn open_slots(&self) -> usize {
        self.0.lock().open_slots()
    }

    /// Gathers the small pages of a range of the slots' memory into a huge one, unless a part of it belongs to a closed slot: the
    /// system would put memory there again. Whether it did.
    pub fn gather(&self, range: Range<usize>) -> bool {
        let records = &self.0.records;
        let closed = self.0.closed.lock();
        let bytes = records.sizes().slot_bytes.max(1);
        let slots = range.start / bytes..range.end.div_ceil(bytes).min(closed.closed.len());
        let open = closed.closed.get(slots).is_some_and(|slots| slots.iter().all(Option::is_none));
        open && records.mapping().collapse(range)
    }

    /// Gives slots up, at most so many, until so many bytes were returned.
    pub(super) fn close(&self, bytes: u64, slots: usize) -> GivenUp {
        let shared = &self.0;
        let mut given = GivenUp::default();
        if !Records::GIVES_BACK {
            return given;
        }
        let slot_bytes = (shared.records.sizes().slot_bytes as u64).max(1);
        let mut closed = shared.closed.lock();
        while given.bytes < bytes && given.slots < slots {
            let most = (bytes - given.bytes).div_ceil(slot_bytes);
            let most = usize::try_from(most).unwrap_or(usize::MAX).min(slots - given.slots);
            shared.lock().close(most, shared.closed.least, &mut closed);
            if closed.now.is_empty() {
                break;
            }
            given.slots += closed.now.len();
            let Some(returned) = closed.return_memory(&shared.records) else { break };
            given.bytes += returned;
        }
        let mut state = shared.lock();
        state.counts.given_up += given.slots as u64;
        state.counts.given_up_bytes += given.bytes;
        given
    }
}

impl Slots {
    /// Empties the slots that are being closed and returns their memory. Returns its bytes; `None` if the system does not take
    /// it, which it need not be asked again.
    fn return_memory(&mut self, records: &Records) -> Option<u64> {
        let Slots { closed, now } = self;
        // Before any of their bytes goes.
        now.iter().for_each(|slot| records.clear(*slot));
        now.sort_unstable();
        let runs = now.chunk_by(|slot, next| slot + 1 == *next);
        let mut bytes = Some(0);
        for run in runs {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            let returned = records.give_back(*first..*last + 1, closed);
            bytes = bytes.zip(returned.ok()).map(|(bytes, returned)| bytes + returned);
        }
        now.clear();
        bytes
    }
}

impl State {
    /// Closes slots that can be spared, at most so many.
    fn close(&mut self, most: usize, least: usize, closed: &mut Slots) {
        closed.now.clear();
        // Whoever waits for an expert gets a slot for it.
        let waits = self.interest.keys().filter(|unit| self.place(**unit).is_none()).count();
        let waits = waits.max(self.demand.len());
        let units = (0..self.places.len() as u32).map(Unit);
        let unpinned = units.filter(|unit| !self.is_pinned(*unit)).count();
        let spare = (self.empty.len() + unpinned).saturating_sub(waits);
        let spare = spare.min(self.open_slots().saturating_sub(least));
        for _ in 0..most.min(spare) {
            let Some((slot, buffer)) = self.take_slot() else { break };
            if let (Some(slot), Some(closed)) = (self.slots.get_mut(slot), closed.closed.get_mut(slot)) {
                (*slot, *closed) = (Slot::Closed, Some(buffer));
            }
            self.counts.closed += 1;
            closed.now.push(slot);
        }
        self.resize();
    }

    /// An empty slot, or that of the expert that leaves next.
    fn take_slot(&mut self) -> Option<(usize, Buffer<u8>)> {
        let slot = match self.empty.pop() {
            Some(slot) => slot,
            None => {
                let State { slots, places, interest, policy, .. } = self;
                let leaves = policy.leave(&|unit| is_pinned(slots, places, interest, unit))?;
                let slot = self.place(leaves)?;
                self.set_place(leaves, None);
                slot
            }
        };
        Some((slot, self.empty_slot(slot)?))
    }

    /// A slot that was closed is empty from now on.
    fn open(&mut self, slot: usize, buffer: Buffer<u8>) {
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Slot::Empty(buffer);
            self.empty.push(slot);
            self.counts.closed = self.counts.closed.saturating_sub(1);
        }
    }

    /// Slots that are not closed.
    pub(super) fn open_slots(&self) -> usize {
        self.slots.len() - usize::try_from(self.counts.closed).unwrap_or(0).min(self.slots.len())
    }

    /// Tells the policy how many slots there are.
    fn resize(&mut self) {
        let open = self.open_slots();
        self.policy.resize(open);
    }
}
