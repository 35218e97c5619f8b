//! A piece of memory behind a descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{fstat, ftruncate};

/// Memory that processes share by handing its descriptor on. It is gone when the last descriptor and mapping are.
#[derive(Debug)]
pub struct Segment {
    descriptor: OwnedFd,
    len: u64,
}

/// A segment that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// The system refused.
    #[error("shared memory for {what}: {source}")]
    System {
        /// What it is for.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// Shorter than what it should hold.
    #[error("shared memory for {what} has {have} bytes, {need} are needed")]
    Short {
        /// What it is for.
        what: &'static str,
        /// Bytes that it has.
        have: u64,
        /// Bytes that it must have.
        need: u64,
    },
    /// It could become shorter under those who map it.
    #[error("shared memory for {what} is not sealed against shrinking")]
    Unsealed {
        /// What it is for.
        what: &'static str,
    },
}

impl Segment {
    /// New memory of `len` zeros, of which none takes room before it is written. Nobody can change its length any more
    /// (on Linux; macOS has no such seal).
    pub fn create(what: &'static str, len: u64) -> Result<Segment, SegmentError> {
        let system = |error: rustix::io::Errno| SegmentError::System { what, source: error.into() };
        let descriptor = system::anonymous().map_err(system)?;
        ftruncate(&descriptor, len).map_err(system)?;
        system::seal_length(&descriptor).map_err(system)?;
        Ok(Segment { descriptor, len })
    }

    /// Memory that another process handed over and says to have `len` bytes: its real length and its seals count.
    pub fn received(what: &'static str, descriptor: OwnedFd, len: u64) -> Result<Segment, SegmentError> {
        let system = |error: rustix::io::Errno| SegmentError::System { what, source: error.into() };
        let have = u64::try_from(fstat(&descriptor).map_err(system)?.st_size).unwrap_or(0);
        if have < len {
            return Err(SegmentError::Short { what, have, need: len });
        }
        if !system::length_is_sealed(&descriptor).map_err(system)? {
            return Err(SegmentError::Unsealed { what });
        }
        Ok(Segment { descriptor, len })
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Nobody can write it any more, whoever has the descriptor. Refused by the system while a writable mapping exists.
    /// Where there is no such seal, nothing happens.
    pub fn seal_contents(&self) -> io::Result<()> {
        Ok(system::seal_contents(&self.descriptor)?)
    }

    /// Whether [`Segment::seal_contents`] was called.
    pub fn contents_are_sealed(&self) -> io::Result<bool> {
        Ok(system::contents_are_sealed(&self.descriptor)?)
    }
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
    use rustix::io::Result;

    const LENGTH: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

    pub(super) fn anonymous() -> Result<OwnedFd> {
        memfd_create("unfazed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
    }

    pub(super) fn seal_length(descriptor: impl AsFd) -> Result<()> {
        fcntl_add_seals(descriptor, LENGTH)
    }

    pub(super) fn length_is_sealed(descriptor: impl AsFd) -> Result<bool> {
        Ok(fcntl_get_seals(descriptor)?.contains(LENGTH))
    }

    pub(super) fn seal_contents(descriptor: impl AsFd) -> Result<()> {
        fcntl_add_seals(descriptor, SealFlags::WRITE)
    }

    pub(super) fn contents_are_sealed(descriptor: impl AsFd) -> Result<bool> {
        Ok(fcntl_get_seals(descriptor)?.contains(SealFlags::WRITE))
    }
}

/// A shared-memory object whose name is gone before anybody can use it. It has no seals: a length that is changed under
/// an engine ends that engine, and never the front, which maps nothing.
#[cfg(not(target_os = "linux"))]
mod system {
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::atomic::{AtomicU32, Ordering};

    use rustix::fs::Mode;
    use rustix::io::{Errno, FdFlags, Result, fcntl_setfd};
    use rustix::shm;

    static NEXT: AtomicU32 = AtomicU32::new(0);

    pub(super) fn anonymous() -> Result<OwnedFd> {
        // A name that exists is another program's, or is left from a process of our number that was killed between the
        // two calls below: the next one is tried.
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("/unfazed-{}-{number}", std::process::id());
            let flags = shm::OFlags::CREATE | shm::OFlags::EXCL | shm::OFlags::RDWR;
            match shm::open(&*name, flags, Mode::RUSR | Mode::WUSR) {
                Ok(descriptor) => {
                    shm::unlink(&*name)?;
                    fcntl_setfd(&descriptor, FdFlags::CLOEXEC)?;
                    return Ok(descriptor);
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn seal_length(_descriptor: impl AsFd) -> Result<()> {
        Ok(())
    }

    pub(super) fn length_is_sealed(_descriptor: impl AsFd) -> Result<bool> {
        Ok(true)
    }

    pub(super) fn seal_contents(_descriptor: impl AsFd) -> Result<()> {
        Ok(())
    }

    pub(super) fn contents_are_sealed(_descriptor: impl AsFd) -> Result<bool> {
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_who_has_the_descriptor_can_change_its_length() {
        let segment = Segment::create("a test", 10_000).unwrap();
        assert_eq!(segment.len(), 10_000);
        for len in [0, 9_999, 10_001, 1 << 40] {
            assert!(ftruncate(&segment, len).is_err());
        }
        assert_eq!(fstat(&segment).unwrap().st_size, 10_000);
    }

    #[test]
    fn a_segment_that_is_shorter_than_said_or_not_sealed_is_refused() {
        let short = Segment::create("a test", 4096).unwrap();
        let error = Segment::received("a test", short.descriptor, 4097).unwrap_err();
        assert!(matches!(error, SegmentError::Short { have: 4096, need: 4097, .. }), "{error}");
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        ftruncate(&file, 4096).unwrap();
        assert!(Segment::received("a test", file, 4096).is_err());
    }
}
