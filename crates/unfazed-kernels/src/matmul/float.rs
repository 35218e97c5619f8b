//! Weights as floats times f32 activations: `acc = fma(w, x, acc)`, column by column.
//!
//! Serves float matrices, and any matrix when the tile has f32 activations (the test mode). Compiled per
//! instruction set.

use std::ops::Range;

use unfazed_formats::BlockFormat;

use crate::activations::{TILE_ROWS, Tile};
use crate::instantiate::{Kernel, instantiate};
use crate::panel::{CHUNK, PackedMatrix, unpack_columns};
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
        instantiate(isa, Panel { format, bytes: w.panel(panel), panel, tile, output });
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
    fn run(self) {
        let (rows, columns) = (self.tile.rows(), self.tile.columns());
        let mut accumulators = [[0.0f32; LANES]; TILE_ROWS];
        let mut weights = [[0.0f32; LANES]; CHUNK];
        for first in (0..columns).step_by(CHUNK) {
            let weights = &mut weights[..CHUNK.min(columns - first)];
            unpack_columns(self.format, self.bytes, first, weights);
            for (t, accumulator) in accumulators[..rows].iter_mut().enumerate() {
                let x = &self.tile.floats(t)[first..];
                for (w, &x) in weights.iter().zip(x) {
                    for lane in 0..LANES {
                        accumulator[lane] = w[lane].mul_add(x, accumulator[lane]);
                    }
                }
            }
        }
        for (t, accumulator) in accumulators[..rows].iter().enumerate() {
            self.output.store(t, self.panel, accumulator);
        }
    }
}
