//! What this machine is: cores and memory under every limit that binds this process.
//!
//! | module | what |
//! |---|---|
//! | [`cores`] | cores that this process may use |
//! | [`memory`] | memory in all, free, and limited by control groups |

pub mod cores;
pub mod memory;

pub use cores::cores;
pub use memory::{Memory, memory};
