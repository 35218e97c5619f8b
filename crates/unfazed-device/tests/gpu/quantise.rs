//! Norm and rounding of activations.

use unfazed_device::gpu::kernels::quantise::{Quantise, QuantiseScalars, quantise};
use unfazed_device::gpu::trial::{Trial, once};
use unfazed_kernels::Isa;
use unfazed_kernels::activations::{Grain, QuantisedRows};
use unfazed_kernels::vector::rms_norm;

use crate::prefill::{close, rows};
use crate::support::{bytes, floats, gpu, words};
use crate::translate::translates;
use crate::weights::{Activations, Random, quantised};

const PLAIN: Quantise = Quantise {
    columns: 256,
    grain: Grain::Per32,
    norm: false,
    listed: false,
    floats: false,
    integers: true,
    halves: false,
};

/// Runs the kernel; `sizes` are bytes of what it writes.
fn run(
    what: &Quantise,
    inputs: &[Vec<u8>],
    sizes: &[usize],
    scalars: QuantiseScalars,
) -> Option<Vec<Vec<u8>>> {
    let gpu = gpu()?;
    let outputs: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0xee; *size]).collect();
    let buffers: Vec<&[u8]> = inputs.iter().chain(&outputs).map(Vec::as_slice).collect();
    let trial = Trial { buffers: &buffers, immediates: &scalars.bytes(), grid: scalars.grid() };
    Some(once(gpu, &quantise(what), &trial).unwrap().split_off(inputs.len()))
}

fn check_row(cpu: &QuantisedRows, row: usize, quants: &[u8], scales: &[f32], sums: &[u32], what: &str) {
    let (expected, expected_scales) = cpu.quantised(row);
    let got: Vec<i8> = quants.iter().map(|byte| *byte as i8).collect();
    assert_eq!(got, expected, "{what}");
    for (got, expected) in scales.iter().zip(expected_scales) {
        assert!(got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan(), "{what}");
    }
    for (got, quants) in sums.iter().zip(expected.chunks(16)) {
        assert_eq!(*got as i32, quants.iter().map(|quant| i32::from(*quant)).sum::<i32>(), "{what}");
    }
}

#[test]
fn int8_activations_have_the_cpus_bits() {
    for (grain, columns) in
        [(Grain::Per32, 96), (Grain::Per32, 4128), (Grain::Per256, 256), (Grain::Per256, 4608)]
    {
        let mut random = Random(11);
        let x: Vec<Vec<f32>> = Activations::ALL.iter().map(|kind| kind.row(columns, &mut random)).collect();
        let block = grain.block().unwrap();
        let sizes = [columns * 8, columns * 8 / block * 4, columns * 8 / 16 * 4];
        let scalars = QuantiseScalars { rows: 8, epsilon: 0.0 };
        let what = Quantise { columns, grain, ..PLAIN };
        let Some(got) = run(&what, &[bytes(&x.concat())], &sizes, scalars) else { return };
        let cpu = quantised(Isa::best(), grain, &x);
        let (scales, sums) = (floats(&got[1]), words(&got[2]));
        for (row, kind) in Activations::ALL.iter().enumerate() {
            let name = format!("{grain:?} {columns} {kind:?}");
            let (per_block, per_16) = (columns / block, columns / 16);
            check_row(
                &cpu,
                row,
                &got[0][row * columns..][..columns],
                &scales[row * per_block..][..per_block],
                &sums[row * per_16..][..per_16],
                &name,
            );
        }
    }
}

#[test]
fn the_norm_is_the_cpus_and_a_list_names_its_rows() {
    let columns = 1056;
    let (x, weight) = (rows(5, columns, 3), rows(1, columns, 4).concat());
    let list = [4u32, 0, 4];
    let what = Quantise { columns, norm: true, listed: true, floats: true, ..PLAIN };
    let inputs = [bytes(&x.concat()), bytes(&weight), bytes(&list)];
    let sizes = [3 * columns * 4, 3 * columns, 3 * columns / 32 * 4, 3 * columns / 16 * 4];
    let scalars = QuantiseScalars { rows: 3, epsilon: 1e-6 };
    let Some(got) = run(&what, &inputs, &sizes, scalars) else { return };
    let normed = floats(&got[0]);
    let (scales, sums) = (floats(&got[2]), words(&got[3]));
    for (i, named) in list.iter().enumerate() {
        let mine = normed[i * columns..][..columns].to_vec();
        let mut expected = x[*named as usize].clone();
        rms_norm(Isa::best(), &mut expected, &weight, 1e-6);
        close(&mine, &expected, 1e-6, "the norm");
        // Rounded are the very numbers that were written.
        let cpu = quantised(Isa::best(), Grain::Per32, &[mine]);
        check_row(
            &cpu,
            0,
            &got[1][i * columns..][..columns],
            &scales[i * columns / 32..][..columns / 32],
            &sums[i * columns / 16..][..columns / 16],
            "after the norm",
        );
    }
    assert_eq!(normed[..columns], normed[2 * columns..], "the same row twice");
}

#[test]
fn halves_times_peaks_are_the_rounded_activations_of_any_size() {
    for grain in [Grain::Float, Grain::Per32] {
        let columns = 512;
        let mut x = rows(4, columns, 5);
        let factors = [1.0f32, 1e-25, 3e30, 7e4];
        x.iter_mut().zip(factors).for_each(|(x, factor)| x.iter_mut().for_each(|x| *x *= factor));
        x.push(vec![0.0; columns]);
        x.push(x[0].clone());
        x[5][7] = f32::NAN;
        let what = Quantise { columns, grain, integers: false, halves: true, ..PLAIN };
        let scalars = QuantiseScalars { rows: 6, epsilon: 0.0 };
        let Some(got) = run(&what, &[bytes(&x.concat())], &[6 * columns * 2, 6 * 4], scalars) else { return };
        let peaks = floats(&got[1]);
        for (row, x) in x.iter().enumerate() {
            let halves = got[0][row * columns * 2..][..columns * 2].as_chunks().0;
            let got: Vec<f32> =
                halves.iter().map(|half| half::f16::from_le_bytes(*half).to_f32() * peaks[row]).collect();
            match row {
                4 => assert_eq!(got, vec![0.0; columns]),
                5 => assert!(got.iter().all(|value| value.is_nan())),
                _ => close(&got, x, if grain == Grain::Float { 5e-4 } else { 6e-3 }, "halves"),
            }
        }
    }
}

#[test]
fn every_form_translates_for_vulkan_and_metal() {
    for grain in [Grain::Float, Grain::Per32, Grain::Per256] {
        for bits in 0..16 {
            let [norm, floats, integers, halves] = [0, 1, 2, 3].map(|bit| bits >> bit & 1 == 1);
            let integers = integers && grain != Grain::Float;
            let what = Quantise { grain, norm, floats, integers, halves, ..PLAIN };
            translates(&quantise(&what)).everywhere();
        }
    }
}
