//! exp of sixteen lanes.

use crate::lanes::Lanes;

/// ln 2 as two f32.
const LN_2: f32 = std::f32::consts::LN_2;
const LN_2_REST: f32 = -1.904_654_3e-9;

/// Adding and subtracting it rounds a smaller f32 to a whole number, half to even.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

/// Below `LOWEST` the result is zero, above `HIGHEST` infinite.
const LOWEST: f32 = -104.0;
const HIGHEST: f32 = 89.0;

/// Taylor's coefficients 1/7! to 1/2!; |r| is at most ln 2 / 2, so the first term left out is below 2^-27.
const COEFFICIENTS: [f32; 6] = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5];

/// e to the power of each lane, within about one unit in the last place; NaN stays NaN.
#[inline(always)]
pub(crate) fn exp<L: Lanes>(l: L, x: L::V) -> L::V {
    // In this order `min` and `max` hand a NaN on.
    let x = l.max(l.splat(LOWEST), l.min(l.splat(HIGHEST), x));
    let n = round(l, l.mul(x, l.splat(std::f32::consts::LOG2_E)));
    let r = l.fma(n, l.splat(-LN_2), x);
    let r = l.fma(n, l.splat(-LN_2_REST), r);
    let mut p = l.splat(COEFFICIENTS[0]);
    for c in &COEFFICIENTS[1..] {
        p = l.fma(p, r, l.splat(*c));
    }
    let p = l.fma(l.mul(p, r), r, r);
    let p = l.add(p, l.splat(1.0));
    // 2^n in two steps: n reaches from -150 to 128, and a result below the normal range is rounded once.
    let half = round(l, l.mul(n, l.splat(0.5)));
    l.mul(l.mul(p, l.pow2(half)), l.pow2(l.sub(n, half)))
}

/// To a whole number, half to even.
#[inline(always)]
fn round<L: Lanes>(l: L, x: L::V) -> L::V {
    l.sub(l.add(x, l.splat(ROUND)), l.splat(ROUND))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::{Kernel, dispatch};
    use crate::{Isa, LANES};

    struct Exp([f32; LANES]);
    impl Kernel for Exp {
        type Output = [f32; LANES];
        #[inline(always)]
        fn run<L: Lanes>(self, l: L) -> [f32; LANES] {
            l.array(exp(l, l.load(&self.0)))
        }
    }

    #[test]
    fn exp_has_the_same_bits_everywhere_and_is_right_to_the_last_place_or_so() {
        // Every 4099th f32 of either sign, with infinities and NaN among them.
        let mut values = (0..u32::MAX / 4099).map(|i| f32::from_bits(i * 4099));
        let mut block = [0.0; LANES];
        while let Some(first) = values.next() {
            block[0] = first;
            block[1..].fill_with(|| values.next().unwrap_or(f32::INFINITY));
            let expected = dispatch(Isa::Reference, Exp(block));
            for (x, y) in block.iter().zip(expected) {
                if x.is_nan() {
                    assert!(y.is_nan());
                    continue;
                }
                let truth = f64::from(*x).exp() as f32;
                assert!(y.to_bits().abs_diff(truth.to_bits()) <= 2, "exp({x}) = {y}, not {truth}");
            }
            for isa in Isa::ALL {
                let got = dispatch(isa, Exp(block));
                for i in 0..LANES {
                    let same = got[i].to_bits() == expected[i].to_bits()
                        || (got[i].is_nan() && expected[i].is_nan());
                    assert!(same, "{} of {}", isa.name(), block[i]);
                }
            }
        }
    }
}
