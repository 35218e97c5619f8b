//! Open files: a descriptor for buffered reads, and another one for direct reads where the file system has them.
//!
//! Files come as descriptors, from a process that has opened them; direct reads are a property of an open file, and the
//! process shares its own. So the file is opened once more, through `/proc/self/fd`, for direct reads alone. Where that
//! is not allowed reads are buffered.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use unfazed_formats::source::{ByteSource, FileSource};
use unfazed_host::disk;

use super::{Identity, StoredFile};

/// The open descriptors of a file.
#[derive(Debug)]
pub(crate) struct Handles {
    pub(crate) buffered: File,
    /// Reads past the page cache, of whole blocks of [`super::BLOCK_ALIGNMENT`].
    pub(crate) direct: Option<File>,
}

/// A file that is read from.
#[derive(Debug)]
pub(crate) struct OpenFile {
    handles: Mutex<Arc<Handles>>,
    /// Its name when it was opened, if it has one: to open it again.
    path: Option<PathBuf>,
    direct: bool,
    direct_refused: AtomicBool,
    /// On a disk of this machine: asking for its metadata never waits for another one.
    pub(crate) local: bool,
}

impl OpenFile {
    /// Takes another descriptor of an open file, with direct reads if `direct` says so and they can be had.
    pub(crate) fn new(source: &FileSource, direct: bool) -> io::Result<(OpenFile, StoredFile)> {
        let name = source.name().to_owned();
        let file = source.file().try_clone()?;
        let identity = source.identity();
        let path = system::path_of(&file);
        let local = !disk::of(&file).may_vanish();
        let handles = Mutex::new(Arc::new(Handles::new(file, path.as_deref(), direct)));
        let open = OpenFile { handles, path, direct, direct_refused: AtomicBool::new(false), local };
        Ok((open, StoredFile { name, identity }))
    }

    /// The descriptors in use.
    pub(crate) fn handles(&self) -> Arc<Handles> {
        Arc::clone(&self.handles.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether direct reads can be tried.
    pub(crate) fn reads_directly(&self, handles: &Handles) -> bool {
        handles.direct.is_some() && !self.direct_refused.load(Ordering::Relaxed)
    }

    /// The file system refused a direct read: none is tried any more.
    pub(crate) fn refuse_direct(&self) {
        self.direct_refused.store(true, Ordering::Relaxed);
    }

    /// Opens it again by its name.
    pub(crate) fn reopen(&self) -> io::Result<()> {
        let path = self.path.as_deref().ok_or(io::ErrorKind::Unsupported)?;
        let file = OpenOptions::new().read(true).custom_flags(nonblock()).open(path)?;
        let handles = Arc::new(Handles::new(file, Some(path), self.direct));
        *self.handles.lock().unwrap_or_else(PoisonError::into_inner) = handles;
        Ok(())
    }
}

/// A name that leads to a pipe by now must not hold anybody up.
fn nonblock() -> i32 {
    rustix::fs::OFlags::NONBLOCK.bits().cast_signed()
}

impl Handles {
    fn new(buffered: File, path: Option<&Path>, direct: bool) -> Handles {
        let direct = if direct { system::open_direct(&buffered, path) } else { None };
        Handles { buffered, direct }
    }

    /// What the file is now.
    pub(crate) fn identity(&self) -> io::Result<Identity> {
        Ok(Identity::from(&self.buffered.metadata()?))
    }

    /// Reads what there is at `offset`, up to the length of `buf`, past the page cache or through it.
    pub(crate) fn read(&self, direct: bool, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        match &self.direct {
            Some(file) if direct => file.read_at(buf, offset),
            _ => self.buffered.read_at(buf, offset),
        }
    }

    /// Lets go of what a buffered read left in the page cache: the packed weights are a copy already.
    pub(crate) fn forget(&self, offset: u64, len: usize) {
        system::forget(&self.buffered, offset, len);
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs::{File, OpenOptions};
    use std::num::NonZero;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::{Path, PathBuf};

    use rustix::fs::{Advice, AtFlags, OFlags, StatxFlags, fadvise, statx};

    use super::super::BLOCK_ALIGNMENT;

    /// The name under which a file was opened. `None` for a file that has none, such as one in memory.
    pub(super) fn path_of(file: &File) -> Option<PathBuf> {
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        // A deleted file's name ends with a note of the kernel's and leads nowhere.
        (path.is_absolute() && path.exists()).then_some(path)
    }

    /// Opens the file again, for direct reads.
    pub(super) fn open_direct(file: &File, _path: Option<&Path>) -> Option<File> {
        if !aligned_as_ours(file) {
            return None;
        }
        let flags = (OFlags::DIRECT | OFlags::NONBLOCK).bits().cast_signed();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        OpenOptions::new().read(true).custom_flags(flags).open(path).ok()
    }

    /// Whether direct reads in our blocks are direct reads of the file system's. One that does not say is tried.
    fn aligned_as_ours(file: &File) -> bool {
        let Ok(found) = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else { return true };
        if found.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
            return true;
        }
        let fits = |align: u32| align > 0 && BLOCK_ALIGNMENT.is_multiple_of(align as usize);
        fits(found.stx_dio_mem_align) && fits(found.stx_dio_offset_align)
    }

    pub(super) fn forget(file: &File, offset: u64, len: usize) {
        // Zero would mean the rest of the file.
        if let Some(len) = NonZero::new(len as u64) {
            // A hint: a system that does not take it keeps the pages.
            let _ = fadvise(file, offset, Some(len), Advice::DontNeed);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::fs::File;
    use std::os::unix::ffi::OsStringExt;
    use std::path::{Path, PathBuf};

    pub(super) fn path_of(file: &File) -> Option<PathBuf> {
        let path = rustix::fs::getpath(file).ok()?;
        Some(PathBuf::from(std::ffi::OsString::from_vec(path.into_bytes())))
    }

    /// Another open file of the same name, whose reads are not kept in the page cache but take what is there.
    pub(super) fn open_direct(_file: &File, path: Option<&Path>) -> Option<File> {
        let file = File::open(path?).ok()?;
        rustix::fs::fcntl_nocache(&file, true).ok()?;
        Some(file)
    }

    pub(super) fn forget(_file: &File, _offset: u64, _len: usize) {}
}
