//! Moving checked tensors to a device, with progress.

use unfazed_device::{Device, DeviceError};
use unfazed_store::{MatrixSource, VectorSource};

/// Loads tensors one after the other and tells how far it is.
pub(crate) struct Loader<'a, D> {
    device: &'a mut D,
    progress: &'a mut dyn FnMut(u64),
    done: u64,
}

impl<'a, D: Device> Loader<'a, D> {
    pub(crate) fn new(device: &'a mut D, progress: &'a mut dyn FnMut(u64)) -> Loader<'a, D> {
        Loader { device, progress, done: 0 }
    }

    pub(crate) fn matrix(&mut self, source: &MatrixSource) -> Result<D::Matrix, DeviceError> {
        let matrix = self.device.load_matrix(source)?;
        self.advance(source.parts.iter().map(|part| part.len).sum());
        Ok(matrix)
    }

    pub(crate) fn vector(&mut self, source: &VectorSource) -> Result<D::Vector, DeviceError> {
        let vector = self.device.load_vector(source)?;
        self.advance(source.extent.len);
        Ok(vector)
    }

    fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        (self.progress)(self.done);
    }
}
