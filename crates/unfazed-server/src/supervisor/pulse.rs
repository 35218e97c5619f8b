//! Whether the keeper is at work: it says each time until when it will be heard of again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// While an engine lives the keeper is heard of many times a second, and its end takes a few seconds. A keeper that is silent
/// for so long hangs.
pub(super) const TICK: Duration = Duration::from_secs(30);
/// Starting an engine may take longer, on a machine that is short of everything.
pub(super) const START: Duration = Duration::from_secs(120);

/// When the keeper is to be heard of next; `None` before it begins and after its end.
#[derive(Debug, Default)]
pub(super) struct Pulse(Mutex<Option<Instant>>);

impl Pulse {
    /// The keeper will be heard of again within this time.
    pub(super) fn within(&self, limit: Duration, now: Instant) {
        *self.lock() = now.checked_add(limit);
    }

    /// The keeper's work is done.
    pub(super) fn end(&self) {
        *self.lock() = None;
    }

    /// Whether it should have been heard of.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.lock().is_some_and(|due| now > due)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keeper_is_late_when_it_is_not_heard_of_by_when_it_said() {
        let (pulse, now) = (Pulse::default(), Instant::now());
        let later = |seconds| now + Duration::from_secs(seconds);
        assert!(!pulse.is_late(later(1000)), "it has not begun");
        pulse.within(TICK, now);
        assert!(!pulse.is_late(later(30)));
        assert!(pulse.is_late(later(31)));
        pulse.within(START, later(31));
        assert!(!pulse.is_late(later(151)));
        assert!(pulse.is_late(later(152)));
        pulse.end();
        assert!(!pulse.is_late(later(1000)), "it has ended");
    }
}
