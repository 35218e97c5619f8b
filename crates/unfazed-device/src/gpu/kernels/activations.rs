//! Rows of activations on their way into products: RMS norm, rounding to int8, both in workgroup memory.
//!
//! The text has these functions, which all threads of a workgroup call together; `first` is the first of `rows` rows, and `t` the
//! thread. A barrier must follow before what they leave is read, and go before they are called again.
//!
//! ```text
//! fn norm_rows(t, first, rows)                     leaves the norms' factors (it has its own barriers)
//! fn stage_int8(t, first, rows, start, columns)    leaves columns `start..start + columns` as int8, with scales and sums
//! fn stage_floats(t, first, rows, start, columns)  leaves them as f32
//!
//! var<workgroup> staged: array<vec4<u32>, 512>     [rows][columns / 16] int8, or [rows][columns / 4] f32
//! var<workgroup> metas: array<vec2<u32>, 256>      [rows][columns / 32] scale (f32); sum, or sums of both halves in 16 bits each
//! ```
//!
//! The rounding is the CPU's: one scale for 32 or 256 columns, the largest magnitude over 127, half to even; a block that has an
//! infinity or a NaN has a NaN for scale, and one without any magnitude of at least 1e-30 is zero.
//!
//! A thread has 16 columns. What a block shares goes through subgroups where they are large enough, else through workgroup memory.

use unfazed_kernels::activations::Grain;

use crate::gpu::Abilities;

/// Int8 that `staged` holds.
pub(super) const STAGED_INT8: usize = 8192;

/// f32 that `staged` holds.
pub(super) const STAGED_FLOATS: usize = STAGED_INT8 / 4;

/// Sums of threads that `parts` holds.
pub(super) const PARTS: usize = 1024;

/// Where activations come from, and what becomes of them.
pub(super) struct Activations {
    /// Of a row.
    pub(super) columns: usize,
    /// Threads of the workgroup.
    pub(super) threads: usize,
    /// Epsilon of the RMS norm whose weights are `norm: array<vec4<f32>>`.
    pub(super) norm: Option<f32>,
    /// Into what they are rounded; each of these once.
    pub(super) grains: Vec<Grain>,
    /// Whether sums of 16 columns are wanted.
    pub(super) halves: bool,
}

impl Activations {
    /// The text. It refers to `x: array<vec4<f32>>`, to `fn row_start(row: u32) -> u32`, the place in `x` of a row, and to
    /// `fn share(row: u32, column: u32) -> f32`, which the scale of a block is multiplied by.
    pub(super) fn wgsl(&self, abilities: &Abilities) -> String {
        let int8 = self.grains.iter().filter_map(|grain| grain.block());
        let subgroup = abilities.subgroup.map_or(1, |size| size as usize).min(self.threads);
        let mut text = format!(
            "
var<workgroup> staged: array<vec4<u32>, {}>;
var<workgroup> metas: array<vec2<u32>, {}>;
var<workgroup> parts: array<f32, {PARTS}>;
var<workgroup> factors: array<f32, 8>;
{}",
            STAGED_INT8 / 16,
            STAGED_INT8 / 32,
            ROUNDING
        );
        text += &self.value_text();
        if let Some(epsilon) = self.norm {
            text += &self.norm_text(epsilon, subgroup);
        }
        let mut tops = false;
        for block in int8 {
            if subgroup * 16 >= block {
                text += &self.shuffled_text(block);
            } else {
                tops = true;
                text += &self.shared_text(block);
            }
        }
        if tops {
            text += &format!("var<workgroup> tops: array<u32, {}>;\n", STAGED_INT8 / 16);
        }
        if self.grains.contains(&Grain::Float) {
            text += &FLOATS.replace("THREADS", &format!("{}u", self.threads));
        }
        text
    }

    /// Four columns of a row, place `i` in it, of which `r` is the number among the rows that are staged together.
    fn value_text(&self) -> String {
        let value = match self.norm {
            Some(_) => "x[start + i] * factors[r] * norm[i]",
            None => "x[start + i]",
        };
        format!("fn activation(start: u32, r: u32, i: u32) -> vec4<f32> {{ return {value}; }}\n")
    }

    fn norm_text(&self, epsilon: f32, subgroup: usize) -> String {
        let (threads, columns) = (self.threads, self.columns);
        let sum_up = if subgroup >= 4 {
            let mut text = String::new();
            let mut distance = 1;
            while distance < subgroup {
                text += &format!("        sum += subgroupShuffleXor(sum, {distance}u);\n");
                distance *= 2;
            }
            let each = threads / subgroup;
            format!(
                "{text}        if (t % {subgroup}u == 0u) {{ parts[r * {each}u + t / {subgroup}u] = sum; }}
    }}
    workgroupBarrier();
    if (t < rows) {{
        var sum = 0.0;
        for (var i = 0u; i < {each}u; i++) {{ sum += parts[t * {each}u + i]; }}
        factors[t] = inverseSqrt(sum / {columns}.0 + {epsilon:?});"
            )
        } else {
            format!(
                "        parts[t] = sum;
        workgroupBarrier();
        var again = 0.0;
        if (t < 16u) {{ for (var i = t; i < {threads}u; i += 16u) {{ again += parts[i]; }} }}
        workgroupBarrier();
        if (t < 16u) {{ parts[t] = again; }}
        workgroupBarrier();
        if (t == 0u) {{
            var all = 0.0;
            for (var i = 0u; i < 16u; i++) {{ all += parts[i]; }}
            factors[r] = inverseSqrt(all / {columns}.0 + {epsilon:?});
        }}
        workgroupBarrier();"
            )
        };
        format!(
            "
fn norm_rows(t: u32, first: u32, rows: u32) {{
    for (var r = 0u; r < rows; r++) {{
        let start = row_start(first + r);
        var sum = 0.0;
        for (var i = t; i < {quads}u; i += {threads}u) {{
            let v = x[start + i];
            sum = fma(v.x, v.x, sum);
            sum = fma(v.y, v.y, sum);
            sum = fma(v.z, v.z, sum);
            sum = fma(v.w, v.w, sum);
        }}
{sum_up}
    }}
    workgroupBarrier();
}}
",
            quads = columns / 4
        )
    }

    /// The sum of 32 columns, or both sums of 16.
    fn sums(&self) -> &'static str {
        if self.halves { "bitcast<u32>((a & 0xffff) | (b << 16u))" } else { "bitcast<u32>(a + b)" }
    }

    /// A block's threads are in one subgroup.
    fn shuffled_text(&self, block: usize) -> String {
        let mut largest = String::new();
        let mut distance = 1;
        while distance * 16 < block {
            largest += &format!("        top = max(top, subgroupShuffleXor(top, {distance}u));\n");
            distance *= 2;
        }
        format!(
            "
fn stage_int8_{block}(t: u32, first: u32, rows: u32, start: u32, columns: u32) {{
    let each = columns / 16u;
    for (var i = t; i < rows * each; i += {threads}u) {{
        let r = i / each;
        let at = start / 4u + (i - r * each) * 4u;
        let row = row_start(first + r);
        let v = Sixteen(activation(row, r, at), activation(row, r, at + 1u), activation(row, r, at + 2u),
            activation(row, r, at + 3u));
        var top = top_of(v);
{largest}        let quants = rounded(v, top);
        staged[i] = quants;
        let a = sum_of(quants);
        let b = subgroupShuffleXor(a, 1u);
        if ((t & 1u) == 0u) {{
            metas[i / 2u] = vec2<u32>(scale_of(top, share(first + r, at * 4u)), {sums});
        }}
    }}
}}
",
            threads = self.threads,
            sums = self.sums()
        )
    }

    /// Through workgroup memory.
    fn shared_text(&self, block: usize) -> String {
        let shared = block / 16;
        format!(
            "
fn top_of_block_{block}(i: u32) -> u32 {{
    let first = i / {shared}u * {shared}u;
    var top = 0u;
    for (var j = 0u; j < {shared}u; j++) {{ top = max(top, tops[first + j]); }}
    return top;
}}
fn stage_int8_{block}(t: u32, first: u32, rows: u32, start: u32, columns: u32) {{
    let each = columns / 16u;
    for (var i = t; i < rows * each; i += {threads}u) {{
        let r = i / each;
        let at = start / 4u + (i - r * each) * 4u;
        let row = row_start(first + r);
        tops[i] = top_of(Sixteen(activation(row, r, at), activation(row, r, at + 1u), activation(row, r, at + 2u),
            activation(row, r, at + 3u)));
    }}
    workgroupBarrier();
    for (var i = t; i < rows * each; i += {threads}u) {{
        let r = i / each;
        let at = start / 4u + (i - r * each) * 4u;
        let row = row_start(first + r);
        let v = Sixteen(activation(row, r, at), activation(row, r, at + 1u), activation(row, r, at + 2u),
            activation(row, r, at + 3u));
        staged[i] = rounded(v, top_of_block_{block}(i));
    }}
    workgroupBarrier();
    for (var i = t; i < rows * each / 2u; i += {threads}u) {{
        let r = i * 2u / each;
        let column = start + (i * 2u - r * each) * 16u;
        let a = sum_of(staged[i * 2u]);
        let b = sum_of(staged[i * 2u + 1u]);
        metas[i] = vec2<u32>(scale_of(top_of_block_{block}(i * 2u), share(first + r, column)), {sums});
    }}
}}
",
            threads = self.threads,
            sums = self.sums()
        )
    }
}

/// Magnitudes are compared by their bits, in which infinities and NaNs are above all numbers.
const ROUNDING: &str = "
struct Sixteen { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32> }
fn top_of(v: Sixteen) -> u32 {
    let all = max(max(bitcast<vec4<u32>>(abs(v.a)), bitcast<vec4<u32>>(abs(v.b))),
        max(bitcast<vec4<u32>>(abs(v.c)), bitcast<vec4<u32>>(abs(v.d))));
    return max(max(all.x, all.y), max(all.z, all.w));
}
fn is_zero(top: u32) -> bool { return bitcast<f32>(top) < 1e-30; }
fn scale_of(top: u32, share: f32) -> u32 {
    let scale = bitcast<u32>(bitcast<f32>(top) / 127.0 * share);
    return select(select(scale, 0u, is_zero(top)), 0x7fc00000u, top >= 0x7f800000u);
}
fn rounded_four(v: vec4<f32>, inverse: f32) -> u32 {
    let q = bitcast<vec4<u32>>(fma(v, vec4<f32>(inverse), vec4<f32>(12582912.0)));
    return (q.x & 255u) | ((q.y & 255u) << 8u) | ((q.z & 255u) << 16u) | (q.w << 24u);
}
fn rounded(v: Sixteen, top: u32) -> vec4<u32> {
    let inverse = select(127.0 / bitcast<f32>(top), 0.0, is_zero(top) || top >= 0x7f800000u);
    return vec4<u32>(rounded_four(v.a, inverse), rounded_four(v.b, inverse), rounded_four(v.c, inverse),
        rounded_four(v.d, inverse));
}
fn sum_of(q: vec4<u32>) -> i32 {
    return dot4I8Packed(q.x, 0x01010101u) + dot4I8Packed(q.y, 0x01010101u) + dot4I8Packed(q.z, 0x01010101u)
        + dot4I8Packed(q.w, 0x01010101u);
}
";

const FLOATS: &str = "
fn stage_floats(t: u32, first: u32, rows: u32, start: u32, columns: u32) {
    let each = columns / 4u;
    for (var i = t; i < rows * each; i += THREADS) {
        let r = i / each;
        let at = start / 4u + i - r * each;
        let v = activation(row_start(first + r), r, at) * share(first + r, at * 4u);
        staged[i] = bitcast<vec4<u32>>(v);
    }
}
";
