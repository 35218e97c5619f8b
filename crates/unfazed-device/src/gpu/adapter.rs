//! The GPUs of this machine, and which of them is meant.

use serde::{Deserialize, Serialize};
use wgpu::{Backends, DeviceType};

use super::heaps::heaps;
use crate::DeviceError;

/// A GPU, as its driver describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterInfo {
    /// Its name.
    pub name: String,
    /// The driver, and its version.
    pub driver: String,
    /// What it is reached through: `Vulkan` or `Metal`.
    pub backend: String,
    /// A processor that acts as a GPU (Mesa's lavapipe).
    pub software: bool,
    /// Its memory is the processor's.
    pub unified: bool,
    /// Bytes of its memory; `None` where its driver does not tell.
    pub memory: Option<u64>,
    /// Bytes of that which are free now; `None` where its driver does not tell.
    pub free: Option<u64>,
}

/// The GPUs that can be computed on: real ones first, separate before integrated.
pub struct Adapters {
    all: Vec<wgpu::Adapter>,
}

impl Adapters {
    /// Asks the drivers.
    pub fn find() -> Adapters {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = Backends::PRIMARY;
        let instance = wgpu::Instance::new(descriptor);
        let mut all = pollster::block_on(instance.enumerate_adapters(Backends::PRIMARY));
        all.sort_by_key(|adapter| match adapter.get_info().device_type {
            DeviceType::DiscreteGpu => 0,
            DeviceType::IntegratedGpu => 1,
            DeviceType::VirtualGpu => 2,
            _ => 3,
        });
        Adapters { all }
    }

    /// What they are, in order.
    pub fn describe(&self) -> Vec<AdapterInfo> {
        self.all.iter().map(describe).collect()
    }

    /// The one that `wanted` means: a number from 0 in their order, or a part of a name in any case. Without it the first one
    /// that is no processor.
    ///
    /// # Errors
    ///
    /// There is none of this kind; the text names those that there are.
    pub fn choose(&self, wanted: Option<&str>) -> Result<wgpu::Adapter, DeviceError> {
        let infos = self.describe();
        let chosen = match wanted {
            None => infos.iter().position(|info| !info.software),
            Some(text) => match text.parse::<usize>() {
                Ok(number) => (number < infos.len()).then_some(number),
                Err(_) => {
                    infos.iter().position(|info| info.name.to_lowercase().contains(&text.to_lowercase()))
                }
            },
        };
        chosen.and_then(|index| self.all.get(index)).cloned().ok_or_else(|| {
            let names: Vec<String> =
                infos.iter().enumerate().map(|(i, info)| format!("{i} {}", info.name)).collect();
            let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            DeviceError::Setup(format!(
                "no GPU is meant by {}; there are: {there}",
                wanted.unwrap_or("default")
            ))
        })
    }
}

/// Why there is no Vulkan loader, where GPUs are reached through one.
pub fn no_loader() -> Option<String> {
    no_vulkan()
}

#[cfg(not(target_vendor = "apple"))]
fn no_vulkan() -> Option<String> {
    // SAFETY: the loader is the system's own, which wgpu loads as well.
    #[allow(unsafe_code)]
    let loaded = unsafe { ash::Entry::load() };
    loaded.err().map(|error| error.to_string())
}

#[cfg(target_vendor = "apple")]
fn no_vulkan() -> Option<String> {
    None
}

/// What a driver says of an adapter.
pub(super) fn describe(adapter: &wgpu::Adapter) -> AdapterInfo {
    let info = adapter.get_info();
    let software = info.device_type == DeviceType::Cpu;
    let heaps = heaps(adapter);
    AdapterInfo {
        unified: software || info.device_type == DeviceType::IntegratedGpu,
        software,
        backend: match info.backend {
            wgpu::Backend::Vulkan => "Vulkan".to_owned(),
            wgpu::Backend::Metal => "Metal".to_owned(),
            other => other.to_string(),
        },
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        name: info.name,
        memory: heaps.total,
        free: heaps.free,
    }
}
