//! S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023).
//!
//! New units wait in a small queue. Those that are used again there move to the main queue, the others leave soon and are
//! remembered in a ghost queue: who comes back while remembered goes to the main queue at once. So experts that are used
//! once, of which a mixture has many, don't drive out those that are used all the time.

use std::collections::VecDeque;

use super::{Admitted, Policy};
use crate::experts::Unit;

/// The small queue's share of the slots: a tenth, as in the paper.
const SMALL_SHARE: usize = 10;
/// Uses are counted up to this.
const MOST_USES: u8 = 3;
/// Uses in the small queue from which on a unit moves to the main queue.
const MOVES_AT: u8 = 2;

/// A small, a main and a ghost queue, each first in, first out.
pub struct S3Fifo {
    slots: usize,
    small: VecDeque<Unit>,
    main: VecDeque<Unit>,
    /// Units that left the small queue, and their stamps: an entry counts if it is the unit's latest.
    ghost: VecDeque<(Unit, u64)>,
    state: Vec<State>,
    now: u64,
}

#[derive(Clone, Copy, Default)]
struct State {
    resident: bool,
    uses: u8,
    /// Stamp of its entry in the ghost queue; 0 if it has none.
    ghost: u64,
}

impl S3Fifo {
    /// Over `slots` slots, for units below `units`.
    pub fn new(slots: usize, units: u32) -> S3Fifo {
        let state = vec![State::default(); units as usize];
        // As large as they will be: a unit may have to leave because there is no memory.
        let (small, main) = (VecDeque::with_capacity(slots), VecDeque::with_capacity(slots));
        let ghost = VecDeque::with_capacity(slots.saturating_add(1));
        S3Fifo { slots, small, main, ghost, state, now: 0 }
    }

    fn state(&mut self, unit: Unit) -> Option<&mut State> {
        self.state.get_mut(unit.0 as usize)
    }

    fn uses(&self, unit: Unit) -> u8 {
        self.state.get(unit.0 as usize).map_or(0, |state| state.uses)
    }

    /// The unit that leaves. Pinned ones go to the end of their queue as they are.
    fn evict(&mut self, pinned: &dyn Fn(Unit) -> bool) -> Option<Unit> {
        if self.small.iter().chain(&self.main).all(|unit| pinned(*unit)) {
            return None;
        }
        let small_full = (self.slots / SMALL_SHARE).max(1);
        loop {
            let from_small = self.small.len() >= small_full || self.main.is_empty();
            if from_small && let Some(unit) = self.evict_small(pinned) {
                return Some(unit);
            }
            if let Some(unit) = self.evict_main(pinned) {
                return Some(unit);
            }
            // Nobody in the main queue can leave: whoever can is in the small one, full or not, and if it moved from
            // there to the main queue just now the next round finds it.
            if !from_small && let Some(unit) = self.evict_small(pinned) {
                return Some(unit);
            }
        }
    }

    fn evict_small(&mut self, pinned: &dyn Fn(Unit) -> bool) -> Option<Unit> {
        for _ in 0..self.small.len() {
            let unit = self.small.pop_front()?;
            if pinned(unit) {
                self.small.push_back(unit);
            } else if self.uses(unit) >= MOVES_AT {
                self.state(unit)?.uses = 0;
                self.main.push_back(unit);
            } else {
                self.remember(unit);
                return Some(unit);
            }
        }
        None
    }

    fn evict_main(&mut self, pinned: &dyn Fn(Unit) -> bool) -> Option<Unit> {
        // Each round takes a use off each unit, so the last one finds one without.
        for _ in 0..self.main.len().saturating_mul(usize::from(MOST_USES) + 1) {
            let unit = self.main.pop_front()?;
            let uses = self.uses(unit);
            if pinned(unit) {
                self.main.push_back(unit);
            } else if uses > 0 {
                self.state(unit)?.uses = uses - 1;
                self.main.push_back(unit);
            } else {
                return Some(unit);
            }
        }
        None
    }

    /// Puts a unit into the ghost queue, which remembers as many as the main queue has room for.
    fn remember(&mut self, unit: Unit) {
        self.now += 1;
        let now = self.now;
        if let Some(state) = self.state(unit) {
            state.ghost = now;
            self.ghost.push_back((unit, now));
        }
        let most = self.slots - self.slots / SMALL_SHARE;
        while self.ghost.len() > most {
            let Some((oldest, stamp)) = self.ghost.pop_front() else { return };
            if let Some(state) = self.state(oldest)
                && state.ghost == stamp
            {
                state.ghost = 0;
            }
        }
    }
}

impl Policy for S3Fifo {
    fn touch(&mut self, unit: Unit) {
        if let Some(state) = self.state(unit)
            && state.resident
        {
            state.uses = (state.uses + 1).min(MOST_USES);
        }
    }

    fn admit(&mut self, unit: Unit, pinned: &dyn Fn(Unit) -> bool) -> Option<Admitted> {
        if self.contains(unit) {
            self.touch(unit);
            return Some(Admitted { evicted: None });
        }
        let mut evicted = None;
        if self.len() >= self.slots {
            evicted = Some(self.leave(pinned)?);
        }
        if let Some(state) = self.state(unit) {
            let remembered = state.ghost > 0;
            *state = State { resident: true, uses: 0, ghost: 0 };
            if remembered { &mut self.main } else { &mut self.small }.push_back(unit);
        }
        Some(Admitted { evicted })
    }

    fn leave(&mut self, pinned: &dyn Fn(Unit) -> bool) -> Option<Unit> {
        let leaves = self.evict(pinned)?;
        if let Some(state) = self.state(leaves) {
            (state.resident, state.uses) = (false, 0);
        }
        Some(leaves)
    }

    fn resize(&mut self, slots: usize) {
        self.slots = slots;
    }

    fn forget(&mut self, unit: Unit) {
        if let Some(state) = self.state(unit)
            && state.resident
        {
            (state.resident, state.uses) = (false, 0);
            self.small.retain(|other| *other != unit);
            self.main.retain(|other| *other != unit);
        }
    }

    fn contains(&self, unit: Unit) -> bool {
        self.state.get(unit.0 as usize).is_some_and(|state| state.resident)
    }

    fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }
}
