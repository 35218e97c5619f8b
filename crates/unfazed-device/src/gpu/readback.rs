//! Results to the host: copied to buffers that the host maps, in the submission that computed them.

use std::time::Instant;

use unfazed_fault::Generation;
use wgpu::BufferUsages;

use super::encoder::{Arrival, Arrived};
use super::memory::{Buffer, Ready, create, of_generation};
use super::queue::{Queue, Ticket};
use super::verdict::Verdict;
use crate::DeviceError;

/// Smallest buffer.
const LEAST: u64 = 4 << 10;
/// Most bytes that are kept for later reads.
const KEPT: u64 = 256 << 20;

/// Buffers for reads, used again and again. Their sizes are powers of two.
#[derive(Default)]
pub(super) struct Pool {
    free: Vec<wgpu::Buffer>,
    kept: u64,
}

impl Pool {
    fn take(&mut self, size: u64) -> Option<wgpu::Buffer> {
        let at = self.free.iter().position(|buffer| buffer.size() == size)?;
        self.kept -= size;
        Some(self.free.swap_remove(at))
    }

    fn give(&mut self, buffer: wgpu::Buffer) {
        if self.kept + buffer.size() <= KEPT {
            self.kept += buffer.size();
            self.free.push(buffer);
        }
    }
}

/// What was asked to be read. It may be collected long after the submission.
#[derive(Debug)]
#[must_use]
pub struct Readback {
    buffer: Option<wgpu::Buffer>,
    bytes: u64,
    sequence: u64,
    generation: Generation,
    arrival: Arrival,
}

impl Queue {
    /// Records a read of `bytes` from `offset` on (multiples of 4), as they are after what was recorded before.
    pub fn read(&mut self, from: &Ready<Buffer>, offset: u64, bytes: u64) -> Readback {
        let fits = from.check(self.generation).map_err(DeviceError::from);
        if let Err(error) = fits.and_then(|()| from.check_part(offset, bytes)) {
            self.keep(error);
        }
        let mut nothing = Readback {
            buffer: None,
            bytes,
            sequence: u64::MAX,
            generation: self.generation,
            arrival: Arrival::default(),
        };
        if self.closed() || bytes == 0 {
            return nothing;
        }
        let size = bytes.next_power_of_two().max(LEAST);
        let buffer = match self.pool.take(size) {
            Some(buffer) => buffer,
            None => {
                let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
                let label = Some("read");
                let descriptor = wgpu::BufferDescriptor { label, size, usage, mapped_at_creation: false };
                match create(&self.gpu, &descriptor) {
                    Ok(buffer) => buffer,
                    Err(error) => {
                        self.keep(error);
                        return nothing;
                    }
                }
            }
        };
        let (sequence, arrival) = self.read_raw((&from.raw, offset), &buffer, bytes);
        nothing.buffer = Some(buffer);
        (nothing.sequence, nothing.arrival) = (sequence, arrival);
        nothing
    }

    /// Whether the submission of a read was executed, as far as is known without waiting.
    pub fn has_read(&mut self, read: &Readback) -> bool {
        self.is_done(Ticket { sequence: read.sequence, generation: read.generation })
    }

    /// Waits for the submission of a read and hands over what was read. Nothing is seen of a submission that was not executed.
    ///
    /// # Errors
    ///
    /// The fault that the submission had; the read is of another generation, or was never submitted.
    pub fn collect<T>(
        &mut self,
        read: Readback,
        deadline: Instant,
        what: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, DeviceError> {
        of_generation(read.generation, self.generation)?;
        if read.bytes == 0 {
            return Ok(what(&[]));
        }
        let not_recorded = || DeviceError::Batch("a read was not recorded".to_owned());
        if !self.has_sent(read.sequence) {
            self.submit()?;
        }
        let Some(buffer) = read.buffer.filter(|_| self.has_sent(read.sequence)) else {
            return Err(not_recorded());
        };
        self.await_sequence(read.sequence, deadline).executed()?;
        while read.arrival.state() == Arrived::NotYet {
            // The mapping follows the receipt's at once.
            self.look();
            if let Some(fault) = self.fault() {
                fault.executed()?;
            }
            if Instant::now() >= deadline {
                self.latch(Verdict::Hung("a read was done and is not mapped".to_owned()));
            }
        }
        if read.arrival.state() == Arrived::Failed {
            self.look();
            return Err(self
                .fault()
                .and_then(|fault| fault.executed().err())
                .map_or_else(not_recorded, Into::into));
        }
        let value = {
            let view = buffer.get_mapped_range(..read.bytes);
            let view = view.map_err(|error| DeviceError::from(lost(&error.to_string())))?;
            what(&view)
        };
        buffer.unmap();
        self.pool.give(buffer);
        Ok(value)
    }
}

fn lost(text: &str) -> crate::Fault {
    crate::Fault {
        class: unfazed_fault::Class::DeviceLost,
        evidence: format!("a read cannot be mapped: {text}"),
    }
}
