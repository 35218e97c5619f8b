//! The inner part of a feed-forward network, for one network or many experts.

#![allow(unsafe_code)]

use std::ops::Range;

use unfazed_kernels::activations::{SharedRows, Tile};
use unfazed_kernels::matmul::matmul;
use unfazed_kernels::panel::PackedMatrix;
use unfazed_kernels::vector::silu_mul;

use super::compute::{Compute, SLICE, SLICE_PANELS};

/// An expert with the tiles of rows that go through it.
#[derive(Clone, Debug)]
pub(super) struct Expert {
    /// Its number in its layer.
    pub(super) index: usize,
    /// Which tiles are its.
    pub(super) tiles: Range<usize>,
}

/// The weights of an expert, or of a dense network.
#[derive(Clone, Copy)]
pub(super) struct Matrices<'a> {
    /// `[width, hidden]`.
    pub(super) gate: PackedMatrix<'a>,
    /// `[width, hidden]`.
    pub(super) up: PackedMatrix<'a>,
    /// `[hidden, width]`.
    pub(super) down: PackedMatrix<'a>,
}

/// What the inner part reads and writes.
pub(super) struct Inner<'a> {
    pub(super) experts: &'a [Expert],
    /// Of each of the experts, all of the same shapes and formats.
    pub(super) matrices: &'a [Matrices<'a>],
    pub(super) gate_tiles: &'a [Tile],
    pub(super) up_tiles: &'a [Tile],
    /// For each of the experts' tiles the first of its rows in `out`.
    pub(super) starts: &'a [Range<usize>],
    /// SiLU of gate times up, rounded for the matrix that follows.
    pub(super) out: SharedRows<'a>,
}

impl Inner<'_> {
    /// Computes it in one section. A unit is 256 columns of an expert's gate and up, for all its rows: a superblock,
    /// so that it can be rounded at once.
    pub(super) fn run(&self, compute: &mut Compute) {
        let isa = compute.isa;
        let Some(layout) = self.matrices.first().map(|matrices| matrices.gate.layout()) else { return };
        let columns = layout.rows();
        let slices = columns.div_ceil(SLICE);
        compute.units(self.experts.len() * slices, &|scratch, unit| {
            let (expert, slice) = (&self.experts[unit / slices], unit % slices);
            let Matrices { gate, up, .. } = &self.matrices[unit / slices];
            let columns = slice * SLICE..columns.min((slice + 1) * SLICE);
            let panels = slice * SLICE_PANELS..layout.panels().min((slice + 1) * SLICE_PANELS);
            for tile in expert.tiles.clone() {
                let (gate_tile, up_tile) = (shared(self.gate_tiles, tile), shared(self.up_tiles, tile));
                matmul(isa, gate, panels.clone(), gate_tile, &mut scratch.first, SLICE);
                matmul(isa, up, panels.clone(), up_tile, &mut scratch.second, SLICE);
                let results = scratch.first.chunks_mut(SLICE).zip(scratch.second.chunks(SLICE));
                for (row, (gate, up)) in self.starts[tile].clone().zip(results) {
                    let (gate, up) = (&mut gate[..columns.len()], &up[..columns.len()]);
                    silu_mul(isa, gate, up);
                    // SAFETY: the rows are this tile's alone, and of those the columns this unit's.
                    unsafe { self.out.slot(row, columns.clone()) }.quantise(isa, gate);
                }
            }
        });
    }
}

/// The tile with an index, or the only one: a single row is the same for all its experts.
fn shared(tiles: &[Tile], index: usize) -> &Tile {
    &tiles[index.min(tiles.len() - 1)]
}
