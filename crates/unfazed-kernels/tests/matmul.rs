//! The product is right, and the same bits however it is computed.

mod common;

use common::*;
use unfazed_formats::BlockFormat;
use unfazed_kernels::Isa;
use unfazed_kernels::activations::{Grain, Tile};
use unfazed_kernels::matmul::matmul;
use unfazed_kernels::panel::unpack_row;

/// The dot products in f64 of dequantised weights and activations.
fn exact(w: &Packed, x: &[Vec<f32>]) -> Vec<f64> {
    let mut weights = vec![0.0; w.layout.columns()];
    let mut out = vec![0.0; x.len() * w.layout.rows()];
    for row in 0..w.layout.rows() {
        unpack_row(&w.matrix(), row, &mut weights);
        for (t, x) in x.iter().enumerate() {
            out[t * w.layout.rows() + row] =
                weights.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
        }
    }
    out
}

#[test]
fn the_definition_is_the_product_of_dequantised_weights_and_activations() {
    let mut random = Random(1);
    for format in formats() {
        let (n, k) = (37, 768);
        let file = file_rows(format, n, k, Scales::Ordinary, Bytes::Random, &mut random);
        let w = Packed::new(format, n, k, &file);
        let x: Vec<_> = (0..5).map(|_| Activations::Ordinary.row(k, &mut random)).collect();
        // What the int8 activations stand for.
        let grain = Grain::of(format);
        let rows = quantised(Isa::Reference, grain, &x);
        let rounded: Vec<Vec<f32>> = match grain.block() {
            None => x.clone(),
            Some(block) => (0..5)
                .map(|row| {
                    let (quants, scales) = rows.quantised(row);
                    quants
                        .iter()
                        .enumerate()
                        .map(|(i, &quant)| f32::from(quant) * scales[i / block])
                        .collect()
                })
                .collect(),
        };
        for (x, rounded) in x.iter().flatten().zip(rounded.iter().flatten()) {
            assert!((x - rounded).abs() <= 1.0 / 250.0, "{format:?}: {x} rounded to {rounded}");
        }
        for (grain, x) in [(grain, &rounded), (Grain::Float, &x)] {
            let got = product(Isa::Reference, &w, grain, if grain == Grain::Float { x } else { &rounded }, 0);
            let want = exact(&w, x);
            let size = want.iter().fold(0.0f64, |size, x| size.max(x.abs()));
            for (got, want) in got.iter().zip(want) {
                let error = (f64::from(*got) - want).abs() / size;
                assert!(error < 1e-5, "{format:?} {grain:?}: {got} for {want}");
            }
        }
    }
}

#[test]
fn every_instruction_set_batch_and_division_gives_the_same_bits() {
    let mut random = Random(2);
    for format in formats() {
        for (n, k) in [(48, 512), (37, 256), (1, 768), (16, 1280)] {
            for scales in Scales::ALL {
                let file = file_rows(format, n, k, scales, Bytes::Random, &mut random);
                let w = Packed::new(format, n, k, &file);
                let x: Vec<_> = (0..64)
                    .map(|t| Activations::ALL[if t % 3 == 0 { t / 3 % 8 } else { 0 }].row(k, &mut random))
                    .collect();
                let grain = Grain::of(format);
                let want = product(Isa::Reference, &w, grain, &x, 0);
                for isa in instruction_sets() {
                    for (i, m) in [1, 2, 3, 4, 5, 7, 8, 16, 33, 64].into_iter().enumerate() {
                        let got = product(isa, &w, grain, &x[64 - m..], i % 4);
                        same(&got, &want[(64 - m) * n..]).unwrap_or_else(|e| {
                            panic!("{format:?} {isa:?} {n} x {k}, {m} rows, {scales:?}: {e}")
                        });
                    }
                }
            }
        }
    }
}

#[test]
fn codes_and_activations_at_their_extremes_overflow_nowhere() {
    let mut random = Random(8);
    let (n, k) = (33, 512);
    for format in formats() {
        for byte in [0x00, 0x7f, 0x80, 0xff] {
            let file = file_rows(format, n, k, Scales::Extreme, Bytes::All(byte), &mut random);
            let w = Packed::new(format, n, k, &file);
            let kinds = [Activations::Constant, Activations::Alternating, Activations::Huge];
            let x: Vec<_> = (0..12).map(|t| kinds[t % 3].row(k, &mut random)).collect();
            let want = product(Isa::Reference, &w, Grain::of(format), &x, 0);
            for isa in instruction_sets() {
                for m in [1, 2, 12] {
                    let got = product(isa, &w, Grain::of(format), &x[..m], 0);
                    assert_eq!(same(&got, &want[..m * n]), Ok(()), "{format:?} {isa:?} {byte:#x} {m} rows");
                }
            }
        }
    }
}

#[test]
fn the_test_mode_with_f32_activations_gives_the_same_bits_everywhere() {
    let mut random = Random(9);
    let (n, k) = (21, 768);
    for format in formats() {
        for scales in Scales::ALL {
            let w = Packed::new(format, n, k, &file_rows(format, n, k, scales, Bytes::Random, &mut random));
            let x: Vec<_> = (0..16).map(|t| Activations::ALL[t % 8].row(k, &mut random)).collect();
            let want = product(Isa::Reference, &w, Grain::Float, &x, 0);
            for isa in instruction_sets() {
                for m in [1, 2, 3, 11, 16] {
                    let got = product(isa, &w, Grain::Float, &x[..m], 1);
                    assert_eq!(same(&got, &want[..m * n]), Ok(()), "{format:?} {isa:?} {scales:?} {m} rows");
                }
            }
        }
    }
}

#[test]
fn rows_beyond_the_matrix_are_not_written() {
    let mut random = Random(10);
    let (n, k) = (19, 256);
    let w = Packed::new(
        BlockFormat::Q4_0,
        n,
        k,
        &file_rows(BlockFormat::Q4_0, n, k, Scales::Ordinary, Bytes::Random, &mut random),
    );
    let rows = quantised(Isa::best(), Grain::Per32, &[Activations::Ordinary.row(k, &mut random)]);
    let mut tile = Tile::new();
    tile.gather(Isa::best(), BlockFormat::Q4_0, &rows, &[0, 0]);
    // A stride of 8 for the 3 rows of the last panel.
    let mut out = vec![-1.0; 16];
    matmul(Isa::best(), &w.matrix(), 1..2, &tile, &mut out, 8);
    assert_eq!(out[..3], out[8..11]);
    assert!(out[3..8].iter().chain(&out[11..]).all(|&y| y == -1.0));
}

#[test]
#[should_panic(expected = "results in 15 places")]
fn an_output_that_is_too_short_is_refused() {
    let w = Packed::new(BlockFormat::F32, 16, 1, &[0; 64]);
    let mut tile = Tile::new();
    tile.gather(
        Isa::Reference,
        BlockFormat::F32,
        &quantised(Isa::Reference, Grain::Float, &[vec![1.0]]),
        &[0],
    );
    matmul(Isa::Reference, &w.matrix(), 0..1, &tile, &mut [0.0; 15], 16);
}
