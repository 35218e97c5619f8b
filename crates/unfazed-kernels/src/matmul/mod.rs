//! Matrix times tile.
//!
//! What a result is, for all block formats alike. Lane by lane (a lane is a row of the matrix), for each row of
//! activations, blocks in order:
//!
//! ```text
//! P   = 0;  for each sub-block j:  P = fma(f32(dot_j), scale_j, P)      dot_j: codes x quants, exact in i32
//! p   = d * P
//! p   = fma(m, f32(sum over j of minimum_j * sum_j), p)                 formats with minimums; exact in i32
//! acc = fma(p, da, acc)                                                 da: scale of the activations' block
//! ```
//!
//! Float weights, and all weights when the tile has f32 activations: `acc = fma(w, x, acc)` column by column.
//!
//! | module | what |
//! |---|---|
//! | `reference` | the definition, for int8 activations |
//! | `panels` | the same fast: one routine for all formats and instruction sets |
//! | `integers` | the operations that it is made of, once per instruction set |
//! | `shape` | what of a format the routine is compiled for |
//! | `unpack` | from packed weights to what it multiplies |
//! | `float` | float weights or activations: one body, compiled for each instruction set |
//! | `fetch` | prefetching of weights |
//! | `output` | where results go |

#![allow(unsafe_code)]

mod fetch;
mod float;
mod integers;
mod output;
mod panels;
mod reference;
pub(crate) mod shape;
mod unpack;

use std::ops::Range;

use crate::Isa;
use crate::activations::{Grain, Tile};
use crate::panel::{PackedMatrix, Spec};

use output::Output;
use panels::Multiply;
use shape::Dot;

/// Multiplies some panels of a matrix by a tile. `out[t * stride + i]` becomes the dot product of row `t` of the
/// tile and row `16 * panels.start + i` of the matrix, for the rows that the matrix has.
///
/// The result is the same, bit for bit, for every `isa`, however the panels are divided into calls, and whatever
/// else is in the tile. (Any NaN equals any other.)
///
/// # Panics
///
/// If the processor does not run `isa`, the panels are not the matrix's, the tile was laid out for another format,
/// instruction set or number of columns, or `out` is too short or `stride` smaller than the rows.
pub fn matmul(
    isa: Isa,
    w: &PackedMatrix<'_>,
    panels: Range<usize>,
    tile: &Tile,
    out: &mut [f32],
    stride: usize,
) {
    let layout = w.layout();
    assert!(isa.available(), "this processor does not run {}", isa.name());
    assert!(panels.start <= panels.end && panels.end <= layout.panels(), "panels {panels:?}");
    assert_eq!(tile.format(), layout.format(), "the tile is laid out for another format");
    assert_eq!(tile.columns(), layout.columns(), "the tile has other columns than the matrix");
    let mut output = Output::new(layout, &panels, tile.rows(), out, stride);
    if tile.rows() == 0 || panels.is_empty() {
        return;
    }
    match tile.grain() {
        Grain::Float => float::multiply(isa, w, panels, tile, &mut output),
        Grain::Per32 | Grain::Per256 => multiply(isa, w, panels, tile, &mut output),
    }
}

/// Panels times a tile of int8 activations.
fn multiply(isa: Isa, w: &PackedMatrix<'_>, panels: Range<usize>, tile: &Tile, output: &mut Output<'_>) {
    let Some(spec) = &Spec::of(w.layout().format()) else { return };
    assert_eq!(tile.dot(), Dot::of(isa), "the tile is laid out for another instruction set");
    let task = Multiply { spec, w, panels, tile, output };
    if let Err(Multiply { panels, output, .. }) = integers::dispatch(isa, task) {
        reference::multiply(w, panels, tile, output);
    }
}
