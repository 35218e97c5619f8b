//! Least recently used.

use std::collections::BTreeMap;

use super::{Admitted, Policy};
use crate::experts::Unit;

/// The unit that was used longest ago leaves.
pub struct Lru {
    slots: usize,
    now: u64,
    /// When each unit was used last; `None` if it has no slot.
    used: Vec<Option<u64>>,
    order: BTreeMap<u64, Unit>,
}

impl Lru {
    /// Over `slots` slots, for units below `units`.
    pub fn new(slots: usize, units: u32) -> Lru {
        Lru { slots, now: 0, used: vec![None; units as usize], order: BTreeMap::new() }
    }

    fn place(&mut self, unit: Unit) {
        if let Some(used) = self.used.get_mut(unit.0 as usize) {
            if let Some(before) = used.take() {
                self.order.remove(&before);
            }
            self.now += 1;
            *used = Some(self.now);
            self.order.insert(self.now, unit);
        }
    }
}

impl Policy for Lru {
    fn touch(&mut self, unit: Unit) {
        if self.contains(unit) {
            self.place(unit);
        }
    }

    fn admit(&mut self, unit: Unit, pinned: &dyn Fn(Unit) -> bool) -> Option<Admitted> {
        let mut evicted = None;
        if !self.contains(unit) && self.len() >= self.slots {
            evicted = Some(self.leave(pinned)?);
        }
        self.place(unit);
        Some(Admitted { evicted })
    }

    fn leave(&mut self, pinned: &dyn Fn(Unit) -> bool) -> Option<Unit> {
        let oldest = self.order.values().copied().find(|unit| !pinned(*unit))?;
        self.forget(oldest);
        Some(oldest)
    }

    fn resize(&mut self, slots: usize) {
        self.slots = slots;
    }

    fn forget(&mut self, unit: Unit) {
        if let Some(used) = self.used.get_mut(unit.0 as usize).and_then(Option::take) {
            self.order.remove(&used);
        }
    }

    fn contains(&self, unit: Unit) -> bool {
        self.used.get(unit.0 as usize).is_some_and(Option::is_some)
    }

    fn len(&self) -> usize {
        self.order.len()
    }
}
