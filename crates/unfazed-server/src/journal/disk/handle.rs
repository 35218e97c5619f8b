//! The journal as the rest of the front has it: a handle, and the writer's thread behind it.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;

use super::error::{JournalError, JournalEvent};
use super::folder::{Folder, RealFolder, prepare};
use super::format::StreamKey;
use super::limits::Limits;
use super::lock::Lock;
use super::log::Log;
use super::queue::Queue;
use super::replay::{Found, Kept, replay};
use super::writer::{Item, JournalEvents, Moment, Writer};

/// A journal on disk. Clones are the same one. When the last is dropped what is queued is written, and the folder is free.
#[derive(Clone)]
pub(crate) struct Disk(Arc<Handle>);

/// A journal that was opened, and what was in it.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) disk: Disk,
    /// Streams, from the least recently written.
    pub(crate) kept: Vec<Kept>,
    pub(crate) found: Found,
}

/// How it is with a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// Length of all segments.
    pub(crate) bytes: u64,
    /// Bytes of records that are needed.
    pub(crate) live_bytes: u64,
    pub(crate) segments: u64,
    /// Streams that are needed.
    pub(crate) streams: u64,
    /// Bytes that a loss of power would cost now.
    pub(crate) unsynced_bytes: u64,
    /// Streams that miss entries: after a restart they go on from before those.
    pub(crate) gaps: u64,
    /// Why nothing can be written.
    pub(crate) broken: Option<String>,
    /// Why more is on the disk than should be.
    pub(crate) stuck: Option<String>,
}

struct Handle {
    queue: Arc<Queue>,
    shared: Arc<Shared>,
    /// `None` in tests whose folder is none.
    lock: Option<Arc<Lock>>,
}

/// What the thread leaves for others to find.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// The writer, while another process goes on.
    parked: Mutex<Option<Writer>>,
    /// The clock's zero.
    zero: Zero,
}

struct Zero(Instant);

impl Default for Zero {
    fn default() -> Zero {
        Zero(Instant::now())
    }
}

impl Shared {
    fn now(&self) -> Moment {
        Moment { wall_ms: wall_ms(), since: self.zero.0.elapsed() }
    }
}

fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Disk {
    /// Opens the journal in `dir`, which is made if it is not there. Blocks while it reads; damage costs what it touched and
    /// is told in [`Opened::found`]. Events come on the writer's thread.
    pub(crate) fn open(dir: &Path, limits: Limits, events: JournalEvents) -> Result<Opened, JournalError> {
        prepare(dir)?;
        Disk::locked(dir, Lock::take(dir)?, limits, events)
    }

    /// The same with the lock of the process that had the journal before: what its [`Disk::hand_over`] gave.
    pub(crate) fn open_with_lock(
        dir: &Path,
        lock: OwnedFd,
        limits: Limits,
        events: JournalEvents,
    ) -> Result<Opened, JournalError> {
        Disk::locked(dir, Lock::with(dir, lock)?, limits, events)
    }

    fn locked(dir: &Path, lock: Lock, limits: Limits, events: JournalEvents) -> Result<Opened, JournalError> {
        let lock = Arc::new(lock);
        let folder = RealFolder::new(dir, Arc::clone(&lock));
        Disk::start(Box::new(folder), Some(lock), limits, events)
    }

    /// Opens what is in any kind of folder.
    pub(super) fn start(
        folder: Box<dyn Folder>,
        lock: Option<Arc<Lock>>,
        limits: Limits,
        events: JournalEvents,
    ) -> Result<Opened, JournalError> {
        let shared = Arc::new(Shared::default());
        let replayed = replay(folder.as_ref(), &limits, wall_ms())?;
        let log = Log::new(folder, limits, replayed.index);
        let writer = Writer::new(log, replayed.over_size, events, shared.now());
        let queue = Arc::new(Queue::new());
        let disk = Disk(Arc::new(Handle { queue, shared, lock }));
        disk.spawn(writer, None)?;
        Ok(Opened { disk, kept: replayed.kept, found: replayed.found })
    }

    fn spawn(&self, writer: Writer, reread: Option<Reread>) -> Result<(), JournalError> {
        let (queue, shared) = (Arc::clone(&self.0.queue), Arc::clone(&self.0.shared));
        let dir = writer.log.folder.dir().to_owned();
        let thread = thread::Builder::new().name("journal".to_owned());
        let spawned = thread.spawn(move || run(writer, reread, Ending { queue, parked: false }, &shared));
        spawned.map(drop).map_err(|cause| JournalError::folder(dir, "no thread for it", &cause))
    }

    /// Keeps a stream. It is on the disk when the future says so; without waiting for it the order is kept as well.
    pub(crate) fn admit(
        &self,
        key: StreamKey,
        bytes: Vec<u8>,
    ) -> impl Future<Output = Result<(), JournalError>> + Send + 'static {
        self.0.queue.admit(key, bytes).wait()
    }

    /// Keeps an entry of a stream, soon. Never waits. What cannot be kept leaves a gap, which [`JournalEvent::Gap`] tells.
    pub(crate) fn append(&self, key: StreamKey, bytes: Vec<u8>) {
        self.0.queue.append(key, bytes);
    }

    /// Keeps an entry of a stream; the end of this process cannot undo it when the future says so. A loss of power can.
    pub(crate) fn append_written(
        &self,
        key: StreamKey,
        bytes: Vec<u8>,
    ) -> impl Future<Output = Result<(), JournalError>> + Send + 'static {
        self.0.queue.append_written(key, bytes).wait()
    }

    /// A stream is not needed any more. Written soon.
    pub(crate) fn forget(&self, key: StreamKey) {
        self.0.queue.forget(key);
    }

    /// Everything before this is on the disk when the future says so.
    pub(crate) fn flush(&self) -> impl Future<Output = Result<(), JournalError>> + Send + 'static {
        self.0.queue.ask(|synced| Item::Flush { synced }).wait()
    }

    /// How it is now.
    pub(crate) fn state(&self) -> State {
        let (unsynced_bytes, gaps) = self.0.queue.waiting();
        let state = lock(&self.0.shared.state).clone();
        State { unsynced_bytes, gaps: state.gaps + gaps as u64, ..state }
    }

    /// Writes everything, stops, and gives the lock for another process to go on. Until [`Disk::take_back`] admissions fail
    /// and entries wait. After an error this process goes on as before.
    pub(crate) async fn hand_over(&self) -> Result<OwnedFd, JournalError> {
        self.0.queue.ask(|parked| Item::Park { parked }).wait().await?;
        self.0.lock.as_ref().and_then(|lock| lock.release()).ok_or(JournalError::HandedOver)
    }

    /// Goes on, as the other process did not: it must have ended. Gives the streams that were admitted there.
    pub(crate) async fn take_back(&self, descriptor: OwnedFd) -> Result<Vec<Kept>, JournalError> {
        if let Some(lock) = &self.0.lock {
            lock.resume(descriptor)?;
        }
        let writer = lock(&self.0.shared.parked).take().ok_or(JournalError::HandedOver)?;
        let (reread, kept) = oneshot::channel();
        self.spawn(writer, Some(reread))?;
        kept.await.unwrap_or(Err(JournalError::HandedOver))
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Disk").field(&self.state()).finish()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.queue.end();
    }
}

/// Who waits for the folder to be read again.
type Reread = oneshot::Sender<Result<Vec<Kept>, JournalError>>;

/// Nobody waits for a thread that has ended, however it did.
struct Ending {
    queue: Arc<Queue>,
    parked: bool,
}

impl Drop for Ending {
    fn drop(&mut self) {
        if !self.parked {
            self.queue.closed();
        }
    }
}

/// The thread.
fn run(mut writer: Writer, reread: Option<Reread>, mut ending: Ending, shared: &Shared) {
    let queue = Arc::clone(&ending.queue);
    if let Some(reread) = reread {
        let kept = writer.reread(shared.now());
        let failed = kept.is_err();
        if !failed {
            queue.resumed();
        }
        let _ = reread.send(kept);
        if failed {
            return;
        }
    }
    loop {
        writer.keep_up(shared.now());
        tell_state(&writer, shared);
        queue.hold(writer.held_bytes());
        writer.answer();
        let due = writer.due().map(|due| shared.zero.0 + due);
        let mut batch = queue.next(due);
        for (key, why) in batch.new_gaps {
            writer.tell(JournalEvent::Gap { key, why });
        }
        if batch.ended {
            batch.items.push(Item::Flush { synced: oneshot::channel().0 });
        }
        writer.step(batch.items, shared.now());
        tell_state(&writer, shared);
        queue.hold(writer.held_bytes());
        writer.answer();
        if let Some(parked) = writer.take_parking() {
            *lock(&shared.parked) = Some(writer);
            queue.parked();
            ending.parked = true;
            let _ = parked.send(Ok(()));
            return;
        }
        if batch.ended {
            return;
        }
    }
}

fn tell_state(writer: &Writer, shared: &Shared) {
    let index = &writer.log.index;
    let state = State {
        bytes: index.bytes(),
        live_bytes: index.live_bytes(),
        segments: index.segments.len() as u64,
        streams: index.streams.len() as u64,
        gaps: writer.gaps(),
        broken: writer.broken().map(str::to_owned),
        stuck: writer.stuck().map(str::to_owned),
        unsynced_bytes: 0,
    };
    *lock(&shared.state) = state;
}
