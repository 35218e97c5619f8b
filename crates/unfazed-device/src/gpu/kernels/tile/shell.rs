//! What all paths share.

use std::fmt::Write as _;

use unfazed_kernels::activations::Grain;
use unfazed_kernels::panel::PanelLayout;

use super::super::format::{Codec, PRELUDE};
use super::{Product, TILE_COLUMNS, Tile, TilePath, TileRows, cooperative, floats, integers};
use crate::gpu::kernel::{Access, Kernel};

/// Shared memory that tiles of 64 rows may take, which is what Metal has, and those of 128: what the others have. Less a few
/// bytes for lists.
const SHARED_BYTES: u32 = 32 * 1024 - 16;
const SHARED_BYTES_OF_LARGE: u32 = 48 * 1024 - 16;

/// How a workgroup divides its work.
pub(super) struct Shape {
    pub(super) codec: Codec,
    pub(super) tile: Tile,
    /// Columns of the activations.
    pub(super) columns: u32,
    /// Threads of a workgroup.
    pub(super) threads: u32,
    /// Rows of the tile.
    pub(super) rows: u32,
    /// Groups of 32 columns of a step.
    pub(super) groups: u32,
}

/// The parts of a kernel that differ by path.
pub(super) struct Parts {
    /// Lines before everything else.
    pub(super) enable: &'static str,
    /// Names and elements of the bindings with activations.
    pub(super) activations: &'static [(&'static str, &'static str)],
    /// Shared memory and functions.
    pub(super) shared: String,
    /// Further arguments of the entry point.
    pub(super) arguments: &'static str,
    /// Variables of a thread: accumulators.
    pub(super) variables: String,
    /// Variables for a group of activations, number `i`.
    pub(super) held: fn(i: u32) -> String,
    /// Reads group `g` of row `r` of activations, number `i`; `beyond` is true where there is no such group.
    pub(super) fetch: String,
    /// Stores group `k` of the step, row `m` of the tile, of activations.
    pub(super) store: String,
    /// Stores group `k` of the step, column `n` of the tile, of a matrix named MATRIX that was read to RAW, its group `g`.
    pub(super) expand: String,
    /// Computes a step.
    pub(super) compute: String,
    /// Writes the outputs. `row_of(m)` is the row of activations and `place_of(m)` that of the output.
    pub(super) finish: String,
}

impl Shape {
    fn of(tile: &Tile) -> Shape {
        let rows = tile.height();
        let (threads, groups) = match tile.path {
            TilePath::Integers => (256, 4),
            TilePath::Floats => (256, 2),
            TilePath::Cooperative(8) => (2 * rows, 1),
            TilePath::Cooperative(_) => (2 * rows, 2),
        };
        let codec = Codec::of(&tile.layout);
        let mut shape =
            Shape { codec, tile: *tile, columns: tile.layout.columns() as u32, threads, rows, groups };
        let limit = if rows == 64 { SHARED_BYTES } else { SHARED_BYTES_OF_LARGE };
        while shape.groups > 1 && shape.group_bytes() * shape.groups > limit {
            shape.groups /= 2;
        }
        shape
    }

    /// Bytes of shared memory for a group of 32 columns.
    fn group_bytes(&self) -> u32 {
        match self.tile.path {
            TilePath::Integers => integers::group_bytes(self),
            TilePath::Floats => (self.rows + TILE_COLUMNS * self.matrices().len() as u32) * 128,
            // As much as there is anywhere is enough for what it takes.
            TilePath::Cooperative(_) => 0,
        }
    }

    /// Names of the matrices.
    pub(super) fn matrices(&self) -> &'static [&'static str] {
        match self.tile.product {
            Product::GatedSilu => &["w", "up"],
            _ => &["w"],
        }
    }

    /// Groups of 32 columns of a row.
    pub(super) fn all_groups(&self) -> u32 {
        self.columns / 32
    }

    /// WGSL: what becomes of the sums in `values`, one for each matrix, for output `at`.
    pub(super) fn output(&self, at: &str, values: &[String]) -> String {
        match (self.tile.product, values) {
            (Product::GatedSilu, [gate, up]) => {
                format!("out[{at}] = {gate} / (1.0 + exp(-{gate})) * {up};")
            }
            (Product::Add, [value, ..]) => format!("out[{at}] += {value};"),
            (_, [value, ..]) => format!("out[{at}] = {value};"),
            (_, []) => String::new(),
        }
    }

    /// Groups that are stored in a step, of a matrix of weights or of activations with so many rows in the tile, as the
    /// threads have them: how many each, and the condition for it.
    fn units(&self, rows: u32, last_threads: bool) -> Units {
        let all = rows * self.groups;
        if all >= self.threads {
            return Units { each: all / self.threads, condition: None, first: 0 };
        }
        // Threads that have no weights to expand have activations to copy.
        let first = if last_threads { self.threads - all } else { 0 };
        let condition = if last_threads { format!("t >= {first}u") } else { format!("t < {all}u") };
        Units { each: 1, condition: Some(condition), first }
    }
}

struct Units {
    each: u32,
    condition: Option<String>,
    first: u32,
}

impl Units {
    fn guarded(&self, text: &str) -> String {
        match &self.condition {
            Some(condition) => format!("if {condition} {{ {text} }}\n"),
            None => format!("{{ {text} }}\n"),
        }
    }
}

pub(super) fn kernel(tile: &Tile) -> Kernel {
    let shape = Shape::of(tile);
    let parts = match tile.path {
        TilePath::Integers => integers::parts(&shape),
        TilePath::Cooperative(size) => cooperative::parts(&shape, size),
        TilePath::Floats => floats::parts(&shape),
    };
    let (declared, bindings) = declarations(&shape, &parts);
    let mut source = format!("{}{declared}{PRELUDE}", parts.enable);
    for name in shape.matrices() {
        source += &shape.codec.wgsl(name, &format!("{name}_words"));
    }
    source += &constants(&shape);
    source += &parts.shared;
    source += &entry(&shape, &parts);
    let layout = &tile.layout;
    let name = format!(
        "tile-{:?}-{}x{}-{:?}-{:?}-{:?}-{}",
        layout.format(),
        layout.rows(),
        layout.columns(),
        tile.path,
        tile.rows,
        tile.product,
        tile.tile_rows
    );
    Kernel { name, source, bindings, immediates: 12 }
}

fn declarations(shape: &Shape, parts: &Parts) -> (String, Vec<Access>) {
    let mut all: Vec<(String, Access, &str)> =
        shape.matrices().iter().map(|name| (format!("{name}_words"), Access::Read, "u32")).collect();
    all.extend(parts.activations.iter().map(|(name, element)| ((*name).to_owned(), Access::Read, *element)));
    if shape.tile.rows != TileRows::All {
        all.push(("lists".to_owned(), Access::Read, "u32"));
        all.push(("counts".to_owned(), Access::Read, "u32"));
    }
    all.push(("out".to_owned(), Access::Write, "f32"));
    let mut text = String::new();
    for (binding, (name, access, element)) in all.iter().enumerate() {
        let mode = if *access == Access::Read { "read" } else { "read_write" };
        let _ =
            writeln!(text, "@group(0) @binding({binding}) var<storage, {mode}> {name}: array<{element}>;");
    }
    (text, all.iter().map(|(_, access, _)| *access).collect())
}

fn constants(shape: &Shape) -> String {
    let layout: &PanelLayout = &shape.tile.layout;
    let grain = Grain::of(layout.format()).block().unwrap_or(32) / 32;
    let (row_of, place_of) = match shape.tile.rows {
        TileRows::All => ("m0 + m".to_owned(), "m0 + m"),
        TileRows::Listed { share } => {
            let entry = "lists[(scalars.first_expert + expert) * scalars.stride + m0 + m]";
            (format!("{entry} / {share}u"), entry)
        }
    };
    format!(
        "struct Scalars {{ rows: u32, stride: u32, first_expert: u32 }}
var<immediate> scalars: Scalars;
const OUTPUTS = {}u;
const COLUMNS = {}u;
const GROUPS = {}u;
const GRAIN = {grain}u;
const THREADS = {}u;
const TM = {}u;
const TN = {TILE_COLUMNS}u;
const STEP = {}u;
fn row_of(expert: u32, m0: u32, m: u32) -> u32 {{ return {row_of}; }}
fn place_of(expert: u32, m0: u32, m: u32) -> u32 {{ return {place_of}; }}
var<workgroup> listed: u32;
",
        layout.rows(),
        layout.columns(),
        shape.all_groups(),
        shape.threads,
        shape.rows,
        shape.groups,
    )
}

/// WGSL: how many rows there are. All threads must be known to agree on it: cooperative matrices come after a return.
fn count(tile: &Tile) -> &'static str {
    match tile.rows {
        TileRows::All => "    let rows = scalars.rows;\n",
        TileRows::Listed { .. } => {
            "    if t == 0u { listed = counts[scalars.first_expert + expert]; }
    let rows = workgroupUniformLoad(&listed);\n"
        }
    }
}

fn entry(shape: &Shape, parts: &Parts) -> String {
    let tile = &shape.tile;
    let layout = &tile.layout;
    let (weights, rows) = (shape.units(TILE_COLUMNS, false), shape.units(shape.rows, true));
    let mut text = format!(
        "@compute @workgroup_size({})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32{}) {{
    let expert = group.z;
{count}    let m0 = group.y * TM;
    let n0 = group.x * TN;
    if m0 >= rows {{ return; }}
    let matrix = expert * {}u;
",
        shape.threads,
        parts.arguments,
        layout.panels() as u32 * shape.codec.panel_words(),
        count = count(tile),
    );
    let (mut fetch, mut store) = (String::new(), String::new());
    for i in 0..weights.each {
        let unit = format!("(t + {}u)", i * shape.threads);
        let _ = write!(
            text,
            "    let wn{i} = {unit} % TN; let wk{i} = {unit} / TN; let wl{i} = {unit} & 15u;
    let wp{i} = matrix + min(n0 / 16u + wn{i} / 16u, {}u) * {}u;\n",
            layout.panels() - 1,
            shape.codec.panel_words()
        );
        for name in shape.matrices() {
            let _ = writeln!(text, "    var {name}{i}: {name}_Raw;");
            let group = format!("let g = min(step * STEP + wk{i}, GROUPS - 1u);");
            fetch += &weights.guarded(&format!("{group} {name}{i} = {name}_load(wp{i}, wl{i}, g);"));
            let expand = parts.expand.replace("MATRIX", name).replace("RAW", &format!("{name}{i}"));
            store += &weights
                .guarded(&format!("{group} let n = wn{i}; let k = wk{i}; let lane = wl{i};\n{expand}"));
        }
    }
    for i in 0..rows.each {
        let unit = format!("(t - {}u + {}u)", rows.first, i * shape.threads);
        let _ = write!(
            text,
            "    let xm{i} = {unit} % TM; let xk{i} = {unit} / TM;
    var xr{i} = 0u;
{}    {}\n",
            rows.guarded(&format!("xr{i} = row_of(expert, m0, min(xm{i}, rows - 1u - m0));")),
            (parts.held)(i),
        );
        let number = i.to_string();
        fetch += &rows.guarded(&format!(
            "let r = xr{i}; let g = min(step * STEP + xk{i}, GROUPS - 1u); let beyond = step * STEP + xk{i} >= GROUPS;\n{}",
            parts.fetch.replace('#', &number)
        ));
        let copy = parts.store.replace('#', &number);
        store += &rows.guarded(&format!("let m = xm{i}; let k = xk{i};\n{copy}"));
    }
    let steps = shape.all_groups().div_ceil(shape.groups);
    let _ = write!(
        text,
        "{}
    var step = 0u;
{fetch}
    for (; step < {steps}u;) {{
        workgroupBarrier();
{store}
        workgroupBarrier();
        step++;
        if step < {steps}u {{
{fetch}
        }}
{}
    }}
{}
}}
",
        parts.variables, parts.compute, parts.finish
    );
    text
}

/// Where the threads of a workgroup of 256 stand in a tile of 16 x 16 of them: a subgroup of 32 as 8 x 4, so that what it
/// reads of shared memory at once lies together.
pub(super) const PLACES: &str = "    let tm = (t & 7u) | (((t >> 5u) & 1u) << 3u);
    let tn = ((t >> 3u) & 3u) | ((t >> 6u) << 2u);\n";

/// WGSL: accumulators `c` of all matrices, 4 columns of row `m` of a thread each.
pub(super) fn accumulators(shape: &Shape) -> String {
    let mut text = PLACES.to_owned();
    for name in shape.matrices() {
        for m in 0..shape.rows / 16 {
            let _ = writeln!(text, "    var c_{name}{m} = vec4<f32>();");
        }
    }
    text
}

/// WGSL: writes the accumulators.
pub(super) fn write_accumulators(shape: &Shape) -> String {
    let mut text = "    let n = n0 + tn * 4u;\n".to_owned();
    for m in 0..shape.rows / 16 {
        let _ = writeln!(
            text,
            "    {{ let m = tm * 4u + {}u; if m0 + m < rows {{ let at = place_of(expert, m0, m) * OUTPUTS + n;",
            m / 4 * 64 + m % 4
        );
        for (j, part) in ["x", "y", "z", "w"].into_iter().enumerate() {
            let values: Vec<String> =
                shape.matrices().iter().map(|name| format!("c_{name}{m}.{part}")).collect();
            let _ = writeln!(
                text,
                "    if n + {j}u < OUTPUTS {{ {} }}",
                shape.output(&format!("at + {j}u"), &values)
            );
        }
        text += "    } }\n";
    }
    text
}
