//! Streamed answers: made by a task each, read by the responses.
//!
//! | module | what |
//! |---|---|
//! | `registry` | all streams: who may read which, and the memory that they take together |
//! | `log` | one stream's events and its readers |
//! | `maker` | the task that makes a stream and keeps it for those who come back |
//! | `reader` | a response's way through a stream |
//! | `resume` | the header that makes a stream resumable, and the path that continues it |

mod log;
mod maker;
mod reader;
mod registry;
pub(crate) mod resume;

pub(crate) use maker::Step;
pub(crate) use reader::Reader;
pub(crate) use registry::Streams;
