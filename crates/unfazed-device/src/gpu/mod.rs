//! The GPU device, through wgpu: Vulkan, and Metal (translated in tests, not yet run on a Mac).
//!
//! | file | what |
//! |---|---|
//! | `adapter.rs` | the GPUs of this machine, and which of them is meant |
//! | `open.rs` | a device of an adapter: what it can do, what its driver says of faults |
//! | `kernel.rs` | a kernel's text and what it binds; pipelines |
//! | `kernels/` | the kernels: WGSL, made from templates by block format and by what an adapter can do |
//! | `trial.rs` | a kernel by itself, for tests and measurements |

pub mod adapter;
pub mod kernel;
pub mod kernels;
pub mod open;
pub mod trial;

pub use adapter::{AdapterInfo, Adapters};
pub use kernel::{Access, Kernel, Pipeline};
pub use open::{Abilities, Gpu};
