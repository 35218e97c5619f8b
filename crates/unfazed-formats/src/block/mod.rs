//! Block formats: how many weights share a block, and how a block is laid out.
//!
//! Layouts are those of the GGUF format specification (ggml's `ggml-common.h` is the source of the tables).

mod dequantise;

use serde::{Deserialize, Serialize};

pub use dequantise::{dequantise, k_scales};

/// How the weights of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(non_camel_case_types, missing_docs)]
pub enum BlockFormat {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4_K,
    Q5_K,
    Q6_K,
}

impl BlockFormat {
    /// All formats.
    pub const ALL: [BlockFormat; 11] = [
        BlockFormat::F32,
        BlockFormat::F16,
        BlockFormat::BF16,
        BlockFormat::Q4_0,
        BlockFormat::Q4_1,
        BlockFormat::Q5_0,
        BlockFormat::Q5_1,
        BlockFormat::Q8_0,
        BlockFormat::Q4_K,
        BlockFormat::Q5_K,
        BlockFormat::Q6_K,
    ];

    /// Weights in a block: 1 for floats, 32 or 256.
    pub const fn block_weights(self) -> usize {
        match self {
            BlockFormat::F32 | BlockFormat::F16 | BlockFormat::BF16 => 1,
            BlockFormat::Q4_0
            | BlockFormat::Q4_1
            | BlockFormat::Q5_0
            | BlockFormat::Q5_1
            | BlockFormat::Q8_0 => 32,
            BlockFormat::Q4_K | BlockFormat::Q5_K | BlockFormat::Q6_K => 256,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            BlockFormat::F32 => 4,
            BlockFormat::F16 | BlockFormat::BF16 => 2,
            BlockFormat::Q4_0 => 18,
            BlockFormat::Q4_1 => 20,
            BlockFormat::Q5_0 => 22,
            BlockFormat::Q5_1 => 24,
            BlockFormat::Q8_0 => 34,
            BlockFormat::Q4_K => 144,
            BlockFormat::Q5_K => 176,
            BlockFormat::Q6_K => 210,
        }
    }

    /// Bytes of a row of `columns` weights, or `None` if they do not fill whole blocks or the size overflows.
    pub fn row_bytes(self, columns: usize) -> Option<usize> {
        let block = self.block_weights();
        columns.is_multiple_of(block).then(|| columns / block)?.checked_mul(self.block_bytes())
    }
}
