//! From rows as they are in the file to a panel.
//!
//! The layouts of file blocks are those of the GGUF specification (`ggml-common.h`).

use unfazed_formats::BlockFormat;
use unfazed_formats::block::k_scales;

use crate::LANES;

use super::codes::{Q6_K_HALF, Q6_K_HIGH, Q6_K_LOW_EVEN, Q6_K_LOW_ODD};
use super::layout::{Geometry, LINE, PanelLayout, SCALES};

/// Packs the rows of one panel.
///
/// `rows` are one to 16 rows as they lie in the file, one after the other; what is missing to 16 becomes zero
/// weights. Every byte of `panel` is written, so equal rows give equal panels.
///
/// # Panics
///
/// If `rows` is not one to 16 whole rows of the layout or `panel` has not the layout's size of a panel.
pub fn pack_panel(layout: &PanelLayout, rows: &[u8], panel: &mut [u8]) {
    let (row_bytes, format) = (layout.row_bytes(), layout.format());
    let count = rows.len() / row_bytes;
    assert!(rows.len().is_multiple_of(row_bytes) && (1..=LANES).contains(&count), "one to 16 whole rows");
    assert_eq!(panel.len(), layout.panel_bytes(), "bytes of a panel");
    panel.fill(0);
    let geometry = Geometry::of(format);
    for block in 0..layout.blocks() {
        let source = Source { rows, row_bytes, at: block * format.block_bytes() };
        let scales = &mut panel[geometry.scales_at(block)..];
        match format {
            BlockFormat::F32 => source.spread::<4>(0, 1, scales, 0),
            BlockFormat::F16 | BlockFormat::BF16 => source.spread::<2>(0, 1, scales, 0),
            BlockFormat::Q6_K => source.spread::<2>(208, 1, scales, 0),
            // The scale, and then the minimum where the format has one.
            _ if geometry.paired => source.spread::<2>(0, 1, scales, 0),
            _ => source.spread::<2>(0, 2, scales, 0),
        }
        let bytes = &mut panel[geometry.block_at(block)..][..geometry.block];
        match format {
            BlockFormat::F32 | BlockFormat::F16 | BlockFormat::BF16 => {}
            BlockFormat::Q4_0 => source.spread::<4>(2, 4, bytes, 0),
            BlockFormat::Q4_1 => source.spread::<4>(4, 4, &mut bytes[2 * SCALES..], 0),
            BlockFormat::Q5_0 => {
                source.high_bits(2, bytes);
                source.spread::<4>(6, 4, &mut bytes[LINE..], 0);
            }
            BlockFormat::Q5_1 => {
                source.high_bits(4, &mut bytes[2 * SCALES..]);
                source.spread::<4>(8, 4, &mut bytes[2 * SCALES + LINE..], 0);
            }
            BlockFormat::Q8_0 => source.spread::<4>(2, 8, bytes, 0x80),
            BlockFormat::Q4_K => {
                source.k_scales(&mut bytes[2 * SCALES..]);
                source.spread::<4>(16, 32, &mut bytes[4 * LINE..], 0);
            }
            BlockFormat::Q5_K => {
                source.k_scales(&mut bytes[2 * SCALES..]);
                source.spread::<4>(16, 8 + 32, &mut bytes[4 * LINE..], 0);
            }
            BlockFormat::Q6_K => {
                for (n, half) in bytes.chunks_exact_mut(Q6_K_HALF).enumerate() {
                    source.spread::<1>(192 + 8 * n, 8, half, 0);
                    source.spread::<4>(64 * n, 8, &mut half[Q6_K_LOW_EVEN..], 0);
                    source.spread::<4>(128 + 32 * n, 8, &mut half[Q6_K_HIGH..], 0);
                    source.spread::<4>(64 * n + 32, 8, &mut half[Q6_K_LOW_ODD..], 0);
                }
            }
        }
    }
}

/// The same block of each row.
struct Source<'a> {
    rows: &'a [u8],
    row_bytes: usize,
    at: usize,
}

impl Source<'_> {
    /// `N` bytes of each row's block from `offset`.
    #[inline(always)]
    fn lanes(&self, offset: usize, len: usize) -> impl Iterator<Item = &[u8]> {
        self.rows.chunks_exact(self.row_bytes).map(move |row| &row[self.at + offset..][..len])
    }

    /// Turns `count` items of `N` bytes in each row into `count` vectors with an item a lane; `flip` is xored to
    /// each byte.
    #[inline(always)]
    fn spread<const N: usize>(&self, offset: usize, count: usize, out: &mut [u8], flip: u8) {
        for (lane, row) in self.lanes(offset, N * count).enumerate() {
            let vectors = out.chunks_exact_mut(N * LANES);
            for (item, vector) in row.chunks_exact(N).zip(vectors) {
                for (to, from) in vector[N * lane..][..N].iter_mut().zip(item) {
                    *to = from ^ flip;
                }
            }
        }
    }

    /// Regroups the 32 high bits of each row's block: bit `4g + c` becomes bit `g` of byte `c`.
    #[inline(always)]
    fn high_bits(&self, offset: usize, out: &mut [u8]) {
        for (lane, bytes) in self.lanes(offset, 4).enumerate() {
            for c in 0..4 {
                out[4 * lane + c] =
                    (0..8).fold(0, |byte, g| byte | (bytes[g / 2] >> (g % 2 * 4 + c) & 1) << g);
            }
        }
    }

    /// Regroups the 6-bit scales and minimums of Q4_K and Q5_K.
    #[inline(always)]
    fn k_scales(&self, out: &mut [u8]) {
        let mut scales = [0; 2 * LINE];
        let mut minimums = [0; 2 * LINE];
        for (lane, packed) in self.lanes(4, 12).enumerate() {
            let Some(packed) = packed.first_chunk() else { continue };
            let (scale, minimum) = k_scales(packed);
            for j in 0..8 {
                scales[j * LANES + lane] = scale[j];
                minimums[j / 2 * 32 + lane * 2 + j % 2] = minimum[j];
            }
        }
        let (low, high) = out.split_at_mut(2 * LINE);
        for (x, low) in low.iter_mut().enumerate() {
            *low = scales[x] & 15 | minimums[x] << 4;
        }
        let top = |x: usize| scales[x] >> 4 | minimums[x] >> 4 << 2;
        for (x, high) in high[..LINE].iter_mut().enumerate() {
            *high = top(x) | top(x + LINE) << 4;
        }
    }
}
