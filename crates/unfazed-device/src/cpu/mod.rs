//! The CPU device.
//!
//! A step is a row of short parallel sections: six a layer in the decode of a mixture of experts (projections, attention,
//! output of attention, router, gate and up, down). What lies between them (norms, rotation, rounding) is done by
//! the caller for a few rows and in sections for many. Results are the same bits for any number of threads, any
//! instruction set and any batch: kernels guarantee it for their part, and here every number is computed by one unit in
//! an order that depends on nothing but the model.
//!
//! | file | what |
//! |---|---|
//! | `pool.rs` | threads for sections of a few microseconds |
//! | `meter.rs` | rates of the machine and of kernels, with the same threads |
//! | `placement.rs` | which processors threads run on |
//! | `compute.rs` | sections by rows, items and units, with each thread's scratch |
//! | `disjoint.rs` | slices that threads write at once, each its own part |
//! | `arena.rs` | activations of a step, and how many bytes they are |
//! | `pages.rs` | keys and values in pages |
//! | `digest.rs` | digests of what pages hold |
//! | `step.rs` | a batch, checked and cut up |
//! | `operand.rs` | activations rounded and laid out for matrices |
//! | `dense.rs` | matrices times all rows |
//! | `attention.rs` | keys and values stored, attention |
//! | `routing.rs`, `feed_forward.rs`, `mixture.rs` | experts: which, their inner and their outer part |
//! | `experts.rs` | a mixture whose experts are in memory or come as it is computed |
//! | `device.rs` | the operations |

mod arena;
mod attention;
mod compute;
mod dense;
mod device;
mod digest;
mod disjoint;
mod experts;
mod feed_forward;
mod meter;
mod mixture;
mod operand;
mod pages;
mod placement;
mod pool;
mod routing;
mod step;

pub use arena::arena_bytes;
pub use device::{CpuConfig, CpuDevice};
pub use experts::{CpuExperts, TraceSink};
pub use meter::{Meter, Rates};
pub use pool::Pool;
