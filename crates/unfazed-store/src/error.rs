//! Errors of reading weights. All are the storage's fault.

use unfazed_formats::BlockFormat;

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
    /// A file is not the one that was opened.
    #[error(
        "{file}: the file changed after it was opened ({what}), seen when reading at {offset}: start again to use it as \
         it is now"
    )]
    Changed {
        /// Base name of the file.
        file: String,
        /// Where the read began.
        offset: u64,
        /// What is different.
        what: String,
    },
    /// Bytes of a file are other ones than they were.
    #[error(
        "{file}: {tensor}: the {len} bytes at {offset} are not those that were read before (their hash was \
         {expected:016x} and is {found:016x}): compare the file with its source; if they are equal the earlier read was bad: delete the \
         usage profiles (experts-*.usage in the cache folder) and start again"
    )]
    Damaged {
        /// Base name of the file.
        file: String,
        /// The tensor, and which part of it.
        tensor: String,
        /// Where the bytes begin.
        offset: u64,
        /// How many they are.
        len: u64,
        /// XXH3-64 of what was read before.
        expected: u64,
        /// And of what was read now.
        found: u64,
    },
    /// Settings of the expert store that make no sense.
    #[error("the expert store: {reason}")]
    Experts {
        /// Which, and what would.
        reason: String,
    },
    /// A trace or a profile of experts that is damaged, or is of something else.
    #[error("{file}: at {offset}: {reason}")]
    Trace {
        /// Base name of the file.
        file: String,
        /// Where in the file.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// Memory for packed weights could not be had.
    #[error("cannot allocate {bytes} bytes for {what}")]
    Memory {
        /// What it was for.
        what: String,
        /// Bytes asked for.
        bytes: u64,
    },
    /// The memory that the front made for weights is not what it should be (a fault of ours).
    #[error("{tensor}: {reason}")]
    WeightMemory {
        /// The tensor.
        tensor: String,
        /// What is wrong.
        reason: String,
    },
    /// A tensor's shape does not fit its format.
    #[error("{tensor}: {shape} weights of {format:?} cannot be loaded ({reason})")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        shape: String,
        /// Its format.
        format: BlockFormat,
        /// Why not.
        reason: &'static str,
    },
    /// A tensor's extent is shorter than its shape says.
    #[error("{tensor}: its extent at {offset} has {len} bytes, its shape needs {needed}")]
    Extent {
        /// The tensor.
        tensor: String,
        /// Where the extent begins in its file.
        offset: u64,
        /// Bytes that it has.
        len: u64,
        /// Bytes that the shape needs.
        needed: u64,
    },
}
