//! Routers with favourites: experts whose shares of tokens follow Zipf's law, so that cache policies have something
//! to find.
//!
//! The logits of a router for a normed activation are about normal, with mean 0 and a standard deviation in proportion
//! to the norm of the expert's row. A row that is scaled by `1 / z(p)`, where `z(p)` is the point that a standard normal
//! number exceeds with probability `p`, thus exceeds 1 for a share `p` of tokens; and where the shares of all experts
//! add up to the experts that a token uses, those above 1 are about those that the token uses.
//!
//! About, because the number above 1 is right on average only. Where a token has too few, unpopular experts fill in: 1 %
//! of all uses go to another rank than the law says for 128 experts and an exponent of 1, 3 % at the largest exponent
//! that is accepted, and 3 % and 11 % for as few as 8 experts.

use unfazed_formats::config::ExpertConfig;

use crate::TestkitError;
use crate::rng::Rng;
use crate::tensors::ModelTensor;

/// Largest share of tokens of an expert: a logit of mean 0 is above a positive threshold for less than half of them.
const LARGEST_SHARE: f64 = 0.45;

/// Least share of an expert, in shares that all would have without skew: smaller ones drown in what fills in.
const LEAST_SHARE: f64 = 0.05;

/// Largest factor of a row, so that logits stay in the range that real routers' have.
const LARGEST_FACTOR: f64 = 3.0;

/// How much more the routers of a mixture use some experts than others. The expert of rank `r` (0 is the most used) gets
/// the share `min(0.45, C / (r + 1)^A)` of tokens; `A` is the exponent, and `C` such that shares add up to the experts
/// that a token uses.
#[derive(Clone, Debug, PartialEq)]
pub struct RouterSkew {
    shares: Vec<f64>,
    factors: Vec<f32>,
}

impl RouterSkew {
    /// The skew of an exponent, 0 for none.
    ///
    /// # Errors
    /// [`TestkitError::Request`] where the exponent is negative or not finite, where it leaves the least used expert less
    /// than a twentieth of what it would have without skew (the reason names the largest exponent that works), and where
    /// tokens use over 45 % of the experts.
    pub fn new(exponent: f64, experts: &ExpertConfig) -> Result<RouterSkew, TestkitError> {
        let refused = |reason: String| Err(TestkitError::request("router skew", &exponent, reason));
        if !(0.0..f64::INFINITY).contains(&exponent) {
            return refused("it is a number from 0, which is none; 1 is Zipf's law".to_owned());
        }
        let flat = experts.used as f64 / experts.count as f64;
        if !(f64::MIN_POSITIVE..=LARGEST_SHARE).contains(&flat) {
            let ExpertConfig { used, count, .. } = experts;
            return refused(format!("a token uses {used} of {count} experts: over 45 % no skew works"));
        }
        let shares_of = |exponent| shares(exponent, flat, experts.count);
        let works = |shares: &[f64]| shares.last().is_some_and(|least| *least >= LEAST_SHARE * flat);
        let shares = shares_of(exponent);
        if !works(&shares) {
            let hundredths = (0..).map(|hundredths| f64::from(hundredths) / 100.0);
            let largest = hundredths.take_while(|exponent| works(&shares_of(*exponent))).last();
            return refused(format!("for this model at most {} works", largest.unwrap_or_default()));
        }
        // Rows of the usual size are those of no skew.
        let scale =
            shares.first().map_or(1.0, |most| exceeded_by(flat).min(LARGEST_FACTOR * exceeded_by(*most)));
        let factors = shares.iter().map(|share| (scale / exceeded_by(*share)) as f32).collect();
        Ok(RouterSkew { shares, factors })
    }

    /// Wanted shares of tokens by rank; they add up to the experts that a token uses.
    pub fn shares(&self) -> &[f64] {
        &self.shares
    }

    /// The rank of each expert of the router of this name, which differs from layer to layer.
    pub fn ranks(&self, seed: u64, router: &str) -> Vec<usize> {
        let mut rng = Rng::new(seed, &format!("{router} ranks"), 0);
        let mut ranks: Vec<usize> = (0..self.shares.len()).collect();
        // Fisher and Yates's shuffle.
        for i in (1..ranks.len()).rev() {
            ranks.swap(i, (rng.word() % (i as u64 + 1)) as usize);
        }
        ranks
    }

    /// Scales weights of a router, F32, of which the first has the number `first` in its tensor.
    pub(crate) fn scale(&self, seed: u64, router: &ModelTensor, first: usize, bytes: &mut [u8]) {
        let ranks = self.ranks(seed, &router.name);
        let (weights, _) = bytes.as_chunks_mut::<4>();
        for (number, weight) in (first..).zip(weights) {
            let rank = ranks.get(number / router.columns());
            let factor = rank.and_then(|rank| self.factors.get(*rank)).copied().unwrap_or(1.0);
            *weight = (f32::from_le_bytes(*weight) * factor).to_le_bytes();
        }
    }
}

/// Shares by rank whose mean is `flat`.
fn shares(exponent: f64, flat: f64, count: usize) -> Vec<f64> {
    // In logarithms, because powers of ranks overflow.
    let logs: Vec<f64> = (1..=count).map(|rank| exponent * (rank as f64).ln()).collect();
    let share = |log_c: f64, log: &f64| (log_c - log).exp().min(LARGEST_SHARE);
    // All shares are at most the mean at one end, and the largest at the other.
    let (mut low, mut high) = (flat.ln(), LARGEST_SHARE.ln() + exponent * (count as f64).ln());
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        let sum: f64 = logs.iter().map(|log| share(middle, log)).sum();
        *(if sum < flat * count as f64 { &mut low } else { &mut high }) = middle;
    }
    logs.iter().map(|log| share(high, log)).collect()
}

/// What a standard normal number exceeds with probability `p`, up to 0.5, within 0.00045 (Abramowitz and Stegun,
/// Handbook of Mathematical Functions, 26.2.23).
fn exceeded_by(p: f64) -> f64 {
    let t = (-2.0 * p.ln()).sqrt();
    let over = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    t - over / (1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308)))
}

#[cfg(test)]
mod tests {
    use super::exceeded_by;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (p, z) in [(0.45, 0.125_661), (0.25, 0.674_490), (0.05, 1.644_854), (0.001, 3.090_232)] {
            assert!((exceeded_by(p) - z).abs() < 4.5e-4, "{p}: {}", exceeded_by(p));
        }
    }
}
