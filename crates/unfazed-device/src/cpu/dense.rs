//! Matrices times all rows.

#![allow(unsafe_code)]

use unfazed_kernels::activations::Tile;
use unfazed_kernels::matmul::matmul;
use unfazed_kernels::panel::PackedMatrix;
use unfazed_kernels::vector::add_scaled;

use super::compute::{Compute, SLICE, SLICE_PANELS};
use super::disjoint::Disjoint;

/// A matrix, the activations that it is multiplied by, and where the products go.
pub(super) struct Product<'a> {
    pub(super) matrix: PackedMatrix<'a>,
    pub(super) tiles: &'a [Tile],
    /// `[rows, rows of the matrix]`.
    pub(super) out: Disjoint<'a, f32>,
    /// Whether products are added to what is there.
    pub(super) add: bool,
}

/// So many panels at once that each thread has about four turns, but at most `most`. Kernels take up to four at a time.
pub(super) fn panels_at_once(panels: usize, threads: usize, most: usize) -> usize {
    let turn = panels / (4 * threads);
    (if turn > 4 { turn.next_multiple_of(4) } else { turn }).clamp(1, most)
}

/// Computes products in one section. No two may go to the same place.
pub(super) fn multiply(compute: &mut Compute, products: &[Product<'_>]) {
    let isa = compute.isa;
    let total = products.iter().map(|product| product.matrix.layout().panels()).sum();
    let at_once = panels_at_once(total, compute.threads(), SLICE_PANELS);
    let units_of = |product: &Product<'_>| product.matrix.layout().panels().div_ceil(at_once);
    let units = products.iter().map(units_of).sum();
    compute.units(units, &|scratch, unit| {
        let mut unit = unit;
        for product in products {
            if unit >= units_of(product) {
                unit -= units_of(product);
                continue;
            }
            let layout = product.matrix.layout();
            let panels = unit * at_once..layout.panels().min((unit + 1) * at_once);
            let first = panels.start * unfazed_kernels::LANES;
            let columns = layout.rows().min(panels.end * unfazed_kernels::LANES) - first;
            let mut row = 0;
            for tile in product.tiles {
                matmul(isa, &product.matrix, panels.clone(), tile, &mut scratch.first, SLICE);
                for result in scratch.first.chunks(SLICE).take(tile.rows()) {
                    let start = row * layout.rows() + first;
                    row += 1;
                    // SAFETY: these columns of the product's rows are this unit's alone.
                    let out = unsafe { product.out.part(start..start + columns) };
                    match product.add {
                        true => add_scaled(isa, out, 1.0, &result[..columns]),
                        false => out.copy_from_slice(&result[..columns]),
                    }
                }
            }
            return;
        }
    });
}
