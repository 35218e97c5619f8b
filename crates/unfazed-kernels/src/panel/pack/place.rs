//! The place of a row in a block of a panel.

use crate::LANES;

use super::super::layout::{Geometry, LINE, SCALES};

/// 32 codes of a row, a byte each: dword `g` has columns `4g..4g + 4`, the first in its lowest byte.
pub(super) type Codes = [u32; 8];

/// The lowest bit, two and four of each byte.
pub(super) const BIT: u32 = 0x0101_0101;
pub(super) const PAIR: u32 = 0x0303_0303;
pub(super) const NIBBLE: u32 = 0x0f0f_0f0f;

/// Where a row's part of a block goes. The panel is zero before.
pub(super) struct Place<'a> {
    panel: &'a mut [u8],
    lane: usize,
    scales: usize,
    block: usize,
    codes: usize,
    group: usize,
}

impl<'a> Place<'a> {
    #[inline(always)]
    pub(super) fn new(panel: &'a mut [u8], geometry: &Geometry, block: usize, lane: usize) -> Place<'a> {
        let at = geometry.block_at(block);
        Place {
            panel,
            lane: lane % LANES,
            scales: geometry.scales_at(block),
            block: at,
            codes: at + geometry.header,
            group: geometry.group,
        }
    }

    /// A scale of `N` bytes, in the line of scales or first in the block.
    #[inline(always)]
    pub(super) fn scale<const N: usize>(&mut self, bytes: [u8; N]) {
        self.panel[self.scales + N * self.lane..][..N].copy_from_slice(&bytes);
    }

    /// What follows the scale of a block that has its own.
    #[inline(always)]
    pub(super) fn minimum(&mut self, bytes: [u8; 2]) {
        self.panel[self.block + SCALES + 2 * self.lane..][..2].copy_from_slice(&bytes);
    }

    /// Byte `j` of the header: the scale of a sub-block.
    #[inline(always)]
    pub(super) fn sub_scale(&mut self, j: usize, byte: u8) {
        self.panel[self.block + j * LANES + self.lane] = byte;
    }

    /// Scales and minimums of the sub-blocks of K formats, of 4 or 6 bits.
    #[inline(always)]
    pub(super) fn k_scales<const SUBS: usize>(&mut self, scales: [u8; SUBS], minimums: [u8; SUBS]) {
        let (low, high) = self.panel[self.block + 2 * SCALES..].split_at_mut(SUBS * LANES);
        for j in 0..SUBS {
            let scale = j * LANES + self.lane;
            let minimum = j / 2 * 2 * LANES + 2 * self.lane + j % 2;
            low[scale] |= scales[j] & 15;
            low[minimum] |= minimums[j] << 4;
            if SUBS == 8 {
                high[scale % LINE] |= scales[j] >> 4 << (scale / LINE * 4);
                high[minimum % LINE] |= minimums[j] >> 4 << (minimum / LINE * 4 + 2);
            }
        }
    }

    /// Column `k` of a format of bytes that are not grouped.
    #[inline(always)]
    pub(super) fn column(&mut self, k: usize, byte: u8) {
        self.panel[self.codes + k * LANES + self.lane] = byte;
    }

    /// The codes of group `g`, of `BITS` bits.
    #[inline(always)]
    pub(super) fn codes<const BITS: usize>(&mut self, g: usize, codes: Codes) {
        self.planes::<BITS>(
            g,
            std::array::from_fn(|i| match (BITS, i) {
                (2 | 3, 0..2) => pairs(&codes, i, 0),
                (3, _) => bits(&codes, 2),
                (4..7, 0..4) => codes[i] & NIBBLE | (codes[i + 4] & NIBBLE) << 4,
                (5, _) => bits(&codes, 4),
                (6, _) => pairs(&codes, i - 4, 4),
                _ => codes[i],
            }),
        );
    }

    /// The planes of group `g` of codes of `BITS` bits, which are as many dwords.
    #[inline(always)]
    pub(super) fn planes<const BITS: usize>(&mut self, g: usize, planes: [u32; BITS]) {
        let vectors = &mut self.panel[self.codes + g * self.group..][..BITS * LINE];
        for (vector, plane) in vectors.as_chunks_mut::<LINE>().0.iter_mut().zip(planes) {
            vector[4 * self.lane..][..4].copy_from_slice(&plane.to_le_bytes());
        }
    }
}

/// Vector `v` of the plane of the codes' bits `shift, shift + 1`.
#[inline(always)]
fn pairs(codes: &Codes, v: usize, shift: u32) -> u32 {
    (0..4).fold(0, |pairs, s| pairs | (codes[4 * v + s] >> shift & PAIR) << (2 * s))
}

/// The plane of the codes' bit `shift`.
#[inline(always)]
fn bits(codes: &Codes, shift: u32) -> u32 {
    (0..8).fold(0, |bits, g| bits | (codes[g] >> shift & BIT) << g)
}

/// The low 4 bits of `bits` as the lowest bits of four bytes.
#[inline(always)]
pub(super) fn spread(bits: u32) -> u32 {
    (bits & 15).wrapping_mul(0x0020_4081) & BIT
}

/// The dword at `4 * i`.
#[inline(always)]
pub(super) fn dword(bytes: &[u8], i: usize) -> u32 {
    let bytes = &bytes[4 * i..][..4];
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}
