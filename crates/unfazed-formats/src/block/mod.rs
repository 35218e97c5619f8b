//! Block formats: how many weights share a block, and how a block is laid out.
//!
//! Layouts are those of the GGUF format specification (ggml's `ggml-common.h` is the source of the tables). What
//! MLX and 8-bit float checkpoints keep in several tensors is here a row of blocks too, with the scales before
//! the codes that they belong to.
//!
//! | module | what |
//! |---|---|
//! | [`affine`] | MLX's affine formats: widths, groups, row layout |
//! | [`dequantise`](fn@dequantise) | blocks to floats: what each format means |
//! | [`grids`] | the codebooks of the IQ formats |
//! | [`small_floats`] | scales and weights of 8 bits: E8M0, UE4M3, E4M3 |

pub mod affine;
mod dequantise;
pub mod grids;
pub mod small_floats;

use serde::{Deserialize, Serialize};

pub use affine::Affine;
pub use dequantise::{dequantise, k_scales, q3_k_scales};

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
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
    /// Floats of 8 bits (E4M3), an f32 scale for 128 of them: scale, then weights.
    FP8,
    /// Floats of 8 bits (E4M3), an E8M0 scale for 32 of them: scale, then weights.
    MXFP8,
    /// MLX's affine quantisation.
    Affine(Affine),
}

use BlockFormat::*;

impl BlockFormat {
    /// The formats that tensors of GGUF files have.
    pub const GGUF: [BlockFormat; 26] = [
        F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ1_S, IQ1_M, IQ2_XXS,
        IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ4_NL, IQ4_XS, TQ1_0, TQ2_0, MXFP4, NVFP4,
    ];

    /// All formats.
    pub fn all() -> impl Iterator<Item = BlockFormat> {
        BlockFormat::GGUF.into_iter().chain([FP8, MXFP8]).chain(Affine::all().map(BlockFormat::Affine))
    }

    /// Weights in a block: 1 for floats, else a multiple of 32.
    pub const fn block_weights(self) -> usize {
        match self {
            F32 | F16 | BF16 => 1,
            Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | IQ4_NL | MXFP4 | MXFP8 => 32,
            NVFP4 => 64,
            FP8 => 128,
            Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S
            | IQ4_XS | TQ1_0 | TQ2_0 => 256,
            BlockFormat::Affine(affine) => affine.group.weights(),
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            F32 => 4,
            F16 | BF16 => 2,
            Q4_0 | IQ4_NL => 18,
            Q4_1 => 20,
            Q5_0 => 22,
            Q5_1 => 24,
            Q8_0 => 34,
            Q2_K => 84,
            Q3_K | IQ3_S => 110,
            Q4_K => 144,
            Q5_K => 176,
            Q6_K => 210,
            IQ1_S => 50,
            IQ1_M => 56,
            IQ2_XXS | TQ2_0 => 66,
            IQ2_XS => 74,
            IQ2_S => 82,
            IQ3_XXS => 98,
            IQ4_XS => 136,
            TQ1_0 => 54,
            MXFP4 => 17,
            NVFP4 => 36,
            FP8 => 132,
            MXFP8 => 33,
            BlockFormat::Affine(affine) => affine.block_bytes(),
        }
    }

    /// Bytes of a row of `columns` weights, or `None` if they do not fill whole blocks or the size overflows.
    pub fn row_bytes(self, columns: usize) -> Option<usize> {
        let block = self.block_weights();
        columns.is_multiple_of(block).then(|| columns / block)?.checked_mul(self.block_bytes())
    }
}
