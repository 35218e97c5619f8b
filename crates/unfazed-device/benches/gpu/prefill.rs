//! Kernels of a prompt.

use unfazed_device::gpu::kernels::grouped::{Combine, down, gate_up};
use unfazed_device::gpu::kernels::quantise::{Quantise, QuantiseScalars, quantise};
use unfazed_device::gpu::kernels::routing::{GroupScalars, TopK, group_rows, top_k};
use unfazed_device::gpu::kernels::tile::{Product, Tile, TilePath, TileRows, TileScalars};
use unfazed_device::gpu::trial::{Prepared, Trial};
use unfazed_device::gpu::{Gpu, Kernel};
use unfazed_formats::BlockFormat;
use unfazed_kernels::activations::Grain;
use unfazed_kernels::panel::PanelLayout;

const FORMATS: [BlockFormat; 6] = [
    BlockFormat::Q8_0,
    BlockFormat::Q4_0,
    BlockFormat::Q4_K,
    BlockFormat::Q6_K,
    BlockFormat::MXFP4,
    BlockFormat::BF16,
];

/// Sizes of a mixture of experts.
struct Model {
    hidden: usize,
    feed_forward: usize,
    experts: usize,
    used: usize,
    rows: usize,
}

/// Prints a table of all kernels whose name has this part.
pub(crate) fn run(gpu: &Gpu, part: &str) {
    println!("kernel | shape | us | TFLOP/s or GB/s");
    let model = if gpu.info.software {
        Model { hidden: 256, feed_forward: 256, experts: 4, used: 2, rows: 64 }
    } else {
        Model { hidden: 2048, feed_forward: 768, experts: 64, used: 8, rows: 2048 }
    };
    let bench = Bench { gpu, part };
    small(&bench, &model);
    let shapes: &[[usize; 3]] = if gpu.info.software {
        &[[64, 256, 64]]
    } else {
        &[[512, 2048, 1024], [512, 2048, 2048], [2048, 2048, 2048], [2048, 4096, 4096]]
    };
    for format in FORMATS {
        for [rows, columns, outputs] in shapes {
            dense(&bench, format, *rows, *columns, *outputs);
        }
        experts(&bench, format, &model);
    }
}

struct Bench<'g> {
    gpu: &'g Gpu,
    part: &'g str,
}

impl Bench<'_> {
    /// Times a kernel; `work` is operations, or bytes if they are what counts.
    fn time(
        &self,
        kernel: &Kernel,
        buffers: &[Vec<u8>],
        immediates: &[u8],
        grid: [u32; 3],
        shape: &str,
        work: Work,
    ) {
        if !kernel.name.contains(self.part) {
            return;
        }
        let slices: Vec<&[u8]> = buffers.iter().map(Vec::as_slice).collect();
        let prepared =
            Prepared::new(self.gpu, kernel, &Trial { buffers: &slices, immediates, grid }).unwrap();
        let once = prepared.run(2).unwrap().as_secs_f64() / 2.0;
        let times = (0.02 / once).clamp(1.0, 50.0) as usize;
        let mut seconds: Vec<f64> =
            (0..5).map(|_| prepared.run(times).unwrap().as_secs_f64() / times as f64).collect();
        seconds.sort_by(f64::total_cmp);
        let [.., fast, _, _] = seconds[..] else { return };
        let rate = match work {
            Work::Operations(count) => format!("{:.1} TFLOP/s", count / fast / 1e12),
            Work::Bytes(count) => format!("{:.0} GB/s", count / fast / 1e9),
        };
        println!("{} | {shape} | {:.1} | {rate}", kernel.name, fast * 1e6);
    }
}

#[derive(Clone, Copy)]
enum Work {
    Operations(f64),
    Bytes(f64),
}

/// Bytes that are finite as f16, as bf16 and as f32, and of all codes.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1u64;
    (0..len.div_ceil(8))
        .flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state & 0x3bff_3bff_3bff_3bff).to_le_bytes()
        })
        .collect()
}

/// What a product on a path takes of rows.
fn activations(layout: &PanelLayout, path: TilePath, rows: usize) -> Vec<Vec<u8>> {
    let columns = rows * layout.columns();
    let grain = Grain::of(layout.format()).block().unwrap_or(32);
    match path {
        TilePath::Integers => vec![noise(columns), noise(columns / grain * 4), noise(columns / 4)],
        TilePath::Cooperative(_) => vec![noise(columns * 2), noise(rows.next_multiple_of(2) * 4)],
        TilePath::Floats => vec![noise(columns * 4)],
    }
}

fn paths(gpu: &Gpu, layout: &PanelLayout) -> Vec<TilePath> {
    let best = TilePath::best(layout, &gpu.abilities);
    let plain = match Grain::of(layout.format()) {
        Grain::Float => TilePath::Floats,
        _ => TilePath::Integers,
    };
    if best == plain { vec![plain] } else { vec![best, plain] }
}

fn dense(bench: &Bench<'_>, format: BlockFormat, rows: usize, columns: usize, outputs: usize) {
    let layout = PanelLayout::new(format, outputs, columns).unwrap();
    for path in paths(bench.gpu, &layout) {
        for tile_rows in [64, 128] {
            let tile = Tile { layout, path, rows: TileRows::All, product: Product::Store, tile_rows };
            let mut buffers = vec![noise(layout.bytes())];
            buffers.extend(activations(&layout, path, rows));
            buffers.push(vec![0; rows * outputs * 4]);
            let scalars = TileScalars { rows: rows as u32, ..TileScalars::default() };
            let work = Work::Operations(2.0 * (rows * columns * outputs) as f64);
            let shape = format!("M={rows} K={columns} N={outputs}");
            bench.time(&tile.kernel(), &buffers, &scalars.bytes(), tile.grid(rows as u32, 1), &shape, work);
        }
    }
}

/// Experts of rows that are spread alike.
fn ids(model: &Model) -> Vec<u32> {
    let step = model.experts / model.used;
    (0..model.rows)
        .flat_map(|row| (0..model.used).map(move |slot| (slot * step + row % step) as u32))
        .collect()
}

fn experts(bench: &Bench<'_>, format: BlockFormat, model: &Model) {
    let Model { hidden, feed_forward, experts, used, rows } = *model;
    let entries = rows * used;
    let (mut lists, mut counts) = (vec![0u32; experts * rows], vec![0u32; experts]);
    for (entry, id) in (0..).zip(ids(model)) {
        lists[id as usize * rows + counts[id as usize] as usize] = entry;
        counts[id as usize] += 1;
    }
    let inner = PanelLayout::new(format, feed_forward, hidden).unwrap();
    let outer = PanelLayout::new(format, hidden, feed_forward).unwrap();
    let scalars = TileScalars { rows: 0, stride: rows as u32, first_expert: 0 };
    let shape = format!("{entries} entries of {experts} experts");
    for path in paths(bench.gpu, &inner) {
        let tiles = [gate_up(inner, path, used as u32, 64), down(outer, path, 64), down(outer, path, 128)];
        for tile in tiles {
            let gated = tile.product == Product::GatedSilu;
            let stack = noise(experts * tile.layout.bytes());
            let mut buffers = vec![stack; if gated { 2 } else { 1 }];
            buffers.extend(activations(&tile.layout, path, if gated { rows } else { entries }));
            buffers.extend([bytemuck::cast_slice(&lists).to_vec(), bytemuck::cast_slice(&counts).to_vec()]);
            buffers.push(vec![0; entries * tile.layout.rows() * 4]);
            let matrices = if gated { 2 } else { 1 };
            let work = Work::Operations((2 * matrices * entries * hidden * feed_forward) as f64);
            let grid = tile.grid(rows as u32, experts as u32);
            bench.time(&tile.kernel(), &buffers, &scalars.bytes(), grid, &shape, work);
        }
    }
}

/// What comes between the products.
fn small(bench: &Bench<'_>, model: &Model) {
    let Model { hidden, experts, used, rows, .. } = *model;
    let entries = rows * used;
    for (integers, halves) in [(true, false), (false, true)] {
        for (grain, block) in [(Grain::Per32, 32), (Grain::Per256, 256)] {
            let what = Quantise {
                columns: hidden,
                grain,
                norm: true,
                listed: false,
                floats: true,
                integers,
                halves,
            };
            let count = rows * hidden;
            let mut buffers = vec![noise(count * 4), noise(hidden * 4), vec![0; count * 4]];
            if integers {
                buffers.extend([vec![0; count], vec![0; count / block * 4], vec![0; count / 4]]);
            } else {
                buffers.extend([vec![0; count * 2], vec![0; rows * 4]]);
            }
            let moved: usize = buffers.iter().map(Vec::len).sum();
            let scalars = QuantiseScalars { rows: rows as u32, epsilon: 1e-6 };
            let shape = format!("{rows} rows");
            let work = Work::Bytes(moved as f64);
            bench.time(&quantise(&what), &buffers, &scalars.bytes(), scalars.grid(), &shape, work);
        }
    }
    let what = TopK { experts, used, normalised: true };
    let buffers = [noise(rows * experts * 4), vec![0; entries * 4], vec![0; entries * 4]];
    let work = Work::Bytes((rows * experts * 4) as f64);
    bench.time(&top_k(&what), &buffers, &[], [rows as u32, 1, 1], &format!("{rows} rows"), work);

    let ids: Vec<u8> = bytemuck::cast_slice(&ids(model)).to_vec();
    let buffers = [ids, vec![0; experts * rows * 4], vec![0; experts * 4]];
    let scalars = GroupScalars { entries: entries as u32, stride: rows as u32 };
    let (grid, work) = ([experts as u32, 1, 1], Work::Bytes((experts * entries * 4) as f64));
    bench.time(&group_rows(), &buffers, &scalars.bytes(), grid, &format!("{entries} entries"), work);

    let combine = Combine { hidden, used };
    let buffers = [noise(rows * hidden * 4), noise(entries * hidden * 4), noise(entries * 4)];
    let work = Work::Bytes(((2 * rows + entries) * hidden * 4) as f64);
    bench.time(&combine.kernel(), &buffers, &[], combine.grid(rows as u32), &format!("{rows} rows"), work);
}
