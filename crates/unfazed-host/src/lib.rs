//! What this machine is: cores and memory under every limit that binds this process.
//!
//! | module | what |
//! |---|---|
//! | [`cores`] | cores that this process may use |
//! | [`memory`] | memory in all, free, and limited by control groups |
//! | [`oom`] | how often the kernel killed for lack of memory |

#[cfg(target_os = "linux")]
mod cgroup;
pub mod cores;
pub mod memory;
pub mod oom;

pub use cores::cores;
pub use memory::{Memory, memory};
pub use oom::oom_kills;
