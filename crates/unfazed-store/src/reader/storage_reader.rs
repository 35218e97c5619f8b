//! Reads of a storage, with patience, and none of a file that changed.
//!
//! A read is made of attempts. One that misses its deadline or fails in a way that may pass is made again after a pause;
//! its file is opened again first, as the storage may have been away. After each attempt the file must be the one that was
//! opened: size, time of change and inode. Nothing is returned of a file that is not.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use unfazed_formats::{Extent, FileId};

use super::observer::{Unobserved, Wait};
use super::patience::{Fate, fate};
use super::{Patience, PendingRead, Reader, WaitObserver};
use crate::StoreError;
use crate::clock::{Clock, SystemClock};
use crate::storage::{Arrived, Attempt, ReadBuffer, Storage, StoredFile};

/// A [`Reader`] of a [`Storage`].
#[derive(Clone)]
pub struct StorageReader(Arc<Inner>);

struct Inner {
    storage: Arc<dyn Storage>,
    patience: Patience,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn WaitObserver>,
    /// Files that cannot be read at present, since when: each trouble is logged once, however many reads it holds up.
    troubled: Mutex<HashMap<usize, Duration>>,
}

/// What is read, for errors.
struct Wanted {
    tensor: String,
    file: usize,
    offset: u64,
    len: usize,
}

/// A read that goes badly.
struct Trouble {
    since: Duration,
    /// Since when every attempt has reached a storage that cannot read.
    unreadable: Option<Duration>,
    attempts: u32,
}

impl StorageReader {
    /// Reads from `storage` with the default patience, by the system's clock; nobody is told what is waited for.
    pub fn new(storage: Arc<dyn Storage>) -> StorageReader {
        let clock = Arc::new(SystemClock::new());
        StorageReader::patient(storage, Patience::default(), clock, Arc::new(Unobserved))
    }

    /// Reads from `storage` as long as `patience` says, by `clock`, and tells `observer` what is waited for.
    pub fn patient(
        storage: Arc<dyn Storage>,
        patience: Patience,
        clock: Arc<dyn Clock>,
        observer: Arc<dyn WaitObserver>,
    ) -> StorageReader {
        StorageReader(Arc::new(Inner { storage, patience, clock, observer, troubled: Mutex::default() }))
    }

    fn begin_read(&self, tensor: &str, extent: Extent, len: usize) -> PendingRead {
        let wanted =
            Wanted { tensor: tensor.to_owned(), file: extent.file.0 as usize, offset: extent.offset, len };
        if let Err(error) = self.0.check(&wanted, extent) {
            return PendingRead::new(move || Err(error));
        }
        let attempt = self.0.storage.begin(wanted.file, wanted.offset, wanted.len);
        let inner = Arc::clone(&self.0);
        PendingRead::new(move || inner.finish(&wanted, attempt))
    }
}

impl Reader for StorageReader {
    fn read(&self, tensor: &str, extent: Extent, buf: &mut [u8]) -> Result<(), StoreError> {
        let bytes = self.begin_read(tensor, extent, buf.len()).wait()?;
        // As many as were asked for: `finish` returns no fewer.
        buf.copy_from_slice(bytes.get(..buf.len()).unwrap_or_default());
        Ok(())
    }

    fn begin(&self, tensor: &str, extent: Extent) -> PendingRead {
        match usize::try_from(extent.len) {
            Ok(len) => self.begin_read(tensor, extent, len),
            Err(_) => {
                let error = StoreError::Memory { what: tensor.to_owned(), bytes: extent.len };
                PendingRead::new(move || Err(error))
            }
        }
    }

    fn file_name(&self, file: FileId) -> String {
        self.0.name(file.0 as usize).to_owned()
    }

    fn rest(&self) {
        self.0.storage.rest();
    }

    fn depth(&self) -> usize {
        self.0.storage.depth()
    }
}

impl Inner {
    /// Refuses what lies outside of its extent or its file before anything is read.
    fn check(&self, wanted: &Wanted, extent: Extent) -> Result<(), StoreError> {
        let end = wanted.offset.checked_add(wanted.len as u64);
        let known = self.storage.files().get(wanted.file);
        let inside = known.zip(end).is_some_and(|(file, end)| end <= file.identity.size);
        if inside && wanted.len as u64 <= extent.len {
            return Ok(());
        }
        let kind = if known.is_none() { io::ErrorKind::NotFound } else { io::ErrorKind::UnexpectedEof };
        Err(self.failed(wanted, kind.into()))
    }

    /// Waits for a read, and makes as many attempts as it takes.
    fn finish(&self, wanted: &Wanted, first: Box<dyn Attempt>) -> Result<ReadBuffer, StoreError> {
        let wait = Wait::new(&*self.observer, format!("reading {}", wanted.tensor));
        let mut trouble = None;
        let mut attempt = first;
        // Filled only if the bytes come in pieces.
        let mut pieces = Pieces { whole: None, done: 0 };
        loop {
            let arrived = match attempt.wait(self.patience.attempt) {
                Ok(arrived) => arrived,
                Err(error) => {
                    self.after(error, wanted, &mut trouble, &wait)?;
                    attempt = self.storage.begin(
                        wanted.file,
                        wanted.offset.saturating_add(pieces.done as u64),
                        wanted.len.saturating_sub(pieces.done),
                    );
                    continue;
                }
            };
            self.unchanged(wanted, &arrived)?;
            if arrived.bytes.is_empty() && wanted.len > 0 {
                return Err(self.failed(wanted, io::ErrorKind::UnexpectedEof.into()));
            }
            if trouble.take().is_some() {
                self.passed(wanted);
            }
            if let Some(bytes) = pieces.add(arrived.bytes, wanted.len)? {
                return Ok(bytes);
            }
            let (offset, len) = (wanted.offset + pieces.done as u64, wanted.len - pieces.done);
            attempt = self.storage.begin(wanted.file, offset, len);
        }
    }

    fn unchanged(&self, wanted: &Wanted, arrived: &Arrived) -> Result<(), StoreError> {
        let Some(StoredFile { name, identity }) = self.storage.files().get(wanted.file) else {
            return Ok(());
        };
        match identity.changed(&arrived.identity) {
            None => Ok(()),
            Some(what) => Err(StoreError::Changed { file: name.clone(), offset: wanted.offset, what }),
        }
    }

    /// An attempt failed: pauses before the next one, or says that there is none.
    fn after(
        &self,
        error: io::Error,
        wanted: &Wanted,
        trouble: &mut Option<Trouble>,
        wait: &Wait<'_>,
    ) -> Result<(), StoreError> {
        let now = self.clock.now();
        let trouble = trouble.get_or_insert(Trouble { since: now, unreadable: None, attempts: 0 });
        // A missed deadline has taken its time already.
        let missed =
            if error.kind() == io::ErrorKind::TimedOut { self.patience.attempt } else { Duration::ZERO };
        let mut error = error;
        loop {
            trouble.attempts = trouble.attempts.saturating_add(1);
            let fate = fate(&error);
            let now = self.clock.now();
            let tried = now.saturating_sub(trouble.since).saturating_add(missed);
            trouble.unreadable = (fate == Fate::Media).then(|| trouble.unreadable.unwrap_or(now));
            let unreadable = trouble.unreadable.map_or(Duration::ZERO, |since| now.saturating_sub(since));
            if fate == Fate::Final || tried >= self.patience.away || unreadable >= self.patience.media {
                return Err(self.given_up(wanted, error, trouble.attempts, tried));
            }
            self.tell(wanted, &error, wait);
            if fate == Fate::Again {
                return Ok(());
            }
            self.clock.sleep(self.patience.pause(trouble.attempts));
            // A drive that was unplugged gives errors of its media through a descriptor of before, for ever.
            match self.storage.reopen(wanted.file) {
                Ok(()) => return Ok(()),
                // A file without a name keeps its descriptor.
                Err(failed) if failed.kind() == io::ErrorKind::Unsupported => return Ok(()),
                Err(failed) => error = failed,
            }
        }
    }

    /// Says what is waited for: to the observer each time, to the log once for each file.
    fn tell(&self, wanted: &Wanted, error: &io::Error, wait: &Wait<'_>) {
        let file = self.name(wanted.file);
        wait.changed(format!("reading {} from {file}, which fails: {error}", wanted.tensor));
        let mut troubled = self.troubled.lock().unwrap_or_else(PoisonError::into_inner);
        if let std::collections::hash_map::Entry::Vacant(entry) = troubled.entry(wanted.file) {
            entry.insert(self.clock.now());
            let limit = self.patience.limit(fate(error)).as_secs();
            tracing::warn!(
                file,
                tensor = wanted.tensor,
                offset = wanted.offset,
                %error,
                "cannot read: trying again for up to {limit} s"
            );
        }
    }

    /// A read came that had failed before.
    fn passed(&self, wanted: &Wanted) {
        let mut troubled = self.troubled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(since) = troubled.remove(&wanted.file) {
            let seconds = self.clock.now().saturating_sub(since).as_secs_f64();
            tracing::warn!(file = self.name(wanted.file), "reads come again after {seconds:.1} s");
        }
    }

    fn given_up(&self, wanted: &Wanted, error: io::Error, attempts: u32, tried: Duration) -> StoreError {
        if attempts <= 1 {
            return self.failed(wanted, error);
        }
        let seconds = tried.as_secs_f64();
        let text =
            format!("{error}, after {attempts} attempts in {seconds:.0} s; is the storage still there?");
        self.failed(wanted, io::Error::new(error.kind(), text))
    }

    fn failed(&self, wanted: &Wanted, source: io::Error) -> StoreError {
        StoreError::Read {
            file: self.name(wanted.file).to_owned(),
            tensor: wanted.tensor.clone(),
            offset: wanted.offset,
            len: wanted.len as u64,
            source,
        }
    }

    fn name(&self, file: usize) -> &str {
        self.storage.files().get(file).map_or("?", |file| &file.name)
    }
}

/// Bytes that come in pieces, which is rare: the storage gave fewer than were asked for.
struct Pieces {
    whole: Option<ReadBuffer>,
    done: usize,
}

impl Pieces {
    /// Adds a piece. Returns all bytes if it was the last one.
    fn add(&mut self, piece: ReadBuffer, len: usize) -> Result<Option<ReadBuffer>, StoreError> {
        if self.done == 0 && piece.len() >= len {
            return Ok(Some(piece));
        }
        if self.whole.is_none() {
            self.whole = Some(ReadBuffer::zeroed(len)?);
        }
        let end = self.done.saturating_add(piece.len()).min(len);
        if let Some(place) = self.whole.as_mut().and_then(|whole| whole.get_mut(self.done..end)) {
            place.copy_from_slice(piece.get(..place.len()).unwrap_or_default());
        }
        self.done = end;
        Ok(if end == len { self.whole.take() } else { None })
    }
}
