//! Rotary position embedding (Su et al., "RoFormer").
//!
//! Pair `i` of a head turns by `position * frequency[i]` radians, where the frequency is `base ^ (-2i / dimensions)`,
//! lowered as [`RopeScaling`] says if contexts beyond the trained one are asked for. Angles are computed in f64: an f32
//! angle of a late position has lost its last digits.

use std::f64::consts::TAU;

use unfazed_formats::config::{Llama3Scaling, RopeConfig, RopePairing, RopeScaling, YarnScaling};

use crate::lanes::{Kernel, Lanes, dispatch};
use crate::vector::scalar;
use crate::{Isa, LANES};

/// Radians a position for each pair.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeFrequencies {
    frequencies: Vec<f64>,
    /// Cosines and sines are multiplied by this.
    amplitude: f64,
}

impl RopeFrequencies {
    /// Frequencies for a configuration: `dimensions / 2` of them.
    pub fn new(rope: &RopeConfig) -> RopeFrequencies {
        let ln_base = scalar::ln(f64::from(rope.base));
        let frequency = |i: usize| {
            let exponent = -2.0 * i as f64 / rope.dimensions as f64;
            let plain = scalar::exp(exponent * ln_base);
            match &rope.scaling {
                RopeScaling::None => plain,
                RopeScaling::Linear(factor) => plain / f64::from(*factor),
                RopeScaling::PerPair(factors) => plain / f64::from(factors.get(i).copied().unwrap_or(1.0)),
                RopeScaling::Llama3(llama3) => plain / f64::from(llama3_factor(llama3, plain)),
                RopeScaling::Yarn(yarn) => {
                    let divided = yarn_share(yarn, ln_base, rope.dimensions, i);
                    plain / f64::from(yarn.factor) * divided + plain * (1.0 - divided)
                }
            }
        };
        let amplitude = match &rope.scaling {
            RopeScaling::Yarn(YarnScaling { amplitude: Some(amplitude), .. }) => f64::from(*amplitude),
            RopeScaling::Yarn(yarn) if yarn.factor > 1.0 => 0.1 * scalar::ln(f64::from(yarn.factor)) + 1.0,
            _ => 1.0,
        };
        RopeFrequencies { frequencies: (0..rope.dimensions / 2).map(frequency).collect(), amplitude }
    }

    /// Number of pairs.
    pub fn pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// The cosines of all pairs at a position, then the sines: fills `[2 * pairs]`.
    pub fn table(&self, position: usize, out: &mut [f32]) {
        let (cos, sin) = out.split_at_mut(out.len().min(self.pairs()));
        for ((frequency, cos), sin) in self.frequencies.iter().zip(cos).zip(sin) {
            let (s, c) = scalar::sin_cos(position as f64 * frequency);
            (*cos, *sin) = ((c * self.amplitude) as f32, (s * self.amplitude) as f32);
        }
    }
}

/// What Llama 3's scaling divides a frequency by. It is an f32, as in GGUF files of such models.
fn llama3_factor(llama3: &Llama3Scaling, frequency: f64) -> f32 {
    let [factor, low, high] =
        [llama3.factor, llama3.low_frequency_factor, llama3.high_frequency_factor].map(f64::from);
    let turns = llama3.original_context as f64 * frequency / TAU;
    if turns > high {
        return 1.0;
    }
    if turns < low {
        return llama3.factor;
    }
    let kept = (turns - low) / (high - low);
    (1.0 / ((1.0 - kept) / factor + kept)) as f32
}

/// How far YaRN divides the frequency of pair `i`: 0 not at all, 1 by the whole factor.
fn yarn_share(yarn: &YarnScaling, ln_base: f64, dimensions: usize, i: usize) -> f64 {
    // The pair, as a fraction, that turns so often in the trained context.
    let pair = |turns: f32| {
        let wavelength = yarn.original_context as f64 / (f64::from(turns) * TAU);
        dimensions as f64 * scalar::ln(wavelength) / (2.0 * ln_base)
    };
    let first = pair(yarn.beta_fast).floor().max(0.0);
    let last = pair(yarn.beta_slow).ceil().min(dimensions as f64 - 1.0);
    ((i as f64 - first) / (last - first).max(0.001)).clamp(0.0, 1.0)
}

/// Rotates the first `2 * pairs` dimensions of each head of `heads` (`[heads, head_dim]`) by a table (`[2 * pairs]`)
/// of [`RopeFrequencies::table`].
pub fn rotate(isa: Isa, pairing: RopePairing, table: &[f32], head_dim: usize, heads: &mut [f32]) {
    let (cos, sin) = table.split_at(table.len() / 2);
    if head_dim >= table.len() {
        dispatch(isa, Rotate { pairing, cos, sin, head_dim, heads });
    }
}

struct Rotate<'a> {
    pairing: RopePairing,
    cos: &'a [f32],
    sin: &'a [f32],
    head_dim: usize,
    heads: &'a mut [f32],
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let pairs = self.cos.len();
        for head in self.heads.chunks_exact_mut(self.head_dim.max(1)) {
            match self.pairing {
                RopePairing::Halves => {
                    let (a, b) = head[..2 * pairs].split_at_mut(pairs);
                    turn(l, self.cos, self.sin, a, b);
                }
                RopePairing::Neighbours => {
                    let blocks = self.cos.chunks(LANES).zip(self.sin.chunks(LANES));
                    for ((cos, sin), head) in blocks.zip(head[..2 * pairs].chunks_mut(2 * LANES)) {
                        let (mut a, mut b) = ([0.0; LANES], [0.0; LANES]);
                        let n = cos.len();
                        for (i, pair) in head.chunks_exact(2).enumerate() {
                            (a[i], b[i]) = (pair[0], pair[1]);
                        }
                        turn(l, cos, sin, &mut a[..n], &mut b[..n]);
                        for (i, pair) in head.chunks_exact_mut(2).enumerate() {
                            (pair[0], pair[1]) = (a[i], b[i]);
                        }
                    }
                }
            }
        }
    }
}

/// `(a, b) = (a cos - b sin, b cos + a sin)`; all slices have the same length.
#[inline(always)]
fn turn<L: Lanes>(l: L, cos: &[f32], sin: &[f32], a: &mut [f32], b: &mut [f32]) {
    let (cos, cos_rest) = cos.as_chunks::<LANES>();
    let (sin, sin_rest) = sin.as_chunks::<LANES>();
    let (a, a_rest) = a.as_chunks_mut::<LANES>();
    let (b, b_rest) = b.as_chunks_mut::<LANES>();
    for (((cos, sin), a), b) in cos.iter().zip(sin).zip(a).zip(b) {
        let (x, y) = turn_lanes(l, l.load(cos), l.load(sin), l.load(a), l.load(b));
        l.store(x, a);
        l.store(y, b);
    }
    if !a_rest.is_empty() {
        let (cos, sin) = (l.load_part(cos_rest, 0.0), l.load_part(sin_rest, 0.0));
        let (x, y) = turn_lanes(l, cos, sin, l.load_part(a_rest, 0.0), l.load_part(b_rest, 0.0));
        l.store_part(x, a_rest);
        l.store_part(y, b_rest);
    }
}

#[inline(always)]
fn turn_lanes<L: Lanes>(l: L, cos: L::V, sin: L::V, a: L::V, b: L::V) -> (L::V, L::V) {
    let negated = l.sub(l.splat(0.0), sin);
    (l.fma(a, cos, l.mul(b, negated)), l.fma(b, cos, l.mul(a, sin)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(dimensions: usize, pairing: RopePairing, scaling: RopeScaling) -> RopeConfig {
        RopeConfig { base: 10_000.0, dimensions, pairing, scaling }
    }

    #[test]
    fn both_pairings_turn_by_the_angle_on_every_instruction_set() {
        for (dimensions, head_dim) in [(64, 64), (128, 128), (32, 80), (6, 8), (2, 2), (96, 96)] {
            for pairing in [RopePairing::Neighbours, RopePairing::Halves] {
                let frequencies = RopeFrequencies::new(&config(dimensions, pairing, RopeScaling::None));
                let mut table = vec![0.0; dimensions];
                frequencies.table(12_345, &mut table);
                let x: Vec<f32> = (0..3 * head_dim).map(|i| ((i * 29) % 31) as f32 / 7.0 - 2.0).collect();
                let mut expected = x.clone();
                rotate(Isa::Reference, pairing, &table, head_dim, &mut expected);
                for (h, i) in (0..3).flat_map(|h| (0..dimensions / 2).map(move |i| (h * head_dim, i))) {
                    let (i, j) = match pairing {
                        RopePairing::Neighbours => (h + 2 * i, h + 2 * i + 1),
                        RopePairing::Halves => (h + i, h + i + dimensions / 2),
                    };
                    let pair = if pairing == RopePairing::Halves { i - h } else { (i - h) / 2 };
                    let angle = 12_345.0 * 10_000f64.powf(-2.0 * pair as f64 / dimensions as f64);
                    let (a, b) = (f64::from(x[i]), f64::from(x[j]));
                    assert!((f64::from(expected[i]) - (a * angle.cos() - b * angle.sin())).abs() < 1e-6);
                    assert!((f64::from(expected[j]) - (b * angle.cos() + a * angle.sin())).abs() < 1e-6);
                }
                assert_eq!(
                    expected[dimensions..head_dim],
                    x[dimensions..head_dim],
                    "the rest of a head stays"
                );
                for isa in Isa::ALL {
                    let mut got = x.clone();
                    rotate(isa, pairing, &table, head_dim, &mut got);
                    assert!(got.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()));
                }
            }
        }
    }

    #[test]
    fn scaling_divides_the_frequencies() {
        let plain = RopeFrequencies::new(&config(8, RopePairing::Halves, RopeScaling::None));
        let linear = RopeFrequencies::new(&config(8, RopePairing::Halves, RopeScaling::Linear(4.0)));
        let pairs = RopeScaling::PerPair(vec![1.0, 2.0, 4.0, 8.0]);
        let pairs = RopeFrequencies::new(&config(8, RopePairing::Halves, pairs));
        for i in 0..4 {
            assert_eq!(linear.frequencies[i], plain.frequencies[i] / 4.0);
            assert_eq!(pairs.frequencies[i], plain.frequencies[i] / f64::from(1 << i));
        }
    }

    #[test]
    fn llama3_keeps_high_frequencies_divides_low_ones_and_blends_between() {
        let llama3 = Llama3Scaling {
            factor: 8.0,
            low_frequency_factor: 1.0,
            high_frequency_factor: 4.0,
            original_context: 8192,
        };
        let mut rope = config(128, RopePairing::Halves, RopeScaling::Llama3(llama3));
        rope.base = 5e5;
        let scaled = RopeFrequencies::new(&rope);
        for (i, frequency) in scaled.frequencies.iter().enumerate() {
            let plain = 5e5f64.powf(-2.0 * i as f64 / 128.0);
            // As the transformers library has it, by wavelengths.
            let wavelength = TAU / plain;
            let smooth = (8192.0 / wavelength - 1.0) / 3.0;
            let expected = match wavelength {
                long if long > 8192.0 => plain / 8.0,
                short if short < 2048.0 => plain,
                _ => (1.0 - smooth) * plain / 8.0 + smooth * plain,
            };
            assert!((frequency / expected - 1.0).abs() < 1e-6, "pair {i}: {frequency}, not {expected}");
        }
    }

    #[test]
    fn yarn_blends_over_pairs_and_raises_the_amplitude() {
        let mut rope = config(128, RopePairing::Halves, RopeScaling::Yarn(YarnScaling::new(4.0, 32_768)));
        rope.base = 1e6;
        let scaled = RopeFrequencies::new(&rope);
        // As the transformers library has it: the borders of 32 and 1 turns are at pairs 23.6 and 39.7.
        for (i, frequency) in scaled.frequencies.iter().enumerate() {
            let plain = 1e6f64.powf(-2.0 * i as f64 / 128.0);
            let ramp = ((i as f64 - 23.0) / 17.0).clamp(0.0, 1.0);
            let expected = plain / 4.0 * ramp + plain * (1.0 - ramp);
            assert!((frequency / expected - 1.0).abs() < 1e-12, "pair {i}: {frequency}, not {expected}");
        }
        let mut table = [0.0; 128];
        scaled.table(0, &mut table);
        assert!(table[..64].iter().all(|cos| (cos - 1.138_629_4).abs() < 1e-6), "0.1 ln 4 + 1: {table:?}");
    }
}
