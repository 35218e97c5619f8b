//! f16 keys and values as they lie in their pages, products of 16x16 matrices, sums in f32.
//!
//! A subgroup has 16 rows of a block. A panel of keys is a column of matrices as it lies in its page, and so is one of values
//! a row of them; so both are read from there, 32 positions at a time. Scores go through shared memory, where two threads have
//! a row, and come back as weights of f16.
//!
//! Contexts stay in matrices that only whole subgroups can scale. So a row scales what it has added up only when its largest
//! score has grown by more than 8 (weights are powers of two, of up to that): that is rare after the first positions. Whether
//! a row does depends on it alone; the others of its block are then multiplied by one.

use std::fmt::Write as _;

use super::{AttendPrompt, BLOCK_ROWS, PLACE};
use crate::gpu::kernel::{Access, Kernel};
use crate::gpu::kernels::step::STEP;

/// Numbers from one row of scores to the next, and of weights.
const SCORES: usize = 36;
const WEIGHTS: usize = 40;

/// Bytes that a workgroup shares.
pub(super) fn shared_bytes(head_dim: usize) -> usize {
    BLOCK_ROWS * (SCORES * 4 + WEIGHTS * 2 + head_dim * 2) + 16
}

pub(super) fn kernel(attend: &AttendPrompt) -> Kernel {
    let AttendPrompt { heads, kv } = attend;
    let source = [
        "enable f16;\nenable wgpu_cooperative_matrix;\n",
        PLACE,
        BINDINGS,
        STEP,
        &kv.places(),
        &attend.constants(),
        &format!(
            "
var<workgroup> scores: array<f32, {}>;
var<workgroup> weights: array<f16, {}>;
// Whether a row scales what it has.
var<workgroup> growing: array<u32, 3>;
// Queries, and later the last values, of which those that nobody has stored are zero.
var<workgroup> stage: array<f16, {}>;
",
            BLOCK_ROWS * SCORES,
            BLOCK_ROWS * WEIGHTS,
            BLOCK_ROWS * kv.head_dim
        ),
        &main_text(kv.head_dim / 16),
    ]
    .concat();
    let mut bindings = vec![Access::Read; 4];
    bindings.push(Access::Write);
    Kernel { name: format!("attend prompt {heads} {} matrices", kv.name()), source, bindings, immediates: 16 }
}

const BINDINGS: &str = "
@group(0) @binding(0) var<storage, read> step: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> keys: array<f16>;
@group(0) @binding(3) var<storage, read> values: array<f16>;
@group(0) @binding(4) var<storage, read_write> context: array<f32>;
";

/// One text for each of the matrices along a head.
fn each(tiles: usize, text: impl Fn(usize) -> String) -> String {
    (0..tiles).map(text).collect::<Vec<_>>().join("\n            ")
}

/// WGSL: scores of 32 positions into shared memory.
fn scores_text(tiles: usize) -> String {
    let mut text = String::new();
    for half in 0..2 {
        let _ = writeln!(text, "        var s{half} = coop_mat16x16<f32, C>();");
        for d in 0..tiles {
            let _ = writeln!(
                text,
                "        s{half} = coopMultiplyAdd(q{d}, coopLoadT<coop_mat16x16<f16, B>>(&keys[key{half} + {}u], 16u), s{half});",
                d * 256
            );
        }
        let _ =
            writeln!(text, "        coopStoreT(s{half}, &scores[my_scores + {}u], {SCORES}u);", half * 16);
    }
    text
}

/// WGSL: adds values of 32 positions, read at `value0` and `value1` of an array.
fn values_text(tiles: usize, array: &str, at: [&str; 2]) -> String {
    let mut text = String::new();
    for (half, at) in at.into_iter().enumerate() {
        for d in 0..tiles {
            let _ = writeln!(
                text,
                "            c{d} = coopMultiplyAdd(w{half}, coopLoadT<coop_mat16x16<f16, B>>(&{array}[{at} + {}u], DIM), c{d});",
                d * 16
            );
        }
    }
    text
}

/// WGSL: a matrix of contexts through shared memory, where a thread does something with eight numbers of a row.
fn through(d: usize, what: &str) -> String {
    format!("coopStoreT(c{d}, &scores[my_scores], {SCORES}u); subgroupBarrier(); {what}; subgroupBarrier();")
}

/// WGSL: weights of 32 positions from `start` on, `w0` and `w1`, and where their values are.
fn weigh_text(tiles: usize) -> String {
    let shrink = each(tiles, |d| {
        through(d, "shrink_row(my_row, half, shrink)")
            + &format!(
                " c{d} = coopLoadT<coop_mat16x16<f32, C>>(&scores[my_scores], {SCORES}u); subgroupBarrier();"
            )
    });
    format!(
        "
        let second = min(start + 16u, last);
        let blocks = vec2<u32>(block_of(row.pages, start, kv_head), block_of(row.pages, second, kv_head));
        let panels = vec2<u32>(start, second) % PAGE_TOKENS / 16u;
        let key0 = blocks.x + panels.x * 2u * KEY_PANEL;
        let key1 = blocks.y + panels.y * 2u * KEY_PANEL;
{scores}
        subgroupBarrier();
        var mine_of: array<f32, 16>;
        var peak = -1e38;
        for (var i = 0u; i < 16u; i++) {{
            let s = select(-1e38, scores[my_row + 2u * i + half], start + 2u * i + half <= sees);
            mine_of[i] = s;
            peak = max(peak, s);
        }}
        peak = max(peak, subgroupShuffleXor(peak, 1u));
        let grown = peak > most + 8.0;
        let shrink = select(1.0, exp2(most - peak), grown);
        most = select(most, peak, grown);
        total *= shrink;
        for (var i = 0u; i < 16u; i++) {{
            let w = f16(exp2(mine_of[i] - most));
            total += f32(w);
            weights[mine * {WEIGHTS}u + 2u * i + half] = w;
        }}
        // Turned back to zero when nobody looks at it.
        if (grown && start > 0u) {{ growing[start / 32u % 3u] = 1u; }}
        let some = workgroupUniformLoad(&growing[start / 32u % 3u]);
        if (t == 0u) {{ growing[(start / 32u + 2u) % 3u] = 0u; }}
        if (some != 0u) {{
            {shrink}
        }}
        let w0 = coopLoadT<coop_mat16x16<f16, A>>(&weights[subgroup * 16u * {WEIGHTS}u], {WEIGHTS}u);
        let w1 = coopLoadT<coop_mat16x16<f16, A>>(&weights[subgroup * 16u * {WEIGHTS}u + 16u], {WEIGHTS}u);
        let value0 = blocks.x + 2u * VALUES + panels.x * 2u * VALUE_PANEL;
        let value1 = blocks.y + 2u * VALUES + panels.y * 2u * VALUE_PANEL;
",
        scores = scores_text(tiles),
    )
}

fn main_text(tiles: usize) -> String {
    let queries = each(tiles, |d| {
        format!(
            "let q{d} = coopLoadT<coop_mat16x16<f16, A>>(&stage[subgroup * 16u * DIM + {}u], DIM);",
            d * 16
        )
    });
    let declare = each(tiles, |d| format!("var c{d} = coop_mat16x16<f32, C>();"));
    let write = each(tiles, |d| {
        through(d, &format!("write_row(my_row, half, out_at + {}u, 1.0 / total, wanted)", d * 16))
    });
    format!(
        "
fn shrink_row(at: u32, half: u32, factor: f32) {{
    for (var i = 0u; i < 8u; i++) {{ scores[at + 2u * i + half] *= factor; }}
}}
fn write_row(at: u32, half: u32, out: u32, factor: f32, wanted: bool) {{
    if (!wanted) {{ return; }}
    for (var i = 0u; i < 8u; i++) {{ context[out + 2u * i + half] = scores[at + 2u * i + half] * factor; }}
}}
fn block_of(pages: u32, position: u32, head: u32) -> u32 {{
    return 2u * block_at(step[pages + position / PAGE_TOKENS], head);
}}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) thread: u32,
) {{
    let block = step_block(group.y);
    let kv_head = group.x / GROUP;
    let row = step_row(block.first);
    let last = row.position + block.count - 1u;
    for (var i = t; i < {BLOCK_ROWS}u * DIM; i += 128u) {{
        var q = 0.0;
        if (i / DIM < block.count) {{
            q = x[place.query + (block.first + i / DIM) * place.query_stride + group.x * DIM + i % DIM];
        }}
        stage[i] = f16(q * SCALE);
    }}
    if (t < 3u) {{ growing[t] = 0u; }}
    workgroupBarrier();
    {queries}
    {declare}
    // This thread's row of the subgroup's, and every second number of it.
    let mine = subgroup * 16u + thread / 2u;
    let half = thread % 2u;
    let sees = min(row.position + mine, last);
    let my_scores = subgroup * 16u * {SCORES}u;
    let my_row = mine * {SCORES}u;
    var most = -1e38;
    var total = 0.0;
    var start = 0u;
    for (; start + 32u <= last + 1u; start += 32u) {{
{weigh}
{values}
    }}
    // Once, or not at all.
    for (; start <= last; start += 32u) {{
{weigh}
        // Zero times a number that nobody has stored may be none.
        for (var i = t; i < 32u * DIM; i += 128u) {{
            let p = i / DIM;
            var v = f16(0.0);
            if (start + p <= last) {{ v = values[select(value0, value1, p >= 16u) + p % 16u * DIM + i % DIM]; }}
            stage[i] = v;
        }}
        workgroupBarrier();
{last_values}
    }}
    total += subgroupShuffleXor(total, 1u);
    subgroupBarrier();
    let wanted = mine < block.count;
    let out_at = place.context + (block.first + mine) * place.context_stride + group.x * DIM;
    {write}
}}
",
        weigh = weigh_text(tiles),
        values = values_text(tiles, "values", ["value0", "value1"]),
        last_values = values_text(tiles, "stage", ["0u", "16u * DIM"]),
    )
}
