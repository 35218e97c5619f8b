//! A kernel by itself, for tests and measurements.

use std::time::{Duration, Instant};

use wgpu::BufferUsages;

use super::kernel::{Access, Kernel, Part, Pipeline};
use super::open::Gpu;
use crate::DeviceError;

/// What a kernel is run on.
#[derive(Clone, Copy, Debug)]
pub struct Trial<'t> {
    /// What is in its buffers before, in the order of its bindings. Their lengths are multiples of 4.
    pub buffers: &'t [&'t [u8]],
    /// As many bytes as the kernel wants.
    pub immediates: &'t [u8],
    /// Workgroups.
    pub grid: [u32; 3],
}

/// A kernel with buffers of its own, to be run as often as one likes.
pub struct Prepared<'g> {
    gpu: &'g Gpu,
    pipeline: Pipeline,
    /// Taken in turn.
    groups: Vec<wgpu::BindGroup>,
    /// Of the first group.
    buffers: Vec<wgpu::Buffer>,
    immediates: Vec<u8>,
    grid: [u32; 3],
}

impl<'g> Prepared<'g> {
    /// Compiles a kernel and fills its buffers.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::new`].
    pub fn new(gpu: &'g Gpu, kernel: &Kernel, trial: &Trial<'_>) -> Result<Prepared<'g>, DeviceError> {
        Prepared::with_copies(gpu, kernel, trial, 1)
    }

    /// The same with so many copies of the buffers that are only read, of which each run takes the next: so that what is measured
    /// is memory, not a cache. Buffers that are written are shared, so that a run waits for the one before.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::new`].
    pub fn with_copies(
        gpu: &'g Gpu,
        kernel: &Kernel,
        trial: &Trial<'_>,
        copies: usize,
    ) -> Result<Prepared<'g>, DeviceError> {
        let pipeline = Pipeline::new(gpu, kernel)?;
        let filled = |access: Access, bytes: &[u8]| {
            let kind = if access == Access::Uniform { BufferUsages::UNIFORM } else { BufferUsages::STORAGE };
            let buffer = gpu.device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: bytes.len() as u64,
                usage: kind | BufferUsages::COPY_DST | BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            });
            gpu.queue.write_buffer(&buffer, 0, bytes);
            gpu.queue.submit([]);
            buffer
        };
        let all = || kernel.bindings.iter().zip(trial.buffers);
        let buffers: Vec<_> = all().map(|(access, bytes)| filled(*access, bytes)).collect();
        let bound = |buffers: &[wgpu::Buffer]| {
            let parts: Vec<Part<'_>> = buffers.iter().map(Part::from).collect();
            pipeline.bind(gpu, &parts)
        };
        let mut groups = vec![bound(&buffers)];
        for _ in 1..copies {
            let copied = all().zip(&buffers).map(|((access, bytes), first)| match access {
                Access::Write => first.clone(),
                _ => filled(*access, bytes),
            });
            groups.push(bound(&copied.collect::<Vec<_>>()));
        }
        let (immediates, grid) = (trial.immediates.to_vec(), trial.grid);
        Ok(Prepared { gpu, pipeline, groups, buffers, immediates, grid })
    }

    /// Runs it `times` times, one after the other in one submission, and waits for the end. Returns how long that took.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn run(&self, times: usize) -> Result<Duration, DeviceError> {
        let mut encoder = self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            pass.set_pipeline(&self.pipeline.raw);
            if !self.immediates.is_empty() {
                pass.set_immediates(0, &self.immediates);
            }
            for group in self.groups.iter().cycle().take(times) {
                let [x, y, z] = self.grid;
                pass.set_bind_group(0, group, &[]);
                pass.dispatch_workgroups(x, y, z);
            }
        }
        let commands = encoder.finish();
        let begun = Instant::now();
        self.gpu.queue.submit([commands]);
        self.wait()?;
        Ok(begun.elapsed())
    }

    /// What is in a buffer.
    ///
    /// # Errors
    ///
    /// The driver's, or there is no such buffer.
    pub fn read(&self, binding: usize) -> Result<Vec<u8>, DeviceError> {
        let Some(buffer) = self.buffers.get(binding) else { return Err(trouble("no such binding")) };
        let staging = self.gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: buffer.size(),
            usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(buffer, 0, &staging, 0, buffer.size());
        self.gpu.queue.submit([encoder.finish()]);
        staging.map_async(wgpu::MapMode::Read, .., |_| {});
        self.wait()?;
        let mapped = staging.get_mapped_range(..).map_err(|error| trouble(error.to_string()))?;
        Ok(mapped.to_vec())
    }

    fn wait(&self) -> Result<(), DeviceError> {
        self.gpu
            .device
            .poll(wgpu::PollType::wait_indefinitely())
            .map_err(|error| trouble(error.to_string()))?;
        match self.gpu.said.error().or(self.gpu.said.lost()) {
            Some(text) => Err(trouble(text)),
            None => Ok(()),
        }
    }
}

/// Runs a kernel once and returns what is in its buffers afterwards, in the order of its bindings.
///
/// # Errors
///
/// As [`Prepared::new`] and [`Prepared::run`].
pub fn once(gpu: &Gpu, kernel: &Kernel, trial: &Trial<'_>) -> Result<Vec<Vec<u8>>, DeviceError> {
    let prepared = Prepared::new(gpu, kernel, trial)?;
    prepared.run(1)?;
    (0..kernel.bindings.len()).map(|binding| prepared.read(binding)).collect()
}

fn trouble(text: impl Into<String>) -> DeviceError {
    DeviceError::Setup(text.into())
}
