//! Formats of blocks of 32.

use std::arch::x86_64::*;
use std::ops::Range;

use unfazed_formats::BlockFormat;

use crate::activations::{TILE_ROWS, Tile};
use crate::panel::{Geometry, LINE, PackedMatrix, SCALES};

use super::{Group, Output, dots, fetch_ahead, fetch_next, halves, line, nibbles, store, with_bit};

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

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512dq,avx512vnni")]
fn codes4(bytes: &[u8]) -> Group {
    let mut codes = [_mm512_setzero_si512(); 8];
    for g in 0..4 {
        let vector = line(bytes, g * LINE);
        (codes[g], codes[g + 4]) = (nibbles(vector, false), nibbles(vector, true));
    }
    codes
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512dq,avx512vnni")]
fn codes5(bytes: &[u8]) -> Group {
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

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512dq,avx512vnni")]
fn codes8(bytes: &[u8]) -> Group {
    let mut codes = [_mm512_setzero_si512(); 8];
    for (g, codes) in codes.iter_mut().enumerate() {
        *codes = line(bytes, g * LINE);
    }
    codes
}

macro_rules! formats {
    ($($name:ident $codes:ident),*) => {$(
        impl Block32 for $name {
            const FORMAT: BlockFormat = BlockFormat::$name;

            #[inline]
            #[target_feature(enable = "avx512bw,avx512vl,avx512dq,avx512vnni")]
            unsafe fn codes(bytes: &[u8]) -> Group {
                $codes(bytes)
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
            (1, _) => few::<F, 1, 1>(w, panel, tile, output),
            (2, true) => few::<F, 2, 2>(w, panel, tile, output),
            (2, false) => few::<F, 1, 2>(w, panel, tile, output),
            (3, true) => few::<F, 2, 3>(w, panel, tile, output),
            (3, false) => few::<F, 1, 3>(w, panel, tile, output),
            (4, true) => few::<F, 2, 4>(w, panel, tile, output),
            (4, false) => few::<F, 1, 4>(w, panel, tile, output),
            (_, true) => many::<F, 2>(w, panel, tile, output),
            (_, false) => many::<F, 1>(w, panel, tile, output),
        }
        panel += if pair && tile.rows() > 1 { 2 } else { 1 };
    }
}

/// A block of R panels.
struct Weights<const R: usize> {
    codes: [Group; R],
    scales: [__m512; R],
    minimums: [__m512; R],
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512dq,avx512vnni")]
fn load<F: Block32, const R: usize>(panels: &[&[u8]; R], b: usize) -> Weights<R> {
    let mut weights = Weights {
        codes: [[_mm512_setzero_si512(); 8]; R],
        scales: [_mm512_setzero_ps(); R],
        minimums: [_mm512_setzero_ps(); R],
    };
    for r in 0..R {
        let block = &panels[r][F::GEOMETRY.block_at(b)..][..F::GEOMETRY.block];
        // SAFETY: this function has the features.
        weights.codes[r] = unsafe { F::codes(&block[F::CODES..]) };
        weights.scales[r] = halves(panels[r], F::GEOMETRY.scales_at(b));
        if !F::GEOMETRY.paired {
            weights.minimums[r] = halves(block, SCALES);
        }
    }
    weights
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
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512dq,avx512vnni")]
fn add<F: Block32, const R: usize, const U: usize>(
    weights: &Weights<R>,
    rows: &Rows<'_>,
    t: usize,
    accumulators: &mut [[__m512; R]; U],
) {
    let mut quants = [[0; 32]; U];
    quants.copy_from_slice(&rows.quants[t..t + U]);
    let mut starts = [[0]; U];
    if F::GEOMETRY.paired {
        starts.copy_from_slice(&rows.starts[t..t + U]);
    }
    let dots = dots(&weights.codes, &quants, &starts);
    for u in 0..U {
        let scale = _mm512_set1_ps(rows.scales[t + u]);
        for r in 0..R {
            let mut p = _mm512_mul_ps(weights.scales[r], _mm512_cvtepi32_ps(dots[u][r][0]));
            if !F::GEOMETRY.paired {
                p = _mm512_fmadd_ps(weights.minimums[r], _mm512_set1_ps(rows.sums[t + u]), p);
            }
            accumulators[u][r] = _mm512_fmadd_ps(p, scale, accumulators[u][r]);
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
            fetch_ahead(panel, at, F::GEOMETRY.block / LINE + usize::from(scales));
        }
        let weights = load::<F, R>(&panels, b);
        add::<F, R, T>(&weights, &Rows::new(tile, b), 0, &mut accumulators);
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
        let weights = load::<F, R>(&panels, b);
        let rows = Rows::new(tile, b);
        let (pairs, rest) = accumulators.as_chunks_mut::<2>();
        let paired = 2 * pairs.len();
        for (i, pair) in pairs.iter_mut().enumerate() {
            add::<F, R, 2>(&weights, &rows, 2 * i, pair);
        }
        for one in rest.as_chunks_mut::<1>().0 {
            add::<F, R, 1>(&weights, &rows, paired, one);
        }
    }
    store(output, accumulators, panel);
}
