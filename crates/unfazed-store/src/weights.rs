//! Packed weights in memory that outlives this process: what an earlier one has loaded is used as it is.

#![allow(unsafe_code)]

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::Arc;

use unfazed_formats::BlockFormat;
use unfazed_wire::memory::{Access, EXTENTS_MAX, Mapping, Segment, WEIGHTS_OFFSET, WeightExtent};

use crate::{Buffer, StoreError};

/// Extents begin on such a boundary: kernels read whole cache lines.
const BOUNDARY: usize = 64;

/// Memory that the front made for the weights of one model. Tensors are placed one behind the other, in the order of
/// loading, which follows from the model's headers.
#[derive(Debug)]
pub struct WeightMemory {
    segment: Segment,
    mapping: Arc<Mapping>,
    sealed: bool,
    /// Where the next extent begins, from [`WEIGHTS_OFFSET`] on.
    next: usize,
    extents: usize,
    kept: u64,
}

/// Where a tensor's packed weights go.
pub(crate) struct Place {
    pub(crate) bytes: Buffer<u8>,
    /// An earlier process has put all of them there.
    pub(crate) whole: bool,
    extent: Option<WeightExtent>,
}

impl Place {
    /// A place that ends with this process.
    pub(crate) fn private(bytes: Buffer<u8>) -> Place {
        Place { bytes, whole: false, extent: None }
    }
}

impl WeightMemory {
    /// Maps the memory. Of all processes only this one may have it to be written.
    pub fn open(segment: Segment) -> io::Result<WeightMemory> {
        let sealed = segment.contents_are_sealed()?;
        let access = if sealed { Access::Read } else { Access::Write };
        let mapping = Arc::new(Mapping::new(&segment, access)?);
        Ok(WeightMemory { segment, mapping, sealed, next: 0, extents: 0, kept: 0 })
    }

    /// The next extent.
    pub(crate) fn place(
        &mut self,
        tensor: &str,
        shape: &str,
        format: BlockFormat,
        len: usize,
    ) -> Result<Place, StoreError> {
        let refused = |reason| StoreError::WeightMemory { tensor: tensor.to_owned(), reason };
        if self.extents >= EXTENTS_MAX {
            return Err(refused(format!("the memory for weights holds at most {EXTENTS_MAX} tensors")));
        }
        let mut hasher = DefaultHasher::new();
        (tensor, shape, format, len).hash(&mut hasher);
        let extent = WeightExtent { number: self.extents, offset: self.next, len, identity: hasher.finish() };
        let whole = extent.is_marked(&self.mapping);
        if self.sealed && !whole {
            return Err(refused("the memory for weights is sealed and does not hold it".to_owned()));
        }
        let start = extent.offset.saturating_add(WEIGHTS_OFFSET);
        // SAFETY: extents do not overlap each other or the marks, and the front gives the memory to one process at a
        // time unless it is sealed. A sealed one is only read: it is whole, and a place that is whole is not written.
        let Some(bytes) = (unsafe { Buffer::shared(&self.mapping, start, len) }) else {
            let have = self.mapping.len().saturating_sub(WEIGHTS_OFFSET);
            return Err(refused(format!(
                "{len} bytes at {} do not fit into the {have} bytes for weights",
                extent.offset
            )));
        };
        self.extents += 1;
        // Cannot overflow: the extent's end is inside the mapping.
        self.next = (extent.offset + len).next_multiple_of(BOUNDARY);
        self.kept += if whole { len as u64 } else { 0 };
        Ok(Place { bytes, whole, extent: Some(extent) })
    }

    /// All of a place was written.
    pub(crate) fn settle(&self, place: Place) -> Buffer<u8> {
        if let Some(extent) = place.extent {
            // There is a mark for every extent that was placed, and what is written is not sealed.
            let marked = extent.set_mark(&self.mapping);
            debug_assert!(marked, "{extent:?} has no mark");
            let start = extent.offset.saturating_add(WEIGHTS_OFFSET);
            // SAFETY: it was written, and is only read from now on: by a `PackedStack`, or by nobody.
            let done = unsafe {
                self.mapping.part_read_only(&self.segment, start..start.saturating_add(extent.len))
            };
            if let Err(error) = done {
                tracing::debug!(%error, "a part of the weights' memory stays writable until all is loaded");
            }
        }
        place.bytes
    }

    /// Makes the memory read-only for everybody, for good.
    pub(crate) fn seal(&mut self) -> Result<(), StoreError> {
        if self.sealed {
            return Ok(());
        }
        let failed = |error: io::Error| StoreError::WeightMemory {
            tensor: "weights".to_owned(),
            reason: format!("their memory cannot be sealed: {error}"),
        };
        // SAFETY: buffers that were handed out are in `PackedStack`s, which only read, and vectors are copies.
        unsafe { self.mapping.read_only(&self.segment) }.map_err(failed)?;
        self.segment.seal_contents().map_err(failed)?;
        self.sealed = true;
        Ok(())
    }

    /// Bytes that were there already.
    pub fn bytes_kept(&self) -> u64 {
        self.kept
    }

    /// The mapping, to have it gathered into huge pages, and the bytes of it that are used.
    pub fn mapping(&self) -> (Arc<Mapping>, usize) {
        (Arc::clone(&self.mapping), self.next.saturating_add(WEIGHTS_OFFSET).min(self.mapping.len()))
    }
}
