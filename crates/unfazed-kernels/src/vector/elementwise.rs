//! Element by element.

use crate::lanes::{Kernel, Lanes, dispatch};
use crate::vector::exponential::exp;
use crate::{Isa, LANES};

/// `gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i]`, the gated SiLU (Shazeer, "GLU Variants Improve Transformer").
pub fn silu_mul(isa: Isa, gate: &mut [f32], up: &[f32]) {
    dispatch(isa, SiluMul { gate, up });
}

/// `sum[i] += weight * x[i]`, rounded once.
pub fn add_scaled(isa: Isa, sum: &mut [f32], weight: f32, x: &[f32]) {
    dispatch(isa, AddScaled { sum, weight, x });
}

struct SiluMul<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Kernel for SiluMul<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        zip(l, self.gate, self.up, |g, u| {
            let negated = l.sub(l.splat(0.0), g);
            let sigmoid = l.add(l.splat(1.0), exp(l, negated));
            l.mul(l.div(g, sigmoid), u)
        });
    }
}

struct AddScaled<'a> {
    sum: &'a mut [f32],
    weight: f32,
    x: &'a [f32],
}

impl Kernel for AddScaled<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let weight = l.splat(self.weight);
        zip(l, self.sum, self.x, |sum, x| l.fma(weight, x, sum));
    }
}

/// `a[i] = f(a[i], b[i])` for as many as both have. `f` is called in one place, so that it is inlined.
#[inline(always)]
fn zip<L: Lanes>(l: L, a: &mut [f32], b: &[f32], f: impl Fn(L::V, L::V) -> L::V) {
    for (a, b) in a.chunks_mut(LANES).zip(b.chunks(LANES)) {
        let x = load(l, a);
        let y = load(l, b);
        let result = f(x, y);
        match a.as_mut_array::<LANES>() {
            Some(a) => l.store(result, a),
            None => l.store_part(result, a),
        }
    }
}

/// Up to sixteen values; lanes beyond them are zero.
#[inline(always)]
fn load<L: Lanes>(l: L, x: &[f32]) -> L::V {
    match x.as_array::<LANES>() {
        Some(x) => l.load(x),
        None => l.load_part(x, 0.0),
    }
}
