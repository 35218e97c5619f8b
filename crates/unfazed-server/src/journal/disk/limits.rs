//! How much a journal keeps, and for how long.

use std::time::Duration;

use super::format::MAX_RECORD_BYTES;

/// Smallest segment: a page of the file system.
const MIN_SEGMENT_BYTES: u64 = 4096;
/// Fewest segments that make up the whole: one is what goes at a time.
const MIN_SEGMENTS: u64 = 8;

/// What a journal may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// A segment that is larger is closed. At most an eighth of `total_bytes`.
    pub(crate) segment_bytes: u64,
    /// All segments together; for moments one segment and one record more.
    pub(crate) total_bytes: u64,
    /// A stream whose last record is older is dropped.
    pub(crate) age: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { segment_bytes: 16 << 20, total_bytes: 1 << 30, age: Duration::from_secs(24 * 3600) }
    }
}

impl Limits {
    /// Bytes at which a segment is closed.
    pub(super) fn segment(&self) -> u64 {
        self.segment_bytes.min(self.total_bytes / MIN_SEGMENTS).max(MIN_SEGMENT_BYTES)
    }

    /// Most bytes of records that are needed. Below all that there may be: if nearly everything were needed, most of a
    /// segment would have to be copied to win the little that is not.
    pub(super) fn live(&self) -> u64 {
        self.total_bytes / 4 * 3
    }

    /// Segments that take up all that may be kept.
    pub(super) fn most_segments(&self) -> u64 {
        self.total_bytes / self.segment()
    }

    /// Most bytes of one segment that are read: one was closed at another limit, perhaps.
    pub(super) fn most_read_bytes(&self) -> u64 {
        self.total_bytes.max(2 * MAX_RECORD_BYTES as u64)
    }

    /// When what was written before is too old.
    pub(super) fn oldest_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(u64::try_from(self.age.as_millis()).unwrap_or(u64::MAX))
    }
}
