//! Weights as floats times f32 activations: `acc = fma(w, x, acc)`, column by column.
//!
//! Serves float matrices, and any matrix when the tile has f32 activations (the test mode). One body for all
//! instruction sets: columns are unpacked to f32 in the first-level cache, and the rows pass over them in groups
//! whose accumulators stay in registers.

use std::ops::Range;

use half::f16;
use unfazed_formats::BlockFormat;

use crate::activations::{TILE_ROWS, Tile};
use crate::lanes::{Kernel, Lanes, dispatch};
use crate::panel::{
    CHUNK, E4M3_FACTOR, Geometry, PackedMatrix, e4m3_as_f16, small_float_scales, unpack_columns,
};
use crate::{Isa, LANES};

use super::output::Output;

/// Panels times a tile of f32 activations.
pub(super) fn multiply(
    isa: Isa,
    w: &PackedMatrix<'_>,
    panels: Range<usize>,
    tile: &Tile,
    output: &mut Output<'_>,
) {
    for panel in panels {
        let format = w.layout().format();
        dispatch(isa, Panel { format, bytes: w.panel(panel), panel, tile, output });
    }
}

struct Panel<'a, 'out> {
    format: BlockFormat,
    bytes: &'a [u8],
    panel: usize,
    tile: &'a Tile,
    output: &'a mut Output<'out>,
}

impl Kernel for Panel<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let (rows, columns) = (self.tile.rows(), self.tile.columns());
        let mut accumulators = [[0.0f32; LANES]; TILE_ROWS];
        let mut weights = [[0.0f32; LANES]; CHUNK];
        for first in (0..columns).step_by(CHUNK) {
            let weights = &mut weights[..CHUNK.min(columns - first)];
            unpack(lanes, self.format, self.bytes, first, weights);
            let x = |t: usize| &self.tile.floats(t)[first..][..weights.len()];
            let (eights, rest) = accumulators[..rows].as_chunks_mut::<8>();
            let (pairs, ones) = rest.as_chunks_mut::<2>();
            let mut t = 0;
            for eight in eights {
                add(lanes, weights, std::array::from_fn(|i| x(t + i)), eight);
                t += 8;
            }
            for pair in pairs {
                add(lanes, weights, [x(t), x(t + 1)], pair);
                t += 2;
            }
            for one in ones.as_chunks_mut::<1>().0 {
                add(lanes, weights, [x(t)], one);
            }
        }
        for (t, accumulator) in accumulators[..rows].iter().enumerate() {
            self.output.store(t, self.panel, accumulator);
        }
    }
}

/// The same values as `unpack_columns` gives, of f16 and 8 bits by an instruction where there is one.
#[inline(always)]
fn unpack<L: Lanes>(lanes: L, format: BlockFormat, panel: &[u8], first: usize, weights: &mut [[f32; LANES]]) {
    match format {
        BlockFormat::F16 => {
            for (weights, bytes) in weights.iter_mut().zip(panel.as_chunks().0[first..].iter()) {
                lanes.store(lanes.load_half(&halves(bytes)), weights);
            }
        }
        BlockFormat::FP8 | BlockFormat::MXFP8 => {
            let geometry = &Geometry::of(format);
            for (g, weights) in weights.chunks_exact_mut(32).enumerate() {
                let group = first / 32 + g;
                let scales = lanes.load(&small_float_scales(format, geometry, panel, group));
                let columns = panel[geometry.group_at(group)..].as_chunks::<LANES>().0;
                for (weights, bytes) in weights.iter_mut().zip(columns) {
                    let halves = bytes.map(|bits| f16::from_bits(e4m3_as_f16(bits)));
                    let values = lanes.mul(lanes.load_half(&halves), lanes.splat(E4M3_FACTOR));
                    lanes.store(lanes.mul(scales, values), weights);
                }
            }
        }
        _ => unpack_columns(format, panel, first, weights),
    }
}

/// The f16 of a column.
#[inline(always)]
fn halves(bytes: &[u8; 2 * LANES]) -> [f16; LANES] {
    std::array::from_fn(|lane| f16::from_le_bytes([bytes[2 * lane], bytes[2 * lane + 1]]))
}

/// Adds the products of columns with T rows. `x` has one activation a column for each row.
#[inline(always)]
fn add<L: Lanes, const T: usize>(
    lanes: L,
    weights: &[[f32; LANES]],
    x: [&[f32]; T],
    accumulators: &mut [[f32; LANES]; T],
) {
    // Without this the length of each row would be checked at each column.
    let x = x.map(|x| &x[..weights.len()]);
    let mut sums: [L::V; T] = std::array::from_fn(|t| lanes.load(&accumulators[t]));
    for (k, w) in weights.iter().enumerate() {
        let w = lanes.load(w);
        for t in 0..T {
            sums[t] = lanes.fma(w, lanes.splat(x[t][k]), sums[t]);
        }
    }
    for t in 0..T {
        lanes.store(sums[t], &mut accumulators[t]);
    }
}
