//! What goes wrong with a journal, and what its owner is told of it.

use std::io;
use std::path::PathBuf;

use super::format::StreamKey;

/// Why the journal cannot be opened, or did not keep something. None is a client's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum JournalError {
    /// Another process has the folder.
    #[error(
        "journal {}: in use by {}; end that server or give this one another folder",
        .dir.display(), holder(*.pid)
    )]
    Locked { dir: PathBuf, pid: Option<u32> },
    /// The folder or a file in it cannot be had.
    #[error("journal {}: {what}: {cause}", .path.display())]
    Folder { path: PathBuf, what: &'static str, cause: String },
    /// Others could read what would be written there.
    #[error(
        "journal {}: other users have rights to it (mode {mode:o}) and it holds {file:?}, which is none of a journal's \
         files; give the journal a folder of its own",
        .dir.display()
    )]
    Shared { dir: PathBuf, mode: u32, file: String },
    /// A segment has a format that this build does not know.
    #[error(
        "journal segment {segment}: format {version}, this program reads {known}; run the version that wrote it, or move the \
         file away"
    )]
    Version { segment: String, version: u32, known: u32 },
    /// Nothing can be written just now. The writer tries again by itself.
    #[error("the journal cannot be written: {reason}")]
    Broken { reason: String },
    /// More bytes than a record may have.
    #[error("a journal record of {bytes} bytes, at most {most} are kept")]
    TooLarge { bytes: usize, most: usize },
    /// The disk is too slow: too much waits for it.
    #[error("the journal's disk is too slow: {queued} bytes wait for it")]
    Overloaded { queued: u64 },
    /// A stream is admitted once.
    #[error("the journal has stream {0} already")]
    Known(StreamKey),
    /// Never admitted, forgotten, dropped, or earlier entries of it are missing.
    #[error("the journal does not keep stream {0}")]
    NotKept(StreamKey),
    /// Another process goes on with the journal, or it was closed.
    #[error("the journal was handed over")]
    HandedOver,
}

impl JournalError {
    pub(super) fn folder(path: impl Into<PathBuf>, what: &'static str, cause: &io::Error) -> JournalError {
        JournalError::Folder { path: path.into(), what, cause: cause.to_string() }
    }
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

/// What its owner may want to say to people. Told on the writer's thread: must not block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JournalEvent {
    /// Nothing can be written; the writer tries again every few seconds.
    Broken { message: String },
    /// It can again. What had waited is written.
    Mended,
    /// Entries of a stream were dropped: after a restart it goes on from before them.
    Gap { key: StreamKey, why: &'static str },
    /// Streams were dropped from the journal.
    Dropped { keys: Vec<StreamKey>, why: Dropped },
    /// A segment that holds live streams does not read as it was written. It stays until they have ended.
    Damaged { segment: String, message: String },
}

/// Why streams were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// Their last record is older than the limit.
    Age,
    /// What is live is more than the limit; they were the least recently written.
    Size,
}
