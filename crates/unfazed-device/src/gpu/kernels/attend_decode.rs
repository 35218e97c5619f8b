//! Attention of few rows, each for itself: decode mode.
//!
//! Positions are taken in segments of 128, counted from position 0. A workgroup has a row, some query heads that share a key
//! head, and a segment: so a short context is one round of short steps, and a long one is spread over the device. If any row
//! has more than one segment, workgroups leave parts of softmaxes behind, and `merge` joins those of a row in order. The order
//! of all additions depends on nothing but a row's own position.

use unfazed_kernels::LANES;

use super::super::kernel::{Access, Kernel};
use super::kv::KvText;
use super::step::STEP;

/// Positions in a segment.
pub const SEGMENT: usize = 128;

/// Threads of a workgroup.
const THREADS: usize = 256;
/// Most query heads of a workgroup: their sums share 16 KiB.
const HEADS_AT_ONCE: usize = 4;

/// Attention of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttendDecode {
    /// Query heads, a multiple of the key heads.
    pub heads: usize,
    /// Keys and values.
    pub kv: KvText,
}

/// The immediates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodePlace {
    /// Where in the buffer of activations the first row's query is, `[heads * head_dim]`, in f32s.
    pub query: u32,
    /// From a row's query to the next one's; the same for where contexts go.
    pub query_stride: u32,
    /// Where in its buffer the first row's context goes.
    pub context: u32,
    /// From a row's context to the next one's.
    pub context_stride: u32,
    /// Segments that the longest row has ([`AttendDecode::segments`]).
    pub segments: u32,
    /// The first row that is meant; parts are those of the rows from it on.
    pub first: u32,
}

impl DecodePlace {
    /// As the kernels read it.
    pub fn bytes(&self) -> [u8; 24] {
        let DecodePlace { query, query_stride, context, context_stride, segments, first } = *self;
        bytemuck::cast([query, query_stride, context, context_stride, segments, first])
    }
}

impl AttendDecode {
    /// Segments of a row that sees so many positions.
    pub fn segments(&self, positions: u32) -> u32 {
        positions.div_ceil(SEGMENT as u32)
    }

    /// f32s of the parts of so many rows, each of up to so many segments. One segment needs none.
    pub fn part_len(&self, rows: usize, segments: usize) -> usize {
        if segments > 1 { rows * self.heads * segments * self.part() } else { 0 }
    }

    /// Numbers of a part: weighted values, the largest score, the sum of exponentials, and room.
    fn part(&self) -> usize {
        self.kv.head_dim + 4
    }

    /// Heads of a workgroup: as many as divide those that share a key head.
    fn at_once(&self) -> usize {
        let group = self.heads / self.kv.kv_heads;
        (1..=HEADS_AT_ONCE).rev().find(|n| group.is_multiple_of(*n)).unwrap_or(1)
    }

    /// The kernel. Bindings: the step, activations (queries are read), the layer's keys and values twice, contexts (written, if
    /// `segments` is 1), parts (written otherwise, [`AttendDecode::part_len`]; else anything). Immediates: [`DecodePlace`].
    /// Grid: [`AttendDecode::grid`].
    pub fn kernel(&self) -> Kernel {
        let AttendDecode { heads, kv } = self;
        let mut bindings = vec![Access::Read, Access::Read];
        bindings.extend(KvText::READERS);
        bindings.extend([Access::Write, Access::Write]);
        let scale = std::f64::consts::LOG2_E / (kv.head_dim as f64).sqrt();
        let constants = format!(
            "
const HEADS = {heads}u;
const GROUP = {group}u;
const AT_ONCE = {at_once}u;
const PART = {part}u;
// Threads that share a quad of dimensions of the values.
const SHARES = {shares}u;
const SCALE = {scale:e}f;
",
            group = heads / kv.kv_heads,
            at_once = self.at_once(),
            part = self.part(),
            shares = shares(kv.head_dim),
        );
        let source = [
            PLACE,
            BINDINGS,
            &kv.readers(2),
            STEP,
            &kv.places(),
            &constants,
            &attend_text(kv.head_dim, self.at_once()),
        ]
        .concat();
        Kernel { name: format!("attend decode {heads} {}", kv.name()), source, bindings, immediates: 24 }
    }

    /// Workgroups for so many rows, the longest of so many segments.
    pub fn grid(&self, rows: u32, segments: u32) -> [u32; 3] {
        [segments, (self.heads / self.at_once()) as u32, rows]
    }

    /// The kernel that joins the parts of each row, in order. Bindings: the step, parts, contexts (written). Immediates:
    /// [`DecodePlace`]. Grid: query heads, rows.
    pub fn merge(&self) -> Kernel {
        let AttendDecode { heads, kv } = self;
        let constants = format!(
            "
const DIM = {dim}u;
const HEADS = {heads}u;
const PART = {part}u;
const LANES = {lanes}u;
",
            dim = kv.head_dim,
            part = self.part(),
            lanes = shares(kv.head_dim),
        );
        Kernel {
            name: format!("attend merge {heads}x{}", kv.head_dim),
            source: [PLACE, MERGE_BINDINGS, STEP, &constants, MERGE].concat(),
            bindings: vec![Access::Read, Access::Read, Access::Write],
            immediates: 24,
        }
    }
}

/// Threads that share four dimensions.
fn shares(head_dim: usize) -> usize {
    THREADS / (head_dim / 4)
}

/// One text for each of so many.
fn lines(count: usize, text: &dyn Fn(usize) -> String) -> String {
    (0..count).map(text).collect::<Vec<_>>().join("\n            ")
}

const PLACE: &str = "
struct Place { query: u32, query_stride: u32, context: u32, context_stride: u32, segments: u32, first: u32 }
var<immediate> place: Place;
";

const BINDINGS: &str = "
@group(0) @binding(0) var<storage, read> step: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(4) var<storage, read_write> context: array<f32>;
@group(0) @binding(5) var<storage, read_write> parts: array<vec4<f32>>;
";

/// A thread scores four positions in an eighth of the dimensions, then adds up four dimensions of the values at every
/// `SHARES`th four positions. `sums` holds what threads have of both, `[thread's share][head][...]`. Loops have as many rounds as
/// compilers know, and loads do not wait for conditions: positions that the row does not see have a weight of zero, and are
/// read as the last one that it sees.
fn attend_text(head_dim: usize, at_once: usize) -> String {
    let each = |text: &dyn Fn(usize) -> String| lines(at_once, text);
    let declare = |name: &str| each(&|h| format!("var {name}{h} = vec4<f32>(0.0);"));
    // The queries of all heads at a dimension are a vector.
    let vector = ["f32", "vec2<f32>", "vec3<f32>", "vec4<f32>"][at_once - 1];
    let part = |h: usize| if at_once > 1 { [".x", ".y", ".z", ".w"][h] } else { "" };
    // Loads of several rounds come before what is made of them, or each round would wait for its own.
    let rounds = head_dim / LANES;
    let key_loads = (1..=8).rev().find(|n| rounds.is_multiple_of(*n)).unwrap_or(1);
    let pairs = lines(key_loads, &|i| {
        format!(
            "let p{i} = share + 8u * (i + {i}u); let pair{i} = key_pair(block + in_page * KEY_PANEL, p{i}, t % 4u);"
        )
    });
    let scores = lines(key_loads, &|i| {
        let add = |h| format!("score{h} += pair{i}.a * q0_{i}{c} + pair{i}.b * q1_{i}{c};", c = part(h));
        format!("let q0_{i} = queries[2u * p{i}]; let q1_{i} = queries[2u * p{i} + 1u]; {}", each(&add))
    });
    // The same for values, four positions a round: their weights for a head are side by side.
    let rounds = 32usize.div_ceil(shares(head_dim));
    let value_loads = rounds.min(4);
    let values = lines(value_loads, &|i| {
        let value = |j| {
            format!("let v{i}_{j} = value_quad(panel{i}, min(four{i} * 4u + {j}u, seen - 1u) % 16u, quad);")
        };
        format!(
            "let four{i} = first + (i + {i}u) * SHARES;
            let panel{i} = panels[min(four{i}, (seen - 1u) / 4u) / 4u];
            {}",
            lines(4, &value)
        )
    });
    let sums = lines(value_loads, &|i| {
        let add = |h: usize| {
            let parts = ["x", "y", "z", "w"].into_iter().enumerate();
            let parts: String = parts.map(|(j, c)| format!("sum{h} += v{i}_{j} * w{i}_{h}.{c}; ")).collect();
            format!(
                "let w{i}_{h} = weights[{h}u * 32u + min(four{i}, 31u)] * weight{i}; {parts} total{h} += w{i}_{h};"
            )
        };
        // Rounds beyond the segment weigh nothing.
        format!("let weight{i} = select(0.0, 1.0, four{i} < 32u); {}", each(&add))
    });
    let declare_totals = declare("total");
    let keep_totals = each(&|h| {
        format!("totals[first * AT_ONCE + {h}u] = (total{h}.x + total{h}.y) + (total{h}.z + total{h}.w);")
    });
    let heads_of = (0..at_once).map(|h| format!("x[query + {h}u * DIM + i]")).collect::<Vec<_>>().join(", ");
    let keep = |name: &str, share: &str, len: &str, place: &str| {
        each(&|h| format!("sums[({share} * AT_ONCE + {h}u) * {len} + {place}] = {name}{h};"))
    };
    format!(
        "
var<workgroup> queries: array<{vector}, DIM>;
var<workgroup> sums: array<vec4<f32>, 256u * AT_ONCE>;
var<workgroup> weights: array<vec4<f32>, 32u * AT_ONCE>;
var<workgroup> largest: array<f32, 32u * AT_ONCE>;
var<workgroup> peaks: array<f32, AT_ONCE>;
var<workgroup> totals: array<f32, SHARES * AT_ONCE>;
var<workgroup> panels: array<u32, 8>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {{
    let row = step_row(place.first + group.z);
    let start = group.x * 128u;
    if (start > row.position) {{ return; }}
    // Positions of the segment that the row sees.
    let seen = min(row.position + 1u - start, 128u);
    let head = group.y * AT_ONCE;
    let kv_head = head / GROUP;
    let share = t / 4u % 8u;
    let mine = t / 32u;
    let position = start + min(mine * 16u, seen - 1u);
    let block = block_at(step[row.pages + position / PAGE_TOKENS], kv_head);
    let in_page = position % PAGE_TOKENS / 16u;
    if (t % 32u == 0u) {{ panels[mine] = block + VALUES + in_page * VALUE_PANEL; }}
    let query = place.query + (place.first + group.z) * place.query_stride + head * DIM;
    for (var i = t; i < DIM; i += 256u) {{ queries[i] = {vector}({heads_of}) * SCALE; }}
    workgroupBarrier();
    {{
        {declare_scores}
        for (var i = 0u; i < DIM / 16u; i += {key_loads}u) {{
            {pairs}
            {scores}
        }}
        let quad = mine * 4u + t % 4u;
        {keep_scores}
    }}
    workgroupBarrier();

    // From here to the weights a thread has four positions of one head.
    let four = vec4<u32>(t % 32u * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
    var score = vec4<f32>(0.0);
    if (t < 32u * AT_ONCE) {{
        for (var s = 0u; s < 8u; s++) {{ score += sums[s * 32u * AT_ONCE + t]; }}
        score = select(vec4<f32>(-1e38), score, four < vec4<u32>(seen));
        largest[t] = max(max(score.x, score.y), max(score.z, score.w));
    }}
    workgroupBarrier();
    if (t < 32u * AT_ONCE) {{
        var most = -1e38;
        for (var i = 0u; i < 32u; i++) {{ most = max(most, largest[t / 32u * 32u + i]); }}
        let w = select(vec4<f32>(0.0), exp2(score - most), four < vec4<u32>(seen));
        weights[t] = w;
        if (t % 32u == 0u) {{ peaks[t / 32u] = most; }}
    }}
    workgroupBarrier();

    let first = t / (DIM / 4u);
    if (first < SHARES) {{
        {declare_sums}
        {declare_totals}
        let quad = t % (DIM / 4u);
        for (var i = 0u; i < (31u + SHARES) / SHARES; i += {value_loads}u) {{
            {values}
            {sums}
        }}
        {keep_sums}
        if (quad == 0u) {{ {keep_totals} }}
    }}
    workgroupBarrier();

    for (var i = t; i < AT_ONCE * (DIM / 4u); i += 256u) {{
        let h = i / (DIM / 4u);
        var sum = vec4<f32>(0.0);
        var total = 0.0;
        for (var s = 0u; s < SHARES; s++) {{
            sum += sums[s * AT_ONCE * (DIM / 4u) + i];
            total += totals[s * AT_ONCE + h];
        }}
        let d = i % (DIM / 4u);
        if (place.segments == 1u) {{
            let at = place.context + (place.first + group.z) * place.context_stride + (head + h) * DIM + d * 4u;
            let c = sum / total;
            context[at] = c.x;
            context[at + 1u] = c.y;
            context[at + 2u] = c.z;
            context[at + 3u] = c.w;
        }} else {{
            let at = ((group.z * HEADS + head + h) * place.segments + group.x) * (PART / 4u);
            parts[at + d] = sum;
            if (d == 0u) {{ parts[at + DIM / 4u] = vec4<f32>(peaks[h], total, 0.0, 0.0); }}
        }}
    }}
}}
",
        declare_scores = declare("score"),
        keep_scores = keep("score", "share", "32u", "quad"),
        declare_sums = declare("sum"),
        keep_sums = keep("sum", "first", "(DIM / 4u)", "quad"),
    )
}

const MERGE_BINDINGS: &str = "
@group(0) @binding(0) var<storage, read> step: array<u32>;
@group(0) @binding(1) var<storage, read> parts: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> context: array<f32>;
";

/// A thread has four dimensions and every `LANES`th segment. A single segment comes out as if it had not been left as a part.
const MERGE: &str = "
var<workgroup> sums: array<vec4<f32>, 256>;
var<workgroup> totals: array<f32, LANES>;
var<workgroup> largest: array<f32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let segments = step_row(place.first + group.y).position / 128u + 1u;
    let base = (group.y * HEADS + group.x) * place.segments * (PART / 4u);
    var most = -1e38;
    for (var s = t; s < segments; s += 256u) { most = max(most, parts[base + s * (PART / 4u) + DIM / 4u].x); }
    largest[t] = most;
    workgroupBarrier();
    for (var i = 0u; i < min(segments, 256u); i++) { most = max(most, largest[i]); }
    let d = t % (DIM / 4u);
    let lane = t / (DIM / 4u);
    if (lane < LANES) {
        var sum = vec4<f32>(0.0);
        var total = 0.0;
        for (var s = lane; s < segments; s += LANES) {
            let at = base + s * (PART / 4u);
            let state = parts[at + DIM / 4u];
            let weight = exp2(state.x - most);
            sum += parts[at + d] * weight;
            total += state.y * weight;
        }
        sums[t] = sum;
        if (d == 0u) { totals[lane] = total; }
    }
    workgroupBarrier();
    if (t < DIM / 4u) {
        var sum = vec4<f32>(0.0);
        var total = 0.0;
        for (var i = 0u; i < LANES; i++) {
            sum += sums[i * (DIM / 4u) + t];
            total += totals[i];
        }
        let c = sum / total;
        let at = place.context + (place.first + group.y) * place.context_stride + group.x * DIM + t * 4u;
        for (var j = 0u; j < 4u; j++) { context[at + j] = c[j]; }
    }
}
";
