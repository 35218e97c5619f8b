//! Memory is filled goal by goal: what a plan takes is raised from the least that works towards one goal after the other,
//! as far as the budget goes.
//!
//! A goal that is not reached ends the filling. So a larger budget never gives any part less: what it gives an earlier goal
//! it does not take from a later one.

use unfazed_formats::ModelConfig;

use crate::experts::Store;
use crate::{Arena, Bytes, PAGE_TOKENS, Weights};

/// What a plan takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Take {
    /// Rows of the largest step.
    pub(crate) chunk: usize,
    /// KV pages of the longest sequence.
    pub(crate) context_pages: usize,
    /// KV pages of all sequences, if more.
    pub(crate) pages: usize,
    /// Slots for experts; `None`: all experts are in memory, without slots.
    pub(crate) slots: Option<usize>,
}

/// What may be raised, and how far.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    Chunk(usize),
    ContextPages(usize),
    Pages(usize),
    Slots(usize),
}

/// What parts cost.
pub(crate) struct Costs<'m> {
    pub(crate) model: &'m ModelConfig,
    pub(crate) weights: &'m Weights,
    pub(crate) store: Option<Store<'m>>,
    /// One KV page.
    pub(crate) page: Bytes,
}

impl Costs<'_> {
    /// Packed weights that are always in memory.
    pub(crate) fn weights(&self, take: &Take) -> Bytes {
        if take.slots.is_some() { self.weights.dense } else { self.weights.all }
    }

    /// Slots, ring and staging.
    pub(crate) fn experts(&self, take: &Take) -> Bytes {
        match (&self.store, take.slots) {
            (Some(store), Some(slots)) => store.bytes(slots).saturating_add(store.overhead()),
            _ => Bytes(0),
        }
    }

    /// KV pages.
    pub(crate) fn kv(&self, take: &Take) -> Bytes {
        self.page.saturating_mul(take.context_pages.max(take.pages) as u64)
    }

    /// Activations.
    pub(crate) fn scratch(&self, take: &Take) -> Bytes {
        Arena::new(self.model, take.chunk).bytes
    }

    /// All of it.
    pub(crate) fn of(&self, take: &Take) -> Bytes {
        let parts = [self.weights(take), self.experts(take), self.kv(take), self.scratch(take)];
        parts.into_iter().fold(Bytes(0), Bytes::saturating_add)
    }

    /// Raises what `take` takes towards the goals, within `room`; whether all were reached. `take` itself fits.
    pub(crate) fn fill(&self, room: Bytes, mut take: Take, goals: &[Goal]) -> (Take, bool) {
        for goal in goals {
            let (now, most) = goal.range(&take);
            if most <= now {
                continue;
            }
            let reached = largest(now, most, |value| self.of(&goal.set(&take, value)) <= room);
            if reached < most {
                return (goal.set(&take, goal.even(reached).max(now)), false);
            }
            take = goal.set(&take, most);
        }
        (take, true)
    }
}

impl Goal {
    /// Where it stands, and how far it may be raised.
    fn range(&self, take: &Take) -> (usize, usize) {
        match *self {
            Goal::Chunk(most) => (take.chunk, most),
            Goal::ContextPages(most) => (take.context_pages, most),
            Goal::Pages(most) => (take.pages, most),
            Goal::Slots(most) => (take.slots.unwrap_or(most), most),
        }
    }

    fn set(&self, take: &Take, value: usize) -> Take {
        match self {
            Goal::Chunk(_) => Take { chunk: value, ..*take },
            Goal::ContextPages(_) => Take { context_pages: value, ..*take },
            Goal::Pages(_) => Take { pages: value, ..*take },
            Goal::Slots(_) => Take { slots: Some(value), ..*take },
        }
    }

    /// Kernels take rows by 16.
    fn even(&self, value: usize) -> usize {
        match self {
            Goal::Chunk(_) => value - value % 16,
            _ => value,
        }
    }
}

/// The largest value from `least` to `most` that fits; `least` is supposed to. What fits is followed by nothing but what does
/// not.
pub(crate) fn largest(least: usize, most: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut good, mut bad) = (least, most.saturating_add(1));
    if fits(most) {
        return most;
    }
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if fits(middle) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    good
}

/// KV pages for so many positions.
pub(crate) fn pages_for(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS)
}

#[cfg(test)]
mod tests {
    use super::largest;

    #[test]
    fn the_largest_value_that_fits_is_found() {
        for limit in 0..40 {
            assert_eq!(largest(0, 31, |value| value <= limit), limit.min(31));
        }
        assert_eq!(largest(5, 5, |_| false), 5);
        assert_eq!(largest(0, usize::MAX, |value| value <= 7), 7);
    }
}
