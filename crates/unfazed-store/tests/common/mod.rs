//! What tests of readers share.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::indexing_slicing)]

pub mod simulated;

use unfazed_formats::{Extent, FileId};

/// An extent of the first file.
pub fn extent(offset: u64, len: u64) -> Extent {
    Extent { file: FileId(0), offset, len }
}

/// Bytes that tell where they are.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}
