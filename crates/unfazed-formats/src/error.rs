//! The one error type of this crate. Every variant is the fault of the file, never of a client's request.

use std::fmt;

/// A model file that cannot be used, with the file, the field and the value that say why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The operating system refused to open or read the file.
    #[error("{file}: cannot read {field}: {source}")]
    Io {
        /// Base name of the file.
        file: String,
        /// What was being read.
        field: String,
        /// The cause.
        source: std::io::Error,
    },
    /// A field of the file holds a value that cannot be right.
    #[error("{file}: {field} is {value}: {reason}")]
    Invalid {
        /// Base name of the file.
        file: String,
        /// The field, as the format's specification names it (a tensor's name and its property, a metadata key).
        field: String,
        /// The value found, shortened if long.
        value: String,
        /// Why it is refused, with the bound or the alternatives.
        reason: String,
    },
    /// A field that must be there is missing.
    #[error("{file}: {field} is missing: {reason}")]
    Missing {
        /// Base name of the file.
        file: String,
        /// The field.
        field: String,
        /// What it is needed for.
        reason: String,
    },
    /// The file is sound but asks for something that this program does not do.
    #[error("{file}: {field} is {value}: not supported ({supported})")]
    Unsupported {
        /// Base name of the file.
        file: String,
        /// The field.
        field: String,
        /// The value found.
        value: String,
        /// What is supported instead.
        supported: String,
    },
}

impl FormatError {
    pub(crate) fn io(file: &str, field: impl fmt::Display, source: std::io::Error) -> FormatError {
        FormatError::Io { file: file.to_owned(), field: shortened(&field.to_string()), source }
    }

    pub(crate) fn invalid(
        file: &str,
        field: impl fmt::Display,
        value: impl fmt::Display,
        reason: impl Into<String>,
    ) -> FormatError {
        FormatError::Invalid {
            file: file.to_owned(),
            field: shortened(&field.to_string()),
            value: shortened(&value.to_string()),
            reason: reason.into(),
        }
    }

    pub(crate) fn missing(file: &str, field: impl fmt::Display, reason: impl Into<String>) -> FormatError {
        FormatError::Missing {
            file: file.to_owned(),
            field: shortened(&field.to_string()),
            reason: reason.into(),
        }
    }

    pub(crate) fn unsupported(
        file: &str,
        field: impl fmt::Display,
        value: impl fmt::Display,
        supported: impl Into<String>,
    ) -> FormatError {
        FormatError::Unsupported {
            file: file.to_owned(),
            field: shortened(&field.to_string()),
            value: shortened(&value.to_string()),
            supported: supported.into(),
        }
    }
}

/// Text from a file as it may stand in a message of one line: control characters escaped, the middle left out
/// if it is long.
pub(crate) fn shortened(text: &str) -> String {
    const EDGE: usize = 48;
    let escaped = |part: &str| -> String {
        part.chars()
            .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
            .collect()
    };
    let count = text.chars().count();
    if count <= 2 * EDGE {
        return escaped(text);
    }
    let head: String = text.chars().take(EDGE).collect();
    let tail: String = text.chars().skip(count - EDGE).collect();
    format!("{}...{}", escaped(&head), escaped(&tail))
}
