//! Elementary functions of one f64, from additions, multiplications and fused multiply-adds alone, so that every
//! machine and every C library gives the same bits. Errors are a few units in the last place of an f64: rounded to
//! f32 the results are right to within one.

use std::f64::consts::{FRAC_2_PI, LN_2, LOG2_E, SQRT_2};

/// Adding and subtracting it rounds a smaller f64 to a whole number, half to even.
const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52

/// The part of ln 2 that its f64 lacks.
const LN_2_REST: f64 = 2.319_046_813_846_3e-17;

/// `2^n` for whole `n` from -1022 to 1023.
fn pow2(n: i64) -> f64 {
    f64::from_bits(((n + 1023) as u64) << 52)
}

/// e to the power of `x`.
pub fn exp(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    // Beyond these the result is infinite or zero whatever `x` is.
    let x = x.clamp(-800.0, 800.0);
    let n = (x * LOG2_E + ROUND) - ROUND;
    let r = n.mul_add(-LN_2_REST, n.mul_add(-LN_2, x));
    // Taylor's series; |r| is at most ln 2 / 2, so the first term left out is below 2^-57.
    let mut p = 1.0;
    for k in (1..=14).rev() {
        p = (p * r / f64::from(k)) + 1.0;
    }
    // In two steps, so that results below the normal range are rounded once.
    let n = n as i64;
    p * pow2(n / 2) * pow2(n - n / 2)
}

/// Natural logarithm of `x`: minus infinity for zero, NaN below.
pub fn ln(x: f64) -> f64 {
    if x == 0.0 {
        return f64::NEG_INFINITY;
    }
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x.is_infinite() {
        return x;
    }
    let (x, shift) = if x < f64::MIN_POSITIVE { (x * pow2(54), -54) } else { (x, 0) };
    let mut exponent = (x.to_bits() >> 52) as i64 - 1023;
    let mut m = f64::from_bits(x.to_bits() & !(0x7ff << 52) | 1023 << 52);
    if m > SQRT_2 {
        m *= 0.5;
        exponent += 1;
    }
    // ln m = 2 artanh((m - 1) / (m + 1)); the argument is at most 0.172.
    let f = (m - 1.0) / (m + 1.0);
    let square = f * f;
    let mut p = 0.0;
    for k in (1..=11).rev() {
        p = (p * square) + 1.0 / f64::from(2 * k + 1);
    }
    let e = (exponent + shift) as f64;
    let small = (2.0 * f * square).mul_add(p, e * LN_2_REST);
    e.mul_add(LN_2, 2.0 * f + small)
}

/// Sine and cosine of `x` radians, for `x` up to 2^30 either way; NaN beyond.
pub fn sin_cos(x: f64) -> (f64, f64) {
    const HALF_PI: f64 = std::f64::consts::FRAC_PI_2;
    const HALF_PI_REST: f64 = 6.123_233_995_736_766e-17;
    if x.is_nan() || x.abs() > f64::from(1 << 30) {
        return (f64::NAN, f64::NAN);
    }
    let n = (x * FRAC_2_PI + ROUND) - ROUND;
    let r = n.mul_add(-HALF_PI_REST, n.mul_add(-HALF_PI, x));
    let square = r * r;
    // Taylor's series; |r| is at most pi / 4.
    let (mut s, mut c) = (1.0, 1.0);
    for k in (1..=8).rev() {
        let k = f64::from(2 * k);
        s = 1.0 - s * square / (k * (k + 1.0));
        c = 1.0 - c * square / ((k - 1.0) * k);
    }
    let (s, c) = (s * r, c);
    match (n as i64).rem_euclid(4) {
        0 => (s, c),
        1 => (c, -s),
        2 => (-s, -c),
        _ => (-c, s),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(ours: f64, theirs: f64, tolerance: f64, what: f64) {
        let error = (ours - theirs).abs() / theirs.abs().max(f64::MIN_POSITIVE);
        assert!(ours == theirs || error < tolerance, "at {what}: {ours:e} is not {theirs:e}");
    }

    #[test]
    fn exp_is_right_over_its_whole_range() {
        for i in -70_000..=70_000 {
            let x = f64::from(i) * 0.01;
            close(exp(x), x.exp(), 5e-15, x);
        }
        assert_eq!(exp(f64::NEG_INFINITY), 0.0);
        assert_eq!(exp(f64::INFINITY), f64::INFINITY);
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f64::NAN).is_nan());
    }

    #[test]
    fn ln_is_right_from_subnormal_to_largest() {
        let mut x = 5e-324;
        while x < 1e308 {
            close(ln(x), x.ln(), 5e-15, x);
            x = x * 1.37 + 5e-324;
        }
        assert_eq!(ln(1.0), 0.0);
        assert_eq!(ln(0.0), f64::NEG_INFINITY);
        assert_eq!(ln(f64::INFINITY), f64::INFINITY);
        assert!(ln(-1.0).is_nan() && ln(f64::NAN).is_nan());
    }

    #[test]
    fn sin_and_cos_hold_for_positions_up_to_a_million() {
        for i in 0..200_000 {
            for x in [f64::from(i) * 5.0, f64::from(i) * -0.731] {
                let (s, c) = sin_cos(x);
                assert!((s - x.sin()).abs() < 1e-14 && (c - x.cos()).abs() < 1e-14, "at {x}");
                assert!((s as f32).to_bits().abs_diff((x.sin() as f32).to_bits()) <= 1, "at {x}");
            }
        }
        assert!(sin_cos(f64::NAN).0.is_nan() && sin_cos(f64::INFINITY).1.is_nan());
        assert_eq!(sin_cos(0.0), (0.0, 1.0));
    }
}
