//! Floats of 16 and 8 bits to f32. Exact; written without branches, so that 16 lanes become a few vector instructions.

use crate::LANES;

/// The value of an f16.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    // The exponent's bias differs by 112. Multiplying by 2^112 corrects it for subnormals too; infinities and
    // NaNs have the largest exponent in both formats instead.
    let finite = (f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23)).to_bits();
    let special = magnitude | 0x7f80_0000;
    let magnitude = if magnitude >= 0x7c00 << 13 { special } else { finite };
    f32::from_bits(magnitude | u32::from(bits & 0x8000) << 16)
}

/// The value of a bf16.
#[inline(always)]
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The value of an E4M3 float: an f16 has the same fields, with 8 more of bias.
#[inline(always)]
pub(crate) fn e4m3_to_f32(bits: u8) -> f32 {
    let magnitude = u16::from(bits & 0x7f);
    let half = u16::from(bits & 0x80) << 8 | if magnitude == 0x7f { 0x7e00 } else { magnitude << 7 };
    f16_to_f32(half) * 256.0
}

/// Half of the value of a UE4M3 scale as it lies in a panel: without sign, and without a NaN.
#[inline(always)]
pub(crate) fn half_of_ue4m3(bits: u8) -> f32 {
    f16_to_f32(u16::from(bits) << 7) * 128.0
}

/// 16 little-endian f16 at the start of `bytes`, which must hold them.
#[inline(always)]
pub(crate) fn f16_lanes(bytes: &[u8]) -> [f32; LANES] {
    half_lanes(bytes).map(f16_to_f32)
}

/// 16 little-endian bf16 at the start of `bytes`, which must hold them.
#[inline(always)]
pub(crate) fn bf16_lanes(bytes: &[u8]) -> [f32; LANES] {
    half_lanes(bytes).map(bf16_to_f32)
}

#[inline(always)]
fn half_lanes(bytes: &[u8]) -> [u16; LANES] {
    let bytes = &bytes[..2 * LANES];
    std::array::from_fn(|lane| u16::from_le_bytes([bytes[2 * lane], bytes[2 * lane + 1]]))
}

#[cfg(test)]
mod tests {
    use unfazed_formats::block::small_floats;

    use super::*;

    #[test]
    fn every_float_of_8_bits_has_its_exact_value() {
        for bits in 0..=u8::MAX {
            let (ours, theirs) = (e4m3_to_f32(bits), small_floats::e4m3(bits));
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{bits:#04x}");
            // What a panel holds for a scale of the file.
            let packed = if bits == 0x7f { 0 } else { bits & 0x7f };
            assert_eq!(half_of_ue4m3(packed), small_floats::ue4m3_half(bits), "{bits:#04x}");
        }
    }

    #[test]
    fn every_f16_and_bf16_has_its_exact_value() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits), half::f16::from_bits(bits).to_f32());
            assert!(
                ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                "f16 {bits:#06x}"
            );
            let (ours, theirs) = (bf16_to_f32(bits), half::bf16::from_bits(bits).to_f32());
            assert!(
                ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                "bf16 {bits:#06x}"
            );
        }
    }
}
