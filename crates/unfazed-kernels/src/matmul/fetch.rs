//! Prefetching of weights. Measured to be worth more than any other choice in the kernels: up to twice the speed.

#![allow(unsafe_code)]

use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

use crate::panel::LINE;

/// How far ahead of its use the weight stream is fetched when few rows make memory the limit.
const AHEAD: usize = 4096;

/// For few rows: fetches `lines` lines of a panel into the first-level cache, from [`AHEAD`] bytes beyond `at`. That
/// goes right across the end of the panel, for the next one follows, after `skip` bytes of panels that are read at
/// the same time as this one.
#[inline(always)]
pub(super) fn fetch_ahead(panel: &[u8], at: usize, lines: usize, skip: usize) {
    let mut start = at + AHEAD;
    if start >= panel.len() {
        start += skip;
    }
    for i in 0..lines {
        // SAFETY: a prefetch reads nothing and never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(panel.as_ptr().wrapping_add(start + i * LINE).cast()) };
    }
}

/// For many rows, where a pass over a block takes long: fetches the next `lines` lines after those at `at` into the
/// first-level cache, and the same place `skip` bytes on, where the next panels are, into the second.
#[inline(always)]
pub(super) fn fetch_next(panel: &[u8], at: usize, lines: usize, skip: usize) {
    for i in 0..lines {
        let place = panel.as_ptr().wrapping_add(at + i * LINE);
        // SAFETY: a prefetch reads nothing and never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.wrapping_add(lines * LINE).cast()) };
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(place.wrapping_add(skip).cast()) };
    }
}
