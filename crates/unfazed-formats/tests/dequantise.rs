//! Dequantisation against frozen values and against what any block must satisfy.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use unfazed_formats::BlockFormat;
use unfazed_formats::block::affine::Half;
use unfazed_formats::block::small_floats::{e4m3, e8m0, e8m0_half, ue4m3_half};
use unfazed_formats::block::{Affine, dequantise};

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

#[test]
fn weights_equal_those_of_the_gguf_package_bit_for_bit() {
    let mut seen = Vec::new();
    for line in include_str!("data/blocks.txt").lines().filter(|line| !line.starts_with('#')) {
        let [name, blocks, weights] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let format = BlockFormat::GGUF.into_iter().find(|format| format!("{format:?}") == name).unwrap();
        let (blocks, weights) = (from_hex(blocks), from_hex(weights));
        let expected: Vec<u32> =
            weights.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let mut out = vec![0.0; expected.len()];
        dequantise(format, &blocks, &mut out).unwrap();
        for (i, (found, expected)) in out.iter().zip(&expected).enumerate() {
            let expected = f32::from_bits(*expected);
            let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
            assert!(same, "{name}[{i}]: {found:e} instead of {expected:e}");
        }
        seen.push(format);
    }
    seen.sort();
    let mut all = BlockFormat::GGUF;
    all.sort();
    assert_eq!(seen, all);
}

#[test]
fn sizes_that_do_not_match_are_refused_and_leave_the_output_alone() {
    for format in BlockFormat::all() {
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

/// Codes as a stream of bits, the lowest first.
fn bit_stream(codes: &[u8], bits: usize) -> Vec<u8> {
    let mut stream = vec![0; codes.len() * bits / 8];
    for bit in 0..codes.len() * bits {
        stream[bit / 8] |= (codes[bit / bits] >> (bit % bits) & 1) << (bit % 8);
    }
    stream
}

#[test]
fn an_affine_weight_is_scale_times_code_plus_bias() {
    for affine in Affine::all() {
        let (bits, weights) = (affine.bits.count(), affine.group.weights());
        let codes: Vec<u8> = (0..weights).map(|i| (i * 37 + 5) as u8 & ((1u16 << bits) - 1) as u8).collect();
        let (scale, bias) = match affine.scale {
            Half::F16 => ([0x66, 0x2e], [0x00, 0xc1]),
            Half::BF16 => ([0xcd, 0x3d], [0x20, 0xc0]),
        };
        let block = [&scale[..], &bias, &bit_stream(&codes, bits)].concat();
        let (scale, bias) = match affine.scale {
            Half::F16 => (0.099_975_586, -2.5),
            Half::BF16 => (0.100_097_656, -2.5),
        };
        let mut out = vec![0.0; weights];
        dequantise(BlockFormat::Affine(affine), &block, &mut out).unwrap();
        for (weight, code) in out.iter().zip(codes) {
            assert_eq!(*weight, scale * f32::from(code) + bias, "{affine:?} code {code}");
        }
    }
}

/// What the bits of a small float say, by the definition.
fn float(exponent: u8, mantissa: u8) -> f64 {
    match exponent {
        0 => f64::from(mantissa) / 8.0 * 2f64.powi(-6),
        _ => (1.0 + f64::from(mantissa) / 8.0) * 2f64.powi(i32::from(exponent) - 7),
    }
}

#[test]
fn every_small_float_has_its_exact_value() {
    for bits in 0..=255u8 {
        let e = f64::from(bits);
        let power = if bits == 255 { f64::NAN } else { 2f64.powf(e - 127.0) };
        let same = |found: f32, expected: f64| {
            assert!(
                f64::from(found) == expected || found.is_nan() && expected.is_nan(),
                "{bits:#04x}: {found:e} instead of {expected:e}"
            );
        };
        same(e8m0(bits), power);
        same(e8m0_half(bits), 2f64.powf(e - 128.0));
        let magnitude = float(bits >> 3 & 15, bits & 7);
        same(ue4m3_half(bits), if bits == 0x7f { 0.0 } else { magnitude / 2.0 });
        let magnitude = if bits & 0x7f == 0x7f { f64::NAN } else { magnitude };
        same(e4m3(bits), if bits < 128 { magnitude } else { -magnitude });
        assert!(e4m3(bits).is_nan() || e4m3(bits).is_sign_negative() == (bits >= 128));
    }
}

#[test]
fn eight_bit_floats_are_multiplied_by_the_scale_before_them() {
    let mut out = [0.0; 128];
    let codes: Vec<u8> = (0..128).map(|i| i * 2).collect();
    let block = [&0.3f32.to_le_bytes()[..], &codes].concat();
    dequantise(BlockFormat::FP8, &block, &mut out).unwrap();
    for (weight, code) in out.iter().zip(&codes) {
        assert!(*weight == 0.3 * e4m3(*code) || weight.is_nan() && e4m3(*code).is_nan());
    }
    let block = [&[130][..], &codes[..32]].concat();
    dequantise(BlockFormat::MXFP8, &block, &mut out[..32]).unwrap();
    for (weight, code) in out.iter().zip(&codes[..32]) {
        assert_eq!(*weight, 8.0 * e4m3(*code));
    }
}

proptest! {
    /// Blocks do not look at their neighbours.
    #[test]
    fn a_row_is_its_blocks_one_by_one(
        format in proptest::sample::select(BlockFormat::all().collect::<Vec<_>>()),
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
