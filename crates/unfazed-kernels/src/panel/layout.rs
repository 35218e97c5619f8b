//! Where everything is in a panel.
//!
//! Codes are moved as dwords: "vector i" below is 64 bytes, of which lane `r` is the 4 bytes of row `r`.
//!
//! ```text
//! F32          per column 16 x f32
//! F16, BF16    per column 16 x 16 bits
//! FP8          for 128 columns 16 x f32 of scale, then per column 16 bytes
//! MXFP8        a line of E8M0 scales (as below), then per column 16 bytes
//! ```
//!
//! All other formats are blocks of groups of 32 columns. A block is the header, if there is one, then its groups.
//! A group is one or two planes:
//!
//! ```text
//! bits
//! 2    128 B   pairs
//! 3    192 B   pairs, then a bit
//! 4    256 B   nibbles
//! 5    320 B   nibbles, then a bit
//! 6    384 B   nibbles, then pairs
//! 8    512 B   bytes
//!
//! bytes     8 vectors: byte c of vector i is column 4i + c
//! nibbles   4 vectors: low nibble of byte c of vector i is column 4i + c, high nibble column 16 + 4i + c
//! pairs     2 vectors: bits 2s, 2s + 1 of byte c of vector i are column 16i + 4s + c
//! bit       1 vector:  bit g of byte c is column 4g + c
//! ```
//!
//! Scales, by [`Scales`]; "[16]" is the rows:
//!
//! ```text
//! F16      in a line before every 2 blocks: [16 x f16] for each
//! E8m0     in a line before every 4 blocks: [16 bytes] for each
//! Affine   header: d [16 x 16 bits], m [16 x 16 bits]
//! Ue4m3    header: [4 sub-blocks][16 bytes], without sign; what ggml takes for zero is zero, so that 127 is 480
//! Bytes    d as F16; header: [sub-blocks][16 x i8]
//! K4       header: d [16 x f16], dmin [16 x f16],
//!          lo[256]: low nibble of byte x = scale of sub-block x / 16, row x % 16;
//!                   high nibble = minimum of sub-block x / 32 * 2 + x % 2, row x % 32 / 2
//! K6       header: d, dmin, lo[128] as in K4 the low 4 bits,
//!          hi[64]: nibble x (byte x % 64, low nibble for x < 64) = top 2 bits of the scale that has its low bits in
//!                  lo[x], and above them of the minimum
//! ```
//!
//! Bits per weight in the file and in a panel (and the panel is filled up to whole lines):
//!
//! ```text
//!           file  panel              file  panel              file  panel
//! IQ1_S   1.5625 3.3125    Q3_K    3.4375 3.5625    Q5_0    5.5    5.5
//! IQ1_M   1.75   3.5625    IQ3_S   3.4375 4.3125    Q5_K    5.5    5.5
//! TQ1_0   1.6875 2.0625    IQ4_XS  4.25   4.3125    Q5_1    6      6
//! IQ2_XXS 2.0625 3.3125    MXFP4   4.25   4.25      Q6_K    6.5625 6.5625
//! TQ2_0   2.0625 2.0625    Q4_0    4.5    4.5       MXFP8   8.25   8.25
//! IQ2_XS  2.3125 3.5625    IQ4_NL  4.5    4.5       FP8     8.25   8.25
//! IQ2_S   2.5625 3.5625    NVFP4   4.5    4.5       Q8_0    8.5    8.5
//! Q2_K    2.625  2.625     Q4_K    4.5    4.5       affine  bits + 32 / group
//! IQ3_XXS 3.0625 4.3125    Q4_1    5      5
//! ```

use unfazed_formats::BlockFormat;

use crate::LANES;

use super::spec::{Scales, Spec};

/// Bytes of a cache line, and of a vector of 16 lanes.
pub(crate) const LINE: usize = 64;

/// Bytes of 16 scales.
pub(crate) const SCALES: usize = LANES * 2;

/// Positions of blocks in a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a block for 16 rows, less the scales where these lie in a line before several blocks.
    pub block: usize,
    /// Blocks whose scales share a line; 0 if a block has its own.
    pub lined: usize,
    /// Bytes of a block before its codes.
    pub header: usize,
    /// Bytes of 32 columns of codes.
    pub group: usize,
    /// Groups of 32 columns in a block; 0 for floats of at least 16 bits.
    pub groups: usize,
}

impl Geometry {
    /// Those of a format.
    pub const fn of(format: BlockFormat) -> Geometry {
        let Some(spec) = Spec::of(format) else { return Geometry::of_floats(format) };
        // As many vectors as bits, whatever the planes.
        let group = spec.bits.count() * LINE;
        let (lined, header) = match spec.scales {
            Scales::F16 => (2, 0),
            Scales::E8m0 => (4, 0),
            Scales::Affine(_) => (0, 2 * SCALES),
            Scales::Ue4m3 => (0, LINE),
            Scales::Bytes(columns) => (2, 32 * spec.groups / columns * LANES),
            Scales::K4 => (0, 2 * SCALES + 4 * LINE),
            Scales::K6 => (0, 2 * SCALES + 3 * LINE),
        };
        Geometry { block: header + spec.groups * group, lined, header, group, groups: spec.groups }
    }

    const fn of_floats(format: BlockFormat) -> Geometry {
        let (header, columns, bytes, lined) = match format {
            BlockFormat::FP8 => (4 * LANES, 128, LANES, 0),
            BlockFormat::MXFP8 => (0, 32, LANES, 4),
            BlockFormat::F32 => (0, 1, 4 * LANES, 0),
            _ => (0, 1, 2 * LANES, 0),
        };
        Geometry { block: header + columns * bytes, lined, header, group: 32 * bytes, groups: columns / 32 }
    }

    // The numbers of blocks and groups are powers of two, and not known to the compiler everywhere: a division for each
    // block would cost more than a row's products.

    /// Which line of scales block `b` belongs to, and which share of it.
    #[inline(always)]
    const fn line_of(self, b: usize) -> (usize, usize) {
        (b >> self.lined.trailing_zeros(), b & (self.lined - 1))
    }

    /// Bytes from one line of scales to the next.
    #[inline(always)]
    const fn line_stride(self) -> usize {
        LINE + self.lined * self.block
    }

    /// Start of block `b`: its header, or its codes.
    #[inline(always)]
    pub const fn block_at(self, b: usize) -> usize {
        if self.lined == 0 {
            return b * self.block;
        }
        let (line, share) = self.line_of(b);
        line * self.line_stride() + LINE + share * self.block
    }

    /// Start of the 16 scales of block `b`.
    #[inline(always)]
    pub const fn scales_at(self, b: usize) -> usize {
        if self.lined == 0 {
            return b * self.block;
        }
        let (line, share) = self.line_of(b);
        line * self.line_stride() + share * (LINE >> self.lined.trailing_zeros())
    }

    /// The block of group `g` of 32 columns.
    #[inline(always)]
    pub const fn block_of(self, g: usize) -> usize {
        g >> self.groups.trailing_zeros()
    }

    /// Start of the codes of columns `32 * g..32 * g + 32`.
    #[inline(always)]
    pub const fn group_at(self, g: usize) -> usize {
        self.block_at(self.block_of(g)) + self.header + (g & (self.groups - 1)) * self.group
    }

    /// Whether `rows` rows leave no byte of a panel unwritten: there are as many as lanes, and nothing is filled up.
    pub(crate) fn fills(self, layout: &PanelLayout, rows: usize) -> bool {
        let blocks = layout.blocks();
        let lines = match self.lined {
            0 => 0,
            lined if blocks.is_multiple_of(lined) => blocks / lined,
            _ => return false,
        };
        rows == LANES && self.groups > 0 && blocks * self.block + lines * LINE == layout.panel_bytes
    }

    /// Bytes of a panel of `blocks` blocks, or `None` if that overflows.
    const fn panel_bytes(self, blocks: usize) -> Option<usize> {
        let Some(quants) = blocks.checked_mul(self.block) else { return None };
        let scales = match self.lined {
            0 => 0,
            lined => match blocks.div_ceil(lined).checked_mul(LINE) {
                Some(bytes) => bytes,
                None => return None,
            },
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
