//! The GPU device, through wgpu: Vulkan, and Metal (translated in tests, not yet run on a Mac).
//!
//! | file | what |
//! |---|---|
//! | `adapter.rs` | the GPUs of this machine, and which of them is meant |
//! | `heaps.rs` | how much memory a GPU has, and what is free of it |
//! | `open.rs` | a device of an adapter: what it can do, what its driver says of faults |
//! | `kernel.rs` | a kernel's text and what it binds; pipelines |
//! | `kernels/` | the kernels: WGSL, made from templates by block format and by what an adapter can do |
//! | `memory.rs` | buffers of one generation, under one account of bytes; what kernels bind |
//! | `budget.rs` | how long kernels take, and where a command buffer ends by that |
//! | `encoder.rs` | a command buffer while it is written, with its receipts |
//! | `queue.rs` | submissions in flight, and what came of them |
//! | `verdict.rs` | what can come of them, and which fault that is |
//! | `upload.rs` | from the host to the device |
//! | `readback.rs` | from the device to the host |
//! | `device/` | the layers that are on a GPU, from weights to logits |
//! | `inject.rs` | a device that fails by arrangement, for tests |
//! | `trial.rs` | a kernel by itself, for tests and measurements |

pub mod adapter;
pub mod budget;
mod device;
mod encoder;
mod heaps;
#[cfg(all(feature = "gpu-faults", not(target_vendor = "apple")))]
pub mod inject;
pub mod kernel;
pub mod kernels;
pub mod memory;
pub mod open;
pub mod queue;
pub mod readback;
pub mod trial;
pub mod upload;
pub mod verdict;

pub use adapter::{AdapterInfo, Adapters};
pub use budget::{Budget, Cost, Limits};
pub use device::{Experts, GpuConfig, GpuDevice, MatrixId, Opener, VectorId};
pub use kernel::{Access, Kernel, Pipeline};
pub use memory::{Bound, Buffer, Group, Memory, Ready};
pub use open::{Abilities, Gpu};
pub use queue::{Figures, Queue, Ticket};
pub use readback::Readback;
pub use upload::{Pending, Uploader};
pub use verdict::Verdict;
