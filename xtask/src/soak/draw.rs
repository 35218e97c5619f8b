//! Choices drawn from a seed.

use std::ops::RangeInclusive;

use unfazed_testkit::rng::Rng;

/// A stream of choices: the same for one seed, label and number.
pub(super) struct Draw(Rng);

impl Draw {
    pub(super) fn new(seed: u64, label: &str, number: u64) -> Draw {
        Draw(Rng::new(seed, label, number))
    }

    /// A number in a range, all alike.
    pub(super) fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (low, high) = range.into_inner();
        low + self.0.word() % (high.saturating_sub(low) + 1)
    }

    /// True in so many of 100 cases.
    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.within(0..=99) < percent
    }

    /// One of these, of which there is at least one.
    pub(super) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        let last = (items.len() as u64).saturating_sub(1);
        &items[self.within(0..=last) as usize]
    }

    /// A seed for a request.
    pub(super) fn seed(&mut self) -> u64 {
        self.0.word() >> 12
    }
}
