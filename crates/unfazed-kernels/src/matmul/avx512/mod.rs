//! AVX-512 with VNNI.
//!
//! One shape serves every format and batch: 32 columns of R panels are unpacked once into R x 8 registers of
//! unsigned codes; then the rows of the tile pass by, each with 8 broadcast dwords that feed R x 8 `vpdpbusd`. The
//! accumulators of one to four rows live in registers, those of more rows in the first-level cache. What is added
//! to what in a lane is the same in all of them.
//!
//! | module | what |
//! |---|---|
//! | `block32` | Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 |
//! | `superblock` | Q4_K, Q5_K, Q6_K |

#![allow(unsafe_code)]
// Several arrays are indexed alike by panel, row and sum; the loops over those unroll.
#![allow(clippy::needless_range_loop)]

mod block32;
mod superblock;

use std::arch::x86_64::*;
use std::ops::Range;

use unfazed_formats::BlockFormat;

use crate::LANES;
use crate::activations::Tile;
use crate::panel::{LINE, PackedMatrix};

use super::fetch::{fetch_ahead, fetch_next};
use super::output::Output;

/// Panels times a tile of int8 activations.
#[target_feature(enable = "avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) fn multiply(w: &PackedMatrix<'_>, panels: Range<usize>, tile: &Tile, output: &mut Output<'_>) {
    match w.layout().format() {
        BlockFormat::F32 | BlockFormat::F16 | BlockFormat::BF16 => {}
        BlockFormat::Q4_0 => block32::multiply::<block32::Q4_0>(w, panels, tile, output),
        BlockFormat::Q4_1 => block32::multiply::<block32::Q4_1>(w, panels, tile, output),
        BlockFormat::Q5_0 => block32::multiply::<block32::Q5_0>(w, panels, tile, output),
        BlockFormat::Q5_1 => block32::multiply::<block32::Q5_1>(w, panels, tile, output),
        BlockFormat::Q8_0 => block32::multiply::<block32::Q8_0>(w, panels, tile, output),
        BlockFormat::Q4_K => superblock::multiply::<superblock::Q4K, 1>(w, panels, tile, output),
        BlockFormat::Q5_K => superblock::multiply::<superblock::Q5K, 1>(w, panels, tile, output),
        BlockFormat::Q6_K => superblock::multiply::<superblock::Q6K, 2>(w, panels, tile, output),
    }
}

/// Unsigned codes of 32 columns of a panel: byte `c` of lane `r` of vector `g` is row `r`, column `4g + c`.
type Group = [__m512i; 8];

/// The line at `at`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512dq,avx512vnni")]
fn line(bytes: &[u8], at: usize) -> __m512i {
    let bytes = &bytes[at..][..LINE];
    // SAFETY: 64 bytes are borrowed.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// The 16 f16 at `at`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512dq,avx512vnni")]
fn halves(bytes: &[u8], at: usize) -> __m512 {
    let bytes = &bytes[at..][..2 * LANES];
    // SAFETY: 32 bytes are borrowed.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) })
}

/// The 16 bytes at `at`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512dq,avx512vnni")]
fn bytes16(bytes: &[u8], at: usize) -> __m128i {
    let bytes = &bytes[at..][..LANES];
    // SAFETY: 16 bytes are borrowed.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// The low or high nibbles.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512dq,avx512vnni")]
fn nibbles(x: __m512i, high: bool) -> __m512i {
    _mm512_and_si512(if high { _mm512_srli_epi16::<4>(x) } else { x }, _mm512_set1_epi8(15))
}

/// `codes`, and bit `BIT` of the bytes of `high` as their bit 4.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512dq,avx512vnni")]
fn with_bit<const BIT: usize>(codes: __m512i, high: __m512i) -> __m512i {
    let high = match BIT {
        0 => _mm512_slli_epi16::<4>(high),
        1 => _mm512_slli_epi16::<3>(high),
        2 => _mm512_slli_epi16::<2>(high),
        3 => _mm512_slli_epi16::<1>(high),
        4 => high,
        5 => _mm512_srli_epi16::<1>(high),
        6 => _mm512_srli_epi16::<2>(high),
        _ => _mm512_srli_epi16::<3>(high),
    };
    masked_or(codes, high, _mm512_set1_epi8(0x10))
}

/// `a | b & mask`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512dq,avx512vnni")]
fn masked_or(a: __m512i, b: __m512i, mask: __m512i) -> __m512i {
    _mm512_ternarylogic_epi32::<0xf8>(a, b, mask)
}

/// The dot products of U rows with R panels over 32 columns, in S sums over equal parts of them. The sums begin
/// at `start`.
///
/// # Safety
///
/// The processor has the features.
#[inline(always)]
unsafe fn dots<const R: usize, const U: usize, const S: usize>(
    codes: &[Group; R],
    quants: &[[i8; 32]; U],
    start: &[[i32; S]; U],
) -> [[[__m512i; S]; R]; U] {
    // SAFETY: the caller promises the features.
    unsafe {
        let mut sums = [[[_mm512_setzero_si512(); S]; R]; U];
        for u in 0..U {
            for s in 0..S {
                let start = _mm512_set1_epi32(start[u][s]);
                for r in 0..R {
                    sums[u][r][s] = start;
                }
            }
        }
        for g in 0..8 {
            for u in 0..U {
                let four =
                    [quants[u][4 * g], quants[u][4 * g + 1], quants[u][4 * g + 2], quants[u][4 * g + 3]];
                let four = _mm512_set1_epi32(i32::from_le_bytes(four.map(|quant| quant as u8)));
                for r in 0..R {
                    let sum = &mut sums[u][r][g * S / 8];
                    *sum = _mm512_dpbusd_epi32(*sum, codes[r][g], four);
                }
            }
        }
        sums
    }
}

/// Elements `t..t + U`, by reference: values loaded early would be broadcast from registers, on a port that the
/// dot products need.
#[inline(always)]
fn rows_at<T, const U: usize>(all: &[T], t: usize) -> &[T; U] {
    let some = &all[t..][..U];
    // SAFETY: U elements are borrowed.
    unsafe { &*some.as_ptr().cast() }
}

/// Stores the accumulators of R panels.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512dq,avx512vnni")]
fn store<const R: usize>(output: &mut Output<'_>, accumulators: &[[__m512; R]], panel: usize) {
    for (t, accumulators) in accumulators.iter().enumerate() {
        for (r, accumulator) in accumulators.iter().enumerate() {
            let mut lanes = [0.0; LANES];
            // SAFETY: `lanes` holds 16 f32.
            unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), *accumulator) };
            output.store(t, panel + r, &lanes);
        }
    }
}
