//! How much memory a GPU has, and what is free of it, as its driver tells.

#![allow(unsafe_code)]

/// Bytes of an adapter's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Heaps {
    /// All of it that a program may use; `None` where nobody tells.
    pub(super) total: Option<u64>,
    /// What is free of it now, other programs' share taken off.
    pub(super) free: Option<u64>,
}

/// Asks the driver.
pub(super) fn heaps(adapter: &wgpu::Adapter) -> Heaps {
    #[cfg(target_vendor = "apple")]
    if let Some(heaps) = metal(adapter) {
        return heaps;
    }
    vulkan(adapter).unwrap_or_default()
}

/// What one heap has and what is used of it.
#[cfg(not(target_vendor = "apple"))]
#[derive(Clone, Copy)]
struct Heap {
    bytes: u64,
    /// What may be used and what is, where the driver tells.
    budget: Option<(u64, u64)>,
    local: bool,
}

/// The largest heap of the device's own: that is where buffers go.
#[cfg(not(target_vendor = "apple"))]
fn largest(heaps: &[Heap]) -> Heaps {
    let Some(heap) = heaps.iter().filter(|heap| heap.local).max_by_key(|heap| heap.bytes) else {
        return Heaps::default();
    };
    let free = heap.budget.map(|(budget, used)| budget.min(heap.bytes).saturating_sub(used));
    Heaps { total: Some(heap.bytes), free }
}

#[cfg(not(target_vendor = "apple"))]
fn vulkan(adapter: &wgpu::Adapter) -> Option<Heaps> {
    use ash::{ext, vk};

    // SAFETY: what is got is read, and given back before the adapter is.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = adapter.shared_instance();
    let (device, raw) = (adapter.raw_physical_device(), instance.raw_instance());
    // The question for budgets came with Vulkan 1.1.
    if instance.instance_api_version() < vk::API_VERSION_1_1 {
        return None;
    }
    // SAFETY: the physical device is of this instance, which lives as long as the adapter.
    let extensions = unsafe { raw.enumerate_device_extension_properties(device) }.unwrap_or_default();
    let told = extensions
        .iter()
        .any(|extension| extension.extension_name_as_c_str() == Ok(ext::memory_budget::NAME));
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut properties = vk::PhysicalDeviceMemoryProperties2::default();
    if told {
        properties = properties.push_next(&mut budget);
    }
    // SAFETY: as above; the structure in the chain is one that the device knows.
    unsafe { raw.get_physical_device_memory_properties2(device, &mut properties) };
    let memory = properties.memory_properties;
    let heaps = memory.memory_heaps_as_slice().iter().enumerate().map(|(i, heap)| Heap {
        bytes: heap.size,
        budget: told.then(|| Some((*budget.heap_budget.get(i)?, *budget.heap_usage.get(i)?))).flatten(),
        local: heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL),
    });
    Some(largest(&heaps.collect::<Vec<_>>()))
}

#[cfg(target_vendor = "apple")]
fn vulkan(_adapter: &wgpu::Adapter) -> Option<Heaps> {
    None
}

#[cfg(target_vendor = "apple")]
fn metal(adapter: &wgpu::Adapter) -> Option<Heaps> {
    use objc2_metal::MTLDevice;

    // SAFETY: what is got is read, and given back before the adapter is.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::api::Metal>() }?;
    let device = adapter.raw_device();
    let total = device.recommendedMaxWorkingSetSize();
    let used = device.currentAllocatedSize() as u64;
    (total > 0).then_some(Heaps { total: Some(total), free: Some(total.saturating_sub(used)) })
}

#[cfg(all(test, not(target_vendor = "apple")))]
mod tests {
    use super::*;

    #[test]
    fn buffers_go_to_the_largest_heap_of_the_devices_own_and_its_budget_is_what_is_free() {
        let heap = |bytes, budget, local| Heap { bytes, budget, local };
        assert_eq!(largest(&[]), Heaps::default());
        assert_eq!(largest(&[heap(64, None, false)]), Heaps::default());
        let card = [heap(64, None, false), heap(24, Some((20, 3)), true), heap(1, Some((1, 0)), true)];
        assert_eq!(largest(&card), Heaps { total: Some(24), free: Some(17) });
        assert_eq!(largest(&[heap(24, None, true)]), Heaps { total: Some(24), free: None });
        // More is used than may be.
        assert_eq!(largest(&[heap(24, Some((30, 40)), true)]).free, Some(0));
    }
}
