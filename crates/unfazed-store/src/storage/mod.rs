//! Where files are: one attempt at a read, without patience. [`crate::reader`] adds that.
//!
//! | module | what |
//! |---|---|
//! | [`blocks`] | memory that reads go to |
//! | `files` | open files: descriptors for buffered and for direct reads |
//! | `cached` | what the page cache holds |
//! | `threads` | reads by threads that wait for the system (`pread`) |
//! | `ring` | reads through io_uring, on Linux |
//! | [`local`] | files of this machine's file systems: all of the above in one |
//! | [`measure`] | how fast a storage is, and with how many reads at a time |
//! | [`tune`] | how many reads at a time a disk gets that nobody has measured |

use std::io;
use std::time::Duration;

pub mod blocks;
mod cached;
mod files;
pub mod local;
pub mod measure;
#[cfg(target_os = "linux")]
mod ring;
mod threads;
pub mod tune;

pub use blocks::{BLOCK_ALIGNMENT, ReadBuffer};
pub use local::{LocalOptions, LocalStorage};
pub use unfazed_formats::Identity;

/// Memory that a ring for reads keeps locked, in bytes, if it may: users may often lock no more than 8 MiB.
pub const RING_LOCKED_BYTES: usize = 4 << 20;

/// A file, as it was when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredFile {
    /// Base name, for messages.
    pub name: String,
    /// What it was.
    pub identity: Identity,
}

/// Files that can be read at offsets. Attempts fail at once: whoever wants to try again makes another one.
pub trait Storage: Send + Sync {
    /// The files; [`unfazed_formats::FileId`] is the index.
    fn files(&self) -> &[StoredFile];

    /// Begins to read `len` bytes at `offset`. Nothing that goes wrong is told before [`Attempt::wait`].
    fn begin(&self, file: usize, offset: u64, len: usize) -> Box<dyn Attempt>;

    /// Opens a file again by its name, as its descriptor may be of a mount that is gone. The file's identity is for the
    /// caller to judge ([`Arrived::identity`]).
    ///
    /// # Errors
    ///
    /// The system's, or that there is no name to open.
    fn reopen(&self, file: usize) -> io::Result<()>;

    /// Nothing will be read for some time: lets go of memory that is kept for reads.
    fn rest(&self) {}

    /// How many reads this storage wants to have under way at a time to run at its full rate.
    fn depth(&self) -> usize;
}

/// A read that was begun.
pub trait Attempt: Send {
    /// Waits for the bytes. After `limit` it is over with an error of kind `TimedOut`, and the bytes, when they come in
    /// spite of that, go nowhere.
    ///
    /// # Errors
    ///
    /// What the system said.
    fn wait(self: Box<Self>, limit: Duration) -> io::Result<Arrived>;
}

/// What an attempt brought.
#[derive(Debug)]
pub struct Arrived {
    /// The bytes: those that were asked for, or fewer from the first on, as reads are.
    pub bytes: ReadBuffer,
    /// The file's, after the bytes were read.
    pub identity: Identity,
}
