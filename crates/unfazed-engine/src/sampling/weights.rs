//! Probabilities, sums of them in a fixed order, and a draw from them.

use unfazed_kernels::vector::softmax;
use unfazed_kernels::{Isa, LANES};

/// Values whose sums are kept apart, so that a draw finds its place without adding up the whole vocabulary again.
const BLOCK: usize = 512;

/// Probabilities at a temperature above 0: softmax of the values divided by it. `peak` is the largest value.
pub(super) fn probabilities(
    isa: Isa,
    values: impl Iterator<Item = f32>,
    peak: f32,
    temperature: f32,
    out: &mut Vec<f32>,
) {
    out.clear();
    // Without the peak first, a small temperature would make infinities of large logits.
    out.extend(values.map(|value| (value - peak) / temperature));
    softmax(isa, out);
}

/// The sum, in f64: blocks one after the other, within a block sixteen partial sums and a fixed tree.
pub(super) fn sum(weights: &[f32]) -> f64 {
    weights.chunks(BLOCK).map(block_sum).sum()
}

/// The index at which the running sum passes `draw` (in [0, 1)) times the whole. A weight of 0 is never chosen unless
/// all are.
pub(super) fn pick(weights: &[f32], draw: f64) -> usize {
    let target = draw * sum(weights);
    let mut before = 0.0;
    let mut last = 0;
    for (index, block) in weights.chunks(BLOCK).enumerate() {
        let after = before + block_sum(block);
        if after > target {
            let mut running = before;
            for (offset, &weight) in block.iter().enumerate() {
                running += f64::from(weight);
                if weight > 0.0 {
                    last = index * BLOCK + offset;
                    if running > target {
                        return last;
                    }
                }
            }
            // The tree rounded up and the plain sum did not: the block's last token it is.
            return last;
        }
        before = after;
        if let Some(offset) = block.iter().rposition(|&weight| weight > 0.0) {
            last = index * BLOCK + offset;
        }
    }
    last
}

fn block_sum(block: &[f32]) -> f64 {
    let mut lanes = [0f64; LANES];
    for row in block.chunks(LANES) {
        for (lane, &value) in lanes.iter_mut().zip(row) {
            *lane += f64::from(value);
        }
    }
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_picks_in_proportion_and_never_a_weight_of_zero() {
        let mut weights = vec![0.0; 2000];
        weights[3] = 1.0;
        weights[700] = 2.0;
        weights[1999] = 1.0;
        assert_eq!(pick(&weights, 0.0), 3);
        assert_eq!(pick(&weights, 0.2499), 3);
        assert_eq!(pick(&weights, 0.25), 700);
        assert_eq!(pick(&weights, 0.7499), 700);
        assert_eq!(pick(&weights, 0.75), 1999);
        assert_eq!(pick(&weights, 1.0 - f64::EPSILON / 2.0), 1999);
    }

    #[test]
    fn rounding_at_the_end_never_runs_off() {
        let weights: Vec<f32> = (1..5000).map(|n| 1.0 / n as f32).chain([0.0; 50]).collect();
        assert!(pick(&weights, 1.0 - f64::EPSILON / 2.0) < 4999);
        assert_eq!(pick(&[], 0.5), 0);
        assert_eq!(pick(&[0.0, 0.0], 0.5), 0);
    }
}
