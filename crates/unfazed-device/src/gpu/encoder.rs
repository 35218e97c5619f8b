//! A command buffer while it is written, and the chain of receipts that it goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use wgpu::{BufferUsages, Features};

use super::budget::Load;
use super::kernel::{Part, Pipeline};
use super::kernels::receipt::receipt;
use super::memory::create;
use super::open::Gpu;
use crate::DeviceError;

/// Bytes that come back with each submission: the number, and two time stamps from [`TIMES`] on.
pub(super) const SLIP: u64 = 32;
/// Where the time stamps are.
pub(super) const TIMES: usize = 16;
/// Where wgpu wants resolved queries to begin.
const RESOLVE: u64 = wgpu::QUERY_RESOLVE_BUFFER_ALIGNMENT;
/// Longest immediates.
const IMMEDIATES: usize = 256;

/// Whether a buffer that was asked for is mapped.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrival(Arc<AtomicU8>);

/// What a map request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    NotYet,
    Mapped,
    Failed,
}

impl Arrival {
    /// Asks for the whole buffer. Call it when the submission that uses it is on its way.
    pub(super) fn ask(&self, buffer: &wgpu::Buffer, mode: wgpu::MapMode) {
        self.0.store(0, Ordering::Release);
        let place = Arc::clone(&self.0);
        buffer.map_async(mode, .., move |result| {
            place.store(if result.is_ok() { 1 } else { 2 }, Ordering::Release);
        });
    }

    /// It will not come.
    pub(super) fn fail(&self) {
        self.0.store(2, Ordering::Release);
    }

    pub(super) fn state(&self) -> Arrived {
        match self.0.load(Ordering::Acquire) {
            0 => Arrived::NotYet,
            1 => Arrived::Mapped,
            _ => Arrived::Failed,
        }
    }
}

/// The receipts of a device: see [`receipt`].
pub(super) struct Chain {
    pipeline: Pipeline,
    group: wgpu::BindGroup,
    chain: wgpu::Buffer,
    witness: wgpu::Buffer,
    stamp: wgpu::Buffer,
    clock: Option<Clock>,
}

/// Time stamps of the device, two a slot.
struct Clock {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
}

impl Chain {
    pub(super) fn new(gpu: &Gpu, slots: u32) -> Result<Chain, DeviceError> {
        let pipeline = Pipeline::new(gpu, &receipt())?;
        let word = |label| {
            let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
            create(
                gpu,
                &wgpu::BufferDescriptor { label: Some(label), size: 16, usage, mapped_at_creation: false },
            )
        };
        let (chain, witness, stamp) = (word("chain")?, word("witness")?, word("stamp")?);
        let group = pipeline.bind(gpu, &[Part::from(&chain), Part::from(&witness), Part::from(&stamp)]);
        Ok(Chain { pipeline, group, chain, witness, stamp, clock: Clock::new(gpu, slots)? })
    }

    /// Whether submissions say how long they took.
    pub(super) fn has_clock(&self) -> bool {
        self.clock.is_some()
    }

    /// The host wrote something for the submission that comes next: a receipt of it will look for this stamp.
    pub(super) fn write_stamp(&self, gpu: &Gpu, stamp: u32) {
        gpu.queue.write_buffer(&self.stamp, 0, &stamp.to_le_bytes());
    }
}

impl Clock {
    /// Not on Metal: time stamps may never come there.
    fn new(gpu: &Gpu, slots: u32) -> Result<Option<Clock>, DeviceError> {
        let wanted = Features::TIMESTAMP_QUERY | Features::TIMESTAMP_QUERY_INSIDE_ENCODERS;
        if !gpu.device.features().contains(wanted) || gpu.info.backend.eq_ignore_ascii_case("metal") {
            return Ok(None);
        }
        let queries = gpu.device.create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("times"),
            ty: wgpu::QueryType::Timestamp,
            count: 2 * slots,
        });
        let resolved = create(
            gpu,
            &wgpu::BufferDescriptor {
                label: Some("times"),
                size: RESOLVE * u64::from(slots),
                usage: BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            },
        )?;
        Ok(Some(Clock { queries, resolved }))
    }
}

/// A command buffer that is written.
pub(super) struct Open {
    encoder: wgpu::CommandEncoder,
    /// Before the encoder is used, the pass must have ended.
    pass: Option<wgpu::ComputePass<'static>>,
    slot: u32,
    /// The last number of the chain that was given out.
    number: u32,
    /// Copies since the last pass, of whose command buffer nothing tells yet that it ran.
    unwitnessed: bool,
    /// A receipt is the last that happened, but for copies to the host.
    sealed: bool,
    /// What the host wrote, to be looked for by the next receipt.
    stamp: u32,
    pub(super) load: Load,
    pub(super) reads: Vec<(wgpu::Buffer, Arrival)>,
}

impl Open {
    pub(super) fn new(gpu: &Gpu, chain: &Chain, slot: u32, number: u32, load: Load) -> Open {
        let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        if let Some(clock) = &chain.clock {
            encoder.write_timestamp(&clock.queries, 2 * slot);
        }
        Open {
            encoder,
            pass: None,
            slot,
            number,
            unwitnessed: false,
            sealed: false,
            stamp: 0,
            load,
            reads: Vec::new(),
        }
    }

    pub(super) fn slot(&self) -> u32 {
        self.slot
    }

    /// Nothing was recorded but what the host wrote.
    pub(super) fn untouched(&self) -> bool {
        self.load.is_empty() && self.reads.is_empty()
    }

    pub(super) fn stamped(&mut self, stamp: u32) {
        self.stamp = stamp;
    }

    /// Dispatches `groups` workgroups in x, the first of which is `first`, whose number goes to byte `split` of the immediates.
    pub(super) fn dispatch(
        &mut self,
        chain: &Chain,
        pipeline: &Pipeline,
        group: &wgpu::BindGroup,
        immediates: &[u8],
        split: Option<(u32, u32)>,
        grid: [u32; 3],
    ) {
        let pass = self.pass(chain);
        pass.set_pipeline(&pipeline.raw);
        pass.set_bind_group(0, group, &[]);
        let mut patched = [0_u8; IMMEDIATES];
        let mut all = immediates;
        if let Some((at, first)) = split
            && let Some(place) = patched.get_mut(..immediates.len())
        {
            place.copy_from_slice(immediates);
            if let Some(word) = place.get_mut(at as usize..).and_then(|rest| rest.get_mut(..4)) {
                word.copy_from_slice(&first.to_le_bytes());
            }
            all = place;
        }
        if !all.is_empty() {
            pass.set_immediates(0, all);
        }
        let [x, y, z] = grid;
        pass.dispatch_workgroups(x, y, z);
    }

    /// Copies from one buffer to another.
    pub(super) fn copy(
        &mut self,
        chain: &Chain,
        from: (&wgpu::Buffer, u64),
        to: (&wgpu::Buffer, u64),
        bytes: u64,
    ) {
        self.end_pass(chain);
        self.encoder.copy_buffer_to_buffer(from.0, from.1, to.0, to.1, Some(bytes));
        self.unwitnessed = true;
        self.sealed = false;
    }

    /// Copies to a buffer that the host will map.
    pub(super) fn read(
        &mut self,
        chain: &Chain,
        from: (&wgpu::Buffer, u64),
        to: wgpu::Buffer,
        bytes: u64,
        arrival: Arrival,
    ) {
        self.end_pass(chain);
        self.encoder.copy_buffer_to_buffer(from.0, from.1, &to, 0, Some(bytes));
        self.unwitnessed = true;
        self.reads.push((to, arrival));
    }

    /// Ends with a receipt, of which a copy goes to `slip`. Returns the commands, the number that must be there, and the rest.
    pub(super) fn finish(mut self, chain: &Chain, slip: &wgpu::Buffer) -> Finished {
        self.end_pass(chain);
        if !self.sealed {
            self.pass(chain);
            self.end_pass(chain);
        }
        // What follows is in the same command buffer as copies to the host since the last pass: so the slip is their receipt.
        if let Some(clock) = &chain.clock {
            let (first, offset) = (2 * self.slot, RESOLVE * u64::from(self.slot));
            self.encoder.write_timestamp(&clock.queries, first + 1);
            self.encoder.resolve_query_set(&clock.queries, first..first + 2, &clock.resolved, offset);
            self.encoder.copy_buffer_to_buffer(&clock.resolved, offset, slip, TIMES as u64, Some(16));
        }
        self.encoder.copy_buffer_to_buffer(&chain.chain, 0, slip, 0, Some(4));
        Finished { commands: self.encoder.finish(), number: self.number, load: self.load, reads: self.reads }
    }

    /// The pass that dispatches go to.
    fn pass(&mut self, chain: &Chain) -> &mut wgpu::ComputePass<'static> {
        if self.pass.is_none() && self.unwitnessed {
            self.encoder.copy_buffer_to_buffer(&chain.chain, 0, &chain.witness, 0, Some(4));
        }
        let Open { pass, encoder, .. } = self;
        pass.get_or_insert_with(|| {
            encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default()).forget_lifetime()
        })
    }

    /// Ends the pass, if one is written, with a receipt.
    fn end_pass(&mut self, chain: &Chain) {
        let Some(mut pass) = self.pass.take() else { return };
        self.number = self.number.wrapping_add(1);
        let link = [self.number, u32::from(self.unwitnessed), self.stamp];
        pass.set_pipeline(&chain.pipeline.raw);
        pass.set_bind_group(0, &chain.group, &[]);
        pass.set_immediates(0, bytemuck::cast_slice(&link));
        pass.dispatch_workgroups(1, 1, 1);
        (self.unwitnessed, self.stamp, self.sealed) = (false, 0, true);
    }
}

/// A command buffer that can be submitted.
pub(super) struct Finished {
    pub(super) commands: wgpu::CommandBuffer,
    pub(super) number: u32,
    pub(super) load: Load,
    pub(super) reads: Vec<(wgpu::Buffer, Arrival)>,
}
