//! The formats of integer codes, one type each: how a block of a panel is taken apart.

use unfazed_formats::BlockFormat;

use crate::LANES;

use super::half::f16_lanes;
use super::layout::{Geometry, LINE, SCALES};
use super::unpack::{Codes, Unpacked};

/// 4 bits and a scale.
pub(crate) enum Q4_0 {}
/// 4 bits, scale and minimum.
pub(crate) enum Q4_1 {}
/// 5 bits and a scale.
pub(crate) enum Q5_0 {}
/// 5 bits, scale and minimum.
pub(crate) enum Q5_1 {}
/// 8 bits and a scale.
pub(crate) enum Q8_0 {}
/// 4 bits, 8 sub-blocks with 6-bit scale and minimum.
pub(crate) enum Q4K {}
/// 5 bits, 8 sub-blocks with 6-bit scale and minimum.
pub(crate) enum Q5K {}
/// 6 bits, 16 sub-blocks with 8-bit scale.
pub(crate) enum Q6K {}

/// Byte `k % 4` of each lane of vector `k / 4` of the vectors at the start of `bytes`.
#[inline(always)]
fn byte_lanes(bytes: &[u8], k: usize) -> [u8; LANES] {
    let vector = &bytes[k / 4 * LINE..][..LINE];
    std::array::from_fn(|lane| vector[4 * lane + k % 4])
}

/// The codes of 32 weights: the nibbles of 4 vectors, plus 16 where the matching high bit is set, less `offset`.
#[inline(always)]
fn unpack_nibbles(quants: &[u8], high: Option<&[u8]>, offset: i8, codes: &mut [[i8; LANES]]) {
    for (k, codes) in codes[..32].iter_mut().enumerate() {
        let nibbles = byte_lanes(quants, k % 16).map(|byte| if k < 16 { byte & 15 } else { byte >> 4 });
        let bits = high.map_or([0; LANES], |high| byte_lanes(high, k % 4).map(|byte| byte >> (k / 4) & 1));
        *codes = std::array::from_fn(|lane| (nibbles[lane] | bits[lane] << 4) as i8 - offset);
    }
}

impl Codes for Q4_0 {
    const FORMAT: BlockFormat = BlockFormat::Q4_0;

    #[inline(always)]
    fn unpack(panel: &[u8], block: usize, out: &mut Unpacked) {
        let geometry = Geometry::of(Self::FORMAT);
        out.d = f16_lanes(&panel[geometry.scales_at(block)..]);
        unpack_nibbles(&panel[geometry.block_at(block)..], None, 8, &mut out.codes);
    }
}

impl Codes for Q4_1 {
    const FORMAT: BlockFormat = BlockFormat::Q4_1;
    const MINIMUMS: bool = true;

    #[inline(always)]
    fn unpack(panel: &[u8], block: usize, out: &mut Unpacked) {
        let bytes = &panel[Geometry::of(Self::FORMAT).block_at(block)..];
        out.d = f16_lanes(bytes);
        out.m = f16_lanes(&bytes[SCALES..]);
        unpack_nibbles(&bytes[2 * SCALES..], None, 0, &mut out.codes);
    }
}

impl Codes for Q5_0 {
    const FORMAT: BlockFormat = BlockFormat::Q5_0;

    #[inline(always)]
    fn unpack(panel: &[u8], block: usize, out: &mut Unpacked) {
        let geometry = Geometry::of(Self::FORMAT);
        out.d = f16_lanes(&panel[geometry.scales_at(block)..]);
        let (high, quants) = panel[geometry.block_at(block)..].split_at(LINE);
        unpack_nibbles(quants, Some(high), 16, &mut out.codes);
    }
}

impl Codes for Q5_1 {
    const FORMAT: BlockFormat = BlockFormat::Q5_1;
    const MINIMUMS: bool = true;

    #[inline(always)]
    fn unpack(panel: &[u8], block: usize, out: &mut Unpacked) {
        let bytes = &panel[Geometry::of(Self::FORMAT).block_at(block)..];
        out.d = f16_lanes(bytes);
        out.m = f16_lanes(&bytes[SCALES..]);
        let (high, quants) = bytes[2 * SCALES..].split_at(LINE);
        unpack_nibbles(quants, Some(high), 0, &mut out.codes);
    }
}

impl Codes for Q8_0 {
    const FORMAT: BlockFormat = BlockFormat::Q8_0;

    #[inline(always)]
    fn unpack(panel: &[u8], block: usize, out: &mut Unpacked) {
        let geometry = Geometry::of(Self::FORMAT);
        out.d = f16_lanes(&panel[geometry.scales_at(block)..]);
        let quants = &panel[geometry.block_at(block)..];
        for (k, codes) in out.codes[..32].iter_mut().enumerate() {
            *codes = byte_lanes(quants, k).map(|byte| (byte ^ 0x80) as i8);
        }
    }
}

/// Scales and minimums of the 8 sub-blocks of Q4_K and Q5_K.
#[inline(always)]
fn unpack_k_header(bytes: &[u8], out: &mut Unpacked) {
    out.d = f16_lanes(bytes);
    out.m = f16_lanes(&bytes[SCALES..]).map(|dmin| -dmin);
    let (low, high) = bytes[2 * SCALES..].split_at(2 * LINE);
    for x in 0..2 * LINE {
        let top = high[x % LINE] >> (x / LINE * 4);
        out.scales[x / LANES][x % LANES] = (low[x] & 15 | (top & 3) << 4) as i8;
        out.minimums[x / 32 * 2 + x % 2][x % 32 / 2] = (low[x] >> 4 | (top & 12) << 2) as i8;
    }
}

/// The nibbles of sub-block `j`, as they lie in Q4_K and Q5_K.
#[inline(always)]
fn k_nibble_lanes(quants: &[u8], j: usize, k: usize) -> [u8; LANES] {
    byte_lanes(quants, j / 2 * 32 + k).map(|byte| if j.is_multiple_of(2) { byte & 15 } else { byte >> 4 })
}

impl Codes for Q4K {
    const FORMAT: BlockFormat = BlockFormat::Q4_K;
    const MINIMUMS: bool = true;

    #[inline(always)]
    fn unpack(panel: &[u8], block: usize, out: &mut Unpacked) {
        let bytes = &panel[Geometry::of(Self::FORMAT).block_at(block)..];
        unpack_k_header(bytes, out);
        for (k, codes) in out.codes.iter_mut().enumerate() {
            *codes = k_nibble_lanes(&bytes[4 * LINE..], k / 32, k % 32).map(|code| code as i8);
        }
    }
}

impl Codes for Q5K {
    const FORMAT: BlockFormat = BlockFormat::Q5_K;
    const MINIMUMS: bool = true;

    #[inline(always)]
    fn unpack(panel: &[u8], block: usize, out: &mut Unpacked) {
        let bytes = &panel[Geometry::of(Self::FORMAT).block_at(block)..];
        unpack_k_header(bytes, out);
        let (high, quants) = bytes[4 * LINE..].split_at(8 * LINE);
        for (k, codes) in out.codes.iter_mut().enumerate() {
            let nibbles = k_nibble_lanes(quants, k / 32, k % 32);
            let bits = byte_lanes(high, k % 32).map(|byte| byte >> (k / 32) & 1);
            *codes = std::array::from_fn(|lane| (nibbles[lane] | bits[lane] << 4) as i8);
        }
    }
}

impl Codes for Q6K {
    const FORMAT: BlockFormat = BlockFormat::Q6_K;
    const SUB: usize = 16;

    #[inline(always)]
    fn unpack(panel: &[u8], block: usize, out: &mut Unpacked) {
        let geometry = Geometry::of(Self::FORMAT);
        out.d = f16_lanes(&panel[geometry.scales_at(block)..]);
        let bytes = &panel[geometry.block_at(block)..];
        for (j, scales) in out.scales.iter_mut().enumerate() {
            let at = j / 8 * Q6_K_HALF + j % 8 * LANES;
            *scales = std::array::from_fn(|lane| bytes[at + lane] as i8);
        }
        for (k, codes) in out.codes.iter_mut().enumerate() {
            let half = &bytes[k / 128 * Q6_K_HALF..];
            let (s, k) = (k % 128 / 32, k % 32);
            let low = &half[if s % 2 == 0 { Q6_K_LOW_EVEN } else { Q6_K_LOW_ODD }..];
            let nibbles = byte_lanes(low, k).map(|byte| if s < 2 { byte & 15 } else { byte >> 4 });
            let bits = byte_lanes(&half[Q6_K_HIGH..], k).map(|byte| byte >> (2 * s) & 3);
            *codes = std::array::from_fn(|lane| (nibbles[lane] | bits[lane] << 4) as i8 - 32);
        }
    }
}

/// Bytes of half a Q6_K block, and where its parts lie.
pub(crate) const Q6_K_HALF: usize = 1664;
pub(crate) const Q6_K_LOW_EVEN: usize = 128;
pub(crate) const Q6_K_HIGH: usize = 640;
pub(crate) const Q6_K_LOW_ODD: usize = 1152;
