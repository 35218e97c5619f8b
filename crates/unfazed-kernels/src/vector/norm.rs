//! RMS norm.

use crate::lanes::{Kernel, Lanes, dispatch};
use crate::{Isa, LANES};

/// `x = x / sqrt(mean of squares of x + epsilon) * weight`, element by element (Zhang and Sennrich, "Root Mean Square
/// Layer Normalization"). Both slices have the same length.
pub fn rms_norm(isa: Isa, x: &mut [f32], weight: &[f32], epsilon: f32) {
    dispatch(isa, RmsNorm { x, weight, epsilon });
}

struct RmsNorm<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    epsilon: f32,
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let n = self.x.len().min(self.weight.len());
        let (x, x_rest) = self.x[..n].as_chunks_mut::<LANES>();
        let (weight, weight_rest) = self.weight[..n].as_chunks::<LANES>();

        let mut sum = l.splat(0.0);
        for x in x.iter() {
            let x = l.load(x);
            sum = l.fma(x, x, sum);
        }
        let last = l.load_part(x_rest, 0.0);
        let sum = l.sum(l.fma(last, last, sum));
        let scale = l.splat(1.0 / (sum / n as f32 + self.epsilon).sqrt());

        for (x, w) in x.iter_mut().zip(weight) {
            l.store(l.mul(l.mul(l.load(x), scale), l.load(w)), x);
        }
        let last = l.mul(l.mul(last, scale), l.load_part(weight_rest, 0.0));
        l.store_part(last, x_rest);
    }
}
