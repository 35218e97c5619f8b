//! How extents are read.
//!
//! | module | what |
//! |---|---|
//! | [`storage_reader`] | reads of a [`crate::storage::Storage`], with patience, and none of a file that changed |
//! | [`patience`] | which errors pass, and how long they are waited for |
//! | [`observer`] | who is told what is waited for |

pub mod observer;
pub mod patience;
pub mod storage_reader;

use unfazed_formats::{Extent, FileId};

use crate::StoreError;
use crate::storage::ReadBuffer;

pub use observer::{Wait, WaitObserver};
pub use patience::Patience;
pub use storage_reader::StorageReader;

/// Reads extents of a checkpoint's files. Implementations may be called from several threads at once.
pub trait Reader: Send + Sync {
    /// Fills `buf` with the first `buf.len()` bytes of `extent`. `tensor` names what is read, for errors.
    ///
    /// # Errors
    ///
    /// [`StoreError::Read`], or [`StoreError::Changed`] where the file is not the one that was opened.
    fn read(&self, tensor: &str, extent: Extent, buf: &mut [u8]) -> Result<(), StoreError>;

    /// Begins to read all of an extent. A reader that cannot read ahead reads at once.
    fn begin(&self, tensor: &str, extent: Extent) -> PendingRead {
        let all = || {
            let refused = |_| StoreError::Memory { what: tensor.to_owned(), bytes: extent.len };
            let mut bytes = ReadBuffer::zeroed(usize::try_from(extent.len).map_err(refused)?)?;
            self.read(tensor, extent, &mut bytes)?;
            Ok(bytes)
        };
        let read = all();
        PendingRead::new(move || read)
    }

    /// The base name of a file, for errors.
    fn file_name(&self, file: FileId) -> String {
        format!("file {}", file.0)
    }

    /// Nothing will be read for some time: lets go of memory that is kept for reads.
    fn rest(&self) {}

    /// How many reads should be under way at a time.
    fn depth(&self) -> usize {
        1
    }
}

/// A read that was begun. Dropped, it goes on and its bytes go nowhere.
pub struct PendingRead(Box<dyn FnOnce() -> Result<ReadBuffer, StoreError> + Send>);

impl PendingRead {
    /// A read whose bytes `wait` waits for.
    pub fn new(wait: impl FnOnce() -> Result<ReadBuffer, StoreError> + Send + 'static) -> PendingRead {
        PendingRead(Box::new(wait))
    }

    /// Waits for the bytes.
    ///
    /// # Errors
    ///
    /// As [`Reader::read`].
    pub fn wait(self) -> Result<ReadBuffer, StoreError> {
        (self.0)()
    }
}
