//! The one error type of this crate.

use std::path::Path;

use unfazed_formats::FormatError;

/// A model or a damaged file that could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestkitError {
    /// The operating system refused to read or write.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// A file that was to be copied from cannot be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// What was asked for does not exist.
    #[error("{field} is {value}: {reason}")]
    Request {
        /// What was asked for.
        field: String,
        /// The value that cannot be.
        value: String,
        /// Why, with what can be.
        reason: String,
    },
}

impl TestkitError {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> TestkitError {
        TestkitError::Io { path: path.display().to_string(), source }
    }

    pub(crate) fn request(
        field: &str,
        value: &dyn std::fmt::Display,
        reason: impl Into<String>,
    ) -> TestkitError {
        TestkitError::Request { field: field.to_owned(), value: value.to_string(), reason: reason.into() }
    }
}
