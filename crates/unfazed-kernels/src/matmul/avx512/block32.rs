//! Formats of blocks of 32.

use std::arch::x86_64::*;
use std::ops::Range;

use unfazed_formats::BlockFormat;

use crate::activations::{TILE_ROWS, Tile};
use crate::panel::{Geometry, LINE, PackedMatrix, SCALES};

use super::{Group, Output, dots, fetch_ahead, fetch_next, halves, line, nibbles, rows_at, store, with_bit};

/// A format of blocks of 32.
pub(super) trait Block32 {
    const FORMAT: BlockFormat;
    const GEOMETRY: Geometry = Geometry::of(Self::FORMAT);
    /// Where the codes begin in a block: after scale and minimum, if these are not in a line of their own.
    const CODES: usize = if Self::GEOMETRY.paired { 0 } else { 2 * SCALES };

    /// The unsigned codes at the start of `bytes`.
    ///
    /// # Safety
    ///
    /// The processor has the features.
    unsafe fn codes(bytes: &[u8]) -> Group;
}

pub(super) enum Q4_0 {}
pub(super) enum Q4_1 {}
pub(super) enum Q5_0 {}
pub(super) enum Q5_1 {}
pub(super) enum Q8_0 {}

/// Codes of 4 bits.
///
/// # Safety
///
/// The processor has the features.
#[inline(always)]
unsafe fn codes4(bytes: &[u8]) -> Group {
    // SAFETY: the caller promises the features.
    unsafe {
        let mut codes = [_mm512_setzero_si512(); 8];
        for g in 0..4 {
            let vector = line(bytes, g * LINE);
            (codes[g], codes[g + 4]) = (nibbles(vector, false), nibbles(vector, true));
        }
        codes
    }
}

/// Codes of 5 bits: 4, and then a vector of high bits before them.
///
/// # Safety
///
/// The processor has the features.
#[inline(always)]
unsafe fn codes5(bytes: &[u8]) -> Group {
    // SAFETY: the caller promises the features.
    unsafe {
        let high = line(bytes, 0);
        let low = codes4(&bytes[LINE..]);
        [
            with_bit::<0>(low[0], high),
            with_bit::<1>(low[1], high),
            with_bit::<2>(low[2], high),
            with_bit::<3>(low[3], high),
            with_bit::<4>(low[4], high),
            with_bit::<5>(low[5], high),
            with_bit::<6>(low[6], high),
            with_bit::<7>(low[7], high),
        ]
    }
}

/// Codes of 8 bits.
///
/// # Safety
///
/// The processor has the features.
#[inline(always)]
unsafe fn codes8(bytes: &[u8]) -> Group {
    // SAFETY: the caller promises the features.
    unsafe {
        let mut codes = [_mm512_setzero_si512(); 8];
        for (g, codes) in codes.iter_mut().enumerate() {
            *codes = line(bytes, g * LINE);
        }
        codes
    }
}

macro_rules! formats {
    ($($name:ident $codes:ident),*) => {$(
        impl Block32 for $name {
            const FORMAT: BlockFormat = BlockFormat::$name;

            #[inline(always)]
            unsafe fn codes(bytes: &[u8]) -> Group {
                // SAFETY: the caller promises the features.
                unsafe { $codes(bytes) }
            }
        }
    )*};
}
formats!(Q4_0 codes4, Q4_1 codes4, Q5_0 codes5, Q5_1 codes5, Q8_0 codes8);

/// Panels times a tile.
#[target_feature(enable = "avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) fn multiply<F: Block32>(
    w: &PackedMatrix<'_>,
    panels: Range<usize>,
    tile: &Tile,
    output: &mut Output<'_>,
) {
    let mut panel = panels.start;
    while panel < panels.end {
        let pair = panel + 1 < panels.end;
        match (tile.rows(), pair) {
            (1, true) => few::<F, 2, 1>(w, panel, tile, output),
            (1, false) => few::<F, 1, 1>(w, panel, tile, output),
            (2, true) => few::<F, 2, 2>(w, panel, tile, output),
            (2, false) => few::<F, 1, 2>(w, panel, tile, output),
            (3, true) => few::<F, 2, 3>(w, panel, tile, output),
            (3, false) => few::<F, 1, 3>(w, panel, tile, output),
            (4, true) => few::<F, 2, 4>(w, panel, tile, output),
            (4, false) => few::<F, 1, 4>(w, panel, tile, output),
            (_, true) => many::<F, 2>(w, panel, tile, output),
            (_, false) => many::<F, 1>(w, panel, tile, output),
        }
        panel += if pair { 2 } else { 1 };
    }
}

/// A block of R panels.
struct Weights<const R: usize> {
    codes: [Group; R],
    scales: [__m512; R],
    minimums: [__m512; R],
}

/// Loads block `b` of R panels.
///
/// # Safety
///
/// The processor has the features.
#[inline(always)]
unsafe fn load<F: Block32, const R: usize>(panels: &[&[u8]; R], b: usize) -> Weights<R> {
    // SAFETY: the caller promises the features.
    unsafe {
        let mut weights = Weights {
            codes: [[_mm512_setzero_si512(); 8]; R],
            scales: [_mm512_setzero_ps(); R],
            minimums: [_mm512_setzero_ps(); R],
        };
        for r in 0..R {
            let block = &panels[r][F::GEOMETRY.block_at(b)..][..F::GEOMETRY.block];
            weights.codes[r] = F::codes(&block[F::CODES..]);
            weights.scales[r] = halves(panels[r], F::GEOMETRY.scales_at(b));
            if !F::GEOMETRY.paired {
                weights.minimums[r] = halves(block, SCALES);
            }
        }
        weights
    }
}

/// What the rows of the tile have in a block.
struct Rows<'a> {
    quants: &'a [[i8; 32]],
    starts: &'a [[i32; 1]],
    sums: &'a [f32],
    scales: &'a [f32],
}

impl<'a> Rows<'a> {
    #[inline(always)]
    fn new(tile: &'a Tile, b: usize) -> Rows<'a> {
        Rows { quants: tile.quants(b), starts: tile.starts(b), sums: tile.sums(b), scales: tile.scales(b) }
    }
}

/// Adds a block to the accumulators of rows `t..t + U`.
///
/// # Safety
///
/// The processor has the features.
#[inline(always)]
unsafe fn add<F: Block32, const R: usize, const U: usize>(
    weights: &Weights<R>,
    rows: &Rows<'_>,
    t: usize,
    accumulators: &mut [[__m512; R]; U],
) {
    // SAFETY: the caller promises the features.
    unsafe {
        // All that may be out of bounds comes first: a branch between the dot products costs registers.
        let quants: &[[i8; 32]; U] = rows_at(rows.quants, t);
        let scales: &[f32; U] = rows_at(rows.scales, t);
        let starts = if F::GEOMETRY.paired { rows_at(rows.starts, t) } else { &[[0]; U] };
        let sums = if F::GEOMETRY.paired { &[0.0; U] } else { rows_at(rows.sums, t) };
        let dots = dots(&weights.codes, quants, starts);
        for u in 0..U {
            let scale = _mm512_set1_ps(scales[u]);
            for r in 0..R {
                let mut p = _mm512_mul_ps(weights.scales[r], _mm512_cvtepi32_ps(dots[u][r][0]));
                if !F::GEOMETRY.paired {
                    p = _mm512_fmadd_ps(weights.minimums[r], _mm512_set1_ps(sums[u]), p);
                }
                accumulators[u][r] = _mm512_fmadd_ps(p, scale, accumulators[u][r]);
            }
        }
    }
}

/// R panels times a tile of T rows, accumulators in registers.
#[target_feature(enable = "avx512bw,avx512vl,avx512dq,avx512vnni")]
fn few<F: Block32, const R: usize, const T: usize>(
    w: &PackedMatrix<'_>,
    panel: usize,
    tile: &Tile,
    output: &mut Output<'_>,
) {
    let panels: [&[u8]; R] = w.panels(panel);
    let mut accumulators = [[_mm512_setzero_ps(); R]; T];
    for b in 0..w.layout().blocks() {
        for panel in panels {
            // The line of scales goes with the even block.
            let scales = F::GEOMETRY.paired && b % 2 == 0;
            let at = F::GEOMETRY.block_at(b) - if scales { LINE } else { 0 };
            let lines = F::GEOMETRY.block / LINE + usize::from(scales);
            fetch_ahead(panel, at, lines, (R - 1) * panel.len());
        }
        // SAFETY: this function has the features.
        let weights = unsafe { load::<F, R>(&panels, b) };
        // SAFETY: this function has the features.
        unsafe { add::<F, R, T>(&weights, &Rows::new(tile, b), 0, &mut accumulators) };
    }
    store(output, &accumulators, panel);
}

/// R panels times a tile of many rows, accumulators in memory.
#[target_feature(enable = "avx512bw,avx512vl,avx512dq,avx512vnni")]
fn many<F: Block32, const R: usize>(
    w: &PackedMatrix<'_>,
    panel: usize,
    tile: &Tile,
    output: &mut Output<'_>,
) {
    let panels: [&[u8]; R] = w.panels(panel);
    let mut accumulators = [[_mm512_setzero_ps(); R]; TILE_ROWS];
    let accumulators = &mut accumulators[..tile.rows()];
    for b in 0..w.layout().blocks() {
        for panel in panels {
            fetch_next(
                panel,
                F::GEOMETRY.block_at(b),
                F::GEOMETRY.block / LINE,
                R * w.layout().panel_bytes(),
            );
        }
        // SAFETY: this function has the features.
        let weights = unsafe { load::<F, R>(&panels, b) };
        let rows = Rows::new(tile, b);
        // Four rows at a time: R x 4 chains of dot products hide the latency of the instruction.
        let (fours, rest) = accumulators.as_chunks_mut::<4>();
        let mut t = 0;
        for four in fours {
            // SAFETY: this function has the features.
            unsafe { add::<F, R, 4>(&weights, &rows, t, four) };
            t += 4;
        }
        for one in rest.as_chunks_mut::<1>().0 {
            // SAFETY: this function has the features.
            unsafe { add::<F, R, 1>(&weights, &rows, t, one) };
            t += 1;
        }
    }
    store(output, accumulators, panel);
}
