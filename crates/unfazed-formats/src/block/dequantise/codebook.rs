//! The IQ formats of 256 weights: 8 (or 4) weights at a time are an entry of a grid of magnitudes, with signs.
//!
//! Scales of sub-blocks are odd numbers `2s + 1` of quarters or eighths, so that every product is exact.

use super::super::grids::{
    IQ1, IQ2_MAGNITUDES, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_S_MAGNITUDES, IQ3_XXS, IQ3_XXS_MAGNITUDES,
    IQ4_VALUES, even_signs,
};
use super::half;
use super::simple::nibble;

fn word(bytes: &[u8], i: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])
}

fn double(bytes: &[u8], i: usize) -> u32 {
    u32::from(word(bytes, 2 * i)) | u32::from(word(bytes, 2 * i + 1)) << 16
}

/// `scale` times the magnitude, with sign `k`.
fn signed(scale: f32, magnitude: u8, signs: u8, k: usize) -> f32 {
    let weight = scale * f32::from(magnitude);
    if signs >> k & 1 == 0 { weight } else { -weight }
}

/// 8 weights of an entry of bit pairs.
fn eight(scale: f32, entry: u16, signs: u8, out: &mut [f32]) {
    for (k, weight) in out[..8].iter_mut().enumerate() {
        *weight = signed(scale, IQ2_MAGNITUDES[usize::from(entry >> (2 * k) & 3)], signs, k);
    }
}

/// 8 weights of two entries of nibbles.
fn four_and_four(scale: f32, entries: [u16; 2], magnitudes: &[u8; 8], signs: u8, out: &mut [f32]) {
    for (k, weight) in out[..8].iter_mut().enumerate() {
        let magnitude = magnitudes[usize::from(entries[k / 4] >> (4 * (k % 4)) & 7)];
        *weight = signed(scale, magnitude, signs, k);
    }
}

/// Scale; for each 32 weights 4 entries of 8 bits, then 4 times 7 bits of signs and 4 bits of scale.
pub(super) fn iq2_xxs(block: &[u8; 66], out: &mut [f32; 256]) {
    let (d, rest) = block.split_at(2);
    let d = half([d[0], d[1]]);
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let (entry, signs) = (rest[i / 4 * 8 + i % 4], double(rest, i / 4 * 2 + 1));
        let scale = d * (0.5 + (signs >> 28) as f32) * 0.25;
        eight(scale, IQ2_XXS[usize::from(entry)], even_signs((signs >> (7 * (i % 4))) as u8), out);
    }
}

/// Scale; for each 8 weights 9 bits of entry and 7 of signs; 8 bytes of scales, a nibble for 16 weights.
pub(super) fn iq2_xs(block: &[u8; 74], out: &mut [f32; 256]) {
    let (d, rest) = block.split_at(2);
    let (quants, scales) = rest.split_at(64);
    let d = half([d[0], d[1]]);
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let quant = word(quants, i);
        let scale = d * (0.5 + f32::from(scales[i / 4] >> (i / 2 % 2 * 4) & 15)) * 0.25;
        eight(scale, IQ2_XS[usize::from(quant & 511)], even_signs((quant >> 9) as u8), out);
    }
}

/// Scale; for each 8 weights the low 8 bits of an entry; signs; the entries' high 2 bits; scales as in IQ2_XS.
pub(super) fn iq2_s(block: &[u8; 82], out: &mut [f32; 256]) {
    let (d, rest) = block.split_at(2);
    let (quants, rest) = rest.split_at(32);
    let (signs, rest) = rest.split_at(32);
    let (high, scales) = rest.split_at(8);
    let d = half([d[0], d[1]]);
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let entry = usize::from(quants[i]) | usize::from(high[i / 4] >> (2 * (i % 4)) & 3) << 8;
        let scale = d * (0.5 + f32::from(scales[i / 4] >> (i / 2 % 2 * 4) & 15)) * 0.25;
        eight(scale, IQ2_S[entry], signs[i], out);
    }
}

/// Scale; for each 4 weights an entry; for each 32 weights 4 times 7 bits of signs and 4 bits of scale.
pub(super) fn iq3_xxs(block: &[u8; 98], out: &mut [f32; 256]) {
    let (d, rest) = block.split_at(2);
    let (quants, signs) = rest.split_at(64);
    let d = half([d[0], d[1]]);
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let entries = [2 * i, 2 * i + 1].map(|i| IQ3_XXS[usize::from(quants[i])]);
        let signs = double(signs, i / 4);
        let scale = d * (0.5 + (signs >> 28) as f32) * 0.5;
        let signs = even_signs((signs >> (7 * (i % 4))) as u8);
        four_and_four(scale, entries, &IQ3_XXS_MAGNITUDES, signs, out);
    }
}

/// Scale; for each 4 weights the low 8 bits of an entry; the entries' high bits; signs; 4 bytes of scales, a
/// nibble for 32 weights.
pub(super) fn iq3_s(block: &[u8; 110], out: &mut [f32; 256]) {
    let (d, rest) = block.split_at(2);
    let (quants, rest) = rest.split_at(64);
    let (high, rest) = rest.split_at(8);
    let (signs, scales) = rest.split_at(32);
    let d = half([d[0], d[1]]);
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let entries = [2 * i, 2 * i + 1]
            .map(|i| IQ3_S[usize::from(quants[i]) | usize::from(high[i / 8] >> (i % 8) & 1) << 8]);
        let scale = d * f32::from(1 + 2 * (scales[i / 8] >> (i / 4 % 2 * 4) & 15));
        four_and_four(scale, entries, &IQ3_S_MAGNITUDES, signs[i], out);
    }
}

/// 8 weights of an entry of -1, 0, 1, each an eighth more or less.
fn shifted(scale: f32, entry: u16, less: bool, out: &mut [f32]) {
    let delta = if less { -0.125 } else { 0.125 };
    for (k, weight) in out[..8].iter_mut().enumerate() {
        *weight = scale * (f32::from(entry >> (2 * k) & 3) - 1.0 + delta);
    }
}

/// Scale; for each 8 weights the low 8 bits of an entry; for each 32 weights 4 times 3 high bits, 3 bits of scale
/// and the sign of the eighth.
pub(super) fn iq1_s(block: &[u8; 50], out: &mut [f32; 256]) {
    let (d, rest) = block.split_at(2);
    let (quants, high) = rest.split_at(32);
    let d = half([d[0], d[1]]);
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let high = word(high, i / 4);
        let entry = usize::from(quants[i]) | usize::from(high >> (3 * (i % 4)) & 7) << 8;
        let scale = d * f32::from(2 * (high >> 12 & 7) + 1);
        shifted(scale, IQ1[entry], high & 0x8000 != 0, out);
    }
}

/// For each 8 weights the low 8 bits of an entry; then a nibble of 3 high bits and the sign of the eighth; 4 words
/// of 4 scales of 3 bits each for 16 weights, whose top nibbles are the scale of the block.
pub(super) fn iq1_m(block: &[u8; 56], out: &mut [f32; 256]) {
    let (quants, rest) = block.split_at(32);
    let (high, scales) = rest.split_at(16);
    let d = (0..4).fold(0, |d, i| d | word(scales, i) >> 12 << (4 * i));
    let d = half(d.to_le_bytes());
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let high = high[i / 2] >> (i % 2 * 4);
        let entry = usize::from(quants[i]) | usize::from(high & 7) << 8;
        let scale = d * f32::from(2 * (word(scales, i / 8) >> (3 * (i / 2 % 4)) & 7) + 1);
        shifted(scale, IQ1[entry], high & 8 != 0, out);
    }
}

/// Scale; 16 bits of scales' upper pairs; 4 bytes of their low nibbles; 16 bytes of nibbles for 32 weights. The
/// weight is `(d (scale - 32))` times the value that the nibble stands for.
pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let (head, nibbles) = block.split_at(8);
    let (d, high) = (half([head[0], head[1]]), word(head, 1));
    for (i, weight) in out.iter_mut().enumerate() {
        let sub = i / 32;
        let scale = (head[4 + sub / 2] >> (4 * (sub % 2)) & 15) | ((high >> (2 * sub) & 3) << 4) as u8;
        let value = IQ4_VALUES[usize::from(nibble(&nibbles[16 * sub..], i % 32))];
        *weight = d * f32::from(scale as i8 - 32) * f32::from(value);
    }
}
