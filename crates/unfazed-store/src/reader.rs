//! How extents are read.

use std::sync::Arc;

use unfazed_formats::Extent;
use unfazed_formats::source::{ByteSource, FileSource};

use crate::StoreError;

/// Reads extents of a checkpoint's files. Implementations may be called from several threads at once.
pub trait Reader: Send + Sync {
    /// Fills `buf` with the first `buf.len()` bytes of `extent`. `tensor` names what is read, for errors.
    fn read(&self, tensor: &str, extent: Extent, buf: &mut [u8]) -> Result<(), StoreError>;
}

/// Plain positional reads.
pub struct PositionalReader {
    files: Arc<Vec<FileSource>>,
}

impl PositionalReader {
    /// Reads these files; [`unfazed_formats::FileId`] is the index.
    pub fn new(files: Arc<Vec<FileSource>>) -> PositionalReader {
        PositionalReader { files }
    }
}

impl Reader for PositionalReader {
    fn read(&self, tensor: &str, extent: Extent, buf: &mut [u8]) -> Result<(), StoreError> {
        let error = |file: &str, source| StoreError::Read {
            file: file.to_owned(),
            tensor: tensor.to_owned(),
            offset: extent.offset,
            len: buf.len() as u64,
            source,
        };
        let Some(file) = self.files.get(extent.file.0 as usize) else {
            return Err(error("?", std::io::ErrorKind::NotFound.into()));
        };
        if buf.len() as u64 > extent.len {
            return Err(error(file.name(), std::io::ErrorKind::UnexpectedEof.into()));
        }
        let result = file.read_exact_at(buf, extent.offset);
        result.map_err(|source| StoreError::Read {
            file: file.name().to_owned(),
            tensor: tensor.to_owned(),
            offset: extent.offset,
            len: buf.len() as u64,
            source,
        })
    }
}
