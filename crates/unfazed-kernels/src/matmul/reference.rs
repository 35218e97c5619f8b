//! The definition for int8 activations, on any processor.

use std::ops::Range;

use crate::LANES;
use crate::activations::{TILE_ROWS, Tile};
use crate::panel::{Geometry, PackedMatrix, Spec, Unpacked};

use super::output::Output;

/// Panels times a tile of int8 activations.
pub(super) fn multiply(w: &PackedMatrix<'_>, panels: Range<usize>, tile: &Tile, output: &mut Output<'_>) {
    let format = w.layout().format();
    let Some(spec) = Spec::of(format) else { return };
    let geometry = Geometry::of(format);
    for panel in panels {
        let mut accumulators = [[0.0f32; LANES]; TILE_ROWS];
        let accumulators = &mut accumulators[..tile.rows()];
        let mut weights = Unpacked::new();
        for step in 0..tile.columns() / (32 * spec.step()) {
            weights.unpack(&spec, &geometry, w.panel(panel), step);
            let scales = tile.scales(step);
            for (t, accumulator) in accumulators.iter_mut().enumerate() {
                let p = dot_step(&spec, &weights, tile, step, t);
                for lane in 0..LANES {
                    accumulator[lane] = p[lane].mul_add(scales[t], accumulator[lane]);
                }
            }
        }
        for (t, accumulator) in accumulators.iter().enumerate() {
            output.store(t, panel, accumulator);
        }
    }
}

/// A step of weights times the same columns of row `t`, less the scale of the activations.
fn dot_step(spec: &Spec, weights: &Unpacked, tile: &Tile, step: usize, t: usize) -> [f32; LANES] {
    let mut p = [0.0f32; LANES];
    let mut minimums = [0i32; LANES];
    for (j, values) in weights.values[..32 * spec.step()].chunks_exact(spec.sub()).enumerate() {
        let column = step * 32 * spec.step() + j * spec.sub();
        let quants = &tile.quants(column / 32)[t][column % 32..][..spec.sub()];
        let mut dot = [0i32; LANES];
        let mut sum = 0;
        for (values, &quant) in values.iter().zip(quants) {
            let quant = i32::from(quant);
            for lane in 0..LANES {
                dot[lane] += i32::from(values[lane]) * quant;
            }
            sum += quant;
        }
        for lane in 0..LANES {
            p[lane] = (dot[lane] as f32).mul_add(weights.scales[j][lane], p[lane]);
            minimums[lane] += i32::from(weights.minimums[j][lane]) * sum;
        }
    }
    for lane in 0..LANES {
        p[lane] *= weights.d[lane];
        if spec.minimums() {
            p[lane] = weights.m[lane].mul_add(minimums[lane] as f32, p[lane]);
        }
    }
    p
}
