//! Memory for expert slots, which outlives this process if the front made it.

#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::sync::Arc;

use twox_hash::XxHash3_64;
use unfazed_wire::memory::{Access, ExpertSegment, Mapping, Row, Segment, SlotRecord};

use crate::{Buffer, StoreError};

/// Slots, and the records of what is in them.
#[derive(Debug)]
pub struct SlotMemory {
    pub(crate) buffers: Vec<Buffer<u8>>,
    pub(crate) records: Records,
    pub(crate) open: usize,
    pub(crate) least: usize,
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
            // SAFETY: slots lie beside each other, each before its record, and there is one buffer of each; the front gives the
            // memory to one process at a time, and to the next one only when this one is gone for certain.
            unsafe { Buffer::shared(&mapping, offset, sizes.room()) }
        };
        let buffers: Option<Vec<_>> = (0..sizes.slots).map(buffer).collect();
        let buffers = buffers.ok_or_else(|| refused(bytes))?;
        let (open, least) = (sizes.slots, 1);
        Ok(SlotMemory { buffers, records: Records { mapping, sizes }, open, least })
    }

    /// Only `open` of the slots may be used at first: memory ran out before. The others are closed, their memory returned, as
    /// if they had been [given up](super::ExpertStore::give_up). However short memory gets `least` stay open: as many as a
    /// token uses experts, so that its step finds them together.
    #[must_use]
    pub fn limited(self, open: usize, least: usize) -> SlotMemory {
        SlotMemory { open, least, ..self }
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
    /// Whether this system takes single pages of shared memory back.
    pub(crate) const GIVES_BACK: bool = cfg!(target_os = "linux");

    pub(crate) fn sizes(&self) -> ExpertSegment {
        self.sizes
    }

    /// Returns the memory of slots to the system that are closed, as far as its pages belong to no other slot. Returns how many
    /// bytes of it there were. `closed` has the buffers of all closed slots.
    ///
    /// # Errors
    ///
    /// The system's.
    pub(crate) fn give_back(
        &self,
        slots: Range<usize>,
        closed: &mut [Option<Buffer<u8>>],
    ) -> io::Result<u64> {
        let ExpertSegment { slots: count, slot_bytes: size } = self.sizes;
        let start =
            |slot| self.sizes.slot_offset(slot).map(|offset| self.mapping.start().addr().get() + offset);
        let is_closed = |slot: usize| {
            let buffer = closed.get(slot).and_then(Option::as_ref);
            buffer.is_some_and(|buffer| Some(buffer.as_ptr().addr()) == start(slot))
        };
        if !slots.clone().all(is_closed) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let row = Row { base: 0, size, count };
        let pages = row.whole_pages(slots, rustix::param::page_size(), is_closed);
        // SAFETY: all of these pages belong to slots whose buffers we have borrowed exclusively, so nobody has a reference to
        // their bytes; records are accessed as atomics alone.
        unsafe { self.mapping.give_back(pages) }
    }

    pub(crate) fn mapping(&self) -> Arc<Mapping> {
        Arc::clone(&self.mapping)
    }

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
