//! Formats of superblocks of 256.

use std::arch::x86_64::*;
use std::ops::Range;

use unfazed_formats::BlockFormat;

use crate::activations::{TILE_ROWS, Tile};
use crate::panel::codes::{Q6_K_HALF, Q6_K_HIGH, Q6_K_LOW_EVEN, Q6_K_LOW_ODD};
use crate::panel::{Geometry, LINE, PackedMatrix, SCALES};

use super::{
    Group, Output, bytes16, dots, fetch_ahead, fetch_next, halves, line, masked_or, nibbles, rows_at, store,
    with_bit,
};

/// A format of superblocks of 256. `S` sums are kept for each 32 columns: 2 where sub-blocks are of 16.
pub(super) trait Superblock<const S: usize> {
    const FORMAT: BlockFormat;
    const GEOMETRY: Geometry = Geometry::of(Self::FORMAT);
    /// Whether there are minimums.
    const MINIMUMS: bool;

    /// Integer scales, by sub-block and lane.
    ///
    /// # Safety
    ///
    /// The processor has the features.
    unsafe fn header(block: &[u8]) -> Header;

    /// The unsigned codes of columns `32 J..32 J + 32`.
    ///
    /// # Safety
    ///
    /// The processor has the features.
    unsafe fn codes<const J: usize>(block: &[u8]) -> Group;

    /// The scales of the sub-blocks of columns `32 J..32 J + 32`.
    ///
    /// # Safety
    ///
    /// The processor has the features.
    unsafe fn scales<const J: usize>(block: &[u8], header: &Header) -> [__m512; S];
}

/// What is unpacked once for a superblock.
#[derive(Clone, Copy)]
pub(super) struct Header {
    /// Scales by sub-block of 32 and lane; unused with sub-blocks of 16.
    scales: [u8; 128],
    /// Minimums of sub-blocks 2i and 2i + 1 as pairs of i16; unused where there are none.
    minimums: [__m512i; 4],
}

pub(super) enum Q4K {}
pub(super) enum Q5K {}
pub(super) enum Q6K {}

/// Scales and minimums of Q4_K and Q5_K.
///
/// # Safety
///
/// The processor has the features.
#[inline(always)]
unsafe fn k_header(block: &[u8]) -> Header {
    // SAFETY: the caller promises the features.
    unsafe {
        let low = [line(block, LINE), line(block, 2 * LINE)];
        let high = line(block, 3 * LINE);
        let top = _mm512_set1_epi8(0x30);
        let scales = [
            masked_or(nibbles(low[0], false), _mm512_slli_epi16::<4>(high), top),
            masked_or(nibbles(low[1], false), high, top),
        ];
        let minimums = [
            masked_or(nibbles(low[0], true), _mm512_slli_epi16::<2>(high), top),
            masked_or(nibbles(low[1], true), _mm512_srli_epi16::<2>(high), top),
        ];
        let mut bytes = [0; 128];
        let (first, second) = bytes.split_at_mut(LINE);
        for (bytes, scales) in [first, second].into_iter().zip(scales) {
            // Each half of `bytes` holds 64.
            _mm512_storeu_si512(bytes.as_mut_ptr().cast(), scales);
        }
        let widen = |half: __m256i| _mm512_cvtepu8_epi16(half);
        Header {
            scales: bytes,
            minimums: [
                widen(_mm512_castsi512_si256(minimums[0])),
                widen(_mm512_extracti64x4_epi64::<1>(minimums[0])),
                widen(_mm512_castsi512_si256(minimums[1])),
                widen(_mm512_extracti64x4_epi64::<1>(minimums[1])),
            ],
        }
    }
}

/// The nibbles of columns `32 J..32 J + 32` of Q4_K and Q5_K.
///
/// # Safety
///
/// The processor has the features.
#[inline(always)]
unsafe fn k_nibbles<const J: usize>(quants: &[u8]) -> Group {
    // SAFETY: the caller promises the features.
    unsafe {
        let mut codes = [_mm512_setzero_si512(); 8];
        for (g, codes) in codes.iter_mut().enumerate() {
            *codes = nibbles(line(quants, (J / 2 * 8 + g) * LINE), J % 2 == 1);
        }
        codes
    }
}

/// The scales of columns `32 J..32 J + 32` of Q4_K and Q5_K.
///
/// # Safety
///
/// The processor has the features.
#[inline(always)]
unsafe fn k_scales<const J: usize>(header: &Header) -> [__m512; 1] {
    // SAFETY: the caller promises the features.
    unsafe { [_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes16(&header.scales, J * 16)))] }
}

impl Superblock<1> for Q4K {
    const FORMAT: BlockFormat = BlockFormat::Q4_K;
    const MINIMUMS: bool = true;

    #[inline(always)]
    unsafe fn header(block: &[u8]) -> Header {
        // SAFETY: the caller promises the features.
        unsafe { k_header(block) }
    }

    #[inline(always)]
    unsafe fn codes<const J: usize>(block: &[u8]) -> Group {
        // SAFETY: the caller promises the features.
        unsafe { k_nibbles::<J>(&block[4 * LINE..]) }
    }

    #[inline(always)]
    unsafe fn scales<const J: usize>(_: &[u8], header: &Header) -> [__m512; 1] {
        // SAFETY: the caller promises the features.
        unsafe { k_scales::<J>(header) }
    }
}

impl Superblock<1> for Q5K {
    const FORMAT: BlockFormat = BlockFormat::Q5_K;
    const MINIMUMS: bool = true;

    #[inline(always)]
    unsafe fn header(block: &[u8]) -> Header {
        // SAFETY: the caller promises the features.
        unsafe { k_header(block) }
    }

    #[inline(always)]
    unsafe fn codes<const J: usize>(block: &[u8]) -> Group {
        // SAFETY: the caller promises the features.
        unsafe {
            let mut codes = k_nibbles::<J>(&block[12 * LINE..]);
            for (g, codes) in codes.iter_mut().enumerate() {
                *codes = with_bit::<J>(*codes, line(block, (4 + g) * LINE));
            }
            codes
        }
    }

    #[inline(always)]
    unsafe fn scales<const J: usize>(_: &[u8], header: &Header) -> [__m512; 1] {
        // SAFETY: the caller promises the features.
        unsafe { k_scales::<J>(header) }
    }
}

impl Superblock<2> for Q6K {
    const FORMAT: BlockFormat = BlockFormat::Q6_K;
    const MINIMUMS: bool = false;

    #[inline(always)]
    unsafe fn header(_: &[u8]) -> Header {
        // SAFETY: the caller promises the features.
        unsafe { Header { scales: [0; 128], minimums: [_mm512_setzero_si512(); 4] } }
    }

    #[inline(always)]
    unsafe fn codes<const J: usize>(block: &[u8]) -> Group {
        // SAFETY: the caller promises the features.
        unsafe {
            let half = &block[J / 4 * Q6_K_HALF..][..Q6_K_HALF];
            let low = if J.is_multiple_of(2) { Q6_K_LOW_EVEN } else { Q6_K_LOW_ODD };
            let mut codes = [_mm512_setzero_si512(); 8];
            for (g, codes) in codes.iter_mut().enumerate() {
                let low = nibbles(line(half, low + g * LINE), J % 4 >= 2);
                let high = line(half, Q6_K_HIGH + g * LINE);
                let high = match J % 4 {
                    0 => _mm512_slli_epi16::<4>(high),
                    1 => _mm512_slli_epi16::<2>(high),
                    2 => high,
                    _ => _mm512_srli_epi16::<2>(high),
                };
                *codes = masked_or(low, high, _mm512_set1_epi8(0x30));
            }
            codes
        }
    }

    #[inline(always)]
    unsafe fn scales<const J: usize>(block: &[u8], _: &Header) -> [__m512; 2] {
        // SAFETY: the caller promises the features.
        unsafe {
            let at = J / 4 * Q6_K_HALF + J % 4 * 32;
            let scales = |at| _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes16(block, at)));
            [scales(at), scales(at + 16)]
        }
    }
}

/// Panels times a tile.
#[target_feature(enable = "avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) fn multiply<F: Superblock<S>, const S: usize>(
    w: &PackedMatrix<'_>,
    panels: Range<usize>,
    tile: &Tile,
    output: &mut Output<'_>,
) {
    let mut panel = panels.start;
    while panel < panels.end {
        // Partial sums beside accumulators leave registers for two rows, no more.
        let pair = panel + 1 < panels.end;
        match (tile.rows(), pair) {
            (1, true) => few::<F, S, 2, 1>(w, panel, tile, output),
            (1, false) => few::<F, S, 1, 1>(w, panel, tile, output),
            (2, true) => few::<F, S, 2, 2>(w, panel, tile, output),
            (2, false) => few::<F, S, 1, 2>(w, panel, tile, output),
            (_, true) => many::<F, S, 2>(w, panel, tile, output),
            (_, false) => many::<F, S, 1>(w, panel, tile, output),
        }
        panel += if pair { 2 } else { 1 };
    }
}

/// 32 columns of R panels.
struct Weights<const R: usize, const S: usize> {
    codes: [Group; R],
    scales: [[__m512; S]; R],
}

/// Unpacks columns `32 J..32 J + 32` of a superblock of R panels.
///
/// # Safety
///
/// The processor has the features.
#[inline(always)]
unsafe fn load<F: Superblock<S>, const S: usize, const R: usize, const J: usize>(
    blocks: &[&[u8]; R],
    headers: &[Header; R],
) -> Weights<R, S> {
    // SAFETY: the caller promises the features.
    unsafe {
        let mut weights =
            Weights { codes: [[_mm512_setzero_si512(); 8]; R], scales: [[_mm512_setzero_ps(); S]; R] };
        for r in 0..R {
            let block = &blocks[r][..F::GEOMETRY.block];
            weights.codes[r] = F::codes::<J>(block);
            weights.scales[r] = F::scales::<J>(block, &headers[r]);
        }
        weights
    }
}

/// Adds 32 columns to the partial sums of rows `t..t + U`.
///
/// # Safety
///
/// The processor has the features.
#[inline(always)]
unsafe fn add<F: Superblock<S>, const S: usize, const R: usize, const U: usize>(
    weights: &Weights<R, S>,
    quants: &[[i8; 32]],
    starts: &[[i32; S]],
    t: usize,
    partials: &mut [[__m512; R]; U],
) {
    // SAFETY: the caller promises the features.
    unsafe {
        let quants: &[[i8; 32]; U] = rows_at(quants, t);
        let starts = if F::MINIMUMS { &[[0; S]; U] } else { rows_at(starts, t) };
        let dots = dots(&weights.codes, quants, starts);
        for u in 0..U {
            for r in 0..R {
                for s in 0..S {
                    let dot = _mm512_cvtepi32_ps(dots[u][r][s]);
                    partials[u][r] = _mm512_fmadd_ps(dot, weights.scales[r][s], partials[u][r]);
                }
            }
        }
    }
}

/// Ends a superblock for row `t`: scales the partial sum and adds it. `rows` are the scales of the rows.
///
/// # Safety
///
/// The processor has the features.
#[inline(always)]
unsafe fn finish<F: Superblock<S>, const S: usize>(
    scales: &Scales,
    pairs: &[[i32; 4]],
    rows: &[f32],
    t: usize,
    partial: __m512,
    accumulator: __m512,
) -> __m512 {
    // SAFETY: the caller promises the features.
    unsafe {
        let mut p = _mm512_mul_ps(scales.d, partial);
        if F::MINIMUMS {
            let mut sum = _mm512_setzero_si512();
            for i in 0..4 {
                sum = _mm512_dpwssd_epi32(sum, scales.minimums[i], _mm512_set1_epi32(pairs[t][i]));
            }
            p = _mm512_fnmadd_ps(scales.dmin, _mm512_cvtepi32_ps(sum), p);
        }
        _mm512_fmadd_ps(p, _mm512_set1_ps(rows[t]), accumulator)
    }
}

/// The float scales of a superblock, and its minimums.
struct Scales {
    d: __m512,
    dmin: __m512,
    minimums: [__m512i; 4],
}

/// Loads the float scales of superblock `b` of a panel.
///
/// # Safety
///
/// The processor has the features.
#[inline(always)]
unsafe fn scales<F: Superblock<S>, const S: usize>(panel: &[u8], b: usize, header: &Header) -> Scales {
    // SAFETY: the caller promises the features.
    unsafe {
        let at = F::GEOMETRY.scales_at(b);
        Scales {
            d: halves(panel, at),
            dmin: if F::MINIMUMS { halves(panel, at + SCALES) } else { _mm512_setzero_ps() },
            minimums: header.minimums,
        }
    }
}

/// The superblocks `b` of R panels, and what is unpacked once for each.
///
/// # Safety
///
/// The processor has the features.
#[inline(always)]
unsafe fn open<'a, F: Superblock<S>, const S: usize, const R: usize>(
    panels: &[&'a [u8]; R],
    b: usize,
) -> ([&'a [u8]; R], [Header; R]) {
    // SAFETY: the caller promises the features.
    unsafe {
        let mut blocks = *panels;
        let mut headers = [Header { scales: [0; 128], minimums: [_mm512_setzero_si512(); 4] }; R];
        for r in 0..R {
            blocks[r] = &panels[r][F::GEOMETRY.block_at(b)..][..F::GEOMETRY.block];
            headers[r] = F::header(blocks[r]);
        }
        (blocks, headers)
    }
}

/// Runs a block for J = 0 to 7.
macro_rules! eight {
    ($J:ident => $body:block) => {
        eight!(@ $J $body 0 1 2 3 4 5 6 7)
    };
    (@ $J:ident $body:block $($j:literal)*) => {
        $({
            const $J: usize = $j;
            $body
        })*
    };
}

/// R panels times a tile of T rows, accumulators in registers.
#[target_feature(enable = "avx512bw,avx512vl,avx512dq,avx512vnni")]
fn few<F: Superblock<S>, const S: usize, const R: usize, const T: usize>(
    w: &PackedMatrix<'_>,
    panel: usize,
    tile: &Tile,
    output: &mut Output<'_>,
) {
    let panels: [&[u8]; R] = w.panels(panel);
    let mut accumulators = [[_mm512_setzero_ps(); R]; T];
    for b in 0..w.layout().blocks() {
        if F::GEOMETRY.paired && b % 2 == 0 {
            for panel in panels {
                fetch_ahead(panel, F::GEOMETRY.scales_at(b), 1, (R - 1) * panel.len());
            }
        }
        // SAFETY: this function has the features.
        let (blocks, headers) = unsafe { open::<F, S, R>(&panels, b) };
        let mut partials = [[_mm512_setzero_ps(); R]; T];
        eight!(J => {
            for panel in panels {
                let lines = F::GEOMETRY.share(J, 8);
                let at = F::GEOMETRY.block_at(b) + lines.start * LINE;
                fetch_ahead(panel, at, lines.len(), (R - 1) * panel.len());
            }
            // SAFETY: this function has the features.
            let weights = unsafe { load::<F, S, R, J>(&blocks, &headers) };
            let group = 8 * b + J;
            // SAFETY: this function has the features.
            unsafe { add::<F, S, R, T>(&weights, tile.quants(group), tile.starts(group), 0, &mut partials) };
        });
        let (pairs, rows) = (tile.pairs(b), tile.scales(b));
        for r in 0..R {
            // SAFETY: this function has the features.
            let scales = unsafe { scales::<F, S>(panels[r], b, &headers[r]) };
            for t in 0..T {
                // SAFETY: this function has the features.
                accumulators[t][r] =
                    unsafe { finish::<F, S>(&scales, pairs, rows, t, partials[t][r], accumulators[t][r]) };
            }
        }
    }
    store(output, &accumulators, panel);
}

/// R panels times a tile of many rows, accumulators in memory.
#[target_feature(enable = "avx512bw,avx512vl,avx512dq,avx512vnni")]
fn many<F: Superblock<S>, const S: usize, const R: usize>(
    w: &PackedMatrix<'_>,
    panel: usize,
    tile: &Tile,
    output: &mut Output<'_>,
) {
    let panels: [&[u8]; R] = w.panels(panel);
    let mut accumulators = [[_mm512_setzero_ps(); R]; TILE_ROWS];
    let mut partials = [[_mm512_setzero_ps(); R]; TILE_ROWS];
    let (accumulators, partials) = (&mut accumulators[..tile.rows()], &mut partials[..tile.rows()]);
    for b in 0..w.layout().blocks() {
        // SAFETY: this function has the features.
        let (blocks, headers) = unsafe { open::<F, S, R>(&panels, b) };
        partials.fill([_mm512_setzero_ps(); R]);
        eight!(J => {
            for block in blocks {
                let lines = F::GEOMETRY.share(J, 8);
                fetch_next(block, lines.start * LINE, lines.len(), R * w.layout().panel_bytes());
            }
            // SAFETY: this function has the features.
            let weights = unsafe { load::<F, S, R, J>(&blocks, &headers) };
            let (quants, starts) = (tile.quants(8 * b + J), tile.starts(8 * b + J));
            // Four rows at a time: R x 4 chains of dot products hide the latency of the instruction.
            let (fours, rest) = partials.as_chunks_mut::<4>();
            let mut t = 0;
            for four in fours {
                // SAFETY: this function has the features.
                unsafe { add::<F, S, R, 4>(&weights, quants, starts, t, four) };
                t += 4;
            }
            for one in rest.as_chunks_mut::<1>().0 {
                // SAFETY: this function has the features.
                unsafe { add::<F, S, R, 1>(&weights, quants, starts, t, one) };
                t += 1;
            }
        });
        let (pairs, rows) = (tile.pairs(b), tile.scales(b));
        for r in 0..R {
            // SAFETY: this function has the features.
            let scales = unsafe { scales::<F, S>(panels[r], b, &headers[r]) };
            for (t, (accumulator, partial)) in accumulators.iter_mut().zip(partials.iter()).enumerate() {
                // SAFETY: this function has the features.
                accumulator[r] =
                    unsafe { finish::<F, S>(&scales, pairs, rows, t, partial[r], accumulator[r]) };
            }
        }
    }
    store(output, accumulators, panel);
}
