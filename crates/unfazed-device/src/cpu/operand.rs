//! Activations on their way into matrices: rounded once for each grain, laid out once for each format.

#![allow(unsafe_code)]

use std::ops::Range;

use unfazed_formats::BlockFormat;
use unfazed_kernels::activations::{Grain, QuantisedRows, SharedRows, Tile};

use super::compute::Compute;

/// Rows of activations, and tiles of them.
#[derive(Default)]
pub(super) struct Operand {
    rounded: Vec<QuantisedRows>,
    tiles: Vec<Tiles>,
}

/// Tiles for the matrices of one format.
struct Tiles {
    format: BlockFormat,
    tiles: Vec<Tile>,
    count: usize,
}

impl Operand {
    /// Rounds the rows `[rows, columns]` of `x` for matrices of `formats`.
    pub(super) fn round(
        &mut self,
        compute: &mut Compute,
        formats: &[BlockFormat],
        x: &[f32],
        columns: usize,
    ) {
        let rows = x.len() / columns.max(1);
        let isa = compute.isa;
        for (i, format) in formats.iter().enumerate() {
            let grain = compute.grain(*format);
            if formats[..i].iter().any(|earlier| compute.grain(*earlier) == grain) {
                continue;
            }
            let table = self.table(grain, rows, columns).shared();
            compute.rows(rows, columns, &|row| {
                // SAFETY: each row is rounded by one call, on one thread.
                let mut slot = unsafe { table.slot(row, 0..columns) };
                slot.quantise(isa, &x[row * columns..(row + 1) * columns]);
            });
        }
    }

    /// A table of rows that are rounded elsewhere, part by part, for matrices of `format`.
    pub(super) fn rows(
        &mut self,
        compute: &Compute,
        format: BlockFormat,
        rows: usize,
        columns: usize,
    ) -> SharedRows<'_> {
        self.table(compute.grain(format), rows, columns).shared()
    }

    /// Lays out rows for matrices of `formats`: the rows of tile `i` are `rows[parts[i]]`.
    pub(super) fn gather(
        &mut self,
        compute: &mut Compute,
        formats: &[BlockFormat],
        rows: &[usize],
        parts: &[Range<usize>],
    ) {
        self.gather_some(compute, formats, rows, parts, 0..parts.len());
    }

    /// The same for tiles `which` alone; the others stay as they are.
    pub(super) fn gather_some(
        &mut self,
        compute: &mut Compute,
        formats: &[BlockFormat],
        rows: &[usize],
        parts: &[Range<usize>],
        which: Range<usize>,
    ) {
        let isa = compute.isa;
        for (i, format) in formats.iter().copied().enumerate() {
            if formats[..i].contains(&format) {
                continue;
            }
            let grain = compute.grain(format);
            let Some(table) = self.rounded.iter().find(|table| table.grain() == grain) else { continue };
            let place = match self.tiles.iter().position(|tiles| tiles.format == format) {
                Some(place) => place,
                None => {
                    self.tiles.push(Tiles { format, tiles: Vec::new(), count: 0 });
                    self.tiles.len() - 1
                }
            };
            let tiles = &mut self.tiles[place];
            tiles.count = parts.len();
            tiles.tiles.resize_with(parts.len().max(tiles.tiles.len()), Tile::new);
            let elements = rows.len() * table.columns() / parts.len().max(1);
            let first = which.start;
            compute.items(&mut tiles.tiles[which.clone()], elements, &|i, tile| {
                tile.gather(isa, format, table, &rows[parts[first + i].clone()]);
            });
        }
    }

    /// The tiles that were laid out for a format.
    pub(super) fn tiles(&self, format: BlockFormat) -> &[Tile] {
        let tiles = self.tiles.iter().find(|tiles| tiles.format == format);
        tiles.map_or(&[], |tiles| &tiles.tiles[..tiles.count])
    }

    fn table(&mut self, grain: Grain, rows: usize, columns: usize) -> &mut QuantisedRows {
        // A table keeps its grain once it has rows of it; there is one for each grain that came up.
        let place = match self.rounded.iter().position(|table| table.grain() == grain) {
            Some(place) => place,
            None => {
                self.rounded.push(QuantisedRows::new());
                self.rounded.len() - 1
            }
        };
        let table = &mut self.rounded[place];
        table.resize(grain, rows, columns);
        table
    }
}
