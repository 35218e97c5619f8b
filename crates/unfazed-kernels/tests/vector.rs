//! Vector kernels against f64, and their bits across instruction sets.

use unfazed_kernels::Isa;
use unfazed_kernels::vector::{add_scaled, rms_norm, silu_mul};

const LENGTHS: [usize; 9] = [1, 7, 15, 16, 17, 64, 100, 576, 2048];

fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let next = |i: u64| (i + 1).wrapping_mul(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1) >> 40;
    (0..n as u64).map(|i| next(i) as f32 / (1 << 22) as f32 - 2.0).collect()
}

/// Runs `kernel` on every instruction set on ordinary and on extreme numbers; the bits must be those of the reference.
fn same_bits(kernel: impl Fn(Isa, &mut [f32], &[f32])) {
    let extremes =
        [0.0, -0.0, 1e-40, -1e-45, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -100.0];
    for n in LENGTHS {
        for extreme in [false, true] {
            let (mut x, y) = (numbers(n, 3), numbers(n, 5));
            if extreme {
                x.iter_mut().zip(extremes.iter().cycle()).for_each(|(x, e)| *x = *e);
            }
            let mut expected = x.clone();
            kernel(Isa::Reference, &mut expected, &y);
            for isa in Isa::ALL {
                let mut got = x.clone();
                kernel(isa, &mut got, &y);
                for (a, b) in got.iter().zip(&expected) {
                    assert!(
                        a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
                        "{} of {n}",
                        isa.name()
                    );
                }
            }
        }
    }
}

#[test]
fn every_kernel_has_the_same_bits_on_every_instruction_set() {
    same_bits(|isa, x, y| rms_norm(isa, x, y, 1e-5));
    same_bits(silu_mul);
    same_bits(|isa, x, y| add_scaled(isa, x, 0.37, y));
}

#[test]
fn rms_norm_divides_by_the_root_mean_square() {
    for n in LENGTHS {
        let (x, weight) = (numbers(n, 3), numbers(n, 5));
        let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / n as f64;
        let mut got = x.clone();
        rms_norm(Isa::best(), &mut got, &weight, 1e-5);
        for i in 0..n {
            let expected = f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(weight[i]);
            assert!((f64::from(got[i]) - expected).abs() < 1e-5 * expected.abs().max(1e-3));
        }
    }
}

#[test]
fn silu_is_right_and_dies_out_far_below_zero() {
    for n in LENGTHS {
        let (gate, up) = (numbers(n, 7), numbers(n, 11));
        let mut got = gate.clone();
        silu_mul(Isa::best(), &mut got, &up);
        for i in 0..n {
            let g = f64::from(gate[i]);
            let expected = g / (1.0 + (-g).exp()) * f64::from(up[i]);
            assert!((f64::from(got[i]) - expected).abs() < 1e-6 * expected.abs().max(1e-3));
        }
    }
    let mut far = [-1000.0, 1000.0];
    silu_mul(Isa::best(), &mut far, &[1.0, 1.0]);
    assert_eq!(far, [0.0, 1000.0]);
}

#[test]
fn add_scaled_rounds_once() {
    let mut sum = [1.0f32; 3];
    add_scaled(Isa::best(), &mut sum, 1.0 + f32::EPSILON, &[1.0 + f32::EPSILON; 3]);
    assert_eq!(sum, [(1.0 + f32::EPSILON).mul_add(1.0 + f32::EPSILON, 1.0); 3]);
}
