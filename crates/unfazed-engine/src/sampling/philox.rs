//! Philox 4x32-10: random numbers as a function of a counter and a key (Salmon, Moraes, Dror, Shaw: "Parallel random
//! numbers: as easy as 1, 2, 3", SC 2011).
//!
//! There is no generator to save or to replay: whoever knows seed, choice and position knows the draw.

const ROUNDS: u32 = 10;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// Added to the key after each round: the golden ratio and the square root of three minus one, times 2^32.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Four random words of a counter and a key.
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let a = u64::from(counter[0]) * u64::from(MULTIPLIERS[0]);
        let b = u64::from(counter[2]) * u64::from(MULTIPLIERS[1]);
        let (a_high, b_high) = ((a >> 32) as u32, (b >> 32) as u32);
        counter = [b_high ^ counter[1] ^ key[0], b as u32, a_high ^ counter[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// The draw for the token at `position` of a sequence: uniform in [0, 1), a multiple of 2^-53.
pub fn uniform(seed: u64, choice: u32, position: u64) -> f64 {
    let counter = [position as u32, (position >> 32) as u32, choice, 0];
    let [low, high, ..] = philox(counter, [seed as u32, (seed >> 32) as u32]);
    let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
    bits as f64 * 2f64.powi(-53)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the authors' test vectors (Random123, `kat_vectors`, `philox4x32 10`).
    #[test]
    fn the_published_test_vectors_hold() {
        let ones = u32::MAX;
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([ones; 4], [ones; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn draws_differ_by_seed_choice_and_position_and_are_spread_evenly() {
        assert_ne!(uniform(1, 0, 5), uniform(2, 0, 5));
        assert_ne!(uniform(1, 0, 5), uniform(1, 1, 5));
        assert_ne!(uniform(1, 0, 5), uniform(1, 0, 6));
        let mut buckets = [0u32; 10];
        for position in 0..10_000 {
            let draw = uniform(7, 3, position);
            assert!((0.0..1.0).contains(&draw));
            buckets[(draw * 10.0) as usize] += 1;
        }
        assert!(buckets.iter().all(|&n| (850..1150).contains(&n)), "{buckets:?}");
    }
}
