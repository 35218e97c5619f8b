//! The K formats and the ternary ones.

use unfazed_formats::block::{k_scales, q3_k_scales};

use super::place::{BIT, Codes, NIBBLE, PAIR, Place, dword, dwords, quadwords};

/// The bit pairs of group `g` in Q2_K, Q3_K and TQ2_0.
#[inline(always)]
fn bit_pairs(quants: &[u8], g: usize) -> Codes {
    std::array::from_fn(|i| dword(quants, g / 4 * 8 + i) >> (2 * (g % 4)) & PAIR)
}

/// The planes of nibbles of two groups in Q4_K and Q5_K, which have the low and the high nibbles of 32 bytes.
#[inline(always)]
fn paired_nibbles(bytes: &[u8; 32]) -> [[u32; 4]; 2] {
    const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;
    let [a, b, c, d] = quadwords(bytes);
    // Columns from 16 on are in the high nibbles of a plane.
    let low = |first: u64, last: u64| first & LOW | (last & LOW) << 4;
    let high = |first: u64, last: u64| first >> 4 & LOW | last & !LOW;
    [dwords([low(a, c), low(b, d)]), dwords([high(a, c), high(b, d)])]
}

/// `low`, and bit `g` of 32 bytes as their bit `at`.
#[inline(always)]
fn with_bit(low: Codes, high: &[u8], g: usize, at: u32) -> Codes {
    std::array::from_fn(|i| low[i] | (dword(high, i) >> g & BIT) << at)
}

#[inline(always)]
pub(super) fn q2_k(block: &[u8; 84], to: &mut Place<'_>) -> ([u8; 16], [u8; 16]) {
    let (scales, rest) = block.split_at(16);
    let (quants, d) = rest.split_at(64);
    to.scale([d[0], d[1]]);
    to.minimum([d[2], d[3]]);
    for g in 0..8 {
        to.codes::<2>(g, bit_pairs(quants, g));
    }
    (std::array::from_fn(|j| scales[j] & 15), std::array::from_fn(|j| scales[j] >> 4))
}

#[inline(always)]
pub(super) fn q3_k(block: &[u8; 110], to: &mut Place<'_>) {
    let (high, rest) = block.split_at(32);
    let (quants, rest) = rest.split_at(64);
    let Some((packed, d)) = rest.split_first_chunk::<12>() else { return };
    to.scale([d[0], d[1]]);
    for (j, scale) in q3_k_scales(packed).into_iter().enumerate() {
        to.sub_scale(j, scale as u8);
    }
    for g in 0..8 {
        to.codes::<3>(g, with_bit(bit_pairs(quants, g), high, g, 2));
    }
}

/// What Q4_K and Q5_K begin with.
#[inline(always)]
fn k_head(head: [u8; 16], to: &mut Place<'_>) -> ([u8; 8], [u8; 8]) {
    let [d0, d1, m0, m1, packed @ ..] = head;
    to.scale([d0, d1]);
    to.minimum([m0, m1]);
    k_scales(&packed)
}

#[inline(always)]
pub(super) fn q4_k(block: &[u8; 144], to: &mut Place<'_>) -> ([u8; 8], [u8; 8]) {
    let (head, quants) = head(block);
    for (pair, bytes) in quants.as_chunks().0.iter().enumerate() {
        let [low, high] = paired_nibbles(bytes);
        to.planes(2 * pair, low);
        to.planes(2 * pair + 1, high);
    }
    k_head(head, to)
}

#[inline(always)]
pub(super) fn q5_k(block: &[u8; 176], to: &mut Place<'_>) -> ([u8; 8], [u8; 8]) {
    let (head, rest) = head(block);
    let (high, quants) = rest.split_at(32);
    for (pair, bytes) in quants.as_chunks().0.iter().enumerate() {
        for (g, [a, b, c, d]) in (2 * pair..).zip(paired_nibbles(bytes)) {
            let fifth = (0..8).fold(0, |bits, i| bits | (dword(high, i) >> g & BIT) << i);
            to.planes(g, [a, b, c, d, fifth]);
        }
    }
    k_head(head, to)
}

/// The first 16 bytes of a block, and the others.
#[inline(always)]
fn head(block: &[u8]) -> ([u8; 16], &[u8]) {
    block.split_first_chunk().map_or(([0; 16], block), |(head, rest)| (*head, rest))
}

#[inline(always)]
pub(super) fn q6_k(block: &[u8; 210], to: &mut Place<'_>) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, d) = rest.split_at(16);
    to.scale([d[0], d[1]]);
    for (j, &scale) in scales.iter().enumerate() {
        to.sub_scale(j, scale);
    }
    for g in 0..8 {
        let high = bit_pairs(high, g);
        to.codes::<6>(
            g,
            std::array::from_fn(|i| {
                let low = dword(low, g / 4 * 16 + g % 2 * 8 + i) >> (g % 4 / 2 * 4) & NIBBLE;
                low | high[i] << 4
            }),
        );
    }
}

#[inline(always)]
pub(super) fn tq2_0(block: &[u8; 66], to: &mut Place<'_>) {
    let (quants, d) = block.split_at(64);
    to.scale([d[0], d[1]]);
    for g in 0..8 {
        to.codes::<2>(g, bit_pairs(quants, g));
    }
}

/// Digits of 48 bytes of five and 4 bytes of four, the first ones of 32 bytes first.
#[inline(always)]
pub(super) fn tq1_0(block: &[u8; 54], to: &mut Place<'_>) {
    let (digits_of, d) = block.split_at(52);
    let (first, rest) = digits_of.split_at(32);
    let (second, last) = rest.split_at(16);
    to.scale([d[0], d[1]]);
    let mut codes = [0; 256];
    let mut at = 0;
    for (bytes, places) in [(first, 5), (second, 5), (last, 4)] {
        for factor in &[1, 3, 9, 27, 81u8][..places] {
            // A byte is its digits as a fraction of 256.
            for (code, byte) in codes[at..].iter_mut().zip(bytes) {
                *code = ((u16::from(byte.wrapping_mul(*factor)) * 3) >> 8) as u8;
            }
            at += bytes.len();
        }
    }
    for (g, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
        to.codes::<2>(g, std::array::from_fn(|i| dword(codes, i)));
    }
}
