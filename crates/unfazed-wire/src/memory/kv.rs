//! What is where in the memory for KV pages: a record a page, then the pages.
//!
//! A page is free, or belongs to one sequence. Its record says what an engine has put there: for how many positions,
//! after which tokens, and a digest of their keys and values. It is written after the data, so an engine that dies
//! leaves records of what is whole.

use std::sync::atomic::Ordering;

use super::mapping::Mapping;

/// Words of a record.
const WORDS: usize = 4;
/// Bytes of a record.
const RECORD_BYTES: usize = WORDS * size_of::<u64>();
/// The pages begin on such a boundary.
const PAGE_BOUNDARY: usize = 4096;

/// Sizes of the memory for KV pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSegment {
    /// How many pages.
    pub pages: usize,
    /// Bytes of a page.
    pub page_bytes: usize,
}

/// What a page holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageRecord {
    /// Positions, from the page's first on.
    pub positions: u32,
    /// Stands for all tokens up to the last of these positions.
    pub tokens: u64,
    /// Of the keys and values of these positions.
    pub digest: u64,
}

impl KvSegment {
    /// Where the pages begin.
    pub fn data_offset(&self) -> Option<usize> {
        self.pages.checked_mul(RECORD_BYTES)?.checked_next_multiple_of(PAGE_BOUNDARY)
    }

    /// Bytes of all pages.
    pub fn data_bytes(&self) -> Option<usize> {
        self.pages.checked_mul(self.page_bytes)
    }

    /// Bytes in all, `None` if that overflows.
    pub fn bytes(&self) -> Option<usize> {
        self.data_offset()?.checked_add(self.data_bytes()?)
    }

    /// The record of a page, `None` if there is none or it does not check.
    pub fn read(&self, mapping: &Mapping, page: usize) -> Option<PageRecord> {
        let words = mapping.atomics(self.record_offset(page)?, WORDS)?;
        // The check is read first and written last; it covers the rest, in whatever state that is.
        let check = words.first()?.load(Ordering::Acquire);
        let [positions, tokens, digest] = [1, 2, 3].map(|i| words.get(i).map(|w| w.load(Ordering::Relaxed)));
        let record =
            PageRecord { positions: u32::try_from(positions?).ok()?, tokens: tokens?, digest: digest? };
        (check == record.check() && record.positions > 0).then_some(record)
    }

    /// Writes a page's record. A page with no positions is nobody's. Does nothing if there is no such page, or the
    /// mapping can only be read.
    pub fn write(&self, mapping: &Mapping, page: usize, record: PageRecord) {
        let words = self.record_offset(page).and_then(|offset| mapping.atomics_to_write(offset, WORDS));
        let Some([check, positions, tokens, digest]) = words else { return };
        check.store(0, Ordering::Relaxed);
        // What follows must not be seen before the check is gone, nor the check before what it covers.
        std::sync::atomic::fence(Ordering::Release);
        positions.store(u64::from(record.positions), Ordering::Relaxed);
        tokens.store(record.tokens, Ordering::Relaxed);
        digest.store(record.digest, Ordering::Relaxed);
        check.store(record.check(), Ordering::Release);
    }

    fn record_offset(&self, page: usize) -> Option<usize> {
        (page < self.pages).then(|| page.checked_mul(RECORD_BYTES))?
    }
}

impl PageRecord {
    /// Never zero, which is what fresh memory holds.
    fn check(&self) -> u64 {
        super::mix([u64::from(self.positions), self.tokens, self.digest]) | 1
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Access, Segment};
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_not_at_all_if_a_bit_is_off() {
        let sizes = KvSegment { pages: 5, page_bytes: 4096 };
        assert_eq!(sizes.data_offset(), Some(4096));
        assert_eq!(sizes.bytes(), Some(6 * 4096));
        let segment = Segment::create("a test", sizes.bytes().unwrap() as u64).unwrap();
        let mapping = Mapping::new(&segment, Access::Write).unwrap();
        assert_eq!(sizes.read(&mapping, 0), None);
        let record = PageRecord { positions: 32, tokens: u64::MAX, digest: 7 };
        sizes.write(&mapping, 4, record);
        assert_eq!(sizes.read(&mapping, 4), Some(record));
        assert_eq!(sizes.read(&mapping, 3), None);
        assert_eq!(sizes.read(&mapping, 5), None);
        for word in 0..WORDS {
            for bit in 0..64 {
                let words = mapping.atomics(4 * RECORD_BYTES, WORDS).unwrap();
                words[word].fetch_xor(1 << bit, Ordering::Relaxed);
                assert_eq!(sizes.read(&mapping, 4), None, "word {word} bit {bit}");
                words[word].fetch_xor(1 << bit, Ordering::Relaxed);
            }
        }
        assert_eq!(sizes.read(&mapping, 4), Some(record));
        sizes.write(&mapping, 4, PageRecord::default());
        assert_eq!(sizes.read(&mapping, 4), None);
    }

    #[test]
    fn sizes_that_overflow_are_none() {
        assert_eq!(KvSegment { pages: usize::MAX, page_bytes: 1 }.bytes(), None);
        assert_eq!(KvSegment { pages: 2, page_bytes: usize::MAX }.bytes(), None);
    }
}
