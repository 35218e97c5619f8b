//! The operations that a forward pass is written against, and the CPU device.
//!
//! | module | what |
//! |---|---|
//! | [`operations`] | the trait, a step's batch, activation names, errors |
//! | [`cpu`] | the CPU: thread pool, arena, KV pages, operations over `unfazed-kernels` |

pub mod cpu;
pub mod operations;

pub use cpu::{CpuConfig, CpuDevice, arena_bytes};
pub use operations::{
    Batch, BatchRow, Device, DeviceError, Fault, KvShape, PageId, PageSpan, SequenceFailure, StepOutput,
};
pub use unfazed_fault::{Class, Generation};
