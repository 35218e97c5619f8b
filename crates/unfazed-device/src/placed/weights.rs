//! Handles of weights: each says where it is.

use std::sync::Arc;

use unfazed_store::PackedStack;
use unfazed_wire::Place;

use crate::cpu::CpuExperts;
use crate::gpu::{Experts, MatrixId, VectorId};

/// A matrix where it is computed with.
pub enum PlacedMatrix {
    /// On the processor.
    Cpu(PackedStack),
    /// On a GPU, by its index in the placement.
    Gpu(usize, MatrixId),
    /// A table whose rows are looked up on the processor, and that logits are computed with on a GPU.
    Both(Arc<PackedStack>, usize, MatrixId),
}

impl PlacedMatrix {
    /// Where products with it are computed.
    pub(super) fn place(&self) -> Place {
        match self {
            PlacedMatrix::Cpu(_) => Place::Cpu,
            PlacedMatrix::Gpu(gpu, _) | PlacedMatrix::Both(_, gpu, _) => Place::Gpu(*gpu),
        }
    }

    /// For the processor.
    pub(super) fn cpu(&self) -> Option<&PackedStack> {
        match self {
            PlacedMatrix::Cpu(stack) => Some(stack),
            PlacedMatrix::Both(stack, ..) => Some(stack),
            PlacedMatrix::Gpu(..) => None,
        }
    }

    /// For the GPU.
    pub(super) fn gpu(&self) -> Option<MatrixId> {
        match self {
            PlacedMatrix::Cpu(_) => None,
            PlacedMatrix::Gpu(_, id) | PlacedMatrix::Both(_, _, id) => Some(*id),
        }
    }
}

/// A vector where it is computed with. The processor has them all: they are small.
pub struct PlacedVector {
    pub(super) values: Vec<f32>,
    pub(super) gpu: Option<(usize, VectorId)>,
}

impl PlacedVector {
    pub(super) fn place(&self) -> Place {
        self.gpu.map_or(Place::Cpu, |(gpu, _)| Place::Gpu(gpu))
    }
}

/// The experts of a layer where they are computed with.
pub enum PlacedExperts {
    /// On the processor, in memory or to be read.
    Cpu(CpuExperts),
    /// On a GPU.
    Gpu(usize, Experts),
}
