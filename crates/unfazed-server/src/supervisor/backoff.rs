//! How long to wait before the next engine.

use std::time::Duration;

/// Wait after the first death: none to speak of, as most deaths are single.
const FIRST: Duration = Duration::from_millis(100);
/// Longest wait: a machine that recovers is found within half a minute.
const LONGEST: Duration = Duration::from_secs(30);

/// Deaths in a row and the waits that follow them.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    deaths: u32,
}

impl Backoff {
    /// An engine died without progress since the last one: the wait before the next.
    pub(super) fn died(&mut self) -> Duration {
        let doubled = 2u32.saturating_pow(self.deaths.min(16));
        self.deaths = self.deaths.saturating_add(1);
        FIRST.saturating_mul(doubled).min(LONGEST)
    }

    /// The engine got something done: the next death is a first one.
    pub(super) fn progressed(&mut self) {
        self.deaths = 0;
    }

    pub(super) fn deaths(&self) -> u32 {
        self.deaths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit_and_begin_anew_after_progress() {
        let mut backoff = Backoff::default();
        let waits: Vec<u128> = (0..5).map(|_| backoff.died().as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600]);
        for _ in 0..100 {
            assert!(backoff.died() <= LONGEST);
        }
        assert_eq!(backoff.died(), LONGEST);
        backoff.progressed();
        assert_eq!(backoff.died(), FIRST);
    }
}
