//! Many rows times a matrix.

use unfazed_device::gpu::Gpu;
use unfazed_device::gpu::kernels::format::Codec;
use unfazed_device::gpu::kernels::tile::{Product, Tile, TilePath, TileRows, TileScalars};
use unfazed_device::gpu::trial::{Trial, once};
use unfazed_formats::BlockFormat;
use unfazed_kernels::Isa;
use unfazed_kernels::activations::Grain;
use unfazed_kernels::panel::PanelLayout;

use crate::prefill::{activations, close, paths, rows, tolerance};
use crate::support::{bytes, floats, gpu};
use crate::translate::translates;
use crate::weights::{Bytes, Packed, Random, Scales, file_rows, formats, product};

fn matrix(format: BlockFormat, rows: usize, columns: usize, seed: u64) -> Packed {
    let mut random = Random(seed);
    let file = file_rows(format, rows, columns, Scales::Ordinary, Bytes::Random, &mut random);
    Packed::new(format, rows, columns, &file)
}

/// A tile of all rows.
fn tile(w: &Packed, path: TilePath, product: Product) -> Tile {
    Tile { layout: w.layout, path, rows: TileRows::All, product, tile_rows: 64 }
}

/// What is in `out` after the product of `x`, `[rows, matrix rows]`.
fn run(gpu: &Gpu, tile: &Tile, matrices: &[&Packed], x: &[Vec<f32>], out: &[f32]) -> Vec<f32> {
    let mut buffers: Vec<Vec<u8>> = matrices.iter().map(|w| w.bytes.to_vec()).collect();
    buffers.extend(activations(gpu, &tile.layout, tile.path, x));
    buffers.push(bytes(out));
    let scalars = TileScalars { rows: x.len() as u32, ..TileScalars::default() };
    let slices: Vec<&[u8]> = buffers.iter().map(Vec::as_slice).collect();
    let trial = Trial { buffers: &slices, immediates: &scalars.bytes(), grid: tile.grid(x.len() as u32, 1) };
    floats(once(gpu, &tile.kernel(), &trial).unwrap().last().unwrap())
}

/// The CPU's product.
fn expected(w: &Packed, x: &[Vec<f32>]) -> Vec<f32> {
    x.chunks(64).flat_map(|x| product(Isa::best(), w, Grain::of(w.layout.format()), x, 1)).collect()
}

/// Every format; on a software device, which takes seconds to compile a kernel, one of each kind of kernel.
fn formats_for(gpu: &Gpu) -> Vec<BlockFormat> {
    let mut all = formats();
    if gpu.info.software {
        let kind = |format: &BlockFormat| {
            let codec = Codec::of(&PanelLayout::new(*format, 16, 256).unwrap());
            (codec.halves(), codec.minimums(), codec.bias() != 0, Grain::of(*format) == Grain::Per256)
        };
        let mut seen = Vec::new();
        all.retain(|format| {
            !seen.contains(&kind(format)) && {
                seen.push(kind(format));
                true
            }
        });
    }
    all
}

#[test]
fn every_format_agrees_with_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for (i, format) in formats_for(gpu).into_iter().enumerate() {
        // Neither rows nor columns fill their tiles; nine groups of 32 columns do not fill steps either.
        let columns = if format.block_weights() == 32 { 288 } else { 256 };
        let (w, x) = (matrix(format, 70, columns, i as u64), rows(5, columns, 9));
        let expected = expected(&w, &x);
        for path in paths(gpu, &w.layout) {
            let tile = tile(&w, path, Product::Store);
            let got = run(gpu, &tile, &[&w], &x, &vec![f32::NAN; x.len() * 70]);
            close(&got, &expected, tolerance(&tile), &format!("{format:?} {path:?}"));
        }
    }
}

#[test]
fn any_number_of_rows_agrees_with_the_cpu_in_tiles_of_any_size() {
    let Some(gpu) = gpu() else { return };
    for format in [BlockFormat::Q4_K, BlockFormat::F16] {
        let w = matrix(format, 70, 256, 1);
        for count in [1, 63, 65, 130] {
            let x = rows(count, 256, count as u64);
            let expected = expected(&w, &x);
            for path in paths(gpu, &w.layout) {
                let mut tile = tile(&w, path, Product::Store);
                let got = run(gpu, &tile, &[&w], &x, &vec![f32::NAN; count * 70]);
                close(&got, &expected, tolerance(&tile), &format!("{count} rows, {path:?}"));
                tile.tile_rows = 128;
                let larger = run(gpu, &tile, &[&w], &x, &vec![f32::NAN; count * 70]);
                assert_eq!(bytes(&larger), bytes(&got), "{path:?}, {count} rows in tiles of 128");
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_chunk() {
    let Some(gpu) = gpu() else { return };
    for format in [BlockFormat::Q4_K, BlockFormat::F16] {
        let (w, x) = (matrix(format, 70, 256, 2), rows(90, 256, 6));
        for path in paths(gpu, &w.layout) {
            let tile = tile(&w, path, Product::Store);
            let all = run(gpu, &tile, &[&w], &x, &vec![f32::NAN; 90 * 70]);
            for chunk in [0..1, 40..90, 89..90] {
                let part = run(gpu, &tile, &[&w], &x[chunk.clone()], &vec![f32::NAN; chunk.len() * 70]);
                let same = &all[chunk.start * 70..chunk.end * 70];
                assert_eq!(bytes(&part), bytes(same), "{format:?} {path:?} rows {chunk:?}");
            }
        }
    }
}

#[test]
fn products_are_added_or_gated() {
    let Some(gpu) = gpu() else { return };
    for format in [BlockFormat::Q5_K, BlockFormat::FP8] {
        let (w, up, x) = (matrix(format, 50, 512, 3), matrix(format, 50, 512, 4), rows(7, 512, 8));
        let before = rows(7, 50, 10).concat();
        let (gate_sums, up_sums) = (expected(&w, &x), expected(&up, &x));
        let added: Vec<f32> = before.iter().zip(&gate_sums).map(|(a, b)| a + b).collect();
        let gated: Vec<f32> =
            gate_sums.iter().zip(&up_sums).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
        for path in paths(gpu, &w.layout) {
            let what = format!("{format:?} {path:?}");
            let add = tile(&w, path, Product::Add);
            close(&run(gpu, &add, &[&w], &x, &before), &added, tolerance(&add), &what);
            let silu = tile(&w, path, Product::GatedSilu);
            close(&run(gpu, &silu, &[&w, &up], &x, &before), &gated, 2.0 * tolerance(&silu), &what);
        }
    }
}

#[test]
fn every_tile_translates_for_vulkan_and_metal() {
    let translated = |tile: &Tile| {
        // Metal has no cooperative matrices of 16 rows.
        let metal = tile.path != TilePath::Cooperative(16);
        let translated = translates(&tile.kernel());
        assert_eq!(translated.metal.is_ok(), metal, "{tile:?}: {:?}", translated.metal);
        let shared = translated.shared;
        let most = if metal && tile.tile_rows == 64 { 32 } else { 48 } * 1024;
        assert!(shared <= most, "{tile:?}: {shared} bytes of shared memory");
    };
    for format in formats() {
        let w = matrix(format, 16, 256, 1);
        let integers = Grain::of(format) != Grain::Float;
        let plain = if integers { TilePath::Integers } else { TilePath::Floats };
        for path in [plain, TilePath::Cooperative(16), TilePath::Cooperative(8)] {
            let mut tile = tile(&w, path, Product::Store);
            translated(&tile);
            (tile.rows, tile.product) = (TileRows::Listed { share: 8 }, Product::GatedSilu);
            translated(&tile);
            (tile.product, tile.tile_rows) = (Product::Store, 128);
            translated(&tile);
        }
    }
}
