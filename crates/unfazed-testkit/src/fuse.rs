//! A file system that is slow, fails and goes away as it is told to: one file, served by threads of this process.

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEntry, ReplyOpen, Request,
};
use rustix::mount::{UnmountFlags, unmount};

/// Threads that serve reads.
const THREADS: usize = 8;
const FILE: INodeNo = INodeNo(2);
/// The kernel asks for attributes each time: they change.
const NEVER_CACHED: Duration = Duration::ZERO;

/// How the file is served.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    /// Bytes a second, of all reads together; as fast as it goes without.
    pub bytes_per_second: Option<u64>,
    /// Reads wait while this is set.
    pub stalled: bool,
    /// So many reads fail, with this number of an error.
    pub failing: Option<(i32, usize)>,
    /// The file's length, if it is another one than the content's.
    pub truncated: Option<u64>,
    /// Bytes of which a bit is flipped.
    pub flipped: Vec<u64>,
    /// Bytes that cannot be read: reads of them fail with EIO.
    pub unreadable: Option<Range<u64>>,
    /// Files are not opened for direct reads.
    pub refuses_direct: bool,
    /// Reads so far.
    pub reads: usize,
}

/// A mounted file system with one file; unmounted when dropped.
pub struct FaultyMount {
    folder: PathBuf,
    shared: Arc<Shared>,
    session: Option<BackgroundSession>,
}

struct Shared {
    name: String,
    content: std::fs::File,
    len: u64,
    behaviour: Mutex<Behaviour>,
    changed: Condvar,
    /// When the next read may begin, at the rate that was asked for.
    next: Mutex<Instant>,
}

impl FaultyMount {
    /// Serves the file `content` under its own base name in `folder`. `None` where this machine has no FUSE, or this user
    /// must not mount.
    ///
    /// # Errors
    ///
    /// `content` cannot be opened.
    pub fn new(folder: &Path, content: &Path) -> io::Result<Option<FaultyMount>> {
        let name = content.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy().into_owned();
        let content = std::fs::File::open(content)?;
        let len = content.metadata()?.len();
        let (behaviour, next) = (Mutex::default(), Mutex::new(Instant::now()));
        let shared = Arc::new(Shared { name, content, len, behaviour, changed: Condvar::new(), next });
        let mut mount = FaultyMount { folder: folder.to_owned(), shared, session: None };
        Ok(mount.mount().is_ok().then_some(mount))
    }

    /// Where the file is.
    pub fn file(&self) -> PathBuf {
        self.folder.join(&self.shared.name)
    }

    /// Changes how it is served from now on.
    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.shared.lock());
        self.shared.changed.notify_all();
    }

    /// Reads so far.
    pub fn reads(&self) -> usize {
        self.shared.lock().reads
    }

    /// The file system goes away, under those who have the file open too: their reads fail from now on.
    ///
    /// # Errors
    ///
    /// It cannot be unmounted.
    pub fn vanish(&mut self) -> io::Result<()> {
        // By force the kernel ends the connection, though the file is in use; then the name is free.
        let _ = unmount(&self.folder, UnmountFlags::FORCE);
        let _ = unmount(&self.folder, UnmountFlags::DETACH);
        self.behave(|behaviour| behaviour.stalled = false);
        match self.session.take() {
            // Its threads end with an error, as the connection did.
            Some(session) => session.join().or(Ok(())),
            None => Ok(()),
        }
    }

    /// It is there again.
    ///
    /// # Errors
    ///
    /// It cannot be mounted.
    pub fn mount(&mut self) -> io::Result<()> {
        let mut config = Config::default();
        config.n_threads = Some(THREADS);
        let faulty = Faulty(Arc::clone(&self.shared));
        self.session = Some(fuser::spawn_mount(faulty, &self.folder, &config)?);
        Ok(())
    }
}

impl Drop for FaultyMount {
    fn drop(&mut self) {
        let _ = self.vanish();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Behaviour> {
        self.behaviour.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let file = inode == FILE;
        let behaviour = self.lock();
        let size = behaviour.truncated.unwrap_or(self.len);
        FileAttr {
            ino: inode,
            size: if file { size } else { 0 },
            blocks: if file { size.div_ceil(512) } else { 0 },
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if file { FileType::RegularFile } else { FileType::Directory },
            perm: if file { 0o444 } else { 0o555 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// Waits as it was told to, and says how the read ends.
    fn delay(&self, len: u64) -> Result<(), Errno> {
        let mut behaviour = self.lock();
        behaviour.reads += 1;
        while behaviour.stalled {
            behaviour = self.changed.wait(behaviour).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some((errno, count)) = &mut behaviour.failing
            && *count > 0
        {
            *count -= 1;
            return Err(Errno::from_i32(*errno));
        }
        let rate = behaviour.bytes_per_second;
        drop(behaviour);
        if let Some(rate) = rate {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let end = (*next).max(Instant::now()) + Duration::from_secs_f64(len as f64 / rate as f64);
            *next = end;
            drop(next);
            thread::sleep(end.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    fn read(&self, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let len = self.lock().truncated.unwrap_or(self.len);
        let len = u64::from(size).min(len.saturating_sub(offset));
        self.delay(len)?;
        let unreadable = self.lock().unreadable.clone();
        if unreadable.is_some_and(|bad| bad.start < offset.saturating_add(len) && offset < bad.end) {
            return Err(Errno::EIO);
        }
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        self.content.read_exact_at(&mut bytes, offset)?;
        for flipped in &self.lock().flipped {
            let at = flipped.checked_sub(offset).and_then(|at| usize::try_from(at).ok());
            if let Some(byte) = at.and_then(|at| bytes.get_mut(at)) {
                *byte ^= 1;
            }
        }
        Ok(bytes)
    }
}

struct Faulty(Arc<Shared>);

impl Filesystem for Faulty {
    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == OsStr::new(&self.0.name) {
            reply.entry(&NEVER_CACHED, &self.0.attributes(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _file: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&NEVER_CACHED, &self.0.attributes(inode));
    }

    fn open(&self, _request: &Request, _inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let direct = flags.0 & rustix::fs::OFlags::DIRECT.bits().cast_signed() != 0;
        if direct && self.0.lock().refuses_direct {
            reply.error(Errno::EINVAL);
        } else {
            reply.opened(FileHandle(0), FopenFlags::empty());
        }
    }

    fn read(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _file: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.0.read(offset, size) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }
}
