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
use crate::panel::codes::{Q6_K_HALF, Q6_K_HIGH, Q6_K_LOW_EVEN, Q6_K_LOW_ODD};
use crate::panel::{Codes, Geometry, LINE, PackedMatrix, SCALES, for_codes};

use super::fetch::fetch_ahead;
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
    for b in 0..tile.columns() / C::WEIGHTS {
        if geometry.paired && b.is_multiple_of(2) {
            fetch_ahead(bytes, geometry.scales_at(b), 1, 0);
        }
        // SAFETY: this function has the features.
        unsafe {
            if C::WEIGHTS == 32 {
                add_block::<C>(bytes, b, tile, accumulators);
            } else {
                add_superblock::<C, S>(bytes, b, tile, partials, accumulators);
            }
        }
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

/// Adds block `b`, of 32 columns, to the accumulators.
///
/// # Safety
///
/// The processor has the features.
#[inline(always)]
unsafe fn add_block<C: Codes>(bytes: &[u8], b: usize, tile: &Tile, accumulators: &mut [Halves]) {
    let geometry = Geometry::of(C::FORMAT);
    let block = &bytes[geometry.block_at(b)..][..geometry.block];
    fetch_ahead(bytes, geometry.block_at(b), geometry.block / LINE, 0);
    for half in 0..2 {
        // SAFETY: the caller promises the features.
        unsafe {
            let ending = Ending::new::<C>(bytes, b, half, &[[_mm256_setzero_si256(); 2]; 4], tile);
            let columns = Columns::<1>::new::<C>(block, 0, half, tile, b);
            for (t, accumulator) in accumulators.iter_mut().enumerate() {
                let [dot] = columns.dots::<C>(t);
                accumulator[half] = ending.add::<C>(dot, t, accumulator[half]);
            }
        }
    }
}

/// Adds block `b`, of 256 columns, to the accumulators.
///
/// # Safety
///
/// The processor has the features.
#[inline(always)]
unsafe fn add_superblock<C: Codes, const S: usize>(
    bytes: &[u8],
    b: usize,
    tile: &Tile,
    partials: &mut [Halves],
    accumulators: &mut [Halves],
) {
    let geometry = Geometry::of(C::FORMAT);
    let block = &bytes[geometry.block_at(b)..][..geometry.block];
    // SAFETY: the caller promises the features.
    unsafe {
        let header = Header::new::<C>(block);
        partials.fill([_mm256_setzero_ps(); 2]);
        for j in 0..8 {
            let lines = geometry.share(j, 8);
            fetch_ahead(bytes, geometry.block_at(b) + lines.start * LINE, lines.len(), 0);
            for half in 0..2 {
                let scales = header.scales::<S>(j, half);
                let columns = Columns::<S>::new::<C>(block, j, half, tile, 8 * b + j);
                for (t, partial) in partials.iter_mut().enumerate() {
                    let dots = columns.dots::<C>(t);
                    for s in 0..S {
                        partial[half] = _mm256_fmadd_ps(dots[s], scales[s], partial[half]);
                    }
                }
            }
        }
        for half in 0..2 {
            let ending = Ending::new::<C>(bytes, b, half, &header.minimums, tile);
            for (t, accumulator) in accumulators.iter_mut().enumerate() {
                accumulator[half] = ending.add::<C>(partials[t][half], t, accumulator[half]);
            }
        }
    }
}

/// 32 columns of half a panel, and what the tile has for them. `S` sums are kept.
struct Columns<'a, const S: usize> {
    codes: Group,
    /// High nibbles of codes of 8 bits, whose low nibbles are `codes`.
    high: Group,
    quants: &'a [[i8; 32]],
    starts: &'a [[i32; S]],
}

impl<'a, const S: usize> Columns<'a, S> {
    /// Columns `32 j..32 j + 32` of a block, which are group `group` of the tile.
    ///
    /// # Safety
    ///
    /// The processor has the features.
    #[inline(always)]
    unsafe fn new<C: Codes>(block: &[u8], j: usize, half: usize, tile: &'a Tile, group: usize) -> Self {
        // SAFETY: the caller promises the features.
        unsafe {
            let mut codes = codes::<C>(block, j, half);
            let mut high = codes;
            if C::FORMAT == BlockFormat::Q8_0 {
                // Eight bits are too many for products that are added in pairs: they go as two nibbles.
                for (codes, high) in codes.iter_mut().zip(&mut high) {
                    (*codes, *high) = (nibbles(*codes, false), nibbles(*codes, true));
                }
            }
            Columns { codes, high, quants: tile.quants(group), starts: tile.starts(group) }
        }
    }

    /// The dot products with row `t`.
    ///
    /// # Safety
    ///
    /// The processor has the features.
    #[inline(always)]
    unsafe fn dots<C: Codes>(&self, t: usize) -> [__m256; S] {
        // SAFETY: the caller promises the features.
        unsafe {
            let mut dots = [_mm256_setzero_ps(); S];
            for (s, to) in dots.iter_mut().enumerate() {
                let groups = s * 8 / S..(s + 1) * 8 / S;
                let step = exact_additions(C::FORMAT);
                let mut sum = dot(&self.codes, &self.quants[t], groups.clone(), step, 1);
                if C::FORMAT == BlockFormat::Q8_0 {
                    sum = _mm256_add_epi32(sum, dot(&self.high, &self.quants[t], groups, step, 16));
                }
                if Geometry::of(C::FORMAT).paired {
                    sum = _mm256_add_epi32(sum, _mm256_set1_epi32(self.starts[t][s]));
                }
                *to = _mm256_cvtepi32_ps(sum);
            }
            dots
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

/// What ends a block in half a panel: float scales and minimums, and what the tile has for them.
struct Ending<'a> {
    d: __m256,
    m: __m256,
    minimums: [__m256i; 4],
    scales: &'a [f32],
    sums: &'a [f32],
    pairs: &'a [[i32; 4]],
}

impl<'a> Ending<'a> {
    /// # Safety
    ///
    /// The processor has the features.
    #[inline(always)]
    unsafe fn new<C: Codes>(
        bytes: &[u8],
        b: usize,
        half: usize,
        minimums: &[[__m256i; 2]; 4],
        tile: &'a Tile,
    ) -> Self {
        let at = Geometry::of(C::FORMAT).scales_at(b) + half * LANES;
        // SAFETY: the caller promises the features.
        let (d, m) = unsafe {
            (halves(bytes, at), if C::MINIMUMS { halves(bytes, at + SCALES) } else { halves(bytes, at) })
        };
        let minimums = minimums.map(|halves| halves[half]);
        Ending { d, m, minimums, scales: tile.scales(b), sums: tile.sums(b), pairs: tile.pairs(b) }
    }

    /// Scales the partial sum of row `t`, adds the minimums, and adds all to the accumulator.
    ///
    /// # Safety
    ///
    /// The processor has the features.
    #[inline(always)]
    unsafe fn add<C: Codes>(&self, partial: __m256, t: usize, accumulator: __m256) -> __m256 {
        // SAFETY: the caller promises the features.
        unsafe {
            let mut p = _mm256_mul_ps(self.d, partial);
            if C::MINIMUMS && C::WEIGHTS == 32 {
                p = _mm256_fmadd_ps(self.m, _mm256_set1_ps(self.sums[t]), p);
            } else if C::MINIMUMS {
                let mut sum = _mm256_setzero_si256();
                for (minimums, &pair) in self.minimums.iter().zip(&self.pairs[t]) {
                    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(*minimums, _mm256_set1_epi32(pair)));
                }
                p = _mm256_fnmadd_ps(self.m, _mm256_cvtepi32_ps(sum), p);
            }
            _mm256_fmadd_ps(p, _mm256_set1_ps(self.scales[t]), accumulator)
        }
    }
}

/// What is unpacked once for a superblock.
struct Header {
    /// Integer scales by sub-block and lane.
    scales: [i8; 256],
    /// Integer minimums of sub-blocks `2i` and `2i + 1` as pairs of i16, for each half.
    minimums: [[__m256i; 2]; 4],
}

impl Header {
    /// # Safety
    ///
    /// The processor has the features.
    #[inline(always)]
    unsafe fn new<C: Codes>(block: &[u8]) -> Header {
        // SAFETY: the caller promises the features.
        let zero = unsafe { _mm256_setzero_si256() };
        let mut header = Header { scales: [0; 256], minimums: [[zero; 2]; 4] };
        let scales = header.scales.as_mut_ptr().cast::<__m256i>();
        if C::FORMAT == BlockFormat::Q6_K {
            for i in 0..8 {
                // SAFETY: the caller promises the features; `scales` holds 8 times 32 bytes.
                unsafe {
                    _mm256_storeu_si256(scales.add(i), vector(&block[i / 4 * Q6_K_HALF..], i % 4 / 2, i % 2))
                };
            }
            return header;
        }
        for i in 0..4 {
            // SAFETY: the caller promises the features; `scales` holds 4 times 32 bytes.
            unsafe {
                let top = _mm256_set1_epi8(0x30);
                let (low, high) = (vector(block, 1 + i / 2, i % 2), vector(block, 3, i % 2));
                let [scale, minimum] = if i < 2 {
                    [_mm256_slli_epi16::<4>(high), _mm256_slli_epi16::<2>(high)]
                } else {
                    [high, _mm256_srli_epi16::<2>(high)]
                };
                let scale = _mm256_or_si256(nibbles(low, false), _mm256_and_si256(scale, top));
                _mm256_storeu_si256(scales.add(i), scale);
                let minimum = _mm256_or_si256(nibbles(low, true), _mm256_and_si256(minimum, top));
                header.minimums[i] = [
                    _mm256_cvtepu8_epi16(_mm256_castsi256_si128(minimum)),
                    _mm256_cvtepu8_epi16(_mm256_extracti128_si256::<1>(minimum)),
                ];
            }
        }
        header
    }

    /// The scales of columns `32 j..32 j + 32` of half a panel.
    ///
    /// # Safety
    ///
    /// The processor has the features.
    #[inline(always)]
    unsafe fn scales<const S: usize>(&self, j: usize, half: usize) -> [__m256; S] {
        // SAFETY: the caller promises the features.
        unsafe {
            let mut scales = [_mm256_setzero_ps(); S];
            for (s, scales) in scales.iter_mut().enumerate() {
                *scales = signed_bytes(&self.scales[(j * S + s) * LANES + half * 8..]);
            }
            scales
        }
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
fn signed_bytes(bytes: &[i8]) -> __m256 {
    let bytes = &bytes[..8];
    // SAFETY: 8 bytes are borrowed.
    let bytes = unsafe { _mm_loadl_epi64(bytes.as_ptr().cast()) };
    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))
}
