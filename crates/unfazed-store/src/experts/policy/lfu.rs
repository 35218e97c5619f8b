//! Least frequently used, with decay.

use std::collections::BTreeSet;

use super::{Admitted, Policy};
use crate::experts::Unit;

/// A use counts half after so many uses of each slot.
const HALF_LIFE_PER_SLOT: f64 = 32.0;
/// And after at least so many in all, or few slots would forget at once.
const HALF_LIFE_LEAST: f64 = 1024.0;
/// Scores are scaled down when a use counts this much.
const SCALE: f64 = 1e100;

/// The unit with the lowest score leaves. Instead of lowering all scores with each use, each use counts more than the one
/// before it. Units without a slot keep their scores.
pub struct Lfu {
    slots: usize,
    score: Vec<f64>,
    resident: Vec<bool>,
    /// Positive numbers are in the order of their bits.
    order: BTreeSet<(u64, Unit)>,
    use_counts: f64,
    growth: f64,
}

impl Lfu {
    /// Over `slots` slots, for units below `units`.
    pub fn new(slots: usize, units: u32) -> Lfu {
        let half_life = (HALF_LIFE_PER_SLOT * slots as f64).max(HALF_LIFE_LEAST);
        Lfu {
            slots,
            score: vec![0.0; units as usize],
            resident: vec![false; units as usize],
            order: BTreeSet::new(),
            use_counts: 1.0,
            growth: (1.0 / half_life).exp2(),
        }
    }

    fn score(&self, unit: Unit) -> f64 {
        self.score.get(unit.0 as usize).copied().unwrap_or(0.0)
    }

    fn count(&mut self, unit: Unit) {
        let (index, before) = (unit.0 as usize, self.score(unit));
        let Some(score) = self.score.get_mut(index) else { return };
        *score = before + self.use_counts;
        let now = *score;
        if self.order.remove(&(before.to_bits(), unit)) {
            self.order.insert((now.to_bits(), unit));
        }
        self.use_counts *= self.growth;
        if self.use_counts > SCALE {
            self.rescale();
        }
    }

    fn rescale(&mut self) {
        self.score.iter_mut().for_each(|score| *score /= SCALE);
        self.use_counts /= SCALE;
        let units: Vec<_> = self.order.iter().map(|(_, unit)| *unit).collect();
        self.order = units.into_iter().map(|unit| (self.score(unit).to_bits(), unit)).collect();
    }
}

impl Policy for Lfu {
    fn touch(&mut self, unit: Unit) {
        if self.contains(unit) {
            self.count(unit);
        }
    }

    fn admit(&mut self, unit: Unit, pinned: &dyn Fn(Unit) -> bool) -> Option<Admitted> {
        let mut evicted = None;
        if !self.contains(unit) {
            if self.len() >= self.slots {
                evicted = Some(self.leave(pinned)?);
            }
            if let Some(resident) = self.resident.get_mut(unit.0 as usize) {
                *resident = true;
                self.order.insert((self.score(unit).to_bits(), unit));
            }
        }
        self.count(unit);
        Some(Admitted { evicted })
    }

    fn leave(&mut self, pinned: &dyn Fn(Unit) -> bool) -> Option<Unit> {
        let least = self.order.iter().map(|(_, unit)| *unit).find(|unit| !pinned(*unit))?;
        self.forget(least);
        Some(least)
    }

    fn resize(&mut self, slots: usize) {
        self.slots = slots;
    }

    fn forget(&mut self, unit: Unit) {
        let score = self.score(unit).to_bits();
        if let Some(resident) = self.resident.get_mut(unit.0 as usize) {
            *resident = false;
            self.order.remove(&(score, unit));
        }
    }

    fn contains(&self, unit: Unit) -> bool {
        self.resident.get(unit.0 as usize).copied().unwrap_or(false)
    }

    fn len(&self) -> usize {
        self.order.len()
    }
}
