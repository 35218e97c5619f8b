//! The IQ formats: entries of the grids and signs become codes, numbers of values in the tables of `Spec`.

use unfazed_formats::block::grids::{IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, even_signs};

use super::place::{Codes, Place, dword, spread};
use super::simple::nibbles;

/// A grid of 8 magnitudes of two bits, a byte each.
const fn eights<const N: usize>(grid: &[u16; N]) -> [[u32; 2]; N] {
    let mut out = [[0; 2]; N];
    let mut i = 0;
    while i < 8 * N {
        let (entry, k) = (i / 8, i % 8);
        out[entry][k / 4] |= ((grid[entry] >> (2 * k) & 3) as u32) << (8 * (k % 4));
        i += 1;
    }
    out
}

/// A grid of 4 magnitudes of a nibble, a byte each.
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

static IQ1_CODES: [[u32; 2]; 2048] = eights(&IQ1);
static IQ2_XXS_CODES: [[u32; 2]; 256] = eights(&IQ2_XXS);
static IQ2_XS_CODES: [[u32; 2]; 512] = eights(&IQ2_XS);
static IQ2_S_CODES: [[u32; 2]; 1024] = eights(&IQ2_S);
static IQ3_XXS_CODES: [u32; 256] = fours(&IQ3_XXS);
static IQ3_S_CODES: [u32; 512] = fours(&IQ3_S);

/// 32 codes from four times 8.
#[inline(always)]
fn four_eights(eight: impl Fn(usize) -> [u32; 2]) -> Codes {
    let [[a, b], [c, d], [e, f], [g, h]] = std::array::from_fn(eight);
    [a, b, c, d, e, f, g, h]
}

/// Two dwords of codes, with signs above `bits` bits of magnitude.
#[inline(always)]
fn signed([low, high]: [u32; 2], signs: u8, bits: u32) -> [u32; 2] {
    let signs = u32::from(signs);
    [low | spread(signs) << bits, high | spread(signs >> 4) << bits]
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
        to.codes::<3>(
            g,
            four_eights(|i| {
                let codes = IQ2_XXS_CODES[usize::from((entries >> (8 * i)) as u8)];
                signed(codes, even_signs((signs >> (7 * i)) as u8), 2)
            }),
        );
    }
}

#[inline(always)]
pub(super) fn iq2_xs(block: &[u8; 74], to: &mut Place<'_>) {
    let [d0, d1, rest @ ..] = block;
    let (quants, scales) = rest.split_at(64);
    to.scale([*d0, *d1]);
    nibble_scales(scales, to);
    for g in 0..8 {
        to.codes::<3>(
            g,
            four_eights(|i| {
                let quant = word(quants, 4 * g + i);
                signed(IQ2_XS_CODES[usize::from(quant & 511)], even_signs((quant >> 9) as u8), 2)
            }),
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
        to.codes::<3>(
            g,
            four_eights(|i| {
                let entry = usize::from(quants[4 * g + i]) | usize::from(high[g] >> (2 * i) & 3) << 8;
                signed(IQ2_S_CODES[entry], signs[4 * g + i], 2)
            }),
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
        to.codes::<4>(
            g,
            four_eights(|i| {
                let entry = |k| IQ3_XXS_CODES[usize::from(quants[8 * g + 2 * i + k])];
                signed([entry(0), entry(1)], even_signs((signs >> (7 * i)) as u8), 3)
            }),
        );
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
        to.codes::<4>(
            g,
            four_eights(|i| {
                let entry = |k| {
                    let high = usize::from(high[g] >> (2 * i + k) & 1);
                    IQ3_S_CODES[usize::from(quants[8 * g + 2 * i + k]) | high << 8]
                };
                signed([entry(0), entry(1)], signs[4 * g + i], 3)
            }),
        );
    }
}

/// Codes of an entry, the less ones after the more ones.
#[inline(always)]
fn shifted(entry: usize, less: bool) -> [u32; 2] {
    IQ1_CODES[entry & 2047].map(|codes| codes | u32::from(less) * 0x0404_0404)
}

#[inline(always)]
pub(super) fn iq1_s(block: &[u8; 50], to: &mut Place<'_>) {
    let [d0, d1, rest @ ..] = block;
    let (quants, high) = rest.split_at(32);
    to.scale([*d0, *d1]);
    for g in 0..8 {
        let high = word(high, g);
        to.sub_scale(g, odd((high >> 12 & 7) as u8));
        to.codes::<3>(
            g,
            four_eights(|i| {
                let entry = usize::from(quants[4 * g + i]) | usize::from(high >> (3 * i) & 7) << 8;
                shifted(entry, high & 0x8000 != 0)
            }),
        );
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
        to.codes::<3>(
            g,
            four_eights(|i| {
                let high = high[2 * g + i / 2] >> (i % 2 * 4);
                shifted(usize::from(quants[4 * g + i]) | usize::from(high & 7) << 8, high & 8 != 0)
            }),
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
