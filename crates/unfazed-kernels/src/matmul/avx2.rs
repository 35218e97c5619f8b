//! AVX2 with FMA and F16C.
//!
//! A panel is two halves of 8 rows. 32 columns of a half are unpacked once into 8 registers of unsigned codes (16
//! for 8 bits, as nibbles); then the rows of the tile pass by. `vpmaddubsw` adds two products in 16 bits, and codes
//! of few bits let several of those be added before they must be widened: [`Bits`] says how many without overflow.

#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::ops::Range;

use unfazed_formats::BlockFormat;

use crate::LANES;
use crate::activations::{TILE_ROWS, Tile};
use crate::panel::codes::{Q6_K_HALF, Q6_K_HIGH, Q6_K_LOW_EVEN, Q6_K_LOW_ODD, unpack_k_header};
use crate::panel::{Codes, Geometry, LINE, PackedMatrix, SCALES, Unpacked, for_codes};

use super::output::Output;

/// Panels times a tile of int8 activations.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn multiply(w: &PackedMatrix<'_>, panels: Range<usize>, tile: &Tile, output: &mut Output<'_>) {
    for_codes!(w.layout().format(), C => {
        for panel in panels {
            // Sub-blocks of 16 need two sums for each 32 columns.
            if C::SUB == 16 {
                multiply_panel::<C, 2>(w.panel(panel), panel, tile, output);
            } else {
                multiply_panel::<C, 1>(w.panel(panel), panel, tile, output);
            }
        }
    }, {});
}

/// Unsigned codes of 32 columns of half a panel: byte `c` of lane `r` of vector `g` is row `r`, column `4g + c`.
type Group = [__m256i; 8];

/// Both halves of a panel.
type Halves = [__m256; 2];

/// One panel times a tile, accumulators in memory.
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply_panel<C: Codes, const S: usize>(
    bytes: &[u8],
    panel: usize,
    tile: &Tile,
    output: &mut Output<'_>,
) {
    let mut accumulators = [[_mm256_setzero_ps(); 2]; TILE_ROWS];
    let mut partials = [[_mm256_setzero_ps(); 2]; TILE_ROWS];
    let (accumulators, partials) = (&mut accumulators[..tile.rows()], &mut partials[..tile.rows()]);
    let geometry = Geometry::of(C::FORMAT);
    let mut header = Unpacked::new();
    for b in 0..tile.columns() / C::WEIGHTS {
        let block = &bytes[geometry.block_at(b)..][..geometry.block];
        if C::WEIGHTS == 256 {
            partials.fill([_mm256_setzero_ps(); 2]);
            match C::FORMAT {
                BlockFormat::Q6_K => {}
                _ => unpack_k_header(block, &mut header),
            }
        }
        for j in 0..C::WEIGHTS / 32 {
            let group = b * (C::WEIGHTS / 32) + j;
            for half in 0..2 {
                // SAFETY: this function has the features.
                unsafe {
                    let scales = integer_scales::<C, S>(block, &header, j, half);
                    add_columns::<C, S>(block, j, half, &scales, tile, group, partials);
                }
            }
        }
        // SAFETY: this function has the features.
        unsafe { finish::<C>(bytes, b, &header, tile, partials, accumulators) };
    }
    for (t, [low, high]) in accumulators.iter().enumerate() {
        let mut lanes = [0.0; LANES];
        // SAFETY: `lanes` holds 16 f32.
        unsafe {
            _mm256_storeu_ps(lanes.as_mut_ptr(), *low);
            _mm256_storeu_ps(lanes.as_mut_ptr().add(8), *high);
        }
        output.store(t, panel, &lanes);
    }
}

/// Adds columns `32 j..32 j + 32` of a block, which are group `group` of the tile, to half of the partial sums of
/// all rows; with blocks of 32 this makes the partial sums.
///
/// # Safety
///
/// The processor has the features.
#[inline(always)]
unsafe fn add_columns<C: Codes, const S: usize>(
    block: &[u8],
    j: usize,
    half: usize,
    scales: &[__m256; S],
    tile: &Tile,
    group: usize,
    partials: &mut [Halves],
) {
    let (quants, starts) = (tile.quants(group), tile.starts::<S>(group));
    // SAFETY: the caller promises the features.
    unsafe {
        let codes = codes::<C>(block, j, half);
        // Eight bits are too many for products that are added in pairs: they go as two nibbles.
        let wide = C::FORMAT == BlockFormat::Q8_0;
        let high = if wide { codes.map(|codes| nibbles(codes, true)) } else { codes };
        let codes = if wide { codes.map(|codes| nibbles(codes, false)) } else { codes };
        for (t, partial) in partials.iter_mut().enumerate() {
            let partial = &mut partial[half];
            for s in 0..S {
                let groups = s * 8 / S..(s + 1) * 8 / S;
                let mut sum = dot(&codes, &quants[t], groups.clone(), exact_additions(C::FORMAT), 1);
                if wide {
                    sum = _mm256_add_epi32(sum, dot(&high, &quants[t], groups, 8, 16));
                }
                if Geometry::of(C::FORMAT).paired {
                    sum = _mm256_add_epi32(sum, _mm256_set1_epi32(starts[t][s]));
                }
                let sum = _mm256_cvtepi32_ps(sum);
                *partial = if C::WEIGHTS == 32 { sum } else { _mm256_fmadd_ps(sum, scales[s], *partial) };
            }
        }
    }
}

/// How many sums of two products of codes and quants (of magnitude 127 at most) fit in 16 bits together.
const fn exact_additions(format: BlockFormat) -> usize {
    let largest_code = match format {
        BlockFormat::Q5_0 | BlockFormat::Q5_1 | BlockFormat::Q5_K => 31,
        BlockFormat::Q6_K => 63,
        _ => 15,
    };
    match i16::MAX as usize / (2 * 127 * largest_code) {
        0 | 1 => 1,
        2 | 3 => 2,
        4..8 => 4,
        _ => 8,
    }
}

/// `factor` times the dot products over some groups of four columns, widened after every `step` groups.
///
/// # Safety
///
/// The processor has the features.
#[inline(always)]
unsafe fn dot(codes: &Group, quants: &[i8; 32], groups: Range<usize>, step: usize, factor: i16) -> __m256i {
    // SAFETY: the caller promises the features.
    unsafe {
        let mut sum = _mm256_setzero_si256();
        let mut narrow = _mm256_setzero_si256();
        for g in groups {
            let four = [quants[4 * g], quants[4 * g + 1], quants[4 * g + 2], quants[4 * g + 3]];
            let four = _mm256_set1_epi32(i32::from_le_bytes(four.map(|quant| quant as u8)));
            let products = _mm256_maddubs_epi16(codes[g], four);
            narrow = if g % step == 0 { products } else { _mm256_add_epi16(narrow, products) };
            if g % step == step - 1 || g % 8 == 7 {
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(narrow, _mm256_set1_epi16(factor)));
            }
        }
        sum
    }
}

/// Ends block `b`: scales the partial sums, adds the minimums, and adds all to the accumulators.
///
/// # Safety
///
/// The processor has the features.
#[inline(always)]
unsafe fn finish<C: Codes>(
    bytes: &[u8],
    b: usize,
    header: &Unpacked,
    tile: &Tile,
    partials: &[Halves],
    accumulators: &mut [Halves],
) {
    let (scales, sums, pairs) = (tile.scales(b), tile.sums(b), tile.pairs(b));
    let at = Geometry::of(C::FORMAT).scales_at(b);
    // SAFETY: the caller promises the features.
    unsafe {
        for half in 0..2 {
            let d = halves(bytes, at + half * LANES);
            let m = if C::MINIMUMS { halves(bytes, at + SCALES + half * LANES) } else { d };
            let minimums = minimum_pairs(header, half);
            for (t, accumulator) in accumulators.iter_mut().enumerate() {
                let mut p = _mm256_mul_ps(d, partials[t][half]);
                if C::MINIMUMS && C::WEIGHTS == 32 {
                    p = _mm256_fmadd_ps(m, _mm256_set1_ps(sums[t]), p);
                } else if C::MINIMUMS {
                    let mut sum = _mm256_setzero_si256();
                    for (minimums, &pair) in minimums.iter().zip(&pairs[t]) {
                        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(*minimums, _mm256_set1_epi32(pair)));
                    }
                    p = _mm256_fnmadd_ps(m, _mm256_cvtepi32_ps(sum), p);
                }
                accumulator[half] = _mm256_fmadd_ps(p, _mm256_set1_ps(scales[t]), accumulator[half]);
            }
        }
    }
}

/// The integer scales of columns `32 j..32 j + 32` of half a panel; ones for blocks of 32, which have none.
///
/// # Safety
///
/// The processor has the features.
#[inline(always)]
unsafe fn integer_scales<C: Codes, const S: usize>(
    block: &[u8],
    header: &Unpacked,
    j: usize,
    half: usize,
) -> [__m256; S] {
    // SAFETY: the caller promises the features.
    unsafe {
        let mut scales = [_mm256_set1_ps(1.0); S];
        for (s, scales) in scales.iter_mut().enumerate() {
            if C::FORMAT == BlockFormat::Q6_K {
                let at = j / 4 * Q6_K_HALF + j % 4 * 32 + s * LANES + half * 8;
                *scales = signed_bytes(&block[at..][..8]);
            } else if C::WEIGHTS == 256 {
                let bytes = header.scales[j].map(|scale| scale as u8);
                *scales = signed_bytes(&bytes[half * 8..][..8]);
            }
        }
        scales
    }
}

/// Minimums of sub-blocks `2i` and `2i + 1` of half a panel, as pairs of i16.
///
/// # Safety
///
/// The processor has the features.
#[inline(always)]
unsafe fn minimum_pairs(header: &Unpacked, half: usize) -> [__m256i; 4] {
    // SAFETY: the caller promises the features.
    unsafe {
        let mut pairs = [_mm256_setzero_si256(); 4];
        for (i, pair) in pairs.iter_mut().enumerate() {
            let mut values = [0i16; LANES];
            for lane in 0..8 {
                values[2 * lane] = i16::from(header.minimums[2 * i][half * 8 + lane]);
                values[2 * lane + 1] = i16::from(header.minimums[2 * i + 1][half * 8 + lane]);
            }
            // `values` holds 32 bytes.
            *pair = _mm256_loadu_si256(values.as_ptr().cast());
        }
        pairs
    }
}

/// The unsigned codes of columns `32 j..32 j + 32` of half a panel.
///
/// # Safety
///
/// The processor has the features.
#[inline(always)]
unsafe fn codes<C: Codes>(block: &[u8], j: usize, half: usize) -> Group {
    // SAFETY: the caller promises the features.
    unsafe {
        match C::FORMAT {
            BlockFormat::Q4_1 => codes4(&block[2 * SCALES..], half),
            BlockFormat::Q5_0 => codes5(block, half),
            BlockFormat::Q5_1 => codes5(&block[2 * SCALES..], half),
            BlockFormat::Q8_0 => vectors(block, half),
            BlockFormat::Q4_K => k_nibbles(&block[4 * LINE..], j, half),
            BlockFormat::Q5_K => {
                let high = vectors(&block[4 * LINE..], half);
                let mut codes = k_nibbles(&block[12 * LINE..], j, half);
                for (codes, high) in codes.iter_mut().zip(high) {
                    *codes = with_bits(*codes, high, j, 1);
                }
                codes
            }
            BlockFormat::Q6_K => {
                let part = &block[j / 4 * Q6_K_HALF..][..Q6_K_HALF];
                let low = if j.is_multiple_of(2) { Q6_K_LOW_EVEN } else { Q6_K_LOW_ODD };
                let mut codes = vectors(&part[low..], half).map(|low| nibbles(low, j % 4 >= 2));
                for (codes, high) in codes.iter_mut().zip(vectors(&part[Q6_K_HIGH..], half)) {
                    *codes = with_bits(*codes, high, j % 4 * 2, 3);
                }
                codes
            }
            _ => codes4(block, half),
        }
    }
}

/// Half of vector `i`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn vector(bytes: &[u8], i: usize, half: usize) -> __m256i {
    let bytes = &bytes[i * LINE + half * LINE / 2..][..LINE / 2];
    // SAFETY: 32 bytes are borrowed.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Half of the first 8 vectors.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn vectors(bytes: &[u8], half: usize) -> Group {
    let mut vectors = [_mm256_setzero_si256(); 8];
    for (i, to) in vectors.iter_mut().enumerate() {
        *to = vector(bytes, i, half);
    }
    vectors
}

/// Codes of 4 bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn codes4(bytes: &[u8], half: usize) -> Group {
    let mut codes = [_mm256_setzero_si256(); 8];
    for g in 0..4 {
        let vector = vector(bytes, g, half);
        (codes[g], codes[g + 4]) = (nibbles(vector, false), nibbles(vector, true));
    }
    codes
}

/// Codes of 5 bits: a vector of high bits, and then those of 4.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn codes5(bytes: &[u8], half: usize) -> Group {
    let high = vector(bytes, 0, half);
    let mut codes = codes4(&bytes[LINE..], half);
    for (g, codes) in codes.iter_mut().enumerate() {
        *codes = with_bits(*codes, high, g, 1);
    }
    codes
}

/// The nibbles of columns `32 j..32 j + 32` of Q4_K and Q5_K.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn k_nibbles(bytes: &[u8], j: usize, half: usize) -> Group {
    let mut codes = vectors(&bytes[j / 2 * 8 * LINE..], half);
    for codes in &mut codes {
        *codes = nibbles(*codes, j % 2 == 1);
    }
    codes
}

/// The low or high nibbles.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn nibbles(x: __m256i, high: bool) -> __m256i {
    _mm256_and_si256(if high { _mm256_srli_epi16::<4>(x) } else { x }, _mm256_set1_epi8(15))
}

/// `codes`, and above them the bits of each byte of `high` that begin at `first`, as many as `mask` has.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn with_bits(codes: __m256i, high: __m256i, first: usize, mask: i8) -> __m256i {
    let bits = _mm256_srl_epi16(high, _mm_cvtsi32_si128(first as i32));
    let bits = _mm256_and_si256(bits, _mm256_set1_epi8(mask));
    _mm256_or_si256(codes, _mm256_slli_epi16::<4>(bits))
}

/// The 8 f16 at `at`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn halves(bytes: &[u8], at: usize) -> __m256 {
    let bytes = &bytes[at..][..LANES];
    // SAFETY: 16 bytes are borrowed.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}

/// The first 8 signed bytes as floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn signed_bytes(bytes: &[u8]) -> __m256 {
    let bytes = &bytes[..8];
    // SAFETY: 8 bytes are borrowed.
    let bytes = unsafe { _mm_loadl_epi64(bytes.as_ptr().cast()) };
    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))
}
