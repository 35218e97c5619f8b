//! Products of 16x16 matrices of f16, with sums in f32; for keys and values of f16, Q8_0 and Q4_0.
//!
//! A subgroup has 16 rows of a block. Keys and values of 32 positions are put into shared memory as f16 by all; those of the
//! next 32 are on their way meanwhile. A row of each matrix in shared memory is 16 bytes longer than it needs to be, so that
//! the rows that are read at once are in different banks. Scores go through shared memory, where two threads have a row, and
//! come back as weights.
//!
//! Contexts stay in matrices that only whole subgroups can scale. So a row scales what it has added up only when its largest
//! score has grown by more than 8 (weights are powers of two, of up to that): that is rare after the first positions. Whether
//! a row does depends on it alone; the others of its block are then multiplied by one.

use std::fmt::Write as _;

use unfazed_formats::KvType;

use super::{AttendPrompt, BLOCK_ROWS, PLACE};
use crate::gpu::kernel::{Access, Kernel};
use crate::gpu::kernels::kv::KvText;
use crate::gpu::kernels::step::STEP;

/// Numbers from one row of scores to the next.
const SCORES: usize = 40;
/// Halves from one row of weights, or of 32 keys, to the next.
const POSITIONS: usize = 40;
/// Positions that are taken together.
const STEP_POSITIONS: usize = 32;
const THREADS: usize = 128;

/// Whether values of this type lose nothing that matters as f16.
pub(super) fn takes(kind: KvType) -> bool {
    matches!(kind, KvType::F16 | KvType::Q8_0 | KvType::Q4_0)
}

/// Bytes that a workgroup shares.
pub(super) fn shared_bytes(head_dim: usize) -> usize {
    BLOCK_ROWS * (SCORES * 4 + POSITIONS * 2) + tile(head_dim) * 2 + 16
}

/// Halves of the keys and values in shared memory, or of the queries before.
fn tile(head_dim: usize) -> usize {
    let both = head_dim * POSITIONS + STEP_POSITIONS * (head_dim + 8);
    both.max(BLOCK_ROWS * (head_dim + 8))
}

pub(super) fn kernel(attend: &AttendPrompt) -> Kernel {
    let AttendPrompt { heads, kv } = attend;
    let shared = format!(
        "
// Halves from one row of queries or values to the next.
const PITCH = DIM + 8u;
const VALUES_AT = DIM * {POSITIONS}u;
// In fours.
var<workgroup> tile: array<vec4<f16>, {}>;
var<workgroup> scores: array<vec4<f32>, {}>;
var<workgroup> weights: array<vec4<f16>, {}>;
// Whether a row scales what it has, in this round, the one before and the next one.
var<workgroup> growing: array<u32, 3>;
",
        tile(kv.head_dim) / 4,
        BLOCK_ROWS * SCORES / 4,
        BLOCK_ROWS * POSITIONS / 4,
    );
    let source = [
        "enable f16;\nenable wgpu_cooperative_matrix;\n",
        PLACE,
        BINDINGS,
        &kv.readers(2),
        STEP,
        &kv.places(),
        &attend.constants(),
        &shared,
        FUNCTIONS,
        &main_text(kv.head_dim),
    ]
    .concat();
    let mut bindings = vec![Access::Read, Access::Read];
    bindings.extend(KvText::READERS);
    bindings.push(Access::Write);
    Kernel { name: format!("attend prompt {heads} {} matrices", kv.name()), source, bindings, immediates: 16 }
}

const BINDINGS: &str = "
@group(0) @binding(0) var<storage, read> step: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(4) var<storage, read_write> context: array<f32>;
";

const FUNCTIONS: &str = "
fn shrink_row(at: u32, factor: f32) {
    scores[at] *= factor;
    scores[at + 2u] *= factor;
}
fn write_row(at: u32, out: u32, factor: f32, wanted: bool) {
    if (!wanted) { return; }
    for (var i = 0u; i < 2u; i++) {
        let c = scores[at + 2u * i] * factor;
        context[out + 8u * i] = c.x;
        context[out + 8u * i + 1u] = c.y;
        context[out + 8u * i + 2u] = c.z;
        context[out + 8u * i + 3u] = c.w;
    }
}
fn panel_place(pages: u32, position: u32, head: u32) -> vec2<u32> {
    let block = block_at(step[pages + position / PAGE_TOKENS], head);
    let panel = position % PAGE_TOKENS / 16u;
    return vec2<u32>(block + panel * KEY_PANEL, block + VALUES + panel * VALUE_PANEL);
}
struct Halves { a: vec4<f16>, b: vec4<f16> }
// The i-th quad of two dimensions of the keys from `start` on.
fn keys_of(i: u32, start: u32, last: u32, pages: u32, head: u32) -> Halves {
    let panel = panel_place(pages, min(start + i / (2u * DIM) * 16u, last), head).x;
    let pair = key_pair(panel, i / 4u % (DIM / 2u), i % 4u);
    return Halves(vec4<f16>(pair.a), vec4<f16>(pair.b));
}
fn put_keys(i: u32, k: Halves) {
    let at = (i / 4u % (DIM / 2u)) * 20u + i / (2u * DIM) * 4u + i % 4u;
    tile[at] = k.a;
    tile[at + 10u] = k.b;
}
// The i-th quad of the values from `start` on. Those that nobody has stored are zero: they may be no numbers.
fn values_of(i: u32, start: u32, last: u32, pages: u32, head: u32) -> vec4<f16> {
    let position = start + i / (DIM / 4u);
    let panel = panel_place(pages, min(position, last), head).y;
    let v = value_quad(panel, position % 16u, i % (DIM / 4u));
    return select(vec4<f16>(), vec4<f16>(v), position <= last);
}
fn put_values(i: u32, v: vec4<f16>) {
    tile[(VALUES_AT + i / (DIM / 4u) * PITCH) / 4u + i % (DIM / 4u)] = v;
}
";

/// One text for each of so many.
fn each(count: usize, text: impl Fn(usize) -> String) -> String {
    (0..count).map(text).collect::<Vec<_>>().join("\n        ")
}

/// WGSL: scores of 32 positions into shared memory.
fn scores_text(tiles: usize) -> String {
    let mut text = String::new();
    for d in 0..tiles {
        for half in 0..2 {
            let at = (d * 16 * POSITIONS + half * 16) / 4;
            let _ = writeln!(
                text,
                "        s{half} = coopMultiplyAdd(q{d}, coopLoadT<coop_mat16x16<f16, B>>(&tile[{at}u], {}u), s{half});",
                POSITIONS / 4
            );
        }
    }
    for half in 0..2 {
        let _ = writeln!(
            text,
            "        coopStoreT(s{half}, &scores[my_scores + {}u], {}u);",
            half * 4,
            SCORES / 4
        );
    }
    text
}

/// WGSL: adds the values of 32 positions.
fn values_text(tiles: usize) -> String {
    let mut text = String::new();
    for half in 0..2 {
        for d in 0..tiles {
            let _ = writeln!(
                text,
                "        c{d} = coopMultiplyAdd(w{half}, coopLoadT<coop_mat16x16<f16, B>>(&tile[(VALUES_AT + {}u * PITCH + {}u) / 4u], PITCH / 4u), c{d});",
                half * 16,
                d * 16
            );
        }
    }
    text
}

/// WGSL: a matrix of contexts through shared memory, where a thread does something with eight numbers of a row.
fn through(d: usize, what: &str) -> String {
    format!(
        "coopStoreT(c{d}, &scores[my_scores], {}u); workgroupBarrier(); {what}; workgroupBarrier();",
        SCORES / 4
    )
}

/// WGSL: sixteen scores of the thread's row become weights.
fn weights_text() -> String {
    let quads = |text: &dyn Fn(usize) -> String| each(4, text);
    let read = quads(&|j| {
        format!(
            "var e{j} = scores[my_row + {at}u];
        let p{j} = vec4<u32>(start + half * 4u + {first}u) + vec4<u32>(0u, 1u, 2u, 3u);
        e{j} = select(vec4<f32>(-1e38), e{j}, p{j} <= vec4<u32>(sees));
        peak = max(peak, max(max(e{j}.x, e{j}.y), max(e{j}.z, e{j}.w)));",
            at = 2 * j,
            first = 8 * j
        )
    });
    let write = quads(&|j| {
        format!(
            "let h{j} = vec4<f16>(exp2(e{j} - most));
        weights[mine * {pitch}u + half + {at}u] = h{j};
        sum += vec4<f32>(h{j});",
            pitch = POSITIONS / 4,
            at = 2 * j
        )
    });
    format!(
        "        var peak = -1e38;
        {read}
        peak = max(peak, subgroupShuffleXor(peak, 1u));
        let grown = peak > most + 8.0;
        let shrink = select(1.0, exp2(most - peak), grown);
        most = select(most, peak, grown);
        var sum = vec4<f32>();
        {write}
        total = total * shrink + ((sum.x + sum.y) + (sum.z + sum.w));
        // Turned back to zero when nobody looks at it.
        if (grown && start > 0u) {{ growing[round % 3u] = 1u; }}
        let some = workgroupUniformLoad(&growing[round % 3u]);
        if (t == 0u) {{ growing[(round + 2u) % 3u] = 0u; }}
"
    )
}

fn main_text(dim: usize) -> String {
    let tiles = dim / 16;
    let (key_items, value_items) = (4 * dim / THREADS, STEP_POSITIONS * dim / 4 / THREADS);
    let queries = each(tiles, |d| {
        format!(
            "let q{d} = coopLoadT<coop_mat16x16<f16, A>>(&tile[(subgroup * 16u * PITCH + {}u) / 4u], PITCH / 4u);",
            d * 16
        )
    });
    let declare = each(tiles, |d| format!("var c{d} = coop_mat16x16<f32, C>();"));
    let first_keys = each(key_items, |i| {
        format!("var k{i} = keys_of(t + {}u, 0u, last, row.pages, kv_head);", i * THREADS)
    });
    let first_values = each(value_items, |i| {
        format!("var v{i} = values_of(t + {}u, 0u, last, row.pages, kv_head);", i * THREADS)
    });
    let put_keys = each(key_items, |i| format!("put_keys(t + {}u, k{i});", i * THREADS));
    let put_values = each(value_items, |i| format!("put_values(t + {}u, v{i});", i * THREADS));
    let next_keys =
        each(key_items, |i| format!("k{i} = keys_of(t + {}u, next, last, row.pages, kv_head);", i * THREADS));
    let next_values = each(value_items, |i| {
        format!("v{i} = values_of(t + {}u, next, last, row.pages, kv_head);", i * THREADS)
    });
    let shrink = each(tiles, |d| {
        through(d, "shrink_row(my_row, shrink)")
            + &format!(
                " c{d} = coopLoadT<coop_mat16x16<f32, C>>(&scores[my_scores], {}u); workgroupBarrier();",
                SCORES / 4
            )
    });
    let write =
        each(tiles, |d| through(d, &format!("write_row(my_row, out_at + {}u, 1.0 / total, wanted)", d * 16)));
    format!(
        "
@compute @workgroup_size({THREADS})
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
    for (var i = t; i < {BLOCK_ROWS}u * DIM / 4u; i += {THREADS}u) {{
        let r = i / (DIM / 4u);
        var q = vec4<f32>();
        if (r < block.count) {{
            let at = place.query + (block.first + r) * place.query_stride + group.x * DIM + i % (DIM / 4u) * 4u;
            q = vec4<f32>(x[at], x[at + 1u], x[at + 2u], x[at + 3u]);
        }}
        tile[r * PITCH / 4u + i % (DIM / 4u)] = vec4<f16>(q * SCALE);
    }}
    if (t < 3u) {{ growing[t] = 0u; }}
    {first_keys}
    {first_values}
    workgroupBarrier();
    {queries}
    {declare}
    workgroupBarrier();
    // This thread's row of the subgroup's, of which it has every second four numbers.
    let mine = subgroup * 16u + thread / 2u;
    let half = thread % 2u;
    let sees = min(row.position + mine, last);
    let my_scores = subgroup * 16u * {pitch}u;
    let my_row = mine * {pitch}u + half;
    var most = -1e38;
    var total = 0.0;
    var round = 0u;
    for (var start = 0u; start <= last; start += {STEP_POSITIONS}u) {{
        {put_keys}
        {put_values}
        workgroupBarrier();
        let next = min(start + {STEP_POSITIONS}u, last);
        {next_keys}
        {next_values}
        var s0 = coop_mat16x16<f32, C>();
        var s1 = coop_mat16x16<f32, C>();
{scores}
        workgroupBarrier();
{weights}
        if (some != 0u) {{
        {shrink}
        }}
        let w0 = coopLoadT<coop_mat16x16<f16, A>>(&weights[subgroup * 16u * {positions}u], {positions}u);
        let w1 = coopLoadT<coop_mat16x16<f16, A>>(&weights[subgroup * 16u * {positions}u + 4u], {positions}u);
{values}
        workgroupBarrier();
        round += 1u;
    }}
    total += subgroupShuffleXor(total, 1u);
    let wanted = mine < block.count;
    let out_at = place.context + (block.first + mine) * place.context_stride + group.x * DIM + half * 4u;
    {write}
}}
",
        pitch = SCORES / 4,
        positions = POSITIONS / 4,
        scores = scores_text(tiles),
        weights = weights_text(),
        values = values_text(tiles),
    )
}
