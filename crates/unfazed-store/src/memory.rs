//! Memory for packed weights, keys and values, activations: zeroed, aligned, and refused instead of aborted on.
//!
//! It is mapped straight from the operating system: `Vec` aborts where memory cannot be had, has no alignment beyond
//! that of its elements, and zeroes gigabytes on one core where the system hands out zeroed pages as they are touched.
//! That takes `unsafe`, which the rest of this crate does without, but for `weights` and `kv`.

#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use unfazed_wire::memory::Mapping as SharedMapping;

use crate::StoreError;

/// Buffers of at least this start on such a boundary, so that the system can back them with huge pages.
const HUGE_PAGE: usize = 2 << 20;

mod sealed {
    /// Numbers: all bits are valid, zero bits are zero, nothing to drop.
    pub trait Plain: Copy + Send + Sync + 'static {}
}
use sealed::Plain;

impl Plain for u8 {}
impl Plain for f32 {}

/// A fixed number of numbers: zeroed ones in memory of their own, at least on a page boundary, or a part of memory that
/// outlives this process. Left out of core dumps.
pub struct Buffer<T: Plain> {
    start: NonNull<T>,
    len: usize,
    memory: Memory,
    owns: PhantomData<T>,
}

/// What keeps a buffer's memory there: unmapped when the last part of it is dropped.
#[derive(Clone)]
enum Memory {
    None,
    Own(Arc<Mapping>),
    Shared(Arc<SharedMapping>),
}

// SAFETY: the pages are owned, and touched through buffers alone.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

// SAFETY: a buffer owns its memory as a `Vec` does, and the elements are plain numbers.
unsafe impl<T: Plain> Send for Buffer<T> {}
// SAFETY: as above; shared access is read only.
unsafe impl<T: Plain> Sync for Buffer<T> {}

impl<T: Plain> Buffer<T> {
    /// `len` zeros; `what` they are for is named in the error.
    pub fn zeroed(what: &str, len: usize) -> Result<Buffer<T>, StoreError> {
        let refused = || StoreError::Memory {
            what: what.to_owned(),
            bytes: (len as u64).saturating_mul(size_of::<T>() as u64),
        };
        if len == 0 {
            return Ok(Buffer::default());
        }
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(refused)?;
        let mapping = Mapping::new(bytes).ok_or_else(refused)?;
        Ok(Buffer {
            start: mapping.start.cast(),
            len,
            memory: Memory::Own(Arc::new(mapping)),
            owns: PhantomData,
        })
    }

    /// The first `at` numbers, and the others; `None` if there are not so many.
    pub fn split(self, at: usize) -> Option<(Buffer<T>, Buffer<T>)> {
        let rest = self.len.checked_sub(at)?;
        // SAFETY: `at` is no more than the length, so this is inside the memory, or just behind it.
        let middle = unsafe { self.start.add(at) };
        let first = Buffer { start: self.start, len: at, memory: self.memory.clone(), owns: PhantomData };
        // `self` is gone: of its numbers each part has its own.
        Some((first, Buffer { start: middle, len: rest, memory: self.memory, owns: PhantomData }))
    }

    /// Two parts that were split, as one again; `None` if `next` does not follow.
    pub fn join(self, next: Buffer<T>) -> Option<Buffer<T>> {
        // SAFETY: behind its last number; a part of the same memory may begin there.
        let end = unsafe { self.start.add(self.len) };
        let Buffer { start, len, memory, .. } = next;
        let same = match (&self.memory, &memory) {
            (Memory::Own(ours), Memory::Own(theirs)) => Arc::ptr_eq(ours, theirs),
            (Memory::Shared(ours), Memory::Shared(theirs)) => Arc::ptr_eq(ours, theirs),
            _ => false,
        };
        let follows = same && end == start;
        follows.then(|| Buffer { len: self.len + len, ..self })
    }

    /// `len` numbers from byte `offset` of shared memory on, as they are; `None` if they are not all there or not on
    /// their boundary.
    ///
    /// # Safety
    /// As long as the buffer lives nobody else, in this process or another, writes these bytes, or reads them while it
    /// is written through.
    pub unsafe fn shared(mapping: &Arc<SharedMapping>, offset: usize, len: usize) -> Option<Buffer<T>> {
        let end = len.checked_mul(size_of::<T>())?.checked_add(offset)?;
        if end > mapping.len() || !offset.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: inside the mapping, which starts on the boundary of a page.
        let start = unsafe { mapping.start().add(offset) }.cast();
        Some(Buffer { start, len, memory: Memory::Shared(Arc::clone(mapping)), owns: PhantomData })
    }
}

impl Buffer<u8> {
    /// Returns the memory of a range to the system: as many of the system's pages as lie in it wholly, which are zeros from now
    /// on. Returns how many bytes of it were in memory, as far as the system tells. Allocates nothing.
    ///
    /// # Errors
    ///
    /// The system's, or the range is not inside; nothing has changed then.
    pub fn give_back(&mut self, range: Range<usize>) -> io::Result<u64> {
        let Some(bytes) = self.get(range.clone()) else { return Err(io::ErrorKind::InvalidInput.into()) };
        let (address, page) = (bytes.as_ptr().addr(), rustix::param::page_size());
        let skip = address.next_multiple_of(page) - address;
        let Some(whole) = bytes.len().checked_sub(skip).map(|len| len - len % page).filter(|len| *len > 0)
        else {
            return Ok(0);
        };
        let start = range.start + skip;
        match &self.memory {
            Memory::None => Ok(0),
            Memory::Own(_) => {
                // SAFETY: whole pages of private memory that is borrowed exclusively.
                #[cfg(target_os = "linux")]
                unsafe {
                    use rustix::mm::{Advice, madvise};
                    madvise(self.start.add(start).as_ptr().cast(), whole, Advice::LinuxDontNeed)?;
                }
                Ok(if cfg!(target_os = "linux") { whole as u64 } else { 0 })
            }
            Memory::Shared(mapping) => {
                let offset = self.start.as_ptr().addr() - mapping.start().as_ptr().addr() + start;
                // SAFETY: inside this buffer, which is borrowed exclusively and has these bytes for itself.
                unsafe { mapping.give_back(offset..offset + whole) }
            }
        }
    }
}

impl<T: Plain> Default for Buffer<T> {
    /// No numbers.
    fn default() -> Self {
        Buffer { start: NonNull::dangling(), len: 0, memory: Memory::None, owns: PhantomData }
    }
}

impl<T: Plain> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `start` is aligned and in a mapping with room for `len` elements of which every bit pattern is valid
        // (dangling but aligned where `len` is zero); the mapping lives as long as `self`, and nobody else writes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Plain> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = matches!(self.memory, Memory::Shared(_));
        f.debug_struct("Buffer").field("len", &self.len).field("shared", &shared).finish()
    }
}

/// Has the system put pages under all of this at once, which takes it less time than page by page as they are touched. A hint:
/// a system that does not know it puts them there later.
pub(crate) fn populate(bytes: &mut [u8]) {
    #[cfg(target_os = "linux")]
    {
        const PAGE: usize = 4096;
        let skip = bytes.as_ptr().align_offset(PAGE);
        let pages = bytes.get_mut(skip..).unwrap_or_default();
        let whole = pages.len() - pages.len() % PAGE;
        if whole > 0 {
            // SAFETY: whole pages of memory that is borrowed exclusively; their contents do not change.
            let _ = unsafe { libc::madvise(pages.as_mut_ptr().cast(), whole, libc::MADV_POPULATE_WRITE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = bytes;
}

/// Pages of our own.
struct Mapping {
    base: NonNull<u8>,
    mapped: usize,
    /// First byte that is used: on a huge page's boundary if there are enough bytes.
    start: NonNull<u8>,
}

impl Mapping {
    /// At least `bytes` zeroed bytes, or `None` if they cannot be had.
    fn new(bytes: usize) -> Option<Mapping> {
        let slack = if bytes >= HUGE_PAGE { HUGE_PAGE } else { 0 };
        let mapped = bytes.checked_add(slack)?;
        isize::try_from(mapped).ok()?;
        // SAFETY: a new private mapping at an address of the system's choice touches nothing that exists.
        let base = unsafe {
            mmap_anonymous(ptr::null_mut(), mapped, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        let base = NonNull::new(base.ok()?.cast::<u8>())?;
        let skip = if slack > 0 { base.as_ptr().align_offset(HUGE_PAGE) } else { 0 };
        // SAFETY: `skip` is below HUGE_PAGE, the slack that was mapped beyond `bytes`.
        let start = unsafe { base.add(skip) };
        let mapping = Mapping { base, mapped, start };
        #[cfg(target_os = "linux")]
        mapping.advise(slack > 0);
        Some(mapping)
    }

    /// Hints: no core dumps, huge pages for large buffers. What the system does not know is left out.
    #[cfg(target_os = "linux")]
    fn advise(&self, huge: bool) {
        use rustix::mm::{Advice, madvise};
        let advise = |advice| {
            // SAFETY: the range is the mapping that we own; neither advice changes its contents.
            let _ = unsafe { madvise(self.base.as_ptr().cast(), self.mapped, advice) };
        };
        advise(Advice::LinuxDontDump);
        if huge {
            advise(Advice::LinuxHugepage);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and the buffer that lent it out is gone.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_os = "linux")]
    use unfazed_wire::memory::{Access, Segment};

    use super::*;

    #[test]
    fn a_buffer_is_zeroed_aligned_and_writable_to_its_last_element() {
        for len in [1, 4096, 500_000, 3 << 20] {
            let mut buffer = Buffer::<f32>::zeroed("a test", len).unwrap();
            assert_eq!(buffer.len(), len);
            assert!(buffer.iter().all(|x| *x == 0.0));
            let boundary = if len * 4 >= HUGE_PAGE { HUGE_PAGE } else { 4096 };
            assert_eq!(buffer.as_ptr().addr() % boundary, 0);
            buffer[len - 1] = 1.0;
            assert_eq!(buffer[len - 1], 1.0);
        }
        assert!(Buffer::<u8>::zeroed("a test", 0).unwrap().is_empty());
    }

    #[test]
    fn parts_of_a_buffer_are_its_own_and_join_in_their_order_alone() {
        let mut whole = Buffer::<u8>::zeroed("a test", 100).unwrap();
        whole[40] = 7;
        let start = whole.as_ptr();
        let (first, rest) = whole.split(40).unwrap();
        let (mut middle, last) = rest.split(25).unwrap();
        assert_eq!((first.len(), middle[0], last.len()), (40, 7, 35));
        middle[24] = 8;
        let other = Buffer::<u8>::zeroed("a test", 35).unwrap();
        let (middle, nothing) = middle.split(25).unwrap();
        assert!(nothing.is_empty() && nothing.join(other).is_none());
        let whole = first.join(middle).unwrap().join(last).unwrap();
        assert_eq!((whole.as_ptr(), whole.len(), whole[64]), (start, 100, 8));
        let (first, last) = whole.split(50).unwrap();
        assert!(last.join(first).is_none());
        assert!(Buffer::<u8>::zeroed("a test", 3).unwrap().split(4).is_none());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_that_is_given_back_is_zeros_in_whole_pages_and_its_neighbours_stay() {
        let page = rustix::param::page_size();
        let segment = Segment::create("a test", 8 * page as u64).unwrap();
        let mapping = Arc::new(SharedMapping::new(&segment, Access::Write).unwrap());
        // SAFETY: there is no other buffer of these bytes.
        let shared = unsafe { Buffer::<u8>::shared(&mapping, 64, 6 * page) }.unwrap();
        for mut buffer in [shared, Buffer::zeroed("a test", 8 * page).unwrap()] {
            buffer.fill(7);
            let before = buffer.to_vec();
            assert_eq!(buffer.give_back(100..200).unwrap(), 0, "no whole page");
            assert_eq!(*buffer, before);
            let given = buffer.give_back(10..4 * page + 10).unwrap();
            assert_eq!(given, buffer.iter().filter(|byte| **byte == 0).count() as u64);
            assert!(given >= 3 * page as u64);
            assert!(buffer[..10].iter().chain(&buffer[4 * page + 10..]).all(|byte| *byte == 7));
            assert!(buffer.give_back(0..9 * page).is_err());
            buffer.fill(8);
            assert!(buffer.iter().all(|byte| *byte == 8));
        }
        assert!(mapping.resident(0..7 * page) == 7 * page as u64);
    }

    #[test]
    fn memory_that_cannot_be_had_is_an_error_that_says_what_for() {
        for len in [usize::MAX, usize::MAX / 4, 1 << 60] {
            let error = Buffer::<f32>::zeroed("the KV pages", len).unwrap_err().to_string();
            assert!(
                error.starts_with("cannot allocate ") && error.ends_with(" bytes for the KV pages"),
                "{error}"
            );
        }
    }
}
