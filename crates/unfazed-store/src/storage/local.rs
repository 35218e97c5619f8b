//! Files of this machine's file systems, networks' and removable drives' included.
//!
//! Bytes that the page cache holds are copied from it: a second start is as fast as memory. Others are read past it,
//! through io_uring on disks and by threads elsewhere, so that weights are not kept twice. Where a file system has no
//! direct reads they go through the page cache, which is told to forget them.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use unfazed_formats::source::FileSource;

use super::blocks::{BLOCK_ALIGNMENT, Block, Blocks};
use super::files::{Handles, OpenFile};
#[cfg(target_os = "linux")]
use super::ring::{self, Ring};
use super::threads::{Awaited, Threads};
use super::{Arrived, Attempt, Identity, ReadBuffer, Storage, StoredFile, cached};

/// Free memory that is kept for reads to come.
const KEPT_BYTES: usize = 64 << 20;
/// Reads under way at a time where nothing was measured: enough for every drive that answers within a millisecond.
pub const DEFAULT_DEPTH: usize = 16;

/// How files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalOptions {
    /// Reads under way at a time, and threads where there is no io_uring; [`DEFAULT_DEPTH`] where nothing is said.
    /// [`super::tune::depth`] knows better.
    pub depth: Option<usize>,
    /// io_uring where it is allowed.
    pub ring: bool,
    /// Direct reads where the file system has them.
    pub direct: bool,
    /// What the page cache holds is taken from there.
    pub cached: bool,
}

impl Default for LocalOptions {
    fn default() -> Self {
        LocalOptions { depth: None, ring: true, direct: true, cached: true }
    }
}

/// Open files.
#[derive(Clone)]
pub struct LocalStorage(Arc<Inner>);

struct Inner {
    known: Vec<StoredFile>,
    open: Vec<OpenFile>,
    blocks: Arc<Blocks>,
    threads: Threads,
    #[cfg(target_os = "linux")]
    ring: io::Result<Ring>,
    options: LocalOptions,
    depth: usize,
}

impl LocalStorage {
    /// Takes other descriptors of open files; [`unfazed_formats::FileId`] is the index.
    ///
    /// # Errors
    ///
    /// A file's metadata cannot be had.
    pub fn new(files: &[FileSource], options: LocalOptions) -> io::Result<LocalStorage> {
        let opened: io::Result<Vec<_>> =
            files.iter().map(|file| OpenFile::new(file, options.direct)).collect();
        let (open, known) = opened?.into_iter().unzip();
        let blocks = Arc::new(Blocks::new(KEPT_BYTES));
        let depth = options.depth.unwrap_or(DEFAULT_DEPTH).max(1);
        Ok(LocalStorage(Arc::new(Inner {
            known,
            open,
            threads: Threads::new(depth),
            depth,
            #[cfg(target_os = "linux")]
            ring: new_ring(options, &blocks),
            blocks,
            options,
        })))
    }

    /// How bytes that are not in the page cache are read, for people.
    pub fn engine(&self) -> &'static str {
        if self.reads_by_ring() { "io_uring" } else { "threads" }
    }

    /// Whether there is a ring, which can do nothing but read.
    pub fn reads_by_ring(&self) -> bool {
        #[cfg(target_os = "linux")]
        return self.0.ring.is_ok();
        #[cfg(not(target_os = "linux"))]
        false
    }

    /// Why there is no such ring, for people; `None` if there is one.
    pub fn why_no_ring(&self) -> Option<String> {
        #[cfg(target_os = "linux")]
        return self.0.ring.as_ref().err().map(ToString::to_string);
        #[cfg(not(target_os = "linux"))]
        Some("there is no io_uring on this system".to_owned())
    }

    /// Whether a file has direct reads.
    pub fn reads_directly(&self, file: usize) -> bool {
        self.0.open.get(file).is_some_and(|file| file.reads_directly(&file.handles()))
    }

    /// The share of a file that the page cache holds, from 0 to 1; `None` where the system cannot say.
    pub fn cached_share(&self, file: usize) -> Option<f64> {
        let (open, known) = self.0.open.get(file).zip(self.0.known.get(file))?;
        let len = usize::try_from(known.identity.size).ok()?;
        let (cached, all) = cached::pages(&open.handles().buffered, 0, len)?;
        (all > 0).then(|| cached as f64 / all as f64)
    }
}

/// A ring, if it was asked for and the kernel lets us have one.
#[cfg(target_os = "linux")]
fn new_ring(options: LocalOptions, blocks: &Arc<Blocks>) -> io::Result<Ring> {
    if !(options.ring && options.direct) {
        return Err(io::Error::other("none was asked for"));
    }
    Ring::new(blocks)
        .inspect_err(|error| tracing::info!(%error, "no io_uring here: files are read by threads"))
}

impl Storage for LocalStorage {
    fn files(&self) -> &[StoredFile] {
        &self.0.known
    }

    fn begin(&self, file: usize, offset: u64, len: usize) -> Box<dyn Attempt> {
        let wanted = Wanted { file, offset, len };
        let way = Inner::begin(&self.0, wanted, self.0.options.cached);
        Box::new(LocalAttempt { inner: Arc::clone(&self.0), wanted, way })
    }

    fn reopen(&self, file: usize) -> io::Result<()> {
        if self.0.open.get(file).is_none() {
            return Err(io::ErrorKind::NotFound.into());
        }
        // Opening may hang with a mount, as reads do.
        let inner = Arc::clone(&self.0);
        let opened = self.0.threads.run(move || {
            inner.open.get(file).map_or_else(|| Err(io::ErrorKind::NotFound.into()), OpenFile::reopen)
        });
        opened.wait(REOPEN_LIMIT)?
    }

    fn rest(&self) {
        self.0.blocks.let_go();
    }

    fn depth(&self) -> usize {
        self.0.depth
    }
}

/// Opening a file again takes no longer where its mount is there.
const REOPEN_LIMIT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy)]
struct Wanted {
    file: usize,
    offset: u64,
    len: usize,
}

struct LocalAttempt {
    inner: Arc<Inner>,
    wanted: Wanted,
    way: Way,
}

/// How bytes come.
enum Way {
    /// From the page cache, when they are waited for: by then they are for the processor that waits.
    Cached(Arc<Handles>),
    Thread(Awaited<io::Result<Done>>),
    #[cfg(target_os = "linux")]
    Ring(ring::Awaited, Arc<Handles>, Range<usize>),
    Failed(io::Error),
}

/// A read that is over: the bytes are this part of the block.
struct Done {
    block: Block,
    part: Range<usize>,
    identity: Identity,
}

impl Inner {
    fn begin(self: &Arc<Inner>, wanted: Wanted, may_be_cached: bool) -> Way {
        let Some(file) = self.open.get(wanted.file) else {
            return Way::Failed(io::ErrorKind::NotFound.into());
        };
        let handles = file.handles();
        let held = may_be_cached && cached::holds(&handles.buffered, wanted.offset, wanted.len);
        if held && file.local {
            return Way::Cached(handles);
        }
        let direct = !held && file.reads_directly(&handles);
        let (offset, len) = if direct { aligned(wanted) } else { (wanted.offset, wanted.len) };
        let block = match self.blocks.take(len) {
            Ok(block) => block,
            Err(_) => return Way::Failed(io::ErrorKind::OutOfMemory.into()),
        };
        let skip = usize::try_from(wanted.offset - offset).unwrap_or(0);
        #[cfg(target_os = "linux")]
        if direct
            && file.local
            && let Ok(ring) = &self.ring
        {
            let read = ring.read(Arc::clone(&handles), offset, len, block);
            return Way::Ring(read, handles, skip..skip.saturating_add(wanted.len));
        }
        let job = Job { handles, direct, offset, len, skip, keep: held };
        let inner = Arc::clone(self);
        Way::Thread(self.threads.run(move || inner.read(wanted, &job, block)))
    }

    fn refuse_direct(&self, file: usize) {
        if let Some(file) = self.open.get(file) {
            file.refuse_direct();
        }
    }

    /// Reads, on a thread that may wait for it.
    fn read(&self, wanted: Wanted, job: &Job, mut block: Block) -> io::Result<Done> {
        let Job { handles, direct, offset, len, skip, keep } = job;
        let room = block.memory.get_mut(..*len).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut part = *skip..skip.saturating_add(wanted.len);
        let read = match handles.read(*direct, *offset, room) {
            Err(error) if *direct && is_refusal(&error) => {
                self.refuse_direct(wanted.file);
                part = 0..wanted.len;
                let room = room.get_mut(..wanted.len).ok_or(io::ErrorKind::OutOfMemory)?;
                let read = handles.read(false, wanted.offset, room)?;
                handles.forget(wanted.offset, read);
                read
            }
            read => {
                let read = read?;
                if !direct && !keep {
                    handles.forget(*offset, read);
                }
                read
            }
        };
        Ok(Done { block, part: part.start..part.end.min(read), identity: handles.identity()? })
    }
}

/// What a thread reads.
struct Job {
    handles: Arc<Handles>,
    direct: bool,
    offset: u64,
    len: usize,
    /// Bytes before those that are wanted.
    skip: usize,
    /// The page cache had the bytes and keeps them.
    keep: bool,
}

/// The whole blocks of a file that hold what is wanted.
fn aligned(wanted: Wanted) -> (u64, usize) {
    let block = BLOCK_ALIGNMENT as u64;
    let start = wanted.offset - wanted.offset % block;
    let skip = usize::try_from(wanted.offset - start).unwrap_or(0);
    (start, wanted.len.saturating_add(skip).next_multiple_of(BLOCK_ALIGNMENT))
}

/// The file system has no direct reads, or none of this kind.
fn is_refusal(error: &io::Error) -> bool {
    use rustix::io::Errno;

    matches!(
        error.raw_os_error().map(Errno::from_raw_os_error),
        Some(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS)
    )
}

impl LocalAttempt {
    fn arrived(&self, block: Block, part: Range<usize>, identity: Identity) -> Arrived {
        Arrived { bytes: ReadBuffer::part(block, part, &self.inner.blocks), identity }
    }

    /// Takes bytes from the page cache; `None` if they are not all there any more.
    fn take_cached(&self, handles: &Handles) -> Option<io::Result<Arrived>> {
        let len = self.wanted.len;
        let mut block = match self.inner.blocks.take(len) {
            Ok(block) => block,
            Err(_) => return Some(Err(io::ErrorKind::OutOfMemory.into())),
        };
        let room = block.memory.get_mut(..len)?;
        if cached::read_now(&handles.buffered, self.wanted.offset, room) < len {
            self.inner.blocks.give(block);
            return None;
        }
        Some(handles.identity().map(|identity| self.arrived(block, 0..len, identity)))
    }
}

impl Attempt for LocalAttempt {
    fn wait(self: Box<Self>, limit: Duration) -> io::Result<Arrived> {
        let mut attempt = *self;
        loop {
            let way = std::mem::replace(&mut attempt.way, Way::Failed(io::ErrorKind::Other.into()));
            match way {
                Way::Failed(error) => return Err(error),
                Way::Cached(handles) => {
                    if let Some(arrived) = attempt.take_cached(&handles) {
                        return arrived;
                    }
                    attempt.way = Inner::begin(&attempt.inner, attempt.wanted, false);
                }
                Way::Thread(read) => {
                    let Done { block, part, identity } = read.wait(limit)??;
                    return Ok(attempt.arrived(block, part, identity));
                }
                #[cfg(target_os = "linux")]
                Way::Ring(read, handles, part) => match read.wait(limit) {
                    Err(error) if is_refusal(&error) => {
                        attempt.inner.refuse_direct(attempt.wanted.file);
                        attempt.way = Inner::begin(&attempt.inner, attempt.wanted, false);
                    }
                    read => {
                        let (block, read) = read?;
                        let part = part.start..part.end.min(read);
                        return Ok(attempt.arrived(block, part, handles.identity()?));
                    }
                },
            }
        }
    }
}
