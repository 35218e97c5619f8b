//! Matrices times few rows: the loop over columns that the decode kernels share.
//!
//! A workgroup does a panel of 16 rows. Thread `t` has lane `t % 16` and every so-manieth *unit* of a few neighbouring groups of
//! 32 columns, so that 16 threads read lines of 64 bytes and a unit is one run of memory. A unit is read while the one before is
//! multiplied, and the first one before the rows are normed and rounded. Then the threads' sums are added up in order.
//!
//! What is added, and when, depends on the shape of the matrix alone: a row's bits do not depend on how many rows there are.
//! Products are `fma`s throughout, so that a compiler has nothing to contract in one place and not in another.

use std::fmt::Write as _;

use unfazed_kernels::LANES;
use unfazed_kernels::activations::Grain;

use super::activations::{PARTS, STAGED_FLOATS, STAGED_INT8};
use super::format::Codec;
use crate::gpu::Abilities;

/// Words that a thread has under way, about: units have as many groups as need so many, for all matrices together.
const WORDS_UNDER_WAY: usize = 20;

/// Most groups of a unit.
const MOST_GROUPS: usize = 2;

/// A matrix that is multiplied.
pub(super) struct Matrix {
    /// What its functions begin with.
    pub(super) prefix: String,
    pub(super) codec: Codec,
    pub(super) grain: Grain,
}

/// Matrices of the same columns and grain, multiplied together: the activations are read once for all.
pub(super) struct Product<'m> {
    pub(super) matrices: &'m [Matrix],
    /// Of the rows of activations.
    pub(super) columns: usize,
    /// Columns that a unit may not cross: those of an expert.
    pub(super) stretch: usize,
    pub(super) threads: usize,
    /// Rows that there may be: 8, or 1.
    pub(super) rows: usize,
    /// Where units are.
    pub(super) place: Place<'m>,
    /// Whether the rows are normed first.
    pub(super) norm: bool,
    /// Whether the sums of activations are staged in halves.
    pub(super) halves: bool,
}

/// WGSL: where the unit `UNIT` of a matrix is.
pub(super) struct Place<'m> {
    /// Whether it is there at all; always, if this is empty. It must be the same for all lanes.
    pub(super) inside: &'m str,
    /// For each matrix the word where its panel starts.
    pub(super) panels: &'m [String],
    /// The unit's number in the matrix.
    pub(super) unit: &'m str,
}

impl Product<'_> {
    /// Rows of activations that are held at once.
    pub(super) fn rows_at_once(&self) -> usize {
        self.rows.min(if self.floats() { 4 } else { 8 })
    }

    /// The sum of a thread for a matrix and a row.
    pub(super) fn sum(&self, matrix: usize, row: usize) -> String {
        format!("{}_{row}", self.matrices[matrix].prefix)
    }

    /// WGSL: declares the sums, and adds up the products of this thread. There are the thread `t`, its `lane`, and `rows` rows
    /// from `first` on. Unless `staged_before` (WGSL, an expression) holds, activations are normed and rounded.
    pub(super) fn text(&self, staged_before: &str) -> String {
        let (floats, groups) = (self.floats(), self.unit_groups());
        let (slices, units) = (self.threads / LANES, self.columns / 32 / groups);
        let capacity = if floats { STAGED_FLOATS } else { STAGED_INT8 };
        let stage = match self.matrices[0].grain.block() {
            Some(block) => format!("stage_int8_{block}"),
            None => "stage_floats".to_owned(),
        };
        let capacity = if self.rows == 1 {
            format!("{capacity}u")
        } else {
            // The next power of two above the rows fits.
            format!("{capacity}u >> (32u - countLeadingZeros(rows - 1u))")
        };
        let sums = self.each_sum(|sum| {
            let (kind, zero) = if floats { ("four_", "vec4<f32>()") } else { ("", "0.0") };
            format!("var {kind}{sum} = {zero};\n")
        });
        let added = self.each_sum(|sum| match floats {
            true => format!("let {sum} = (four_{sum}.x + four_{sum}.y) + (four_{sum}.z + four_{sum}.w);\n"),
            false => String::new(),
        });
        let norm = if self.norm {
            format!("if (!({staged_before})) {{ norm_rows(t, first, rows); }}\n")
        } else {
            String::new()
        };
        format!(
            "{sums}{{
let chunk = {capacity};
var unit = t / {LANES}u;
{variables}{load}{norm}for (var start = 0u; start < {columns}u; start += chunk) {{
    let columns = min(chunk, {columns}u - start);
    if (!({staged_before} && chunk >= {columns}u)) {{
        workgroupBarrier();
        {stage}(t, first, rows, start, columns);
        workgroupBarrier();
    }}
    let end = (start + columns) / {unit_columns}u;
    let stride = columns / {stride}u;
    let before = start / 32u;
    while (unit < end) {{
        let this_unit = unit;
{copies}        unit += {slices}u;
{load}{multiply}    }}
}}
}}
{added}",
            variables = self.each(groups, |matrix, i| format!("var next_{matrix}_{i}: {matrix}_Raw;\n")),
            copies = self.each(groups, |matrix, i| format!("let raw_{matrix}_{i} = next_{matrix}_{i};\n")),
            load = self.load_text(groups, units),
            multiply = self.multiply_text(groups),
            columns = self.columns,
            unit_columns = 32 * groups,
            stride = if floats { 4 } else { 16 },
        )
    }

    /// WGSL that reads unit `unit`.
    fn load_text(&self, groups: usize, units: usize) -> String {
        let Place { inside, panels, unit } = &self.place;
        let [inside, unit] = [inside, unit].map(|text| text.replace("UNIT", "unit"));
        let inside = if inside.is_empty() { inside } else { format!(" && {inside}") };
        let mut text = format!("if (unit < {units}u{inside}) {{\n");
        for (matrix, panel) in self.matrices.iter().zip(*panels) {
            let panel = panel.replace("UNIT", "unit");
            let prefix = &matrix.prefix;
            for i in 0..groups {
                let _ = writeln!(
                    text,
                    "next_{prefix}_{i} = {prefix}_load({panel}, lane, ({unit}) * {groups}u + {i}u);"
                );
            }
        }
        text + "}\n"
    }

    /// WGSL that multiplies unit `this_unit`.
    fn multiply_text(&self, groups: usize) -> String {
        let Place { inside, unit, .. } = &self.place;
        let mut text = String::new();
        if !inside.is_empty() {
            let _ = writeln!(text, "if ({}) {{", of_this(inside));
        }
        for i in 0..groups {
            let _ = writeln!(
                text,
                "{{\nlet group = ({}) * {groups}u + {i}u;\nlet local = this_unit * {groups}u + {i}u - before;",
                of_this(unit)
            );
            for Matrix { prefix, .. } in self.matrices {
                let _ = match self.floats() {
                    true => {
                        writeln!(text, "let w_{prefix} = {prefix}_weights(raw_{prefix}_{i}, lane, group);")
                    }
                    false => writeln!(
                        text,
                        "let k_{prefix} = {prefix}_codes(raw_{prefix}_{i});\n\
                         let s_{prefix} = {prefix}_scales(raw_{prefix}_{i}, lane, group);"
                    ),
                };
            }
            let rows = self.rows_at_once();
            for row in 0..rows {
                // Inside the condition of the row before.
                let open = if row == 0 { "{\n".to_owned() } else { format!("if (rows > {row}u) {{\n") };
                text += &open;
                text += &match self.floats() {
                    true => self.float_row(row),
                    false => self.integer_row(row),
                };
            }
            text += &"}".repeat(rows);
            text += "\n}\n";
        }
        if !inside.is_empty() {
            text += "}\n";
        }
        text
    }

    /// WGSL: adds the products of a group with row `row`.
    fn integer_row(&self, row: usize) -> String {
        let mut text = format!(
            "let x0_{row} = staged[{row}u * stride + local * 2u];\n\
             let x1_{row} = staged[{row}u * stride + local * 2u + 1u];\n\
             let meta_{row} = metas[{row}u * (stride / 2u) + local];\n\
             let d_{row} = bitcast<f32>(meta_{row}.x);\n"
        );
        text += &match self.halves {
            true => format!(
                "let sum0_{row} = f32(bitcast<i32>(meta_{row}.y << 16u) >> 16u);\n\
                 let sum1_{row} = f32(bitcast<i32>(meta_{row}.y) >> 16u);\n\
                 let sum_{row} = sum0_{row} + sum1_{row};\n"
            ),
            false => format!("let sum_{row} = f32(bitcast<i32>(meta_{row}.y));\n"),
        };
        for Matrix { prefix, codec, .. } in self.matrices {
            let sum = format!("{prefix}_{row}");
            let bias = |sum: &str| match codec.bias() {
                0 => String::new(),
                bias => format!(" + {bias}.0 * {sum}_{row}"),
            };
            let parts = match codec.halves() {
                true => vec![
                    ("x", "z", "sum0", format!("dot16(k_{prefix}.a, x0_{row})")),
                    ("y", "w", "sum1", format!("dot16(k_{prefix}.b, x1_{row})")),
                ],
                false => vec![("x", "z", "sum", format!("dot32(k_{prefix}, x0_{row}, x1_{row})"))],
            };
            for (scale, minimum, total, dot) in parts {
                // Whole numbers below 2^24: exact, however it is computed.
                let _ =
                    writeln!(text, "{sum} = fma(s_{prefix}.{scale} * d_{row}, {dot}{}, {sum});", bias(total));
                if codec.minimums() {
                    let _ =
                        writeln!(text, "{sum} = fma(s_{prefix}.{minimum} * d_{row}, {total}_{row}, {sum});");
                }
            }
        }
        text
    }

    fn float_row(&self, row: usize) -> String {
        let mut text = String::new();
        for i in 0..8 {
            let _ = writeln!(
                text,
                "let x{i}_{row} = bitcast<vec4<f32>>(staged[{row}u * stride + local * 8u + {i}u]);"
            );
            for Matrix { prefix, .. } in self.matrices {
                let sum = format!("four_{prefix}_{row}");
                let _ = writeln!(text, "{sum} = fma(w_{prefix}.v{i}, x{i}_{row}, {sum});");
            }
        }
        text
    }

    /// WGSL that adds up what `sums` are in all threads, at most [`Product::sums_at_once`] of them, taken `stride` at a time:
    /// thread `16 * number + lane` has those of take `number` for its lane in `total0`, `total1`, ... and does `then`.
    pub(super) fn add_up(&self, sums: &[String], stride: usize, then: &str) -> String {
        let slices = self.threads / LANES;
        let mut text = "workgroupBarrier();\n".to_owned();
        for (i, sum) in sums.iter().enumerate() {
            let _ = writeln!(text, "parts[{}u + t] = {sum};", i * self.threads);
        }
        let _ = write!(
            text,
            "workgroupBarrier();\nif (t < {}u) {{\nlet number = t / {LANES}u;\n",
            sums.len() / stride * LANES
        );
        for i in 0..stride {
            let _ = writeln!(
                text,
                "var total{i} = 0.0;\n\
                 for (var i = 0u; i < {slices}u; i++) {{\n\
                 total{i} += parts[(number * {stride}u + {i}u) * {}u + i * {LANES}u + lane];\n}}",
                self.threads
            );
        }
        text + then + "}\n"
    }

    /// Sums that are added up together.
    pub(super) fn sums_at_once(&self) -> usize {
        PARTS / self.threads
    }

    fn floats(&self) -> bool {
        self.matrices.iter().any(|matrix| matrix.grain == Grain::Float)
    }

    /// Groups of a unit: they divide a stretch.
    fn unit_groups(&self) -> usize {
        let words: usize = self.matrices.iter().map(|matrix| matrix.codec.group_words()).sum();
        let most = (WORDS_UNDER_WAY / words).clamp(1, MOST_GROUPS);
        let groups = self.stretch / 32;
        (1..=most).rev().find(|n| groups.is_multiple_of(*n)).unwrap_or(1)
    }

    /// Units of a stretch.
    pub(super) fn stretch_units(&self) -> usize {
        self.stretch / 32 / self.unit_groups()
    }

    fn each(&self, groups: usize, text: impl Fn(&str, usize) -> String) -> String {
        let matrices = self.matrices.iter().map(|matrix| matrix.prefix.as_str());
        matrices.flat_map(|matrix| (0..groups).map(|i| text(matrix, i)).collect::<Vec<_>>()).collect()
    }

    fn each_sum(&self, text: impl Fn(&str) -> String) -> String {
        let rows = self.rows_at_once();
        let sums = (0..self.matrices.len()).flat_map(|m| (0..rows).map(move |row| (m, row)));
        sums.map(|(m, row)| text(&self.sum(m, row))).collect()
    }
}

/// WGSL about the unit that is multiplied.
fn of_this(text: &str) -> String {
    text.replace("UNIT", "this_unit")
}

/// WGSL: dot products of int8, as whole numbers in f32.
pub(super) fn dots(abilities: &Abilities) -> &'static str {
    if abilities.packed_dot {
        "
fn idot16(k: vec4<u32>, x: vec4<u32>) -> i32 {
    return dot4I8Packed(k.x, x.x) + dot4I8Packed(k.y, x.y) + dot4I8Packed(k.z, x.z) + dot4I8Packed(k.w, x.w);
}
fn dot16(k: vec4<u32>, x: vec4<u32>) -> f32 { return f32(idot16(k, x)); }
fn dot32(k: Int8x32, x0: vec4<u32>, x1: vec4<u32>) -> f32 { return f32(idot16(k.a, x0) + idot16(k.b, x1)); }
"
    } else {
        // No sum reaches 2^24, so none is rounded.
        "
fn dot4(k: u32, x: u32) -> f32 { return dot(vec4<f32>(unpack4xI8(k)), vec4<f32>(unpack4xI8(x))); }
fn dot16(k: vec4<u32>, x: vec4<u32>) -> f32 {
    return dot4(k.x, x.x) + dot4(k.y, x.y) + dot4(k.z, x.z) + dot4(k.w, x.w);
}
fn dot32(k: Int8x32, x0: vec4<u32>, x1: vec4<u32>) -> f32 { return dot16(k.a, x0) + dot16(k.b, x1); }
"
    }
}
