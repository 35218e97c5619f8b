//! Prefetching of weights. Measured to be worth more than any other choice in the kernels: up to twice the speed.

#![allow(unsafe_code)]

use crate::panel::{Geometry, LINE};

use super::unpack::GROUPS;

/// How far ahead of its use the weight stream is fetched when few rows make memory the limit.
const AHEAD: usize = 4096;

/// Most rows for which memory is the limit.
pub(super) const FEW: usize = 4;

/// What to fetch while a group of 32 columns is used: as much, further on.
pub(super) struct Fetch<'a> {
    geometry: &'a Geometry,
    /// Bytes from a panel to the one that is read after it and those read at the same time.
    next: usize,
    /// Bytes of a panel.
    panel: usize,
    few: bool,
}

impl<'a> Fetch<'a> {
    /// For panels of `panel` bytes, of which some are read at the same time, for a number of rows.
    #[inline(always)]
    pub(super) fn new(geometry: &'a Geometry, panel: usize, at_once: usize, rows: usize) -> Fetch<'a> {
        Fetch { geometry, next: at_once * panel, panel, few: rows <= FEW }
    }

    /// Fetches what lies ahead of group `group` of a panel: its codes, and its part of the header of its block or of the
    /// line of scales before it.
    #[inline(always)]
    pub(super) fn fetch(&self, panel: &[u8], group: usize) {
        let geometry = self.geometry;
        let codes = geometry.group_at(group);
        for i in 0..geometry.group / LINE {
            self.line(panel, codes + i * LINE);
        }
        let block = geometry.block_of(group);
        let j = group - block * geometry.groups;
        if j * LINE < geometry.header {
            self.line(panel, geometry.block_at(block) + j * LINE);
        }
        if geometry.lined > 0 && j == 0 && block.is_multiple_of(geometry.lined) {
            self.line(panel, geometry.scales_at(block));
        }
    }

    /// For few rows the line [`AHEAD`] bytes on into the first-level cache, right across the end of the panel. For many,
    /// where a pass over 256 columns takes long, the line 256 columns on into the first-level cache, and the same one of
    /// the panels after these into the second.
    #[inline(always)]
    fn line(&self, panel: &[u8], at: usize) {
        if self.few {
            let ahead = at + AHEAD;
            fetch::<true>(panel, if ahead >= self.panel { ahead + self.next - self.panel } else { ahead });
        } else {
            fetch::<true>(panel, at + GROUPS * self.geometry.group);
            fetch::<false>(panel, at + self.next);
        }
    }
}

/// Fetches the line `at` bytes after the start of `panel` into the first-level cache, or only into the second. A hint:
/// it reads nothing, wherever it points.
#[inline(always)]
fn fetch<const FIRST: bool>(panel: &[u8], at: usize) {
    let place = panel.as_ptr().wrapping_add(at);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address; SSE is part of x86-64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        if FIRST {
            _mm_prefetch::<_MM_HINT_T0>(place.cast());
        } else {
            _mm_prefetch::<_MM_HINT_T1>(place.cast());
        }
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        use std::arch::asm;
        if FIRST {
            asm!("prfm pldl1keep, [{}]", in(reg) place, options(readonly, nostack, preserves_flags));
        } else {
            asm!("prfm pldl2keep, [{}]", in(reg) place, options(readonly, nostack, preserves_flags));
        }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = place;
}
