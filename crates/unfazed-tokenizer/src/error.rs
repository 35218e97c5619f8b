//! What can go wrong with a tokenizer, and whose fault it is.

use thiserror::Error;

/// A tokenizer that can't be built, or text that can't be encoded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The model's fault: its tokenizer is of a kind that is not supported.
    #[error("{file}: {field} is {value:?}, which is not supported (supported: {supported})")]
    Unsupported {
        /// Base name of the file.
        file: String,
        /// Field that names the kind.
        field: &'static str,
        /// What it says.
        value: String,
        /// What it may say.
        supported: &'static str,
    },
    /// The model's fault: a field of the tokenizer is missing or makes no sense.
    #[error("{file}: {field}: {what}")]
    Invalid {
        /// Base name of the file.
        file: String,
        /// Field at fault.
        field: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// The client's fault: the text is longer than [`crate::MAX_TEXT_BYTES`].
    #[error("the text has {bytes} bytes, the tokenizer takes at most {most}: send a shorter one")]
    TextTooLong {
        /// Length of the text.
        bytes: usize,
        /// The limit.
        most: usize,
    },
    /// The client's text has a character that the model's vocabulary can't express: it has neither a piece
    /// for it nor pieces for its bytes nor an unknown token.
    #[error("the model's vocabulary can't express the character {0:?}")]
    Inexpressible(char),
    /// Our fault or the `tokenizers` crate's: encoding failed on valid input.
    #[error("encoding failed: {0}")]
    Encoding(String),
}
