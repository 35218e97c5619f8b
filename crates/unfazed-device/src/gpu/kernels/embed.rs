//! Rows of a table of embeddings, by token.

use unfazed_kernels::LANES;
use unfazed_kernels::panel::PanelLayout;

use super::format::{Codec, PRELUDE};
use super::shard::{IMMEDIATE_BYTES, IMMEDIATES};
use crate::gpu::{Access, Kernel};

/// Threads of a workgroup; each does 32 columns.
const THREADS: usize = 64;

/// Writes the rows that tokens name, as f32, exactly as the block format defines them.
///
/// Bindings: the table's panels (a shard of them), tokens `[rows]` u32, output `[rows, columns]` f32. Rows of tokens that are
/// not in the shard stay as they are. Immediates: [`super::shard::immediates`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embed {
    /// The table's. Its columns are whole groups of 32.
    pub table: PanelLayout,
}

impl Embed {
    /// Its text.
    pub fn kernel(&self) -> Kernel {
        let codec = Codec::of(&self.table);
        let columns = self.table.columns();
        let stores: String =
            (0..8).map(|i| format!("    out[at + {i}u] = f.v{i};\n")).collect::<Vec<_>>().concat();
        let source = format!(
            "{PRELUDE}{IMMEDIATES}
@group(0) @binding(0) var<storage, read> table: array<u32>;
@group(0) @binding(1) var<storage, read> tokens: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;
{codec}
@compute @workgroup_size({THREADS})
fn main(@builtin(workgroup_id) at_group: vec3<u32>, @builtin(local_invocation_index) t: u32) {{
    let group = at_group.x * {THREADS}u + t;
    let row = at_group.y;
    let token = tokens[row];
    let panel = token / {LANES}u - dispatch.first;
    if (group >= {groups}u || panel >= dispatch.count) {{ return; }}
    let lane = token % {LANES}u;
    let f = e_weights(e_load(panel * {panel_words}u, lane, group), lane, group);
    let at = (row * {groups}u + group) * 8u;
{stores}}}
",
            codec = codec.wgsl("e", "table"),
            groups = columns / 32,
            panel_words = codec.panel_words(),
        );
        Kernel {
            name: format!("embed {:?} {columns}", self.table.format()),
            source,
            bindings: vec![Access::Read, Access::Read, Access::Write],
            immediates: IMMEDIATE_BYTES,
        }
    }

    /// Workgroups for so many rows.
    pub fn grid(&self, rows: usize) -> [u32; 3] {
        [(self.table.columns() / 32).div_ceil(THREADS) as u32, rows as u32, 1]
    }
}
