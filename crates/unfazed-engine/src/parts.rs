//! What an engine computes on and reads through. Simulations put their own around it.

use std::sync::Arc;

use unfazed_device::{CpuDevice, Device, DeviceError, PlacedDevice};
use unfazed_store::Storage;
use unfazed_wire::Start;

use crate::gpus::{self, Layout};

/// Makes the parts of an engine.
pub trait Parts {
    /// What steps are computed on.
    type Device: Device + AsRef<PlacedDevice>;

    /// The device, around the processor.
    ///
    /// # Errors
    ///
    /// What in the front's message, or of the machine, makes it impossible.
    fn device(&self, start: &Start, cpu: CpuDevice, layout: &Layout<'_>)
    -> Result<Self::Device, DeviceError>;

    /// What files are read through.
    ///
    /// # Errors
    ///
    /// As for the device.
    fn storage(&self, start: &Start, local: Arc<dyn Storage>) -> Result<Arc<dyn Storage>, String>;
}

/// The processor, GPUs and disks, as they are.
#[derive(Clone, Copy, Debug)]
pub struct RealParts;

impl Parts for RealParts {
    type Device = PlacedDevice;

    fn device(
        &self,
        start: &Start,
        cpu: CpuDevice,
        layout: &Layout<'_>,
    ) -> Result<PlacedDevice, DeviceError> {
        gpus::placed(start, cpu, layout)
    }

    fn storage(&self, _: &Start, local: Arc<dyn Storage>) -> Result<Arc<dyn Storage>, String> {
        Ok(local)
    }
}
