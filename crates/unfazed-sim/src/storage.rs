//! Storage that fails as it is told to, around storage that reads.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use unfazed_fault::Class;
use unfazed_store::Storage;
use unfazed_store::storage::{Arrived, Attempt, StoredFile};

/// How long a slow read takes beside its time.
const SLOW: Duration = Duration::from_millis(30);

/// The storage.
pub struct SimStorage {
    inner: Arc<dyn Storage>,
    /// What becomes of a read, counted from 1.
    fate: Box<dyn Fn(u64) -> Option<Class> + Send + Sync>,
    reads: AtomicU64,
}

impl SimStorage {
    /// Storage around `inner` whose reads, counted from 1, `fate` disturbs.
    pub fn new(
        inner: Arc<dyn Storage>,
        fate: impl Fn(u64) -> Option<Class> + Send + Sync + 'static,
    ) -> SimStorage {
        SimStorage { inner, fate: Box::new(fate), reads: AtomicU64::new(0) }
    }
}

impl Storage for SimStorage {
    fn files(&self) -> &[StoredFile] {
        self.inner.files()
    }

    fn begin(&self, file: usize, offset: u64, len: usize) -> Box<dyn Attempt> {
        let read = self.reads.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let inner = self.inner.begin(file, offset, len);
        match (self.fate)(read) {
            None => inner,
            Some(fate) => Box::new(Disturbed { inner, fate }),
        }
    }

    fn reopen(&self, file: usize) -> io::Result<()> {
        self.inner.reopen(file)
    }

    fn rest(&self) {
        self.inner.rest();
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }
}

/// A read that meets a fault.
struct Disturbed {
    inner: Box<dyn Attempt>,
    fate: Class,
}

impl Attempt for Disturbed {
    fn wait(self: Box<Self>, limit: Duration) -> io::Result<Arrived> {
        match self.fate {
            Class::StorageSlow => {
                thread::sleep(SLOW.min(limit));
                self.inner.wait(limit)
            }
            Class::StorageGone => Err(Errno::NOTCONN.into()),
            _ => Err(Errno::IO.into()),
        }
    }
}
