//! The place of a row in a block of a panel.

use crate::LANES;

use super::super::layout::{Geometry, LINE, SCALES};

/// 32 codes of a row, a byte each: dword `g` has columns `4g..4g + 4`, the first in its lowest byte.
pub(super) type Codes = [u32; 8];

/// The lowest bit, two and four of each byte.
pub(super) const BIT: u32 = 0x0101_0101;
pub(super) const PAIR: u32 = 0x0303_0303;
pub(super) const NIBBLE: u32 = 0x0f0f_0f0f;

/// Where a row's part of a block goes. What no row has its part in is zero before.
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

/// Scales and minimums of the sub-blocks of K formats, of 4 or 6 bits, of all rows of a block: two sub-blocks stand
/// together, as they do in a panel.
pub(super) struct KScales<const SUBS: usize> {
    /// Those of one sub-block, then those of the next.
    scales: [[u8; 2 * LANES]; MOST_PAIRS],
    /// Those of a row, then those of the next.
    minimums: [[u8; 2 * LANES]; MOST_PAIRS],
}

/// Of sub-blocks in a block.
const MOST_PAIRS: usize = 8;

impl<const SUBS: usize> KScales<SUBS> {
    pub(super) fn new() -> KScales<SUBS> {
        KScales { scales: [[0; 2 * LANES]; MOST_PAIRS], minimums: [[0; 2 * LANES]; MOST_PAIRS] }
    }

    /// Takes those of a row.
    #[inline(always)]
    pub(super) fn put(&mut self, lane: usize, scales: [u8; SUBS], minimums: [u8; SUBS]) {
        let lane = lane % LANES;
        for j in 0..SUBS {
            self.scales[j / 2][j % 2 * LANES + lane] = scales[j];
            self.minimums[j / 2][2 * lane + j % 2] = minimums[j];
        }
    }

    /// Writes them to a block's header.
    #[inline(always)]
    pub(super) fn write(&self, panel: &mut [u8], geometry: &Geometry, block: usize) {
        let header = &mut panel[geometry.block_at(block) + 2 * SCALES..];
        let (low, high) = header.split_at_mut(SUBS * LANES);
        let pairs = self.scales.iter().zip(&self.minimums);
        for (low, (scales, minimums)) in low.as_chunks_mut::<{ 2 * LANES }>().0.iter_mut().zip(pairs) {
            for (i, low) in low.iter_mut().enumerate() {
                *low = scales[i] & 15 | minimums[i] << 4;
            }
        }
        if SUBS != 8 {
            return;
        }
        for (k, high) in high.as_chunks_mut::<{ 2 * LANES }>().0.iter_mut().take(2).enumerate() {
            for (i, high) in high.iter_mut().enumerate() {
                let [first, last] =
                    [k, k + 2].map(|k| self.scales[k][i] >> 4 | self.minimums[k][i] >> 4 << 2);
                *high = first | last << 4;
            }
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

/// 16 bytes as four dwords.
#[inline(always)]
pub(super) fn dwords([first, last]: [u64; 2]) -> [u32; 4] {
    [first as u32, (first >> 32) as u32, last as u32, (last >> 32) as u32]
}

/// 32 bytes as four quadwords.
#[inline(always)]
pub(super) fn quadwords(bytes: &[u8; 32]) -> [u64; 4] {
    let (words, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|i| u64::from_le_bytes(words[i]))
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
