//! Filling empty slots at start with what earlier runs used most.

use std::sync::PoisonError;
use std::time::Duration;

use super::store::ExpertStore;
use super::{ExpertId, Unit};
use crate::Clock;

/// What was filled.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PreFilled {
    /// Slots filled now.
    pub filled: usize,
    /// All slots.
    pub slots: usize,
    /// Bytes of the slots that were filled.
    pub bytes: u64,
    /// How long it took.
    pub time: Duration,
    /// Slot 0 holds what its digest says; `None` if it is empty.
    pub first_verified: Option<bool>,
}

impl ExpertStore {
    /// Fills empty slots with the experts that the profile says were used most, and waits for it. Requests go before. Experts
    /// that cannot be read are left out, and told in the log.
    pub fn pre_fill(&self, clock: &dyn Clock) -> PreFilled {
        let start = clock.now();
        let shared = &self.0;
        let mut state = shared.lock();
        let before = state.counts.pre_filled;
        let mut units: Vec<Unit> = state.profile.most_used();
        units.truncate(state.slots.len());
        let mut missing: Vec<Unit> =
            units.iter().copied().filter(|unit| state.place(*unit).is_none()).collect();
        missing.truncate(state.empty.len());
        // In the order of the files, which is kind to disks.
        missing.sort_unstable();
        state.profiled.extend(missing);
        shared.work.notify_all();
        while !(state.closed || state.profiled.is_empty() && state.busy == 0) {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        // The policy learns who is used most: those last, and the upper half twice.
        units.iter().rev().for_each(|unit| state.policy.touch(*unit));
        units.iter().take(units.len() / 2).rev().for_each(|unit| state.policy.touch(*unit));
        let first = state.places.iter().position(|place| *place == Some(0)).map(|unit| Unit(unit as u32));
        let first_verified = first.and_then(|unit| {
            let layout = shared.sources.layout(state.units.id(unit))?;
            let (_, filled) = state.filled(unit)?;
            Some(layout.digest(&filled.data) == Some(filled.digest))
        });
        let filled = usize::try_from(state.counts.pre_filled - before).unwrap_or(0);
        let slots = state.slots.len();
        drop(state);
        let bytes = filled as u64 * shared.sources.slot_bytes() as u64;
        let filled =
            PreFilled { filled, slots, bytes, time: clock.now().saturating_sub(start), first_verified };
        filled.log();
        filled
    }

    /// Whether an expert is in a slot now.
    pub fn holds(&self, id: ExpertId) -> bool {
        self.0.sources.unit(id).is_ok_and(|unit| self.0.lock().filled(unit).is_some())
    }
}

impl PreFilled {
    fn log(&self) {
        let PreFilled { filled, slots, bytes, time, first_verified } = self;
        let seconds = time.as_secs_f64();
        let rate = if seconds > 0.0 { *bytes as f64 / seconds / 1e6 } else { 0.0 };
        let first = match first_verified {
            Some(true) => "slot 0 verified",
            Some(false) => "slot 0 is not what was put there",
            None => "slot 0 is empty",
        };
        tracing::info!(
            "pre-filled {filled} of {slots} slots from the profile in {seconds:.1} s ({rate:.0} MB/s); {first}"
        );
    }
}
