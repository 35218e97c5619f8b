//! Blocks of 32 weights with a scale, perhaps a minimum; and FP4.

use super::super::grids::{FP4_VALUES, IQ4_VALUES};
use super::super::small_floats::{e8m0_half, ue4m3_half};
use super::half;

/// The nibble of weight `i` of 32: the first half of the weights has the low nibbles of 16 bytes, the second half
/// the high ones.
pub(super) fn nibble(nibbles: &[u8], i: usize) -> u8 {
    (nibbles[i % 16] >> (4 * (i / 16))) & 0x0F
}

/// Scale, 16 bytes of nibbles; the weight is `d (q - 8)`.
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let [d0, d1, nibbles @ ..] = block;
    let d = half([*d0, *d1]);
    for (i, weight) in out.iter_mut().enumerate() {
        *weight = d * f32::from(nibble(nibbles, i) as i8 - 8);
    }
}

/// Scale, minimum, 16 bytes of nibbles; the weight is `d q + m`.
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
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
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let [d0, d1, h0, h1, h2, h3, nibbles @ ..] = block;
    let (d, high) = (half([*d0, *d1]), u32::from_le_bytes([*h0, *h1, *h2, *h3]));
    for (i, weight) in out.iter_mut().enumerate() {
        *weight = d * f32::from(five_bits(high, nibbles, i) as i8 - 16);
    }
}

/// Scale, minimum, a word of fifth bits, 16 bytes of nibbles; the weight is `d q + m`.
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let [d0, d1, m0, m1, h0, h1, h2, h3, nibbles @ ..] = block;
    let (d, m, high) = (half([*d0, *d1]), half([*m0, *m1]), u32::from_le_bytes([*h0, *h1, *h2, *h3]));
    for (i, weight) in out.iter_mut().enumerate() {
        *weight = d * f32::from(five_bits(high, nibbles, i)) + m;
    }
}

/// Scale, 32 signed bytes; the weight is `d q`.
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let [d0, d1, quants @ ..] = block;
    let d = half([*d0, *d1]);
    for (weight, quant) in out.iter_mut().zip(quants) {
        *weight = d * f32::from(*quant as i8);
    }
}

/// Scale, 16 bytes of nibbles; the weight is `d` times the value that the nibble stands for.
pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let [d0, d1, nibbles @ ..] = block;
    let d = half([*d0, *d1]);
    for (i, weight) in out.iter_mut().enumerate() {
        *weight = d * f32::from(IQ4_VALUES[usize::from(nibble(nibbles, i))]);
    }
}

/// E8M0 scale, 16 bytes of E2M1 floats.
pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let [e, nibbles @ ..] = block;
    let d = e8m0_half(*e);
    for (i, weight) in out.iter_mut().enumerate() {
        *weight = d * f32::from(FP4_VALUES[usize::from(nibble(nibbles, i))]);
    }
}

/// Four UE4M3 scales, 32 bytes of E2M1 floats: 8 for each sub-block of 16, low nibbles first.
pub(super) fn nvfp4(block: &[u8; 36], out: &mut [f32; 64]) {
    let (scales, nibbles) = block.split_at(4);
    for (i, weight) in out.iter_mut().enumerate() {
        let (sub, l) = (i / 16, i % 16);
        let nibble = (nibbles[8 * sub + l % 8] >> (4 * (l / 8))) & 0x0F;
        *weight = ue4m3_half(scales[sub]) * f32::from(FP4_VALUES[usize::from(nibble)]);
    }
}
