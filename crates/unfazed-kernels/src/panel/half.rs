//! f16 and bf16 to f32. Exact; written without branches, so that 16 lanes become a few vector instructions.

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
    use super::*;

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
