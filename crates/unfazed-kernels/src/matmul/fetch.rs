//! Prefetching of weights. Measured to be worth more than any other choice in the kernels: up to twice the speed.

#![allow(unsafe_code)]

use crate::panel::LINE;

use super::unpack::GROUPS;

/// How far ahead of its use the weight stream is fetched when few rows make memory the limit.
const AHEAD: usize = 4096;

/// Most rows for which memory is the limit.
const FEW: usize = 4;

/// What to fetch while a group of 32 columns is taken apart and while it is multiplied: half of its part of the panel's bytes
/// each, nearly, for memory should never be idle.
pub(super) struct Fetch {
    /// Lines of half a group times 2^16.
    half: usize,
    /// Bytes from a panel to the one that is read after it and those read at the same time.
    next: usize,
    /// Bytes of a panel.
    panel: usize,
    few: bool,
}

impl Fetch {
    /// For panels of `bytes` bytes and `groups` groups, of which some are read at the same time, for a number of rows.
    pub(super) fn new(bytes: usize, groups: usize, at_once: usize, rows: usize) -> Fetch {
        let half = ((bytes / LINE) << 15) / groups.max(1);
        Fetch { half, next: at_once * bytes, panel: bytes, few: rows <= FEW }
    }

    /// Fetches what lies ahead of half group `half` of a panel.
    ///
    /// For few rows that is [`AHEAD`] bytes into the first-level cache, right across the end of the panel. For many, where
    /// a pass over 256 columns takes long, the next 256 columns into the first-level cache, and the same place in the
    /// panels after these into the second.
    #[inline(always)]
    pub(super) fn fetch(&self, panel: &[u8], half: usize) {
        let lines = (half * self.half) >> 16..((half + 1) * self.half) >> 16;
        for line in lines {
            let at = line * LINE;
            if self.few {
                let ahead = at + AHEAD;
                let ahead = if ahead >= self.panel { ahead + self.next - self.panel } else { ahead };
                fetch::<true>(panel, ahead);
            } else {
                fetch::<true>(panel, at + ((2 * GROUPS * self.half) >> 16) * LINE);
                fetch::<false>(panel, at + self.next);
            }
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
