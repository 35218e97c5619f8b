//! Choice of experts.

use crate::Isa;
use crate::vector::softmax;

/// An expert chosen for a row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Choice {
    /// Index of the expert.
    pub expert: u32,
    /// What its output is multiplied by.
    pub weight: f32,
}

/// Softmax over the router's `logits` (overwritten by the probabilities), then the `chosen.len()` largest, in ascending
/// order of expert. Of equal ones the lower index is taken. With `normalised` the weights are divided by their sum
/// (added in ascending order). If there are fewer experts than asked for, the rest of `chosen` has weight zero and
/// repeats expert 0. A NaN among the logits makes all weights NaN.
pub fn choose_experts(isa: Isa, logits: &mut [f32], normalised: bool, chosen: &mut [Choice]) {
    softmax(isa, logits);
    chosen.fill(Choice::default());
    let used = chosen.len().min(logits.len());
    let chosen = &mut chosen[..used];
    for (expert, weight) in logits.iter().copied().enumerate() {
        let filled = expert.min(used);
        // Sorted by weight, largest first; a new one goes behind its equals, so the lower index stays ahead.
        if filled == used && !chosen.last().is_some_and(|last| weight > last.weight) {
            continue;
        }
        let place = chosen[..filled].iter().position(|c| weight > c.weight).unwrap_or(filled);
        chosen.copy_within(place..filled.min(used - 1), place + 1);
        chosen[place] = Choice { expert: expert as u32, weight };
    }
    chosen.sort_unstable_by_key(|choice| choice.expert);
    if normalised {
        let sum: f32 = chosen.iter().fold(0.0, |sum, choice| sum + choice.weight);
        for choice in chosen {
            choice.weight /= sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(logits: &[f32], used: usize, normalised: bool) -> Vec<Choice> {
        let mut chosen = vec![Choice::default(); used];
        choose_experts(Isa::best(), &mut logits.to_vec(), normalised, &mut chosen);
        chosen
    }

    #[test]
    fn the_largest_are_chosen_and_stand_in_ascending_order() {
        for seed in 0..200u32 {
            let hash = |i: u32| i.wrapping_mul(2_654_435_761).wrapping_add(seed * 40_503) >> 7;
            let logits: Vec<f32> = (0..64).map(|i| (hash(i) & 31) as f32 / 8.0).collect();
            let mut order: Vec<usize> = (0..64).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
            let mut expected = order[..8].to_vec();
            expected.sort_unstable();
            let got: Vec<usize> = chosen(&logits, 8, false).iter().map(|c| c.expert as usize).collect();
            assert_eq!(got, expected);
        }
    }

    #[test]
    fn of_equal_experts_the_lower_index_is_taken() {
        let experts: Vec<u32> = chosen(&[1.0; 10], 3, true).iter().map(|c| c.expert).collect();
        assert_eq!(experts, [0, 1, 2]);
    }

    #[test]
    fn weights_are_probabilities_or_sum_to_one() {
        let plain = chosen(&[0.0, 1.0, 2.0, 3.0], 2, false);
        let sum: f64 = (0..4).map(|i| f64::from(i).exp()).sum();
        assert!((f64::from(plain[0].weight) - 2f64.exp() / sum).abs() < 1e-6);
        assert!((f64::from(plain[1].weight) - 3f64.exp() / sum).abs() < 1e-6);
        let normalised = chosen(&[0.0, 1.0, 2.0, 3.0], 2, true);
        assert!((normalised[0].weight + normalised[1].weight - 1.0).abs() < 1e-6);
    }

    #[test]
    fn nan_reaches_the_weights_and_experts_stay_in_range() {
        let nan = chosen(&[0.0, f32::NAN, 2.0, 3.0], 2, true);
        assert!(nan.iter().all(|c| c.weight.is_nan() && c.expert < 4));
        assert_eq!(chosen(&[0.5], 2, false).len(), 2);
    }
}
