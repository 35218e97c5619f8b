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
    group: wgpu::BindGroup,
    buffers: Vec<(Access, wgpu::Buffer)>,
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
        let pipeline = Pipeline::new(gpu, kernel)?;
        let filled = |(access, bytes): (&Access, &&[u8])| {
            let kind = if *access == Access::Uniform { BufferUsages::UNIFORM } else { BufferUsages::STORAGE };
            let buffer = gpu.device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: bytes.len() as u64,
                usage: kind | BufferUsages::COPY_DST | BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            });
            gpu.queue.write_buffer(&buffer, 0, bytes);
            gpu.queue.submit([]);
            (*access, buffer)
        };
        let buffers: Vec<_> = kernel.bindings.iter().zip(trial.buffers).map(filled).collect();
        let parts: Vec<Part<'_>> = buffers.iter().map(|(_, buffer)| Part::from(buffer)).collect();
        let group = pipeline.bind(gpu, &parts);
        let (immediates, grid) = (trial.immediates.to_vec(), trial.grid);
        Ok(Prepared { gpu, pipeline, group, buffers, immediates, grid })
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
            pass.set_bind_group(0, &self.group, &[]);
            if !self.immediates.is_empty() {
                pass.set_immediates(0, &self.immediates);
            }
            for _ in 0..times {
                let [x, y, z] = self.grid;
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
        let Some((_, buffer)) = self.buffers.get(binding) else { return Err(trouble("no such binding")) };
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
