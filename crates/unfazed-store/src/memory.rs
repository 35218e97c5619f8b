//! Memory for packed weights, keys and values, activations: zeroed, aligned, and refused instead of aborted on.
//!
//! It is mapped straight from the operating system: `Vec` aborts where memory cannot be had, has no alignment beyond
//! that of its elements, and zeroes gigabytes on one core where the system hands out zeroed pages as they are touched.
//! That takes `unsafe`, which the rest of this crate does without, but for `weights` and `kv`.

#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
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

/// What keeps a buffer's memory there.
enum Memory {
    None,
    Own(#[expect(dead_code, reason = "unmapped when dropped")] Mapping),
    Shared(#[expect(dead_code, reason = "unmapped when the last part of it is dropped")] Arc<SharedMapping>),
}

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
            return Ok(Buffer { start: NonNull::dangling(), len, memory: Memory::None, owns: PhantomData });
        }
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(refused)?;
        let mapping = Mapping::new(bytes).ok_or_else(refused)?;
        Ok(Buffer { start: mapping.start.cast(), len, memory: Memory::Own(mapping), owns: PhantomData })
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
