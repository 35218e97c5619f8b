//! What the quantisers and the random blocks make is what they say, as the formats crate reads it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use unfazed_formats::BlockFormat;
use unfazed_formats::block::dequantise;
use unfazed_testkit::quantise::{QUANTISED, quantise};
use unfazed_testkit::random_blocks::random_blocks;
use unfazed_testkit::rng::Rng;

/// Largest error of a weight, in parts of the largest weight of its block: half a step of the format, and what
/// the scales lose.
fn tolerance(format: BlockFormat) -> f32 {
    match format {
        BlockFormat::F32 => 0.0,
        BlockFormat::F16 => 1.0 / 2048.0,
        BlockFormat::BF16 => 1.0 / 256.0,
        BlockFormat::Q8_0 => 0.005,
        BlockFormat::Q6_K => 0.05,
        BlockFormat::Q5_0 => 0.064,
        BlockFormat::Q5_1 | BlockFormat::Q5_K => 0.07,
        BlockFormat::Q4_0 => 0.126,
        _ => 0.13,
    }
}

#[test]
fn weights_come_back_within_half_a_step() {
    for format in QUANTISED {
        let mut rng = Rng::new(1, "weights", 0);
        let weights: Vec<f32> = (0..4096).map(|_| rng.centred(0.02)).collect();
        let blocks = quantise(format, &weights).unwrap();
        let mut back = vec![0.0; weights.len()];
        dequantise(format, &blocks, &mut back).unwrap();
        for (weights, back) in weights.chunks(256).zip(back.chunks(256)) {
            let largest = weights.iter().fold(0f32, |largest, weight| largest.max(weight.abs()));
            for (weight, back) in weights.iter().zip(back) {
                let error = (weight - back).abs();
                assert!(error <= tolerance(format) * largest, "{format:?}: {weight} became {back}");
            }
        }
    }
}

#[test]
fn zeros_stay_zeros_and_odd_lengths_are_refused() {
    for format in QUANTISED {
        let blocks = quantise(format, &[0.0; 256]).unwrap();
        let mut back = [1.0; 256];
        dequantise(format, &blocks, &mut back).unwrap();
        assert!(back.iter().all(|weight| *weight == 0.0), "{format:?}");
        if format.block_weights() > 1 {
            assert_eq!(quantise(format, &[0.0; 33]), None, "{format:?}");
        }
    }
}

#[test]
fn random_blocks_have_the_spread_that_was_asked_for() {
    for format in BlockFormat::GGUF {
        let weights = 1 << 16;
        let mut blocks = vec![0; format.row_bytes(weights).unwrap()];
        random_blocks(format, 0.02, &mut Rng::new(1, "blocks", 0), &mut blocks);
        let mut values = vec![0.0; weights];
        dequantise(format, &blocks, &mut values).unwrap();
        let count = weights as f64;
        let mean = values.iter().map(|value| f64::from(*value)).sum::<f64>() / count;
        let square = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / count;
        assert!(mean.abs() < 0.001, "{format:?}: mean {mean}");
        assert!((square.sqrt() / 0.02 - 1.0).abs() < 0.06, "{format:?}: deviation {}", square.sqrt());
    }
}
