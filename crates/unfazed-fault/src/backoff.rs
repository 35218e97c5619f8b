//! How long to wait before the next engine.

use std::time::Duration;

/// Wait after the second death in a row. After the first there is none: most deaths are single.
const FIRST: Duration = Duration::from_millis(100);
/// Longest wait: a machine that recovers is found within half a minute.
const LONGEST: Duration = Duration::from_secs(30);
/// Waits differ by up to this share, so that servers which died together don't all load at the same moment.
const JITTER: f64 = 0.1;

/// Deaths in a row without progress and the waits that follow them.
#[derive(Debug, Default)]
pub struct Backoff {
    deaths: u32,
    /// Those of them that waits grow by.
    counted: u32,
}

impl Backoff {
    /// An engine died without progress since the last one: the wait before the next. A death that does not `count` was
    /// somebody else's doing and is followed by an engine at once. `chance` is a random number from 0 to 1.
    pub fn died(&mut self, counts: bool, chance: f64) -> Duration {
        self.deaths = self.deaths.saturating_add(1);
        if !counts {
            return Duration::ZERO;
        }
        self.counted = self.counted.saturating_add(1);
        let Some(doublings) = self.counted.checked_sub(2) else { return Duration::ZERO };
        let wait = FIRST.saturating_mul(2u32.saturating_pow(doublings.min(16))).min(LONGEST);
        wait.mul_f64(1.0 - JITTER * chance.clamp(0.0, 1.0))
    }

    /// The engine got something done: the next death is a first one.
    pub fn progressed(&mut self) {
        *self = Backoff::default();
    }

    /// Those of them that waits grow by.
    pub fn counted(&self) -> u32 {
        self.counted
    }

    /// Deaths in a row without progress.
    pub fn deaths(&self) -> u32 {
        self.deaths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_death_waits_for_nothing_and_waits_double_up_to_a_limit() {
        let mut backoff = Backoff::default();
        let waits: Vec<u128> = (0..6).map(|_| backoff.died(true, 0.0).as_millis()).collect();
        assert_eq!(waits, [0, 100, 200, 400, 800, 1600]);
        for _ in 0..100 {
            assert!(backoff.died(true, 0.5) <= LONGEST);
        }
        assert_eq!(backoff.died(true, 0.0), LONGEST);
        assert_eq!(backoff.died(true, 1.0), LONGEST.mul_f64(0.9));
        backoff.progressed();
        assert_eq!(backoff.died(true, 0.0), Duration::ZERO);
    }

    #[test]
    fn deaths_that_are_nobodys_fault_are_followed_by_an_engine_at_once_and_change_no_later_wait() {
        let mut backoff = Backoff::default();
        for death in 1..50 {
            assert_eq!(backoff.died(false, 0.0), Duration::ZERO);
            assert_eq!(backoff.deaths(), death);
        }
        assert_eq!(backoff.died(true, 0.0), Duration::ZERO);
        assert_eq!(backoff.died(true, 0.0), FIRST);
    }
}
