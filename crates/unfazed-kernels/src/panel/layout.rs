//! Where everything is in a panel.
//!
//! Quants are moved as dwords: four consecutive bytes of a row's quants become lane `r` of a 64-byte vector, so
//! "vector i" below holds, for each of the 16 rows, bytes `4i..4i+4` of the row's quants. Scales are `[16 x f16]`.
//!
//! ```text
//! F32             per column 16 x f32
//! F16, BF16       per column 16 x 16 bits
//!
//! With one scale, a line of scales and then two blocks, (even block's d, odd block's d, even quants, odd quants):
//! Q4_0   256 B    4 vectors; low nibbles are weights 4i.., high nibbles are weights 16+4i..
//! Q5_0   320 B    1 vector of high bits: bit g of byte c of lane r belongs to weight 4g+c; then as Q4_0
//! Q8_0   512 B    8 vectors, each byte xor 0x80 (so that as u8 it is weight + 128)
//! Q6_K   3328 B   two halves n of 1664 B, each in the order of first use:
//!                   0  scales: i8 [8 sub-blocks of 16][16 rows]
//!                 128  ql, 8 vectors from ql[64n..]: low nibble weight 128n+4i.., high weight 128n+64+4i..
//!                 640  qh, 8 vectors from qh[32n..]: bits 2s, 2s+1 belong to weight 128n+32s+4i..
//!                1152  ql, 8 vectors from ql[64n+32..]: low nibble weight 128n+32+4i.., high 128n+96+4i..
//!
//! With scale and minimum, block after block (d, then m or dmin, then the rest):
//! Q4_1   320 B    as Q4_0
//! Q5_1   384 B    as Q5_0
//! Q4_K   2304 B    64  lo[128]: low nibble of byte x = low 4 bits of sub-scale x/16 of row x%16,
//!                      high nibble = low 4 bits of sub-minimum x/32*2 + x%2 of row x%32/2
//!                 192  hi[64]: nibble x (byte x%64, low nibble for x < 64) = top 2 bits of the same sub-scale,
//!                      and above them the top 2 bits of the same sub-minimum
//!                 256  32 vectors; of vector 8c+i low nibbles are sub-block 2c, weights 4i.., high are 2c+1
//! Q5_K   2816 B   as Q4_K, but at 256 8 vectors of high bits (bit j is sub-block j's), the 32 vectors at 768
//! ```

use std::ops::Range;

use unfazed_formats::BlockFormat;

use crate::LANES;

/// Bytes of a cache line, and of a vector of 16 lanes.
pub(crate) const LINE: usize = 64;

/// Bytes of 16 scales.
pub(crate) const SCALES: usize = LANES * 2;

/// Positions of blocks in a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Bytes of a block for 16 rows, less the scales where these lie in a line before two blocks.
    pub(crate) block: usize,
    /// A line of scales precedes every two blocks.
    pub(crate) paired: bool,
}

impl Geometry {
    pub(crate) const fn of(format: BlockFormat) -> Geometry {
        let (block, paired) = match format {
            BlockFormat::F32 => (64, false),
            BlockFormat::F16 | BlockFormat::BF16 => (32, false),
            BlockFormat::Q4_0 => (256, true),
            BlockFormat::Q4_1 => (320, false),
            BlockFormat::Q5_0 => (320, true),
            BlockFormat::Q5_1 => (384, false),
            BlockFormat::Q8_0 => (512, true),
            BlockFormat::Q4_K => (2304, false),
            BlockFormat::Q5_K => (2816, false),
            BlockFormat::Q6_K => (3328, true),
        };
        Geometry { block, paired }
    }

    /// Start of block `b`: of its quants where the scales precede two blocks.
    #[inline(always)]
    pub(crate) const fn block_at(self, b: usize) -> usize {
        if self.paired { b / 2 * (LINE + 2 * self.block) + LINE + b % 2 * self.block } else { b * self.block }
    }

    /// Start of the 16 scales of block `b`.
    #[inline(always)]
    pub(crate) const fn scales_at(self, b: usize) -> usize {
        if self.paired { b / 2 * (LINE + 2 * self.block) + b % 2 * SCALES } else { b * self.block }
    }

    /// The lines of a block that are fetched with its columns' part `j` of `parts`: as many of each, nearly.
    #[inline(always)]
    pub(crate) const fn share(self, j: usize, parts: usize) -> Range<usize> {
        let lines = self.block / LINE;
        j * lines / parts..(j + 1) * lines / parts
    }

    /// Bytes of a panel of `blocks` blocks, or `None` if that overflows.
    const fn panel_bytes(self, blocks: usize) -> Option<usize> {
        let Some(quants) = blocks.checked_mul(self.block) else { return None };
        let scales = if self.paired {
            match blocks.div_ceil(2).checked_mul(LINE) {
                Some(bytes) => bytes,
                None => return None,
            }
        } else {
            0
        };
        match quants.checked_add(scales) {
            Some(bytes) => bytes.checked_next_multiple_of(LINE),
            None => None,
        }
    }
}

/// The shape of a packed matrix: how many panels, of how many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PanelLayout {
    format: BlockFormat,
    rows: usize,
    columns: usize,
    row_bytes: usize,
    panel_bytes: usize,
    bytes: usize,
}

impl PanelLayout {
    /// The layout of a matrix of `rows` x `columns` weights, or `None` if the columns do not fill whole blocks,
    /// there is nothing in it, or a size overflows.
    pub fn new(format: BlockFormat, rows: usize, columns: usize) -> Option<PanelLayout> {
        if rows == 0 || columns == 0 {
            return None;
        }
        let row_bytes = format.row_bytes(columns)?;
        row_bytes.checked_mul(rows)?;
        let panel_bytes = Geometry::of(format).panel_bytes(columns / format.block_weights())?;
        let bytes = panel_bytes.checked_mul(rows.div_ceil(LANES))?;
        // A slice holds at most isize::MAX bytes.
        isize::try_from(bytes).ok()?;
        Some(PanelLayout { format, rows, columns, row_bytes, panel_bytes, bytes })
    }

    /// How the weights are stored.
    pub fn format(&self) -> BlockFormat {
        self.format
    }

    /// Rows of the matrix (outputs).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the matrix (inputs).
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Blocks of a row: as many as columns for floats.
    pub fn blocks(&self) -> usize {
        self.columns / self.format.block_weights()
    }

    /// Panels: rows / 16, rounded up.
    pub fn panels(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    /// Bytes of a panel, a multiple of 64.
    pub fn panel_bytes(&self) -> usize {
        self.panel_bytes
    }

    /// Bytes of all panels, a multiple of 64.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of a row in the file.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Rows in panel `panel` that the matrix has: 16, or fewer in the last, or none beyond it.
    pub fn rows_in_panel(&self, panel: usize) -> usize {
        self.rows.saturating_sub(panel.saturating_mul(LANES)).min(LANES)
    }
}
