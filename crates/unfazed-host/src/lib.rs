//! What this machine is: cores and memory under every limit that binds this process, how fast they were measured to be, and
//! which rights a process can give up.
//!
//! | module | what |
//! |---|---|
//! | [`audit`] | what a server should know of this machine before it starts |
//! | [`cores`] | cores that this process may use, and those worth a compute thread |
//! | [`processors`] | sets of processors, as lists and masks |
//! | [`processor_name`] | what the processor calls itself |
//! | [`disk`] | what a file is stored on |
//! | [`disk_rates`] | how fast a disk was measured to be, kept from run to run |
//! | [`graphics`] | whether there may be a GPU |
//! | [`cache`] | the user's cache folder |
//! | [`memory`] | memory in all, free, and limited by control groups and by jetsam |
//! | [`pressure`] | whether memory is running out |
//! | [`oom`] | how often the kernel killed for lack of memory |
//! | [`activity`] | whether processes do anything at all |
//! | [`calibration`] | measured rates, kept from run to run |
//! | [`limits`] | open files that a server needs |
//! | [`metal`] | Metal's environment |
//! | [`service_manager`] | what systemd, or another service manager, is told |
//! | [`sandbox`] | rights that a process gives up for good |

pub mod activity;
pub mod audit;
pub mod cache;
pub mod calibration;
#[cfg(target_os = "linux")]
mod cgroup;
pub mod cores;
pub mod disk;
pub mod disk_rates;
pub mod graphics;
pub mod limits;
pub mod memory;
pub mod metal;
pub mod oom;
pub mod pressure;
pub mod processor_name;
pub mod processors;
pub mod sandbox;
pub mod service_manager;

pub use calibration::Calibration;
pub use cores::{Cores, cores};
pub use memory::{Memory, memory};
pub use oom::oom_kills;
pub use pressure::{Pressure, Reading, Verdict};
pub use processor_name::processor_name;
pub use processors::Processors;
