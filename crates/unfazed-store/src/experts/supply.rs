//! The experts of a layer for one step, as they come.
//!
//! A step that needs no more experts than a layer's share of the slots reads those that it misses into slots, where the
//! next steps may find them. One that needs more, a prompt's, would push out what others use and find nothing of it again:
//! the experts that it misses pass through the ring, as far as no slot is empty.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, PoisonError};

use unfazed_kernels::panel::PackedMatrix;

use super::source::UnitLayout;
use super::state::State;
use super::store::{ExpertStore, Shared};
use super::{ExpertId, Unit};
use crate::{Buffer, StoreError};

/// The order in which experts are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Those that are there first.
    AsTheyCome,
    /// By their numbers.
    Ascending,
}

/// The experts of a layer for one step. Those that are in slots stay there as long as this lives or they do.
pub struct Supply {
    shared: Arc<Shared>,
    order: Order,
    /// By their numbers.
    wanted: VecDeque<Wanted>,
}

struct Wanted {
    unit: Unit,
    from: From,
}

/// Where an expert comes from.
enum From {
    /// It is in a slot.
    Here(ExpertPin),
    /// It is read into a slot, which stays its own as long as somebody is interested.
    Slot(#[expect(dead_code, reason = "held until the expert was used")] Interest),
    /// It is read past the slots.
    Ring,
}

/// An expert that has come, or could not be read.
pub struct Supplied {
    /// Which one.
    pub id: ExpertId,
    /// Itself.
    pub expert: Result<ExpertPin, StoreError>,
}

/// An expert that stays where it is until this is dropped.
pub struct ExpertPin {
    shared: Arc<Shared>,
    id: ExpertId,
    layout: UnitLayout,
    place: Place,
}

/// Where an expert is.
pub(super) enum Place {
    Slot {
        generation: u64,
        data: Arc<Buffer<u8>>,
    },
    Ring(Buffer<u8>),
    /// It was given back.
    Nowhere,
}

/// A unit that is waited for: its slot, once it has one, stays its own until it was used or this is dropped.
struct Interest {
    shared: Arc<Shared>,
    unit: Unit,
}

impl ExpertStore {
    /// Asks for experts of a layer. Never waits.
    ///
    /// # Errors
    ///
    /// [`StoreError::Experts`] for an expert that the model does not have.
    pub fn supply(&self, layer: u32, experts: &[u32], order: Order) -> Result<Supply, StoreError> {
        let shared = &self.0;
        let mut units = self.units(layer, experts)?;
        units.sort_unstable();
        units.dedup();
        let mut state = shared.lock();
        let pass = units.len() > shared.share(&state);
        if !pass {
            state.look_ahead.compare(layer, &units);
            // What was predicted for this layer is needed now or was wrong.
            let all = state.units;
            state.ahead.retain(|unit| all.id(*unit).layer != layer);
        }
        let wanted: VecDeque<Wanted> = units
            .into_iter()
            .map(|unit| Wanted { unit, from: shared.source(&mut state, unit, pass) })
            .collect();
        let ring: Vec<Unit> = wanted
            .iter()
            .filter(|wanted| matches!(wanted.from, From::Ring))
            .map(|wanted| wanted.unit)
            .collect();
        if pass {
            state.ring.turn_to(&ring);
        }
        if wanted.iter().any(|wanted| !matches!(wanted.from, From::Here(_))) {
            shared.work.notify_all();
        }
        // Another one may have to ask again for what was given up now.
        shared.changed.notify_all();
        drop(state);
        Ok(Supply { shared: Arc::clone(shared), order, wanted })
    }

    /// A prompt will need all experts of a layer once it has those that it asked for: the ring goes on with those that are
    /// in no slot.
    ///
    /// # Errors
    ///
    /// [`StoreError::Experts`] if the layer has no experts.
    pub fn read_ahead(&self, layer: u32) -> Result<(), StoreError> {
        let experts: Vec<u32> = (0..self.0.sources.units().experts).collect();
        let units = self.units(layer, &experts)?;
        let mut state = self.0.lock();
        let missing: Vec<Unit> = units.into_iter().filter(|unit| !state.is_coming(*unit)).collect();
        state.ring.expect(missing);
        self.0.work.notify_all();
        Ok(())
    }
}

impl Shared {
    /// Where a unit comes from. `pass`: not through a slot, unless one is empty.
    fn source(self: &Arc<Shared>, state: &mut State, unit: Unit, pass: bool) -> From {
        if let Some(pin) = self.ready(state, unit) {
            if !pass {
                state.policy.touch(unit);
                state.profile.count(unit);
                state.counts.uses += 1;
                state.counts.hits += 1;
            }
            return From::Here(pin);
        }
        if !pass {
            state.profile.count(unit);
            state.counts.uses += 1;
        }
        if pass && !state.is_coming(unit) && !state.has_empty() {
            return From::Ring;
        }
        state.want(unit);
        *state.interest.entry(unit).or_default() += 1;
        From::Slot(Interest { shared: Arc::clone(self), unit })
    }

    /// What has come of a wanted expert.
    fn poll(
        self: &Arc<Shared>,
        state: &mut State,
        wanted: &mut Wanted,
    ) -> Option<Result<ExpertPin, StoreError>> {
        let unit = wanted.unit;
        match &wanted.from {
            From::Here(_) => match mem::replace(&mut wanted.from, From::Ring) {
                From::Here(pin) => Some(Ok(pin)),
                _ => None,
            },
            From::Slot(_) => match self.ready(state, unit) {
                Some(pin) => Some(Ok(pin)),
                None => {
                    let failed = state.failed.remove(&unit);
                    // Another one who waited for it was told that it could not be read: this is another attempt.
                    if failed.is_none() && state.want(unit) {
                        self.work.notify_one();
                    }
                    failed.map(Err)
                }
            },
            From::Ring => {
                let id = state.units.id(unit);
                let layout = self.sources.layout(id)?;
                let read = state.ring.take(unit)?;
                Some(read.map(|buffer| ExpertPin::new(self, id, layout, Place::Ring(buffer))))
            }
        }
    }
}

impl Supply {
    /// Experts that have come, at most so many; waits until there is one. Empty after the last. How long a read may take is
    /// the reader's affair.
    pub fn next(&mut self, most: usize) -> Vec<Supplied> {
        let mut come = Vec::new();
        // These take the lock when they are dropped.
        let mut done = Vec::new();
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        loop {
            let mut at = 0;
            while come.len() < most.max(1)
                && let Some(wanted) = self.wanted.get_mut(at)
            {
                match shared.poll(&mut state, wanted) {
                    Some(expert) => {
                        come.push(Supplied { id: state.units.id(wanted.unit), expert });
                        done.extend(self.wanted.remove(at));
                    }
                    None if self.order == Order::Ascending => break,
                    None => at += 1,
                }
            }
            if !come.is_empty() || self.wanted.is_empty() {
                break;
            }
            let ring = self.wanted.iter().find(|wanted| matches!(wanted.from, From::Ring));
            if ring.is_some_and(|wanted| state.ring.ensure(wanted.unit)) {
                shared.work.notify_all();
            }
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        drop(done);
        come
    }

    /// Experts that are in slots and were not given out yet.
    pub fn here(&self) -> usize {
        self.wanted.iter().filter(|wanted| matches!(wanted.from, From::Here(_))).count()
    }

    /// Experts that were not given out yet.
    pub fn left(&self) -> usize {
        self.wanted.len()
    }
}

impl Drop for Supply {
    /// What nobody has begun to read is not read.
    fn drop(&mut self) {
        let ring = self.wanted.iter().filter(|wanted| matches!(wanted.from, From::Ring));
        let units: Vec<Unit> = ring.map(|wanted| wanted.unit).collect();
        if !units.is_empty() {
            self.shared.lock().ring.forget(&units);
        }
    }
}

impl ExpertPin {
    pub(super) fn new(shared: &Arc<Shared>, id: ExpertId, layout: UnitLayout, place: Place) -> ExpertPin {
        ExpertPin { shared: Arc::clone(shared), id, layout, place }
    }

    /// Which expert it is.
    pub fn id(&self) -> ExpertId {
        self.id
    }

    /// Grows each time that a slot is filled: no two experts, nor two fillings with the same one, have the same. `None` for
    /// one that is in no slot.
    pub fn generation(&self) -> Option<u64> {
        match self.place {
            Place::Slot { generation, .. } => Some(generation),
            _ => None,
        }
    }

    /// `[width, hidden]`.
    pub fn gate(&self) -> PackedMatrix<'_> {
        self.matrix(0)
    }

    /// `[width, hidden]`.
    pub fn up(&self) -> PackedMatrix<'_> {
        self.matrix(1)
    }

    /// `[hidden, width]`.
    pub fn down(&self) -> PackedMatrix<'_> {
        self.matrix(2)
    }

    fn matrix(&self, number: usize) -> PackedMatrix<'_> {
        match &self.place {
            Place::Slot { data, .. } => self.layout.matrix(number, data),
            Place::Ring(buffer) => self.layout.matrix(number, buffer),
            Place::Nowhere => unreachable!("a pin is given back by `drop` alone"),
        }
    }
}

impl Drop for ExpertPin {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        match mem::replace(&mut self.place, Place::Nowhere) {
            Place::Ring(buffer) => {
                state.ring.give_back(buffer);
                self.shared.work.notify_one();
            }
            Place::Slot { data, .. } => {
                // Under the lock: whoever looks for a slot sees either a pin or none.
                drop(data);
                if !state.demand.is_empty() {
                    self.shared.work.notify_one();
                }
            }
            Place::Nowhere => {}
        }
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if let Some(interest) = state.interest.get_mut(&self.unit) {
            *interest = interest.saturating_sub(1);
            if *interest == 0 {
                state.interest.remove(&self.unit);
                state.failed.remove(&self.unit);
                state.demand.retain(|unit| *unit != self.unit);
            }
        }
        if !state.demand.is_empty() {
            self.shared.work.notify_one();
        }
    }
}
