//! Floats of 8 to 32 bits.

use half::bf16;

use super::super::small_floats::{e4m3, e8m0};
use super::half;

pub(super) fn f32(bytes: &[u8; 4], out: &mut [f32; 1]) {
    *out = [f32::from_le_bytes(*bytes)];
}

pub(super) fn f16(bytes: &[u8; 2], out: &mut [f32; 1]) {
    *out = [half(*bytes)];
}

pub(super) fn bf16(bytes: &[u8; 2], out: &mut [f32; 1]) {
    *out = [bf16::from_le_bytes(*bytes).to_f32()];
}

/// Scale, 128 E4M3 floats.
pub(super) fn fp8(block: &[u8; 132], out: &mut [f32; 128]) {
    let [s0, s1, s2, s3, codes @ ..] = block;
    let scale = f32::from_le_bytes([*s0, *s1, *s2, *s3]);
    for (weight, code) in out.iter_mut().zip(codes) {
        *weight = scale * e4m3(*code);
    }
}

/// E8M0 scale, 32 E4M3 floats.
pub(super) fn mxfp8(block: &[u8; 33], out: &mut [f32; 32]) {
    let [scale, codes @ ..] = block;
    for (weight, code) in out.iter_mut().zip(codes) {
        *weight = e8m0(*scale) * e4m3(*code);
    }
}
