//! Feed-forward networks in decode mode: a mixture's chosen experts, or a dense one.
//!
//! A dense network is [`GateUp`] without experts, then [`super::matvec::MatVec`] with `add` for its down projection.

use std::fmt::Write as _;

use unfazed_kernels::LANES;
use unfazed_kernels::activations::Grain;
use unfazed_kernels::panel::PanelLayout;

use super::activations::Activations;
use super::bindings::Bindings;
use super::format::PRELUDE;
use super::matvec::{MOST_ROWS, THREADS};
use super::product::{Matrix, Place, Product, dots};
use super::shard::{IMMEDIATE_BYTES, IMMEDIATES};
use crate::gpu::{Abilities, Kernel};

/// Threads of a workgroup of [`Down`]: there are few panels, so each needs many.
const DOWN_THREADS: usize = 512;

/// SiLU of gate times up.
///
/// Bindings, in order:
///
/// - input `[rows, columns]` f32
/// - with `norm`: the norm's weights `[columns]` f32
/// - with `used`: which experts each row uses, `[rows, used]` u32
/// - panels of the gates, then of the ups: a shard of the stack, experts one after the other
/// - output `[rows, used, width]` f32
///
/// Immediates: [`super::shard::immediates`]; the shard is of experts. What belongs to an expert outside of it stays as it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateUp {
    /// The gate of an expert, `[width, columns]`.
    pub gate: PanelLayout,
    /// The up projection of an expert, of the same shape.
    pub up: PanelLayout,
    /// Epsilon, if the input is normed (RMS) first.
    pub norm: Option<f32>,
    /// Experts that a row uses. `None` is a dense network: one expert, whose weights all rows of a dispatch read together.
    pub used: Option<usize>,
    /// Rows that a dispatch of a dense network may have, [`MOST_ROWS`] at most; those of a mixture may be any number.
    pub rows: usize,
}

impl GateUp {
    /// Its text.
    pub fn kernel(&self, abilities: &Abilities) -> Kernel {
        let matrices = [Matrix::new(0, &self.gate), Matrix::new(1, &self.up)];
        let (columns, width) = (self.gate.columns(), self.gate.rows());
        let halves = matrices.iter().any(|matrix| matrix.codec.halves());
        let mut grains = matrices.iter().map(|matrix| matrix.grain).collect::<Vec<_>>();
        grains.dedup();
        let together = grains.len() == 1;
        let activations = Activations { columns, threads: THREADS, norm: self.norm, grains, halves };

        let mut bindings = Bindings::default();
        bindings.read("x", "vec4<f32>");
        if self.norm.is_some() {
            bindings.read("norm", "vec4<f32>");
        }
        if self.used.is_some() {
            bindings.read("ids", "u32");
        }
        let mut functions = String::new();
        for matrix in &matrices {
            let panels = format!("{}_panels", matrix.prefix);
            bindings.read(&panels, "u32");
            functions += &matrix.codec.wgsl(&matrix.prefix, &panels);
        }
        bindings.write("out");

        let places = matrices.each_ref().map(|matrix| {
            let words = matrix.codec.panel_words();
            match self.used {
                Some(_) => format!("(expert * {}u + panel) * {words}u", self.gate.panels()),
                None => format!("panel * {words}u"),
            }
        });
        let rows = match self.used {
            Some(_) => 1,
            None if matrices.iter().any(|matrix| matrix.grain == Grain::Float) => self.rows.clamp(1, 4),
            None => self.rows.clamp(1, MOST_ROWS),
        };
        let product = |range: std::ops::Range<usize>| Product {
            matrices: &matrices[range.clone()],
            columns,
            stretch: columns,
            threads: THREADS,
            rows,
            place: Place { inside: "", panels: &places[range.clone()], unit: "UNIT" },
            norm: self.norm.is_some() && range.start == 0,
            halves,
        };
        let products = if together { vec![product(0..2)] } else { vec![product(0..1), product(1..2)] };
        let multiply: String = products.iter().map(|product| product.text("false")).collect();
        let body = match self.used {
            Some(used) => self.expert_text(used, &multiply, &products[0]),
            None => self.dense_text(rows, &multiply, &products[0]),
        };
        let source = format!(
            "{PRELUDE}{IMMEDIATES}{}
fn row_start(row: u32) -> u32 {{ return row * {}u; }}
fn share(row: u32, column: u32) -> f32 {{ return 1.0; }}
{}{}{functions}
@compute @workgroup_size({THREADS})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) t: u32) {{
let panel = workgroup.x;
let lane = t % {LANES}u;
{body}}}
",
            bindings.text,
            columns / 4,
            activations.wgsl(abilities),
            dots(abilities),
        );
        let formats = [self.gate, self.up].map(|layout| format!("{:?}", layout.format())).join(" ");
        let used = self.used.map_or_else(|| format!("dense, {rows} rows"), |used| format!("{used} experts"));
        Kernel {
            name: format!("gate and up {formats} {width} x {columns} {used}"),
            source,
            bindings: bindings.access,
            immediates: IMMEDIATE_BYTES,
        }
    }

    /// Workgroups for so many rows.
    pub fn grid(&self, rows: usize) -> [u32; 3] {
        match self.used {
            Some(used) => [self.gate.panels() as u32, used as u32, rows as u32],
            None => [self.gate.panels() as u32, 1, 1],
        }
    }

    /// WGSL: one row and one of its experts.
    fn expert_text(&self, used: usize, multiply: &str, product: &Product<'_>) -> String {
        let width = self.gate.rows();
        let store = format!(
            "let n = panel * {LANES}u + lane;
if (n < {width}u) {{ out[(first * {used}u + workgroup.y) * {width}u + n] = {SILU}; }}
"
        );
        format!(
            "let first = workgroup.z;
let rows = 1u;
let expert = ids[first * {used}u + workgroup.y] - dispatch.first;
if (expert >= dispatch.count) {{ return; }}
{multiply}{}",
            product.add_up(&["m0_0".to_owned(), "m1_0".to_owned()], 2, &store)
        )
    }

    /// WGSL: all rows.
    fn dense_text(&self, at_once: usize, multiply: &str, product: &Product<'_>) -> String {
        let width = self.gate.rows();
        let mut text = String::new();
        let together = product.sums_at_once() / 2;
        for first in (0..at_once).step_by(together) {
            let sums: Vec<String> = (first..at_once)
                .take(together)
                .flat_map(|row| [format!("m0_{row}"), format!("m1_{row}")])
                .collect();
            let store = format!(
                "let row = {first}u + number;
let n = panel * {LANES}u + lane;
if (row < rows && n < {width}u) {{ out[(first + row) * {width}u + n] = {SILU}; }}
"
            );
            let _ = write!(text, "if (rows > {first}u) {{\n{}}}\n", product.add_up(&sums, 2, &store));
        }
        format!(
            "for (var first = 0u; first < dispatch.rows; first += {at_once}u) {{
let rows = min(dispatch.rows - first, {at_once}u);
{multiply}{text}}}
"
        )
    }
}

/// Of the sums of gate and up.
const SILU: &str = "total0 / (1.0 + exp(-total0)) * total1";

/// The down projections of a mixture: for each row the sum over its experts, in ascending order, of their outputs times their
/// weights, added to the residual.
///
/// Bindings, in order: inner `[rows, used, width]` f32 (what [`GateUp`] wrote), experts `[rows, used]` u32, weights
/// `[rows, used]` f32, panels of the down projections (a shard of the stack), residual `[rows, rows of the matrix]` f32.
///
/// Immediates: [`super::shard::immediates`]; the shard is of experts, and others add nothing. Shards are added one after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Down {
    /// That of an expert, `[hidden, width]`.
    pub down: PanelLayout,
    /// Experts that a row uses.
    pub used: usize,
}

impl Down {
    /// Its text.
    pub fn kernel(&self, abilities: &Abilities) -> Kernel {
        let matrix = Matrix::new(0, &self.down);
        let Down { down, used } = self;
        let (width, hidden) = (down.columns(), down.rows());
        let threads = DOWN_THREADS.min(abilities.workgroup_threads as usize / 256 * 256).max(THREADS);
        let mut bindings = Bindings::default();
        bindings.read("x", "vec4<f32>");
        bindings.read("ids", "u32");
        bindings.read("weights", "f32");
        bindings.read("panels", "u32");
        bindings.write("out");
        let halves = matrix.codec.halves();
        let activations =
            Activations { columns: used * width, threads, norm: None, grains: vec![matrix.grain], halves };
        let expert = format!("(ids[first * {used}u + UNIT / STRETCH] - dispatch.first)");
        let panel =
            format!("({expert} * {}u + workgroup.x) * {}u", down.panels(), matrix.codec.panel_words());
        let product = Product {
            matrices: std::slice::from_ref(&matrix),
            columns: used * width,
            stretch: width,
            threads,
            rows: 1,
            place: Place {
                inside: &format!("{expert} < dispatch.count"),
                panels: &[panel],
                unit: "UNIT % STRETCH",
            },
            norm: false,
            halves,
        };
        let multiply = product.text("false").replace("STRETCH", &format!("{}u", product.stretch_units()));
        let store = format!(
            "let n = workgroup.x * {LANES}u + lane;
if (n < {hidden}u) {{ out[first * {hidden}u + n] += total0; }}
"
        );
        let source = format!(
            "{PRELUDE}{IMMEDIATES}{}
fn row_start(row: u32) -> u32 {{ return row * {}u; }}
fn share(row: u32, column: u32) -> f32 {{ return weights[row * {used}u + column / {width}u]; }}
{}{}{}
@compute @workgroup_size({threads})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) t: u32) {{
let lane = t % {LANES}u;
let first = workgroup.y;
let rows = 1u;
{multiply}{}}}
",
            bindings.text,
            used * width / 4,
            activations.wgsl(abilities),
            dots(abilities),
            matrix.codec.wgsl(&matrix.prefix, "panels"),
            product.add_up(&["m0_0".to_owned()], 1, &store),
        );
        Kernel {
            name: format!("down {:?} {hidden} x {width} {used} experts", down.format()),
            source,
            bindings: bindings.access,
            immediates: IMMEDIATE_BYTES,
        }
    }

    /// Workgroups for so many rows.
    pub fn grid(&self, rows: usize) -> [u32; 3] {
        [self.down.panels() as u32, rows as u32, 1]
    }
}
