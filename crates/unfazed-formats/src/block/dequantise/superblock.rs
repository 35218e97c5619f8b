//! Superblocks of 256 weights: the K formats, whose sub-blocks have scales (and minimums) of few bits, and the
//! ternary formats.

use super::half;

/// 16 bytes of scales (low nibbles) and minimums (high nibbles), 64 bytes of bit pairs, two scales; the weight is
/// `(d scale) q - (dmin minimum)` in sub-blocks of 16.
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, rest) = block.split_at(16);
    let (pairs, rest) = rest.split_at(64);
    let (d, dmin) = (half([rest[0], rest[1]]), half([rest[2], rest[3]]));
    for (i, weight) in out.iter_mut().enumerate() {
        let both = scales[i / 16];
        let (scale, minimum) = (d * f32::from(both & 15), dmin * f32::from(both >> 4));
        *weight = scale * f32::from(bit_pair(pairs, i)) - minimum;
    }
}

/// The two bits of weight `i`, as Q2_K, Q3_K and TQ2_0 have them: 32 bytes for 128 weights, the lowest bits of all
/// of them first.
fn bit_pair(pairs: &[u8], i: usize) -> u8 {
    (pairs[i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4))) & 3
}

/// The 16 signed scales of Q3_K: low nibbles in bytes 0 to 7 (of the last eight scales the high ones), upper bit
/// pairs in bytes 8 to 11.
pub fn q3_k_scales(packed: &[u8; 12]) -> [i8; 16] {
    std::array::from_fn(|j| {
        let low = (packed[j % 8] >> (4 * (j / 8))) & 15;
        let high = (packed[8 + j % 4] >> (2 * (j / 4))) & 3;
        (low | high << 4) as i8 - 32
    })
}

/// 32 bytes of high bits (bit `j` of byte `l` belongs to weight `32 j + l`), 64 bytes of bit pairs, 12 bytes of
/// packed scales, a scale; the weight is `(d scale) (q - 4)`.
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (high, rest) = block.split_at(32);
    let (pairs, rest) = rest.split_at(64);
    let Some((packed, d)) = rest.split_first_chunk::<12>() else { return };
    let (scales, d) = (q3_k_scales(packed), half([d[0], d[1]]));
    for (i, weight) in out.iter_mut().enumerate() {
        let quant = bit_pair(pairs, i) | ((high[i % 32] >> (i / 32)) & 1) << 2;
        *weight = d * f32::from(scales[i / 16]) * f32::from(quant as i8 - 4);
    }
}

/// The 6-bit scales and minima of the 8 sub-blocks of Q4_K and Q5_K, packed into 12 bytes: the first four of each
/// are the low bits of bytes 0 to 3 and 4 to 7; the last four have their low nibbles in bytes 8 to 11 and their
/// high bits on top of the first four.
#[inline]
pub fn k_scales(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    // Four bytes at a time.
    const SIX: u32 = 0x3F3F_3F3F;
    const FOUR: u32 = 0x0F0F_0F0F;
    const TWO: u32 = 0x0303_0303;
    let [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3] = *packed;
    let [scales, minima, low] =
        [[a0, a1, a2, a3], [b0, b1, b2, b3], [c0, c1, c2, c3]].map(u32::from_le_bytes);
    let join = |first: u32, last: u32| (u64::from(first & SIX) | u64::from(last) << 32).to_le_bytes();
    (
        join(scales, low & FOUR | (scales >> 6 & TWO) << 4),
        join(minima, low >> 4 & FOUR | (minima >> 6 & TWO) << 4),
    )
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
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    if let Some((head, nibbles)) = block.split_first_chunk::<16>() {
        k_block(head, out, |sub, l| paired_nibble(nibbles, sub, l));
    }
}

/// Two scales, 12 bytes of packed scales, 32 bytes of fifth bits (bit `sub` of byte `l`), 128 bytes of nibbles.
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    if let Some((head, rest)) = block.split_first_chunk::<16>() {
        let (high, nibbles) = rest.split_at(32);
        k_block(head, out, |sub, l| paired_nibble(nibbles, sub, l) | ((high[l] >> sub) & 1) << 4);
    }
}

/// 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales (one for 16 weights), a scale; the
/// weight is `(d scale) (q - 32)`. Each half of the block has its own 64 and 32 bytes.
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
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

/// 64 bytes of bit pairs, a scale; the weight is `d (q - 1)`.
pub(super) fn tq2_0(block: &[u8; 66], out: &mut [f32; 256]) {
    let (pairs, d) = block.split_at(64);
    let d = half([d[0], d[1]]);
    for (i, weight) in out.iter_mut().enumerate() {
        *weight = d * f32::from(bit_pair(pairs, i) as i8 - 1);
    }
}

/// 48 bytes of five ternary digits and 4 bytes of four, a scale; the weight is `d (q - 1)`. A byte is its digits
/// as a fraction of 256, rounded up: times 3, the next digit is in the ninth bit and above. The first 32 bytes
/// have the first digits of weights 0 to 31, and so on; then 16 bytes; then 4.
pub(super) fn tq1_0(block: &[u8; 54], out: &mut [f32; 256]) {
    let d = half([block[52], block[53]]);
    for (i, weight) in out.iter_mut().enumerate() {
        let (byte, place) = match i {
            0..160 => (i % 32, i / 32),
            160..240 => (32 + i % 16, (i - 160) / 16),
            _ => (48 + i % 4, (i - 240) / 4),
        };
        let rest = block[byte].wrapping_mul([1, 3, 9, 27, 81][place]);
        let digit = (u16::from(rest) * 3) >> 8;
        *weight = d * f32::from(digit as i8 - 1);
    }
}
