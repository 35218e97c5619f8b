//! Floats of 8 bits: scales without sign, and weights. All of their values are exact in f32.

/// The E8M0 scale of the OCP microscaling formats: `2^(e - 127)`; 255 is NaN.
#[inline]
pub fn e8m0(e: u8) -> f32 {
    match e {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(e) << 23),
    }
}

/// Half the E8M0 scale, `2^(e - 128)`, which belongs to FP4 values that are stored doubled. There is no NaN: ggml
/// takes 255 as a number.
#[inline]
pub fn e8m0_half(e: u8) -> f32 {
    // Below 2^-126 the first term is zero or negative and the second has the bits of the subnormal.
    let e = i32::from(e);
    f32::from_bits(((e - 1) << 23).max((e + 1) << 21) as u32)
}

/// Half the UE4M3 scale of NVFP4, which belongs to FP4 values that are stored doubled. The sign bit is ignored, and
/// 127 is zero, as in ggml.
#[inline]
pub fn ue4m3_half(bits: u8) -> f32 {
    if bits == 0x7f { 0.0 } else { magnitude(bits) * 0.5 }
}

/// The E4M3 float (with NaN and without infinities) of 8-bit checkpoints.
#[inline]
pub fn e4m3(bits: u8) -> f32 {
    let magnitude = if bits & 0x7f == 0x7f { f32::NAN } else { magnitude(bits) };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

/// 4 bits of exponent with bias 7, 3 of mantissa.
fn magnitude(bits: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(bits >> 3 & 15), u32::from(bits & 7));
    match exponent {
        0 => mantissa as f32 / 512.0,
        _ => f32::from_bits((exponent + 120) << 23 | mantissa << 20),
    }
}
