//! The most likely tokens in order, without sorting the vocabulary. Ties go to the lower id throughout.

use unfazed_kernels::LANES;

/// True if all values are finite.
pub fn all_finite(values: &[f32]) -> bool {
    // A block at a time without a branch inside, so that the compiler makes vectors of it.
    values.chunks(256).all(|block| block.iter().fold(true, |all, value| all & value.is_finite()))
}

/// The largest value; negative infinity of none.
pub fn largest_value(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for block in values.chunks(LANES) {
        for (lane, &value) in lanes.iter_mut().zip(block) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// Index of the largest value, 0 of none.
pub fn argmax(values: &[f32]) -> u32 {
    let largest = largest_value(values);
    values.iter().position(|&value| value == largest).unwrap_or(0) as u32
}

/// The indices of the `count` largest values, largest first, into `out`. Values must not be NaN.
pub fn largest(values: &[f32], count: usize, out: &mut Vec<u32>) {
    out.clear();
    let count = count.min(values.len());
    if count == 0 {
        return;
    }
    // What is kept grows to `room`, is cut to the best `count`, and from then on only better values come in. A later
    // value equal to the worst that was kept has a higher index, so it may be passed over.
    let room = count.saturating_mul(2).max(64);
    let mut kept: Vec<u64> = Vec::with_capacity(room.min(values.len()));
    let mut bar = f32::NEG_INFINITY;
    for (index, &value) in values.iter().enumerate() {
        if value > bar || kept.len() < count {
            kept.push(rank(value, index as u32));
            if kept.len() >= room {
                let (_, worst, _) = kept.select_nth_unstable(count - 1);
                bar = values.get(index_of(*worst) as usize).copied().unwrap_or(bar);
                kept.truncate(count);
            }
        }
    }
    kept.sort_unstable();
    out.extend(kept.iter().take(count).map(|&rank| index_of(rank)));
}

/// A number that is smaller the larger the value and, among equal values, the smaller the index: comparing one number
/// is several times as fast as looking two values up.
fn rank(value: f32, index: u32) -> u64 {
    // Both zeros are one value.
    let bits = (value + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(!ascending) << 32 | u64::from(index)
}

fn index_of(rank: u64) -> u32 {
    rank as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sorted(values: &[f32]) -> Vec<u32> {
        let mut all: Vec<u32> = (0..values.len() as u32).collect();
        // A stable sort keeps equal values in order of index.
        all.sort_by(|&a, &b| values[b as usize].partial_cmp(&values[a as usize]).unwrap());
        all
    }

    proptest! {
        #[test]
        fn the_largest_are_those_of_a_full_sort(
            values in prop::collection::vec((-5i8..5).prop_map(f32::from), 0..600),
            count in 0usize..700,
        ) {
            let mut out = Vec::new();
            largest(&values, count, &mut out);
            let expected = sorted(&values);
            prop_assert_eq!(&out[..], &expected[..count.min(values.len())]);
            if let Some(&best) = expected.first() {
                prop_assert_eq!(argmax(&values), best);
            }
        }
    }

    #[test]
    fn ascending_values_are_selected_as_well_as_descending_ones() {
        let values: Vec<f32> = (0..10_000).map(|n| n as f32).collect();
        let mut out = Vec::new();
        largest(&values, 3, &mut out);
        assert_eq!(out, [9999, 9998, 9997]);
    }

    #[test]
    fn zeros_of_both_signs_tie() {
        assert_eq!(argmax(&[-1.0, -0.0, 0.0]), 1);
        let mut out = Vec::new();
        largest(&[-0.0, 0.0, -1.0], 2, &mut out);
        assert_eq!(out, [0, 1]);
    }

    #[test]
    fn one_value_that_is_not_finite_is_found_anywhere() {
        for at in [0, 255, 256, 999] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut values = vec![0.0; 1000];
                assert!(all_finite(&values));
                values[at] = bad;
                assert!(!all_finite(&values));
            }
        }
    }
}
