//! Keys and values on a GPU, on their way to the pages in shared memory and back.

use super::GpuDevice;
use crate::gpu::memory::{Buffer, Ready};
use crate::gpu::queue::Queue;
use crate::gpu::readback::Readback;
use crate::{DeviceError, PageId, PageSpan};

/// Pages that are on their way to the host.
pub(super) struct Snapshot {
    /// Each page, and how many of its positions are there.
    pages: Vec<(PageId, usize)>,
    /// For each layer here, runs of pages that follow each other: the first and how many, and their bytes.
    reads: Vec<(usize, PageId, usize, Readback)>,
}

impl GpuDevice {
    /// Whether keys and values of any layer are here.
    pub fn keeps_pages(&self) -> bool {
        !self.layers.is_empty()
    }

    /// Records copies of pages, as they are after what was recorded before, to be collected when that was executed.
    ///
    /// # Errors
    ///
    /// As for a step.
    pub fn snapshot(&mut self, spans: &[PageSpan]) -> Result<(), DeviceError> {
        if spans.is_empty() || self.layers.is_empty() {
            return Ok(());
        }
        let mut pages: Vec<(PageId, usize)> = spans.iter().map(|span| (span.page, span.slots.end)).collect();
        pages.sort_unstable();
        let bytes = self.page_bytes;
        let live = self.live.as_mut().ok_or_else(super::gone)?;
        let mut reads = Vec::new();
        for run in pages.chunk_by(|(a, _), (b, _)| a.0 + 1 == b.0) {
            let Some((first, _)) = run.first() else { continue };
            for (index, buffer) in live.kv.iter().enumerate() {
                let read = read(&mut live.queue, buffer, *first, run.len(), bytes);
                reads.push((index, *first, run.len(), read));
            }
        }
        self.snapshots.push_back(Snapshot { pages, reads });
        Ok(())
    }

    /// Takes in the pages of submissions that were executed; `place` is where a layer of a page belongs. Returns the pages, and how
    /// many of their positions have come.
    ///
    /// # Errors
    ///
    /// As for a step.
    pub fn collect_pages(
        &mut self,
        place: &mut dyn FnMut(usize, PageId, &[u8]),
    ) -> Result<Vec<(PageId, usize)>, DeviceError> {
        let deadline = self.deadline();
        let live = self.live.as_mut().ok_or_else(super::gone)?;
        let mut came = Vec::new();
        // The last one is of the step in progress.
        while self.snapshots.front().is_some_and(|snapshot| snapshot.is_done(&mut live.queue)) {
            let Some(Snapshot { pages, reads }) = self.snapshots.pop_front() else { break };
            for (index, first, count, read) in reads {
                let Some(layer) = self.layers.get(index) else { continue };
                live.queue.collect(read, deadline, |bytes| {
                    for (number, bytes) in (first.0..).zip(bytes.chunks_exact(self.page_bytes)).take(count) {
                        place(*layer, PageId(number), bytes);
                    }
                })?;
            }
            came.extend(pages);
        }
        Ok(came)
    }

    /// Brings pages from shared memory back; `bytes` gives a layer's share of a page.
    ///
    /// # Errors
    ///
    /// As for a step.
    pub fn restore_pages<'p>(
        &mut self,
        pages: &[PageId],
        bytes: &dyn Fn(usize, PageId) -> &'p [u8],
    ) -> Result<(), DeviceError> {
        let deadline = self.deadline();
        let live = self.live.as_mut().ok_or_else(super::gone)?;
        let mut last = None;
        for (layer, buffer) in self.layers.iter().zip(&live.kv) {
            for page in pages {
                let offset = u64::from(page.0) * self.page_bytes as u64;
                let source = bytes(*layer, *page);
                last = Some(live.uploader.place(&mut live.queue, buffer, offset, source, ())?);
            }
        }
        if let Some(pending) = last {
            pending.ready(&mut live.queue, deadline)?;
        }
        Ok(())
    }
}

impl Snapshot {
    /// Whether all of it can be collected without waiting.
    fn is_done(&self, queue: &mut Queue) -> bool {
        self.reads.last().is_none_or(|(.., read)| queue.has_read(read))
    }
}

fn read(queue: &mut Queue, buffer: &Ready<Buffer>, first: PageId, count: usize, bytes: usize) -> Readback {
    queue.read(buffer, u64::from(first.0) * bytes as u64, (count * bytes) as u64)
}
