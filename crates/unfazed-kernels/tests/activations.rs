//! Activations are rounded alike everywhere, and what is not finite stays visible.

mod common;

use common::*;
use unfazed_kernels::Isa;
use unfazed_kernels::activations::{Grain, QuantisedRows, Tile};
use unfazed_kernels::matmul::matmul;

#[test]
fn every_instruction_set_rounds_alike() {
    let mut random = Random(3);
    for grain in [Grain::Per32, Grain::Per256] {
        for kind in Activations::ALL {
            let x: Vec<_> = (0..20).map(|_| kind.row(1024, &mut random)).collect();
            let want = quantised(Isa::Reference, grain, &x);
            for isa in instruction_sets() {
                let got = quantised(isa, grain, &x);
                for row in 0..x.len() {
                    assert_eq!(got.quantised(row).0, want.quantised(row).0, "{grain:?} {kind:?} {isa:?}");
                    assert_eq!(
                        same(got.quantised(row).1, want.quantised(row).1),
                        Ok(()),
                        "{grain:?} {kind:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn rounding_is_half_to_even_and_the_largest_becomes_127() {
    let mut x = vec![0.0; 32];
    // With 127 as the largest, the scale is 1.
    x[..8].copy_from_slice(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5, -125.5]);
    let rows = quantised(Isa::Reference, Grain::Per32, &[x]);
    let (quants, scales) = rows.quantised(0);
    assert_eq!(quants[..8], [127, 0, 2, 2, 0, -2, -126, -126]);
    assert_eq!(scales, [1.0]);
}

#[test]
fn magnitudes_too_small_to_divide_by_count_as_zero() {
    let mut random = Random(4);
    let rows = quantised(Isa::Reference, Grain::Per32, &[Activations::Subnormal.row(64, &mut random)]);
    assert_eq!(rows.quantised(0), (&[0i8; 64][..], &[0.0f32; 2][..]));
}

#[test]
fn a_block_that_is_not_finite_makes_every_result_of_its_row_nan_and_no_other() {
    let mut random = Random(5);
    for format in formats() {
        let (n, k) = (20, 512);
        let w =
            Packed::new(format, n, k, &file_rows(format, n, k, Scales::Ordinary, Bytes::Random, &mut random));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x: Vec<_> = (0..3).map(|_| Activations::Ordinary.row(k, &mut random)).collect();
            x[1][300] = bad;
            for isa in instruction_sets() {
                let out = product(isa, &w, Grain::of(format), &x, 0);
                assert!(out[..n].iter().chain(&out[2 * n..]).all(|y| y.is_finite()), "{format:?} {bad}");
                assert!(out[n..2 * n].iter().all(|y| !y.is_finite()), "{format:?} {bad}");
            }
        }
    }
}

#[test]
fn a_row_gives_the_same_whatever_order_the_tile_has() {
    let mut random = Random(6);
    let (n, k) = (35, 512);
    for format in formats() {
        let w =
            Packed::new(format, n, k, &file_rows(format, n, k, Scales::Ordinary, Bytes::Random, &mut random));
        let x: Vec<_> = (0..9).map(|_| Activations::Ordinary.row(k, &mut random)).collect();
        for isa in instruction_sets() {
            let rows = quantised(isa, Grain::of(format), &x);
            let mut tile = Tile::new();
            let mut out = vec![0.0; 64 * n];
            tile.gather(isa, format, &rows, &(0..9).collect::<Vec<_>>());
            matmul(isa, &w.matrix(), 0..w.layout.panels(), &tile, &mut out, n);
            let want = out.clone();
            // A larger tile first, so that old content lies in the buffers.
            let many: Vec<usize> = (0..64).map(|_| random.below(9)).collect();
            for indices in [&many[..], &[8, 3, 3, 0, 7], &[4]] {
                tile.gather(isa, format, &rows, indices);
                matmul(isa, &w.matrix(), 0..w.layout.panels(), &tile, &mut out, n);
                for (t, &row) in indices.iter().enumerate() {
                    assert_eq!(same(&out[t * n..][..n], &want[row * n..][..n]), Ok(()), "{format:?} {isa:?}");
                }
            }
        }
    }
}

#[test]
fn threads_fill_rows_and_parts_of_rows_of_one_table() {
    let mut random = Random(7);
    let x: Vec<_> = (0..6).map(|_| Activations::Ordinary.row(1024, &mut random)).collect();
    for grain in [Grain::Float, Grain::Per32, Grain::Per256] {
        let want = quantised(Isa::Reference, grain, &x);
        let mut table = QuantisedRows::new();
        table.resize(grain, 6, 1024);
        let shared = table.shared();
        std::thread::scope(|scope| {
            for part in 0..4 {
                let x = &x;
                scope.spawn(move || {
                    for (row, x) in x.iter().enumerate() {
                        let columns = part * 256..(part + 1) * 256;
                        fill(shared, row, columns.clone(), &x[columns]);
                    }
                });
            }
        });
        for row in 0..6 {
            assert_eq!(table.quantised(row), want.quantised(row));
            assert_eq!(table.floats(row), want.floats(row));
        }
    }
}

#[allow(unsafe_code)]
fn fill(
    table: unfazed_kernels::activations::SharedRows<'_>,
    row: usize,
    columns: std::ops::Range<usize>,
    x: &[f32],
) {
    // SAFETY: each thread of the test fills columns of its own.
    unsafe { table.slot(row, columns) }.quantise(Isa::best(), x);
}
