//! What an engine computes on and reads through. Simulations put their own around it.

use std::sync::Arc;

use unfazed_device::{CpuDevice, Device};
use unfazed_store::Storage;
use unfazed_wire::Start;

/// Makes the parts of an engine.
pub trait Parts {
    /// What steps are computed on.
    type Device: Device + AsRef<CpuDevice>;

    /// The device, around the processor.
    ///
    /// # Errors
    ///
    /// One line on what in the front's message makes it impossible.
    fn device(&self, start: &Start, cpu: CpuDevice) -> Result<Self::Device, String>;

    /// What files are read through.
    ///
    /// # Errors
    ///
    /// As for the device.
    fn storage(&self, start: &Start, local: Arc<dyn Storage>) -> Result<Arc<dyn Storage>, String>;
}

/// The processor and its disks, as they are.
#[derive(Clone, Copy, Debug)]
pub struct RealParts;

impl Parts for RealParts {
    type Device = CpuDevice;

    fn device(&self, _: &Start, cpu: CpuDevice) -> Result<CpuDevice, String> {
        Ok(cpu)
    }

    fn storage(&self, _: &Start, local: Arc<dyn Storage>) -> Result<Arc<dyn Storage>, String> {
        Ok(local)
    }
}
