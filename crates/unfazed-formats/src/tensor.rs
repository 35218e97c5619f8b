//! Where a tensor's bytes are and what they mean.

use serde::{Deserialize, Serialize};

use crate::BlockFormat;

/// Index into a checkpoint's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId(pub u32);

/// A run of bytes in a file. Checked against the file's length when the header was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Extent {
    /// Which file.
    pub file: FileId,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl Extent {
    /// The part of this extent that starts `offset` bytes in and has `len` bytes; `None` if it is not inside.
    pub fn part(&self, offset: u64, len: u64) -> Option<Extent> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| Extent { file: self.file, offset: self.offset + offset, len })
    }
}

/// A tensor as its file describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorInfo {
    /// The name in the file.
    pub name: String,
    /// Dimensions, outermost first (a matrix is `[rows, columns]`); columns are contiguous. GGUF stores them
    /// the other way round.
    pub shape: Vec<u64>,
    /// How weights are stored.
    pub format: BlockFormat,
    /// Where they are.
    pub extent: Extent,
}

impl TensorInfo {
    /// Number of weights. Checked to fit when the header was read.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}
