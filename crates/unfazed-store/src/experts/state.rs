//! What is in which slot, who waits for what, and what is done next. All of it under one lock; nothing here reads or waits.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::fill::{Goal, Part};
use super::look_ahead::LookAhead;
use super::policy::Policy;
use super::profile::Profile;
use super::ring::Ring;
use super::{Unit, Units};
use crate::{Buffer, StoreError};

/// A slot.
pub(super) enum Slot {
    Empty(Buffer<u8>),
    /// A thread has its memory.
    Filling,
    Filled(Filled),
    /// It was given up: its memory is not here.
    Closed,
}

/// A slot that can be used.
pub(super) struct Filled {
    pub(super) generation: u64,
    pub(super) digest: u64,
    /// Pinned by whoever holds it as well.
    pub(super) data: Arc<Buffer<u8>>,
    /// Filled by this process, or checked by it.
    pub(super) trusted: bool,
}

/// Counts of what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpertCounts {
    /// Experts that steps asked for.
    pub uses: u64,
    /// Of these, experts that were in a slot.
    pub hits: u64,
    /// Experts that were read into slots, looked-ahead ones included.
    pub filled: u64,
    /// Of these, experts that were read because a router was asked early.
    pub looked_ahead: u64,
    /// Of these, experts that were read because earlier runs used them much.
    pub pre_filled: u64,
    /// Experts that were read for a prompt, past the slots.
    pub streamed: u64,
    /// Slots of an earlier process whose bytes did not check.
    pub distrusted: u64,
    /// Slots that were given up, each time.
    pub given_up: u64,
    /// Bytes of memory that were returned to the system with them.
    pub given_up_bytes: u64,
    /// Slots that are closed now: given up and not opened up again.
    pub closed: u64,
}

/// Why a slot is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Demand,
    Profile,
    LookAhead,
}

/// A slot to be filled.
pub(super) struct Fill {
    pub(super) unit: Unit,
    pub(super) slot: usize,
    pub(super) buffer: Buffer<u8>,
    pub(super) generation: u64,
    pub(super) cause: Cause,
}

pub(super) enum Job {
    Begin(Goal),
    Part(Part),
}

pub(super) struct State {
    pub(super) units: Units,
    pub(super) slots: Vec<Slot>,
    /// The slot of each unit, filled or being filled.
    pub(super) places: Vec<Option<usize>>,
    pub(super) empty: Vec<usize>,
    pub(super) policy: Box<dyn Policy>,
    /// Of experts that were begun: of those that are needed, and of the others.
    pub(super) parts: VecDeque<Part>,
    pub(super) guessed_parts: VecDeque<Part>,
    /// Missed by steps, oldest first.
    pub(super) demand: VecDeque<Unit>,
    /// For what gets no slot.
    pub(super) ring: Ring,
    /// From the profile, while slots are empty.
    pub(super) profiled: VecDeque<Unit>,
    /// Predicted.
    pub(super) ahead: VecDeque<Unit>,
    /// How many wait for a unit.
    pub(super) interest: HashMap<Unit, usize>,
    /// Units that could not be read, until somebody who waits for them is told.
    pub(super) failed: HashMap<Unit, StoreError>,
    /// Experts that were begun and have not ended.
    pub(super) busy: usize,
    pub(super) generation: u64,
    pub(super) profile: Profile,
    pub(super) look_ahead: LookAhead,
    pub(super) counts: ExpertCounts,
    pub(super) closed: bool,
}

impl State {
    /// The slot of a unit, if it is filled.
    pub(super) fn filled(&self, unit: Unit) -> Option<(usize, &Filled)> {
        let slot = self.place(unit)?;
        match self.slots.get(slot)? {
            Slot::Filled(filled) => Some((slot, filled)),
            _ => None,
        }
    }

    pub(super) fn place(&self, unit: Unit) -> Option<usize> {
        self.places.get(unit.0 as usize).copied().flatten()
    }

    pub(super) fn set_place(&mut self, unit: Unit, slot: Option<usize>) {
        if let Some(place) = self.places.get_mut(unit.0 as usize) {
            *place = slot;
        }
    }

    /// Whether a unit's slot stays its own: it is used, waited for or not whole yet.
    pub(super) fn is_pinned(&self, unit: Unit) -> bool {
        is_pinned(&self.slots, &self.places, &self.interest, unit)
    }

    /// Whether a unit is on its way, or on the list of those that will be.
    pub(super) fn is_coming(&self, unit: Unit) -> bool {
        self.place(unit).is_some() || self.demand.contains(&unit)
    }

    /// Whether there is a slot for one more unit without another one leaving.
    pub(super) fn has_empty(&self) -> bool {
        self.empty.len() > self.demand.len()
    }

    /// A step needs a unit that is in no slot. Whether that is news.
    pub(super) fn want(&mut self, unit: Unit) -> bool {
        let news = !self.is_coming(unit);
        if news {
            self.demand.push_back(unit);
        }
        news
    }

    /// The next job for a thread that has none. A miss goes before a prompt, both before what may never be needed; what is
    /// predicted has to wait until nothing else is being read.
    pub(super) fn next_job(&mut self) -> Option<Job> {
        if let Some(part) = self.parts.pop_front() {
            return Some(Job::Part(part));
        }
        for _ in 0..self.demand.len() {
            let unit = self.demand.pop_front()?;
            if self.place(unit).is_some() {
                continue;
            }
            if let Some(fill) = self.claim(unit, Cause::Demand) {
                return Some(Job::Begin(Goal::Slot(fill)));
            }
            // All slots are pinned: it stays first in line.
            self.demand.push_front(unit);
            break;
        }
        if let Some(part) = self.guessed_parts.pop_front() {
            return Some(Job::Part(part));
        }
        if let Some(stream) = self.ring.next() {
            self.busy += 1;
            return Some(Job::Begin(Goal::Ring(stream)));
        }
        while let Some(unit) = self.profiled.pop_front() {
            if self.place(unit).is_none()
                && !self.empty.is_empty()
                && let Some(fill) = self.claim(unit, Cause::Profile)
            {
                return Some(Job::Begin(Goal::Slot(fill)));
            }
        }
        while self.busy == 0 && self.demand.is_empty() {
            let unit = self.ahead.pop_front()?;
            if self.place(unit).is_none()
                && let Some(fill) = self.claim(unit, Cause::LookAhead)
            {
                return Some(Job::Begin(Goal::Slot(fill)));
            }
        }
        None
    }

    /// A slot for a unit: an empty one, or that of one that the policy gives up. `None` if all are pinned.
    fn claim(&mut self, unit: Unit, cause: Cause) -> Option<Fill> {
        let State { slots, places, interest, policy, .. } = self;
        let pinned = |other: Unit| is_pinned(slots, places, interest, other);
        let evicted = policy.admit(unit, &pinned)?.evicted;
        let (slot, buffer) = match evicted {
            Some(evicted) => {
                let slot = self.place(evicted)?;
                self.set_place(evicted, None);
                (slot, self.empty_slot(slot)?)
            }
            None => {
                let slot = self.empty.pop()?;
                (slot, self.empty_slot(slot)?)
            }
        };
        self.set_place(unit, Some(slot));
        self.busy += 1;
        self.generation += 1;
        Some(Fill { unit, slot, buffer, generation: self.generation, cause })
    }

    /// Takes the memory of a slot that nobody pins, to be filled.
    pub(super) fn empty_slot(&mut self, slot: usize) -> Option<Buffer<u8>> {
        let slot = self.slots.get_mut(slot)?;
        match std::mem::replace(slot, Slot::Filling) {
            Slot::Empty(buffer) => Some(buffer),
            // The policy gave up no unit that is pinned, and pins are made under the lock.
            Slot::Filled(filled) => Arc::try_unwrap(filled.data).ok(),
            Slot::Filling | Slot::Closed => None,
        }
    }

    /// An expert has come, with this digest, or could not be read.
    pub(super) fn end(&mut self, goal: Goal, read: Result<u64, StoreError>) {
        match (goal, read) {
            (Goal::Slot(fill), Ok(digest)) => self.settle(fill, digest),
            (Goal::Slot(fill), Err(error)) => self.give_up(fill, error),
            (Goal::Ring(stream), read) => {
                self.counts.streamed += 1;
                self.ring.settle(stream, read.map(drop));
            }
        }
        self.busy = self.busy.saturating_sub(1);
    }

    /// A slot was filled.
    fn settle(&mut self, fill: Fill, digest: u64) {
        let Fill { slot, buffer, generation, cause, .. } = fill;
        self.counts.filled += 1;
        self.counts.looked_ahead += u64::from(cause == Cause::LookAhead);
        self.counts.pre_filled += u64::from(cause == Cause::Profile);
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = Slot::Filled(Filled { generation, digest, data: Arc::new(buffer), trusted: true });
        }
    }

    /// A slot could not be filled.
    fn give_up(&mut self, fill: Fill, error: StoreError) {
        let Fill { unit, slot, buffer, .. } = fill;
        self.put_back(unit, slot, buffer);
        if self.interest.contains_key(&unit) {
            self.failed.insert(unit, error);
        } else {
            tracing::debug!(expert = %self.units.id(unit), %error, "an expert that nobody waits for cannot be read");
        }
    }

    /// What a slot holds is no use.
    pub(super) fn distrust(&mut self, unit: Unit) {
        let Some(slot) = self.place(unit) else { return };
        if let Some(buffer) = self.empty_slot(slot) {
            self.counts.distrusted += 1;
            self.put_back(unit, slot, buffer);
        }
    }

    fn put_back(&mut self, unit: Unit, slot: usize, buffer: Buffer<u8>) {
        self.policy.forget(unit);
        self.set_place(unit, None);
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = Slot::Empty(buffer);
        }
        self.empty.push(slot);
    }
}

/// Whether a unit's slot stays its own, by parts of the state, so that others of its parts can be changed meanwhile.
pub(super) fn is_pinned(
    slots: &[Slot],
    places: &[Option<usize>],
    interest: &HashMap<Unit, usize>,
    unit: Unit,
) -> bool {
    let slot = places.get(unit.0 as usize).copied().flatten().and_then(|slot| slots.get(slot));
    match slot {
        Some(Slot::Filled(filled)) => Arc::strong_count(&filled.data) > 1 || interest.contains_key(&unit),
        _ => true,
    }
}
