//! The journal on disk: admitted requests and what they gave so far, for a front that comes after this one. It knows
//! streams of bytes and nothing of what they say. `docs/journal.md` has what is promised, and the format.
//!
//! | module | what |
//! |---|---|
//! | `handle` | [`Disk`]: opening, the calls, the writer's thread, handing over |
//! | `queue` | what waits for the writer, bounded |
//! | `writer` | one write and one sync for all that waits; what happens after an error |
//! | `log` | records behind each other, segment after segment |
//! | `compaction` | segments that are not needed go; the rest of old ones is carried over |
//! | `index` | which streams need which segments |
//! | `replay` | what is there when it is opened |
//! | `scan` | the whole records in any bytes |
//! | `format` | headers and records |
//! | `folder` | the files, behind a trait |
//! | `lock` | one process at a time |
//! | `limits` | how much is kept, and for how long |
//! | `fuzzing` | any bytes as segments |
//! | `error` | what goes wrong, what is told |

mod compaction;
mod error;
mod folder;
mod format;
mod fuzzing;
mod handle;
mod index;
mod limits;
mod lock;
mod log;
mod queue;
mod replay;
mod scan;
mod writer;

#[cfg(test)]
mod simulated;
#[cfg(test)]
mod tests;

pub(crate) use error::JournalEvent;
pub(crate) use format::StreamKey;
pub use fuzzing::read_journal;
pub(crate) use handle::{Disk, Opened, State};
pub(crate) use limits::Limits;
pub(crate) use replay::Kept;
pub(crate) use writer::JournalEvents;
