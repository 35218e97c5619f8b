//! Blocks of 32 numbers of a key or value: Q8_0 and Q4_0.
//!
//! A number is a code times its block's scale, an f16. The scale is that of ggml's formats: of Q8_0 the largest magnitude
//! over 127, of Q4_0 the number of largest magnitude, with its sign, over -8. It is rounded to f16 first, and codes are
//! the numbers over the rounded scale, rounded half to even, cut to -127..=127 or -8..=7. A block with an infinity or
//! a NaN has a NaN for scale: whoever sees it becomes NaN.

use half::f16;

use crate::LANES;

/// Numbers in a block.
pub(super) const BLOCK: usize = 32;

/// Adding this to a float below 2^22 leaves the float rounded half to even in the low bits.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

/// A block's scale and codes.
pub(super) struct Coded {
    pub(super) scale: f16,
    pub(super) codes: [i8; BLOCK],
}

/// A block as Q8_0.
#[inline(always)]
pub(super) fn q8_0(x: &[f32; BLOCK]) -> Coded {
    coded(x, largest(x).abs() / 127.0, 127.0, 127.0)
}

/// A block as Q4_0.
#[inline(always)]
pub(super) fn q4_0(x: &[f32; BLOCK]) -> Coded {
    coded(x, largest(x) / -8.0, 8.0, 7.0)
}

/// Codes from `-low` to `high`.
#[inline(always)]
fn coded(x: &[f32; BLOCK], scale: f32, low: f32, high: f32) -> Coded {
    let scale = f16::from_f32(scale);
    let d = scale.to_f32();
    if d == 0.0 || !d.is_finite() {
        // Numbers that no scale reaches are zero, those that are not finite, or beyond every scale, spoil the block.
        let scale = if d == 0.0 { f16::ZERO } else { f16::NAN };
        return Coded { scale, codes: [0; BLOCK] };
    }
    let codes = x.map(|x| ((x / d).clamp(-low, high) + ROUND).to_bits() as i8);
    Coded { scale, codes }
}

/// The number of largest magnitude, with its sign; of two that differ in sign alone the positive one. A NaN or an infinity
/// if there is one.
#[inline(always)]
fn largest(x: &[f32; BLOCK]) -> f32 {
    // As integers, magnitudes are in the order of the floats, with infinity and then NaNs above; the sign comes last.
    let rank = |x: f32| x.to_bits().rotate_left(1) ^ 1;
    let mut lanes = [0u32; LANES];
    for x in x.chunks_exact(LANES) {
        for lane in 0..LANES {
            lanes[lane] = lanes[lane].max(rank(x[lane]));
        }
    }
    f32::from_bits((lanes.into_iter().fold(0, u32::max) ^ 1).rotate_right(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(seed: u32, size: f32) -> [f32; BLOCK] {
        let hash = |i: usize| (i as u32 * 2 + seed).wrapping_mul(2_654_435_761) >> 8;
        std::array::from_fn(|i| (hash(i) as f32 / (1 << 23) as f32 - 1.0) * size)
    }

    #[test]
    fn numbers_come_back_within_half_a_scale_or_a_whole_one_of_four_bits() {
        for seed in 0..500 {
            for size in [1e-2, 0.7, 1.0, 300.0, 6e4] {
                let x = numbers(seed, size);
                let peak = x.iter().fold(0f32, |peak, x| peak.max(x.abs()));
                for (coded, bound) in [(q8_0(&x), peak / 127.0 / 2.0), (q4_0(&x), peak / 8.0)] {
                    let d = coded.scale.to_f32();
                    for (x, code) in x.iter().zip(coded.codes) {
                        // The scale itself was rounded, by up to one part in 2048.
                        assert!((f32::from(code) * d - x).abs() <= bound * 1.01, "{x} as {code} * {d}");
                    }
                }
            }
        }
    }

    #[test]
    fn four_bits_keep_the_largest_number_with_its_sign() {
        let mut x = [0.25; BLOCK];
        for peak in [4.0, -4.0] {
            x[7] = peak;
            let coded = q4_0(&x);
            assert_eq!(f32::from(coded.codes[7]) * coded.scale.to_f32(), peak);
        }
    }

    #[test]
    fn what_is_not_finite_or_beyond_a_scale_spoils_the_block_and_zeros_are_zero() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30] {
            let mut x = [1.0; BLOCK];
            x[31] = bad;
            assert!(q8_0(&x).scale.is_nan() && q4_0(&x).scale.is_nan(), "{bad}");
        }
        for zero in [0.0, -0.0, 1e-30] {
            let (eight, four) = (q8_0(&[zero; BLOCK]), q4_0(&[zero; BLOCK]));
            assert_eq!((eight.scale.to_bits(), four.scale.to_bits()), (0, 0));
            assert!(eight.codes.iter().chain(&four.codes).all(|code| *code == 0));
        }
    }
}
