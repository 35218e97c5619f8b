//! Matrices times 1 to 8 rows, in decode mode.

use std::fmt::Write as _;

use unfazed_kernels::LANES;
use unfazed_kernels::activations::Grain;
use unfazed_kernels::panel::PanelLayout;

use super::activations::Activations;
use super::bindings::Bindings;
use super::format::{Codec, PRELUDE};
use super::product::{Matrix, Place, Product, dots};
use super::shard::{IMMEDIATE_BYTES, IMMEDIATES, Shard};
use crate::gpu::{Abilities, Kernel};

/// Most rows of a dispatch.
pub const MOST_ROWS: usize = 8;

/// Threads of a workgroup.
pub(super) const THREADS: usize = 256;

/// From so many panels on a workgroup does [`PANELS_IN_TURN`]: the rows are rounded less often.
const MANY_PANELS: usize = 2048;
const PANELS_IN_TURN: usize = 4;

/// One to three matrices of the same columns, times 1 to 8 rows.
///
/// A row's bits do not depend on the other rows, nor on how many there are or could be.
///
/// Bindings, in order:
///
/// - input `[.., columns]` f32
/// - with `norm`: the norm's weights `[columns]` f32
/// - with `listed`: which row of the input each row is, `[rows]` u32
/// - for each matrix: its panels, then its output `[rows, rows of the matrix]` f32
///
/// Immediates: [`super::shard::immediates`]. A single matrix can be done shard by shard, each bound from its first panel on, with
/// the whole output; several matrices are bound whole: [`MatVec::whole`].
#[derive(Clone, Debug, PartialEq)]
pub struct MatVec {
    /// The matrices, of any formats. Columns are whole groups of 32.
    pub matrices: Vec<PanelLayout>,
    /// Epsilon, if the input is normed (RMS) first.
    pub norm: Option<f32>,
    /// Whether the products are added to what is in the output.
    pub add: bool,
    /// Whether a list says which rows of the input are meant.
    pub listed: bool,
    /// Rows that a dispatch may have, [`MOST_ROWS`] at most: a kernel for fewer needs fewer registers.
    pub rows: usize,
}

impl MatVec {
    /// The immediates' shard when the matrices are bound whole.
    pub fn whole(&self) -> Shard {
        Shard::all(self.panels())
    }

    /// Its text.
    pub fn kernel(&self, abilities: &Abilities) -> Kernel {
        let matrices: Vec<Matrix> =
            self.matrices.iter().enumerate().map(|(i, layout)| Matrix::new(i, layout)).collect();
        let columns = self.columns();
        let mut grains: Vec<Grain> = Vec::new();
        matrices.iter().map(|matrix| matrix.grain).for_each(|grain| {
            if !grains.contains(&grain) {
                grains.push(grain);
            }
        });
        let halves = matrices.iter().any(|matrix| matrix.codec.halves());
        let activations = Activations { columns, threads: THREADS, norm: self.norm, grains, halves };

        let mut bindings = Bindings::default();
        bindings.read("x", "vec4<f32>");
        if self.norm.is_some() {
            bindings.read("norm", "vec4<f32>");
        }
        let row = if self.listed {
            bindings.read("list", "u32");
            "list[row]"
        } else {
            "row"
        };
        let mut functions = String::new();
        for (matrix, layout) in matrices.iter().zip(&self.matrices) {
            let prefix = &matrix.prefix;
            bindings.read(&format!("{prefix}_panels"), "u32");
            bindings.write(&format!("{prefix}_out"));
            functions += &matrix.codec.wgsl(prefix, &format!("{prefix}_panels"));
            functions += &self.panels_text(matrix, layout, halves);
        }
        let source = format!(
            "{PRELUDE}{IMMEDIATES}{}
fn row_start(row: u32) -> u32 {{ return {row} * {}u; }}
fn share(row: u32, column: u32) -> f32 {{ return 1.0; }}
{}{}{functions}
@compute @workgroup_size({THREADS})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) t: u32) {{
{}}}
",
            bindings.text,
            columns / 4,
            activations.wgsl(abilities),
            dots(abilities),
            self.main_text(&matrices),
        );
        let shapes: Vec<String> =
            self.matrices.iter().map(|layout| format!("{:?} {}", layout.format(), layout.rows())).collect();
        let flags = [(self.norm.is_some(), " norm"), (self.add, " add"), (self.listed, " listed")];
        let flags: String = flags.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
        Kernel {
            name: format!("matvec {} x {columns}{flags}, {} rows", shapes.join(", "), self.rows),
            source,
            bindings: bindings.access,
            immediates: IMMEDIATE_BYTES,
        }
    }

    /// Workgroups for a shard of one matrix, or all of several; the rows are done in each of them.
    pub fn grid(&self, shard: Shard) -> [u32; 3] {
        match self.matrices.as_slice() {
            [layout] => [shard.count.div_ceil(panels_in_turn(layout) as u32), 1, 1],
            all => [all.iter().map(workgroups).sum::<usize>() as u32, 1, 1],
        }
    }

    fn columns(&self) -> usize {
        self.matrices.first().map_or(0, PanelLayout::columns)
    }

    fn panels(&self) -> usize {
        self.matrices.iter().map(PanelLayout::panels).sum()
    }

    /// WGSL: which panels of which matrix a workgroup does.
    fn main_text(&self, matrices: &[Matrix]) -> String {
        if let [matrix] = matrices {
            return format!("    {}_all(t, workgroup.x, dispatch.first, dispatch.count);\n", matrix.prefix);
        }
        let (mut text, mut first) = (String::new(), 0);
        for (matrix, layout) in matrices.iter().zip(&self.matrices) {
            let end = first + workgroups(layout);
            let _ = writeln!(
                text,
                "    if (workgroup.x >= {first}u && workgroup.x < {end}u) {{ {}_all(t, workgroup.x - {first}u, 0u, {}u); }}",
                matrix.prefix,
                layout.panels()
            );
            first = end;
        }
        text
    }

    /// WGSL: the panels of a workgroup of a matrix.
    fn panels_text(&self, matrix: &Matrix, layout: &PanelLayout, halves: bool) -> String {
        let prefix = &matrix.prefix;
        let in_turn = panels_in_turn(layout);
        let product = Product {
            matrices: std::slice::from_ref(matrix),
            columns: self.columns(),
            stretch: self.columns(),
            threads: THREADS,
            rows: self.rows.clamp(1, MOST_ROWS),
            place: Place { inside: "", panels: &["panel * PANEL_WORDS".to_owned()], unit: "UNIT" },
            norm: self.norm.is_some(),
            halves,
        };
        let at_once = product.rows_at_once();
        let mut add_up = String::new();
        for first in (0..at_once).step_by(product.sums_at_once()) {
            let sums: Vec<String> =
                (first..at_once).take(product.sums_at_once()).map(|row| product.sum(0, row)).collect();
            let store = format!(
                "let row = first + {first}u + number;
let n = (first_panel + panel) * {LANES}u + lane;
if ({first}u + number < rows && n < {rows}u) {{ {prefix}_out[row * {rows}u + n] {} total0; }}
",
                if self.add { "+=" } else { "=" },
                rows = layout.rows()
            );
            let _ = write!(add_up, "if (rows > {first}u) {{\n{}}}\n", product.add_up(&sums, 1, &store));
        }
        format!(
            "fn {prefix}_all(t: u32, turn: u32, first_panel: u32, panels: u32) {{
let lane = t % {LANES}u;
for (var first = 0u; first < dispatch.rows; first += {at_once}u) {{
let rows = min(dispatch.rows - first, {at_once}u);
for (var i = 0u; i < {in_turn}u; i++) {{
let panel = turn * {in_turn}u + i;
if (panel >= panels) {{ break; }}
{}{add_up}}}
}}
}}
",
            product.text(if in_turn > 1 { "i > 0u" } else { "false" }),
        )
        .replace("PANEL_WORDS", &format!("{}u", matrix.codec.panel_words()))
    }
}

impl Matrix {
    /// Number `i` of a kernel's matrices.
    pub(super) fn new(i: usize, layout: &PanelLayout) -> Matrix {
        Matrix { prefix: format!("m{i}"), codec: Codec::of(layout), grain: Grain::of(layout.format()) }
    }
}

fn panels_in_turn(layout: &PanelLayout) -> usize {
    if layout.panels() >= MANY_PANELS { PANELS_IN_TURN } else { 1 }
}

fn workgroups(layout: &PanelLayout) -> usize {
    layout.panels().div_ceil(panels_in_turn(layout))
}
