//! Which extents make up a matrix or a vector.

use unfazed_formats::{BlockFormat, Extent};

/// A matrix, or a stack of equal matrices (the experts of a layer), in the files.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixSource {
    /// Name for messages.
    pub name: String,
    /// How the weights are stored.
    pub format: BlockFormat,
    /// Rows (outputs) of one matrix.
    pub rows: usize,
    /// Columns (inputs) of one matrix; whole blocks.
    pub columns: usize,
    /// One extent for each matrix of the stack, each of `rows` rows.
    pub parts: Vec<Extent>,
}

/// A vector of floats (F32, F16 or BF16) in the files.
#[derive(Clone, Debug, PartialEq)]
pub struct VectorSource {
    /// Name for messages.
    pub name: String,
    /// How the values are stored.
    pub format: BlockFormat,
    /// Number of values.
    pub len: usize,
    /// Where they are.
    pub extent: Extent,
}

/// Either.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source<'s> {
    /// A matrix or a stack.
    Matrix(&'s MatrixSource),
    /// A vector.
    Vector(&'s VectorSource),
}
