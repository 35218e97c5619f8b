//! Which experts a row goes through, and which rows an expert has.
//!
//! Both kernels compare and count whole numbers, so their results don't depend on how the work is divided.

use crate::gpu::kernel::{Access, Kernel};

/// A choice of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopK {
    /// Experts of the layer, 1 to 1024.
    pub experts: usize,
    /// Experts of a row, at most 64 and at most `experts`.
    pub used: usize,
    /// Weights are divided by their sum.
    pub normalised: bool,
}

/// Softmax over a row's logits, then the `used` largest in ascending order of expert; of equal ones the lower index. A NaN
/// among the logits, or an infinity as the largest, makes all weights of the row NaN.
///
/// | binding | what |
/// |---|---|
/// | logits | f32 `[rows, experts]` |
/// | ids | written: u32 `[rows, used]` |
/// | weights | written: f32 `[rows, used]` |
///
/// The grid is (rows, 1, 1); there are no immediates.
pub fn top_k(what: &TopK) -> Kernel {
    let TopK { experts, used, normalised } = *what;
    let threads = experts.next_power_of_two().clamp(32, 256);
    let source = format!(
        "@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> ids: array<u32>;
@group(0) @binding(2) var<storage, read_write> weights: array<f32>;
const EXPERTS = {experts}u;
const FOURS = {fours}u;
const USED = {used}u;
const THREADS = {threads}u;
var<workgroup> keys: array<vec4<u32>, FOURS>;
var<workgroup> taken: array<u32, EXPERTS>;
var<workgroup> most: array<u32, THREADS>;
var<workgroup> sums: array<f32, THREADS>;
var<workgroup> picked: array<f32, USED>;
// Whole numbers in the order of the floats, zeros alike; a NaN is above all.
fn key(value: f32) -> u32 {{
    let b = bitcast<u32>(value);
    if (b & 0x7fffffffu) > 0x7f800000u {{ return 0xffffffffu; }}
    if b == 0x80000000u {{ return 0x80000000u; }}
    return select(b | 0x80000000u, ~b, (b >> 31u) == 1u);
}}
fn value(key: u32) -> f32 {{ return bitcast<f32>(select(~key, key & 0x7fffffffu, (key >> 31u) == 1u)); }}
@compute @workgroup_size({threads})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {{
    let row = group.x;
    var not_a_number = 0x7fc00000u;
    var high = 0u;
    for (var e = t; e < FOURS * 4u; e += THREADS) {{
        var k = 0u;
        if e < EXPERTS {{ k = key(logits[row * EXPERTS + e]); }}
        keys[e / 4u][e % 4u] = k;
        high = max(high, k);
    }}
    most[t] = high;
    for (var half = THREADS / 2u; half > 0u; half >>= 1u) {{
        workgroupBarrier();
        if t < half {{ most[t] = max(most[t], most[t + half]); }}
    }}
    workgroupBarrier();
    let top = most[0];
    let spoilt = top >= 0xff800000u || top <= 0x007fffffu;
    let largest = value(top);

    var sum = 0.0;
    for (var e = t; e < EXPERTS; e += THREADS) {{
        let k = keys[e / 4u][e % 4u];
        sum += exp(value(k) - largest);
        // How many stand before it.
        var before = vec4<u32>();
        for (var j = 0u; j < FOURS; j++) {{
            let other = keys[j];
            let index = vec4<u32>(j * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
            let tie = (other == vec4<u32>(k)) & (index < vec4<u32>(e));
            before += select(vec4<u32>(), vec4<u32>(1u), (other > vec4<u32>(k)) | tie);
        }}
        taken[e] = select(0u, 1u, before.x + before.y + before.z + before.w < USED);
    }}
    sums[t] = sum;
    for (var half = THREADS / 2u; half > 0u; half >>= 1u) {{
        workgroupBarrier();
        if t < half {{ sums[t] = sums[t] + sums[t + half]; }}
    }}
    workgroupBarrier();
    for (var e = t; e < EXPERTS; e += THREADS) {{
        if taken[e] == 1u {{
            var place = 0u;
            for (var j = 0u; j < e; j++) {{ place += taken[j]; }}
            ids[row * USED + place] = e;
            let weight = exp(value(keys[e / 4u][e % 4u]) - largest) / sums[0];
            picked[place] = select(weight, bitcast<f32>(not_a_number), spoilt);
        }}
    }}
    workgroupBarrier();
    for (var i = t; i < USED; i += THREADS) {{
        var all = 0.0;
        for (var j = 0u; j < USED; j++) {{ all += picked[j]; }}
        weights[row * USED + i] = {weight};
    }}
}}
",
        fours = experts.div_ceil(4),
        weight = if normalised { "picked[i] / all" } else { "picked[i]" },
    );
    let name = format!("top-{used}-of-{experts}{}", if normalised { "-normalised" } else { "" });
    Kernel { name, source, bindings: vec![Access::Read, Access::Write, Access::Write], immediates: 0 }
}

/// Scalars of [`group_rows`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupScalars {
    /// Entries in `ids`: rows x used.
    pub entries: u32,
    /// Places from one expert's list to the next: at least as many as there are rows.
    pub stride: u32,
}

impl GroupScalars {
    /// As the kernel reads them.
    pub fn bytes(&self) -> Vec<u8> {
        [self.entries, self.stride].iter().flat_map(|scalar| scalar.to_le_bytes()).collect()
    }
}

/// For each expert its entries in ascending order. An entry is an index into `ids`: row x used + slot.
///
/// | binding | what |
/// |---|---|
/// | ids | u32 `[entries]`, no expert twice in a row |
/// | lists | written: u32 `[experts, stride]`, as many of each as there are |
/// | counts | written: u32 `[experts]` |
///
/// The grid is (experts, 1, 1); immediates are [`GroupScalars`].
pub fn group_rows() -> Kernel {
    let source = "@group(0) @binding(0) var<storage, read> ids: array<u32>;
@group(0) @binding(1) var<storage, read_write> lists: array<u32>;
@group(0) @binding(2) var<storage, read_write> counts: array<u32>;
struct Scalars { entries: u32, stride: u32 }
var<immediate> scalars: Scalars;
const THREADS = 256u;
var<workgroup> found: array<u32, THREADS>;
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let expert = group.x;
    // Each thread looks at a part of its own; then it knows how many were found before that part.
    let part = (scalars.entries + THREADS - 1u) / THREADS;
    let begin = min(t * part, scalars.entries);
    let end = min(begin + part, scalars.entries);
    var mine = 0u;
    for (var i = begin; i < end; i++) { mine += select(0u, 1u, ids[i] == expert); }
    found[t] = mine;
    var total = mine;
    for (var step = 1u; step < THREADS; step <<= 1u) {
        workgroupBarrier();
        var before = 0u;
        if t >= step { before = found[t - step]; }
        workgroupBarrier();
        total += before;
        found[t] = total;
    }
    var place = expert * scalars.stride + total - mine;
    for (var i = begin; i < end; i++) {
        if ids[i] == expert { lists[place] = i; place += 1u; }
    }
    if t == THREADS - 1u { counts[expert] = total; }
}
";
    let bindings = vec![Access::Read, Access::Write, Access::Write];
    Kernel { name: "group-rows".into(), source: source.into(), bindings, immediates: 8 }
}
