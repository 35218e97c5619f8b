//! Rows laid out for one block format.
//!
//! A tile is block-major, so that a kernel that holds 32 columns of weights in registers reads the rows that pass
//! by in order:
//!
//! ```text
//! quants   i8   [columns / 32][rows][32]
//! scales   f32  [columns / grain][rows]
//! starts   i32  what the integer sums of the kernels start from (see [`Operand`]), if that is not zero:
//!               [columns / 32][rows][32 / sub-block] = a factor times the sum of the quants of the sub-block; in two halves
//!               of 16 bits where the kernels add up in these
//! sums     f32  [columns / 32][rows]     sums of 32 quants (minimums outside superblocks: Q4_1, Q5_1, affine)
//! pairs    i32  [columns / 256][rows][128 / sub-block] sums of the quants of sub-blocks, two of 16 bits each, the first low
//!               (superblocks with minimums: Q2_K, Q4_K, Q5_K)
//! floats   f32  [rows][columns]
//! ```
//!
//! [`Operand`]: crate::matmul::shape::Operand

use std::ops::Range;

use unfazed_formats::BlockFormat;

use crate::Isa;
use crate::lanes::{Kernel, Lanes, dispatch};

use crate::matmul::shape::{Dot, Starts, starts};
use crate::panel::Spec;

use super::quantise::Grain;
use super::rows::{Halves, QuantisedRows};

/// Most rows of a tile: their accumulators stay in the first-level cache. Above 64, since in a prompt of 512 tokens each of 64
/// experts of which 8 are used has about 64 rows: a second tile for the few beyond would take as long to unpack as the first.
pub const TILE_ROWS: usize = 84;

/// Rows that kernels take at once where there are many.
const BLOCK_ROWS: usize = 6;

/// Divides rows, in order, into tiles: as few as there can be, and alike, so that none is left with few rows.
pub fn tile_parts(rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let tiles = rows.len().div_ceil(TILE_ROWS).max(1);
    let step = rows.len().div_ceil(tiles).next_multiple_of(BLOCK_ROWS).min(TILE_ROWS);
    rows.clone().step_by(step.max(1)).map(move |start| start..rows.end.min(start + step))
}

/// Up to [`TILE_ROWS`] rows prepared for the matrices of one format. Threads share it. The buffers only grow.
pub struct Tile {
    format: BlockFormat,
    grain: Grain,
    dot: Dot,
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
#[derive(Clone, Copy, Default)]
struct Sums {
    /// Columns of a sub-block.
    sub: usize,
    /// What the integer sums start from.
    starts: Option<Starts>,
    /// Sums of 32 as f32.
    float: bool,
    /// Sums of sub-blocks as pairs of i16.
    pairs: bool,
}

impl Sums {
    fn of(dot: Dot, format: BlockFormat) -> Sums {
        let Some(spec) = Spec::of(format) else { return Sums::default() };
        let starts = Some(starts(dot, &spec)).filter(|starts| starts.factor != 0);
        let superblock = spec.step() > 1;
        Sums {
            sub: spec.sub(),
            starts,
            float: spec.minimums() && !superblock,
            pairs: spec.minimums() && superblock,
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
            dot: Dot::Unsigned,
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

    /// Lays out the rows named by `indices`, in that order (a row may come twice), for matrices of `format` and the kernels
    /// of `isa`. Rows
    /// of [`Grain::Float`] can be laid out for any format: that selects the test mode with exact weights and f32
    /// activations.
    ///
    /// # Panics
    ///
    /// If there are more than [`TILE_ROWS`] indices, an index is beyond the rows, the rows have neither the
    /// format's grain nor [`Grain::Float`].
    pub fn gather(&mut self, isa: Isa, format: BlockFormat, rows: &QuantisedRows, indices: &[usize]) {
        self.gather_for(Dot::of(isa), isa, format, rows, indices);
    }

    /// [`Tile::gather`] for kernels with this kind of dot product.
    pub(crate) fn gather_for(
        &mut self,
        dot: Dot,
        isa: Isa,
        format: BlockFormat,
        rows: &QuantisedRows,
        indices: &[usize],
    ) {
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
        self.dot = dot;
        let (sums, groups) = (Sums::of(self.dot, format), m * columns / 32);
        grow(&mut self.quants, m * columns);
        grow(&mut self.scales, m * columns / block);
        if sums.starts.is_some() {
            grow(&mut self.starts, groups * (32 / sums.sub));
        }
        if sums.float {
            grow(&mut self.sums, groups);
        }
        if sums.pairs {
            grow(&mut self.pairs, groups * 16 / sums.sub);
        }
        for (i, &row) in indices.iter().enumerate() {
            let ((quants, scales), halves) = (rows.quantised(row), rows.halves(row));
            for (scale, place) in scales.iter().zip(self.scales[i..].iter_mut().step_by(m)) {
                *place = *scale;
            }
            dispatch(isa, Gather { tile: self, sums, row: i, quants, halves });
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

    /// The kind of dot product that it is laid out for.
    pub(crate) fn dot(&self) -> Dot {
        self.dot
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

    /// What the sums over columns `32 * group..` start from, one for each sub-block of a row.
    #[inline(always)]
    pub(crate) fn starts(&self, group: usize, sub: usize) -> &[i32] {
        part(&self.starts, group, self.rows * (32 / sub))
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
    halves: &'a [Halves],
}

impl Kernel for Gather<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let (m, row, tile) = (self.tile.rows, self.row, self.tile);
        let (quants, _) = self.quants.as_chunks::<32>();
        let (places, _) = tile.quants.as_chunks_mut::<32>();
        for ((group, quants), halves) in quants.iter().enumerate().zip(self.halves) {
            let at = group * m + row;
            places[at] = *quants;
            let sums = halves.map(|halves| halves.map(i32::from));
            let [low, high] = sums.map(|[even, odd]| even + odd);
            if let Some(starts) = self.sums.starts {
                match self.sums.sub {
                    16 => {
                        tile.starts[2 * at] = start(starts, sums[0]);
                        tile.starts[2 * at + 1] = start(starts, sums[1]);
                    }
                    _ => tile.starts[at] = start(starts, [0, 1].map(|i| sums[0][i] + sums[1][i])),
                }
            }
            if self.sums.float {
                tile.sums[at] = (low + high) as f32;
            }
            if self.sums.pairs && self.sums.sub == 16 {
                tile.pairs[(group / 8 * m + row) * 8 + group % 8] = low & 0xffff | high << 16;
            } else if self.sums.pairs {
                let pair = &mut tile.pairs[(group / 8 * m + row) * 4 + group % 8 / 2];
                let sum = low + high;
                *pair = if group.is_multiple_of(2) { sum & 0xffff } else { *pair | sum << 16 };
            }
        }
    }
}

/// What a sum starts from, given the sums of its quants as in [`Halves`].
#[inline(always)]
fn start(starts: Starts, [low, high]: [i32; 2]) -> i32 {
    let (low, high) = (starts.factor * low, starts.factor * high);
    if starts.halves { low & 0xffff | high << 16 } else { low + high }
}
