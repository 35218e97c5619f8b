//! Softmax and its normaliser.

use crate::lanes::{Kernel, Lanes, dispatch};
use crate::vector::exponential::exp;
use crate::vector::scalar;
use crate::{Isa, LANES};

/// So many exponentials are added in f32; such sums are added in f64, so that a vocabulary of any size loses nothing.
const SEGMENT: usize = 1024;

/// `x[i] = exp(x[i]) / sum of exp(x)`.
pub fn softmax(isa: Isa, x: &mut [f32]) {
    let largest = dispatch(isa, Largest(x));
    let sum = dispatch(isa, Exponentials { x, largest });
    dispatch(isa, Divide { x, by: sum as f32 });
}

/// `ln(sum of exp(x))`; minus infinity for an empty slice. A log-probability is `x[i] - log_sum_exp(x)`.
pub fn log_sum_exp(isa: Isa, x: &[f32]) -> f32 {
    if x.is_empty() {
        return f32::NEG_INFINITY;
    }
    let largest = dispatch(isa, Largest(x));
    let mut exponentials = [0.0; SEGMENT];
    let mut sum = 0.0;
    for x in x.chunks(SEGMENT) {
        let e = &mut exponentials[..x.len()];
        e.copy_from_slice(x);
        sum += dispatch(isa, Exponentials { x: e, largest });
    }
    (f64::from(largest) + scalar::ln(sum)) as f32
}

/// The largest element.
struct Largest<'a>(&'a [f32]);

impl Kernel for Largest<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> f32 {
        let (blocks, rest) = self.0.as_chunks::<LANES>();
        let mut largest = l.load_part(rest, f32::NEG_INFINITY);
        for x in blocks {
            largest = l.max(largest, l.load(x));
        }
        l.largest(largest)
    }
}

/// Replaces elements by `exp(x - largest)` and returns their sum.
struct Exponentials<'a> {
    x: &'a mut [f32],
    largest: f32,
}

impl Kernel for Exponentials<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> f64 {
        let largest = l.splat(self.largest);
        let mut total = 0.0;
        for segment in self.x.chunks_mut(SEGMENT) {
            let mut sum = l.splat(0.0);
            let (blocks, rest) = segment.as_chunks_mut::<LANES>();
            for x in blocks {
                let e = exp(l, l.sub(l.load(x), largest));
                sum = l.add(sum, e);
                l.store(e, x);
            }
            if !rest.is_empty() {
                let e = exp(l, l.sub(l.load_part(rest, f32::NEG_INFINITY), largest));
                sum = l.add(sum, e);
                l.store_part(e, rest);
            }
            total += f64::from(l.sum(sum));
        }
        total
    }
}

struct Divide<'a> {
    x: &'a mut [f32],
    by: f32,
}

impl Kernel for Divide<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let by = l.splat(self.by);
        let (blocks, rest) = self.x.as_chunks_mut::<LANES>();
        for x in blocks {
            l.store(l.div(l.load(x), by), x);
        }
        let last = l.div(l.load_part(rest, 0.0), by);
        l.store_part(last, rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_sum_exp_is_exact_to_f32_for_a_large_vocabulary() {
        let x: Vec<f32> = (0..151_936).map(|i: i32| ((i * 7919) % 2003) as f32 * 0.01 - 10.0).collect();
        let truth = x.iter().map(|x| f64::from(*x).exp()).sum::<f64>().ln() as f32;
        for isa in Isa::ALL {
            assert!((log_sum_exp(isa, &x) - truth).abs() <= 2e-6, "{}", isa.name());
            assert_eq!(log_sum_exp(isa, &x).to_bits(), log_sum_exp(Isa::Reference, &x).to_bits());
        }
        assert_eq!(log_sum_exp(Isa::Reference, &[]), f32::NEG_INFINITY);
    }

    #[test]
    fn softmax_of_odd_lengths_sums_to_one() {
        for n in [1, 2, 15, 16, 17, 60, 1023, 1024, 1025, 2100] {
            let x: Vec<f32> = (0..n).map(|i| ((i * 37) % 11) as f32 - 90.0).collect();
            let mut expected = x.clone();
            softmax(Isa::Reference, &mut expected);
            assert!((expected.iter().sum::<f32>() - 1.0).abs() < 1e-5);
            for isa in Isa::ALL {
                let mut got = x.clone();
                softmax(isa, &mut got);
                assert!(
                    got.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()),
                    "{n} {}",
                    isa.name()
                );
            }
        }
    }

    #[test]
    fn a_nan_spoils_the_result_and_nothing_else() {
        let mut x = [0.0, f32::NAN, 1.0];
        softmax(Isa::best(), &mut x);
        assert!(x.iter().all(|x| x.is_nan()));
        assert!(log_sum_exp(Isa::best(), &[f32::INFINITY, 0.0]).is_nan());
    }
}
