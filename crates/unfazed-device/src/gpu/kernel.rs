//! A kernel's text and what it binds, and the pipeline that it becomes.

#![allow(unsafe_code)]

use std::num::NonZeroU64;

use super::open::Gpu;
use crate::DeviceError;

/// How a kernel uses a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `var<storage, read>`
    Read,
    /// `var<storage, read_write>`
    Write,
    /// `var<uniform>`
    Uniform,
}

/// A kernel: WGSL with an entry point `main`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Which kernel, of which format and shape: what its cost is remembered by.
    pub name: String,
    /// Its text.
    pub source: String,
    /// Bindings 0, 1, ... of group 0.
    pub bindings: Vec<Access>,
    /// Bytes of its `var<immediate>`, a multiple of 4; 0 if it has none.
    pub immediates: u32,
}

/// A kernel that a device can run.
pub struct Pipeline {
    pub(super) name: String,
    pub(super) raw: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
}

impl Pipeline {
    /// Compiles a kernel. Its text must be ours: reads and writes are not checked against the buffers' ends.
    ///
    /// # Errors
    ///
    /// What the compiler says: a fault of ours, or of the driver.
    pub fn new(gpu: &Gpu, kernel: &Kernel) -> Result<Pipeline, DeviceError> {
        let Kernel { name, source, bindings, immediates } = kernel;
        let scope = gpu.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let source = wgpu::ShaderModuleDescriptor {
            label: Some(name),
            source: wgpu::ShaderSource::Wgsl(source.as_str().into()),
        };
        // SAFETY: kernels keep within their buffers by the shapes that they were made for and that whoever dispatches them
        // checks; their loops end.
        let module = unsafe {
            gpu.device.create_shader_module_trusted(source, wgpu::ShaderRuntimeChecks::unchecked())
        };
        let entries: Vec<_> =
            (0u32..).zip(bindings).map(|(binding, access)| entry(binding, *access)).collect();
        let layout = gpu.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some(name),
            entries: &entries,
        });
        let all = gpu.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(name),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: *immediates,
        });
        let compilation_options = wgpu::PipelineCompilationOptions {
            zero_initialize_workgroup_memory: false,
            ..Default::default()
        };
        let raw = gpu.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(name),
            layout: Some(&all),
            module: &module,
            entry_point: Some("main"),
            compilation_options,
            cache: None,
        });
        match pollster::block_on(scope.pop()) {
            Some(error) => Err(DeviceError::Setup(format!("kernel {name}: {error}"))),
            None => Ok(Pipeline { name: name.clone(), raw, layout }),
        }
    }

    /// Buffers, and where each begins, for bindings 0, 1, ...
    pub(super) fn bind(&self, gpu: &Gpu, buffers: &[Part<'_>]) -> wgpu::BindGroup {
        let entries: Vec<_> = (0u32..)
            .zip(buffers)
            .map(|(binding, Part { buffer, offset, bytes })| wgpu::BindGroupEntry {
                binding,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer,
                    offset: *offset,
                    size: *bytes,
                }),
            })
            .collect();
        gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(&self.name),
            layout: &self.layout,
            entries: &entries,
        })
    }
}

/// A part of a buffer.
#[derive(Clone, Copy)]
pub(super) struct Part<'b> {
    pub(super) buffer: &'b wgpu::Buffer,
    pub(super) offset: u64,
    /// To the buffer's end without it.
    pub(super) bytes: Option<NonZeroU64>,
}

impl<'b> From<&'b wgpu::Buffer> for Part<'b> {
    fn from(buffer: &'b wgpu::Buffer) -> Part<'b> {
        Part { buffer, offset: 0, bytes: None }
    }
}

fn entry(binding: u32, access: Access) -> wgpu::BindGroupLayoutEntry {
    let ty = match access {
        Access::Read => wgpu::BufferBindingType::Storage { read_only: true },
        Access::Write => wgpu::BufferBindingType::Storage { read_only: false },
        Access::Uniform => wgpu::BufferBindingType::Uniform,
    };
    wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
        count: None,
    }
}
