//! The IQ formats: entries of the grids and signs become codes, numbers of values in the tables of `Spec`.

use unfazed_formats::block::grids::{IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, even_signs};

use super::place::{BIT, Place, dword};
use super::simple::nibbles;

/// A grid of 8 magnitudes of two bits, as half of a dword of a plane of pairs.
const fn eights<const N: usize>(grid: &[u16; N]) -> [u32; N] {
    let mut out = [0; N];
    let mut i = 0;
    while i < 8 * N {
        let (entry, k) = (i / 8, i % 8);
        out[entry] |= ((grid[entry] >> (2 * k) & 3) as u32) << (k % 4 * 8 + k / 4 * 2);
        i += 1;
    }
    out
}

/// A grid of 4 magnitudes of a nibble, as the low nibbles of a dword of a plane.
const fn fours<const N: usize>(grid: &[u16; N]) -> [u32; N] {
    let mut out = [0; N];
    let mut i = 0;
    while i < 4 * N {
        let (entry, k) = (i / 4, i % 4);
        out[entry] |= ((grid[entry] >> (4 * k) & 15) as u32) << (8 * k);
        i += 1;
    }
    out
}

/// 8 signs as a quarter of a plane of bits: sign `k` is bit `k / 4` of byte `k % 4`.
const fn signs<const N: usize>(even: bool) -> [u32; N] {
    let mut out = [0; N];
    let mut i = 0;
    while i < 8 * N {
        let (entry, k) = (i / 8, i % 8);
        let signs = if even { even_signs(entry as u8) } else { entry as u8 };
        out[entry] |= ((signs >> k & 1) as u32) << (k % 4 * 8 + k / 4);
        i += 1;
    }
    out
}

static IQ1_PAIRS: [u32; 2048] = eights(&IQ1);
static IQ2_XXS_PAIRS: [u32; 256] = eights(&IQ2_XXS);
static IQ2_XS_PAIRS: [u32; 512] = eights(&IQ2_XS);
static IQ2_S_PAIRS: [u32; 1024] = eights(&IQ2_S);
static IQ3_XXS_NIBBLES: [u32; 256] = fours(&IQ3_XXS);
static IQ3_S_NIBBLES: [u32; 512] = fours(&IQ3_S);
static SIGNS: [u32; 256] = signs(false);
static EVEN_SIGNS: [u32; 128] = signs(true);

/// Puts 32 codes: four entries of 8 pairs, and a bit above each.
#[inline(always)]
fn put_eights(to: &mut Place<'_>, g: usize, pairs: [u32; 4], bits: [u32; 4]) {
    let bits = bits[0] | bits[1] << 2 | bits[2] << 4 | bits[3] << 6;
    to.planes::<3>(g, [pairs[0] | pairs[1] << 4, pairs[2] | pairs[3] << 4, bits]);
}

/// Puts 32 codes: eight entries of 4 magnitudes, and signs above them.
#[inline(always)]
fn put_fours(to: &mut Place<'_>, g: usize, entries: [u32; 8], signs: [u32; 4]) {
    let sign = |i: usize| (signs[i / 2] >> (i % 2) & BIT) << 3;
    to.planes::<4>(g, std::array::from_fn(|i| entries[i] | sign(i) | (entries[i + 4] | sign(i + 4)) << 4));
}

/// A 16-bit word.
#[inline(always)]
fn word(bytes: &[u8], i: usize) -> u16 {
    let bytes = &bytes[2 * i..][..2];
    u16::from_le_bytes([bytes[0], bytes[1]])
}

/// The odd number `2s + 1` of which the scale of a sub-block is a part.
#[inline(always)]
fn odd(scale: u8) -> u8 {
    2 * scale + 1
}

/// Scales of sub-blocks, a nibble each.
#[inline(always)]
fn nibble_scales(scales: &[u8], to: &mut Place<'_>) {
    for (j, both) in scales.iter().enumerate() {
        to.sub_scale(2 * j, odd(both & 15));
        to.sub_scale(2 * j + 1, odd(both >> 4));
    }
}

#[inline(always)]
pub(super) fn iq2_xxs(block: &[u8; 66], to: &mut Place<'_>) {
    let [d0, d1, rest @ ..] = block;
    to.scale([*d0, *d1]);
    for g in 0..8 {
        let (entries, signs) = (dword(rest, 2 * g), dword(rest, 2 * g + 1));
        to.sub_scale(g, odd((signs >> 28) as u8));
        put_eights(
            to,
            g,
            entries.to_le_bytes().map(|entry| IQ2_XXS_PAIRS[usize::from(entry)]),
            even_signs_of(signs),
        );
    }
}

/// Four times 7 bits of signs.
#[inline(always)]
fn even_signs_of(signs: u32) -> [u32; 4] {
    std::array::from_fn(|i| EVEN_SIGNS[(signs >> (7 * i) & 127) as usize])
}

#[inline(always)]
pub(super) fn iq2_xs(block: &[u8; 74], to: &mut Place<'_>) {
    let [d0, d1, rest @ ..] = block;
    let (quants, scales) = rest.split_at(64);
    to.scale([*d0, *d1]);
    nibble_scales(scales, to);
    for g in 0..8 {
        let quants: [usize; 4] = std::array::from_fn(|i| word(quants, 4 * g + i).into());
        put_eights(
            to,
            g,
            quants.map(|quant| IQ2_XS_PAIRS[quant & 511]),
            quants.map(|quant| EVEN_SIGNS[quant >> 9 & 127]),
        );
    }
}

#[inline(always)]
pub(super) fn iq2_s(block: &[u8; 82], to: &mut Place<'_>) {
    let [d0, d1, rest @ ..] = block;
    let (quants, rest) = rest.split_at(32);
    let (signs, rest) = rest.split_at(32);
    let (high, scales) = rest.split_at(8);
    to.scale([*d0, *d1]);
    nibble_scales(scales, to);
    for g in 0..8 {
        let entry = |i| usize::from(quants[4 * g + i]) | usize::from(high[g] >> (2 * i) & 3) << 8;
        put_eights(
            to,
            g,
            std::array::from_fn(|i| IQ2_S_PAIRS[entry(i)]),
            std::array::from_fn(|i| SIGNS[usize::from(signs[4 * g + i])]),
        );
    }
}

#[inline(always)]
pub(super) fn iq3_xxs(block: &[u8; 98], to: &mut Place<'_>) {
    let [d0, d1, rest @ ..] = block;
    let (quants, signs) = rest.split_at(64);
    to.scale([*d0, *d1]);
    for g in 0..8 {
        let signs = dword(signs, g);
        to.sub_scale(g, odd((signs >> 28) as u8));
        let entries = std::array::from_fn(|i| IQ3_XXS_NIBBLES[usize::from(quants[8 * g + i])]);
        put_fours(to, g, entries, even_signs_of(signs));
    }
}

#[inline(always)]
pub(super) fn iq3_s(block: &[u8; 110], to: &mut Place<'_>) {
    let [d0, d1, rest @ ..] = block;
    let (quants, rest) = rest.split_at(64);
    let (high, rest) = rest.split_at(8);
    let (signs, scales) = rest.split_at(32);
    to.scale([*d0, *d1]);
    nibble_scales(scales, to);
    for g in 0..8 {
        let high = usize::from(high[g]) << 8;
        let entry = |i| usize::from(quants[8 * g + i]) | high >> i & 256;
        put_fours(
            to,
            g,
            std::array::from_fn(|i| IQ3_S_NIBBLES[entry(i)]),
            std::array::from_fn(|i| SIGNS[usize::from(signs[4 * g + i])]),
        );
    }
}

#[inline(always)]
pub(super) fn iq1_s(block: &[u8; 50], to: &mut Place<'_>) {
    let [d0, d1, rest @ ..] = block;
    let (quants, high) = rest.split_at(32);
    to.scale([*d0, *d1]);
    for g in 0..8 {
        let high = word(high, g);
        to.sub_scale(g, odd((high >> 12 & 7) as u8));
        let entry = |i| usize::from(quants[4 * g + i]) | usize::from(high >> (3 * i) & 7) << 8;
        let less = u32::from(high >> 15) * 3 * BIT;
        put_eights(to, g, std::array::from_fn(|i| IQ1_PAIRS[entry(i)]), [less; 4]);
    }
}

#[inline(always)]
pub(super) fn iq1_m(block: &[u8; 56], to: &mut Place<'_>) {
    let (quants, rest) = block.split_at(32);
    let (high, scales) = rest.split_at(16);
    let d = (0..4).fold(0, |d, i| d | word(scales, i) >> 12 << (4 * i));
    to.scale(d.to_le_bytes());
    for j in 0..16 {
        to.sub_scale(j, odd((word(scales, j / 4) >> (3 * (j % 4)) & 7) as u8));
    }
    for g in 0..8 {
        let high = usize::from(word(high, g));
        let entry = |i| usize::from(quants[4 * g + i]) | (high >> (4 * i) & 7) << 8;
        put_eights(
            to,
            g,
            std::array::from_fn(|i| IQ1_PAIRS[entry(i)]),
            std::array::from_fn(|i| (high >> (4 * i + 3) & 1) as u32 * 3 * BIT),
        );
    }
}

#[inline(always)]
pub(super) fn iq4_xs(block: &[u8; 136], to: &mut Place<'_>) {
    let [d0, d1, rest @ ..] = block;
    to.scale([*d0, *d1]);
    let (scales, quants) = rest.split_at(6);
    let high = word(scales, 0);
    for g in 0..8 {
        let low = scales[2 + g / 2] >> (4 * (g % 2)) & 15;
        let scale = low | ((high >> (2 * g) & 3) << 4) as u8;
        to.sub_scale(g, scale.wrapping_sub(32));
        to.codes::<4>(g, nibbles(&quants[16 * g..]));
    }
}
