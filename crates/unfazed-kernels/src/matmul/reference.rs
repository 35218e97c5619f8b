//! The definition for int8 activations, on any processor.

use std::marker::PhantomData;
use std::ops::Range;

use crate::activations::{TILE_ROWS, Tile};
use crate::lanes::{Kernel, Lanes, dispatch};
use crate::panel::{Codes, PackedMatrix, Unpacked, for_codes};
use crate::{Isa, LANES};

use super::output::Output;

/// Panels times a tile of int8 activations.
pub(super) fn multiply(w: &PackedMatrix<'_>, panels: Range<usize>, tile: &Tile, output: &mut Output<'_>) {
    for_codes!(w.layout().format(), C => {
        for panel in panels {
            let (bytes, codes) = (w.panel(panel), PhantomData);
            dispatch(Isa::Reference, Panel::<C> { bytes, panel, tile, output, codes });
        }
    }, {});
}

struct Panel<'a, 'out, C> {
    bytes: &'a [u8],
    panel: usize,
    tile: &'a Tile,
    output: &'a mut Output<'out>,
    codes: PhantomData<C>,
}

impl<C: Codes> Kernel for Panel<'_, '_, C> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        multiply_panel::<C>(self.bytes, self.panel, self.tile, self.output);
    }
}

#[inline(always)]
fn multiply_panel<C: Codes>(bytes: &[u8], panel: usize, tile: &Tile, output: &mut Output<'_>) {
    let rows = tile.rows();
    let mut accumulators = [[0.0f32; LANES]; TILE_ROWS];
    let mut block = Unpacked::new();
    for b in 0..tile.columns() / C::WEIGHTS {
        C::unpack(bytes, b, &mut block);
        let scales = tile.scales(b);
        for (t, accumulator) in accumulators[..rows].iter_mut().enumerate() {
            let p = dot_block::<C>(&block, tile, b, t);
            for lane in 0..LANES {
                accumulator[lane] = p[lane].mul_add(scales[t], accumulator[lane]);
            }
        }
    }
    for (t, accumulator) in accumulators[..rows].iter().enumerate() {
        output.store(t, panel, accumulator);
    }
}

/// A block of weights times block `b` of row `t`, less the scale of the activations.
#[inline(always)]
fn dot_block<C: Codes>(block: &Unpacked, tile: &Tile, b: usize, t: usize) -> [f32; LANES] {
    let mut p = [0.0f32; LANES];
    let mut minimums = [0i32; LANES];
    for j in 0..C::WEIGHTS / C::SUB {
        let column = b * C::WEIGHTS + j * C::SUB;
        let quants = &tile.quants(column / 32)[t][column % 32..][..C::SUB];
        let codes = &block.codes[j * C::SUB..][..C::SUB];
        let mut dot = [0i32; LANES];
        let mut sum = 0;
        for (codes, &quant) in codes.iter().zip(quants) {
            let quant = i32::from(quant);
            for lane in 0..LANES {
                dot[lane] += i32::from(codes[lane]) * quant;
            }
            sum += quant;
        }
        for lane in 0..LANES {
            p[lane] = (dot[lane] as f32).mul_add(f32::from(block.scales[j][lane]), p[lane]);
            minimums[lane] += i32::from(block.minimums[j][lane]) * sum;
        }
    }
    for lane in 0..LANES {
        p[lane] *= block.d[lane];
        if C::MINIMUMS {
            p[lane] = block.m[lane].mul_add(minimums[lane] as f32, p[lane]);
        }
    }
    p
}
