//! From the host to the device, in pieces, each with a receipt.

#![allow(unsafe_code)]

use std::ops::Range;
use std::time::Instant;

use unfazed_fault::Generation;
use wgpu::{BufferUsages, MapMode};

use super::encoder::{Arrival, Arrived};
use super::memory::{Buffer, Ready, create};
use super::queue::{Queue, Ticket};
use super::verdict::Verdict;
use crate::DeviceError;

/// Bytes of a piece: larger ones are slower.
const PIECE: u64 = 16 << 20;
/// Pieces: three on their way and one that is filled.
const PIECES: usize = 4;
/// Fewest bytes that a thread is worth.
const SHARE: usize = 1 << 20;

/// Something on the device that is not known to have arrived.
#[derive(Debug)]
#[must_use]
pub struct Pending<T> {
    value: T,
    ticket: Ticket,
}

impl<T> Pending<T> {
    /// The submission that carries its last piece.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Waits for its receipt: after it, the content can be read.
    ///
    /// # Errors
    ///
    /// The fault that the upload had.
    pub fn ready(self, queue: &mut Queue, deadline: Instant) -> Result<Ready<T>, DeviceError> {
        queue.verdict(self.ticket, deadline).executed()?;
        Ok(Ready(self.value))
    }
}

/// Buffers through which uploads go, on one device.
pub struct Uploader {
    generation: Generation,
    stages: Vec<Stage>,
    threads: usize,
    patience: std::time::Duration,
}

struct Stage {
    buffer: wgpu::Buffer,
    /// The submission that reads it. Without one it is mapped and free.
    asked: Option<Arrival>,
}

impl Uploader {
    /// Makes its buffers, 64 MiB. `threads` copy into them at a time. `patience` is how long a piece may take.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn new(
        queue: &Queue,
        threads: usize,
        patience: std::time::Duration,
    ) -> Result<Uploader, DeviceError> {
        let stage = |_| {
            let descriptor = wgpu::BufferDescriptor {
                label: Some("upload"),
                size: PIECE,
                usage: BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC,
                mapped_at_creation: true,
            };
            Ok(Stage { buffer: create(&queue.gpu, &descriptor)?, asked: None })
        };
        let stages = (0..PIECES).map(stage).collect::<Result<Vec<_>, DeviceError>>()?;
        Ok(Uploader { generation: queue.generation, stages, threads: threads.max(1), patience })
    }

    /// Fills a new buffer from its beginning. What is not covered is zero.
    ///
    /// # Errors
    ///
    /// As [`Uploader::place`].
    pub fn fill(
        &mut self,
        queue: &mut Queue,
        target: Buffer,
        source: &[u8],
    ) -> Result<Pending<Buffer>, DeviceError> {
        self.fill_parts(queue, target, &[(0, source)])
    }

    /// Fills parts of a new buffer: where each begins (a multiple of 4), and its bytes.
    ///
    /// # Errors
    ///
    /// As [`Uploader::place`].
    pub fn fill_parts(
        &mut self,
        queue: &mut Queue,
        target: Buffer,
        parts: &[(u64, &[u8])],
    ) -> Result<Pending<Buffer>, DeviceError> {
        for (offset, source) in parts {
            self.send(queue, &target, *offset, source)?;
        }
        let ticket = queue.submit()?;
        Ok(Pending { value: target, ticket })
    }

    /// Puts bytes into a part of a buffer that is in use. What is recorded and submitted before still sees what was there.
    /// `value` stands for the part: it becomes [`Ready`] with the receipt.
    ///
    /// # Errors
    ///
    /// The fault that ended the queue; the buffer is of another generation; the part is not inside of it.
    pub fn place<T>(
        &mut self,
        queue: &mut Queue,
        target: &Ready<Buffer>,
        offset: u64,
        source: &[u8],
        value: T,
    ) -> Result<Pending<T>, DeviceError> {
        self.send(queue, target, offset, source)?;
        let ticket = queue.submit()?;
        Ok(Pending { value, ticket })
    }

    fn send(
        &mut self,
        queue: &mut Queue,
        target: &Buffer,
        offset: u64,
        source: &[u8],
    ) -> Result<(), DeviceError> {
        target.check(queue.generation)?;
        super::memory::of_generation(self.generation, queue.generation)?;
        let whole = (source.len() as u64).next_multiple_of(4);
        target.check_part(offset, whole)?;
        let mut at = offset;
        for piece in source.chunks(PIECE as usize) {
            let (threads, index) = (self.threads, self.free(queue)?);
            let Some(stage) = self.stages.get_mut(index) else { continue };
            copy_in(&stage.buffer, piece, threads)?;
            stage.buffer.unmap();
            let bytes = (piece.len() as u64).next_multiple_of(4);
            queue.copy_raw((&stage.buffer, 0), (&target.raw, at), bytes);
            let sent = queue.submit();
            let arrival = Arrival::default();
            arrival.ask(&stage.buffer, MapMode::Write);
            stage.asked = Some(arrival);
            sent?;
            at += bytes;
        }
        Ok(())
    }

    /// A stage that is mapped.
    fn free(&mut self, queue: &mut Queue) -> Result<usize, DeviceError> {
        let deadline = Instant::now() + self.patience;
        loop {
            let free = |stage: &Stage| match &stage.asked {
                None => true,
                Some(arrival) => arrival.state() == Arrived::Mapped,
            };
            if let Some(index) = self.stages.iter().position(free) {
                return Ok(index);
            }
            if let Some(fault) = queue.fault() {
                fault.executed()?;
            }
            if Instant::now() >= deadline {
                queue.latch(Verdict::Hung("no upload is done".to_owned()));
            }
            queue.wait_for_one(deadline);
        }
    }
}

/// A part of a mapped buffer, for another thread.
struct Sent<'m>(wgpu::WriteOnly<'m, [u8]>);

// SAFETY: it is an exclusive borrow of bytes, which any thread may write.
unsafe impl Send for Sent<'_> {}

impl Sent<'_> {
    fn fill(&mut self, source: &[u8]) {
        self.0.copy_from_slice(source);
    }
}

/// Copies to a mapped buffer, with several threads.
fn copy_in(buffer: &wgpu::Buffer, source: &[u8], threads: usize) -> Result<(), DeviceError> {
    let words = source.len().next_multiple_of(4);
    let range: Range<u64> = 0..words as u64;
    let mut view = buffer
        .get_mapped_range_mut(range)
        .map_err(|error| DeviceError::Setup(format!("a buffer for uploads is not mapped: {error}")))?;
    let share = source.len().div_ceil(threads).max(SHARE);
    let mut rest = view.slice(..source.len());
    std::thread::scope(|scope| {
        let mut parts = source.chunks(share).peekable();
        while let Some(part) = parts.next() {
            let (mut here, after) = rest.split_at(part.len());
            rest = after;
            if parts.peek().is_none() {
                here.copy_from_slice(part);
            } else {
                let mut here = Sent(here);
                scope.spawn(move || here.fill(part));
            }
        }
    });
    Ok(())
}
