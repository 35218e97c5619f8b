//! A real Vulkan device that acts out faults, for tests: some functions of its driver are replaced.
//!
//! Not on Metal, whose driver has no table of functions. What Metal does when it throws work away looks like [`Act::Discard`] to
//! everything above.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ash::vk::{self, Handle};
use wgpu::hal::vulkan::Api;

use super::open::{Gpu, descriptor};
use crate::DeviceError;

/// How long a hung device lets those wait who wait for all of its work.
const LONG: Duration = Duration::from_secs(60);

/// What a submission may meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It is said to be done, and nothing of it runs. Later ones run.
    Discard,
    /// The device is lost when it is submitted.
    LoseAtSubmit,
    /// The device is lost when it is waited for.
    LoseAtWait,
    /// There is no memory for it.
    OutOfMemory,
    /// It never ends, nor does anything after it.
    Hang,
}

/// The faults of a device.
#[derive(Debug, Default)]
pub struct Faults {
    next: Mutex<Option<(Act, u32)>>,
    lost: AtomicBool,
    hung: AtomicBool,
    full: AtomicBool,
}

impl Faults {
    /// The `nth` submission from now on, from 1, meets this.
    pub fn arrange(&self, act: Act, nth: u32) {
        *lock(&self.next) = Some((act, nth.max(1)));
    }

    /// No memory can be allocated from now on; or it can again.
    pub fn refuse_memory(&self, refuse: bool) {
        self.full.store(refuse, Ordering::Release);
    }

    /// What the submission that comes meets.
    fn submitted(&self) -> Option<Act> {
        if self.lost.load(Ordering::Acquire) {
            return Some(Act::LoseAtSubmit);
        }
        if self.hung.load(Ordering::Acquire) {
            return Some(Act::Hang);
        }
        let mut next = lock(&self.next);
        let (act, left) = next.take()?;
        if left > 1 {
            *next = Some((act, left - 1));
            return None;
        }
        match act {
            Act::LoseAtSubmit | Act::LoseAtWait => self.lost.store(true, Ordering::Release),
            Act::Hang => self.hung.store(true, Ordering::Release),
            Act::Discard | Act::OutOfMemory => {}
        }
        Some(act)
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// What a wait for all work meets. The real device did its work, and must be done with it before its memory is freed.
    fn idle(&self, real: impl FnOnce() -> vk::Result) -> vk::Result {
        if self.hung.load(Ordering::Acquire) {
            std::thread::sleep(LONG);
        }
        let result = real();
        if self.is_lost() { vk::Result::ERROR_DEVICE_LOST } else { result }
    }
}

/// The driver's own functions.
#[derive(Clone, Copy)]
struct Real {
    submit: vk::PFN_vkQueueSubmit,
    wait: vk::PFN_vkWaitSemaphores,
    value: vk::PFN_vkGetSemaphoreCounterValue,
    allocate: vk::PFN_vkAllocateMemory,
    queue: vk::PFN_vkGetDeviceQueue,
    queue_idle: vk::PFN_vkQueueWaitIdle,
    device_idle: vk::PFN_vkDeviceWaitIdle,
}

/// A device whose functions were replaced.
#[derive(Clone)]
struct Patched {
    device: u64,
    queue: u64,
    real: Real,
    faults: Arc<Faults>,
}

/// The replaced functions get nothing but handles, so they find their device here.
static DEVICES: Mutex<Vec<Patched>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn of_device(device: vk::Device) -> Option<Patched> {
    lock(&DEVICES).iter().find(|patched| patched.device == device.as_raw()).cloned()
}

fn of_queue(queue: vk::Queue) -> Option<Patched> {
    lock(&DEVICES).iter().find(|patched| patched.queue == queue.as_raw()).cloned()
}

/// Opens a device whose faults can be arranged.
///
/// # Errors
///
/// The adapter is not Vulkan's; the driver's.
pub fn open(adapter: &wgpu::Adapter) -> Result<(Arc<Gpu>, Arc<Faults>), DeviceError> {
    let descriptor = descriptor(adapter);
    let faults = Arc::new(Faults::default());
    let open = {
        // SAFETY: the adapter's handle is used while it is borrowed, and not destroyed.
        let Some(hal) = (unsafe { adapter.as_hal::<Api>() }) else {
            return Err(DeviceError::Setup("faults are arranged on Vulkan alone".to_owned()));
        };
        let extensions = hal.required_device_extensions(descriptor.required_features);
        let mut features = hal.physical_device_features(&extensions, descriptor.required_features);
        let queues = [vk::DeviceQueueCreateInfo::default().queue_family_index(0).queue_priorities(&[1.0])];
        let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
        let info =
            vk::DeviceCreateInfo::default().queue_create_infos(&queues).enabled_extension_names(&names);
        let info = features.add_to_device_create(info);
        let instance = hal.shared_instance().raw_instance();
        // SAFETY: the description is wgpu's own, for this adapter, and outlives the call.
        let raw = unsafe { instance.create_device(hal.raw_physical_device(), &info, None) };
        let raw = raw.map_err(|error| DeviceError::Setup(error.to_string()))?;
        let patched = patch(instance, raw.handle(), Arc::clone(&faults))?;
        // SAFETY: the device was made of this adapter with these features and extensions, queue 0 of family 0 is asked for, and wgpu
        // owns it from here on.
        let opened = unsafe {
            hal.device_from_raw(
                patched,
                None,
                &extensions,
                descriptor.required_features,
                &descriptor.required_limits,
                &descriptor.memory_hints,
                0,
                0,
            )
        };
        opened.map_err(|error| DeviceError::Setup(error.to_string()))?
    };
    // SAFETY: the device was opened on this adapter, by the same description.
    let (device, queue) = unsafe { adapter.create_device_from_hal(open, &descriptor) }
        .map_err(|error| DeviceError::Setup(error.to_string()))?;
    Ok((Arc::new(Gpu::of(adapter, device, queue)), faults))
}

/// The device's table of functions, with ours in it.
fn patch(
    instance: &ash::Instance,
    device: vk::Device,
    faults: Arc<Faults>,
) -> Result<ash::Device, DeviceError> {
    let find = instance.fp_v1_0().get_device_proc_addr;
    let address = |name: &CStr| -> *const c_void {
        // SAFETY: the device is alive and the name ends with a zero byte; an absent function is a null pointer.
        unsafe { find(device, name.as_ptr()) }.map_or(std::ptr::null(), |function| function as *const c_void)
    };
    let real = [
        c"vkQueueSubmit",
        c"vkWaitSemaphores",
        c"vkGetSemaphoreCounterValue",
        c"vkAllocateMemory",
        c"vkGetDeviceQueue",
        c"vkQueueWaitIdle",
        c"vkDeviceWaitIdle",
    ]
    .map(address);
    if real.iter().any(|address| address.is_null()) {
        return Err(DeviceError::Setup("this driver has no timeline semaphores".to_owned()));
    }
    // SAFETY: the addresses are not null, and the driver's functions of these names have these types, in this order.
    let real: Real = unsafe {
        Real {
            submit: std::mem::transmute::<*const c_void, vk::PFN_vkQueueSubmit>(real[0]),
            wait: std::mem::transmute::<*const c_void, vk::PFN_vkWaitSemaphores>(real[1]),
            value: std::mem::transmute::<*const c_void, vk::PFN_vkGetSemaphoreCounterValue>(real[2]),
            allocate: std::mem::transmute::<*const c_void, vk::PFN_vkAllocateMemory>(real[3]),
            queue: std::mem::transmute::<*const c_void, vk::PFN_vkGetDeviceQueue>(real[4]),
            queue_idle: std::mem::transmute::<*const c_void, vk::PFN_vkQueueWaitIdle>(real[5]),
            device_idle: std::mem::transmute::<*const c_void, vk::PFN_vkDeviceWaitIdle>(real[6]),
        }
    };
    {
        // A device that is gone may have had the same handle.
        let mut devices = lock(&DEVICES);
        devices.retain(|patched| patched.device != device.as_raw());
        devices.push(Patched { device: device.as_raw(), queue: 0, real, faults });
    }
    let load = |name: &CStr| match name.to_bytes() {
        b"vkQueueSubmit" => submit as *const c_void,
        b"vkWaitSemaphores" => wait as *const c_void,
        b"vkGetSemaphoreCounterValue" => value as *const c_void,
        b"vkAllocateMemory" => allocate as *const c_void,
        b"vkGetDeviceQueue" => queue as *const c_void,
        b"vkQueueWaitIdle" => queue_idle as *const c_void,
        b"vkDeviceWaitIdle" => device_idle as *const c_void,
        _ => address(name),
    };
    // SAFETY: each function is the driver's or has the same signature as the driver's.
    Ok(unsafe { ash::Device::load_with(load, device) })
}

unsafe extern "system" fn submit(
    queue: vk::Queue,
    count: u32,
    infos: *const vk::SubmitInfo<'_>,
    fence: vk::Fence,
) -> vk::Result {
    let Some(Patched { real, faults, .. }) = of_queue(queue) else { return vk::Result::ERROR_UNKNOWN };
    match faults.submitted() {
        Some(Act::LoseAtSubmit) => vk::Result::ERROR_DEVICE_LOST,
        Some(Act::OutOfMemory) => vk::Result::ERROR_OUT_OF_DEVICE_MEMORY,
        Some(Act::Hang) => vk::Result::SUCCESS,
        Some(Act::Discard) => {
            // SAFETY: the caller gives `count` descriptions. They are changed in a copy.
            let mut infos = unsafe { std::slice::from_raw_parts(infos, count as usize) }.to_vec();
            infos.iter_mut().for_each(|info| info.command_buffer_count = 0);
            // SAFETY: as the caller's call, with fewer command buffers.
            unsafe { (real.submit)(queue, count, infos.as_ptr(), fence) }
        }
        // SAFETY: the caller's own call.
        Some(Act::LoseAtWait) | None => unsafe { (real.submit)(queue, count, infos, fence) },
    }
}

unsafe extern "system" fn wait(
    device: vk::Device,
    info: *const vk::SemaphoreWaitInfo<'_>,
    timeout: u64,
) -> vk::Result {
    match of_device(device) {
        Some(patched) if !patched.faults.is_lost() => {
            // SAFETY: the caller's own call.
            unsafe { (patched.real.wait)(device, info, timeout) }
        }
        _ => vk::Result::ERROR_DEVICE_LOST,
    }
}

unsafe extern "system" fn value(device: vk::Device, semaphore: vk::Semaphore, value: *mut u64) -> vk::Result {
    match of_device(device) {
        Some(patched) if !patched.faults.is_lost() => {
            // SAFETY: the caller's own call.
            unsafe { (patched.real.value)(device, semaphore, value) }
        }
        _ => vk::Result::ERROR_DEVICE_LOST,
    }
}

unsafe extern "system" fn allocate(
    device: vk::Device,
    info: *const vk::MemoryAllocateInfo<'_>,
    callbacks: *const vk::AllocationCallbacks<'_>,
    memory: *mut vk::DeviceMemory,
) -> vk::Result {
    match of_device(device) {
        Some(patched) if !patched.faults.full.load(Ordering::Acquire) => {
            // SAFETY: the caller's own call.
            unsafe { (patched.real.allocate)(device, info, callbacks, memory) }
        }
        _ => vk::Result::ERROR_OUT_OF_DEVICE_MEMORY,
    }
}

unsafe extern "system" fn queue(device: vk::Device, family: u32, index: u32, queue: *mut vk::Queue) {
    let Some(patched) = of_device(device) else { return };
    // SAFETY: the caller's own call, after which the place holds a handle.
    let handle = unsafe {
        (patched.real.queue)(device, family, index, queue);
        (*queue).as_raw()
    };
    let mut devices = lock(&DEVICES);
    // A queue of a device that is gone may have had the same handle.
    devices.retain(|patched| patched.queue != handle || patched.device == device.as_raw());
    if let Some(patched) = devices.iter_mut().find(|patched| patched.device == device.as_raw()) {
        patched.queue = handle;
    }
}

unsafe extern "system" fn queue_idle(queue: vk::Queue) -> vk::Result {
    let Some(patched) = of_queue(queue) else { return vk::Result::ERROR_DEVICE_LOST };
    // SAFETY: the caller's own call.
    patched.faults.idle(|| unsafe { (patched.real.queue_idle)(queue) })
}

unsafe extern "system" fn device_idle(device: vk::Device) -> vk::Result {
    let Some(patched) = of_device(device) else { return vk::Result::ERROR_DEVICE_LOST };
    // SAFETY: the caller's own call.
    patched.faults.idle(|| unsafe { (patched.real.device_idle)(device) })
}
