//! Matrices of random weights, and rows to multiply them by.

use std::time::{Duration, Instant};

use unfazed_formats::BlockFormat;

use crate::activations::{Grain, QuantisedRows, Tile};
use crate::matmul::matmul;
use crate::panel::{PackedMatrix, PanelBuffer, PanelLayout, pack_panel};
use crate::{Isa, LANES};

/// Copies of one random matrix, so many that they come from memory and not from a cache.
pub struct Weights {
    layout: PanelLayout,
    bytes: PanelBuffer,
    packing: Duration,
}

impl Weights {
    /// As many copies of a random matrix as fit in `bytes` (at least one). `None` if its columns are not whole blocks of
    /// the format.
    pub fn new(format: BlockFormat, rows: usize, columns: usize, bytes: usize) -> Option<Weights> {
        let layout = PanelLayout::new(format, rows, columns)?;
        let mut state = 1u64;
        let mut file = vec![0u8; rows * layout.row_bytes()];
        for byte in &mut file {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Whatever the bytes mean, no float is subnormal, infinite or no number: those are slow on some processors.
            *byte = 0x20 + (state >> 56) as u8 % 0x10;
        }
        let count = (bytes / layout.bytes()).max(1);
        let mut bytes = PanelBuffer::new(count * layout.bytes());
        let (first, rest) = bytes.split_at_mut(layout.bytes());
        let start = Instant::now();
        let panels = first.chunks_exact_mut(layout.panel_bytes());
        for (rows, panel) in file.chunks(LANES * layout.row_bytes()).zip(panels) {
            pack_panel(&layout, rows, panel);
        }
        let packing = start.elapsed();
        rest.chunks_exact_mut(layout.bytes()).for_each(|copy| copy.copy_from_slice(first));
        Some(Weights { layout, bytes, packing })
    }

    /// Layout of one matrix.
    pub fn layout(&self) -> &PanelLayout {
        &self.layout
    }

    /// How many copies there are.
    pub fn count(&self) -> usize {
        self.bytes.len() / self.layout.bytes()
    }

    /// Bytes of the file's form that one thread packed per second.
    pub fn packed_per_second(&self) -> f64 {
        (self.layout.rows() * self.layout.row_bytes()) as f64 / self.packing.as_secs_f64().max(1e-9)
    }

    /// Multiply-adds of one matrix for one row of activations.
    pub fn macs(&self) -> usize {
        self.layout.rows() * self.layout.columns()
    }

    /// Multiplies a share of copy `index` (from the first again behind the last): part `part` of `parts` of its panels.
    /// `out` gets `[rows of the tile, rows of the matrix]`, of which the share's come first in each row.
    ///
    /// # Panics
    ///
    /// As [`matmul`].
    pub fn multiply(
        &self,
        isa: Isa,
        index: usize,
        (part, parts): (usize, usize),
        tile: &Tile,
        out: &mut [f32],
    ) {
        let start = index % self.count() * self.layout.bytes();
        let bytes = &self.bytes[start..start + self.layout.bytes()];
        let matrix = match PackedMatrix::new(self.layout, bytes) {
            Ok(matrix) => matrix,
            Err(error) => unreachable!("the copies were made for this layout: {error}"),
        };
        let panels = self.layout.panels();
        let range = panels * part / parts..panels * (part + 1) / parts;
        matmul(isa, &matrix, range, tile, out, self.layout.rows());
    }
}

/// Rows of activations for matrices of a format.
pub fn tile(isa: Isa, format: BlockFormat, rows: usize, columns: usize) -> Tile {
    let mut table = QuantisedRows::new();
    table.resize(Grain::of(format), rows, columns);
    for row in 0..rows {
        let x: Vec<f32> = (0..columns).map(|i| ((i * 37 + row * 11) % 255) as f32 / 100.0 - 1.27).collect();
        table.quantise(isa, row, &x);
    }
    let mut tile = Tile::new();
    tile.gather(isa, format, &table, &(0..rows).collect::<Vec<_>>());
    tile
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_every_format_are_finite_and_the_same_in_parts_and_from_every_copy() {
        for format in BlockFormat::all() {
            let Some(weights) = Weights::new(format, 48, 512, 1 << 18) else { panic!("{format:?}") };
            assert!(weights.count() > 1 && weights.packed_per_second() > 0.0);
            let tile = tile(Isa::best(), format, 3, 512);
            let mut whole = vec![f32::NAN; 3 * 48];
            weights.multiply(Isa::best(), 0, (0, 1), &tile, &mut whole);
            assert!(whole.iter().all(|x| x.is_finite()) && whole.iter().any(|x| *x != 0.0), "{format:?}");
            for part in 0..3 {
                let mut out = vec![f32::NAN; 3 * 48];
                weights.multiply(Isa::best(), weights.count() + 1, (part, 3), &tile, &mut out);
                for row in 0..3 {
                    assert_eq!(out[row * 48..][..16], whole[row * 48 + part * 16..][..16], "{format:?}");
                }
            }
        }
    }
}
