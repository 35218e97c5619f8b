//! What is waited for outside this process: declared while it lasts, so that nobody takes a slow disk for a stuck engine.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use unfazed_store::WaitObserver;

/// All waits that last.
#[derive(Debug, Default)]
pub(crate) struct Waits(Mutex<Pending>);

#[derive(Debug, Default)]
struct Pending {
    next: u64,
    waits: BTreeMap<u64, (String, Instant)>,
}

impl Waits {
    /// The oldest wait, and for how long.
    pub(crate) fn longest(&self) -> Option<(String, Duration)> {
        let pending = self.lock();
        let (what, since) = pending.waits.first_key_value()?.1;
        Some((what.clone(), since.elapsed()))
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitObserver for Waits {
    fn began(&self, what: String) -> u64 {
        let mut pending = self.lock();
        let number = pending.next;
        pending.next += 1;
        pending.waits.insert(number, (what, Instant::now()));
        number
    }

    fn changed(&self, wait: u64, what: String) {
        if let Some(pending) = self.lock().waits.get_mut(&wait) {
            pending.0 = what;
        }
    }

    fn ended(&self, wait: u64) {
        self.lock().waits.remove(&wait);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_is_told_until_it_ends() {
        let waits = Waits::default();
        assert_eq!(waits.longest(), None);
        let first = waits.began("a disk".to_owned());
        let second = waits.began("another".to_owned());
        assert_eq!(waits.longest().unwrap().0, "a disk");
        waits.changed(first, "a disk, which fails".to_owned());
        assert_eq!(waits.longest().unwrap().0, "a disk, which fails");
        waits.ended(first);
        assert_eq!(waits.longest().unwrap().0, "another");
        waits.ended(second);
        assert_eq!(waits.longest(), None);
    }
}
