//! Time, injected, so that tests need none.

use std::time::{Duration, Instant};

/// A clock that never goes back.
pub trait Clock {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;
}

/// The system's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    start: Instant,
}

impl MonotonicClock {
    /// Counts from now.
    pub fn new() -> MonotonicClock {
        MonotonicClock { start: Instant::now() }
    }
}

impl Default for MonotonicClock {
    fn default() -> Self {
        MonotonicClock::new()
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

/// Milliseconds from one moment to a later one.
pub(crate) fn milliseconds(from: Duration, to: Duration) -> f64 {
    to.saturating_sub(from).as_secs_f64() * 1e3
}
