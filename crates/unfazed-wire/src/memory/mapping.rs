//! A segment in an address space.

#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::Segment;

/// A mapping starts on such a boundary, so that the system can back it with huge pages.
const HUGE_PAGE: usize = 2 << 20;

/// Pages that the system is asked about at once.
#[cfg(target_os = "linux")]
const PAGES_AT_ONCE: usize = 1024;

/// What a mapping is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To be read and written; what is written is in the segment.
    Write,
    /// To be read. Does not keep anybody from sealing the segment.
    Read,
}

/// A segment, mapped from its first byte to its last, left out of core dumps. Unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    /// The reservation that holds the mapping.
    base: NonNull<u8>,
    reserved: usize,
    start: NonNull<u8>,
    len: usize,
    writable: AtomicBool,
}

// SAFETY: a mapping owns its addresses; whoever makes references into it answers for them.
unsafe impl Send for Mapping {}
// SAFETY: as above; the methods that take `&self` hand out pointers, atomics and hints to the system.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a segment.
    pub fn new(segment: &Segment, access: Access) -> io::Result<Mapping> {
        let too_long = || io::Error::from(io::ErrorKind::OutOfMemory);
        let len = usize::try_from(segment.len()).map_err(|_| too_long())?.max(1);
        let reserved = len.checked_add(HUGE_PAGE).filter(|n| isize::try_from(*n).is_ok());
        let reserved = reserved.ok_or_else(too_long)?;
        // SAFETY: a new private mapping at an address of the system's choice touches nothing that exists.
        let base =
            unsafe { mmap_anonymous(ptr::null_mut(), reserved, ProtFlags::empty(), MapFlags::PRIVATE) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(too_long)?;
        // SAFETY: the offset is below HUGE_PAGE, which was reserved beyond `len`.
        let start = unsafe { base.add(base.as_ptr().align_offset(HUGE_PAGE)) };
        let writable = AtomicBool::new(access == Access::Write);
        let mapping = Mapping { base, reserved, start, len, writable };
        mapping.map(segment, 0..len, access)?;
        Ok(mapping)
    }

    /// Makes of a mapping that was written one that can only be read, at the same addresses and with the same bytes.
    ///
    /// # Safety
    /// Nobody writes through a reference into it any more.
    pub unsafe fn read_only(&self, segment: &Segment) -> io::Result<()> {
        self.writable.store(false, Ordering::Relaxed);
        self.map(segment, 0..self.len, Access::Read)
    }

    /// The same for the whole pages in a range: what is done already need not be done in the end, which takes long for
    /// gigabytes.
    ///
    /// # Safety
    /// As of [`Mapping::read_only`], for this range.
    pub unsafe fn part_read_only(&self, segment: &Segment, range: Range<usize>) -> io::Result<()> {
        let page = rustix::param::page_size();
        let (start, end) = (range.start.next_multiple_of(page), range.end.min(self.len));
        let end = end - end % page;
        if start < end { self.map(segment, start..end, Access::Read) } else { Ok(()) }
    }

    /// Maps a range of whole pages.
    fn map(&self, segment: &Segment, range: Range<usize>, access: Access) -> io::Result<()> {
        let (protection, flags) = match access {
            Access::Write => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED),
            // A private mapping shows the segment's own pages as long as nobody writes through it, and older kernels
            // let no other kind see a segment that is sealed.
            Access::Read => (ProtFlags::READ, MapFlags::PRIVATE),
        };
        // SAFETY: the range lies in our own reservation, or on the mapping that took its place, of the same bytes.
        unsafe {
            let start = self.start.add(range.start).as_ptr().cast();
            let len = range.end - range.start;
            mmap(start, len, protection, flags | MapFlags::FIXED, segment.as_fd(), range.start as u64)
        }?;
        self.keep_out_of_dumps();
        Ok(())
    }

    /// First byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes: what the segment was said to hold.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// As [`Mapping::atomics`], to be written: `None` where the mapping can only be read, as a write would end the process.
    pub fn atomics_to_write(&self, offset: usize, count: usize) -> Option<&[AtomicU64]> {
        self.writable.load(Ordering::Relaxed).then(|| self.atomics(offset, count))?
    }

    /// `count` words from byte `offset` on, to be read, or `None` if they are not all there or not aligned. Only for words
    /// that nobody accesses but through this: who makes other references into a mapping keeps off them.
    pub fn atomics(&self, offset: usize, count: usize) -> Option<&[AtomicU64]> {
        let end = count.checked_mul(size_of::<AtomicU64>())?.checked_add(offset)?;
        if end > self.len || !offset.is_multiple_of(align_of::<AtomicU64>()) {
            return None;
        }
        // SAFETY: inside the mapping, aligned, any bits are an integer; atomics may change under a shared reference,
        // by another process too.
        Some(unsafe {
            std::slice::from_raw_parts(self.start.add(offset).as_ptr().cast::<AtomicU64>(), count)
        })
    }

    /// Asks the system to gather the small pages of a range into huge ones, which takes about a second and a half a
    /// gigabyte. Whether it did: a system may not know how, or not want to.
    pub fn collapse(&self, range: Range<usize>) -> bool {
        #[cfg(target_os = "linux")]
        if range.start < range.end && range.end <= self.len {
            // SAFETY: inside the mapping; its contents do not change. (rustix does not know this advice.)
            let advised = unsafe {
                let start = self.start.add(range.start).as_ptr().cast();
                libc::madvise(start, range.end - range.start, libc::MADV_COLLAPSE)
            };
            return advised == 0;
        }
        let _ = range;
        false
    }

    /// Bytes of a range's pages that are in memory now. Those that the system does not tell of count as if they were.
    pub fn resident(&self, range: Range<usize>) -> u64 {
        let range = range.start..range.end.min(self.len);
        #[cfg(target_os = "linux")]
        {
            let page = rustix::param::page_size();
            let mut told = [0u8; PAGES_AT_ONCE];
            let mut bytes = 0;
            for at in range.clone().step_by(PAGES_AT_ONCE * page) {
                let len = (range.end - at).min(PAGES_AT_ONCE * page);
                // SAFETY: inside the mapping; `told` has a byte for each page of the part. (rustix does not know this call.)
                let result =
                    unsafe { libc::mincore(self.start.add(at).as_ptr().cast(), len, told.as_mut_ptr()) };
                let pages = told.iter().take(len.div_ceil(page));
                bytes += match result {
                    0 => pages.filter(|page| **page & 1 == 1).count() * page,
                    _ => len,
                };
            }
            bytes as u64
        }
        #[cfg(not(target_os = "linux"))]
        (range.len() as u64)
    }

    /// Returns a range's memory to the system: whole pages, which read as zeros from now on, for everybody who has the segment.
    /// Returns how many bytes of it were in memory. Allocates nothing.
    ///
    /// # Errors
    ///
    /// The system cannot do it, or the range is not whole pages of this mapping; nothing has changed then.
    ///
    /// # Safety
    /// Nobody has a reference into the range.
    pub unsafe fn give_back(&self, range: Range<usize>) -> io::Result<u64> {
        let page = rustix::param::page_size();
        let whole = range.start.is_multiple_of(page) && range.end.is_multiple_of(page);
        if !whole || range.start > range.end || range.end > self.len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if !self.writable.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        #[cfg(target_os = "linux")]
        {
            use rustix::mm::{Advice, madvise};
            let bytes = self.resident(range.clone());
            if bytes > 0 {
                // SAFETY: inside the mapping, and nobody has a reference to what becomes zeros.
                unsafe {
                    madvise(self.start.add(range.start).as_ptr().cast(), range.len(), Advice::LinuxRemove)
                }?;
            }
            Ok(bytes)
        }
        #[cfg(not(target_os = "linux"))]
        Err(io::ErrorKind::Unsupported.into())
    }

    fn keep_out_of_dumps(&self) {
        #[cfg(target_os = "linux")]
        {
            use rustix::mm::{Advice, madvise};
            // SAFETY: our own mapping, whose contents do not change. A system that does not know the advice writes
            // larger dumps.
            let _ = unsafe { madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxDontDump) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the addresses are ours, and whoever had references into them is gone.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.reserved) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_mapping_writes_the_next_one_reads_until_the_contents_are_sealed() {
        let segment = Segment::create("a test", 3 << 20).unwrap();
        let first = Mapping::new(&segment, Access::Write).unwrap();
        first.atomics_to_write(8, 1).unwrap()[0].store(42, Ordering::Relaxed);
        assert_eq!(first.start().as_ptr().addr() % HUGE_PAGE, 0);
        if cfg!(target_os = "linux") {
            assert!(segment.seal_contents().is_err(), "a writable mapping forbids the seal");
        }
        // SAFETY: nobody has a reference.
        unsafe { first.read_only(&segment) }.unwrap();
        segment.seal_contents().unwrap();
        assert_eq!(segment.contents_are_sealed().unwrap(), cfg!(target_os = "linux"));
        assert!(first.atomics_to_write(8, 1).is_none());
        assert_eq!(first.atomics(8, 1).unwrap()[0].load(Ordering::Relaxed), 42);
        drop(first);
        let second = Mapping::new(&segment, Access::Read).unwrap();
        assert_eq!(second.atomics(8, 1).unwrap()[0].load(Ordering::Relaxed), 42);
        if cfg!(target_os = "linux") {
            assert!(Mapping::new(&segment, Access::Write).is_err());
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_that_is_given_back_is_gone_from_the_segment_and_what_is_beside_it_stays() {
        let page = rustix::param::page_size();
        let segment = Segment::create("a test", 3000 * page as u64).unwrap();
        let mapping = Mapping::new(&segment, Access::Write).unwrap();
        let word = |at: usize| &mapping.atomics_to_write(at * page, 1).unwrap()[0];
        let written = [0, 1, 2, 3, 1500, 2999];
        written.iter().for_each(|at| word(*at).store(7, Ordering::Relaxed));
        let blocks = || rustix::fs::fstat(&segment).unwrap().st_blocks as usize * 512 / page;
        assert_eq!((mapping.resident(0..3000 * page), blocks()), (6 * page as u64, 6));
        // SAFETY: nobody has a reference.
        assert_eq!(unsafe { mapping.give_back(page..2998 * page) }.unwrap(), 4 * page as u64);
        assert_eq!((mapping.resident(0..3000 * page), blocks()), (2 * page as u64, 2));
        assert_eq!([0, 2999].map(|at| word(at).load(Ordering::Relaxed)), [7; 2]);
        assert_eq!(word(1500).load(Ordering::Relaxed), 0);
        for wrong in [1..page, 0..page + 8, 2 * page..page, 0..3001 * page] {
            // SAFETY: nothing is given back.
            assert!(unsafe { mapping.give_back(wrong) }.is_err());
        }
        // SAFETY: nobody has a reference.
        unsafe { mapping.read_only(&segment) }.unwrap();
        // SAFETY: nothing is given back.
        assert!(unsafe { mapping.give_back(0..page) }.is_err());
        assert_eq!(blocks(), 3);
    }

    #[test]
    fn words_outside_a_mapping_or_off_their_boundary_are_none() {
        let segment = Segment::create("a test", 64).unwrap();
        let mapping = Mapping::new(&segment, Access::Write).unwrap();
        assert!(mapping.atomics(0, 8).is_some());
        for (offset, count) in [(0, 9), (64, 1), (4, 1), (usize::MAX, 1), (8, usize::MAX)] {
            assert!(mapping.atomics(offset, count).is_none(), "{offset} {count}");
        }
    }
}
