//! Feed-forward networks of many rows: all experts of a layer in two products and a sum.
//!
//! 1. `routing::top_k` and `routing::group_rows`: each expert has a list of entries (row x used + slot).
//! 2. [`gate_up`]: SiLU of gate times up, a row for each entry.
//! 3. `quantise` of these rows, by themselves.
//! 4. [`down`]: a row of outputs for each entry.
//! 5. [`Combine`]: each row of the residual gets its entries' outputs, in ascending order of expert.
//!
//! A stack that is larger than a binding is bound in parts, one dispatch each, `first_expert` being the part's first. A dense
//! network is a product of [`TileRows::All`] that stores `GatedSilu`, and one that adds to the residual.

use unfazed_kernels::panel::PanelLayout;

use super::tile::{Product, Tile, TilePath, TileRows};
use crate::gpu::kernel::{Access, Kernel};

/// Gate and up of experts whose matrices are of this layout: f32 `[entries, feed_forward]` out of activations of `rows`.
pub fn gate_up(layout: PanelLayout, path: TilePath, used: u32, tile_rows: u32) -> Tile {
    Tile { layout, path, rows: TileRows::Listed { share: used }, product: Product::GatedSilu, tile_rows }
}

/// Down of experts whose matrices are of this layout: f32 `[entries, hidden]` out of activations of `entries`.
pub fn down(layout: PanelLayout, path: TilePath, tile_rows: u32) -> Tile {
    Tile { layout, path, rows: TileRows::Listed { share: 1 }, product: Product::Store, tile_rows }
}

/// Adds the experts' outputs to the residual, one after the other in the order of a row's entries, which is that of experts.
///
/// | binding | what |
/// |---|---|
/// | residual | f32 `[rows, hidden]`, added to |
/// | outputs | f32 `[rows, used, hidden]` |
/// | weights | f32 `[rows, used]` |
///
/// The grid is [`Combine::grid`]; there are no immediates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Combine {
    /// Columns of the residual, a multiple of 4.
    pub hidden: usize,
    /// Experts of a row.
    pub used: usize,
}

/// Threads of a workgroup of [`Combine`], each with 4 columns.
const THREADS: usize = 128;

impl Combine {
    /// The kernel.
    pub fn kernel(&self) -> Kernel {
        let Combine { hidden, used } = self;
        let source = format!(
            "@group(0) @binding(0) var<storage, read_write> residual: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> outputs: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> weights: array<f32>;
const FOURS = {fours}u;
@compute @workgroup_size({THREADS})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {{
    let column = group.x * {THREADS}u + t;
    let row = group.y;
    if column >= FOURS {{ return; }}
    var sum = residual[row * FOURS + column];
    for (var slot = 0u; slot < {used}u; slot++) {{
        let entry = row * {used}u + slot;
        sum = fma(vec4<f32>(weights[entry]), outputs[entry * FOURS + column], sum);
    }}
    residual[row * FOURS + column] = sum;
}}
",
            fours = hidden / 4,
        );
        let bindings = vec![Access::Write, Access::Read, Access::Read];
        Kernel { name: format!("combine-{used}-{hidden}"), source, bindings, immediates: 0 }
    }

    /// Workgroups for so many rows, at most 65,535.
    pub fn grid(&self, rows: u32) -> [u32; 3] {
        [(self.hidden / 4).div_ceil(THREADS) as u32, rows, 1]
    }
}
