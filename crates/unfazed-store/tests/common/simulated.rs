//! A storage that fails as it is told to, by a clock of its own: no test waits for it.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::io::Errno;
use unfazed_store::reader::{Patience, WaitObserver};
use unfazed_store::storage::{Arrived, Attempt, Identity, StoredFile};
use unfazed_store::{Clock, ReadBuffer, Storage, StorageReader};

/// A clock that goes on when somebody waits for it.
#[derive(Default)]
pub struct SimulatedClock(Mutex<Duration>);

impl Clock for SimulatedClock {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn sleep(&self, time: Duration) {
        *self.0.lock().unwrap() += time;
    }
}

/// An attempt at a read.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Counts from 0.
    pub number: usize,
    pub offset: u64,
    pub len: usize,
    /// When it was waited for.
    pub now: Duration,
}

/// What becomes of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    Reads,
    Fails(Errno),
    /// Brings the bytes after this time.
    Stalls(Duration),
    /// Brings only so many.
    ReadsShort(usize),
    /// Brings bytes of which the one at this offset of the file has a bit flipped.
    Flips(u64),
}

type Script = Box<dyn Fn(Asked) -> Does + Send + Sync>;

/// One file.
#[derive(Clone)]
pub struct Simulated(Arc<Inner>);

struct Inner {
    files: [StoredFile; 1],
    content: Mutex<Vec<u8>>,
    identity: Mutex<Identity>,
    script: Script,
    reopens: Box<dyn Fn(Duration) -> Result<(), Errno> + Send + Sync>,
    bytes_per_second: Option<u64>,
    depth: usize,
    begun: AtomicUsize,
    attempts: Mutex<Vec<Asked>>,
    clock: Arc<SimulatedClock>,
}

pub const NAME: &str = "model.gguf";

impl Simulated {
    pub fn new(content: Vec<u8>, script: impl Fn(Asked) -> Does + Send + Sync + 'static) -> Simulated {
        Simulated::with(content, script, |_| Ok(()), None, 1)
    }

    pub fn with(
        content: Vec<u8>,
        script: impl Fn(Asked) -> Does + Send + Sync + 'static,
        reopens: impl Fn(Duration) -> Result<(), Errno> + Send + Sync + 'static,
        bytes_per_second: Option<u64>,
        depth: usize,
    ) -> Simulated {
        let identity = Identity { size: content.len() as u64, modified: (1, 2), inode: 3 };
        Simulated(Arc::new(Inner {
            files: [StoredFile { name: NAME.to_owned(), identity }],
            content: Mutex::new(content),
            identity: Mutex::new(identity),
            script: Box::new(script),
            reopens: Box::new(reopens),
            bytes_per_second,
            depth,
            begun: AtomicUsize::new(0),
            attempts: Mutex::default(),
            clock: Arc::default(),
        }))
    }

    pub fn clock(&self) -> Arc<SimulatedClock> {
        Arc::clone(&self.0.clock)
    }

    /// All attempts that were waited for so far.
    pub fn attempts(&self) -> Vec<Asked> {
        self.0.attempts.lock().unwrap().clone()
    }

    /// Attempts that were begun, whether somebody waited for them or not.
    pub fn begun(&self) -> usize {
        self.0.begun.load(Ordering::SeqCst)
    }

    /// Somebody writes the file.
    pub fn change(&self, change: impl FnOnce(&mut Vec<u8>, &mut Identity)) {
        let mut content = self.0.content.lock().unwrap();
        let mut identity = self.0.identity.lock().unwrap();
        change(&mut content, &mut identity);
        identity.size = content.len() as u64;
    }

    /// A reader with the default patience.
    pub fn reader(&self) -> StorageReader {
        self.reader_told_to(Arc::new(Told::default()))
    }

    pub fn reader_told_to(&self, observer: Arc<dyn WaitObserver>) -> StorageReader {
        StorageReader::patient(Arc::new(self.clone()), Patience::default(), self.clock(), observer)
    }
}

impl Storage for Simulated {
    fn files(&self) -> &[StoredFile] {
        &self.0.files
    }

    fn begin(&self, file: usize, offset: u64, len: usize) -> Box<dyn Attempt> {
        assert_eq!(file, 0);
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        Box::new(SimulatedAttempt { storage: self.clone(), offset, len })
    }

    fn reopen(&self, _file: usize) -> io::Result<()> {
        Ok((self.0.reopens)(self.0.clock.now())?)
    }

    fn depth(&self) -> usize {
        self.0.depth
    }
}

struct SimulatedAttempt {
    storage: Simulated,
    offset: u64,
    len: usize,
}

impl Attempt for SimulatedAttempt {
    fn wait(self: Box<Self>, limit: Duration) -> io::Result<Arrived> {
        let SimulatedAttempt { storage, offset, len } = *self;
        let inner = &storage.0;
        let asked = {
            let mut attempts = inner.attempts.lock().unwrap();
            let asked = Asked { number: attempts.len(), offset, len, now: inner.clock.now() };
            attempts.push(asked);
            asked
        };
        let content = inner.content.lock().unwrap();
        let start = (offset as usize).min(content.len());
        let mut bytes = content[start..(start + len).min(content.len())].to_vec();
        match (inner.script)(asked) {
            Does::Reads => {}
            Does::Fails(errno) => return Err(errno.into()),
            Does::Stalls(time) if time > limit => {
                inner.clock.sleep(limit);
                return Err(io::ErrorKind::TimedOut.into());
            }
            Does::Stalls(time) => inner.clock.sleep(time),
            Does::ReadsShort(most) => bytes.truncate(most),
            Does::Flips(at) => {
                if let Some(byte) = at.checked_sub(offset).and_then(|at| bytes.get_mut(at as usize)) {
                    *byte ^= 0x10;
                }
            }
        }
        if let Some(rate) = inner.bytes_per_second {
            inner.clock.sleep(Duration::from_secs_f64(bytes.len() as f64 / rate as f64));
        }
        let mut buffer = ReadBuffer::zeroed(bytes.len()).unwrap();
        buffer.copy_from_slice(&bytes);
        Ok(Arrived { bytes: buffer, identity: *inner.identity.lock().unwrap() })
    }
}

/// Remembers what was waited for.
#[derive(Default)]
pub struct Told {
    pub lines: Mutex<Vec<String>>,
    pub open: Mutex<usize>,
}

impl WaitObserver for Told {
    fn began(&self, what: String) -> u64 {
        *self.open.lock().unwrap() += 1;
        self.lines.lock().unwrap().push(what);
        7
    }

    fn changed(&self, wait: u64, what: String) {
        assert_eq!(wait, 7);
        self.lines.lock().unwrap().push(what);
    }

    fn ended(&self, wait: u64) {
        assert_eq!(wait, 7);
        *self.open.lock().unwrap() -= 1;
    }
}
