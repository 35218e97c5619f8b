//! Random numbers from a seed and a label, the same on every machine and for any number of threads.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

/// A stream of random numbers (xoshiro256++).
#[derive(Clone, Debug)]
pub struct Rng(Xoshiro256PlusPlus);

impl Rng {
    /// The stream of a label (a tensor's name, say) and a number (which slice of it). Different labels give
    /// independent streams, so that parts can be made in any order.
    pub fn new(seed: u64, label: &str, number: u64) -> Rng {
        // FNV-1a, fed with everything that tells streams apart.
        let bytes = seed.to_le_bytes().into_iter().chain(number.to_le_bytes()).chain(label.bytes());
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Rng(Xoshiro256PlusPlus::seed_from_u64(hash))
    }

    /// Random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }

    /// A random word.
    pub fn word(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number from `low` to `high`, all alike.
    pub fn uniform(&mut self, low: f32, high: f32) -> f32 {
        // 24 bits are what a float in [0, 1) can hold evenly.
        let unit = (self.0.next_u64() >> 40) as f32 / (1u32 << 24) as f32;
        low + unit * (high - low)
    }

    /// A number of mean 0 and the given standard deviation. Uniform, so that it is bounded.
    pub fn centred(&mut self, standard_deviation: f32) -> f32 {
        let edge = 3f32.sqrt() * standard_deviation;
        self.uniform(-edge, edge)
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    /// What a seed means may not change: models that were measured are made again from it.
    #[test]
    fn a_seed_means_the_same_numbers_for_ever() {
        let word = |seed, label, number| Rng::new(seed, label, number).word();
        assert_eq!(word(1, "blk.0.attn_q.weight", 0), 4_911_121_121_722_322_178);
        assert_ne!(word(1, "blk.0.attn_q.weight", 0), word(1, "blk.0.attn_q.weight", 1));
        assert_ne!(word(1, "blk.0.attn_q.weight", 0), word(1, "blk.0.attn_k.weight", 0));
        assert_ne!(word(1, "blk.0.attn_q.weight", 0), word(2, "blk.0.attn_q.weight", 0));
    }
}
