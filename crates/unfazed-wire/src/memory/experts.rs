//! What is where in the memory for expert slots: slot by slot, each with its record at its end.
//!
//! A slot is empty or holds one expert of one layer, packed. Its record says which one, how often the slot was filled, and
//! a digest of its bytes. It is taken away before the slot is written and written after it, so an engine that dies leaves
//! records of what is whole.

use std::sync::atomic::{Ordering, fence};

use super::mapping::Mapping;

/// Words of a record.
const WORDS: usize = 4;
/// Bytes at the end of a slot for its record: a cache line.
pub const SLOT_RECORD_BYTES: usize = 64;
/// Slots begin on such a boundary.
const SLOT_BOUNDARY: usize = 4096;

/// Sizes of the memory for expert slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertSegment {
    /// How many slots.
    pub slots: usize,
    /// Bytes of a slot, its record included; a multiple of 4096.
    pub slot_bytes: usize,
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRecord {
    /// Stands for the expert: the model, the layer, the expert's number, the form it is packed in.
    pub identity: u64,
    /// Grows each time that a slot is filled.
    pub generation: u64,
    /// Of the slot's bytes.
    pub digest: u64,
}

impl ExpertSegment {
    /// Bytes of a slot for its expert.
    pub fn room(&self) -> usize {
        self.slot_bytes.saturating_sub(SLOT_RECORD_BYTES)
    }

    /// Where a slot begins; `None` if there is no such slot.
    pub fn slot_offset(&self, slot: usize) -> Option<usize> {
        let inside = slot < self.slots && self.slot_bytes.is_multiple_of(SLOT_BOUNDARY);
        inside.then(|| slot.checked_mul(self.slot_bytes))?
    }

    /// Bytes in all; `None` if that overflows.
    pub fn bytes(&self) -> Option<usize> {
        self.slots.checked_mul(self.slot_bytes)
    }

    /// The record of a slot; `None` if the slot is empty, or its record does not check.
    pub fn read(&self, mapping: &Mapping, slot: usize) -> Option<SlotRecord> {
        let words = mapping.atomics(self.record_offset(slot)?, WORDS)?;
        let [check, identity, generation, digest] = words else { return None };
        // The check is read first and written last; it covers the rest, in whatever state that is.
        let check = check.load(Ordering::Acquire);
        let [identity, generation, digest] =
            [identity, generation, digest].map(|w| w.load(Ordering::Relaxed));
        let record = SlotRecord { identity, generation, digest };
        (check == record.check()).then_some(record)
    }

    /// Writes a slot's record, behind its bytes. Does nothing if there is no such slot.
    pub fn write(&self, mapping: &Mapping, slot: usize, record: SlotRecord) {
        let words = self.record_offset(slot).and_then(|offset| mapping.atomics_to_write(offset, WORDS));
        let Some([check, identity, generation, digest]) = words else { return };
        check.store(0, Ordering::Relaxed);
        // What follows must not be seen before the check is gone, nor the check before what it covers.
        fence(Ordering::Release);
        identity.store(record.identity, Ordering::Relaxed);
        generation.store(record.generation, Ordering::Relaxed);
        digest.store(record.digest, Ordering::Relaxed);
        check.store(record.check(), Ordering::Release);
    }

    /// Says that a slot is empty, before its bytes are written.
    pub fn clear(&self, mapping: &Mapping, slot: usize) {
        let words = self.record_offset(slot).and_then(|offset| mapping.atomics_to_write(offset, WORDS));
        if let Some([check, ..]) = words {
            check.store(0, Ordering::Relaxed);
            // No byte of the slot may change before the record is gone.
            fence(Ordering::SeqCst);
        }
    }

    fn record_offset(&self, slot: usize) -> Option<usize> {
        self.slot_offset(slot)?.checked_add(self.slot_bytes)?.checked_sub(SLOT_RECORD_BYTES)
    }
}

impl SlotRecord {
    /// Never zero, which is what fresh memory holds.
    fn check(&self) -> u64 {
        super::mix([self.identity, self.generation, self.digest]) | 1
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Access, Segment};
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_not_at_all_if_a_bit_is_off() {
        let sizes = ExpertSegment { slots: 3, slot_bytes: 8192 };
        assert_eq!(
            (sizes.bytes(), sizes.slot_offset(2), sizes.room()),
            (Some(3 * 8192), Some(2 * 8192), 8128)
        );
        let segment = Segment::create("a test", sizes.bytes().unwrap() as u64).unwrap();
        let mapping = Mapping::new(&segment, Access::Write).unwrap();
        assert_eq!(sizes.read(&mapping, 0), None);
        let record = SlotRecord { identity: 0, generation: 0, digest: 0 };
        sizes.write(&mapping, 2, record);
        assert_eq!(sizes.read(&mapping, 2), Some(record));
        for word in 0..WORDS {
            for bit in 0..64 {
                let words = mapping.atomics(3 * 8192 - SLOT_RECORD_BYTES, WORDS).unwrap();
                words[word].fetch_xor(1 << bit, Ordering::Relaxed);
                assert_eq!(sizes.read(&mapping, 2), None, "word {word} bit {bit}");
                words[word].fetch_xor(1 << bit, Ordering::Relaxed);
            }
        }
        sizes.clear(&mapping, 2);
        assert_eq!(sizes.read(&mapping, 2), None);
        sizes.write(&mapping, 3, record);
        assert_eq!((sizes.read(&mapping, 3), sizes.slot_offset(3)), (None, None));
    }

    #[test]
    fn sizes_that_overflow_or_are_off_their_boundary_are_none() {
        assert_eq!(ExpertSegment { slots: usize::MAX, slot_bytes: 4096 }.bytes(), None);
        assert_eq!(ExpertSegment { slots: 2, slot_bytes: usize::MAX }.bytes(), None);
        assert_eq!(ExpertSegment { slots: 2, slot_bytes: 4097 }.slot_offset(0), None);
    }
}
