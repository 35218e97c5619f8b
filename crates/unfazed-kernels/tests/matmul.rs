//! The product is right, and the same bits however it is computed.

mod common;

use common::*;
use unfazed_formats::BlockFormat;
use unfazed_kernels::Isa;
use unfazed_kernels::activations::Grain;
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
    for format in BlockFormat::ALL {
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
    for format in BlockFormat::ALL {
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
