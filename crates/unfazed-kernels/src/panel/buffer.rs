//! Memory that starts on a cache line.

#![allow(unsafe_code)]

use super::layout::LINE;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

/// Zeroed bytes that start on a 64-byte boundary, for packed matrices that are not in shared memory.
pub struct PanelBuffer {
    lines: Vec<Line>,
    len: usize,
}

impl PanelBuffer {
    /// `len` bytes, all zero.
    pub fn new(len: usize) -> PanelBuffer {
        PanelBuffer { lines: vec![Line([0; LINE]); len.div_ceil(LINE)], len }
    }
}

impl std::ops::Deref for PanelBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the lines are initialised, contiguous bytes without padding (size 64, alignment 64), and `len`
        // is at most 64 times their number.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl std::ops::DerefMut for PanelBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the borrow of `self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}
