//! The operations that a forward pass is written against, and the devices: the CPU and GPUs.
//!
//! | module | what |
//! |---|---|
//! | [`operations`] | the trait, a step's batch, activation names, errors |
//! | [`cpu`] | the CPU: thread pool, arena, KV pages, operations over `unfazed-kernels` |
//! | [`gpu`] | GPUs: wgpu, kernels in WGSL |
//! | [`placed`] | a model whose layers are on the CPU and on GPUs |

pub mod cpu;
pub mod gpu;
pub mod operations;
pub mod placed;

pub use cpu::{CpuConfig, CpuDevice, arena_bytes};
pub use operations::{
    Batch, BatchRow, Device, DeviceError, Fault, KvShape, PageId, PageSpan, Part, SequenceFailure, StepOutput,
};
pub use placed::{PlacedConfig, PlacedDevice};
pub use unfazed_fault::{Class, Generation};
