//! Buffers of a device: of one generation, under one account of bytes.

use std::num::NonZeroU64;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use unfazed_fault::{Class, Generation, Unusable};
use wgpu::{BufferUsages, ErrorFilter};

use super::kernel::{Part, Pipeline};
use super::open::Gpu;
use super::verdict::{Verdict, guarded};
use crate::{DeviceError, Fault};

/// Largest buffer that may also be bound as a uniform.
const UNIFORM: u64 = 64 << 10;

/// Where buffers of a device are made, and how many bytes they have.
#[derive(Clone)]
pub struct Memory {
    gpu: Arc<Gpu>,
    generation: Generation,
    account: Arc<Account>,
}

#[derive(Debug)]
struct Account {
    limit: u64,
    used: AtomicU64,
}

impl Account {
    fn take(&self, bytes: u64) -> Result<(), u64> {
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).map(|_| ())
    }
}

impl Memory {
    /// Memory of a device, at most `limit` bytes of it.
    pub fn new(gpu: Arc<Gpu>, generation: Generation, limit: u64) -> Memory {
        Memory { gpu, generation, account: Arc::new(Account { limit, used: AtomicU64::new(0) }) }
    }

    /// Bytes in buffers.
    pub fn used(&self) -> u64 {
        self.account.used.load(Ordering::Acquire)
    }

    /// Most bytes in buffers.
    pub fn limit(&self) -> u64 {
        self.account.limit
    }

    /// A buffer for something that is uploaded. Its length is rounded up to a multiple of 16 bytes.
    ///
    /// # Errors
    ///
    /// A fault of class `OutOfMemory`, by the account or by the driver; what wgpu refuses.
    pub fn blank(&self, label: &str, bytes: u64) -> Result<Buffer, DeviceError> {
        let bytes = bytes.max(16).next_multiple_of(16);
        if let Err(used) = self.account.take(bytes) {
            let limit = self.account.limit;
            return Err(out_of_memory(label, bytes, &format!("{used} of {limit} bytes are taken")));
        }
        // From here on the buffer's drop returns the bytes.
        let held = Held { account: Arc::clone(&self.account), bytes };
        let uniform = if bytes <= UNIFORM { BufferUsages::UNIFORM } else { BufferUsages::empty() };
        let descriptor = wgpu::BufferDescriptor {
            label: Some(label),
            size: bytes,
            usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST | uniform,
            mapped_at_creation: false,
        };
        let raw = create(&self.gpu, &descriptor)?;
        Ok(Buffer { raw, generation: self.generation, held })
    }

    /// A buffer of zeros that kernels write before they read it, or whose zeros are what is wanted.
    ///
    /// # Errors
    ///
    /// As [`Memory::blank`].
    pub fn scratch(&self, label: &str, bytes: u64) -> Result<Ready<Buffer>, DeviceError> {
        self.blank(label, bytes).map(Ready)
    }

    /// Binds buffers to a kernel's bindings 0, 1, ...
    ///
    /// # Errors
    ///
    /// A buffer is of another generation, or a part is not in its buffer or not aligned as the device wants it.
    pub fn bind(&self, pipeline: &Pipeline, bound: &[Bound<'_>]) -> Result<Group, DeviceError> {
        let mut parts = Vec::with_capacity(bound.len());
        for Bound { buffer, offset, bytes } in bound {
            buffer.check(self.generation)?;
            let end = bytes.map_or(Some(buffer.bytes()), |bytes| offset.checked_add(bytes.get()));
            if end.is_none_or(|end| end > buffer.bytes() || *offset >= end) {
                return Err(DeviceError::Setup(format!(
                    "{}: a binding at {offset} is outside of {} bytes",
                    pipeline.name,
                    buffer.bytes()
                )));
            }
            parts.push(Part { buffer: &buffer.raw, offset: *offset, bytes: *bytes });
        }
        let scope = self.gpu.device.push_error_scope(ErrorFilter::Validation);
        let raw = guarded(|| pipeline.bind(&self.gpu, &parts)).map_err(DeviceError::Setup)?;
        match pollster::block_on(scope.pop()) {
            Some(error) => Err(DeviceError::Setup(format!("{}: {error}", pipeline.name))),
            None => Ok(Group { raw, generation: self.generation }),
        }
    }
}

/// Makes a buffer. What goes wrong is returned, and not told to the device.
pub(super) fn create(
    gpu: &Gpu,
    descriptor: &wgpu::BufferDescriptor<'_>,
) -> Result<wgpu::Buffer, DeviceError> {
    let label = descriptor.label.unwrap_or_default();
    let memory = gpu.device.push_error_scope(ErrorFilter::OutOfMemory);
    let validation = gpu.device.push_error_scope(ErrorFilter::Validation);
    let internal = gpu.device.push_error_scope(ErrorFilter::Internal);
    let raw = guarded(|| gpu.device.create_buffer(descriptor));
    let internal = pollster::block_on(internal.pop());
    let validation = pollster::block_on(validation.pop());
    let memory = pollster::block_on(memory.pop());
    if let Some(error) = memory {
        return Err(out_of_memory(label, descriptor.size, &error.to_string()));
    }
    if let Some(text) = gpu.said.lost() {
        Verdict::of_loss(format!("{label}: {text}")).executed()?;
    }
    match (raw, validation.or(internal)) {
        (Ok(raw), None) => Ok(raw),
        (_, Some(error)) => Err(DeviceError::Setup(format!("{label}: {error}"))),
        (Err(text), None) => Err(DeviceError::Setup(format!("{label}: {text}"))),
    }
}

fn out_of_memory(label: &str, bytes: u64, why: &str) -> DeviceError {
    Fault { class: Class::OutOfMemory, evidence: format!("{label}: no {bytes} bytes: {why}") }.into()
}

/// A buffer of a device, whose content is not yet known to be there: see [`Ready`].
#[derive(Debug)]
pub struct Buffer {
    pub(super) raw: wgpu::Buffer,
    generation: Generation,
    held: Held,
}

/// Bytes of an account.
#[derive(Debug)]
struct Held {
    account: Arc<Account>,
    bytes: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.account.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl Buffer {
    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.held.bytes
    }

    /// The device that it is of.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    pub(super) fn check(&self, now: Generation) -> Result<(), Unusable> {
        of_generation(self.generation, now)
    }

    /// Whether a part of it is inside of it, and of whole words as copies want it.
    pub(super) fn check_part(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes());
        if inside && offset.is_multiple_of(4) && bytes.is_multiple_of(4) {
            return Ok(());
        }
        let whole = self.bytes();
        Err(DeviceError::Setup(format!(
            "{bytes} bytes at {offset} are no words of a buffer of {whole} bytes"
        )))
    }
}

pub(super) fn of_generation(of: Generation, now: Generation) -> Result<(), Unusable> {
    if of == now { Ok(()) } else { Err(Unusable::Stale { of, now }) }
}

/// Something on the device that is there: a receipt said so, or it needs no content. Only this can be bound and read.
#[derive(Debug)]
pub struct Ready<T>(pub(super) T);

impl<T> Deref for Ready<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// A part of a buffer, to be bound.
#[derive(Clone, Copy, Debug)]
pub struct Bound<'b> {
    buffer: &'b Ready<Buffer>,
    offset: u64,
    /// To the buffer's end without it.
    bytes: Option<NonZeroU64>,
}

impl<'b> Bound<'b> {
    /// `bytes` of a buffer from `offset` on, a multiple of 256.
    pub fn part(buffer: &'b Ready<Buffer>, offset: u64, bytes: NonZeroU64) -> Bound<'b> {
        Bound { buffer, offset, bytes: Some(bytes) }
    }
}

impl<'b> From<&'b Ready<Buffer>> for Bound<'b> {
    fn from(buffer: &'b Ready<Buffer>) -> Bound<'b> {
        Bound { buffer, offset: 0, bytes: None }
    }
}

/// A kernel's buffers. Keep it: to make one costs more than to dispatch.
pub struct Group {
    pub(super) raw: wgpu::BindGroup,
    generation: Generation,
}

impl Group {
    pub(super) fn check(&self, now: Generation) -> Result<(), Unusable> {
        of_generation(self.generation, now)
    }
}
