//! What a prepared kernel is remembered by.

use unfazed_kernels::activations::Grain;

use super::weights::{MatrixId, VectorId};

/// A kernel with the buffers that it works on. Decode kernels are made for one row or for some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// Query, key and value of generated rows.
    DecodeQkv([MatrixId; 3], VectorId, usize),
    /// A prompt's rows times a matrix (the first of two), in tiles of so many rows.
    Product(Product, MatrixId, u32),
    /// Rounding of a prompt's rows.
    Round(Operand, Option<VectorId>, Form),
    /// Norms of heads, rotation, storing, of a layer.
    Heads(Mode, usize, Option<(VectorId, VectorId)>),
    /// Attention of a layer.
    Attention(Mode, usize),
    /// The second part of an attention over many positions.
    Merge,
    /// A product of generated rows that is added to the residual.
    DecodeAdd(MatrixId, usize),
    /// The router of generated rows.
    DecodeRouter(MatrixId, VectorId, usize),
    /// Which experts.
    TopK(Mode, bool),
    /// Gate and up of generated rows.
    DecodeInner(MatrixId, MatrixId, VectorId, usize),
    /// Down of generated rows.
    DecodeOuter(MatrixId),
    /// The rows of each expert.
    Group,
    /// Experts' outputs to the residual.
    Combine,
    /// Logits.
    Logits(Mode, MatrixId, VectorId, usize),
}

/// How rows are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Mode {
    Decode,
    Prompt,
}

/// What a prompt's rows are multiplied for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Product {
    Query,
    Key,
    Value,
    Context,
    Router,
    /// Of a dense network: gate and up.
    Gated,
    Down,
    /// Of a mixture: gate and up.
    ExpertsGated,
    ExpertsDown,
}

/// Rows that are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Operand {
    Residual,
    Context,
    Inner,
}

/// What a matrix wants to be multiplied by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Form {
    /// int8, scales and sums.
    Integers(Grain),
    /// f16 of the same numbers, and peaks.
    Halves(Grain),
    /// f32.
    Floats,
}
