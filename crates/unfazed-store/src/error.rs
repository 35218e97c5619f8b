//! Errors of reading weights. All are the storage's fault.

/// Weights that could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A read failed.
    #[error("{file}: cannot read {len} bytes at {offset} ({tensor}): {source}")]
    Read {
        /// Base name of the file.
        file: String,
        /// The tensor that needed the bytes.
        tensor: String,
        /// Where the read began.
        offset: u64,
        /// How many bytes were asked for.
        len: u64,
        /// The cause.
        source: std::io::Error,
    },
    /// Memory for packed weights could not be had.
    #[error("cannot allocate {bytes} bytes for {what}")]
    Memory {
        /// What it was for.
        what: String,
        /// Bytes asked for.
        bytes: u64,
    },
}
