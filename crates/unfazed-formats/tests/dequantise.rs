//! Dequantisation against frozen values and against what any block must satisfy.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use unfazed_formats::BlockFormat;
use unfazed_formats::block::dequantise;

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

#[test]
fn weights_equal_those_of_the_gguf_package_bit_for_bit() {
    let mut seen = Vec::new();
    for line in include_str!("data/blocks.txt").lines().filter(|line| !line.starts_with('#')) {
        let [name, blocks, weights] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let format = BlockFormat::ALL.into_iter().find(|format| format!("{format:?}") == name).unwrap();
        let (blocks, weights) = (from_hex(blocks), from_hex(weights));
        let expected: Vec<u32> =
            weights.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let mut out = vec![0.0; expected.len()];
        dequantise(format, &blocks, &mut out).unwrap();
        for (i, (found, expected)) in out.iter().zip(&expected).enumerate() {
            let expected = f32::from_bits(*expected);
            assert_eq!(found.to_bits(), expected.to_bits(), "{name}[{i}]: {found} instead of {expected}");
        }
        seen.push(format);
    }
    seen.sort();
    let mut all = BlockFormat::ALL;
    all.sort();
    assert_eq!(seen, all);
}

#[test]
fn sizes_that_do_not_match_are_refused_and_leave_the_output_alone() {
    for format in BlockFormat::ALL {
        let (bytes, weights) = (format.block_bytes(), format.block_weights());
        for (bytes, weights) in [(bytes - 1, weights), (bytes, weights + 1), (bytes * 2, weights), (bytes, 0)]
        {
            let mut out = vec![7.0; weights];
            assert_eq!(dequantise(format, &vec![0xFF; bytes], &mut out), None, "{format:?}");
            assert!(out.iter().all(|weight| *weight == 7.0), "{format:?}");
        }
        assert_eq!(dequantise(format, &[], &mut []), Some(()), "{format:?}");
    }
}

proptest! {
    /// Blocks do not look at their neighbours.
    #[test]
    fn a_row_is_its_blocks_one_by_one(
        format in proptest::sample::select(&BlockFormat::ALL[..]),
        bytes in proptest::collection::vec(any::<u8>(), 3 * 210),
    ) {
        let (block_bytes, block_weights) = (format.block_bytes(), format.block_weights());
        let bytes = &bytes[..3 * block_bytes];
        let mut row = vec![0.0; 3 * block_weights];
        dequantise(format, bytes, &mut row).unwrap();
        for (block, weights) in bytes.chunks(block_bytes).zip(row.chunks(block_weights)) {
            let mut alone = vec![0.0; block_weights];
            dequantise(format, block, &mut alone).unwrap();
            let bits = |weights: &[f32]| weights.iter().map(|weight| weight.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&alone), bits(weights));
        }
    }
}
