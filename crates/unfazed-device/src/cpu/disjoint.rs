//! A slice that several threads write at once, each its own part.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;

/// An exclusively borrowed slice, to be handed out in parts. Copies are of the same slice.
pub(super) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it stands for a `&mut [T]`, parts of which go to other threads; whoever takes a part promises that no other
// overlaps it.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}
// SAFETY: as above; parts that are only read may be read by several threads.
unsafe impl<T: Send + Sync> Sync for Disjoint<'_, T> {}

impl<T> Clone for Disjoint<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Disjoint<'a, T> {
        Disjoint { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// A part, to be written.
    ///
    /// # Safety
    /// While it lives, nobody has another part that overlaps it.
    ///
    /// # Panics
    /// If the slice has no such part.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn part(&self, range: Range<usize>) -> &'a mut [T] {
        self.check(&range);
        // SAFETY: inside the slice, which is borrowed for 'a; the caller promises that the part is no one else's.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// A part, to be read.
    ///
    /// # Safety
    /// While it lives, nobody has a part to be written that overlaps it.
    ///
    /// # Panics
    /// If the slice has no such part.
    pub(super) unsafe fn shared(&self, range: Range<usize>) -> &'a [T] {
        self.check(&range);
        // SAFETY: inside the slice, which is borrowed for 'a; the caller promises that nobody writes there.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }

    fn check(&self, range: &Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
    }
}
