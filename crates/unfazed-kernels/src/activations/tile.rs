//! Rows laid out for one block format.
//!
//! A tile is block-major, so that a kernel that holds 32 columns of weights in registers reads the rows that pass
//! by in order:
//!
//! ```text
//! quants   i8   [columns / 32][rows][32]
//! scales   f32  [columns / grain][rows]
//! starts   i32  what the integer accumulators of the fast kernels start from, so that codes can be unsigned:
//!               [columns / 32][rows]     = -offset times the sum of the 32 quants (Q4_0, Q5_0, Q8_0, IQ4_NL ...)
//!               [columns / 32][rows][2]  = -offset times the sums of 16 (Q6_K, Q3_K, NVFP4 ...)
//! sums     f32  [columns / 32][rows]     sums of 32 quants (Q4_1, Q5_1, affine)
//! pairs    i32  [columns / 256][rows][4] sums of 32 quants, two of 16 bits each, the first low (Q4_K, Q5_K)
//!               [columns / 256][rows][8] sums of 16 quants (Q2_K)
//! floats   f32  [rows][columns]
//! ```

use unfazed_formats::BlockFormat;

use crate::Isa;
use crate::lanes::{Kernel, Lanes, dispatch};

use crate::panel::Spec;

use super::quantise::Grain;
use super::rows::QuantisedRows;

/// Most rows of a tile: their accumulators stay in the first-level cache.
pub const TILE_ROWS: usize = 64;

/// Up to [`TILE_ROWS`] rows prepared for the matrices of one format. Threads share it. The buffers only grow.
pub struct Tile {
    format: BlockFormat,
    grain: Grain,
    rows: usize,
    columns: usize,
    quants: Vec<i8>,
    scales: Vec<f32>,
    starts: Vec<i32>,
    sums: Vec<f32>,
    pairs: Vec<i32>,
    floats: Vec<f32>,
}

/// Which sums of quants the kernels of a format want.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sums {
    /// None.
    None,
    /// Starts: this times the sum of 32.
    Start(i32),
    /// Starts: this times each sum of 16.
    Starts16(i32),
    /// Sums of 32 as f32.
    Float,
    /// Sums of 32 as pairs of i16.
    Pairs,
    /// Sums of 16 as pairs of i16.
    Pairs16,
}

impl Sums {
    fn of(format: BlockFormat) -> Sums {
        let Some(spec) = Spec::of(format) else { return Sums::None };
        let offset = -i32::from(spec.offset());
        match (spec.minimums(), spec.step(), spec.sub()) {
            (true, 1, _) => Sums::Float,
            (true, _, 16) => Sums::Pairs16,
            (true, _, _) => Sums::Pairs,
            (false, _, 16) => Sums::Starts16(offset),
            (false, _, _) => Sums::Start(offset),
        }
    }
}

impl Default for Tile {
    fn default() -> Tile {
        Tile::new()
    }
}

impl Tile {
    /// An empty tile.
    pub fn new() -> Tile {
        Tile {
            format: BlockFormat::F32,
            grain: Grain::Float,
            rows: 0,
            columns: 0,
            quants: Vec::new(),
            scales: Vec::new(),
            starts: Vec::new(),
            sums: Vec::new(),
            pairs: Vec::new(),
            floats: Vec::new(),
        }
    }

    /// Lays out the rows named by `indices`, in that order (a row may come twice), for matrices of `format`. Rows
    /// of [`Grain::Float`] can be laid out for any format: that selects the test mode with exact weights and f32
    /// activations.
    ///
    /// # Panics
    ///
    /// If there are more than [`TILE_ROWS`] indices, an index is beyond the rows, the rows have neither the
    /// format's grain nor [`Grain::Float`].
    pub fn gather(&mut self, isa: Isa, format: BlockFormat, rows: &QuantisedRows, indices: &[usize]) {
        let grain = rows.grain();
        assert!(indices.len() <= TILE_ROWS, "{} rows in a tile of {TILE_ROWS}", indices.len());
        assert!(
            grain == Grain::of(format) || grain == Grain::Float,
            "activations of {grain:?} for weights of {format:?}"
        );
        let (m, columns) = (indices.len(), rows.columns());
        (self.format, self.grain, self.rows, self.columns) = (format, grain, m, columns);
        let Some(block) = grain.block() else {
            grow(&mut self.floats, m * columns);
            for (i, &row) in indices.iter().enumerate() {
                self.floats[i * columns..][..columns].copy_from_slice(rows.floats(row));
            }
            return;
        };
        let (sums, groups) = (Sums::of(format), m * columns / 32);
        grow(&mut self.quants, m * columns);
        grow(&mut self.scales, m * columns / block);
        match sums {
            Sums::None => {}
            Sums::Start(_) => grow(&mut self.starts, groups),
            Sums::Starts16(_) => grow(&mut self.starts, 2 * groups),
            Sums::Float => grow(&mut self.sums, groups),
            Sums::Pairs => grow(&mut self.pairs, groups / 2),
            Sums::Pairs16 => grow(&mut self.pairs, groups),
        }
        for (i, &row) in indices.iter().enumerate() {
            let (quants, scales) = rows.quantised(row);
            for (scale, place) in scales.iter().zip(self.scales[i..].iter_mut().step_by(m)) {
                *place = *scale;
            }
            dispatch(isa, Gather { tile: self, sums, row: i, quants });
        }
    }

    /// The format that it is laid out for.
    pub fn format(&self) -> BlockFormat {
        self.format
    }

    /// How many activations share a scale; [`Grain::Float`] for f32 activations.
    pub fn grain(&self) -> Grain {
        self.grain
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The quants of columns `32 * group..`, 32 a row.
    #[inline(always)]
    pub(crate) fn quants(&self, group: usize) -> &[[i8; 32]] {
        &self.quants.as_chunks().0[group * self.rows..][..self.rows]
    }

    /// What the sums over columns `32 * group..` start from, `S` a row. Empty for formats without starts.
    #[inline(always)]
    pub(crate) fn starts<const S: usize>(&self, group: usize) -> &[[i32; S]] {
        part(self.starts.as_chunks().0, group, self.rows)
    }

    /// The sums of quants of columns `32 * group..`, one a row. Empty for formats without minimums, and for the K
    /// formats.
    #[inline(always)]
    pub(crate) fn sums(&self, group: usize) -> &[f32] {
        part(&self.sums, group, self.rows)
    }

    /// The sums of the quants of the sub-blocks of superblock `block`, in `P` pairs a row: 4 with sub-blocks of 32, 8
    /// with 16. Empty but for the K formats with minimums.
    #[inline(always)]
    pub(crate) fn pairs<const P: usize>(&self, block: usize) -> &[[i32; P]] {
        part(self.pairs.as_chunks().0, block, self.rows)
    }

    /// Scales of block `block`, one a row.
    #[inline(always)]
    pub(crate) fn scales(&self, block: usize) -> &[f32] {
        &self.scales[block * self.rows..][..self.rows]
    }

    /// The f32 activations of a row.
    #[inline(always)]
    pub(crate) fn floats(&self, row: usize) -> &[f32] {
        &self.floats[row * self.columns..][..self.columns]
    }
}

/// Part `i` of `size` elements; empty if there is none.
#[inline(always)]
fn part<T>(all: &[T], i: usize, size: usize) -> &[T] {
    all.get(i * size..).and_then(|rest| rest.get(..size)).unwrap_or_default()
}

fn grow<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) {
    buffer.resize(len.max(buffer.len()), T::default());
}

struct Gather<'a> {
    tile: &'a mut Tile,
    sums: Sums,
    row: usize,
    quants: &'a [i8],
}

impl Kernel for Gather<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let (m, row, tile) = (self.tile.rows, self.row, self.tile);
        for (group, quants) in self.quants.chunks_exact(32).enumerate() {
            let at = group * m + row;
            tile.quants[at * 32..][..32].copy_from_slice(quants);
            let (low, high) = quants.split_at(16);
            let sum = |quants: &[i8]| quants.iter().map(|&quant| i32::from(quant)).sum::<i32>();
            let (low, high) = (sum(low), sum(high));
            match self.sums {
                Sums::None => {}
                Sums::Start(offset) => tile.starts[at] = offset * (low + high),
                Sums::Starts16(offset) => {
                    tile.starts[2 * at] = offset * low;
                    tile.starts[2 * at + 1] = offset * high;
                }
                Sums::Float => tile.sums[at] = (low + high) as f32,
                Sums::Pairs => {
                    let pair = &mut tile.pairs[(group / 8 * m + row) * 4 + group % 8 / 2];
                    let sum = low + high;
                    *pair = if group.is_multiple_of(2) { sum & 0xffff } else { *pair | sum << 16 };
                }
                Sums::Pairs16 => {
                    tile.pairs[(group / 8 * m + row) * 8 + group % 8] = low & 0xffff | high << 16;
                }
            }
        }
    }
}
