//! What macOS tells.

use super::Reading;
use crate::memory::{self, jetsam};

/// From this level on the system warns: 1 is normal, 2 a warning, 4 critical (XNU's `kern_memorystatus.h`).
const WARNING: u32 = 2;

pub(super) fn look() -> Reading {
    let level = jetsam::read("kern.memorystatus_vm_pressure_level");
    let warned = level.trim().parse::<u32>().is_ok_and(|level| level >= WARNING);
    Reading { free: memory::memory().ok().map(|memory| memory.available), warned, ..Reading::default() }
}
