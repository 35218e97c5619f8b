//! Times in messages.

use std::time::Duration;

/// Milliseconds from one moment to a later one.
pub(crate) fn milliseconds(from: Duration, to: Duration) -> f64 {
    to.saturating_sub(from).as_secs_f64() * 1e3
}
