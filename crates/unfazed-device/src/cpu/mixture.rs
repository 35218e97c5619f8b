//! The outer part of a mixture of experts: each row gets the sum of its experts' outputs, in ascending order of expert.

#![allow(unsafe_code)]

use unfazed_kernels::activations::{TILE_ROWS, Tile};
use unfazed_kernels::matmul::matmul;
use unfazed_kernels::vector::add_scaled;
use unfazed_kernels::{Isa, LANES};

use super::compute::{Compute, SLICE, SLICE_PANELS};
use super::dense::panels_at_once;
use super::disjoint::Disjoint;
use super::feed_forward::{Expert, Matrices};
use super::routing::Routing;

/// Steps of up to so many rows keep the experts' outputs apart and add them up afterwards.
pub(super) const FEW_ROWS: usize = 4;

/// Panels of an expert's output in one unit, where outputs are kept apart: long streams through memory.
const STREAM_PANELS: usize = 64;

/// What the outer part reads and writes.
pub(super) struct Outer<'a> {
    pub(super) experts: &'a [Expert],
    /// Of each of the experts, all of the same shapes and formats.
    pub(super) matrices: &'a [Matrices<'a>],
    pub(super) routing: &'a Routing,
    pub(super) tiles: &'a [Tile],
}

impl Outer<'_> {
    /// For few rows: puts the experts' outputs into `outputs`, `[entries, hidden]`, for [`add_up`]. Each expert's part is a
    /// stream of its own, and a unit is as long a piece of one as leaves all threads busy.
    pub(super) fn run_few(self, compute: &mut Compute, outputs: &mut [f32]) {
        let isa = compute.isa;
        let Outer { experts, matrices, routing, tiles } = self;
        let Some(layout) = matrices.first().map(|matrices| matrices.down.layout()) else { return };
        let hidden = layout.rows();
        let total = layout.panels() * experts.len();
        let at_once = panels_at_once(total, compute.threads(), STREAM_PANELS);
        let pieces = layout.panels().div_ceil(at_once);
        let parts = Disjoint::new(outputs);
        compute.units(experts.len() * pieces, &|scratch, unit| {
            let (expert, piece) = (&experts[unit / pieces], unit % pieces);
            let matrix = &matrices[unit / pieces].down;
            let end = layout.panels().min((piece + 1) * at_once);
            for start in (piece * at_once..end).step_by(SLICE_PANELS) {
                let panels = start..end.min(start + SLICE_PANELS);
                let columns = panels.start * LANES..hidden.min(panels.end * LANES);
                for tile in expert.tiles.clone() {
                    matmul(isa, matrix, panels.clone(), &tiles[tile], &mut scratch.first, SLICE);
                    let results = scratch.first.chunks(SLICE);
                    for (entry, result) in routing.tiles[tile].clone().zip(results) {
                        let at = entry * hidden;
                        // SAFETY: these columns of the expert's entries are this unit's alone.
                        let out = unsafe { parts.part(at + columns.start..at + columns.end) };
                        out.copy_from_slice(&result[..columns.len()]);
                    }
                }
            }
        });
    }

    /// For many rows: adds the experts' outputs to the residual, `[rows, hidden]`. A unit is some columns of all of these
    /// experts, one after the other.
    pub(super) fn run_many(self, compute: &mut Compute, residual: &mut [f32]) {
        let isa = compute.isa;
        let Outer { experts, matrices, routing, tiles } = self;
        let Some(layout) = matrices.first().map(|matrices| matrices.down.layout()) else { return };
        let hidden = layout.rows();
        let at_once = panels_at_once(layout.panels(), compute.threads(), SLICE_PANELS);
        let residual = Disjoint::new(residual);
        compute.units(layout.panels().div_ceil(at_once), &|scratch, unit| {
            let panels = unit * at_once..layout.panels().min((unit + 1) * at_once);
            let columns = panels.start * LANES..hidden.min(panels.end * LANES);
            for (expert, Matrices { down: matrix, .. }) in experts.iter().zip(matrices) {
                for tile in expert.tiles.clone() {
                    debug_assert!(tiles[tile].rows() <= TILE_ROWS);
                    matmul(isa, matrix, panels.clone(), &tiles[tile], &mut scratch.first, SLICE);
                    let results = scratch.first.chunks(SLICE);
                    for (entry, result) in routing.tiles[tile].clone().zip(results) {
                        let at = routing.rows[entry] * hidden;
                        // SAFETY: these columns of all rows are this unit's alone.
                        let row = unsafe { residual.part(at + columns.start..at + columns.end) };
                        add_scaled(isa, row, routing.weights[entry], &result[..columns.len()]);
                    }
                }
            }
        });
    }
}

/// Adds what [`Outer::run_few`] left to each row of the residual, `[rows, hidden]`, in the order of the row's experts.
pub(super) fn add_up(isa: Isa, routing: &Routing, hidden: usize, outputs: &[f32], residual: &mut [f32]) {
    let used = routing.entries.len() / (residual.len() / hidden).max(1);
    for (row, entries) in residual.chunks_mut(hidden).zip(routing.entries.chunks(used.max(1))) {
        for entry in entries {
            let output = &outputs[entry * hidden..(entry + 1) * hidden];
            add_scaled(isa, row, routing.weights[*entry], output);
        }
    }
}
