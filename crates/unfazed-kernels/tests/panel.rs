//! Packing keeps every weight, and the same rows always make the same bytes.

mod common;

use common::*;
use proptest::prelude::*;
use unfazed_formats::BlockFormat;
use unfazed_formats::block::dequantise;
use unfazed_kernels::panel::{
    PackedMatrix, PackedMatrixError, PanelBuffer, PanelLayout, pack_panel, unpack_row,
};

fn format() -> impl Strategy<Value = BlockFormat> {
    prop::sample::select(BlockFormat::all().collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn an_unpacked_row_is_the_dequantised_row(
        format in format(), rows in 1usize..40, blocks in 1usize..6, scales in 0usize..3, seed: u64,
    ) {
        let columns = blocks * format.block_weights();
        let mut random = Random(seed);
        let file = file_rows(format, rows, columns, Scales::ALL[scales], Bytes::Random, &mut random);
        let w = Packed::new(format, rows, columns, &file);
        let (mut got, mut want) = (vec![0.0; columns], vec![0.0; columns]);
        for (row, bytes) in file.chunks_exact(w.layout.row_bytes()).enumerate() {
            unpack_row(&w.matrix(), row, &mut got);
            prop_assert!(dequantise(format, bytes, &mut want).is_some());
            prop_assert_eq!(same(&got, &want), Ok(()), "{:?} row {}", format, row);
        }
    }

    #[test]
    fn packing_writes_every_byte_and_fills_up_with_zero_weights(
        format in format(), rows in 1usize..=16, blocks in 1usize..6, seed: u64,
    ) {
        let columns = blocks * format.block_weights();
        let file = file_rows(format, rows, columns, Scales::Any, Bytes::Random, &mut Random(seed));
        let layout = PanelLayout::new(format, rows, columns).unwrap();
        let (mut first, mut second) = (PanelBuffer::new(layout.bytes()), PanelBuffer::new(layout.bytes()));
        second.fill(0xa5);
        pack_panel(&layout, &file, &mut first);
        pack_panel(&layout, &file, &mut second);
        prop_assert!(*first == *second);
        // As a matrix of 16 rows, the missing ones are there, and zero.
        let full = PanelLayout::new(format, 16, columns).unwrap();
        let matrix = PackedMatrix::new(full, &first).unwrap();
        let mut weights = vec![1.0; columns];
        for row in rows..16 {
            unpack_row(&matrix, row, &mut weights);
            prop_assert!(weights.iter().all(|&weight| weight == 0.0), "{:?} row {}", format, row);
        }
    }

    #[test]
    fn a_layout_holds_whole_panels_of_whole_lines(format in format(), rows in 1usize..1000, blocks in 1usize..500) {
        let layout = PanelLayout::new(format, rows, blocks * format.block_weights()).unwrap();
        prop_assert_eq!(layout.bytes(), layout.panels() * layout.panel_bytes());
        prop_assert_eq!(layout.panel_bytes() % 64, 0);
        let file = 16 * layout.row_bytes();
        // The codebook formats take more than in the file; the others, up to the scales that an odd number of blocks
        // leaves and a line, do not.
        let most = match format {
            BlockFormat::IQ1_S => file * 53 / 25,
            BlockFormat::IQ1_M => file * 57 / 28,
            BlockFormat::IQ2_XXS => file * 53 / 33,
            BlockFormat::IQ2_XS => file * 57 / 37,
            BlockFormat::IQ2_S => file * 57 / 41,
            BlockFormat::IQ3_XXS => file * 69 / 49,
            BlockFormat::IQ3_S => file * 69 / 55,
            BlockFormat::IQ4_XS => file * 69 / 68,
            BlockFormat::TQ1_0 => file * 33 / 27,
            BlockFormat::Q3_K => file * 57 / 55,
            _ => file,
        };
        prop_assert!((most..most + 112).contains(&layout.panel_bytes()), "{} of {most}", layout.panel_bytes());
        prop_assert_eq!((0..layout.panels()).map(|panel| layout.rows_in_panel(panel)).sum::<usize>(), rows);
    }
}

#[test]
fn a_layout_that_is_empty_cut_or_too_large_is_refused() {
    for (format, rows, columns) in [
        (BlockFormat::Q4_0, 0, 32),
        (BlockFormat::F32, 1, 0),
        (BlockFormat::Q4_0, 16, 33),
        (BlockFormat::Q6_K, 16, 128),
        (BlockFormat::F32, usize::MAX, 1),
        (BlockFormat::F32, 1, usize::MAX),
        (BlockFormat::Q8_0, 1 << 40, 1 << 40),
    ] {
        assert_eq!(PanelLayout::new(format, rows, columns), None, "{format:?} {rows} x {columns}");
    }
}

#[test]
fn bytes_of_another_length_or_alignment_are_refused() {
    let layout = PanelLayout::new(BlockFormat::Q4_0, 16, 64).unwrap();
    let bytes = PanelBuffer::new(layout.bytes() + 64);
    let needed = layout.bytes();
    assert_eq!(
        PackedMatrix::new(layout, &bytes).err(),
        Some(PackedMatrixError::Length { found: needed + 64, needed })
    );
    assert_eq!(
        PackedMatrix::new(layout, &bytes[4..][..needed]).err(),
        Some(PackedMatrixError::Alignment { remainder: 4 })
    );
    assert!(PackedMatrix::new(layout, &bytes[64..]).is_ok());
}
