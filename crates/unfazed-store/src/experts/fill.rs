//! Filling a slot: three reads at a time, each checked by its hash, then packed.

use twox_hash::XxHash3_64;
use unfazed_formats::Extent;
use unfazed_wire::memory::SlotRecord;

use super::Unit;
use super::slots::digest;
use super::source::UnitLayout;
use super::state::{Fill, Stream};
use super::store::{Shared, identity};
use crate::{Buffer, ReadBuffer, StoreError};

impl Shared {
    /// Fills a slot, and tells those who wait.
    pub(super) fn fill(&self, mut fill: Fill) {
        self.records.clear(fill.slot);
        match self.read_unit(fill.unit, &mut fill.buffer) {
            Ok(layout) => {
                let digest = digest(fill.buffer.get(..layout.bytes()).unwrap_or_default());
                let identity = identity(&self.sources, self.files, fill.unit);
                self.records.write(fill.slot, SlotRecord { identity, generation: fill.generation, digest });
                self.lock().settle(fill, digest);
            }
            Err(error) => self.lock().give_up(fill, error),
        }
        self.changed.notify_all();
    }

    /// Reads an expert past the slots, and hands it to the prompt that waits for it.
    pub(super) fn stream(&self, job: Stream) {
        let Stream { unit, mut buffer, done, .. } = job;
        let read = self.read_unit(unit, &mut buffer).map(drop);
        {
            let mut state = self.lock();
            state.busy = state.busy.saturating_sub(1);
            state.counts.streamed += 1;
        }
        // The prompt may have ended.
        let _ = done.send((unit, buffer, read));
    }

    /// Reads and packs an expert.
    fn read_unit(&self, unit: Unit, slot: &mut Buffer<u8>) -> Result<UnitLayout, StoreError> {
        let id = self.sources.units().id(unit);
        let missing = || StoreError::Experts { reason: format!("there is no {id}") };
        let (extents, layout) = self.sources.extents(id).zip(self.sources.layout(id)).ok_or_else(missing)?;
        let reads = extents.map(|(name, extent)| {
            let read = self.reader.begin(&name, extent);
            (name, extent, read)
        });
        for (number, (name, extent, read)) in reads.into_iter().enumerate() {
            let rows = self.checked(unit, number, &name, extent, read.wait()?)?;
            layout.pack(number, &rows, slot).ok_or_else(missing)?;
        }
        Ok(layout)
    }

    /// Compares what was read with the hash of what was read before. Bytes that differ are read once more: they may have
    /// been damaged on their way.
    fn checked(
        &self,
        unit: Unit,
        part: usize,
        name: &str,
        extent: Extent,
        rows: ReadBuffer,
    ) -> Result<ReadBuffer, StoreError> {
        let check = |rows: &[u8]| {
            let hash = XxHash3_64::oneshot(rows);
            let checked = self.lock().profile.check(unit, part, hash);
            checked.map_err(|expected| (expected, hash))
        };
        let Err((expected, found)) = check(&rows) else { return Ok(rows) };
        let file = self.reader.file_name(extent.file);
        tracing::warn!(
            file,
            tensor = name,
            offset = extent.offset,
            "what was read has another hash than before ({found:016x}, not {expected:016x}): reading it again"
        );
        let again = self.reader.begin(name, extent).wait()?;
        let Err((expected, found)) = check(&again) else { return Ok(again) };
        let Extent { offset, len, .. } = extent;
        Err(StoreError::Damaged { file, tensor: name.to_owned(), offset, len, expected, found })
    }
}
