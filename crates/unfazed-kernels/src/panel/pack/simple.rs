//! Formats of 32 to 128 weights.

use super::place::{Codes, NIBBLE, Place, dword, spread};

/// 16 bytes of nibbles: the first half of the codes has the low ones.
#[inline(always)]
pub(super) fn nibbles(bytes: &[u8]) -> Codes {
    std::array::from_fn(|g| dword(bytes, g % 4) >> (g / 4 * 4) & NIBBLE)
}

/// Nibbles, and fifth bits.
#[inline(always)]
fn five_bits(high: &[u8], bytes: &[u8]) -> Codes {
    let (low, high) = (nibbles(bytes), dword(high, 0));
    std::array::from_fn(|g| low[g] | spread(high >> (4 * g)) << 4)
}

#[inline(always)]
pub(super) fn q4_0(block: &[u8; 18], to: &mut Place<'_>) {
    let [d0, d1, quants @ ..] = block;
    to.scale([*d0, *d1]);
    to.codes::<4>(0, nibbles(quants));
}

#[inline(always)]
pub(super) fn q4_1(block: &[u8; 20], to: &mut Place<'_>) {
    let [d0, d1, m0, m1, quants @ ..] = block;
    to.scale([*d0, *d1]);
    to.minimum([*m0, *m1]);
    to.codes::<4>(0, nibbles(quants));
}

#[inline(always)]
pub(super) fn q5_0(block: &[u8; 22], to: &mut Place<'_>) {
    let [d0, d1, quants @ ..] = block;
    to.scale([*d0, *d1]);
    to.codes::<5>(0, five_bits(quants, &quants[4..]));
}

#[inline(always)]
pub(super) fn q5_1(block: &[u8; 24], to: &mut Place<'_>) {
    let [d0, d1, m0, m1, quants @ ..] = block;
    to.scale([*d0, *d1]);
    to.minimum([*m0, *m1]);
    to.codes::<5>(0, five_bits(quants, &quants[4..]));
}

/// As unsigned bytes the quants are 128 more.
#[inline(always)]
pub(super) fn q8_0(block: &[u8; 34], to: &mut Place<'_>) {
    let [d0, d1, quants @ ..] = block;
    to.scale([*d0, *d1]);
    to.codes::<8>(0, std::array::from_fn(|g| dword(quants, g) ^ 0x8080_8080));
}

#[inline(always)]
pub(super) fn mxfp4(block: &[u8; 17], to: &mut Place<'_>) {
    let [e, quants @ ..] = block;
    to.scale([*e]);
    to.codes::<4>(0, nibbles(quants));
}

/// The nibbles of a sub-block of 16 are together, so groups of 32 have two times low and high ones.
#[inline(always)]
pub(super) fn nvfp4(block: &[u8; 36], to: &mut Place<'_>) {
    let (scales, quants) = block.split_at(4);
    for (j, &scale) in scales.iter().enumerate() {
        // Without sign; the NaN is zero.
        to.sub_scale(j, if scale == 0x7f { 0 } else { scale & 0x7f });
    }
    for g in 0..2 {
        to.codes::<4>(
            g,
            std::array::from_fn(|i| dword(quants, 4 * g + i / 4 * 2 + i % 2) >> (i / 2 % 2 * 4) & NIBBLE),
        );
    }
}

/// A stream of bits: 4 codes at a time are fewer than 8 bytes.
#[inline(always)]
pub(super) fn affine<const BITS: usize>(block: &[u8], to: &mut Place<'_>) {
    let [d0, d1, m0, m1, quants @ ..] = block else { return };
    to.scale([*d0, *d1]);
    to.minimum([*m0, *m1]);
    for (g, bytes) in quants.chunks_exact(4 * BITS).enumerate() {
        to.codes::<BITS>(
            g,
            std::array::from_fn(|i| {
                let eight = &bytes[i / 2 * BITS..][..BITS];
                let stream = eight.iter().rev().fold(0, |stream, &byte| stream << 8 | u64::from(byte));
                four_codes::<BITS>(stream >> (i % 2 * 4 * BITS))
            }),
        );
    }
}

/// The lowest 4 codes of a stream.
#[inline(always)]
fn four_codes<const BITS: usize>(stream: u64) -> u32 {
    (0..4).fold(0, |codes, k| codes | ((stream >> (k * BITS) & ((1 << BITS) - 1)) as u32) << (8 * k))
}

#[inline(always)]
pub(super) fn fp8(block: &[u8; 132], to: &mut Place<'_>) {
    let [s0, s1, s2, s3, columns @ ..] = block;
    to.scale([*s0, *s1, *s2, *s3]);
    for (k, &byte) in columns.iter().enumerate() {
        to.column(k, byte);
    }
}

#[inline(always)]
pub(super) fn mxfp8(block: &[u8; 33], to: &mut Place<'_>) {
    let [e, columns @ ..] = block;
    to.scale([*e]);
    for (k, &byte) in columns.iter().enumerate() {
        to.column(k, byte);
    }
}
