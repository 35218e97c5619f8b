//! f32, for every type of keys and values.
//!
//! Rows of a block are taken 32 (of wide heads 16) at a time: their queries, and their weights of 64 positions, are in shared
//! memory, four rows side by side; keys and values come from the pages. A thread scores four positions for four rows, then has
//! four dimensions of the contexts of eight rows.

use super::{AttendPrompt, PLACE};
use crate::gpu::kernel::{Access, Kernel};
use crate::gpu::kernels::kv::KvText;
use crate::gpu::kernels::step::STEP;

pub(super) fn kernel(attend: &AttendPrompt) -> Kernel {
    let AttendPrompt { heads, kv } = attend;
    let rows = if kv.head_dim > 128 { 16 } else { 32 };
    let mut bindings = vec![Access::Read, Access::Read];
    bindings.extend(KvText::READERS);
    bindings.push(Access::Write);
    let quads = format!("const QUADS = {}u;\n", rows / 4);
    let source = [
        PLACE,
        BINDINGS,
        &kv.readers(2),
        STEP,
        &kv.places(),
        &attend.constants(),
        &quads,
        SHARED,
        &main_text(),
    ]
    .concat();
    Kernel { name: format!("attend prompt {heads} {} f32", kv.name()), source, bindings, immediates: 16 }
}

const BINDINGS: &str = "
@group(0) @binding(0) var<storage, read> step: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(4) var<storage, read_write> context: array<f32>;
";

const SHARED: &str = "
const ROWS = 4u * QUADS;
// Threads that share four rows in the softmax, and positions of each.
const SHARES = 128u / QUADS;
const EACH = 64u / SHARES;
var<workgroup> queries: array<vec4<f32>, DIM * QUADS>;
var<workgroup> weights: array<vec4<f32>, 64u * QUADS>;
var<workgroup> peaks: array<vec4<f32>, 128>;
var<workgroup> sums: array<vec4<f32>, 128>;
var<workgroup> most: array<vec4<f32>, QUADS>;
var<workgroup> total: array<vec4<f32>, QUADS>;
var<workgroup> shrink: array<vec4<f32>, QUADS>;
var<workgroup> panels: array<u32, 4>;
";

/// Everything for the block's rows from `first` on. Barriers lie between the five parts of a round.
fn main_text() -> String {
    let rows = |text: &dyn Fn(usize, &str) -> String| -> String {
        (0..8).map(|i| text(i, ["x", "y", "z", "w"][i % 4])).collect::<Vec<_>>().join("\n            ")
    };
    let declare = rows(&|i, _| format!("var c{i} = vec4<f32>(0.0);"));
    let scale = rows(&|i, c| format!("c{i} = c{i} * s{}.{c};", i / 4));
    let add = rows(&|i, c| format!("c{i} += v * w{}.{c};", i / 4));
    let write = rows(&|i, c| {
        format!("put(out_row + {i}u, out_at + {i}u * place.context_stride, c{i} / t{}.{c}, count);", i / 4)
    });
    format!(
        "
fn panel_place(pages: u32, position: u32, head: u32) -> vec2<u32> {{
    let block = block_at(step[pages + position / PAGE_TOKENS], head);
    let panel = position % PAGE_TOKENS / 16u;
    return vec2<u32>(block + panel * KEY_PANEL, block + VALUES + panel * VALUE_PANEL);
}}
fn put(row: u32, at: u32, c: vec4<f32>, count: u32) {{
    if (row >= count) {{ return; }}
    context[at] = c.x;
    context[at + 1u] = c.y;
    context[at + 2u] = c.z;
    context[at + 3u] = c.w;
}}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {{
    let block = step_block(group.y);
    let kv_head = group.x / GROUP;
    for (var begun = 0u; begun < block.count; begun += ROWS) {{
        let first = block.first + begun;
        let count = min(block.count - begun, ROWS);
        let row = step_row(first);
        let last = row.position + count - 1u;
        for (var i = t; i < DIM * QUADS; i += 128u) {{
            let d = i / QUADS;
            let at = place.query + (first + i % QUADS * 4u) * place.query_stride + group.x * DIM + d;
            let left = count - min(count, i % QUADS * 4u);
            var q = vec4<f32>(0.0);
            if (left > 0u) {{ q.x = x[at]; }}
            if (left > 1u) {{ q.y = x[at + place.query_stride]; }}
            if (left > 2u) {{ q.z = x[at + 2u * place.query_stride]; }}
            if (left > 3u) {{ q.w = x[at + 3u * place.query_stride]; }}
            queries[i] = q * SCALE;
        }}
        if (t < QUADS) {{ most[t] = vec4<f32>(-1e38); total[t] = vec4<f32>(0.0); }}
        workgroupBarrier();
        let dims = t % (DIM / 4u);
        let eight = t / (DIM / 4u);
        {declare}
        for (var start = 0u; start <= last; start += 64u) {{
            let n = min(64u, last + 1u - start);
            score(t, start, last, row, kv_head);
            if (t < 4u) {{ panels[t] = panel_place(row.pages, min(start + t * 16u, last), kv_head).y; }}
            workgroupBarrier();
            let quad = t % QUADS;
            let place_of = t / QUADS * EACH * QUADS + quad;
            var peak = vec4<f32>(-1e38);
            for (var i = 0u; i < EACH; i++) {{ peak = max(peak, weights[place_of + i * QUADS]); }}
            peaks[t] = peak;
            workgroupBarrier();
            let before = most[quad];
            peak = before;
            for (var i = 0u; i < SHARES; i++) {{ peak = max(peak, peaks[i * QUADS + quad]); }}
            var sum = vec4<f32>(0.0);
            for (var i = 0u; i < EACH; i++) {{
                let w = exp2(weights[place_of + i * QUADS] - peak);
                weights[place_of + i * QUADS] = w;
                sum += w;
            }}
            sums[t] = sum;
            if (t < QUADS) {{ shrink[t] = exp2(before - peak); }}
            workgroupBarrier();
            if (t < QUADS) {{
                most[t] = peak;
                sum = vec4<f32>(0.0);
                for (var i = 0u; i < SHARES; i++) {{ sum += sums[i * QUADS + t]; }}
                total[t] = total[t] * shrink[t] + sum;
            }}
            if (eight < ROWS / 8u) {{
                let s0 = shrink[2u * eight];
                let s1 = shrink[2u * eight + 1u];
                {scale}
                for (var p = 0u; p < n; p++) {{
                    let v = value_quad(panels[p / 16u], p % 16u, dims);
                    let w0 = weights[p * QUADS + 2u * eight];
                    let w1 = weights[p * QUADS + 2u * eight + 1u];
                    {add}
                }}
            }}
            workgroupBarrier();
        }}
        if (eight < ROWS / 8u) {{
            let t0 = total[2u * eight];
            let t1 = total[2u * eight + 1u];
            let out_row = eight * 8u;
            let out_at = place.context + (first + out_row) * place.context_stride + group.x * DIM + dims * 4u;
            {write}
        }}
        workgroupBarrier();
    }}
}}

// Four positions for four rows; what a row does not see is far below all that it sees.
fn score(t: u32, start: u32, last: u32, row: StepRow, kv_head: u32) {{
    let rows = t / 16u;
    let quad = t % 16u;
    if (rows >= QUADS) {{ return; }}
    let panel = panel_place(row.pages, min(start + quad / 4u * 16u, last), kv_head).x;
    var a = vec4<f32>(0.0);
    var b = vec4<f32>(0.0);
    var c = vec4<f32>(0.0);
    var d = vec4<f32>(0.0);
    for (var p = 0u; p < DIM / 2u; p++) {{
        let pair = key_pair(panel, p, quad % 4u);
        let q0 = queries[2u * p * QUADS + rows];
        let q1 = queries[(2u * p + 1u) * QUADS + rows];
        a += pair.a * q0.x + pair.b * q1.x;
        b += pair.a * q0.y + pair.b * q1.y;
        c += pair.a * q0.z + pair.b * q1.z;
        d += pair.a * q0.w + pair.b * q1.w;
    }}
    let sees = vec4<u32>(row.position + rows * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
    for (var i = 0u; i < 4u; i++) {{
        let position = start + quad * 4u + i;
        let visible = vec4<u32>(position) <= min(sees, vec4<u32>(last));
        weights[(quad * 4u + i) * QUADS + rows] =
            select(vec4<f32>(-1e38), vec4<f32>(a[i], b[i], c[i], d[i]), visible);
    }}
}}
"
    )
}
