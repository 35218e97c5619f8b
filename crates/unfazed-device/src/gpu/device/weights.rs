//! Weights that a GPU has, and what they are made of again when it is lost.

use std::sync::Arc;
use std::time::Instant;

use unfazed_store::PackedStack;

use super::live::{Live, Matrix};
use crate::DeviceError;

/// A matrix, or a stack of equal ones, on a GPU. It outlives the device: another one gets the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixId(pub(super) u32);

/// A vector on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VectorId(pub(super) u32);

/// The experts of a layer on a GPU: stacks of gate, up and down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Experts {
    /// `[experts][feed_forward, hidden]`
    pub gate: MatrixId,
    /// `[experts][feed_forward, hidden]`
    pub up: MatrixId,
    /// `[experts][hidden, feed_forward]`
    pub down: MatrixId,
}

/// The host's copies, in the order of their handles.
#[derive(Default)]
pub(super) struct Copies {
    pub(super) matrices: Vec<Arc<PackedStack>>,
    pub(super) vectors: Vec<Vec<f32>>,
}

impl Copies {
    /// Brings all of them to a new device.
    pub(super) fn upload(&self, live: &mut Live, deadline: Instant) -> Result<(), DeviceError> {
        for stack in &self.matrices {
            upload_matrix(live, stack, deadline)?;
        }
        for values in &self.vectors {
            upload_vector(live, values, deadline)?;
        }
        Ok(())
    }
}

pub(super) fn upload_matrix(
    live: &mut Live,
    stack: &PackedStack,
    deadline: Instant,
) -> Result<(), DeviceError> {
    let buffer = live.upload("weights", stack.bytes(), deadline)?;
    live.matrices.push(Matrix { layout: *stack.layout(), parts: stack.parts(), buffer });
    Ok(())
}

pub(super) fn upload_vector(live: &mut Live, values: &[f32], deadline: Instant) -> Result<(), DeviceError> {
    let buffer = live.upload("a vector", bytemuck::cast_slice(values), deadline)?;
    live.vectors.push(buffer);
    Ok(())
}
