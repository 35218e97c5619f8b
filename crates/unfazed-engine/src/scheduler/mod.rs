//! Who is computed in a step.
//!
//! | module | what |
//! |---|---|
//! | [`limits`] | what the device was laid out for |
//! | `admission` | which requests can be served at all |
//! | `queue` | waiting and running sequences: submit, admit, cancel, end |
//! | `plan` | the rows of the next step |
//! | [`share`] | how rows are shared among prompts |
//!
//! A step has a row for each running answer and, in the rest of the chunk, rows of prompts. While answers run, prompts
//! get a bounded part of the chunk: a long prompt slows them and never stalls them.

pub(crate) mod admission;
pub mod limits;
pub(crate) mod plan;
pub(crate) mod queue;
pub mod share;

pub use limits::Limits;
pub(crate) use queue::{Scheduler, Submitted};
