//! KV pages in memory that outlives this process.

#![allow(unsafe_code)]

use std::sync::Arc;

use unfazed_wire::memory::{Access, KvSegment, Mapping, Segment};

use crate::{Buffer, StoreError};

/// KV pages that the front made, mapped: the bytes of all pages, and the mapping that has their records.
#[derive(Debug)]
pub struct KvMemory {
    /// `[pages, bytes of a page]`, as an earlier process left them.
    pub pages: Buffer<u8>,
    /// Where the records are ([`KvSegment::read`]).
    pub mapping: Arc<Mapping>,
}

impl KvMemory {
    /// Maps the memory, which must have room for `sizes`. Of all processes only this one may have it.
    pub fn open(segment: &Segment, sizes: &KvSegment) -> Result<KvMemory, StoreError> {
        let refused = |bytes| StoreError::Memory { what: "KV pages".to_owned(), bytes };
        let bytes = sizes.bytes().ok_or_else(|| refused(u64::MAX))?;
        if segment.len() < bytes as u64 {
            return Err(refused(bytes as u64));
        }
        let mapping = Mapping::new(segment, Access::Write).map_err(|_| refused(bytes as u64))?;
        let mapping = Arc::new(mapping);
        let (start, data) = sizes.data_offset().zip(sizes.data_bytes()).ok_or_else(|| refused(u64::MAX))?;
        // SAFETY: the pages lie behind the records and there is no other buffer of them; the front gives the memory to
        // one process at a time, and to the next one only when this one is gone for certain.
        let pages = unsafe { Buffer::shared(&mapping, start, data) };
        Ok(KvMemory { pages: pages.ok_or_else(|| refused(bytes as u64))?, mapping })
    }
}
