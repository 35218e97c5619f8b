//! From rows as they are in the file to a panel.
//!
//! The layouts of file blocks are those of `unfazed_formats::block`, where they are told; here they are taken
//! apart 32 codes at a time, as eight dwords of four codes.
//!
//! | module | what |
//! |---|---|
//! | `place` | the place of a row in a block of a panel: what is put where |
//! | `simple` | formats of 32 to 128 weights |
//! | `superblock` | the K formats and the ternary ones |
//! | `codebook` | the IQ formats: grids expanded to codes |

mod codebook;
mod place;
mod simple;
mod superblock;

use unfazed_formats::BlockFormat;
use unfazed_formats::block::affine::Bits;

use crate::LANES;

use super::layout::{Geometry, PanelLayout};
use place::{KScales, Place};

/// Packs the rows of one panel.
///
/// `rows` are one to 16 rows as they lie in the file, one after the other; what is missing to 16 becomes zero
/// weights. Every byte of `panel` is written, so equal rows give equal panels.
///
/// # Panics
///
/// If `rows` is not one to 16 whole rows of the layout or `panel` has not the layout's size of a panel.
pub fn pack_panel(layout: &PanelLayout, rows: &[u8], panel: &mut [u8]) {
    let row_bytes = layout.row_bytes();
    let count = rows.len() / row_bytes;
    assert!(rows.len().is_multiple_of(row_bytes) && (1..=LANES).contains(&count), "one to 16 whole rows");
    assert_eq!(panel.len(), layout.panel_bytes(), "bytes of a panel");
    if !Geometry::of(layout.format()).fills(layout, count) {
        panel.fill(0);
    }
    let source = Source { rows, row_bytes, geometry: Geometry::of(layout.format()) };
    match layout.format() {
        BlockFormat::F32 => source.spread::<4>(panel),
        BlockFormat::F16 | BlockFormat::BF16 => source.spread::<2>(panel),
        BlockFormat::FP8 => source.pack(panel, simple::fp8),
        BlockFormat::MXFP8 => source.pack(panel, simple::mxfp8),
        BlockFormat::Q4_0 | BlockFormat::IQ4_NL => source.pack(panel, simple::q4_0),
        BlockFormat::Q4_1 => source.pack(panel, simple::q4_1),
        BlockFormat::Q5_0 => source.pack(panel, simple::q5_0),
        BlockFormat::Q5_1 => source.pack(panel, simple::q5_1),
        BlockFormat::Q8_0 => source.pack(panel, simple::q8_0),
        BlockFormat::MXFP4 => source.pack(panel, simple::mxfp4),
        BlockFormat::NVFP4 => source.pack(panel, simple::nvfp4),
        BlockFormat::Q2_K => source.pack_k(panel, superblock::q2_k),
        BlockFormat::Q3_K => source.pack(panel, superblock::q3_k),
        BlockFormat::Q4_K => source.pack_k(panel, superblock::q4_k),
        BlockFormat::Q5_K => source.pack_k(panel, superblock::q5_k),
        BlockFormat::Q6_K => source.pack(panel, superblock::q6_k),
        BlockFormat::TQ1_0 => source.pack(panel, superblock::tq1_0),
        BlockFormat::TQ2_0 => source.pack(panel, superblock::tq2_0),
        BlockFormat::IQ1_S => source.pack(panel, codebook::iq1_s),
        BlockFormat::IQ1_M => source.pack(panel, codebook::iq1_m),
        BlockFormat::IQ2_XXS => source.pack(panel, codebook::iq2_xxs),
        BlockFormat::IQ2_XS => source.pack(panel, codebook::iq2_xs),
        BlockFormat::IQ2_S => source.pack(panel, codebook::iq2_s),
        BlockFormat::IQ3_XXS => source.pack(panel, codebook::iq3_xxs),
        BlockFormat::IQ3_S => source.pack(panel, codebook::iq3_s),
        BlockFormat::IQ4_XS => source.pack(panel, codebook::iq4_xs),
        BlockFormat::Affine(affine) => {
            let size = affine.block_bytes();
            match affine.bits {
                Bits::Two => source.pack_blocks(panel, size, simple::affine::<2>),
                Bits::Three => source.pack_blocks(panel, size, simple::affine::<3>),
                Bits::Four => source.pack_blocks(panel, size, simple::affine::<4>),
                Bits::Five => source.pack_blocks(panel, size, simple::affine::<5>),
                Bits::Six => source.pack_blocks(panel, size, simple::affine::<6>),
                Bits::Eight => source.pack_blocks(panel, size, simple::affine::<8>),
            }
        }
    }
}

/// The rows of a panel in the file.
struct Source<'a> {
    rows: &'a [u8],
    row_bytes: usize,
    geometry: Geometry,
}

impl Source<'_> {
    /// Packs each row's blocks of `SIZE` bytes.
    #[inline(always)]
    fn pack<const SIZE: usize>(&self, panel: &mut [u8], pack: impl Fn(&[u8; SIZE], &mut Place<'_>)) {
        self.pack_blocks(panel, SIZE, |block, place| {
            if let Some(block) = block.first_chunk() {
                pack(block, place);
            }
        });
    }

    /// Packs each row's blocks of `SIZE` bytes, of `SUBS` sub-blocks with scales and minimums, which `pack` returns.
    #[inline(always)]
    fn pack_k<const SIZE: usize, const SUBS: usize>(
        &self,
        panel: &mut [u8],
        pack: impl Fn(&[u8; SIZE], &mut Place<'_>) -> ([u8; SUBS], [u8; SUBS]),
    ) {
        for b in 0..self.row_bytes / SIZE {
            let mut all = KScales::new();
            for (lane, row) in self.rows.chunks_exact(self.row_bytes).enumerate() {
                let Some(block) = row[b * SIZE..].first_chunk() else { continue };
                let (scales, minimums) = pack(block, &mut Place::new(panel, &self.geometry, b, lane));
                all.put(lane, scales, minimums);
            }
            all.write(panel, &self.geometry, b);
        }
    }

    /// Packs each row's blocks of `size` bytes: the same block of all rows, then the next one.
    #[inline(always)]
    fn pack_blocks(&self, panel: &mut [u8], size: usize, pack: impl Fn(&[u8], &mut Place<'_>)) {
        for b in 0..self.row_bytes / size {
            for (lane, row) in self.rows.chunks_exact(self.row_bytes).enumerate() {
                pack(&row[b * size..][..size], &mut Place::new(panel, &self.geometry, b, lane));
            }
        }
    }

    /// Turns columns of `N` bytes into vectors with one a lane.
    fn spread<const N: usize>(&self, panel: &mut [u8]) {
        for (lane, row) in self.rows.chunks_exact(self.row_bytes).enumerate() {
            let vectors = panel.chunks_exact_mut(N * LANES);
            for (column, vector) in row.as_chunks::<N>().0.iter().zip(vectors) {
                vector[N * lane..][..N].copy_from_slice(column);
            }
        }
    }
}
