//! The K formats and the ternary ones.

use unfazed_formats::block::{k_scales, q3_k_scales};

use super::place::{BIT, Codes, NIBBLE, PAIR, Place, dword};

/// The bit pairs of group `g` in Q2_K, Q3_K and TQ2_0.
#[inline(always)]
fn bit_pairs(quants: &[u8], g: usize) -> Codes {
    std::array::from_fn(|i| dword(quants, g / 4 * 8 + i) >> (2 * (g % 4)) & PAIR)
}

/// The nibbles of group `g` in Q4_K and Q5_K.
#[inline(always)]
fn paired_nibbles(quants: &[u8], g: usize) -> Codes {
    std::array::from_fn(|i| dword(quants, g / 2 * 8 + i) >> (4 * (g % 2)) & NIBBLE)
}

/// `low`, and bit `g` of 32 bytes as their bit `at`.
#[inline(always)]
fn with_bit(low: Codes, high: &[u8], g: usize, at: u32) -> Codes {
    std::array::from_fn(|i| low[i] | (dword(high, i) >> g & BIT) << at)
}

#[inline(always)]
pub(super) fn q2_k(block: &[u8; 84], to: &mut Place<'_>) {
    let (scales, rest) = block.split_at(16);
    let (quants, d) = rest.split_at(64);
    to.scale([d[0], d[1]]);
    to.minimum([d[2], d[3]]);
    to.k_scales::<16>(std::array::from_fn(|j| scales[j] & 15), std::array::from_fn(|j| scales[j] >> 4));
    for g in 0..8 {
        to.codes::<2>(g, bit_pairs(quants, g));
    }
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
fn k_head(head: &[u8; 16], to: &mut Place<'_>) {
    let [d0, d1, m0, m1, packed @ ..] = head;
    to.scale([*d0, *d1]);
    to.minimum([*m0, *m1]);
    let (scales, minimums) = k_scales(packed);
    to.k_scales(scales, minimums);
}

#[inline(always)]
pub(super) fn q4_k(block: &[u8; 144], to: &mut Place<'_>) {
    let Some((head, quants)) = block.split_first_chunk() else { return };
    k_head(head, to);
    for g in 0..8 {
        to.codes::<4>(g, paired_nibbles(quants, g));
    }
}

#[inline(always)]
pub(super) fn q5_k(block: &[u8; 176], to: &mut Place<'_>) {
    let Some((head, rest)) = block.split_first_chunk() else { return };
    let (high, quants) = rest.split_at(32);
    k_head(head, to);
    for g in 0..8 {
        to.codes::<5>(g, with_bit(paired_nibbles(quants, g), high, g, 4));
    }
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
