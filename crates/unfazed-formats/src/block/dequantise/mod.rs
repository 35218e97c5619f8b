//! Blocks to floats, straight from the layouts: the definition that faster code is compared with.
//!
//! A product of a block's scale and a sub-block's is rounded to f32 before it meets the weight, and nothing is
//! fused, so that the values are those of ggml bit for bit. Most products are exact anyway: a scale of 11 bits, a
//! sub-block's of 6 and a code of 7 fill the 24 bits of an f32. Formats with minimums round their sum; FP8, whose
//! scale has all 24 bits, its product; the others round nothing.
//!
//! | module | what |
//! |---|---|
//! | `simple` | blocks of 32 with a scale, perhaps a minimum; FP4 |
//! | `superblock` | the K formats and the ternary ones |
//! | `codebook` | the IQ formats of 256 |
//! | `wide` | floats of 8 to 32 bits |

mod codebook;
mod simple;
mod superblock;
mod wide;

use half::f16;

use super::BlockFormat;

pub use superblock::{k_scales, q3_k_scales};

/// Turns whole blocks into weights. `None`, with `out` untouched, unless `blocks` holds exactly `out.len()`
/// weights.
#[must_use]
pub fn dequantise(format: BlockFormat, blocks: &[u8], out: &mut [f32]) -> Option<()> {
    if format.row_bytes(out.len()) != Some(blocks.len()) {
        return None;
    }
    match format {
        BlockFormat::F32 => each(blocks, out, wide::f32),
        BlockFormat::F16 => each(blocks, out, wide::f16),
        BlockFormat::BF16 => each(blocks, out, wide::bf16),
        BlockFormat::FP8 => each(blocks, out, wide::fp8),
        BlockFormat::MXFP8 => each(blocks, out, wide::mxfp8),
        BlockFormat::Q4_0 => each(blocks, out, simple::q4_0),
        BlockFormat::Q4_1 => each(blocks, out, simple::q4_1),
        BlockFormat::Q5_0 => each(blocks, out, simple::q5_0),
        BlockFormat::Q5_1 => each(blocks, out, simple::q5_1),
        BlockFormat::Q8_0 => each(blocks, out, simple::q8_0),
        BlockFormat::IQ4_NL => each(blocks, out, simple::iq4_nl),
        BlockFormat::MXFP4 => each(blocks, out, simple::mxfp4),
        BlockFormat::NVFP4 => each(blocks, out, simple::nvfp4),
        BlockFormat::Q2_K => each(blocks, out, superblock::q2_k),
        BlockFormat::Q3_K => each(blocks, out, superblock::q3_k),
        BlockFormat::Q4_K => each(blocks, out, superblock::q4_k),
        BlockFormat::Q5_K => each(blocks, out, superblock::q5_k),
        BlockFormat::Q6_K => each(blocks, out, superblock::q6_k),
        BlockFormat::TQ1_0 => each(blocks, out, superblock::tq1_0),
        BlockFormat::TQ2_0 => each(blocks, out, superblock::tq2_0),
        BlockFormat::IQ1_S => each(blocks, out, codebook::iq1_s),
        BlockFormat::IQ1_M => each(blocks, out, codebook::iq1_m),
        BlockFormat::IQ2_XXS => each(blocks, out, codebook::iq2_xxs),
        BlockFormat::IQ2_XS => each(blocks, out, codebook::iq2_xs),
        BlockFormat::IQ2_S => each(blocks, out, codebook::iq2_s),
        BlockFormat::IQ3_XXS => each(blocks, out, codebook::iq3_xxs),
        BlockFormat::IQ3_S => each(blocks, out, codebook::iq3_s),
        BlockFormat::IQ4_XS => each(blocks, out, codebook::iq4_xs),
        BlockFormat::Affine(affine) => super::affine::dequantise(affine, blocks, out),
    }
    Some(())
}

fn each<const BYTES: usize, const WEIGHTS: usize>(
    blocks: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; WEIGHTS]),
) {
    let (blocks, _) = blocks.as_chunks::<BYTES>();
    let (outs, _) = out.as_chunks_mut::<WEIGHTS>();
    for (block, out) in blocks.iter().zip(outs) {
        decode(block, out);
    }
}

fn half(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}
