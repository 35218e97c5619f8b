//! Matrices times few rows, against the CPU.

use unfazed_device::gpu::Abilities;
use unfazed_device::gpu::kernels::matvec::MatVec;
use unfazed_device::gpu::kernels::shard::{Shard, immediates};
use unfazed_device::gpu::trial::{Trial, once};
use unfazed_formats::BlockFormat;
use unfazed_formats::block::affine::{Affine, Bits, Group, Half};
use unfazed_kernels::Isa;
use unfazed_kernels::activations::Grain;
use unfazed_kernels::vector::rms_norm;

use crate::support::{bytes_of, difference, floats, gpu};
use crate::weights::{Activations, Bytes, Packed, Random, Scales, file_rows, formats, product};

/// What int8 products may differ by.
const TOLERANCE: f64 = 1e-3;
/// Summation in another order alone.
const EXACT_INT8: f64 = 1e-5;

fn packed(format: BlockFormat, rows: usize, columns: usize, seed: u64) -> Packed {
    let file = file_rows(format, rows, columns, Scales::Ordinary, Bytes::Random, &mut Random(seed));
    Packed::new(format, rows, columns, &file)
}

fn rows_of(columns: usize, rows: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut random = Random(seed);
    (0..rows).map(|_| Activations::Ordinary.row(columns, &mut random)).collect()
}

fn expected(w: &Packed, x: &[Vec<f32>]) -> Vec<f32> {
    product(Isa::best(), w, Grain::of(w.layout.format()), x, w.layout.panels())
}

/// What a kernel gives for all panels of one matrix.
fn multiply(abilities: &Abilities, w: &Packed, x: &[Vec<f32>], most: usize) -> Vec<f32> {
    let matvec = MatVec { matrices: vec![w.layout], norm: None, add: false, listed: false, rows: most };
    let out = vec![0xff; x.len() * w.layout.rows() * 4];
    let buffers: [&[u8]; 3] = [&bytes_of(&x.concat()), &w.bytes, &out];
    let immediates = immediates(x.len(), matvec.whole());
    let grid = matvec.grid(matvec.whole());
    let trial = Trial { buffers: &buffers, immediates: &immediates, grid };
    floats(&once(gpu().unwrap(), &matvec.kernel(abilities), &trial).unwrap()[2])
}

/// Compares with the CPU for two rows.
fn compare(abilities: &Abilities, format: BlockFormat) {
    let w = packed(format, 40, 512, 1);
    let x = rows_of(512, 2, 2);
    let off = difference(&multiply(abilities, &w, &x, 2), &expected(&w, &x));
    assert!(off < EXACT_INT8, "{format:?} is off by {off:e}");
}

#[test]
fn formats_of_every_kind_are_the_cpus() {
    use BlockFormat::{FP8, IQ4_NL, NVFP4, Q2_K, Q6_K};
    let Some(gpu) = gpu() else { return };
    // Codes of 8 bits with minimums.
    let affine = Affine { bits: Bits::Eight, group: Group::Of64, scale: Half::BF16 };
    for format in [IQ4_NL, NVFP4, Q2_K, Q6_K, FP8, BlockFormat::Affine(affine)] {
        compare(&gpu.abilities, format);
    }
}

#[test]
#[ignore = "takes a minute on a software device"]
fn every_format_is_the_cpus() {
    let Some(gpu) = gpu() else { return };
    formats().into_iter().for_each(|format| compare(&gpu.abilities, format));
}

#[test]
fn without_subgroups_and_without_packed_dot_products_it_is_the_same() {
    let Some(gpu) = gpu() else { return };
    let bare = Abilities { subgroup: None, packed_dot: false, ..gpu.abilities.clone() };
    for format in [BlockFormat::Q4_K, BlockFormat::Q3_K] {
        let w = packed(format, 17, 512, 3);
        let x = rows_of(512, 2, 4);
        let got = multiply(&bare, &w, &x, 2);
        let off = difference(&got, &expected(&w, &x));
        assert!(off < EXACT_INT8, "{format:?} is off by {off:e}");
        assert_eq!(got, multiply(&gpu.abilities, &w, &x, 2), "{format:?}");
    }
}

#[test]
fn the_same_row_alone_and_among_eight_has_the_same_bits() {
    let Some(gpu) = gpu() else { return };
    // Of one row all columns are held at once, of eight rows a part.
    for (format, columns) in [(BlockFormat::Q8_0, 2080), (BlockFormat::F16, 1056)] {
        let w = packed(format, 16, columns, 5);
        let x = rows_of(columns, 8, 6);
        let all = multiply(&gpu.abilities, &w, &x, 8);
        for (row, most) in [(0, 8), (7, 1)] {
            let alone = multiply(&gpu.abilities, &w, &x[row..=row], most);
            assert_eq!(alone, all[row * 16..][..16], "{format:?} row {row} in a kernel for {most}");
        }
        assert!(difference(&all, &expected(&w, &x)) < EXACT_INT8, "{format:?}");
    }
}

#[test]
fn a_row_of_14336_columns_is_multiplied_in_parts() {
    let Some(gpu) = gpu() else { return };
    let w = packed(BlockFormat::Q4_0, 5, 14336, 7);
    let x = rows_of(14336, 2, 8);
    let off = difference(&multiply(&gpu.abilities, &w, &x, 2), &expected(&w, &x));
    assert!(off < EXACT_INT8, "off by {off:e}");
}

#[test]
fn three_matrices_are_multiplied_by_chosen_rows_after_a_norm() {
    let Some(gpu) = gpu() else { return };
    let columns = 512;
    // Three grains in one dispatch.
    let all = [(BlockFormat::Q4_K, 48), (BlockFormat::F16, 20), (BlockFormat::Q8_0, 16)]
        .map(|(format, rows)| packed(format, rows, columns, 9));
    let x = rows_of(columns, 7, 10);
    let weight = Activations::Ordinary.row(columns, &mut Random(11));
    let list = [6u32, 0, 3, 3, 1];
    let chosen: Vec<Vec<f32>> = list
        .iter()
        .map(|row| {
            let mut row = x[*row as usize].clone();
            rms_norm(Isa::best(), &mut row, &weight, 1e-5);
            row
        })
        .collect();
    let matvec = MatVec {
        matrices: all.iter().map(|w| w.layout).collect(),
        norm: Some(1e-5),
        add: true,
        listed: true,
        rows: 5,
    };
    let list: Vec<u8> = list.iter().flat_map(|row| row.to_le_bytes()).collect();
    let outs = all.each_ref().map(|w| bytes_of(&vec![2.0; chosen.len() * w.layout.rows()]));
    let (x, weight) = (bytes_of(&x.concat()), bytes_of(&weight));
    let mut buffers: Vec<&[u8]> = vec![&x, &weight, &list];
    for (w, out) in all.iter().zip(&outs) {
        buffers.extend([&w.bytes[..], out]);
    }
    let immediates = immediates(chosen.len(), matvec.whole());
    let grid = matvec.grid(matvec.whole());
    let trial = Trial { buffers: &buffers, immediates: &immediates, grid };
    let got = once(gpu, &matvec.kernel(&gpu.abilities), &trial).unwrap();
    for (i, w) in all.iter().enumerate() {
        let expected: Vec<f32> = expected(w, &chosen).iter().map(|y| y + 2.0).collect();
        let off = difference(&floats(&got[4 + 2 * i]), &expected);
        assert!(off < TOLERANCE, "{:?} is off by {off:e}", w.layout.format());
    }
}

#[test]
fn shards_give_the_bits_of_the_whole_matrix() {
    let Some(gpu) = gpu() else { return };
    let w = packed(BlockFormat::Q5_0, 150, 96, 12);
    let x = rows_of(96, 3, 13);
    let whole = multiply(&gpu.abilities, &w, &x, 3);
    let size = w.layout.panel_bytes();
    let small = Abilities { binding_bytes: 5 * size as u64, ..gpu.abilities.clone() };
    let shards = Shard::divide(w.layout.panels(), size, &small);
    assert_eq!(shards.iter().map(|shard| shard.count).collect::<Vec<_>>(), [4, 4, 2]);
    let matvec = MatVec { matrices: vec![w.layout], norm: None, add: false, listed: false, rows: 3 };
    let mut out = vec![0xff; x.len() * 150 * 4];
    for shard in shards {
        let part = &w.bytes[shard.first as usize * size..][..shard.count as usize * size];
        let buffers: [&[u8]; 3] = [&bytes_of(&x.concat()), part, &out];
        let immediates = immediates(x.len(), shard);
        let trial = Trial { buffers: &buffers, immediates: &immediates, grid: matvec.grid(shard) };
        out = once(gpu, &matvec.kernel(&gpu.abilities), &trial).unwrap().swap_remove(2);
    }
    assert_eq!(floats(&out), whole);
}

#[test]
fn what_is_no_number_shows_in_its_own_row_alone() {
    let Some(gpu) = gpu() else { return };
    for format in [BlockFormat::Q8_0, BlockFormat::Q4_K] {
        let w = packed(format, 16, 512, 14);
        let mut x = rows_of(512, 3, 15);
        x[0][300] = f32::INFINITY;
        x[2][1] = f32::NAN;
        let got = multiply(&gpu.abilities, &w, &x, 3);
        assert!(got[..16].iter().chain(&got[32..]).all(|y| y.is_nan()), "{format:?}");
        assert_eq!(got[16..32], multiply(&gpu.abilities, &w, &x[1..2], 3), "{format:?}");
    }
}

#[test]
fn a_vocabulary_of_151936_rows_fits_a_dispatch_and_panels_in_turn_are_right() {
    let Some(gpu) = gpu() else { return };
    let w = packed(BlockFormat::Q4_0, 151_936, 32, 16);
    let matvec = MatVec { matrices: vec![w.layout], norm: None, add: false, listed: false, rows: 3 };
    assert!(matvec.grid(matvec.whole())[0] <= 65_535);
    let x = rows_of(32, 2, 17);
    let got = multiply(&gpu.abilities, &w, &x, 3);
    assert!(difference(&got, &expected(&w, &x)) < EXACT_INT8);
}
