//! Memory for expert slots, which outlives this process if the front made it.

#![allow(unsafe_code)]

use std::sync::Arc;

use twox_hash::XxHash3_64;
use unfazed_wire::memory::{Access, ExpertSegment, Mapping, Segment, SlotRecord};

use crate::{Buffer, StoreError};

/// Slots, and the records of what is in them.
#[derive(Debug)]
pub struct SlotMemory {
    pub(crate) buffers: Vec<Buffer<u8>>,
    pub(crate) records: Records,
}

/// Records of slots.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    mapping: Arc<Mapping>,
    sizes: ExpertSegment,
}

impl SlotMemory {
    /// Slots that end with this process.
    ///
    /// # Errors
    ///
    /// The memory cannot be had.
    pub fn private(sizes: ExpertSegment) -> Result<SlotMemory, StoreError> {
        let bytes = sizes.bytes().map_or(u64::MAX, |bytes| bytes as u64);
        let segment = Segment::create("expert slots", bytes).map_err(|_| refused(bytes))?;
        SlotMemory::open(&segment, sizes)
    }

    /// Slots in memory that the front made, as an earlier process left them. Of all processes only this one may have it.
    ///
    /// # Errors
    ///
    /// The memory is too small, or cannot be mapped.
    pub fn open(segment: &Segment, sizes: ExpertSegment) -> Result<SlotMemory, StoreError> {
        let bytes = sizes.bytes().ok_or_else(|| refused(u64::MAX))? as u64;
        if segment.len() < bytes {
            return Err(refused(bytes));
        }
        let mapping = Arc::new(Mapping::new(segment, Access::Write).map_err(|_| refused(bytes))?);
        let buffer = |slot| {
            let offset = sizes.slot_offset(slot)?;
            // SAFETY: slots lie behind the records and beside each other, and there is one buffer of each; the front gives
            // the memory to one process at a time, and to the next one only when this one is gone for certain.
            unsafe { Buffer::shared(&mapping, offset, sizes.slot_bytes) }
        };
        let buffers: Option<Vec<_>> = (0..sizes.slots).map(buffer).collect();
        let buffers = buffers.ok_or_else(|| refused(bytes))?;
        Ok(SlotMemory { buffers, records: Records { mapping, sizes } })
    }

    /// How many slots, and their bytes.
    pub fn sizes(&self) -> ExpertSegment {
        self.records.sizes
    }
}

fn refused(bytes: u64) -> StoreError {
    StoreError::Memory { what: "expert slots".to_owned(), bytes }
}

impl Records {
    pub(crate) fn read(&self, slot: usize) -> Option<SlotRecord> {
        self.sizes.read(&self.mapping, slot)
    }

    pub(crate) fn write(&self, slot: usize, record: SlotRecord) {
        self.sizes.write(&self.mapping, slot, record);
    }

    pub(crate) fn clear(&self, slot: usize) {
        self.sizes.clear(&self.mapping, slot);
    }
}

/// Of the bytes of a slot that an expert fills.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}
