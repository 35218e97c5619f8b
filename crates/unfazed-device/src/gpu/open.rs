//! A device of an adapter: what it can do, and what its driver says of faults.

#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use wgpu::Features;

use super::adapter::{AdapterInfo, describe};
use super::verdict::guarded;
use crate::DeviceError;

/// What kernels may use on an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Additions and exchanges inside a subgroup, of as many threads.
    pub subgroup: Option<u32>,
    /// Numbers of 16 bits.
    pub half: bool,
    /// Dot products of four int8 are one instruction: everywhere but on Metal, which has none.
    pub packed_dot: bool,
    /// Products of tiles of f16, with sums in f32: rows, columns and depth of a tile.
    pub cooperative: Vec<[u32; 3]>,
    /// Bytes of the largest binding.
    pub binding_bytes: u64,
    /// Bytes of the largest buffer.
    pub buffer_bytes: u64,
    /// Bytes that a workgroup may share.
    pub shared_bytes: u32,
    /// Most threads of a workgroup.
    pub workgroup_threads: u32,
    /// Most workgroups in a direction of a dispatch.
    pub workgroups: u32,
}

/// What the driver said, if it said something. The first word of each kind stays.
#[derive(Debug, Default)]
pub struct Said {
    lost: Mutex<Option<String>>,
    error: Mutex<Option<String>>,
}

impl Said {
    /// The device is lost; in the driver's words.
    pub fn lost(&self) -> Option<String> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Something was refused; in wgpu's words.
    pub fn error(&self) -> Option<String> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn keep(place: &Mutex<Option<String>>, text: String) {
        place.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(text);
    }
}

/// An open device.
pub struct Gpu {
    pub(super) device: wgpu::Device,
    pub(super) queue: ManuallyDrop<wgpu::Queue>,
    hung: AtomicBool,
    /// Which GPU.
    pub info: AdapterInfo,
    /// What its kernels may use.
    pub abilities: Abilities,
    /// What its driver said.
    pub said: Arc<Said>,
}

impl Gpu {
    /// Opens a device of an adapter.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn open(adapter: &wgpu::Adapter) -> Result<Gpu, DeviceError> {
        let descriptor = descriptor(adapter);
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor))
            .map_err(|error| DeviceError::Setup(format!("{}: {error}", adapter.get_info().name)))?;
        Ok(Gpu::of(adapter, device, queue))
    }

    /// A device that was made in another way, such as with a driver whose faults are arranged.
    pub fn of(adapter: &wgpu::Adapter, device: wgpu::Device, queue: wgpu::Queue) -> Gpu {
        let said = Arc::new(Said::default());
        let (lost, refused) = (Arc::clone(&said), Arc::clone(&said));
        device.set_device_lost_callback(move |reason, text| {
            Said::keep(&lost.lost, format!("{reason:?}: {text}"))
        });
        device.on_uncaptured_error(Arc::new(move |error| Said::keep(&refused.error, error.to_string())));
        let abilities = abilities(adapter, &device);
        let (queue, hung) = (ManuallyDrop::new(queue), AtomicBool::new(false));
        Gpu { info: describe(adapter), abilities, device, queue, hung, said }
    }

    /// Its work does not end: what wgpu keeps of it is leaked, since dropping it would wait for that work.
    pub fn give_up(&self) {
        self.hung.store(true, Ordering::Release);
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if !self.hung.load(Ordering::Acquire) {
            // SAFETY: the queue is not used after its owner's drop. A panic of wgpu over a device that it lost stays here.
            let _ = guarded(|| unsafe { ManuallyDrop::drop(&mut self.queue) });
        }
    }
}

/// What is asked of an adapter: all that it has of what kernels use, and its limits.
pub fn descriptor(adapter: &wgpu::Adapter) -> wgpu::DeviceDescriptor<'static> {
    let wanted = Features::SUBGROUP
        | Features::SUBGROUP_BARRIER
        | Features::SHADER_F16
        | Features::IMMEDIATES
        | Features::EXPERIMENTAL_COOPERATIVE_MATRIX
        | Features::TIMESTAMP_QUERY
        | Features::TIMESTAMP_QUERY_INSIDE_ENCODERS
        | Features::TIMESTAMP_QUERY_INSIDE_PASSES
        | Features::PIPELINE_CACHE;
    let features = adapter.features() & wanted;
    let experimental = if features.contains(Features::EXPERIMENTAL_COOPERATIVE_MATRIX) {
        // SAFETY: kernels with cooperative matrices are ours alone, and are compared with a reference on each adapter that
        // tests run on.
        unsafe { wgpu::ExperimentalFeatures::enabled() }
    } else {
        wgpu::ExperimentalFeatures::disabled()
    };
    wgpu::DeviceDescriptor {
        label: Some("unfazed"),
        required_features: features,
        required_limits: adapter.limits(),
        experimental_features: experimental,
        memory_hints: wgpu::MemoryHints::Performance,
        trace: wgpu::Trace::Off,
    }
}

fn abilities(adapter: &wgpu::Adapter, device: &wgpu::Device) -> Abilities {
    let (features, limits, info) = (device.features(), device.limits(), adapter.get_info());
    let uniform = info.subgroup_min_size == info.subgroup_max_size;
    Abilities {
        subgroup: (features.contains(Features::SUBGROUP) && uniform).then_some(info.subgroup_min_size),
        half: features.contains(Features::SHADER_F16),
        packed_dot: info.backend != wgpu::Backend::Metal,
        cooperative: cooperative(adapter, features),
        binding_bytes: limits.max_storage_buffer_binding_size,
        buffer_bytes: limits.max_buffer_size,
        shared_bytes: limits.max_compute_workgroup_storage_size,
        workgroup_threads: limits.max_compute_invocations_per_workgroup,
        workgroups: limits.max_compute_workgroups_per_dimension,
    }
}

fn cooperative(adapter: &wgpu::Adapter, features: Features) -> Vec<[u32; 3]> {
    use wgpu::CooperativeScalarType::{F16, F32};
    if !features.contains(Features::EXPERIMENTAL_COOPERATIVE_MATRIX) {
        return Vec::new();
    }
    let all = adapter.cooperative_matrix_properties();
    all.iter()
        .filter(|shape| shape.ab_type == F16 && shape.cr_type == F32)
        .map(|shape| [shape.m_size, shape.n_size, shape.k_size])
        .collect()
}
