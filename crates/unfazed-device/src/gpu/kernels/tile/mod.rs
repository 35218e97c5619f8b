//! Many rows of activations times a packed matrix: tiles of the output, each by one workgroup.
//!
//! Along the columns a workgroup goes in steps of some groups of 32. In each step every thread expands groups of weights and
//! copies groups of activations into shared memory; what the next step reads is on its way while this one is computed. An
//! output is added up in the order of the columns whatever the size of the tile, so its bits depend on its row and on nothing
//! else that is computed with it.
//!
//! | file | what |
//! |---|---|
//! | `shell.rs` | what all paths share: who reads what, the steps, rows by lists |
//! | `integers.rs` | int8 weights and activations, exact sums of 32 columns |
//! | `cooperative.rs` | f16 weights and activations, products of small matrices by a subgroup |
//! | `floats.rs` | f32 |
//!
//! Bindings, in this order; those in brackets only if they are asked for. Activations are what `quantise` writes.
//!
//! | binding | what |
//! |---|---|
//! | weights | whole panels, of one matrix or of a stack (of whole matrices, one expert after the other) |
//! | [up] | the same; for [`Product::GatedSilu`] |
//! | activations | by [`TilePath`]: `quants`, `scales`, `sums`; or `halves`, `peaks`; or f32 rows |
//! | [lists, counts] | as `group_rows` writes them, of all experts; for [`TileRows::Listed`] |
//! | out | f32 `[rows, matrix rows]`; for lists `[entries, matrix rows]` |

mod cooperative;
mod floats;
mod integers;
mod shell;

use unfazed_kernels::panel::PanelLayout;

use super::format::Codec;
use crate::gpu::kernel::Kernel;
use crate::gpu::open::Abilities;

/// What multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TilePath {
    /// Dot products of int8: for formats of integer codes.
    Integers,
    /// Products of matrices of f16 with so many rows and columns (8 or 16), with sums in f32. Subgroups have 32 threads.
    Cooperative(u32),
    /// f32.
    Floats,
}

impl TilePath {
    /// The fastest for a matrix that agrees with the CPU's numbers.
    pub fn best(layout: &PanelLayout, abilities: &Abilities) -> TilePath {
        // Metal has 8x8 alone; tiles of 16x16 need more shared memory than it has.
        for (size, shared) in [(16, 48 * 1024), (8, 32 * 1024)] {
            let threads = abilities.half && abilities.subgroup == Some(32);
            if threads && abilities.cooperative.contains(&[size; 3]) && abilities.shared_bytes >= shared {
                return TilePath::Cooperative(size);
            }
        }
        if Codec::of(layout).integers() { TilePath::Integers } else { TilePath::Floats }
    }
}

/// Which rows of the activations a tile has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TileRows {
    /// All, in order.
    All,
    /// An expert's, by its list of entries. The activations of entry `i` are row `i / share`; its output is row `i`.
    Listed {
        /// Entries that share a row of activations: the experts of a row, or 1 if each has its own.
        share: u32,
    },
}

/// What is made of the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Product {
    /// `out = x W^T`
    Store,
    /// `out += x W^T`
    Add,
    /// `out = silu(x W^T) * (x U^T)`, with a second matrix of the same layout.
    GatedSilu,
}

/// A product of rows and a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// The matrix, or each of a stack. Its columns are whole groups of 32.
    pub layout: PanelLayout,
    /// What multiplies.
    pub path: TilePath,
    /// Which rows.
    pub rows: TileRows,
    /// What is made of it.
    pub product: Product,
    /// Rows of a tile, 64 or 128. More need fewer reads, but there are fewer workgroups. The bits are the same. A product with
    /// two matrices has 64 always.
    pub tile_rows: u32,
}

/// Scalars of a dispatch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TileScalars {
    /// Rows, for [`TileRows::All`].
    pub rows: u32,
    /// Places from one list to the next.
    pub stride: u32,
    /// Expert of the first matrix that is bound.
    pub first_expert: u32,
}

impl TileScalars {
    /// As the kernel reads them.
    pub fn bytes(&self) -> Vec<u8> {
        [self.rows, self.stride, self.first_expert].iter().flat_map(|scalar| scalar.to_le_bytes()).collect()
    }
}

/// Columns of a tile.
const TILE_COLUMNS: u32 = 64;

impl Tile {
    /// The kernel. Immediates are [`TileScalars`].
    pub fn kernel(&self) -> Kernel {
        shell::kernel(self)
    }

    /// Workgroups for at most `rows` rows of each of `matrices` matrices (1 without lists).
    pub fn grid(&self, rows: u32, matrices: u32) -> [u32; 3] {
        [(self.layout.rows() as u32).div_ceil(TILE_COLUMNS), rows.div_ceil(self.height()), matrices]
    }

    /// Rows of a tile.
    fn height(&self) -> u32 {
        if self.product == Product::GatedSilu { 64 } else { self.tile_rows }
    }
}
