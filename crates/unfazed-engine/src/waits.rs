//! What is waited for outside this process: declared while it lasts, so that nobody takes a slow disk for a stuck engine.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use unfazed_formats::Extent;
use unfazed_store::{Reader, StoreError};

/// All waits that last.
#[derive(Debug, Default)]
pub(crate) struct Waits(Mutex<Pending>);

#[derive(Debug, Default)]
struct Pending {
    next: u64,
    waits: BTreeMap<u64, (String, Instant)>,
}

/// A wait, until it is dropped.
pub(crate) struct Wait {
    waits: Arc<Waits>,
    number: u64,
}

impl Waits {
    /// Declares a wait for something, named for people.
    pub(crate) fn declare(self: &Arc<Waits>, what: String) -> Wait {
        let mut pending = self.lock();
        let number = pending.next;
        pending.next += 1;
        pending.waits.insert(number, (what, Instant::now()));
        Wait { waits: Arc::clone(self), number }
    }

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

impl Drop for Wait {
    fn drop(&mut self) {
        self.waits.lock().waits.remove(&self.number);
    }
}

/// A reader each of whose reads is a declared wait.
pub(crate) struct WaitingReader {
    pub(crate) reader: Arc<dyn Reader>,
    pub(crate) waits: Arc<Waits>,
}

impl Reader for WaitingReader {
    fn read(&self, tensor: &str, extent: Extent, buf: &mut [u8]) -> Result<(), StoreError> {
        let _wait = self.waits.declare(format!("reading {tensor}"));
        self.reader.read(tensor, extent, buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_is_told_until_it_ends() {
        let waits = Arc::new(Waits::default());
        assert_eq!(waits.longest(), None);
        let first = waits.declare("a disk".to_owned());
        let second = waits.declare("another".to_owned());
        assert_eq!(waits.longest().unwrap().0, "a disk");
        drop(first);
        assert_eq!(waits.longest().unwrap().0, "another");
        drop(second);
        assert_eq!(waits.longest(), None);
    }
}
