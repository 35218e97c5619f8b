//! Simulated parts behind the real traits: a device, storage and a process that fail as a plan says. Only in builds for tests.
//!
//! | module | what |
//! |---|---|
//! | [`plan`] | which faults come when |
//! | [`device`] | a device that fails around one that computes |
//! | [`storage`] | storage that fails around storage that reads |
//! | [`world`] | whole runs in one thread, thousands of them, and the shortest that loses something |
//! | [`process`] | an engine process made of these, which may end itself |

pub mod device;
pub mod plan;
pub mod process;
pub mod storage;
pub mod world;

pub use plan::FaultPlan;
