//! What each answer was made of so far, as bytes: enough for another process to go on with it. Those of streams that can be
//! resumed are kept on disk as well, if there is a journal there.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use serde::Serialize;

/// Where tapes outlive this process.
pub(crate) trait Store: Send + Sync {
    /// Keeps a new answer's admission; resolves once it is safe.
    fn admit(&self, key: u128, admission: Vec<u8>) -> BoxFuture<'static, Result<(), String>>;
    /// Keeps what was told next, in its own time.
    fn append(&self, key: u128, entry: Vec<u8>);
    /// The same; resolves once this process may die without losing it.
    fn append_written(&self, key: u128, entry: Vec<u8>) -> BoxFuture<'static, ()>;
    /// The answer is not needed any more.
    fn forget(&self, key: u128);
    /// Resolves once everything before is safe.
    fn flush(&self) -> BoxFuture<'static, Result<(), String>>;
    /// How it is.
    fn state(&self) -> StoreState;
}

/// The order in which an answer came, and what is recorded of it.
type Place = (u64, Arc<Mutex<Recorded>>);

/// How a store is.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StoreState {
    /// Bytes on disk, and those of them that are needed.
    pub(crate) bytes: u64,
    pub(crate) live_bytes: u64,
    pub(crate) streams: u64,
    /// Bytes that a loss of power would cost now.
    pub(crate) unsynced_bytes: u64,
    /// Streams that would go on from before what is missing of them.
    pub(crate) gaps: u64,
    /// Why nothing can be written.
    pub(crate) broken: Option<String>,
    /// Why more is on the disk than should be.
    pub(crate) stuck: Option<String>,
}

/// All answers that are being made or kept.
#[derive(Default)]
pub(crate) struct Tapes {
    tapes: Mutex<BTreeMap<u128, Place>>,
    next: AtomicU64,
    store: Option<Arc<dyn Store>>,
}

/// What is recorded of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) admission: Vec<u8>,
    /// What was told: lines.
    pub(crate) told: Vec<u8>,
    /// It is in the store, too.
    pub(crate) stored: bool,
}

/// An answer's tape. Dropping it forgets it here, and leaves it in the store.
pub(crate) struct Tape {
    key: u128,
    recorded: Arc<Mutex<Recorded>>,
    tapes: Arc<Tapes>,
}

impl Tapes {
    /// With a store, or none.
    pub(crate) fn new(store: Option<Arc<dyn Store>>) -> Tapes {
        Tapes { store, ..Tapes::default() }
    }

    /// How the store is, if there is one.
    pub(crate) fn store_state(&self) -> Option<StoreState> {
        self.store.as_ref().map(|store| store.state())
    }

    /// Makes safe what is stored.
    pub(crate) async fn flush(&self) {
        if let Some(store) = &self.store
            && let Err(error) = store.flush().await
        {
            tracing::warn!("{error}");
        }
    }

    /// A new answer's, stored if asked for and possible; what resolves once that is so.
    pub(crate) fn begin(
        self: &Arc<Self>,
        key: u128,
        admission: Vec<u8>,
        stored: bool,
    ) -> (Tape, BoxFuture<'static, Result<(), String>>) {
        let store = self.store.as_ref().filter(|_| stored);
        let admitted: BoxFuture<'static, _> = match store {
            Some(store) => store.admit(key, admission.clone()),
            None => Box::pin(std::future::ready(Ok(()))),
        };
        let stored = store.is_some();
        (self.resume(key, Recorded { admission, told: Vec::new(), stored }), admitted)
    }

    /// One that another process began. Where the store has something else of it, or less, it is kept there no more.
    pub(crate) fn restore(self: &Arc<Self>, key: u128, mut recorded: Recorded, same: bool) -> Tape {
        if recorded.stored && !same {
            tracing::warn!(
                stream = format!("{key:032x}"),
                "the journal has not all of a stream: it does not keep it any more"
            );
            recorded.stored = false;
            self.forget(key);
        }
        self.resume(key, recorded)
    }

    fn resume(self: &Arc<Self>, key: u128, recorded: Recorded) -> Tape {
        let recorded = Arc::new(Mutex::new(recorded));
        let order = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.tapes).insert(key, (order, Arc::clone(&recorded)));
        Tape { key, recorded, tapes: Arc::clone(self) }
    }

    /// What is recorded of all of them, by their keys, in the order in which they came.
    pub(crate) fn all(&self) -> Vec<(u128, Recorded)> {
        let tapes = lock(&self.tapes);
        let mut all: Vec<_> = tapes.iter().map(|(key, (order, recorded))| (*order, *key, recorded)).collect();
        all.sort_unstable_by_key(|(order, ..)| *order);
        all.into_iter().map(|(_, key, recorded)| (key, lock(recorded).clone())).collect()
    }

    /// Forgets one that nobody goes on with.
    pub(crate) fn forget(&self, key: u128) {
        if let Some(store) = &self.store {
            store.forget(key);
        }
    }
}

impl Tape {
    /// Records what was told; `at_once`: returns once this process may die without losing it, if it is stored.
    pub(crate) async fn record(&self, mut entry: Vec<u8>, at_once: bool) {
        entry.push(b'\n');
        let stored = {
            let mut recorded = lock(&self.recorded);
            recorded.told.extend_from_slice(&entry);
            recorded.stored
        };
        match self.tapes.store.as_ref().filter(|_| stored) {
            Some(store) if at_once => store.append_written(self.key, entry).await,
            Some(store) => store.append(self.key, entry),
            None => {}
        }
    }

    /// Whether it outlives this process.
    pub(crate) fn is_stored(&self) -> bool {
        lock(&self.recorded).stored
    }

    /// Nobody will ask for this answer any more.
    pub(crate) fn forget(self) {
        if self.is_stored()
            && let Some(store) = &self.tapes.store
        {
            store.forget(self.key);
        }
    }
}

impl Drop for Tape {
    fn drop(&mut self) {
        lock(&self.tapes.tapes).remove(&self.key);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing under these locks panics half-way through a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
