//! Blocks to floats, straight from the layouts: the definition that faster code is compared with.
//!
//! A product of a block's scale and a sub-block's is rounded to f32 before it meets the weight, and nothing is
//! fused, so that the values are those of ggml bit for bit.

use half::{bf16, f16};

use super::BlockFormat;

/// Turns whole blocks into weights. `None`, with `out` untouched, unless `blocks` holds exactly `out.len()`
/// weights.
#[must_use]
pub fn dequantise(format: BlockFormat, blocks: &[u8], out: &mut [f32]) -> Option<()> {
    if format.row_bytes(out.len()) != Some(blocks.len()) {
        return None;
    }
    match format {
        BlockFormat::F32 => {
            each(blocks, out, |block, out: &mut [f32; 1]| *out = [f32::from_le_bytes(*block)])
        }
        BlockFormat::F16 => each(blocks, out, |block, out: &mut [f32; 1]| *out = [half(*block)]),
        BlockFormat::BF16 => {
            each(blocks, out, |block, out: &mut [f32; 1]| *out = [bf16::from_le_bytes(*block).to_f32()]);
        }
        BlockFormat::Q4_0 => each(blocks, out, q4_0),
        BlockFormat::Q4_1 => each(blocks, out, q4_1),
        BlockFormat::Q5_0 => each(blocks, out, q5_0),
        BlockFormat::Q5_1 => each(blocks, out, q5_1),
        BlockFormat::Q8_0 => each(blocks, out, q8_0),
        BlockFormat::Q4_K => each(blocks, out, q4_k),
        BlockFormat::Q5_K => each(blocks, out, q5_k),
        BlockFormat::Q6_K => each(blocks, out, q6_k),
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

/// The nibble of weight `i` of 32: the first half of the weights has the low nibbles of 16 bytes, the second half
/// the high ones.
fn nibble(nibbles: &[u8], i: usize) -> u8 {
    (nibbles[i % 16] >> (4 * (i / 16))) & 0x0F
}

/// Scale, 16 bytes of nibbles; the weight is `d (q - 8)`.
fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let [d0, d1, nibbles @ ..] = block;
    let d = half([*d0, *d1]);
    for (i, weight) in out.iter_mut().enumerate() {
        *weight = d * f32::from(nibble(nibbles, i) as i8 - 8);
    }
}

/// Scale, minimum, 16 bytes of nibbles; the weight is `d q + m`.
fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let [d0, d1, m0, m1, nibbles @ ..] = block;
    let (d, m) = (half([*d0, *d1]), half([*m0, *m1]));
    for (i, weight) in out.iter_mut().enumerate() {
        *weight = d * f32::from(nibble(nibbles, i)) + m;
    }
}

/// Five bits: a nibble and bit `i` of a 32-bit word.
fn five_bits(high: u32, nibbles: &[u8], i: usize) -> u8 {
    nibble(nibbles, i) | (((high >> i) & 1) as u8) << 4
}

/// Scale, a word of fifth bits, 16 bytes of nibbles; the weight is `d (q - 16)`.
fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let [d0, d1, h0, h1, h2, h3, nibbles @ ..] = block;
    let (d, high) = (half([*d0, *d1]), u32::from_le_bytes([*h0, *h1, *h2, *h3]));
    for (i, weight) in out.iter_mut().enumerate() {
        *weight = d * f32::from(five_bits(high, nibbles, i) as i8 - 16);
    }
}

/// Scale, minimum, a word of fifth bits, 16 bytes of nibbles; the weight is `d q + m`.
fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let [d0, d1, m0, m1, h0, h1, h2, h3, nibbles @ ..] = block;
    let (d, m, high) = (half([*d0, *d1]), half([*m0, *m1]), u32::from_le_bytes([*h0, *h1, *h2, *h3]));
    for (i, weight) in out.iter_mut().enumerate() {
        *weight = d * f32::from(five_bits(high, nibbles, i)) + m;
    }
}

/// Scale, 32 signed bytes; the weight is `d q`.
fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let [d0, d1, quants @ ..] = block;
    let d = half([*d0, *d1]);
    for (weight, quant) in out.iter_mut().zip(quants) {
        *weight = d * f32::from(*quant as i8);
    }
}

/// The 6-bit scales and minima of the 8 sub-blocks of Q4_K and Q5_K, packed into 12 bytes: the first four of each
/// are the low bits of bytes 0 to 3 and 4 to 7; the last four have their low nibbles in bytes 8 to 11 and their
/// high bits on top of the first four.
pub fn k_scales(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut minima) = ([0; 8], [0; 8]);
    for i in 0..4 {
        scales[i] = packed[i] & 0x3F;
        minima[i] = packed[i + 4] & 0x3F;
        scales[i + 4] = (packed[i + 8] & 0x0F) | (packed[i] >> 6) << 4;
        minima[i + 4] = (packed[i + 8] >> 4) | (packed[i + 4] >> 6) << 4;
    }
    (scales, minima)
}

/// What Q4_K and Q5_K share: `(d scale) q - (dmin minimum)` in sub-blocks of 32; `quant` gives the q of a weight
/// from its sub-block and its place in it.
fn k_block(head: &[u8; 16], out: &mut [f32; 256], quant: impl Fn(usize, usize) -> u8) {
    let [d0, d1, m0, m1, packed @ ..] = head;
    let (d, dmin) = (half([*d0, *d1]), half([*m0, *m1]));
    let (scales, minima) = k_scales(packed);
    let (subs, _) = out.as_chunks_mut::<32>();
    for (sub, weights) in subs.iter_mut().enumerate() {
        let (scale, minimum) = (d * f32::from(scales[sub]), dmin * f32::from(minima[sub]));
        for (l, weight) in weights.iter_mut().enumerate() {
            *weight = scale * f32::from(quant(sub, l)) - minimum;
        }
    }
}

/// Sub-blocks come in pairs: 32 bytes whose low nibbles are the first one's and whose high nibbles the second's.
fn paired_nibble(nibbles: &[u8], sub: usize, l: usize) -> u8 {
    (nibbles[32 * (sub / 2) + l] >> (4 * (sub % 2))) & 0x0F
}

/// Two scales, 12 bytes of packed scales, 128 bytes of nibbles.
fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    if let Some((head, nibbles)) = block.split_first_chunk::<16>() {
        k_block(head, out, |sub, l| paired_nibble(nibbles, sub, l));
    }
}

/// Two scales, 12 bytes of packed scales, 32 bytes of fifth bits (bit `sub` of byte `l`), 128 bytes of nibbles.
fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    if let Some((head, rest)) = block.split_first_chunk::<16>() {
        let (high, nibbles) = rest.split_at(32);
        k_block(head, out, |sub, l| paired_nibble(nibbles, sub, l) | ((high[l] >> sub) & 1) << 4);
    }
}

/// 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales (one for 16 weights), a scale; the
/// weight is `(d scale) (q - 32)`. Each half of the block has its own 64 and 32 bytes.
fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, d) = rest.split_at(16);
    let d = half([d[0], d[1]]);
    for (i, weight) in out.iter_mut().enumerate() {
        let (part, quarter, l) = (i / 128, i / 32 % 4, i % 32);
        let nibble = (low[64 * part + 32 * (quarter % 2) + l] >> (4 * (quarter / 2))) & 0x0F;
        let pair = (high[32 * part + l] >> (2 * quarter)) & 0x03;
        let quant = (nibble | pair << 4) as i8 - 32;
        *weight = d * f32::from(scales[i / 16] as i8) * f32::from(quant);
    }
}
