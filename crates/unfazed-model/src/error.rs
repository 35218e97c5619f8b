//! The one error type of this crate.

use unfazed_device::DeviceError;

/// A model that cannot be loaded. All variants but [`ModelError::Device`] are the fault of the model's files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A tensor that the family needs is not there.
    #[error("{file}: tensor {tensor} is missing: the family {family} needs it, shaped {expected}")]
    Missing {
        /// Base name of the model's first file.
        file: String,
        /// The tensor, as the file's layout names it.
        tensor: String,
        /// The family.
        family: &'static str,
        /// The shape it should have, outermost dimension first.
        expected: String,
    },
    /// A tensor's shape contradicts the model's configuration.
    #[error("{file}: tensor {tensor} has the shape {found}, expected {expected} ({reason})")]
    Shape {
        /// Base name of the file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its dimensions, outermost first.
        found: String,
        /// What they should be.
        expected: String,
        /// What the dimensions stand for.
        reason: &'static str,
    },
    /// A tensor is stored in a format that does not fit its use or its shape.
    #[error("{file}: tensor {tensor} has the format {format:?}: {reason}")]
    Format {
        /// Base name of the file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The format found.
        format: unfazed_formats::BlockFormat,
        /// Why it does not fit, with what would.
        reason: String,
    },
    /// A tensor's bytes are not as many as its shape and format say.
    #[error("{file}: tensor {tensor} has {found} bytes, its shape and format need {expected}")]
    Length {
        /// Base name of the file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Bytes in the file.
        found: u64,
        /// Bytes needed.
        expected: u64,
    },
    /// A tensor that the family's forward pass does not use: leaving it out would give wrong answers.
    #[error("{file}: tensor {tensor} is not part of the family {family}: not supported ({reason})")]
    Unexpected {
        /// Base name of the file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The family.
        family: &'static str,
        /// What it seems to be.
        reason: &'static str,
    },
    /// The configuration contradicts the family.
    #[error("{file}: {field} is {value}: the family {family} {reason}")]
    Config {
        /// Base name of the model's first file.
        file: String,
        /// The field of the configuration.
        field: &'static str,
        /// Its value.
        value: String,
        /// The family.
        family: &'static str,
        /// What the family needs instead.
        reason: &'static str,
    },
    /// The device could not read or hold the weights.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
