//! The one error type of this crate. Every variant is the fault of the file, never of a client's request.

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
