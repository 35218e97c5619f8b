//! A packed matrix, borrowed.

use crate::LANES;

use super::layout::{LINE, PanelLayout};
use super::unpack::{CHUNK, unpack_columns};

/// Panels in memory, and their layout.
#[derive(Clone, Copy)]
pub struct PackedMatrix<'a> {
    layout: PanelLayout,
    bytes: &'a [u8],
}

/// Why bytes are not a packed matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackedMatrixError {
    /// The layout needs another length.
    #[error("a packed matrix has {found} bytes where its layout needs {needed}; pack it again")]
    Length {
        /// Bytes there are.
        found: usize,
        /// Bytes the layout needs.
        needed: usize,
    },
    /// The bytes do not start on a cache line.
    #[error("a packed matrix starts {remainder} bytes after a 64-byte boundary; place it on one")]
    Alignment {
        /// Bytes after the boundary.
        remainder: usize,
    },
}

impl<'a> PackedMatrix<'a> {
    /// Checks length ([`PanelLayout::bytes`]) and alignment (64 bytes). Any content is valid: the kernels treat
    /// all bits as weights.
    pub fn new(layout: PanelLayout, bytes: &'a [u8]) -> Result<PackedMatrix<'a>, PackedMatrixError> {
        if bytes.len() != layout.bytes() {
            return Err(PackedMatrixError::Length { found: bytes.len(), needed: layout.bytes() });
        }
        let remainder = bytes.as_ptr().addr() % LINE;
        if remainder != 0 {
            return Err(PackedMatrixError::Alignment { remainder });
        }
        Ok(PackedMatrix { layout, bytes })
    }

    /// Its layout.
    pub fn layout(&self) -> &PanelLayout {
        &self.layout
    }

    /// Bytes of panel `panel`, which must exist.
    #[inline]
    pub(crate) fn panel(&self, panel: usize) -> &'a [u8] {
        let size = self.layout.panel_bytes();
        &self.bytes[panel * size..][..size]
    }

    /// Panels `first..first + R`, which must exist.
    #[inline]
    pub(crate) fn panels<const R: usize>(&self, first: usize) -> [&'a [u8]; R] {
        std::array::from_fn(|r| self.panel(first + r))
    }
}

/// Writes the weights of one row, exactly as the block format defines them (an embedding lookup).
///
/// # Panics
///
/// If there is no such row or `out` does not hold one f32 per column.
pub fn unpack_row(matrix: &PackedMatrix<'_>, row: usize, out: &mut [f32]) {
    let layout = matrix.layout();
    assert!(row < layout.rows(), "row {row} of a matrix of {} rows", layout.rows());
    assert_eq!(out.len(), layout.columns(), "one f32 per column");
    let panel = matrix.panel(row / LANES);
    let mut weights = [[0.0; LANES]; CHUNK];
    for (i, out) in out.chunks_mut(CHUNK).enumerate() {
        let weights = &mut weights[..out.len()];
        unpack_columns(layout.format(), panel, i * CHUNK, weights);
        for (out, lanes) in out.iter_mut().zip(weights) {
            *out = lanes[row % LANES];
        }
    }
}
