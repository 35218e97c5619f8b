//! f16 times f16 with sums in f32, by cooperative matrices. In shared memory a row's columns stand together, and rows lie
//! 16 bytes further apart than they are long, so that the 8 rows that are read at once are in different banks.
//!
//! A subgroup has a part of the tile of 32 columns, and of as many rows as are left. Outputs go through shared memory: there
//! they can be told apart, scaled by their rows' peaks and left out where there is no such row or column.

use std::fmt::Write as _;

use super::TILE_COLUMNS;
use super::shell::{Parts, Shape};

/// Columns of a subgroup's part.
const PART_COLUMNS: u32 = 32;

struct Division {
    /// Rows, columns and depth of a cooperative matrix.
    size: u32,
    /// Rows of a subgroup's part.
    part_rows: u32,
    /// Halves from one row to the next in shared memory.
    stride: u32,
    /// Halves of an element of shared memory: Metal reads its matrices from scalars alone.
    element: u32,
    subgroups: u32,
}

pub(super) fn parts(shape: &Shape, size: u32) -> Parts {
    let subgroups = shape.threads / 32;
    let part_rows = shape.rows / (subgroups / (TILE_COLUMNS / PART_COLUMNS));
    let element = if size == 16 { 4 } else { 1 };
    let division = Division { size, part_rows, stride: shape.groups * 32 + 8, element, subgroups };
    let (mut fetch, mut store, mut expand) = (
        "let at = (r * GROUPS + g) * 8u;\n".to_owned(),
        format!("let at = m * {0}u + k * 32u;\n", division.stride),
        format!("let f = MATRIX_weights(RAW, lane, g); let at = n * {0}u + k * 32u;\n", division.stride),
    );
    for i in 0..8 {
        let _ = writeln!(fetch, "x{i}_# = select(halves[at + {i}u], vec4<f16>(), beyond);");
        store += &put(&division, "sx", i, &format!("x{i}_#"));
        expand += &put(&division, "s_MATRIX", i, &format!("vec4<f16>(f.v{i})"));
    }
    Parts {
        enable: "enable f16;\nenable wgpu_cooperative_matrix;\n",
        activations: &[("halves", "vec4<f16>"), ("peaks", "f32")],
        shared: shared(shape, &division),
        arguments: ", @builtin(subgroup_id) subgroup: u32, @builtin(subgroup_invocation_id) thread: u32",
        variables: variables(shape, &division),
        held: |i| (0..8).map(|j| format!("var x{j}_{i}: vec4<f16>; ")).collect(),
        fetch,
        store,
        expand,
        compute: compute(shape, &division),
        finish: finish(shape, &division),
    }
}

/// WGSL: stores columns `4i..4i + 4` of a group that begins at half `at`.
fn put(division: &Division, array: &str, i: u32, value: &str) -> String {
    if division.element == 4 {
        return format!("{array}[at / 4u + {i}u] = {value};\n");
    }
    let mut text = format!("{{ let v = {value};");
    for (c, part) in ["x", "y", "z", "w"].into_iter().enumerate() {
        let _ = write!(text, " {array}[at + {}u] = v.{part};", 4 * i as usize + c);
    }
    text + " }\n"
}

fn shared(shape: &Shape, division: &Division) -> String {
    let Division { stride, element, subgroups, size, .. } = *division;
    let kind = if element == 4 { "vec4<f16>" } else { "f16" };
    let mut text = format!("var<workgroup> sx: array<{kind}, {}>;\n", shape.rows * stride / element);
    for name in shape.matrices() {
        let _ =
            writeln!(text, "var<workgroup> s_{name}: array<{kind}, {}>;", TILE_COLUMNS * stride / element);
        let _ = writeln!(text, "var<workgroup> out_{name}: array<f32, {}>;", subgroups * size * PART_COLUMNS);
    }
    text
}

/// The accumulators of a subgroup: name, and indices of the row and the column of matrices.
fn sums(shape: &Shape, division: &Division) -> Vec<(&'static str, u32, u32)> {
    let mut all = Vec::new();
    for name in shape.matrices() {
        for i in 0..division.part_rows / division.size {
            all.extend((0..PART_COLUMNS / division.size).map(|j| (*name, i, j)));
        }
    }
    all
}

fn variables(shape: &Shape, division: &Division) -> String {
    let Division { size, part_rows, .. } = *division;
    let across = shape.rows / part_rows;
    let mut text = format!(
        "    let sm = subgroup % {across}u * {part_rows}u;\n    let sn = subgroup / {across}u * {PART_COLUMNS}u;\n"
    );
    for (name, i, j) in sums(shape, division) {
        let _ = writeln!(text, "    var c_{name}{i}_{j} = coop_mat{size}x{size}<f32, C>();");
    }
    text
}

fn compute(shape: &Shape, division: &Division) -> String {
    let Division { size, part_rows, stride, element, .. } = *division;
    let mut text = String::new();
    for k in (0..shape.groups * 32).step_by(size as usize) {
        text += "{\n";
        for i in 0..part_rows / size {
            let at = format!("((sm + {}u) * {stride}u + {k}u) / {element}u", i * size);
            let _ = writeln!(
                text,
                "let a{i} = coopLoadT<coop_mat{size}x{size}<f16, A>>(&sx[{at}], {}u);",
                stride / element
            );
        }
        for name in shape.matrices() {
            for j in 0..PART_COLUMNS / size {
                let at = format!("((sn + {}u) * {stride}u + {k}u) / {element}u", j * size);
                let _ = writeln!(
                    text,
                    "let b_{name}{j} = coopLoad<coop_mat{size}x{size}<f16, B>>(&s_{name}[{at}], {}u);",
                    stride / element
                );
            }
        }
        for (name, i, j) in sums(shape, division) {
            let _ = writeln!(text, "c_{name}{i}_{j} = coopMultiplyAdd(a{i}, b_{name}{j}, c_{name}{i}_{j});");
        }
        text += "}\n";
    }
    text
}

fn finish(shape: &Shape, division: &Division) -> String {
    let Division { size, part_rows, .. } = *division;
    let mut text =
        format!("    let corner = subgroup * {}u;\n    let n = n0 + sn + thread;\n", size * PART_COLUMNS);
    let values: Vec<String> =
        shape.matrices().iter().map(|name| format!("(out_{name}[source] * peak)")).collect();
    for i in 0..part_rows / size {
        text += "    workgroupBarrier();\n";
        for (name, _, j) in sums(shape, division).into_iter().filter(|sum| sum.1 == i) {
            let _ = writeln!(
                text,
                "    coopStoreT(c_{name}{i}_{j}, &out_{name}[corner + {}u], {PART_COLUMNS}u);",
                j * size
            );
        }
        let _ = write!(
            text,
            "    workgroupBarrier();
    for (var i = 0u; i < {size}u; i++) {{
        let m = sm + {}u + i;
        if m0 + m < rows && n < OUTPUTS {{
            let source = corner + i * {PART_COLUMNS}u + thread;
            let peak = peaks[row_of(expert, m0, m)];
            let at = place_of(expert, m0, m) * OUTPUTS + n;
            {}
        }}
    }}\n",
            i * size,
            shape.output("at", &values)
        );
    }
    text
}
