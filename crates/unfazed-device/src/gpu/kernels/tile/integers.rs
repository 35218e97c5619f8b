//! int8 times int8. In shared memory dword `k` of all rows stands together, so a thread reads that of 4 rows at once.

use std::fmt::Write as _;

use super::TILE_COLUMNS;
use super::shell::{Parts, Shape, accumulators, write_accumulators};

/// Where sums start: as a float it is 1.5 * 2^23, and with a whole number below 2^22 added it is that much more. That saves
/// the conversion of each sum, which is slow on some GPUs.
const START: i32 = 0x4b40_0000;

/// The same as a float.
const START_AS_FLOAT: &str = "12582912.0";

pub(super) fn parts(shape: &Shape) -> Parts {
    Parts {
        enable: "",
        activations: &[("quants", "vec4<u32>"), ("scales", "f32"), ("sums", "vec2<i32>")],
        shared: shared(shape),
        arguments: "",
        variables: accumulators(shape),
        held: |i| {
            format!("var xa{i}: vec4<u32>; var xb{i}: vec4<u32>; var xs{i}: f32; var xu{i}: vec2<i32>;")
        },
        fetch: "let at = r * GROUPS + g;
            xa# = quants[2u * at]; xb# = quants[2u * at + 1u]; xu# = sums[at];
            xs# = select(scales[r * (GROUPS / GRAIN) + g / GRAIN], 0.0, beyond);"
            .to_owned(),
        store: store(shape),
        expand: expand(shape),
        compute: compute(shape),
        finish: write_accumulators(shape),
    }
}

/// Bytes of shared memory for a group of 32 columns.
pub(super) fn group_bytes(shape: &Shape) -> u32 {
    let halves = halves(shape).len() as u32;
    let minimums = if shape.codec.minimums() { halves * 4 } else { 0 };
    let starts = if starts(shape) { halves * 4 } else { 0 };
    let columns = TILE_COLUMNS * shape.matrices().len() as u32;
    shape.rows * (32 + 4 + starts + minimums) + columns * (32 + halves * 4 + minimums)
}

fn starts(shape: &Shape) -> bool {
    shape.codec.bias() != 0
}

/// The halves of a group that have numbers of their own.
fn halves(shape: &Shape) -> &'static [usize] {
    if shape.codec.halves() { &[0, 1] } else { &[0] }
}

fn shared(shape: &Shape) -> String {
    let mut text = "var<workgroup> sx: array<vec4<u32>, STEP * 2u * TM>;
var<workgroup> x_scales: array<vec4<f32>, STEP * TM / 4u>;\n"
        .to_owned();
    for half in halves(shape) {
        if starts(shape) {
            let _ = writeln!(text, "var<workgroup> x_starts{half}: array<vec4<i32>, STEP * TM / 4u>;");
        }
        if shape.codec.minimums() {
            let _ = writeln!(text, "var<workgroup> x_sums{half}: array<vec4<f32>, STEP * TM / 4u>;");
        }
        for name in shape.matrices() {
            let _ =
                writeln!(text, "var<workgroup> {name}_scales_of{half}: array<vec4<f32>, STEP * TN / 4u>;");
            if shape.codec.minimums() {
                let _ =
                    writeln!(text, "var<workgroup> {name}_minimums{half}: array<vec4<f32>, STEP * TN / 4u>;");
            }
        }
    }
    for name in shape.matrices() {
        let _ = writeln!(text, "var<workgroup> s_{name}: array<vec4<u32>, STEP * 2u * TN>;");
    }
    text + "fn dots(x: u32, w: vec4<u32>) -> vec4<i32> {
    return vec4<i32>(dot4I8Packed(x, w.x), dot4I8Packed(x, w.y), dot4I8Packed(x, w.z), dot4I8Packed(x, w.w));
}\n"
}

fn store(shape: &Shape) -> String {
    let mut text = String::new();
    for k in 0..8 {
        let (part, component) = (["xa#", "xb#"][k / 4], ["x", "y", "z", "w"][k % 4]);
        let _ = writeln!(text, "sx[(k * 8u + {k}u) * (TM / 4u) + m / 4u][m % 4u] = {part}.{component};");
    }
    text += "let at = k * (TM / 4u) + m / 4u;\nx_scales[at][m % 4u] = xs#;\n";
    for half in halves(shape) {
        let sum = match (shape.codec.halves(), half) {
            (true, 0) => "xu#.x",
            (true, _) => "xu#.y",
            (false, _) => "(xu#.x + xu#.y)",
        };
        if starts(shape) {
            let bias = shape.codec.bias();
            let _ = writeln!(text, "x_starts{half}[at][m % 4u] = {START}i + {sum} * {bias}i;");
        }
        if shape.codec.minimums() {
            let _ = writeln!(text, "x_sums{half}[at][m % 4u] = f32({sum}) * xs#;");
        }
    }
    text
}

fn expand(shape: &Shape) -> String {
    let mut text = "let codes = MATRIX_codes(RAW); let s = MATRIX_scales(RAW, lane, g);\n".to_owned();
    for k in 0..8 {
        let (part, component) = (["a", "b"][k / 4], ["x", "y", "z", "w"][k % 4]);
        let _ = writeln!(
            text,
            "s_MATRIX[(k * 8u + {k}u) * (TN / 4u) + n / 4u][n % 4u] = codes.{part}.{component};"
        );
    }
    text += "let at = k * (TN / 4u) + n / 4u;\n";
    for half in halves(shape) {
        let (scale, minimum) = (["s.x", "s.y"][*half], ["s.z", "s.w"][*half]);
        let _ = writeln!(text, "MATRIX_scales_of{half}[at][n % 4u] = {scale};");
        if shape.codec.minimums() {
            let _ = writeln!(text, "MATRIX_minimums{half}[at][n % 4u] = {minimum};");
        }
    }
    text
}

fn compute(shape: &Shape) -> String {
    let mut text = "    for (var g = 0u; g < STEP; g++) {\n".to_owned();
    let blocks = shape.rows / 64;
    for b in 0..blocks {
        let _ = writeln!(text, "let xs{b} = x_scales[g * (TM / 4u) + tm + {}u];", b * 16);
    }
    for half in halves(shape) {
        text += &dot_half(shape, *half, blocks);
        text += &scale_half(shape, *half);
    }
    text + "    }\n"
}

/// Component `m % 4` of vector `m / 4`.
fn of_row(vector: &str, m: u32) -> String {
    format!("{vector}{}.{}", m / 4, ["x", "y", "z", "w"][m as usize % 4])
}

/// The dot products of a half of a group, or of all of it.
fn dot_half(shape: &Shape, half: usize, blocks: u32) -> String {
    let mut text = String::new();
    if starts(shape) {
        for b in 0..blocks {
            let _ = writeln!(text, "let start{half}_{b} = x_starts{half}[g * (TM / 4u) + tm + {}u];", b * 16);
        }
    }
    for name in shape.matrices() {
        for m in 0..shape.rows / 16 {
            let start = if starts(shape) { of_row(&format!("start{half}_"), m) } else { format!("{START}i") };
            let declared = if half == 0 { "var " } else { "" };
            let _ = writeln!(text, "{declared}i_{name}{m} = vec4<i32>({start});");
        }
    }
    let dwords = 8 / halves(shape).len();
    let _ = writeln!(
        text,
        "for (var d = {}u; d < {}u; d++) {{ let at = g * 8u + d;",
        half * dwords,
        (half + 1) * dwords
    );
    for b in 0..blocks {
        let _ = writeln!(text, "let x{b} = sx[at * (TM / 4u) + tm + {}u];", b * 16);
    }
    for name in shape.matrices() {
        let _ = writeln!(text, "let k_{name} = s_{name}[at * (TN / 4u) + tn];");
        for m in 0..shape.rows / 16 {
            let _ = writeln!(text, "i_{name}{m} += dots({}, k_{name});", of_row("x", m));
        }
    }
    text + "}\n"
}

/// Adds scaled dot products, and minimums.
fn scale_half(shape: &Shape, half: usize) -> String {
    let mut text = String::new();
    if shape.codec.minimums() {
        for b in 0..shape.rows / 64 {
            let _ = writeln!(text, "let sum{half}_{b} = x_sums{half}[g * (TM / 4u) + tm + {}u];", b * 16);
        }
    }
    for name in shape.matrices() {
        let _ = writeln!(text, "let f{half}_{name} = {name}_scales_of{half}[g * (TN / 4u) + tn];");
        for m in 0..shape.rows / 16 {
            let dot = format!("(bitcast<vec4<f32>>(i_{name}{m}) - {START_AS_FLOAT})");
            let _ = writeln!(
                text,
                "c_{name}{m} = fma({dot} * f{half}_{name}, vec4<f32>({}), c_{name}{m});",
                of_row("xs", m)
            );
        }
        if shape.codec.minimums() {
            let _ = writeln!(text, "let m{half}_{name} = {name}_minimums{half}[g * (TN / 4u) + tn];");
            for m in 0..shape.rows / 16 {
                let sum = of_row(&format!("sum{half}_"), m);
                let _ = writeln!(text, "c_{name}{m} = fma(m{half}_{name}, vec4<f32>({sum}), c_{name}{m});");
            }
        }
    }
    text
}
