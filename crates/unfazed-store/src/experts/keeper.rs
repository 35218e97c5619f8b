//! Saving the usage profile every few minutes, and at the end.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::store::ExpertStore;

/// Between two times of saving.
const EVERY: Duration = Duration::from_secs(180);

/// Where the profile is kept, and when it was saved last.
#[derive(Debug)]
pub struct ProfileKeeper {
    path: PathBuf,
    next: Duration,
}

impl ProfileKeeper {
    /// Keeps the profile in `path`, from `now` on.
    pub fn new(path: PathBuf, now: Duration) -> ProfileKeeper {
        ProfileKeeper { path, next: now.saturating_add(EVERY) }
    }

    /// Saves it if it is time. To be called now and then.
    ///
    /// # Errors
    ///
    /// The system's; it is tried again when it is time again.
    pub fn tick(&mut self, store: &ExpertStore, now: Duration) -> io::Result<bool> {
        if now < self.next {
            return Ok(false);
        }
        self.next = now.saturating_add(EVERY);
        self.save(store).map(|()| true)
    }

    /// Saves it.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn save(&self, store: &ExpertStore) -> io::Result<()> {
        store.profile().save(&self.path)
    }
}
