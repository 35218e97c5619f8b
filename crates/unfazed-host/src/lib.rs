//! What this machine is: cores and memory under every limit that binds this process, and how fast they were measured to be.
//!
//! | module | what |
//! |---|---|
//! | [`cores`] | cores that this process may use, and those worth a compute thread |
//! | [`processors`] | sets of processors, as lists and masks |
//! | [`processor_name`] | what the processor calls itself |
//! | [`disk`] | what a file is stored on |
//! | [`disk_rates`] | how fast a disk was measured to be, kept from run to run |
//! | [`cache`] | the user's cache folder |
//! | [`memory`] | memory in all, free, and limited by control groups and by jetsam |
//! | [`oom`] | how often the kernel killed for lack of memory |
//! | [`calibration`] | measured rates, kept from run to run |

pub mod cache;
pub mod calibration;
#[cfg(target_os = "linux")]
mod cgroup;
pub mod cores;
pub mod disk;
pub mod disk_rates;
pub mod memory;
pub mod oom;
pub mod processor_name;
pub mod processors;

pub use calibration::Calibration;
pub use cores::{Cores, cores};
pub use memory::{Memory, memory};
pub use oom::oom_kills;
pub use processor_name::processor_name;
pub use processors::Processors;
