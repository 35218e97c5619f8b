//! Rows of activations in the form that a matrix product takes, with the RMS norm before it.
//!
//! One workgroup a row, the same for one row and for thousands, so a row's bits depend on the row alone.
//!
//! Bindings, in this order; those in brackets only if they are asked for:
//!
//! | binding | what |
//! |---|---|
//! | rows | f32 `[any, columns]` |
//! | [weight] | f32 `[columns]` of the norm |
//! | [list] | u32 `[rows]`: which row of the table above each row is |
//! | [floats] | written: f32 `[rows, columns]`, after the norm |
//! | [quants, scales, sums] | written: int8 `[rows, columns]`; f32 `[rows, columns / grain]`; i32 `[rows, columns / 16]` |
//! | [halves, peaks] | written: f16 `[rows, columns]`, and f32 `[rows]` that a row is multiplied by |
//!
//! Halves times the row's peak are quants times scales (or the floats, if nothing is rounded to int8). A peak is a power of two,
//! such that no magnitude overflows in f16.

use unfazed_kernels::activations::Grain;

use crate::gpu::kernel::{Access, Kernel};

/// What is made of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantise {
    /// Columns of a row, a multiple of 32, and of the grain.
    pub columns: usize,
    /// How many activations share a scale. [`Grain::Float`] rounds nothing: then there are no quants.
    pub grain: Grain,
    /// RMS norm first.
    pub norm: bool,
    /// Rows are named by a list.
    pub listed: bool,
    /// Write the rows after the norm.
    pub floats: bool,
    /// Write int8, scales and sums.
    pub integers: bool,
    /// Write f16 and peaks.
    pub halves: bool,
}

/// Scalars of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantiseScalars {
    /// Rows that are made.
    pub rows: u32,
    /// Added to the mean of squares.
    pub epsilon: f32,
}

impl QuantiseScalars {
    /// As the kernel reads them.
    pub fn bytes(&self) -> Vec<u8> {
        [self.rows.to_le_bytes(), self.epsilon.to_le_bytes()].concat()
    }

    /// Workgroups: a direction has at most 65,535.
    pub fn grid(&self) -> [u32; 3] {
        [self.rows.min(ROW_OF_GROUPS), self.rows.div_ceil(ROW_OF_GROUPS), 1]
    }
}

/// Workgroups in the first direction.
const ROW_OF_GROUPS: u32 = 32_768;

/// Columns that a thread works on at a time.
const SEGMENT: usize = 16;

/// The kernel.
pub fn quantise(what: &Quantise) -> Kernel {
    let Quantise { columns, grain, norm, listed, floats, integers, halves } = *what;
    let threads = (columns / SEGMENT).next_power_of_two().clamp(32, 256);
    let (declared, bindings) = declarations(what);
    let source = format!(
        "{declared}
const COLUMNS = {columns}u;
const SEGMENTS = {segments}u;
const THREADS = {threads}u;
struct Scalars {{ rows: u32, epsilon: f32 }}
var<immediate> scalars: Scalars;
var<workgroup> largest: array<u32, THREADS>;
var<workgroup> squares: array<f32, THREADS>;
fn magnitude(v: vec4<f32>) -> u32 {{
    let b = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    return max(max(b.x, b.y), max(b.z, b.w));
}}
fn words(v: vec4<f32>) -> u32 {{ return pack4xI8(vec4<i32>(round(v))); }}
@compute @workgroup_size({threads})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {{
    let row = group.y * {ROW_OF_GROUPS}u + group.x;
    if row >= scalars.rows {{ return; }}
    let start = {from} * (COLUMNS / 4u);
    var factor = 1.0;
    var not_a_number = 0x7fc00000u;
{whole}
    for (var first = 0u; first < SEGMENTS; first += THREADS) {{
        let segment = first + t;
        let inside = segment < SEGMENTS;
        var v0 = vec4<f32>(); var v1 = vec4<f32>(); var v2 = vec4<f32>(); var v3 = vec4<f32>();
        if inside {{
            let at = segment * 4u;
            v0 = x[start + at]; v1 = x[start + at + 1u]; v2 = x[start + at + 2u]; v3 = x[start + at + 3u];
{normed}
        }}
        let to = row * SEGMENTS + segment;
{kept}
{blocks}
    }}
}}
",
        segments = columns / SEGMENT,
        from = if listed { "list[row]" } else { "row" },
        whole = if norm || halves { whole_row(norm, halves) } else { String::new() },
        normed = if norm { NORMED } else { "" },
        kept = if floats { KEPT } else { "" },
        blocks = blocks(what, threads),
    );
    let made = [(norm, "-norm"), (listed, "-listed"), (floats, "-f32"), (integers, "-i8"), (halves, "-f16")];
    let made: String = made.iter().filter(|made| made.0).map(|made| made.1).collect();
    let name = format!("quantise-{}{made}-{columns}", grain.block().unwrap_or(0));
    Kernel { name, source, bindings, immediates: 8 }
}

/// The variables, and how each is bound.
fn declarations(what: &Quantise) -> (String, Vec<Access>) {
    use Access::{Read, Write};
    let all = [
        (true, Read, "x", "vec4<f32>"),
        (what.norm, Read, "weight", "vec4<f32>"),
        (what.listed, Read, "list", "u32"),
        (what.floats, Write, "floats", "vec4<f32>"),
        (what.integers, Write, "quants", "vec4<u32>"),
        (what.integers, Write, "scales", "f32"),
        (what.integers, Write, "sums", "i32"),
        (what.halves, Write, "halves", "vec4<u32>"),
        (what.halves, Write, "peaks", "f32"),
    ];
    let (mut text, mut bindings) = (String::new(), Vec::new());
    for (_, access, name, element) in all.into_iter().filter(|wanted| wanted.0) {
        let mode = if access == Read { "read" } else { "read_write" };
        let binding = bindings.len();
        text += &format!("@group(0) @binding({binding}) var<storage, {mode}> {name}: array<{element}>;\n");
        bindings.push(access);
    }
    (text, bindings)
}

/// What needs the whole row: the norm's factor, and the peak.
fn whole_row(norm: bool, halves: bool) -> String {
    let weighted = if norm { "v * weight[i]" } else { "v" };
    let mut text = format!(
        "    var sum = 0.0; var most = 0u;
    for (var i = t; i < COLUMNS / 4u; i += THREADS) {{
        let v = x[start + i];
        sum = fma(v.x, v.x, fma(v.y, v.y, fma(v.z, v.z, fma(v.w, v.w, sum))));
        most = max(most, magnitude({weighted}));
    }}
    squares[t] = sum; largest[t] = most;
    for (var half = THREADS / 2u; half > 0u; half >>= 1u) {{
        workgroupBarrier();
        if t < half {{
            squares[t] = squares[t] + squares[t + half];
            largest[t] = max(largest[t], largest[t + half]);
        }}
    }}
    workgroupBarrier();
"
    );
    if norm {
        text += "    factor = 1.0 / sqrt(squares[0] / f32(COLUMNS) + scalars.epsilon);\n";
    }
    if halves {
        text += PEAK;
    }
    // What was read must not be overwritten by the blocks' magnitudes before all have read it.
    text + "    workgroupBarrier();\n"
}

/// The power of two at or below the row's largest magnitude, over 256, and one over it.
const PEAK: &str = "
    let top = bitcast<u32>(bitcast<f32>(largest[0]) * factor);
    let finite = top < 0x7f800000u && largest[0] < 0x7f800000u;
    let exponent = clamp(top & 0x7f800000u, 0x0d800000u, 0x78000000u);
    let peak = select(bitcast<f32>(not_a_number), bitcast<f32>(exponent) * 0.00390625, finite);
    let inverse_peak = bitcast<f32>(0x7f000000u - exponent) * 256.0;
    if t == 0u { peaks[row] = peak; }
";

const NORMED: &str = "            v0 = v0 * factor * weight[at]; v1 = v1 * factor * weight[at + 1u];
            v2 = v2 * factor * weight[at + 2u]; v3 = v3 * factor * weight[at + 3u];";

const KEPT: &str = "        if inside {
            let at = to * 4u;
            floats[at] = v0; floats[at + 1u] = v1; floats[at + 2u] = v2; floats[at + 3u] = v3;
        }";

/// Rounds blocks and writes them.
fn blocks(what: &Quantise, threads: usize) -> String {
    let Some(block) = what.grain.block() else {
        let pairs = "let f0 = v0 * inverse_peak; let f1 = v1 * inverse_peak;
            let f2 = v2 * inverse_peak; let f3 = v3 * inverse_peak;";
        return if what.halves {
            format!("        if inside {{ {pairs}\n{} }}", HALVES)
        } else {
            String::new()
        };
    };
    if !what.integers && !what.halves {
        return String::new();
    }
    let sharing = (block / SEGMENT).min(threads);
    let integers = format!(
        "            quants[to] = vec4<u32>(q0, q1, q2, q3);
            sums[to] = dot4I8Packed(q0, 0x01010101u) + dot4I8Packed(q1, 0x01010101u)
                + dot4I8Packed(q2, 0x01010101u) + dot4I8Packed(q3, 0x01010101u);
            if t % {sharing}u == 0u {{ scales[to / {sharing}u] = scale; }}
"
    );
    let halves = format!(
        "            let unit = scale * inverse_peak;
            let f0 = vec4<f32>(unpack4xI8(q0)) * unit; let f1 = vec4<f32>(unpack4xI8(q1)) * unit;
            let f2 = vec4<f32>(unpack4xI8(q2)) * unit; let f3 = vec4<f32>(unpack4xI8(q3)) * unit;
{HALVES}"
    );
    format!(
        "        largest[t] = max(max(magnitude(v0), magnitude(v1)), max(magnitude(v2), magnitude(v3)));
        workgroupBarrier();
        var most = 0u;
        for (var i = 0u; i < {sharing}u; i++) {{ most = max(most, largest[t / {sharing}u * {sharing}u + i]); }}
        workgroupBarrier();
        if inside {{
            // An infinity or a NaN spoils the block; without any magnitude of at least 1e-30 it is zero.
            let magnitude = bitcast<f32>(most);
            var scale = 0.0; var inverse = 0.0;
            let number = most < 0x7f800000u;
            if number && magnitude >= 1e-30 {{ scale = magnitude / 127.0; inverse = 127.0 / magnitude; }}
            if !number {{
                scale = bitcast<f32>(not_a_number);
                v0 = vec4<f32>(); v1 = vec4<f32>(); v2 = vec4<f32>(); v3 = vec4<f32>();
            }}
            let q0 = words(v0 * inverse); let q1 = words(v1 * inverse);
            let q2 = words(v2 * inverse); let q3 = words(v3 * inverse);
{}{}        }}",
        if what.integers { &integers } else { "" },
        if what.halves { &halves } else { "" },
    )
}

const HALVES: &str = "            halves[to * 2u] = vec4<u32>(pack2x16float(f0.xy), pack2x16float(f0.zw),
                pack2x16float(f1.xy), pack2x16float(f1.zw));
            halves[to * 2u + 1u] = vec4<u32>(pack2x16float(f2.xy), pack2x16float(f2.zw),
                pack2x16float(f3.xy), pack2x16float(f3.zw));
";
